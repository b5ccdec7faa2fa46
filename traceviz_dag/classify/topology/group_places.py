"""Where each rank is, from the process groups: coordinates, pipelines and replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from traceviz_dag.classify.topology.group_drafts import GroupDraft
from traceviz_dag.classify.topology.rank_grids import RankGrids, Ranks, replicas_of
from traceviz_dag.classify.topology.types import Coordinates, Replicas


def rank_coordinates(
    drafts: list[GroupDraft], dense: RankGrids | None, expert: RankGrids | None
) -> dict[int, Coordinates]:
    """Each rank's position in its own groups; where a group is unknown or contradicted, its place in the grid."""
    listing: dict[tuple[int, str], list[tuple[int, GroupDraft]]] = defaultdict(list)
    for draft in drafts:
        if draft.axis is not None:
            for position, rank in enumerate(draft.ranks):
                listing[rank, draft.axis].append((position, draft))
    places: dict[int, dict[str, int]] = defaultdict(dict)
    for (rank, axis), found in listing.items():
        own = [position for position, draft in found if rank in draft.stated_by]
        positions = set(own or (position for position, _ in found))
        if len(positions) == 1:
            places[rank][axis] = positions.pop()
    for grids, axes in ((dense, ("tp", "cp", "dp", "pp")), (expert, ("ep", "etp", "edp"))):
        for rank, at in ({} if grids is None else grids.coordinates).items():
            for axis in axes:
                places[rank].setdefault(axis, getattr(at, axis))
    return {rank: Coordinates(**places[rank]) for rank in sorted(places)}


def model_replicas(coordinates: Mapping[int, Coordinates], world: int | None, *, single_expert: bool) -> Replicas:
    """Replicas where the coordinates of the whole world are known.

    With ep = 1 and the expert grid unknown a complete model is a dense replica: no rank holds other experts.
    """
    if world is None or len(coordinates) != world:
        return Replicas()
    replicas = replicas_of(coordinates)
    if replicas.closure or not single_expert:
        return replicas
    return Replicas(replicas.dense_by_dp, replicas.dense_by_dp_cp, replicas.expert_by_edp, replicas.dense_by_dp)


def pipeline_groups(drafts: Iterable[GroupDraft]) -> tuple[Ranks, ...]:
    """Pipeline groups in stage order; of contradicting ones the one that most headers state."""
    accepted: list[Ranks] = []
    taken: set[int] = set()
    for draft in drafts:
        if draft.axis == "pp" and draft.ranks and taken.isdisjoint(draft.ranks):
            accepted.append(draft.ranks)
            taken.update(draft.ranks)
    return tuple(sorted(accepted, key=min))
