"""Waits of communications, and what a rank did: from its kernels and the table ``collectives``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import NOTHING, Intervals, merge, union
from traceviz_dag.analyze.kernel_intervals import codes, numbers
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.show.lanes import parts as bins
from traceviz_dag.vocabulary import Category, Kind

OF_A_WAIT = (
    *("rank", "kernel_id", "communication", "clocks", "wait_aligned_ns", "wait_by_duration_ns"),
    *("last_rank_aligned", "last_rank_by_duration"),
)


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


class AllWaits:
    """Rows of table ``collectives``.

    Args:
        table: with ``OF_A_WAIT``.
    """

    def __init__(self, table: pa.Table) -> None:
        ranks = integers_of(table, "rank")
        order = np.argsort(ranks, kind="stable")
        self._ranks, self._table = ranks[order], table.take(order)

    def of(self, rank: int, kernel_ids: Int64) -> Waits:
        """Those of a rank; ``kernel_ids`` are of its kernels, in their order."""
        first, last = np.searchsorted(self._ranks, [rank, rank + 1])
        mine = self._table.slice(first, last - first)
        clocks = mine["clocks"].cast(pa.string())
        solved, untold = pc.equal(clocks, "solved").fill_null(False), pc.is_null(clocks)

        def told(aligned: str, by_duration: str) -> Int64:
            # What neither clocks nor durations show stays unknown.
            value = pc.if_else(solved, mine[aligned].cast(pa.int64()), mine[by_duration].cast(pa.int64()))
            value = pc.if_else(untold, pa.scalar(None, pa.int64()), value)
            return numbers(value)

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
    return numbers(table[column], absent)


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
