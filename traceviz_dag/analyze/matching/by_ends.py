"""Collectives of groups that nothing names, matched by ends that agree on solved clocks.

Members of a collective that waits for all leave it together, whenever they came. So kernels of one kind that end within
microseconds of each other, far from all others of that kind, although their starts lie far apart, met; where their
ranks are all ranks that were read, or a group that the job is known to have. Ranks that start together end together
whether they meet or not: these are matched only where no known split of them explains their ends as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.clocks.clocks import SolvedClocks
from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY, Fault, MatchedBy, signatures
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.matching.operations import ENDS_TOGETHER, OPERATIONS
from traceviz_dag.arrays import Int64
from traceviz_dag.classify.topology.types import Topology

TOGETHER_NS = 20_000
"""Members' ends lie no further apart on solved clocks."""

CLEARER = 4
"""Starts that tell, and ends of other collectives, lie so many times as far apart as the ends of one."""

_CHANGED = ("communication", "matched_by", "fault", "members", "found")


def with_matches_by_ends(matches: Matches, clocks: SolvedClocks, topology: Topology, ranks: tuple[int, ...]) -> Matches:
    """The matches, with those collectives of groups without a name that their ends tell.

    Args:
        ranks: all that were read.
    """
    rows = matches.rows
    together = np.isin(rows.operation, [OPERATIONS.index(one) for one in ENDS_TOGETHER])
    chosen = np.flatnonzero((matches.fault == FAULTS.index(Fault.NO_GROUP)) & ~matches.is_message & together)
    chosen = chosen[_of_one_component(clocks, rows.rank[chosen])]
    if not len(chosen):
        return matches
    start, end = (clocks.align(rows.rank[chosen], at[chosen]) for at in (rows.start_ns, rows.end_ns))
    splits: dict[object, set[frozenset[int]]] = defaultdict(set)
    for group in topology.groups:
        if len(group.ranks) > 1:
            splits[group.description or group.dimension].add(frozenset(group.ranks))
    known = {frozenset(ranks), *(group for groups in splits.values() for group in groups)}
    kind = signatures(rows, chosen, np.ones(len(chosen), dtype=bool))
    met, told = [], set()
    for cluster in _clusters(kind, end):
        mine = frozenset(rows.rank[chosen[cluster]].tolist())
        if len(mine) == len(cluster) > 1 and mine in known and start[cluster].max() <= end[cluster].min():
            what = int(kind[cluster[0]]), mine
            met.append((what, chosen[cluster]))
            parts = [[one for one in groups if one < mine] for groups in splits.values()]
            if _tell(rows.rank[chosen[cluster]], start[cluster], end[cluster], [one for one in parts if one]):
                told.add(what)
    found = {name: getattr(matches, name).copy() for name in _CHANGED}
    number = int(matches.communication.max(initial=-1)) + 1
    for what, place in met:
        if what in told:
            found["communication"][place] = number
            found["matched_by"][place] = MATCHED_BY.index(MatchedBy.ENDS)
            found["fault"][place] = FAULTS.index(Fault.NONE)
            found["members"][place] = found["found"][place] = len(place)
            number += 1
    return replace(matches, **found)


def _of_one_component(clocks: SolvedClocks, rank: Int64) -> npt.NDArray[np.bool_]:
    """Mark rows of ranks whose clocks are solved together: those of the largest component."""
    if not len(clocks.ranks):
        return np.zeros(len(rank), dtype=bool)
    component, size = np.unique(clocks.component, return_counts=True)
    return np.isin(rank, clocks.ranks[clocks.component == component[size.argmax()]])


def _clusters(kind: Int64, end: Int64) -> Iterator[npt.NDArray[np.intp]]:
    """Rows of one kind that end together, and far from the others of it."""
    order = np.lexsort((end, kind))
    gap = np.where(np.diff(kind[order]), np.iinfo(np.int64).max, np.diff(end[order]))
    cuts = np.flatnonzero(gap > TOGETHER_NS) + 1
    gaps = np.concatenate([[np.iinfo(np.int64).max], gap, [np.iinfo(np.int64).max]])
    for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        rows = order[first:last]
        spread = end[rows[-1]] - end[rows[0]]
        if spread <= TOGETHER_NS and CLEARER * spread < min(gaps[first], gaps[last]):
            yield rows


def _tell(rank: Int64, start: Int64, end: Int64, splits: list[list[frozenset[int]]]) -> bool:
    """Whether ends that agree show that ranks met: had parts of them met alone, these would have ended apart.

    Args:
        splits: how the job is known to divide these ranks; by each, some part came, and so would have ended, apart.
    """
    near = CLEARER * max(int(end.max() - end.min()), 1)
    if start.max() - start.min() <= near:
        return False
    if not splits:
        return int((start >= start.max() - near).sum()) == 1
    last = [[start[np.isin(rank, list(part))].max() for part in parts] for parts in splits]
    return all(len(at) == 1 or max(at) - min(at) > near for at in last)
