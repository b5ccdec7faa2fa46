"""Whether groups that only a text file states can be this job's: nobody leaves a collective before all have come.

Two members' clocks differ by some offset, which drifts evenly. If no such offset lets most of what the file makes one
collective overlap on both, these two never met: the file is of another job, or the traces are. Nor are two ranks
neighbours in a pipeline if none lets most messages, sent in both directions, arrive after they were sent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from traceviz_dag.analyze.clocks.robust import theil_sen
from traceviz_dag.analyze.matching.collective_matching import FAULTS, FEWEST_ENDS, MATCHED_BY, Fault, MatchedBy
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import ends_together
from traceviz_dag.arrays import Float64, Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.vocabulary import TopologySource

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


def contradicts(matches: Matches, topology: Topology) -> bool:
    """Whether half the pairs of a kind of group, or of neighbours in pipelines, which no trace states, never met."""
    stated = {group.ranks for group in stated_by_traces(topology).groups}
    chosen = np.flatnonzero(
        ends_together(matches) & (matches.matched_by == MATCHED_BY.index(MatchedBy.DIMENSION_ORDER))
    )
    chosen = chosen[matches.found[chosen] == matches.members[chosen]]
    if _pipelines_contradicted(matches, topology):
        return True
    if not len(chosen):
        return False
    order = np.lexsort((matches.rows.rank[chosen], matches.communication[chosen], matches.grouped.group[chosen]))
    numbers, first = np.unique(matches.grouped.group[chosen[order]], return_index=True)
    pairs: dict[str | None, list[tuple[Int64, Int64]]] = defaultdict(list)
    for number, rows in zip(numbers.tolist(), np.split(chosen[order], first[1:]), strict=True):
        group = matches.grouped.groups[number]
        turns = rows.reshape(-1, group.size)
        if group.members not in stated and len(turns) >= FEWEST_ENDS:
            kind = group.description or str(matches.rows.table["dimension"][int(rows[0])])
            pairs[kind] += [(turns[:, 0], other) for other in turns.T[1:]]
    for of_kind in pairs.values():
        some = of_kind[:: -(-len(of_kind) // MOST_PAIRS)]
        if 2 * sum(_never_met(matches, *pair) for pair in some) >= len(some):
            return True
    return False


def mark_contradicted(before: Matches, after: Matches) -> Matches:
    """Say why communications that a contradicted topology matched are not matched any more."""
    lost = (before.communication >= 0) & (after.communication < 0)
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


def _pipelines_contradicted(matches: Matches, topology: Topology) -> bool:
    """Whether most messages between half the neighbours, of two pairs or more, would arrive before they were sent."""
    stated = {rank for pipeline in stated_by_traces(topology).pipelines for rank in pipeline}
    rows, messages = matches.rows, matches.messages
    mine = np.flatnonzero(matches.matched_by[messages.sender] == MATCHED_BY.index(MatchedBy.SCHEDULE))
    sender, receiver = messages.sender[mine], messages.receiver[mine]
    forth = rows.rank[sender] < rows.rank[receiver]
    low, high = (np.where(forth, *each) for each in ((sender, receiver), (receiver, sender)))
    # What a clock may drift within the step; where a pipeline is wrong, messages are off by a micro-batch.
    reach = round(FASTEST_DRIFT * int(np.ptp(rows.end_ns))) if len(rows) else 0
    least = np.where(forth, np.iinfo(np.int64).min, rows.start_ns[high] - rows.end_ns[low] - reach)
    most = np.where(forth, rows.end_ns[high] - rows.start_ns[low] + reach, np.iinfo(np.int64).max)
    first, pair = number_groups(rows.rank[low], rows.rank[high]) if len(mine) else (mine, mine)
    judged = [
        _none_fits(np.sort(least[pair == number]), np.sort(most[pair == number]))
        for number, row in enumerate(first.tolist()[:MOST_PAIRS])
        if rows.rank[low[row]] not in stated and forth[pair == number].any() and not forth[pair == number].all()
    ]
    return len(judged) > 1 and 2 * sum(judged) >= len(judged)
