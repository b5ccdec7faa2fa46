"""Who came last to each matched communication, how long everybody else waited, and how long the transfer took.

In a matched communication wait = last arrival - own arrival and transfer = duration - wait, on each rank. A kernel that
carries messages waits for the peers of its own messages only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.clocks import solved_clocks
from traceviz_dag.analyze.communications import optional_integers
from traceviz_dag.analyze.intervals import Int64, number_groups
from traceviz_dag.analyze.matches import Matches
from traceviz_dag.read.events import MISSING


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One entry a row of the matches; ``MISSING`` where the row is not matched with another rank.

    Attributes:
        wait_ns: last arrival minus own.
        last_row: the row that arrived last; of several the one of the lowest rank, the row itself before others.
    """

    wait_ns: Int64
    last_row: Int64

    def transfer_ns(self, matches: Matches) -> Int64:
        """Duration minus wait."""
        duration = matches.rows.end_ns - matches.rows.start_ns
        return np.where(self.wait_ns == MISSING, MISSING, duration - self.wait_ns)

    def last_rank(self, matches: Matches) -> Int64:
        """The rank that arrived last."""
        known = self.last_row != MISSING
        return np.where(known, matches.rows.rank[np.where(known, self.last_row, 0)], MISSING)

    def last_transfer_ns(self, matches: Matches) -> Int64:
        """The transfer of the last to arrive, which is that of the communication."""
        known = self.last_row != MISSING
        return np.where(known, self.transfer_ns(matches)[np.where(known, self.last_row, 0)], MISSING)


@dataclass(frozen=True, slots=True)
class JudgedArrivals:
    """The arrivals on both clocks.

    Attributes:
        recorded: clocks as recorded; aligned: on solved clocks, ``MISSING`` where one of them is refused or in another
            component; solved: whether the aligned ones are there, and so the ones to go by.
    """

    recorded: Arrivals
    aligned: Arrivals
    solved: npt.NDArray[np.bool_]

    def best(self) -> Arrivals:
        """The aligned arrivals where they are there, else the recorded ones."""
        return Arrivals(
            np.where(self.solved, self.aligned.wait_ns, self.recorded.wait_ns),
            np.where(self.solved, self.aligned.last_row, self.recorded.last_row),
        )


def judge_arrivals(matches: Matches, rank_clocks: pa.Table) -> JudgedArrivals:
    """Compare arrivals on recorded and on solved clocks.

    Args:
        rank_clocks: the table ``rank_clocks`` of the same matches.
    """
    rows, clocks = matches.rows, solved_clocks(rank_clocks)
    aligned = arrivals(matches, clocks.align(rows.rank, rows.start_ns))
    component = dict(
        zip(*(optional_integers(rank_clocks, name).tolist() for name in ("rank", "component")), strict=True)
    )
    known = aligned.last_row != MISSING
    of_rank = np.array([component[rank] for rank in rows.ranks], dtype=np.int64)
    of_row = of_rank[np.searchsorted(np.array(rows.ranks), rows.rank)] if len(rows) else np.empty(0, np.int64)
    # Clocks of different components have nothing in common: one foreign member spoils the communication.
    foreign = known & (of_row != of_row[np.where(known, aligned.last_row, 0)]) if len(rows) else known
    spoiled = np.isin(matches.communication, np.unique(matches.communication[foreign]))
    aligned = Arrivals(*(np.where(spoiled, MISSING, each) for each in (aligned.wait_ns, aligned.last_row)))
    return JudgedArrivals(arrivals(matches, rows.start_ns), aligned, aligned.wait_ns != MISSING)


def arrivals(matches: Matches, start_ns: Int64) -> Arrivals:
    """Compare the arrivals of each matched communication.

    Args:
        start_ns: start of each row on clocks that may be compared; ``MISSING`` where a row's clock cannot be.
    """
    wait, last = np.full(len(matches.rows), MISSING), np.full(len(matches.rows), MISSING)
    _collectives(matches, start_ns, wait, last)
    _messages(matches, start_ns, wait, last)
    return Arrivals(wait, last)


def _collectives(matches: Matches, start_ns: Int64, wait: Int64, last: Int64) -> None:
    rows = matches.collective_rows
    # A member that nobody else was found for has nothing to be compared with, unless it is alone by definition.
    rows = rows[(matches.found[rows] > 1) | (matches.members[rows] == 1)]
    if not len(rows):
        return
    _, number = number_groups(matches.communication[rows])
    unknown = np.bincount(number, weights=start_ns[rows] == MISSING) > 0
    order = np.lexsort((-matches.rows.rank[rows], start_ns[rows], number))
    ends = np.append(np.flatnonzero(np.diff(number[order])), len(order) - 1)
    latest = rows[order[ends]]
    known = ~unknown[number]
    last[rows[known]] = latest[number[known]]
    wait[rows[known]] = start_ns[latest[number[known]]] - start_ns[rows[known]]


def _messages(matches: Matches, start_ns: Int64, wait: Int64, last: Int64) -> None:
    end, other = matches.end, matches.other
    if not len(end):
        return
    unknown = np.zeros(len(start_ns), dtype=bool)
    unknown[end[(start_ns[end] == MISSING) | (start_ns[other] == MISSING)]] = True
    order = np.lexsort((-matches.rows.rank[other], start_ns[other], end))
    places = np.append(np.flatnonzero(np.diff(end[order])), len(order) - 1)
    mine, peer = end[order[places]], other[order[places]]
    mine, peer = mine[~unknown[mine]], peer[~unknown[mine]]
    late = start_ns[peer] > start_ns[mine]
    last[mine] = np.where(late, peer, mine)
    wait[mine] = np.where(late, start_ns[peer] - start_ns[mine], 0)
