"""Collectives of groups that nothing names, by ends that agree on solved clocks.

A job divides its ranks in few ways: into the groups that its topology knows, or not at all. Members of a collective
leave it together, whenever they came. So a division is ruled out where ends of its groups lie further apart than rings
explain; and where all groups of a wider one ended together although its own groups' last members had come apart: had
each group met alone, they would have ended apart, too. If one division is left, and its ends agree well, it is matched.
Of several, the widest is kept for the replay alone (``may_meet``): whoever met, no more ranks than these did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.clocks.clock_evidence import MatchedEnds, clock_evidence, matched_ends
from traceviz_dag.analyze.clocks.clocks import SolvedClocks, solved_clocks
from traceviz_dag.analyze.clocks.robust import grouped_quantile
from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY, MatchedBy, signatures
from traceviz_dag.analyze.matching.communications import labels
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import WIDEST_RING_NS, ends_limit
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Fault

CLEARER = 4
"""Last members of groups came apart where their starts lie so many times as far apart as ends within a group."""

_CHANGED = ("communication", "matched_by", "fault", "members", "found", "may_meet")


@dataclass(frozen=True, slots=True)
class _Tried:
    """Collectives of one kind under one division of the ranks.

    Attributes:
        groups: its groups. met: per group the rows that meet, an array of turns × members.
        spread: the widest distance of ends in one of them, ns. agrees: whether all ends agree as matches must.
    """

    groups: tuple[frozenset[int], ...]
    met: tuple[npt.NDArray[np.intp], ...]
    spread: int
    agrees: bool


def open_rows(matches: Matches) -> npt.NDArray[np.intp]:
    """Collectives of groups that nothing names."""
    return np.flatnonzero((matches.fault == FAULTS.index(Fault.NO_GROUP)) & ~matches.is_message)


def with_matches_by_ends(
    matches: Matches, rank_clocks: pa.Table, topology: Topology, ranks: tuple[int, ...], apart: int | None = None
) -> Matches:
    """The matches, with those collectives of groups without a name that their ends show.

    Args:
        rank_clocks: the table of that name. ranks: all that were read.
        apart: how far ends of one collective may be, as ``most_apart`` gives it; by default of these matches.
    """
    rows, clocks, chosen = matches.rows, solved_clocks(rank_clocks), open_rows(matches)
    if topology.world_size != len(ranks) or not len(chosen):
        # Where a rank was not read, divisions of which it is a part cannot be tried.
        return matches
    if apart is None:
        there = np.array(sorted(rows.ranks), dtype=np.int64)
        apart = most_apart(matched_ends(matches, there), there, rank_clocks)
    start, end = (clocks.align(rows.rank[chosen], at[chosen]) for at in (rows.start_ns, rows.end_ns))
    aligned = np.isin(rows.rank[chosen], _solved_together(clocks))
    possible = _divisions(topology, ranks) if aligned.all() else set()
    if not possible:
        return matches
    kinds = number_groups(
        signatures(rows, chosen, np.ones(len(chosen), dtype=bool)), labels(rows.table, "dimension")[0][chosen]
    )[1]
    found = {name: getattr(matches, name).copy() for name in _CHANGED}
    number = int(matches.communication.max(initial=-1)) + 1
    for kind in range(int(kinds.max()) + 1):
        mine = np.flatnonzero(kinds == kind)
        mine = mine[np.lexsort((end[mine], rows.rank[chosen[mine]]))]
        there, first = np.unique(rows.rank[chosen[mine]], return_index=True)
        lists = dict(zip(there.tolist(), np.split(mine, first[1:]), strict=True))
        tried = [_tried(groups, lists, start, end, apart) for groups in possible]
        left = _left([one for one in tried if one is not None], rows.rank[chosen], start, apart)
        for turn in (turn for turns in (left[-1].met if left else ()) for turn in turns):
            place = chosen[turn]
            found["may_meet"][place] = number
            if len(left) == 1 and left[0].agrees:
                found["communication"][place] = number
                found["matched_by"][place] = MATCHED_BY.index(MatchedBy.ENDS)
                found["fault"][place] = FAULTS.index(Fault.NONE)
                found["members"][place] = found["found"][place] = len(place)
            number += 1
    return replace(matches, **found)


def most_apart(matched: MatchedEnds, ranks: Int64, rank_clocks: pa.Table) -> int:
    """How far ends of one collective may be apart: where those of what is matched are, those of others may be as far.

    Args:
        matched: of all matches of an iteration. ranks: that have communications, ascending.
        rank_clocks: the table of that name.
    """
    # Ranks of one host agree whatever the hosts' clocks: only matches count.
    evidence = clock_evidence(matched, ranks, {})
    evidence = evidence.select(evidence.sure_entries())
    ends = solved_clocks(rank_clocks).align(ranks[evidence.node], evidence.end_ns)
    known = ends != MISSING
    low, high = np.full(evidence.units, np.iinfo(np.int64).max), np.full(evidence.units, MISSING)
    np.minimum.at(low, evidence.unit[known], ends[known])
    np.maximum.at(high, evidence.unit[known], ends[known])
    told = high != MISSING
    spread, group = (high - low)[told].astype(np.float64), evidence.group[told]
    widest = np.nanmax(grouped_quantile(spread, group, int(group.max(initial=0)) + 1, 0.9), initial=0)
    return max(WIDEST_RING_NS, CLEARER * int(widest))


def _divisions(topology: Topology, ranks: tuple[int, ...]) -> set[tuple[frozenset[int], ...]]:
    """How the job may divide its ranks; no way where groups of one description overlap, so that some is missing."""
    described: dict[object, set[frozenset[int]]] = defaultdict(set)
    for group in topology.groups:
        if len(group.ranks) > 1:
            described[group.description or group.dimension].add(frozenset(group.ranks))
    if any(sum(map(len, groups)) > len(frozenset().union(*groups)) for groups in described.values()):
        return set()
    return {tuple(sorted(groups, key=sorted)) for groups in described.values()} | {(frozenset(ranks),)}


def _solved_together(clocks: SolvedClocks) -> Int64:
    """Ranks whose clocks are solved together: those of the largest component."""
    if not len(clocks.ranks):
        return clocks.ranks
    component, size = np.unique(clocks.component, return_counts=True)
    return clocks.ranks[clocks.component == component[size.argmax()]]


def _tried(
    groups: tuple[frozenset[int], ...],
    lists: Mapping[int, npt.NDArray[np.intp]],
    start: Int64,
    end: Int64,
    apart: int,
) -> _Tried | None:
    """Rows of one kind under a division of the ranks; None where that is ruled out.

    Args:
        lists: per rank its rows of the kind, in order. start, end: of all rows, on the common clock.
        apart: how far ends of one collective may be.
    """
    used = tuple(group for group in groups if not group.isdisjoint(lists))
    if set(lists) != {one for group in used for one in group}:
        return None
    met, widest, agrees = [], 0, True
    for group in used:
        of_group = [lists[one] for one in sorted(group)]
        if len({len(one) for one in of_group}) > 1:
            return None
        turns = np.stack(of_group, axis=1)
        spread = end[turns].max(axis=1) - end[turns].min(axis=1)
        shortest = (end[turns] - start[turns]).min(axis=1)
        if (spread > apart).any() or (start[turns].max(axis=1) > end[turns].min(axis=1) + apart).any():
            return None
        met.append(turns)
        widest = max(widest, int(spread.max()))
        agrees &= bool((spread <= ends_limit(shortest)).all())
    return _Tried(used, tuple(met), widest, agrees)


def _left(tried: list[_Tried], rank: Int64, start: Int64, apart: int) -> list[_Tried]:
    """The divisions that are left, all made of parts of the last; none where they are not."""
    distinct = list({frozenset(one.groups): one for one in tried}.values())
    left = [one for one in distinct if not any(_came_apart(one, other, start, rank, apart) for other in distinct)]
    left.sort(key=lambda one: len(one.groups), reverse=True)
    return left if all(_refines(one, left[-1]) for one in left) else []


def _refines(fine: _Tried, coarse: _Tried) -> bool:
    """Whether each group is a part of one of another division."""
    around = {rank: group for group in coarse.groups for rank in group}
    return all(part <= around.get(min(part), frozenset()) for part in fine.groups)


def _came_apart(fine: _Tried, coarse: _Tried, start: Int64, rank: Int64, apart: int) -> bool:
    """Whether groups that are parts of one of another division, where all ended together, once came apart."""
    part_of = {rank: part for part in fine.groups for rank in part}
    for group, turns in zip(coarse.groups, coarse.met, strict=True):
        parts = [part for part in {part_of.get(rank, frozenset()) for rank in group} if part < group]
        if len(parts) < 2 or frozenset().union(*parts) != group:
            continue
        of_part = [np.isin(rank[turns[0]], list(part)) for part in parts]
        last = np.stack([start[turns[:, members]].max(axis=1) for members in of_part])
        if (last.max(axis=0) - last.min(axis=0)).max() > max(CLEARER * coarse.spread, apart):
            return True
    return False
