"""What really happened: the model's own output as tables, never read back from names.

Per kernel, per micro-batch, per pipeline; clocks; culprits; edges between streams have a module of their own.
Categories follow from kind, phase and dimension by a rule of its own, so that a fault in the classifier's rule shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.covering import uncovered
from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.items import Context
from traceviz_dag.simulate.settings import Format
from traceviz_dag.simulate.templates import Template
from traceviz_dag.simulate.tree import Kernel
from traceviz_dag.simulate.work.collectives import GROUP_OF
from traceviz_dag.vocabulary import Category, Dimension, Kind, Phase

KERNEL_SCHEMA = pa.schema(
    [
        ("rank", pa.int64()),
        ("iteration", pa.int64()),
        ("step", pa.int64()),
        ("correlation", pa.int64()),
        ("ts_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("true_ts_ns", pa.int64()),
        ("stream", pa.int64()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("phase", pa.dictionary(pa.int32(), pa.string())),
        ("recompute", pa.bool_()),
        ("microbatch", pa.int64()),
        ("chunk", pa.int64()),
        ("layer", pa.int64()),
        ("launching_phase", pa.dictionary(pa.int32(), pa.string())),
        ("launching_microbatch", pa.int64()),
        ("launching_chunk", pa.int64()),
        ("dimension", pa.dictionary(pa.int32(), pa.string())),
        ("role", pa.dictionary(pa.int32(), pa.string())),
        ("group", pa.dictionary(pa.int32(), pa.string())),
        ("group_name", pa.dictionary(pa.int32(), pa.string())),
        ("peers", pa.dictionary(pa.int32(), pa.string())),
        ("category", pa.dictionary(pa.int32(), pa.string())),
        ("wait_ns", pa.int64()),
        ("transfer_ns", pa.int64()),
        ("exposed_ns", pa.int64()),
        ("match", pa.string()),
        ("graph_id", pa.int64()),
        ("graph_node_id", pa.int64()),
        ("launched", pa.bool_()),
        ("clock_offset_ns", pa.int64()),
        ("clock_drift_ppm", pa.float64()),
    ]
)
"""A row per kernel or memory operation. ts_ns, dur_ns: as in the file (relative to its base). chunk, microbatch, layer:
-1 where none. exposed_ns: part of a communication beside which its GPU computes nothing. match: equal on all members of
one communication. launched: whether the file has its launch row."""

MICROBATCH_SCHEMA = pa.schema(
    [
        *[(name, pa.int64()) for name in ("rank", "step", "stage", "chunk", "microbatch")],
        ("phase", pa.string()),
        *[(name, pa.int64()) for name in ("host_start_ns", "host_end_ns", "start_ns", "end_ns", "kernels")],
    ]
)
"""Spans of one micro-batch's forward, backward or recompute on one rank; backward includes recompute. True clock."""

PIPELINE_SCHEMA = pa.schema(
    [
        *[(name, pa.int64()) for name in ("step", "pipeline", "stage", "rank", "start_ns", "end_ns")],
        *[(name, pa.int64()) for name in ("busy_ns", "computation_ns", "idle_ns")],
        *[(name, pa.int64()) for name in ("communication_ns", "exposed_ns")],
        *[(name, pa.int64()) for name in ("span_ns", "ideal_ns")],
        *[(name, pa.int64()) for name in ("fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns")],
    ]
)
"""One stage of one pipeline in one step. start, end: first and last kernel of forward and backward over all stages of
the pipeline, true clock; busy: union of everything but P2P inside; idle: the rest. Exposed: communication without
computation beside it. The columns from span on are ``bubbles.BubbleParts``: they measure the stage's own span against
the mean stage, so they add up to the bubble, span - ideal, and not to idle; NULL where a rank of the pipeline has no
file."""


_COMPUTATION = {
    Phase.FORWARD: Category.FWD_COMPUTATION,
    Phase.BACKWARD: Category.BWD_COMPUTATION,
    Phase.RECOMPUTE: Category.BWD_COMPUTATION_RECOMPUTE,
    Phase.OPTIMIZER: Category.OPTIMIZER_COMPUTATION,
}
_WITHIN_LAYERS = {
    Phase.FORWARD: Category.FWD_COMMUNICATION,
    Phase.BACKWARD: Category.BWD_COMMUNICATION,
    Phase.RECOMPUTE: Category.BWD_COMMUNICATION_RECOMPUTE,
}
_BY_DIMENSION = {
    Dimension.PP: Category.PP_COMMUNICATION,
    Dimension.DP: Category.DP_COMMUNICATION,
    Dimension.EDP: Category.DP_COMMUNICATION,
}


def category_of(kind: Kind, phase: Phase, dimension: Dimension | None) -> Category:
    """The category of a kernel."""
    if kind is Kind.MEMORY:
        return Category.MEMORY
    if kind is Kind.COMPUTATION or dimension is None:
        return _COMPUTATION.get(phase, Category.OTHER_COMPUTATION)
    if dimension in (Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP):
        return _WITHIN_LAYERS.get(phase, Category.OTHER_COMMUNICATION)
    return _BY_DIMENSION.get(dimension, Category.OTHER_COMMUNICATION)


_OF_NO_MICROBATCH = (Dimension.DP, Dimension.EDP, Dimension.PP)


@dataclass
class TruthTable:
    """Collects one rank's kernels of one file."""

    identity: Identity
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    parts: dict[str, list[Int64]] = field(default_factory=dict)
    matches: list[str] = field(default_factory=list)
    _by_context: dict[tuple[int, Phase], dict[str, Int64]] = field(default_factory=dict)

    def code(self, column: str, value: str) -> int:
        """The dictionary code of a value."""
        codes = self.codes.setdefault(column, {})
        return codes.setdefault(value, len(codes))

    def add(
        self,
        template: Template,
        context: Context,
        step: int,
        correlations: Int64,
        graph: tuple[int, Int64],
        times: tuple[Int64, Int64, Int64],
    ) -> None:
        """Record a segment's kernels.

        Args:
            graph: CUDA graph that the kernels belong to (-1: none) and their nodes in it.
            times: starts, ends and arrival of the last member, true clock.
        """
        count = len(template.kernels)
        if not count:
            return
        columns = dict(self._columns(template, context.phase))
        own = columns.pop("own_microbatch").astype(bool)
        columns |= {
            "step": np.full(count, step),
            "iteration": np.full(count, step if self.identity.settings.format is Format.KINETO else -1),
            "correlation": correlations,
            "graph_id": np.full(count, graph[0]),
            "graph_node_id": graph[1],
            "start": times[0],
            "end": times[1],
            "ready": times[2],
            "microbatch": np.where(own, context.microbatch, -1),
            "chunk": np.where(own, context.chunk, -1),
            "layer": np.where(own, context.layer, -1),
            "launching_microbatch": np.full(count, context.microbatch),
            "launching_chunk": np.full(count, context.chunk),
        }
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def _columns(self, template: Template, phase: Phase) -> dict[str, Int64]:
        key = (id(template), phase)
        if key not in self._by_context:
            self._by_context[key] = self._build(template, phase)
        return self._by_context[key]

    def _build(self, template: Template, segment_phase: Phase) -> dict[str, Int64]:
        rows: dict[str, list[int]] = {}
        for kernel in template.kernels:
            phase = kernel.phase or segment_phase
            what = kernel.collective
            dimension = what.dimension if what else None
            group = self.identity.group(what) if what else None
            values = {
                "name": self.code("name", kernel.name),
                "kind": self.code("kind", kernel.kind),
                "phase": self.code("phase", phase),
                "launching_phase": self.code("launching_phase", phase),
                "recompute": int(phase is Phase.RECOMPUTE),
                "dimension": self.code("dimension", dimension or ""),
                "role": self.code("role", what.role if what else ""),
                "group": self.code("group", group.description if group else ""),
                "group_name": self.code("group_name", group.name if group else ""),
                "peers": self.code("peers", self._peers(kernel)),
                "category": self.code("category", category_of(kernel.kind, phase, dimension)),
                "stream": self.identity.stream(kernel.stream),
                "own_microbatch": int(dimension not in _OF_NO_MICROBATCH),
                "launched": int(not kernel.lost),
            }
            for name, value in values.items():
                rows.setdefault(name, []).append(value)
        return {name: np.array(values, np.int64) for name, values in rows.items()}

    def _peers(self, kernel: Kernel) -> str:
        if kernel.collective is None:
            return ""
        if not kernel.messages:
            return str(list(self.identity.group(kernel.collective).ranks))
        ranks = self.identity.groups[GROUP_OF[kernel.collective.group]].ranks
        place = ranks.index(self.identity.rank)
        return str(sorted({ranks[(place + message.peer) % len(ranks)] for message in kernel.messages}))

    def joined(self) -> dict[str, Int64]:
        """All columns collected, once."""
        return {name: np.concatenate(self.parts.pop(name)) for name in list(self.parts)}

    def table(self, data: dict[str, Int64]) -> pa.Table:
        """The kernels as a table of ``KERNEL_SCHEMA``.

        Args:
            data: of :meth:`joined`.
        """
        clock, identity = self.identity.clock, self.identity
        start, end = clock.local(data["start"]), clock.local(data["end"])
        wait = clock.local(np.clip(data["ready"], data["start"], data["end"])) - start
        count = len(start)
        computes = np.isin(data["kind"], [self.code("kind", Kind.COMPUTATION)])
        communicates = np.isin(data["kind"], [self.code("kind", Kind.COMMUNICATION)])
        columns: dict[str, object] = {
            "rank": np.full(count, identity.rank),
            "ts_ns": identity.on_trace(data["start"]),
            "dur_ns": end - start,
            "true_ts_ns": data["start"],
            "wait_ns": wait,
            "transfer_ns": end - start - wait,
            "exposed_ns": np.where(communicates, uncovered(start, end, computes), 0),
            "match": self.matches,
            "recompute": data["recompute"].astype(bool),
            "launched": data["launched"].astype(bool),
            "clock_offset_ns": np.full(count, clock.offset_ns),
            "clock_drift_ppm": np.full(count, clock.drift_ppb / 1000),
        }
        arrays = []
        for column in KERNEL_SCHEMA:
            values = columns.get(column.name, data.get(column.name))
            if pa.types.is_dictionary(column.type):
                words = pa.array(list(self.codes[column.name]), pa.string())
                arrays.append(pa.DictionaryArray.from_arrays(pa.array(data[column.name], pa.int32()), words))
            else:
                arrays.append(pa.array(values, column.type))
        return pa.Table.from_arrays(arrays, schema=KERNEL_SCHEMA)
