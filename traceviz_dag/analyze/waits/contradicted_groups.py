"""Whether groups that only a text file states can be this job's: nobody leaves a collective before all have come.

Two members' clocks differ by some offset, which drifts evenly. If no such offset lets most of what the file makes one
collective overlap on both, these two never met: the file is of another job, or the traces are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from traceviz_dag.analyze.clocks.robust import theil_sen
from traceviz_dag.analyze.matching.collective_matching import FAULTS, FEWEST_ENDS, MATCHED_BY, Fault, MatchedBy
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import ends_together
from traceviz_dag.arrays import Int64
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
    """Whether half the pairs of a kind of group, which no trace states, cannot have met."""
    stated = {group.ranks for group in stated_by_traces(topology).groups}
    chosen = np.flatnonzero(
        ends_together(matches) & (matches.matched_by == MATCHED_BY.index(MatchedBy.DIMENSION_ORDER))
    )
    chosen = chosen[matches.found[chosen] == matches.members[chosen]]
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
    fit = np.arange(1, len(least) + 1) - np.searchsorted(most, least, "left")
    return bool(fit.max() < (1 - MOST_APART) * len(least))
