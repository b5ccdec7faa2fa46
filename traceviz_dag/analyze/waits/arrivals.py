"""Who came last to each matched communication, how long everybody else waited, and how long the transfer took.

In a matched communication wait = last arrival - own arrival and transfer = duration - wait, on each rank. A kernel that
carries messages waits for the peers of its own messages only, and not for those that receive what it may send ahead
(``buffered_sends``). A root of a broadcast may send ahead, too, as its end shows. Nobody else's communication ends
before the last has arrived: a wait that is longer than its kernel shows that clocks are wrong, and none is reported.

Where members end together no clock is needed: who arrives last has the shortest kernel, and the wait of the others is
what their kernels last longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.clocks.clock_evidence import message_pairs
from traceviz_dag.analyze.clocks.clocks import SolvedClocks, scattered_ranks, solved_clocks
from traceviz_dag.analyze.matching.collective_matching import MATCHED_BY, MatchedBy
from traceviz_dag.analyze.matching.communications import labels, optional_integers
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.matching.operations import ENDS_TOGETHER, OPERATIONS
from traceviz_dag.analyze.waits.buffered_sends import buffered_sends, waits_for_other
from traceviz_dag.arrays import Bool, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import CPU_DEVICE, Refusal

CONFIRMING_NS = 20_000
"""What is matched by order alone is believed where its members' ends lie no further apart on solved clocks: those of
ranks that do not meet drift apart."""

_RING_SHARE, WIDEST_RING_NS = 10, 100_000
"""Members leave a ring one after the other: 8 A100 within 49 us of all-reduces that take 590 us. So ends may also lie a
tenth of the shortest kernel apart, but no further than residuals that refuse a clock."""


REFUSALS = tuple(Refusal)
"""The word behind each code."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One entry per row of the matches; ``MISSING`` where the row is not matched with another rank.

    Attributes:
        wait_ns: last arrival minus own.
        last_row: the row that arrived last; of several the one of the lowest rank, the row itself before others.
        moved_row: the row of which the transfer is that of the communication: the last one, if it waits for this one;
            of what is sent ahead the receiver.
        ahead: whether the row waits for nobody, though others take part: it sends ahead.
    """

    wait_ns: Int64
    last_row: Int64
    moved_row: Int64
    ahead: Bool

    def transfer_ns(self, matches: Matches) -> Int64:
        """Duration minus wait."""
        duration = matches.rows.end_ns - matches.rows.start_ns
        return np.where(self.wait_ns == MISSING, MISSING, duration - self.wait_ns)

    def last_rank(self, matches: Matches) -> Int64:
        """The rank that arrived last."""
        known = self.last_row != MISSING
        return np.where(known, matches.rows.rank[np.where(known, self.last_row, 0)], MISSING)

    def last_transfer_ns(self, matches: Matches) -> Int64:
        """The transfer of the communication."""
        known = self.moved_row != MISSING
        return np.where(known, self.transfer_ns(matches)[np.where(known, self.moved_row, 0)], MISSING)


@dataclass(frozen=True, slots=True)
class KnownArrivals:
    """Arrivals by one measure, and why it shows nothing of the other rows.

    Attributes:
        arrivals: ``MISSING`` where the measure cannot be believed.
        refusal: codes of ``REFUSALS``; NONE where the arrivals are there, or where the row is not matched at all.
    """

    arrivals: Arrivals
    refusal: Int64


@dataclass(frozen=True, slots=True)
class JudgedArrivals:
    """The arrivals by every measure.

    Attributes:
        recorded: clocks as recorded; aligned: on solved clocks; by_duration: without clocks, where members end
            together.
    """

    recorded: KnownArrivals
    aligned: KnownArrivals
    by_duration: Arrivals

    @property
    def solved(self) -> Bool:
        """Whether the aligned arrivals are there, and so the ones to go by."""
        return self.aligned.arrivals.wait_ns != MISSING

    def best(self) -> Arrivals:
        """The aligned arrivals where they are there, else those by duration; never those on recorded clocks."""
        aligned = self.aligned.arrivals
        return _chosen(self.solved, aligned, self.by_duration)


def judge_arrivals(matches: Matches, rank_clocks: pa.Table) -> JudgedArrivals:
    """Compare arrivals on recorded clocks, on solved ones, and without any.

    Args:
        rank_clocks: the table ``rank_clocks`` of the same matches.
    """
    rows, clocks = matches.rows, solved_clocks(rank_clocks)
    waits = waits_for_other(matches, buffered_sends(matches, clocks))
    aligned = arrivals(matches, clocks.align(rows.rank, rows.start_ns), waits)
    recorded = arrivals(matches, rows.start_ns, waits, aligned.ahead)
    matched = recorded.wait_ns != MISSING
    unconfirmed = matched & (_unconfirmed(matches, clocks) | _refuted_messages(matches, clocks))
    aligned_refusals = {
        Refusal.ARRIVES_AFTER_END: _impossible(matches, aligned),
        Refusal.ORDER_ALONE: unconfirmed,
        Refusal.COMPONENTS_DIFFER: _foreign(matches, rank_clocks, aligned),
        Refusal.CLOCK_REFUSED: matched & (aligned.wait_ns == MISSING),
    }
    recorded_refusals = {
        Refusal.ARRIVES_AFTER_END: _impossible(matches, recorded),
        Refusal.ORDER_ALONE: unconfirmed,
    }
    scattered = np.isin(rows.rank, scattered_ranks(rank_clocks))
    together = ends_together(matches) & ~_shared(matches, scattered) & ~unconfirmed
    # On clocks that make every kernel end at 0, a start says how long it lasts.
    by_duration = arrivals(matches, np.where(together, rows.start_ns - rows.end_ns, MISSING), waits, aligned.ahead)
    return JudgedArrivals(_known(recorded, recorded_refusals), _known(aligned, aligned_refusals), by_duration)


def ends_together(matches: Matches) -> Bool:
    """Mark matched collectives of GPUs that nobody leaves before the last has come: their durations show the waits."""
    device, names = labels(matches.rows.table, "device")
    on_cpu = np.array([name == CPU_DEVICE for name in names])[device]
    collective = np.zeros(len(matches.rows), dtype=bool)
    collective[matches.collective_rows] = True
    together = np.isin(matches.rows.operation, [OPERATIONS.index(each) for each in ENDS_TOGETHER])
    return collective & together & ~_shared(matches, on_cpu)


def _known(found: Arrivals, refusals: Mapping[Refusal, Bool]) -> KnownArrivals:
    """The arrivals that nothing refuses; of several reasons the last counts."""
    refusal = np.full(len(found.wait_ns), REFUSALS.index(Refusal.NONE))
    for reason, rows in refusals.items():
        refusal[rows] = REFUSALS.index(reason)
    fine = refusal == REFUSALS.index(Refusal.NONE)
    return KnownArrivals(_chosen(fine, found, _nothing(len(fine))), refusal)


def _nothing(rows: int) -> Arrivals:
    wait, last, moved = np.full((3, rows), MISSING)
    return Arrivals(wait, last, moved, np.zeros(rows, dtype=bool))


def _chosen(which: Bool, found: Arrivals, other: Arrivals) -> Arrivals:
    """Some rows of one, the rest of another."""
    names = [each.name for each in fields(Arrivals)]
    return Arrivals(*(np.where(which, getattr(found, name), getattr(other, name)) for name in names))


def _shared(matches: Matches, rows: Bool) -> Bool:
    """The rows, and all others of the same collectives: what spoils one member's clock spoils the comparison."""
    spoiled = np.unique(matches.communication[rows & ~matches.is_message & (matches.communication >= 0)])
    return rows | (np.isin(matches.communication, spoiled) & ~matches.is_message)


def _impossible(matches: Matches, found: Arrivals) -> Bool:
    """Rows of which some member arrives after another has left."""
    duration = matches.rows.end_ns - matches.rows.start_ns
    return _shared(matches, (found.wait_ns != MISSING) & (found.wait_ns > duration))


def _foreign(matches: Matches, rank_clocks: pa.Table, aligned: Arrivals) -> Bool:
    """Rows with members whose clocks are of different components, which have nothing in common."""
    rows, known = matches.rows, aligned.last_row != MISSING
    if not len(rows):
        return known
    component = dict(
        zip(*(optional_integers(rank_clocks, name).tolist() for name in ("rank", "component")), strict=True)
    )
    of_rank = np.array([component[rank] for rank in rows.ranks], dtype=np.int64)
    of_row = of_rank[np.searchsorted(np.array(rows.ranks), rows.rank)]
    foreign = known & (of_row != of_row[np.where(known, aligned.last_row, 0)])
    spoiled = np.isin(matches.communication, np.unique(matches.communication[foreign]))
    return known & spoiled


def _unconfirmed(matches: Matches, clocks: SolvedClocks) -> Bool:
    """Rows that are matched by order alone, and whose members' ends on solved clocks do not confirm that."""
    alone = np.flatnonzero(matches.by_order_alone & (matches.communication >= 0))
    result = np.zeros(len(matches.rows), dtype=bool)
    if not len(alone):
        return result
    ends = clocks.align(matches.rows.rank[alone], matches.rows.end_ns[alone])
    first, number = number_groups(matches.communication[alone])
    low, high = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(low, number, ends)
    np.maximum.at(high, number, ends)
    unknown = np.bincount(number, weights=ends == MISSING) > 0
    shortest = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(shortest, number, (matches.rows.end_ns - matches.rows.start_ns)[alone])
    result[alone] = (unknown | (high - low > ends_limit(shortest)))[number]
    return result


def ends_limit(shortest_ns: Int64) -> Int64:
    """How far ends of members lie apart at most on solved clocks, by the shortest of their kernels, ns."""
    return np.clip(shortest_ns // _RING_SHARE, CONFIRMING_NS, WIDEST_RING_NS)


def _refuted_messages(matches: Matches, clocks: SolvedClocks) -> Bool:
    """Messages paired by order alone, of a group and step in which solved clocks contradict that order somewhere.

    One lost kernel shifts all that follow it, so a single contradiction spoils the rest: a receive that ends before its
    send starts, or two kernels that exchange with nobody else and do not end together.
    """
    rows, result = matches.rows, np.zeros(len(matches.rows), dtype=bool)
    ordered = matches.matched_by == MATCHED_BY.index(MatchedBy.PEERS)
    if not ordered.any() or not len(matches.end):
        return result
    starts, ends = (clocks.align(rows.rank, each) for each in (rows.start_ns, rows.end_ns))
    sender, receiver = matches.messages.sender, matches.messages.receiver
    early = _told_together(starts[sender], ends[receiver]) & (ends[receiver] + CONFIRMING_NS < starts[sender])
    pairs, exclusive = message_pairs(matches)
    first, second = pairs[exclusive].T
    apart = _told_together(ends[first], ends[second]) & (np.abs(ends[first] - ends[second]) > CONFIRMING_NS)
    contradicted = np.concatenate((receiver[early], first[apart]))
    contradicted = contradicted[ordered[contradicted]]
    of = np.flatnonzero(ordered)
    _, queue = number_groups(matches.grouped.group[of], rows.step[of])
    result[of] = np.isin(queue, queue[np.isin(of, contradicted)])
    return result


def _told_together(first: Int64, second: Int64) -> Bool:
    return (first != MISSING) & (second != MISSING)


def arrivals(matches: Matches, start_ns: Int64, waits: Bool | None = None, roots: Bool | None = None) -> Arrivals:
    """Compare the arrivals of each matched communication.

    Args:
        start_ns: start of each row on clocks that may be compared; ``MISSING`` where a row's clock cannot be.
        waits: as ``waits_for_other`` gives it; by default all wait.
        roots: rows of roots that send ahead; by default those whose end shows it on the clocks of ``start_ns``.
    """
    found = _nothing(len(matches.rows))
    _collectives(matches, start_ns, roots, found)
    _messages(matches, start_ns, np.ones(len(matches.end), dtype=bool) if waits is None else waits, found)
    return found


def _collectives(matches: Matches, start_ns: Int64, roots: Bool | None, found: Arrivals) -> None:
    rows = matches.collective_rows
    # A member that nobody else was found for has nothing to be compared with, unless it is alone by definition.
    rows = rows[(matches.found[rows] > 1) | (matches.members[rows] == 1)]
    if not len(rows):
        return
    _, number = number_groups(matches.communication[rows])
    unknown = np.bincount(number, weights=start_ns[rows] == MISSING) > 0
    order = np.lexsort((-matches.rows.rank[rows], start_ns[rows], number))
    ends = np.append(np.flatnonzero(np.diff(number[order])), len(order) - 1)
    rows, latest = rows[~unknown[number]], rows[order[ends]][number[~unknown[number]]]
    wait = start_ns[latest] - start_ns[rows]
    # What a root sends may lie in buffers when the others come.
    together = np.isin(matches.rows.operation[rows], [OPERATIONS.index(each) for each in ENDS_TOGETHER])
    longer = wait > (matches.rows.end_ns - matches.rows.start_ns)[rows]
    ahead = ~together & (longer if roots is None else roots[rows])
    found.ahead[rows] = ahead
    found.wait_ns[rows] = np.where(ahead, 0, wait)
    found.last_row[rows] = np.where(ahead, rows, latest)
    found.moved_row[rows] = latest


def _messages(matches: Matches, start_ns: Int64, waits: Bool, found: Arrivals) -> None:
    end, other = matches.end, matches.other
    if not len(end):
        return
    unknown = np.zeros(len(start_ns), dtype=bool)
    unknown[end[(start_ns[end] == MISSING) | (start_ns[other] == MISSING)]] = True
    # What is sent ahead waits for nobody but itself.
    mine, peer = _latest(matches, start_ns, np.where(waits, other, end))
    known = ~unknown[mine]
    mine, peer = mine[known], peer[known]
    late = start_ns[peer] > start_ns[mine]
    last = np.where(late, peer, mine)
    found.last_row[mine] = last
    found.wait_ns[mine] = np.where(late, start_ns[peer] - start_ns[mine], 0)
    width = len(start_ns)
    alone = late & ~np.isin(peer * width + mine, (end * width + other)[waits])
    receiver = _latest(matches, start_ns, other)[1][known]
    ahead = ~np.isin(mine, end[waits])
    found.ahead[mine] = ahead
    found.moved_row[mine] = np.where(ahead, receiver, np.where(alone, mine, last))


def _latest(matches: Matches, start_ns: Int64, other: Int64) -> tuple[Int64, Int64]:
    """Per row with messages, the one that arrives last of those that it waits for; of several that of the lowest rank.

    Args:
        other: of each entry of ``matches.end``.
    """
    order = np.lexsort((-matches.rows.rank[other], start_ns[other], matches.end))
    places = np.append(np.flatnonzero(np.diff(matches.end[order])), len(order) - 1)
    return matches.end[order[places]], other[order[places]]
