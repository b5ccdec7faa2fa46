"""Each rank's part of a report's timeline as columns: micro-batches, kernels, bins, waits and gaps, from its tables.

Every time is an integer of nanoseconds from the rank's first kernel. Micro-batches, chunks, communications, ranks and
waits are kept as one more than they are, and 0 where they are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, merge, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.show.page.activity import NOTHING, read_steps
from traceviz_dag.show.report import bins
from traceviz_dag.show.report.columns import PageColumns
from traceviz_dag.show.report.signatures import COLUMNS, Signatures
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category, Kind

_OF_A_KERNEL = ("kernel_id", "start_ns", "duration_ns", "microbatch")
_OF_A_LAUNCH = ("launch_start_ns", "launch_duration_ns")
OF_A_WAIT = (
    *("rank", "kernel_id", "communication", "clocks", "wait_aligned_ns", "wait_by_duration_ns"),
    *("last_rank_aligned", "last_rank_by_duration"),
)
_OF_A_GAP = ("start_ns", "duration_ns", "blocked_ns", "starved_ns")
_DIFFERENCES = {"kernel.start", "kernel.id", "step.start", "gap.start", "wait.kernel"}
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
    """

    source: TableSource
    bin_ns: int
    shortest_ns: int
    with_launches: bool
    most_gaps: int
    signatures: Signatures = field(default_factory=Signatures)
    gaps_left_out: int = 0
    _gathered: dict[str, list[Int64]] = field(default_factory=dict)

    def add_rank(self, rank: int, first: int, last: int, *, with_kernels: bool) -> dict[str, int]:
        """Add a rank; returns how many micro-batches, bins, kernels, waits and gaps it has there.

        Args:
            first, last: start of its first and end of its last kernel, ns on its clock.
        """
        found = {"kernels": 0, "bins": 0, "waits": 0, "steps": self._add_steps(rank, first)}
        if with_kernels:
            found |= self._add_kernels(rank, first, last)
        return found | {"gaps": self._add_gaps(rank, first)}

    def hand_over(self, columns: PageColumns) -> None:
        """Give the columns to a page."""
        for name, parts in self._gathered.items():
            columns.add(name, np.concatenate(parts), differences=name in _DIFFERENCES)

    def _add(self, name: str, values: Int64) -> int:
        self._gathered.setdefault(name, []).append(values)
        return len(values)

    def _add_steps(self, rank: int, first: int) -> int:
        steps = read_steps(self.source, rank)
        self._add("step.start", steps.time.starts - first)
        self._add("step.length", steps.time.ends - steps.time.starts)
        self._add("step.backward", steps.backward.astype(np.int64))
        self._add("step.chunk", steps.chunk + 1)
        return self._add("step.microbatch", steps.microbatch + 1)

    def _add_kernels(self, rank: int, first: int, last: int) -> dict[str, int]:
        wanted = (*_OF_A_KERNEL, *(_OF_A_LAUNCH if self.with_launches else ()), *COLUMNS)
        order = [("start_ns", "ascending"), ("kernel_id", "ascending")]
        table = self.source.table("kernels", wanted, rank).sort_by(order)
        waits = self._waits.of(rank, integers_of(table, "kernel_id"))
        count = -(-(last - first) // self.bin_ns) or 1
        values = bins.binned(parted(table, waits), first, self.bin_ns, count)
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
        return {
            "kernels": self._add("kernel.microbatch", integers_of(table, "microbatch") + 1),
            "bins": len(values),
            "waits": self._add_waits(waits, kept),
        }

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

    def _add_gaps(self, rank: int, first: int) -> int:
        table = self.source.table("gpu_gaps", _OF_A_GAP, rank).sort_by("start_ns")
        lengths = integers_of(table, "duration_ns")
        if len(lengths) > self.most_gaps:
            longest = np.sort(np.argsort(-lengths, kind="stable")[: self.most_gaps])
            self.gaps_left_out += len(lengths) - len(longest)
            table = table.take(pa.array(longest))
        self._add("gap.start", integers_of(table, "start_ns") - first)
        self._add("gap.length", integers_of(table, "duration_ns"))
        self._add("gap.blocked", integers_of(table, "blocked_ns"))
        return self._add("gap.starved", integers_of(table, "starved_ns"))

    @cached_property
    def _waits(self) -> AllWaits:
        return AllWaits(self.source.table("collectives", OF_A_WAIT))


@dataclass(frozen=True, slots=True)
class Waits:
    """Communication kernels of a rank of which table ``collectives`` has a row, in the order of their kernels.

    Attributes:
        kernel: place of each in the rank's kernels.
        wait: time until the last member came, ns. communication: its number. last_rank: who came last. ``NONE`` where
            not known.
    """

    kernel: Int64
    wait: Int64
    communication: Int64
    last_rank: Int64


@dataclass(frozen=True, slots=True)
class AllWaits:
    """Rows of table ``collectives``."""

    table: pa.Table

    def of(self, rank: int, kernel_ids: Int64) -> Waits:
        """Those of a rank; ``kernel_ids`` are of its kernels, in their order."""
        mine = self.table.filter(pc.equal(self.table["rank"], rank))
        clocks = mine["clocks"].cast(pa.string())
        solved, untold = pc.equal(clocks, "solved").fill_null(False), pc.is_null(clocks)

        def told(aligned: str, by_duration: str) -> Int64:
            # What neither clocks nor durations show stays unknown.
            value = pc.if_else(solved, mine[aligned].cast(pa.int64()), mine[by_duration].cast(pa.int64()))
            value = pc.if_else(untold, pa.scalar(None, pa.int64()), value)
            return np.asarray(value.fill_null(NONE).to_numpy(zero_copy_only=False), np.int64)

        order = np.argsort(kernel_ids, kind="stable")
        ids = integers_of(mine, "kernel_id")
        place = np.searchsorted(kernel_ids[order], ids)
        there = place < len(order)
        there[there] = kernel_ids[order][place[there]] == ids[there]
        kernel = order[place[there]]
        by_kernel = np.argsort(kernel, kind="stable")
        wait = np.maximum(told("wait_aligned_ns", "wait_by_duration_ns"), NONE)
        columns = (wait, integers_of(mine, "communication"), told("last_rank_aligned", "last_rank_by_duration"))
        return Waits(kernel[by_kernel], *(column[there][by_kernel] for column in columns))


def integers_of(table: pa.Table, column: str, absent: int = NONE) -> Int64:
    """A column of integers; NULL is ``absent``."""
    return np.asarray(table[column].cast(pa.int64()).fill_null(absent).to_numpy(), np.int64)


def parted(table: pa.Table, waits: Waits) -> Mapping[str, Intervals]:
    """What a rank did, as ``bins.parts_of`` parts it."""
    starts = integers_of(table, "start_ns")
    lengths = integers_of(table, "duration_ns")
    ends = starts + lengths
    category, names = codes(table, "category")
    kind, kinds = codes(table, "kind")

    def of_kind(wanted: Kind) -> Bool:
        return np.isin(kind, [place for place, name in enumerate(kinds) if name == wanted.value])

    computes, communicates, moves = map(of_kind, (Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY))
    computation: dict[str, Intervals] = {}
    for code in np.unique(category[computes]).tolist():
        mask = computes & (category == code)
        told = code >= 0 and names[code] in bins.COMPUTATION
        name = names[code] if told else Category.UNCLASSIFIED.value
        computation[name] = merge(computation.get(name, NOTHING), union(starts[mask], ends[mask]))
    known = waits.wait >= 0
    kernel = waits.kernel[known]
    return bins.parts_of(
        computation,
        union(starts[communicates], ends[communicates]),
        union(starts[moves], ends[moves]),
        union(starts[kernel], starts[kernel] + np.minimum(waits.wait[known], lengths[kernel])),
        union(starts[kernel], ends[kernel]),
    )
