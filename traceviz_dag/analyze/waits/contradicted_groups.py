"""Whether groups that only a text file states can be this job's: nobody leaves a collective before all have come.

Two members' clocks differ by some offset, which drifts evenly. If no such offset lets most of what the file makes one
collective overlap on both, these two never met: the file is of another job, or the traces are. Nor are two ranks
neighbours in a pipeline if none lets most messages, sent in both directions, arrive after they were sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.clocks.robust import theil_sen
from traceviz_dag.analyze.matching.collective_matching import FAULTS, FEWEST_ENDS, MATCHED_BY, MatchedBy
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import ends_together
from traceviz_dag.arrays import Float64, Int64, number_groups, places_of_each
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.vocabulary import Fault, TopologySource

MOST_APART = 0.25
"""Share of collectives that cannot have been one from which two ranks are no members of one group. Lost rows shift a
few; ranks that never met drift apart by more than most collectives last."""

FASTEST_DRIFT = 1e-3
"""Ten times what clocks of hosts drift apart: ranks that never met may do so faster."""

MOST_PAIRS = 64
"""Pairs of ranks of a kind of group that are compared, evenly chosen."""


def stated_by_traces(topology: Topology) -> Topology:
    """The topology without what only other sources than the traces state."""
    groups = tuple(group for group in topology.groups if group.source is TopologySource.DISTRIBUTED_INFO)
    stated = {group.ranks for group in groups}
    return replace(topology, groups=groups, pipelines=tuple(each for each in topology.pipelines if each in stated))


Pair = tuple[str, int, int]
"""A kind of group, a group, and a member, which is compared with the group's first one."""

Neighbours = tuple[int, int]
"""Two ranks that are neighbours in a pipeline, the lower one first."""


@dataclass(frozen=True, slots=True)
class Doubtful:
    """What no trace states, and may be wrong: pairs of ranks of a group, and neighbours in pipelines."""

    pairs: Sequence[Pair]
    neighbours: Sequence[Neighbours]


def doubtful(matches: Matches, topology: Topology) -> Doubtful:
    """What of some matches only other sources than the traces state."""
    return Doubtful([*_pairs(matches, topology)], [*_neighbours(matches)])


def chosen_to_judge(parts: Iterable[Doubtful], topology: Topology) -> Doubtful:
    """Of what all matches of an iteration leave in doubt the part that is judged, evenly chosen."""
    stated = {rank for pipeline in stated_by_traces(topology).pipelines for rank in pipeline}
    kinds: dict[str, list[Pair]] = defaultdict(list)
    neighbours: list[Neighbours] = []
    for part in parts:
        neighbours += part.neighbours
        for pair in part.pairs:
            kinds[pair[0]].append(pair)
    some = [pair for pairs in kinds.values() for pair in sorted(pairs)[:: -(-len(pairs) // MOST_PAIRS)]]
    return Doubtful(some, [one for one in sorted(neighbours)[:MOST_PAIRS] if one[0] not in stated])


def judge(
    matches: Matches, topology: Topology, chosen: Doubtful, span_ns: int
) -> tuple[list[tuple[str, bool]], list[bool]]:
    """Judge those of some matches that are chosen.

    Args:
        span_ns: from the first end of all communications of the iteration to the last.

    Returns:
        Of pairs their kind, and whether they never met; of neighbours whether their messages arrive before they are
        sent.
    """
    pairs, mine = _pairs(matches, topology), _neighbours(matches)
    met = [(pair[0], _never_met(matches, *pairs[pair])) for pair in chosen.pairs if pair in pairs]
    # What a clock may drift within the step; where a pipeline is wrong, messages are off by a micro-batch.
    reach = round(FASTEST_DRIFT * span_ns)
    sent = [
        _arrive_before_sent(matches, messages, reach)
        for one in chosen.neighbours
        if (messages := mine.get(one)) is not None
    ]
    return met, [verdict for verdict in sent if verdict is not None]


def contradicted(judged: Sequence[tuple[list[tuple[str, bool]], list[bool]]]) -> bool:
    """Whether half the pairs of a kind of group, or of two neighbours or more in pipelines, never met."""
    neighbours = [verdict for _, verdicts in judged for verdict in verdicts]
    kinds: dict[str, list[bool]] = defaultdict(list)
    for kind, never_met in (one for pairs, _ in judged for one in pairs):
        kinds[kind].append(never_met)
    wrong = [verdicts for verdicts in kinds.values() if 2 * sum(verdicts) >= len(verdicts)]
    return bool(wrong) or (len(neighbours) > 1 and 2 * sum(neighbours) >= len(neighbours))


def _pairs(matches: Matches, topology: Topology) -> dict[Pair, tuple[Int64, Int64]]:
    """Rows in pairs of the first member of each group that no trace states and each other one."""
    stated = {group.ranks for group in stated_by_traces(topology).groups}
    chosen = np.flatnonzero(
        ends_together(matches) & (matches.matched_by == MATCHED_BY.index(MatchedBy.DIMENSION_ORDER))
    )
    chosen = chosen[matches.found[chosen] == matches.members[chosen]]
    order = np.lexsort((matches.rows.rank[chosen], matches.communication[chosen], matches.grouped.group[chosen]))
    numbers, first = np.unique(matches.grouped.group[chosen[order]], return_index=True)
    pairs: dict[Pair, tuple[Int64, Int64]] = {}
    for number, rows in zip(numbers.tolist(), np.split(chosen[order], first[1:]), strict=False):
        group = matches.grouped.groups[number]
        turns = rows.reshape(-1, group.size)
        if group.members not in stated and len(turns) >= FEWEST_ENDS:
            kind = group.description or str(matches.rows.table["dimension"][int(rows[0])])
            pairs |= {(kind, number, at): (turns[:, 0], other) for at, other in enumerate(turns.T[1:])}
    return pairs


def mark_contradicted(after: Matches, matched_before: npt.NDArray[np.bool_]) -> Matches:
    """Say why communications that a contradicted topology matched are not matched any more."""
    lost = matched_before & (after.communication < 0)
    return replace(after, fault=np.where(lost, FAULTS.index(Fault.GROUPS_CONTRADICTED), after.fault))


def _never_met(matches: Matches, one: Int64, other: Int64) -> bool:
    """Whether no offset of clocks lets most collectives of two ranks, given as rows in pairs, be one."""
    starts, ends = matches.rows.start_ns, matches.rows.end_ns
    since = (ends[one] - ends[one].min()).astype(np.float64)
    slope = theil_sen(since, (ends[other] - ends[one]).astype(np.float64))
    drift = float(np.clip(slope, -FASTEST_DRIFT, FASTEST_DRIFT)) * since
    least, most = np.sort(starts[other] - ends[one] - drift), np.sort(ends[other] - starts[one] - drift)
    return _none_fits(least, most)


def _none_fits(least: Float64 | Int64, most: Float64 | Int64) -> bool:
    """Whether no offset lies between both bounds of most collectives or messages; bounds are sorted."""
    fit = np.arange(1, len(least) + 1) - np.searchsorted(most, least, "left")
    return bool(fit.max() < (1 - MOST_APART) * len(least))


def _neighbours(matches: Matches) -> dict[Neighbours, Int64]:
    """Of each two ranks the messages that their pipelines' schedule matched."""
    rows, messages = matches.rows, matches.messages
    mine = np.flatnonzero(matches.matched_by[messages.sender] == MATCHED_BY.index(MatchedBy.SCHEDULE))
    if not len(mine):
        return {}
    ranks = np.sort(np.stack((rows.rank[messages.sender[mine]], rows.rank[messages.receiver[mine]])), axis=0)
    first, pair = number_groups(*ranks)
    of_pair = (mine[places] for places in places_of_each(pair))
    return dict(zip(zip(*ranks[:, first].tolist(), strict=True), of_pair, strict=True))


def _arrive_before_sent(matches: Matches, which: Int64, reach: int) -> bool | None:
    """Whether no offset of two clocks lets most messages arrive after they were sent; None where they go one way."""
    rows, sender, receiver = matches.rows, matches.messages.sender[which], matches.messages.receiver[which]
    forth = rows.rank[sender] < rows.rank[receiver]
    if forth.all() or not forth.any():
        return None
    low, high = (np.where(forth, *each) for each in ((sender, receiver), (receiver, sender)))
    least = np.where(forth, np.iinfo(np.int64).min, rows.start_ns[high] - rows.end_ns[low] - reach)
    most = np.where(forth, rows.end_ns[high] - rows.start_ns[low] + reach, np.iinfo(np.int64).max)
    return _none_fits(np.sort(least), np.sort(most))
