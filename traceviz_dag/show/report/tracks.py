"""Each rank's part of a report's timeline as columns: what its lanes hold, bins and waits.

Every time is an integer of nanoseconds from the rank's first kernel. Micro-batches, communications, ranks and waits are
kept as one more than they are, and 0 where they are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.bundle import Bundle, Content
from traceviz_dag.show.lanes.iteration import (
    STEP_NAMES,
    KernelLane,
    OfAllRanks,
    add_gaps,
    add_microbatches,
    add_path,
    dimension_lanes,
    stream_lanes,
)
from traceviz_dag.show.lanes.lane import Lane, LaneKind
from traceviz_dag.show.lanes.waits import Waits, integers_of, parted
from traceviz_dag.show.lanes.words import GAP_KINDS, STEP_KINDS
from traceviz_dag.show.page.activity import Steps, read_steps
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.signatures import COLUMNS, Signatures
from traceviz_dag.show.source import TableSource

_OF_A_KERNEL = ("kernel_id", "start_ns", "duration_ns", "microbatch")
_OF_A_LAUNCH = ("launch_start_ns", "launch_duration_ns")
_DIFFERENCES = {"kernel.start", "kernel.id", "step.start", "gap.start", "path.start", "wait.kernel"}
"""Columns whose neighbours differ little."""

_NEVER = np.iinfo(np.int64).min


@dataclass
class Tracks:
    """The columns of all ranks, as they are gathered rank by rank.

    Attributes:
        bin_ns: length of a bin.
        shortest_ns: kernels below are left out, but for the bins.
        most_gaps: of a rank.
        gaps_left_out: how many gaps of all ranks were beyond that.
        names: of micro-batches, each once. path_kinds: of the critical path.
        kinds: what micro-batches and gaps are.
    """

    source: TableSource
    bin_ns: int
    shortest_ns: int
    with_launches: bool
    most_gaps: int
    signatures: Signatures = field(default_factory=Signatures)
    gaps_left_out: int = 0
    names: dict[str, int] = field(default_factory=dict)
    path_kinds: dict[str, int] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    _gathered: dict[str, list[Int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._every = OfAllRanks(self.source)
        self._path_rank, self._path_start = (integers_of(self._every.path, name) for name in ("rank", "start_ns"))

    def add_rank(self, rank: int, first: int, last: int, *, with_kernels: bool) -> dict[str, Any]:
        """Add a rank; returns its lanes, and how many micro-batches, bins, kernels, waits and gaps it has there.

        Args:
            first, last: start of its first and end of its last kernel, ns on its clock.
        """
        bundle, steps = Bundle(), read_steps(self.source, rank)
        add_microbatches(bundle, steps, rank)
        found = {"kernels": 0, "bins": 0, "waits": 0, "steps": self._add_steps(bundle, steps, first)}
        lanes: list[KernelLane] = []
        if with_kernels:
            counts, lanes = self._add_kernels(rank, first, last)
            found |= counts
        split = add_gaps(bundle, self.source, rank)
        add_path(bundle, self._every.path, rank)
        found |= {"gaps": self._add_gaps(bundle, split, first), "path": self._add_path(bundle, rank, first)}
        own = {lane.kind: lane_document(lane) for lane in bundle.lanes}
        of_kernels = [lane_document(each.lane, each.holds) for each in lanes]
        ordered = ([own.get(LaneKind.MICROBATCHES)], of_kernels, [own.get(LaneKind.GAPS), own.get(LaneKind.PATH)])
        return found | {"lanes": [lane for part in ordered for lane in part if lane is not None]}

    def hand_over(self, columns: PageColumns) -> None:
        """Give the columns to a page."""
        for name, gathered in self._gathered.items():
            columns.add(name, np.concatenate(gathered), differences=name in _DIFFERENCES)

    def _add(self, name: str, values: Int64) -> int:
        self._gathered.setdefault(name, []).append(values)
        return len(values)

    def _add_steps(self, bundle: Bundle, steps: Steps, first: int) -> int:
        content = _only(bundle, LaneKind.MICROBATCHES)
        if content is None:
            return 0
        self._add_slices("step", content, first)
        places = [self.names.setdefault(name or "", len(self.names)) for name in bundle.words[STEP_NAMES]]
        self._add("step.name", np.array(places, np.int64)[content.rows.name])
        return self._add("step.microbatch", steps.microbatch + 1)

    def _add_slices(self, name: str, content: Content, first: int) -> int:
        self.kinds |= content.occurring
        self._add(f"{name}.start", content.rows.start_ns - first)
        self._add(f"{name}.kind", content.rows.kind.astype(np.int64))
        return self._add(f"{name}.length", content.rows.end_ns - content.rows.start_ns)

    def _add_kernels(self, rank: int, first: int, last: int) -> tuple[dict[str, int], list[KernelLane]]:
        wanted = (*_OF_A_KERNEL, *(_OF_A_LAUNCH if self.with_launches else ()), *COLUMNS)
        order = [("start_ns", "ascending"), ("kernel_id", "ascending")]
        table = self.source.table("kernels", wanted, rank).sort_by(order)
        lanes = [*stream_lanes(table, rank), *dimension_lanes(table, rank)]
        waits = self._every.waits.of(rank, integers_of(table, "kernel_id"))
        count = -(-(last - first) // self.bin_ns) or 1
        values = parts.binned(parted(table, waits), first, self.bin_ns, count)
        self._add("bins", values.reshape(-1))
        kept = integers_of(table, "duration_ns") >= self.shortest_ns
        table = table.filter(pa.array(kept))
        starts = integers_of(table, "start_ns")
        self._add("kernel.start", starts - first)
        self._add("kernel.length", integers_of(table, "duration_ns"))
        self._add("kernel.id", integers_of(table, "kernel_id"))
        self._add("kernel.signature", self.signatures.of(table))
        if self.with_launches:
            self._add_launches(table, starts)
        counts = {
            "kernels": self._add("kernel.microbatch", integers_of(table, "microbatch") + 1),
            "bins": len(values),
            "waits": self._add_waits(waits, kept),
        }
        return counts, lanes

    def _add_launches(self, table: pa.Table, starts: Int64) -> None:
        launch = integers_of(table, "launch_start_ns", absent=_NEVER)
        known = launch != _NEVER
        # 0 is "not known"; a launch at the very start of its kernel is 1.
        before = starts - launch
        self._add("kernel.launch", np.where(known, np.where(before >= 0, before + 1, before), 0))
        self._add("kernel.launch_length", np.where(known, integers_of(table, "launch_duration_ns", absent=0), 0))

    def _add_waits(self, waits: Waits, kept: Bool) -> int:
        place = np.cumsum(kept) - 1
        there = kept[waits.kernel]
        self._add("wait.kernel", place[waits.kernel[there]])
        self._add("wait.length", waits.wait[there] + 1)
        self._add("wait.communication", waits.communication[there] + 1)
        return self._add("wait.last_rank", waits.last_rank[there] + 1)

    def _add_gaps(self, bundle: Bundle, split: pa.Table, first: int) -> int:
        content = _only(bundle, LaneKind.GAPS)
        if content is None:
            return 0
        lengths = content.rows.end_ns - content.rows.start_ns
        chosen = np.arange(len(lengths))
        if len(lengths) > self.most_gaps:
            chosen = np.sort(np.argsort(-lengths, kind="stable")[: self.most_gaps])
            self.gaps_left_out += len(lengths) - len(chosen)
        for name in ("blocked", "starved"):
            self._add(f"gap.{name}", integers_of(split, f"{name}_ns")[chosen])
        return self._add_slices("gap", Content(content.rows.take(chosen), content.kinds), first)

    def _add_path(self, bundle: Bundle, rank: int, first: int) -> int:
        content = _only(bundle, LaneKind.PATH)
        if content is None:
            return 0
        # Where each is among the segments of all ranks: a page draws the path from one to the next.
        order = np.flatnonzero(self._path_rank == rank)
        self._add("path.order", order[np.argsort(self._path_start[order], kind="stable")])
        places = [self.path_kinds.setdefault(kind, len(self.path_kinds)) for kind in content.kinds]
        self._add("path.start", content.rows.start_ns - first)
        self._add("path.length", content.rows.end_ns - content.rows.start_ns)
        return self._add("path.kind", np.array(places, np.int64)[content.rows.kind])


def lane_document(lane: Lane, holds: Mapping[str, str | int | None] | None = None) -> dict[str, Any]:
    """A lane as the page's script reads it.

    Args:
        holds: what kernels of the lane have in common, by field of their signature.
    """
    told = {name: printable(one) if isinstance(one, str) else one for name, one in (holds or {}).items()}
    return {
        "key": lane.key,
        "label": printable(lane.label),
        "kind": lane.kind.value,
        **({"holds": told} if told else {}),
    }


def _only(bundle: Bundle, kind: LaneKind) -> Content | None:
    """The slices of the one lane of a kind."""
    return next((bundle.contents[lane.key] for lane in bundle.lanes if lane.kind is kind), None)


STEPS_AND_GAPS = {"step": STEP_KINDS, "gap": GAP_KINDS}
"""What ``step.kind`` and ``gap.kind`` are places in."""
