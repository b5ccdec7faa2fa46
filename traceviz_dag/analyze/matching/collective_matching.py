"""Which kernels of several ranks are one collective: the same group, and the same place in the group's sequence.

The place is the recorded sequence number where the trace names the group (the numbers are those of one communicator)
and every row of it has one, else the order of launch. By order, the members' lists of operations must agree, and for a
group that no trace names also kernels, sizes and types; a shorter list (a file that breaks off, a profiler that started
late) is placed where it fits in exactly one way, and so is a longer one, if ends agree. Lists that lost rows elsewhere
are paired row by row where only one difference of clocks makes ends agree. What cannot be placed stays unmatched, with
the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.matching.communication_groups import (
    BY_DIMENSION,
    BY_NAME,
    BY_SIZE,
    BY_WORLD,
    GroupedRows,
)
from traceviz_dag.analyze.matching.communications import Communications, labels
from traceviz_dag.analyze.matching.operations import OPERATIONS, Operation
from traceviz_dag.analyze.matching.sequence_trust import groups_to_distrust
from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Fault

UNMATCHED = -1
AGREE_BETTER = 8
"""Times by which the ends of lists agree better where they are paired right."""

_ALL_WAIT_FOR_ALL = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)

FEWEST_ENDS = 8
"""Ends from which on a list may be said to contradict another of the same length."""

FEWEST_ALIGNED = 4
"""Rows from which on ends alone may say where a list lost some."""

MOST_LOST = 8
"""Rows that each of two lists may have lost beside those by which one is shorter."""

MOST_SHORTER = 64
"""Rows by which a list that lost some may be shorter than another: each is tried against as many others."""

TOGETHER_NS = 5_000
"""Most ends of one communication lie this close together, where ends alone may say which rows are one."""

LEAST_EXPLAINED = 0.75
"""Share of the shorter list of which ends must agree."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


class MatchedBy(StrEnum):
    """What decided that kernels of several ranks are one communication."""

    SEQUENCE = "sequence"
    ORDER = "order"
    DIMENSION_ORDER = "order_in_dimension"
    WORLD_ORDER = "order_in_world"
    SCHEDULE = "schedule"
    PEERS = "peers"
    ENDS = "ends"
    NONE = "none"


MATCHED_BY, FAULTS = tuple(MatchedBy), tuple(Fault)
"""The word behind each code."""

BY_ORDER_ALONE = (MatchedBy.DIMENSION_ORDER, MatchedBy.WORLD_ORDER)
"""Rules by which no trace names what it matches: only ends that agree on solved clocks confirm them."""

_RULES = {
    BY_NAME: MatchedBy.ORDER,
    BY_DIMENSION: MatchedBy.DIMENSION_ORDER,
    BY_SIZE: MatchedBy.ORDER,
    BY_WORLD: MatchedBy.WORLD_ORDER,
}


@dataclass(frozen=True, slots=True)
class CollectiveMatches:
    """The collective of each row; entries are parallel to the rows that were to be matched.

    Attributes:
        communication: number of its collective, from 0; ``UNMATCHED`` where it has none.
        matched_by, fault: codes of ``MATCHED_BY`` and ``FAULTS``.
        members: ranks that take part by the group's definition, ``MISSING`` where unknown; found: ranks found.
        group_of: the group of each number, also of those that no row has in the end.
        trust: what sequence numbers showed.
    """

    communication: Int64
    matched_by: Int64
    fault: Int64
    members: Int64
    found: Int64
    group_of: Int64
    trust: SequenceTrust


class SequenceTrust(NamedTuple):
    """Whether sequence numbers of some group are distrusted, and whether some are trusted unless others are not."""

    distrusts: bool = False
    unchecked: bool = False


def match_collectives(
    rows: Communications, chosen: npt.NDArray[np.intp], grouped: GroupedRows, *, distrust: bool = False
) -> CollectiveMatches:
    """Match the chosen rows (collectives, not messages) across ranks.

    Args:
        rows: all communications.
        chosen: numbers of the rows to match.
        grouped: the group of every row of ``rows``.
        distrust: distrust the sequence numbers that cannot be checked.
    """
    count = len(chosen)
    group = grouped.group[chosen]
    place, fault = np.full(count, MISSING), np.full(count, FAULTS.index(Fault.NONE))
    rule = np.full(count, MATCHED_BY.index(MatchedBy.NONE))
    fault[group < 0] = FAULTS.index(Fault.NO_GROUP)
    named = np.array([each.evidence == BY_NAME for each in grouped.groups] + [False])
    trust = _place_by_sequence(rows, chosen, np.where(named[group], group, -1), place, rule, distrust)
    strict = np.array([each.evidence in (BY_SIZE, BY_WORLD) for each in grouped.groups] + [False])
    _place_by_order(rows, chosen, group, strict[group], place, rule)
    if grouped.groups:
        by_evidence = np.array([MATCHED_BY.index(_RULES[each.evidence]) for each in grouped.groups])
        rule = np.where(rule == MATCHED_BY.index(MatchedBy.ORDER), by_evidence[group], rule)
    lost = (group >= 0) & (place == MISSING)
    fault[lost], rule[lost] = FAULTS.index(Fault.ORDER_DIFFERS), MATCHED_BY.index(MatchedBy.NONE)
    return _number(rows, chosen, grouped, place, rule, fault, trust)


def _place_by_sequence(
    rows: Communications, chosen: npt.NDArray[np.intp], group: Int64, place: Int64, rule: Int64, distrust: bool
) -> SequenceTrust:
    """Where each row of a group has a sequence number that runs over this group alone, that is its place; equal ones of
    a rank count on."""
    sequence, rank = rows.integers("sequence")[chosen], rows.rank[chosen]
    groups = int(group.max(initial=-1)) + 1
    lacking = np.bincount(group[group >= 0], weights=sequence[group >= 0] == MISSING, minlength=groups) > 0
    # A row without a group, -1, picks the last entry.
    usable = np.flatnonzero(~np.append(lacking, True)[group])
    distrusted, unchecked = groups_to_distrust(rows, chosen[usable], group[usable]) if len(usable) else (set(), set())
    trust = SequenceTrust(bool(distrusted), bool(unchecked))
    if distrusted or distrust:
        distrusted |= unchecked
    usable = usable[~np.isin(group[usable], list(distrusted))]
    if not len(usable):
        return trust
    _, queue = number_groups(group[usable], rank[usable], sequence[usable])
    order = rows.order(chosen[usable], queue.astype(np.int64))
    occurrence = np.empty(len(usable), dtype=np.int64)
    occurrence[order] = _count_on(queue[order])
    place[usable] = sequence[usable] * (int(occurrence.max()) + 1) + occurrence
    rule[usable] = MATCHED_BY.index(MatchedBy.SEQUENCE)
    return trust


def _place_by_order(
    rows: Communications,
    chosen: npt.NDArray[np.intp],
    group: Int64,
    strict: npt.NDArray[np.bool_],
    place: Int64,
    rule: Int64,
) -> None:
    """Where the members' lists of operations agree, the place is the position in the list.

    Args:
        strict: rows of lists that must also agree on kernels, sizes and types.
    """
    rest = np.flatnonzero((group >= 0) & (place == MISSING))
    if not len(rest):
        return
    _, queue = number_groups(group[rest], rows.rank[chosen[rest]], rows.step[chosen[rest]])
    queue = queue.astype(np.int64)
    rest = rest[rows.order(chosen[rest], queue)]
    queue = np.sort(queue)
    position = _count_on(queue)
    signature = signatures(rows, chosen[rest], strict[rest])
    ends = rows.end_ns[chosen[rest]]
    compared = np.where(strict[rest], len(OPERATIONS) + signature, rows.operation[chosen[rest]])
    lengths = np.bincount(queue)
    starts = np.cumsum(lengths) - lengths
    prints = np.add.reduceat(_mixed(position, compared), starts)
    of_queue = group[rest[starts]], rows.step[chosen[rest[starts]]]
    _, unit = number_groups(*of_queue)
    reference = _reference_queues(unit, lengths, prints)
    agrees = (prints == prints[reference]) & (lengths == lengths[reference])
    twin = np.where(agrees[queue], starts[reference[queue]] + position, np.arange(len(queue)))
    # Steps of one file follow each other: each gets places of its own.
    wide = 2 * int(lengths.max()) + 1
    found = np.where(agrees[queue], unit[queue] * wide + int(lengths.max()) + position, MISSING)
    contradicted = _contradicted_by_ends(rows, chosen[rest], queue, twin)
    found[contradicted] = MISSING
    for odd in np.unique(queue[contradicted | ~agrees[queue]]).tolist():
        own, others = (slice(starts[one], starts[one] + lengths[one]) for one in (odd, reference[odd]))
        at = _fitted(signature[own], ends[own], signature[others], ends[others])
        if (at != MISSING).sum() > (found[own] != MISSING).sum():
            found[own] = np.where(at != MISSING, unit[odd] * wide + int(lengths.max()) + at, MISSING)
    placed = found != MISSING
    place[rest[placed]] = found[placed]
    rule[rest[placed]] = MATCHED_BY.index(MatchedBy.ORDER)


def _fitted(own: Int64, ends: Int64, others: Int64, others_ends: Int64) -> Int64:
    """Per row of a list its place in another one: before its first where it precedes it, ``MISSING`` where unknown.

    Args:
        own, others: what the rows of both lists are, as numbers. ends, others_ends: when they end.
    """
    for sign, short, long in ((1, (own, ends), (others, others_ends)), (-1, (others, others_ends), (own, ends))):
        at = _only_fit(short[0], long[0])
        if at != MISSING and _ends_together(short[1], long[1], at):
            return np.arange(len(own)) + sign * at
    return _aligned(own, ends, others, others_ends)


def _number(
    rows: Communications,
    chosen: npt.NDArray[np.intp],
    grouped: GroupedRows,
    place: Int64,
    rule: Int64,
    fault: Int64,
    trust: SequenceTrust,
) -> CollectiveMatches:
    """Number the collectives and count their members."""
    group = grouped.group[chosen]
    sizes = np.array([each.size or MISSING for each in grouped.groups] or [MISSING], dtype=np.int64)
    members = np.where(group >= 0, sizes[group], MISSING)
    communication, found = np.full(len(chosen), UNMATCHED), np.ones(len(chosen), dtype=np.int64)
    placed, group_of = np.flatnonzero(place != MISSING), np.empty(0, np.int64)
    if len(placed):
        first, number = number_groups(group[placed], place[placed])
        group_of = group[placed[first]]
        communication[placed] = number
        found[placed] = np.bincount(number)[number]
        operation = rows.operation[chosen[placed]]
        differs = np.bincount(number, weights=operation != operation[first][number]) > 0
        fault[placed[differs[number]]] = FAULTS.index(Fault.OPERATIONS_DIFFER)
        communication[placed[differs[number]]] = UNMATCHED
    matched = communication >= 0
    # Of a group whose members are not known, one rank alone says nothing either.
    fault[matched & np.where(members != MISSING, found < members, found < 2)] = FAULTS.index(Fault.MEMBERS_MISSING)
    fault[matched & (members == MISSING) & (found > 1)] = FAULTS.index(Fault.MEMBERS_UNKNOWN)
    fault[matched & (members != MISSING) & (found > members)] = FAULTS.index(Fault.MEMBERS_UNKNOWN)
    return CollectiveMatches(communication, rule, fault, members, found, group_of, trust)


def _reference_queues(unit: npt.NDArray[np.intp], lengths: Int64, prints: npt.NDArray[np.uint64]) -> Int64:
    """Per list, the list that most members of its group have; of equally common ones the longest, then the first."""
    first, kind = number_groups(unit.astype(np.int64), lengths, prints.view(np.int64))
    common = np.bincount(kind)
    order = np.lexsort((-first, lengths[first], common, unit[first]))
    best = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    best[unit[first][order]] = first[order]
    return best[unit]


def _only_fit(short: Int64, long: Int64) -> int:
    """Where a list is in a longer one, if there is exactly one such place; else ``MISSING``."""
    if not 0 < len(short) < len(long):
        return MISSING
    windows = np.lib.stride_tricks.sliding_window_view(long, len(short))
    fits = np.flatnonzero((windows == short).all(axis=1))
    return int(fits[0]) if len(fits) == 1 else MISSING


def _ends_together(short: Int64, long: Int64, at: int) -> bool:
    """Whether each end of a list is, but for a difference of clocks, nearer to its own in a longer list than to others:
    a row that is lost in the middle shifts those on one side of it by one."""
    own = long[at : at + len(short)]
    apart = short - own
    apart = apart - np.partition(apart, (len(apart) - 1) // 2)[(len(apart) - 1) // 2]
    ordered = np.sort(long)
    nearest = ordered[np.clip(np.searchsorted(ordered, own)[:, None] + [-1, 1], 0, len(ordered) - 1)]
    gaps = np.abs(nearest - own[:, None])
    return bool((2 * np.abs(apart) < np.where(gaps, gaps, gaps.max() + 1).min(axis=1)).all())


def _aligned(own: Int64, ends: Int64, others: Int64, others_ends: Int64) -> Int64:
    """Per row of a list the one of another list that ends with it, in order and of the same kind; else ``MISSING``.

    The difference of clocks is that on which most ends agree. Another one must not explain nearly as much, unless this
    one alone explains the whole of the shorter list: similar layers repeat.

    Args: see ``_fitted``.
    """
    result = np.full(len(own), MISSING)
    short, reach = min(len(own), len(others)), abs(len(own) - len(others)) + MOST_LOST
    if short < FEWEST_ALIGNED or reach > MOST_SHORTER:
        return result
    wanted = np.arange(len(own))[:, None] + np.arange(-reach, reach + 1)
    at = np.clip(wanted, 0, len(others) - 1)
    apart = ends[:, None] - others_ends[at]
    alike = (at == wanted) & (own[:, None] == others[at])
    ordered, half = np.sort(apart[alike]), short // 2 + 1
    if len(ordered) < half:
        return result
    narrowest, gaps = int((ordered[half - 1 :] - ordered[: len(ordered) - half + 1]).min()), _to_next(others_ends)
    limit = max(AGREE_BETTER * narrowest, min(TOGETHER_NS, int(np.sort(gaps)[len(gaps) // 2]) // 4))
    within = _within(ordered, limit)
    middle = ordered[int(within.argmax()) + int(within.max()) // 2]
    off = np.where(alike, np.abs(apart - middle), limit + 1)
    nearest = off.argmin(axis=1)
    rows = np.arange(len(own))
    partner, off = at[rows, nearest], off[rows, nearest]
    near = np.minimum(_to_next(ends), gaps[partner])
    met = (off <= limit) & (2 * off < near)
    # Those of one row each, in the order of both lists.
    met &= (partner > np.append(-1, np.maximum.accumulate(np.where(met, partner, -1))[:-1])) | ~met
    most = int(_within(ordered[np.abs(ordered - middle) > 2 * limit], 2 * limit).max(initial=0))
    explained = int(met.sum())
    if explained < max(FEWEST_ALIGNED, LEAST_EXPLAINED * short) or narrowest > TOGETHER_NS:
        return result
    if 2 * most <= explained or most < explained == short:
        result[met] = partner[met]
    return result


def _within(ordered: Int64, limit: int) -> Int64:
    """Per value how many, itself among them, are at most as much larger."""
    return np.searchsorted(ordered, ordered + limit, "right") - np.arange(len(ordered))


def _to_next(ends: Int64, queue: Int64 | None = None) -> Int64:
    """How far each end is from the nearest other one of its list."""
    queue = np.zeros_like(ends) if queue is None else queue
    order, far = np.lexsort((ends, queue)), np.iinfo(np.int64).max
    gaps = np.where(np.diff(queue[order]), far, np.diff(ends[order]))
    result = np.empty(len(ends), np.int64)
    result[order] = np.minimum(np.append(far, gaps), np.append(gaps, far))
    return result


def _contradicted_by_ends(
    rows: Communications, chosen: npt.NDArray[np.intp], queue: Int64, twin: Int64
) -> npt.NDArray[np.bool_]:
    """Mark rows whose ends say that their list lost another row than the one it is compared with: they agree far better
    if counted one further or one less, or, where all wait for all, one has ended before the other started or is as far
    from it as from others.
    A list of which the former holds all in all, or of two rows in a row, is marked whole.

    Args:
        queue: the list of each row, ascending. twin: the row of the other list at the same place.
    """
    count = int(queue[-1]) + 1
    starts, ends = rows.start_ns[chosen], rows.end_ns[chosen]
    whole = np.zeros(count, dtype=bool)
    apart = ends - ends[twin]
    middle = lower_medians(queue, apart, count)[queue]
    apart = np.abs(apart - middle)
    usual = lower_medians(queue, apart, count)
    gaps = _to_next(ends, queue)
    far = np.maximum(starts - middle - ends[twin], starts[twin] + middle - ends) > AGREE_BETTER * usual[queue]
    beside = (usual[queue] <= TOGETHER_NS) & (apart > AGREE_BETTER * usual[queue])
    far |= beside & (apart > np.minimum(gaps, gaps[twin]) // 2)
    result = far & np.isin(rows.operation[chosen], [OPERATIONS.index(each) for each in _ALL_WAIT_FOR_ALL])
    for by in (-1, 1):
        other = np.clip(twin + by, 0, len(ends) - 1)
        moved = ends - ends[np.where(queue[other] == queue[twin], other, twin)]
        around = np.abs(moved - lower_medians(queue, moved, count)[queue])
        whole |= AGREE_BETTER * lower_medians(queue, around, count) < usual
        off = (apart > AGREE_BETTER * usual[queue]) & (AGREE_BETTER * np.abs(moved - middle) < apart)
        whole[queue[:-1][off[:-1] & off[1:] & (queue[:-1] == queue[1:])]] = True
        result |= off
    return (result | whole[queue]) & (np.bincount(queue) >= FEWEST_ENDS)[queue]


def signatures(rows: Communications, chosen: npt.NDArray[np.intp], strict: npt.NDArray[np.bool_]) -> Int64:
    """Operation, type and, where the operation has it equal on all members, size, as one number per row; with the name
    of the kernel where this is ``strict``."""
    uneven = [OPERATIONS.index(each) for each in (Operation.ALL_TO_ALL, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)]
    operation = rows.operation[chosen]
    elements = np.where(np.isin(operation, uneven), MISSING, rows.integers("in_elements")[chosen])
    dtype = labels(rows.table, "dtype")[0][chosen]
    name = np.where(strict, labels(rows.table, "name")[0][chosen], MISSING)
    return number_groups(operation, dtype, elements, name)[1]


def _count_on(sorted_queue: npt.NDArray[np.integer]) -> Int64:
    """Positions within each run of equal values."""
    count = len(sorted_queue)
    new = np.ones(count, dtype=bool)
    new[1:] = sorted_queue[1:] != sorted_queue[:-1]
    starts = np.flatnonzero(new)
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


def _mixed(position: Int64, compared: Int64) -> npt.NDArray[np.uint64]:
    """A number per entry of a list, such that sums of them distinguish lists."""
    mixed = (position.astype(np.uint64) * np.uint64(2**32) + compared.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))
