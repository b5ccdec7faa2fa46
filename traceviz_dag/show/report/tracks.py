"""Each rank's part of a report's timeline as columns: what its lanes hold, bins and waits.

Every time is an integer of nanoseconds from the rank's first kernel. Micro-batches, communications, ranks and waits are
kept as one more than they are, and 0 where they are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.bundle import Bundle, Content
from traceviz_dag.show.lanes.iteration import (
    KernelLane,
    OfAllRanks,
    add_gaps,
    add_microbatches,
    add_path,
    by_start,
    dimension_lanes,
    stream_lanes,
)
from traceviz_dag.show.lanes.lane import Lane, LaneKind
from traceviz_dag.show.lanes.waits import Waits, integers_of, parted
from traceviz_dag.show.page.activity import read_steps
from traceviz_dag.show.report.lane_columns import LaneColumns, lane_document
from traceviz_dag.show.report.signatures import COLUMNS, Signatures
from traceviz_dag.show.source import TableSource

_OF_A_KERNEL = ("kernel_id", "start_ns", "duration_ns", "microbatch")
_OF_A_LAUNCH = ("launch_start_ns", "launch_duration_ns")
_TOGETHER = 20_000
"""Kernels whose signatures are numbered at once."""

_NEVER = np.iinfo(np.int64).min


@dataclass
class Tracks:
    """The columns of all ranks, as they are gathered rank by rank.

    Attributes:
        bin_ns: length of a bin.
        shortest_ns: kernels below are left out, but for the bins.
        most_gaps: of a rank.
        gaps_left_out: how many gaps of all ranks were beyond that.
    """

    source: TableSource
    bin_ns: int
    shortest_ns: int
    with_launches: bool
    most_gaps: int
    signatures: Signatures = field(default_factory=Signatures)
    gaps_left_out: int = 0
    columns: LaneColumns = field(default_factory=LaneColumns)
    _waiting: list[pa.Table] = field(default_factory=list)
    """Kernels of ranks whose signatures are not added yet."""

    def __post_init__(self) -> None:
        self._every = OfAllRanks(self.source)
        self._path_rank, self._path_start = (integers_of(self._every.path, name) for name in ("rank", "start_ns"))

    def add_rank(self, rank: int, first: int, last: int, *, with_kernels: bool) -> dict[str, Any]:
        """Add a rank; returns its lanes, and how many bins, kernels and waits it has there.

        Args:
            first, last: start of its first and end of its last kernel, ns on its clock.
        """
        bundle = Bundle()
        add_microbatches(bundle, read_steps(self.source, rank), rank)
        steps = [self._add_lane(bundle, lane, first) for lane in bundle.lanes]
        counts, lanes = {"kernels": 0, "bins": 0, "waits": 0}, list[KernelLane]()
        if with_kernels:
            counts, lanes = self._add_kernels(rank, first, last)
        others = Bundle()
        split = add_gaps(others, self.source, rank)
        add_path(others, self._every.path, rank)
        after = [
            self._add_gaps(others, lane, split, first)
            if lane.kind is LaneKind.GAPS
            else self._add_path(others, lane, rank, first)
            for lane in others.lanes
        ]
        return counts | {"lanes": [*steps, *(lane_document(each.lane, each.holds) for each in lanes), *after]}

    def add_signatures(self) -> None:
        """Add those of the kernels that still wait for more: many ranks are numbered in a fraction of the time."""
        if self._waiting:
            lengths = [each.num_rows for each in self._waiting]
            table = pa.concat_tables(self._waiting).unify_dictionaries()
            self.columns.add("kernel.signature", self.signatures.of(table, lengths))
            self._waiting.clear()

    def _add_lane(self, bundle: Bundle, lane: Lane, first: int) -> dict[str, Any]:
        content = bundle.contents[lane.key]
        return self.columns.add_lane(lane, content, first, bundle.words.get(content.words, ()))

    def _add_kernels(self, rank: int, first: int, last: int) -> tuple[dict[str, int], list[KernelLane]]:
        wanted = (*_OF_A_KERNEL, *(_OF_A_LAUNCH if self.with_launches else ()), *COLUMNS)
        table = by_start(self.source.table("kernels", wanted, rank))
        lanes = [*stream_lanes(table, rank), *dimension_lanes(table, rank)]
        waits = self._every.waits.of(rank, integers_of(table, "kernel_id"))
        count = -(-(last - first) // self.bin_ns) or 1
        values = parts.binned(parted(table, waits), first, self.bin_ns, count)
        self.columns.add("bins", values.reshape(-1))
        kept = integers_of(table, "duration_ns") >= self.shortest_ns
        # Mostly nothing is left out, and it would copy forty columns.
        table = table if kept.all() else table.filter(pa.array(kept))
        starts = integers_of(table, "start_ns")
        self.columns.add("kernel.start", starts - first)
        self.columns.add("kernel.length", integers_of(table, "duration_ns"))
        self.columns.add("kernel.id", integers_of(table, "kernel_id"))
        self._waiting.append(table.select(COLUMNS))
        self.columns.add("kernel.signature", np.empty(0, np.int64))
        if sum(each.num_rows for each in self._waiting) >= _TOGETHER:
            self.add_signatures()
        if self.with_launches:
            self._add_launches(table, starts)
        counts = {
            "kernels": self.columns.add("kernel.microbatch", integers_of(table, "microbatch") + 1),
            "bins": len(values),
            "waits": self._add_waits(waits, kept),
        }
        return counts, lanes

    def _add_launches(self, table: pa.Table, starts: Int64) -> None:
        launch = integers_of(table, "launch_start_ns", absent=_NEVER)
        known = launch != _NEVER
        # 0 is "not known"; a launch at the very start of its kernel is 1.
        before = starts - launch
        self.columns.add("kernel.launch", np.where(known, np.where(before >= 0, before + 1, before), 0))
        self.columns.add("kernel.launch_length", np.where(known, integers_of(table, "launch_duration_ns", absent=0), 0))

    def _add_waits(self, waits: Waits, kept: Bool) -> int:
        place = np.cumsum(kept) - 1
        there = kept[waits.kernel]
        self.columns.add("wait.kernel", place[waits.kernel[there]])
        self.columns.add("wait.length", waits.wait[there] + 1)
        self.columns.add("wait.communication", waits.communication[there] + 1)
        return self.columns.add("wait.last_rank", waits.last_rank[there] + 1)

    def _add_gaps(self, bundle: Bundle, lane: Lane, split: pa.Table, first: int) -> dict[str, Any]:
        content = bundle.contents[lane.key]
        lengths = content.rows.end_ns - content.rows.start_ns
        chosen = np.arange(len(lengths))
        if len(lengths) > self.most_gaps:
            chosen = np.sort(np.argsort(-lengths, kind="stable")[: self.most_gaps])
            self.gaps_left_out += len(lengths) - len(chosen)
        for name in ("blocked", "starved"):
            self.columns.add(f"gap.{name}", integers_of(split, f"{name}_ns")[chosen])
        return self.columns.add_lane(lane, Content(content.rows.take(chosen), content.kinds), first)

    def _add_path(self, bundle: Bundle, lane: Lane, rank: int, first: int) -> dict[str, Any]:
        # Where each is among the segments of all ranks: a page draws the path from one to the next.
        order = np.flatnonzero(self._path_rank == rank)
        self.columns.add("path.order", order[np.argsort(self._path_start[order], kind="stable")])
        return self._add_lane(bundle, lane, first)
