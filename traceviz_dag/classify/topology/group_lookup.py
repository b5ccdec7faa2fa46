"""What the topology knows of a process group that a kernel names, or of a bare set of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from traceviz_dag.classify.topology.group_dimensions import clean_description, group_kind
from traceviz_dag.classify.topology.rank_grids import Ranks
from traceviz_dag.classify.topology.types import Group, Topology
from traceviz_dag.vocabulary import Dimension

DEFAULT_GROUP_NAME = "0"
"""torch numbers groups from 0 in the order of their creation, and creates the group of all ranks first."""


_KINETO_LIST_LIMIT = 30
"""Kineto writes no more than the first 30 members of a group into a kernel's row."""


def candidate_dimensions(topology: Topology, ranks: Ranks) -> tuple[Dimension, ...]:
    """All dimensions that a communication among exactly these ranks could serve, in the vocabulary's order.

    All ranks of the world could also be ``world`` or ``grad_norm``: with one distributed-optimizer instance Megatron
    reduces the gradient norm over the world. A list of 30 ranks also means larger groups that begin with it.
    """
    return candidates_among(topology.groups, topology.world_size, ranks)


def candidates_among(groups: Iterable[Group], world: int | None, ranks: Ranks) -> tuple[Dimension, ...]:
    """``candidate_dimensions`` over some groups of a job with ``world`` ranks."""
    found = {group.dimension for group in groups if ranks and _may_be(ranks, group.ranks)}
    found.discard(Dimension.UNKNOWN)
    if ranks and world is not None and _may_be(ranks, range(world)):
        found |= {Dimension.WORLD, Dimension.GRAD_NORM}
    return tuple(dimension for dimension in Dimension if dimension in found)


def group_dimension(
    topology: Topology, name: str | None, description: str | None, ranks: Ranks
) -> tuple[Dimension, tuple[Dimension, ...], str]:
    """The dimension of a process group as a kernel names it.

    Args:
        topology: what is known of the job.
        name: pg_name; None where the kernel gives none.
        description: pg_desc; None or "undefined" where the kernel gives none.
        ranks: members; empty where the kernel gives none.

    Returns:
        (dimension or unknown, candidates, rule): rule is ``group_description``, ``group_name`` (the header describes
        the group, and is believed where the kernel contradicts it), ``group_contradicted`` (it describes several of
        that name, and the kernel none of these), ``default_group``, ``rank_set``, ``rank_set_ambiguous`` or
        ``unknown_group``.
    """
    kind = group_kind(description)
    named = _groups_by_name(topology).get(name, []) if name is not None else []
    if ranks:
        named = [group for group in named if not group.ranks or _may_be(ranks, group.ranks)]
    described = {known.dimension for group in named if (known := group_kind(group.description)) is not None}
    if kind is not None and (not described or kind.dimension in described):
        return kind.dimension, (kind.dimension,), "group_description"
    if described and (kind is not None or clean_description(description) is None):
        # Some versions of the profiler write the description of another group into a kernel's row.
        if len(described) == 1:
            (dimension,) = described
            return dimension, (dimension,), "group_name"
        if kind is not None:
            candidates = tuple(dimension for dimension in Dimension if dimension in described)
            return Dimension.UNKNOWN, candidates, "group_contradicted"
    members = ranks or (named[0].ranks if len(named) == 1 else ())
    world = topology.world_size
    if name == DEFAULT_GROUP_NAME and world is not None and (not members or _may_be(members, range(world))):
        return Dimension.WORLD, (Dimension.WORLD,), "default_group"
    candidates = candidates_among(topology.groups, world, members)
    if len(candidates) == 1:
        return candidates[0], candidates, "rank_set"
    return Dimension.UNKNOWN, candidates, "rank_set_ambiguous" if candidates else "unknown_group"


@lru_cache(maxsize=8)
def _groups_by_name(topology: Topology) -> Mapping[str | None, list[Group]]:
    found: dict[str | None, list[Group]] = {}
    for group in topology.groups:
        found.setdefault(group.name, []).append(group)
    return found


def _may_be(ranks: Ranks, members: Sequence[int]) -> bool:
    """Whether the ranks are the members, in any order, or as many of them as Kineto writes."""
    if len(ranks) == len(members):
        return set(ranks) == set(members)
    return len(ranks) == _KINETO_LIST_LIMIT < len(members) and ranks == tuple(members[:_KINETO_LIST_LIMIT])
