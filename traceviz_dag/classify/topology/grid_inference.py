"""Finds the rank grids that known groups and sizes leave open: from part of a job's groups to all of its ranks.

Along one axis of a Megatron grid neighbours lie a fixed number of ranks apart, and these distances follow from the
order of the axes. So one known group per axis mostly fixes the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations

from traceviz_dag.classify.topology.group_dimensions import AXES
from traceviz_dag.classify.topology.parallel_sizes import ORDER_TOKENS, ParallelSizes, strides
from traceviz_dag.classify.topology.rank_grids import RankGrids, Ranks, compute_grids
from traceviz_dag.errors import UsageError

_DENSE_AXES = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
_EXPERT_AXES = {"etp": "tp", "ep": "ep", "edp": "dp"}


@dataclass(frozen=True, slots=True)
class ImpliedGrids:
    """Grids of which the dense one is certain.

    Attributes:
        grids: the expert part means nothing unless ``expert_known``; nor do groups that depend on the number of
            distributed-optimizer instances, which no other group shows.
    """

    grids: RankGrids
    expert_known: bool


def implied_grids(
    world: int | None, sizes: Mapping[str, int], groups: Mapping[str, tuple[Ranks, ...]]
) -> ImpliedGrids | None:
    """The one pair of rank grids that agrees with all that is known.

    Args:
        world: the world size.
        sizes: axis (tp, cp, dp, pp, ep, etp, edp) → size, those that are known.
        groups: axis → known groups.

    Returns:
        None where too little is known, where several dense grids agree, or where none does.
    """
    distances = {axis: _distance(members) for axis, members in groups.items()}
    dense = None if world is None else _complete(world, sizes)
    if world is None or dense is None or None in distances.values():
        return None
    fitting = {
        identity: candidate
        for etp in _expert_tensor_sizes(world, dense, sizes)
        for identity, candidate in _candidates(world, dense["tp"], dense["cp"], dense["pp"], sizes.get("ep", 1), etp)
        if _agrees(candidate, sizes, distances)
    }
    if len({identity[: len(_DENSE_AXES)] for identity in fitting}) != 1:
        return None
    grids = compute_grids(next(iter(fitting.values())))
    expert_known = "ep" in sizes and len(fitting) == 1
    certain = [axis for axis in groups if axis in _DENSE_AXES or expert_known]
    if any(not set(groups[axis]) <= set(grids.groups[axis]) for axis in certain):
        return None
    return ImpliedGrids(grids, expert_known)


def _distance(groups: tuple[Ranks, ...]) -> int | None:
    """The one distance between neighbours in the groups; 0 where all have one member, None where there is no one."""
    found = {right - left for group in groups for left, right in pairwise(group)}
    if not found:
        return 0
    return found.pop() if len(found) == 1 else None


def _complete(world: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """tp, cp, dp and pp, at most one of them filled in from the world size; None where they do not fit it."""
    result = {axis: sizes[axis] for axis in _DENSE_AXES if axis in sizes}
    missing = [axis for axis in _DENSE_AXES if axis not in result]
    product = 1
    for size in result.values():
        product *= size
    if len(missing) > 1 or product < 1 or world % product:
        return None
    if missing:
        result[missing[0]] = world // product
    elif product != world:
        return None
    return result


def _expert_tensor_sizes(world: int, dense: Mapping[str, int], sizes: Mapping[str, int]) -> list[int]:
    if "etp" in sizes:
        return [sizes["etp"]]
    return [etp for etp in range(1, world + 1) if world % (etp * sizes.get("ep", 1) * dense["pp"]) == 0]


@lru_cache(maxsize=256)
def _candidates(
    world: int, tp: int, cp: int, pp: int, ep: int, etp: int
) -> tuple[tuple[tuple[int, ...], ParallelSizes], ...]:
    """The distinct pairs of grids of these sizes over all orders of the axes, each behind what makes it unique."""
    found: dict[tuple[int, ...], ParallelSizes] = {}
    for tokens in permutations(ORDER_TOKENS):
        try:
            candidate = ParallelSizes(world=world, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, order="-".join(tokens))
        except UsageError:
            continue
        found.setdefault(_identity(candidate), candidate)
    return tuple(found.items())


def _distances(sizes: ParallelSizes) -> dict[str, int]:
    """Axis → distance between neighbours; 0 along an axis of size 1."""
    tokens, dense, expert = sizes.tokens(), sizes.dense(), sizes.expert()
    dense_strides, expert_strides = strides(tokens, dense), strides(tokens, expert)
    result = {axis: dense_strides[token] if dense[token] > 1 else 0 for axis, token in _DENSE_AXES.items()}
    result |= {axis: expert_strides[token] if expert[token] > 1 else 0 for axis, token in _EXPERT_AXES.items()}
    return result


def _identity(sizes: ParallelSizes) -> tuple[int, ...]:
    """What distinguishes one pair of grids from another: the dense distances first."""
    return (*(_distances(sizes)[axis] for axis in AXES), sizes.expert_tensor)


def _agrees(candidate: ParallelSizes, sizes: Mapping[str, int], distances: Mapping[str, int | None]) -> bool:
    own = _distances(candidate)
    if sizes.get("edp", candidate.edp) != candidate.edp:
        return False
    return all(own[axis] == distance for axis, distance in distances.items())
