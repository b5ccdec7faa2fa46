"""Arrows between the kernels of ranks: from send to receive, from the last to arrive to those who waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import nullable
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import Arrivals
from traceviz_dag.arrays import Int64, UInt64
from traceviz_dag.read.events import MISSING
from traceviz_dag.show.perfetto.clocks import TraceClocks


@dataclass(frozen=True, slots=True, eq=False)
class RankFlows:
    """What is known of the communications of one rank, a value a kernel.

    Attributes:
        wait_ns: last arrival minus own, on solved clocks or by durations; NULL where neither shows it.
        last_rank: the last to arrive.
        leaving, arriving: flows that leave or reach a kernel, 0 for none; an array for each that a kernel may have.
    """

    wait_ns: pa.Array
    last_rank: pa.Array
    leaving: Sequence[UInt64]
    arriving: Sequence[UInt64]


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """The arrows of a trace; arrays of rows have an entry a communication kernel.

    Attributes:
        rank, kernel_id: of each row.
        wait_ns, last_rank: of each row, ``MISSING`` where they cannot be known.
        leaving, arriving: numbers of the flows that leave or reach each row, 0 for none; as many arrays as the row with
            the most of them has.
        arrows: how many there are.
        backward: arrows left out, because on these clocks they would run against time.
    """

    rank: Int64
    kernel_id: Int64
    wait_ns: Int64
    last_rank: Int64
    leaving: Sequence[UInt64]
    arriving: Sequence[UInt64]
    arrows: int
    backward: int

    def of_rank(self, rank: int, kernel_ids: Int64) -> RankFlows:
        """What is known of a rank's kernels."""
        own = np.flatnonzero(self.rank == rank)
        row_of_kernel = np.full(int(max(kernel_ids.max(initial=-1), self.kernel_id[own].max(initial=-1))) + 1, MISSING)
        row_of_kernel[self.kernel_id[own]] = own
        rows = row_of_kernel[kernel_ids]
        known = rows != MISSING
        at = np.where(known, rows, 0)
        return RankFlows(
            wait_ns=nullable(np.where(known, self.wait_ns[at], MISSING) if len(own) else rows),
            last_rank=nullable(np.where(known, self.last_rank[at], MISSING) if len(own) else rows),
            leaving=[_of_rows(layer, rows) for layer in self.leaving],
            arriving=[_of_rows(layer, rows) for layer in self.arriving],
        )


def no_flows() -> Flows:
    """The flows of ranks whose communications are not matched."""
    nothing = np.empty(0, np.int64)
    return Flows(nothing, nothing, nothing, nothing, (), (), 0, 0)


def flows_of(matches: Matches, arrivals: Arrivals, ranks: Sequence[int], clocks: TraceClocks) -> Flows:
    """The arrows between some ranks.

    Args:
        arrivals: who came last, by a measure that holds whatever the clocks of the trace.
    """
    rows = matches.rows
    kernel_id = np.asarray(rows.table["kernel_id"].to_numpy(), np.int64)
    out, into, number = _edges(matches, arrivals)
    shown = np.isin(rows.rank, np.asarray(ranks, np.int64))
    inside = shown[out] & shown[into]
    begun, ended = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for rank in ranks:
        own = rows.rank == rank
        begun[own] = clocks.of_trace(rank, rows.start_ns[own])
        ended[own] = clocks.of_trace(rank, rows.end_ns[own])
    forward = ended[into] >= begun[out]
    drawn = inside & forward
    return Flows(
        rank=rows.rank,
        kernel_id=kernel_id,
        wait_ns=arrivals.wait_ns,
        last_rank=arrivals.last_rank(matches),
        leaving=_layers(out[drawn], number[drawn], len(rows)),
        arriving=_layers(into[drawn], number[drawn], len(rows)),
        arrows=int(drawn.sum()),
        backward=int((inside & ~forward).sum()),
    )


def _edges(matches: Matches, arrivals: Arrivals) -> tuple[Int64, Int64, Int64]:
    """Every arrow: the row that it leaves, the row that it reaches, its flow. A collective's arrows are one flow."""
    members = matches.collective_rows
    members = members[arrivals.last_row[members] != MISSING]
    last = arrivals.last_row[members]
    waiting = last != members
    messages = np.unique(np.stack((matches.messages.sender, matches.messages.receiver)), axis=1)
    first_free = int(matches.communication.max(initial=-1)) + 2
    return (
        np.concatenate((last[waiting], messages[0])),
        np.concatenate((members[waiting], messages[1])),
        np.concatenate((matches.communication[members[waiting]] + 1, first_free + np.arange(messages.shape[1]))),
    )


def _layers(rows: Int64, numbers: Int64, count: int) -> list[UInt64]:
    """The distinct flows of each row, spread over as many arrays as the row with the most of them has."""
    pairs = np.unique(np.stack((rows, numbers)), axis=1)
    first = np.searchsorted(pairs[0], pairs[0])
    turn = np.arange(pairs.shape[1]) - first
    layers = []
    for which in range(int(turn.max(initial=-1)) + 1):
        layer = np.zeros(count, np.uint64)
        layer[pairs[0][turn == which]] = pairs[1][turn == which]
        layers.append(layer)
    return layers


def _of_rows(layer: UInt64, rows: Int64) -> UInt64:
    known = rows != MISSING
    found: UInt64 = np.where(known, layer[np.where(known, rows, 0)], np.uint64(0))
    return found
