"""Collectives of groups that nothing names, matched by ends that agree on solved clocks.

A job divides its ranks in few ways: into the groups that its topology knows, or not at all. Members of a collective
leave it together, whenever they came. So where the k-th collectives of one kind end together in all groups of one
division, that division may be theirs. It is not where ends agree far better in groups across its own; nor where its
groups' last members once came apart, and all ended together all the same: had each group met alone, they would have
ended apart, too. Of several that remain, all made of parts of one, that is taken: nobody waited in any of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.clocks.clocks import SolvedClocks, solve_clocks, solved_clocks
from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY, Fault, MatchedBy, signatures
from traceviz_dag.analyze.matching.communications import Communications, labels
from traceviz_dag.analyze.matching.matches import Matches, match_communications
from traceviz_dag.analyze.waits.arrivals import ends_limit
from traceviz_dag.arrays import Int64
from traceviz_dag.classify.topology.types import Topology

CLEARER = 4
"""Last members of groups came apart where their starts lie so many times as far apart as ends within a group."""

_CLOSE_NS = 500
"""Ends that lie less far apart agree as well as clocks allow."""

_CHANGED = ("communication", "matched_by", "fault", "members", "found")


@dataclass(frozen=True, slots=True)
class _Tried:
    """Collectives of one kind under one division of the ranks.

    Attributes:
        groups: its groups. met: per group the rows that meet, an array of turns × members.
        spread: the widest distance of ends in one of them, ns.
    """

    groups: tuple[frozenset[int], ...]
    met: tuple[npt.NDArray[np.intp], ...]
    spread: int


def match_and_solve(
    rows: Communications, topology: Topology, microbatches: pa.Table, ranks: tuple[int, ...]
) -> tuple[Matches, pa.Table]:
    """Match the communications of all ranks: by names and order, which give the clocks, and then by ends.

    Args:
        topology: the job's groups and pipelines. microbatches: the table of that name of all ranks, with ``rank``.
        ranks: all that were read.

    Returns:
        The matches, and the table ``rank_clocks``.
    """
    matches = match_communications(rows, topology, microbatches)
    clocks = solve_clocks(matches, ranks)
    return with_matches_by_ends(matches, solved_clocks(clocks), topology, ranks), clocks


def with_matches_by_ends(matches: Matches, clocks: SolvedClocks, topology: Topology, ranks: tuple[int, ...]) -> Matches:
    """The matches, with those collectives of groups without a name that their ends show.

    Args:
        ranks: all that were read.
    """
    rows = matches.rows
    open_ = (matches.fault == FAULTS.index(Fault.NO_GROUP)) & ~matches.is_message
    chosen = np.flatnonzero(open_)
    start, end = (clocks.align(rows.rank[chosen], at[chosen]) for at in (rows.start_ns, rows.end_ns))
    aligned = np.isin(rows.rank[chosen], _solved_together(clocks))
    if not aligned.all() or not len(chosen):
        return matches
    possible = _divisions(topology, ranks)
    if possible is None:
        return matches
    kinds = number_groups(
        signatures(rows, chosen, np.ones(len(chosen), dtype=bool)), labels(rows.table, "dimension")[0][chosen]
    )[1]
    found = {name: getattr(matches, name).copy() for name in _CHANGED}
    number = int(matches.communication.max(initial=-1)) + 1
    for kind in range(int(kinds.max()) + 1):
        mine = np.flatnonzero(kinds == kind)
        tried = [_tried(groups, rows.rank[chosen], start, end, mine) for groups in possible]
        left = _left([one for one in tried if one is not None], rows.rank[chosen], start)
        rule = MatchedBy.ENDS if len(left) == 1 else MatchedBy.ENDS_OR_PARTS
        for turn in (turn for turns in (left[-1].met if left else ()) for turn in turns):
            place = chosen[turn]
            found["communication"][place] = number
            found["matched_by"][place] = MATCHED_BY.index(rule)
            found["fault"][place] = FAULTS.index(Fault.NONE)
            found["members"][place] = found["found"][place] = len(place)
            number += 1
    return replace(matches, **found)


def _divisions(topology: Topology, ranks: tuple[int, ...]) -> set[tuple[frozenset[int], ...]] | None:
    """How the job may divide its ranks; None where groups of one description overlap, so that some way is missing."""
    described: dict[object, set[frozenset[int]]] = defaultdict(set)
    for group in topology.groups:
        if len(group.ranks) > 1:
            described[group.description or group.dimension].add(frozenset(group.ranks))
    if any(sum(map(len, groups)) > len(frozenset().union(*groups)) for groups in described.values()):
        return None
    possible = {tuple(sorted(groups, key=sorted)) for groups in described.values()}
    return possible | ({(frozenset(ranks),)} if topology.world_size in (None, len(ranks)) else set())


def _solved_together(clocks: SolvedClocks) -> Int64:
    """Ranks whose clocks are solved together: those of the largest component."""
    if not len(clocks.ranks):
        return clocks.ranks
    component, size = np.unique(clocks.component, return_counts=True)
    return clocks.ranks[clocks.component == component[size.argmax()]]


def _tried(
    groups: tuple[frozenset[int], ...], rank: Int64, start: Int64, end: Int64, mine: npt.NDArray[np.intp]
) -> _Tried | None:
    """Rows of one kind under a division of the ranks; None where they do not end together in it.

    Args:
        rank, start, end: of all rows, on the common clock. mine: those of the kind.
    """
    lists = {one: mine[rank[mine] == one][np.argsort(end[mine[rank[mine] == one]])] for one in set(rank[mine].tolist())}
    used = tuple(group for group in groups if not group.isdisjoint(lists))
    if set(lists) != {one for group in used for one in group}:
        return None
    met, widest = [], 0
    for group in used:
        of_group = [lists[one] for one in sorted(group)]
        if len({len(one) for one in of_group}) > 1:
            return None
        turns = np.stack(of_group, axis=1)
        spread = end[turns].max(axis=1) - end[turns].min(axis=1)
        shortest = (end[turns] - start[turns]).min(axis=1)
        if (spread > ends_limit(shortest)).any() or (start[turns].max(axis=1) > end[turns].min(axis=1)).any():
            return None
        met.append(turns)
        widest = max(widest, int(spread.max()))
    return _Tried(used, tuple(met), widest)


def _left(tried: list[_Tried], rank: Int64, start: Int64) -> list[_Tried]:
    """The divisions that explain the ends, all made of parts of the last; none where they are not."""
    distinct = list({frozenset(one.groups): one for one in tried}.values())
    for ruled_out in (
        lambda one, other: not _refines(other, one) and one.spread > CLEARER * max(other.spread, _CLOSE_NS),
        lambda one, other: _came_apart(one, other, start, rank),
    ):
        distinct = [one for one in distinct if not any(ruled_out(one, other) for other in distinct if other is not one)]
    left = sorted(distinct, key=lambda one: len(one.groups), reverse=True)
    return left if all(_refines(one, left[-1]) for one in left) else []


def _refines(fine: _Tried, coarse: _Tried) -> bool:
    """Whether each group is a part of one of another division."""
    return all(any(part <= group for group in coarse.groups) for part in fine.groups)


def _came_apart(fine: _Tried, coarse: _Tried, start: Int64, rank: Int64) -> bool:
    """Whether groups that are parts of one of another division, where all ended together, once came apart."""
    for group, turns in zip(coarse.groups, coarse.met, strict=True):
        parts = [part for part in fine.groups if part < group]
        if len(parts) < 2 or frozenset().union(*parts) != group:
            continue
        of_part = [np.isin(rank[turns[0]], list(part)) for part in parts]
        last = np.stack([start[turns[:, members]].max(axis=1) for members in of_part])
        if (last.max(axis=0) - last.min(axis=0)).max() > CLEARER * max(coarse.spread, 1):
            return True
    return False
