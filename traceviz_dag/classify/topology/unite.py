"""Unites trace headers, the topology text file and computed rank grids into one topology, and compares them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from traceviz_dag.classify.topology.grid_inference import ImpliedGrids, implied_grids
from traceviz_dag.classify.topology.group_dimensions import AXES, DESCRIPTIONS, group_kind
from traceviz_dag.classify.topology.group_drafts import (
    GroupDraft,
    SourceComparison,
    compare,
    described_ranks,
    header_drafts,
    ranks_text,
)
from traceviz_dag.classify.topology.group_lookup import (
    DEFAULT_GROUP_NAME,
    candidate_dimensions,
    candidates_among,
    group_dimension,
)
from traceviz_dag.classify.topology.group_places import model_replicas, pipeline_groups, rank_coordinates
from traceviz_dag.classify.topology.rank_grids import DENSE_GROUPS, EXPERT_GROUPS, RankGrids, Ranks
from traceviz_dag.classify.topology.stated_groups import stated_groups, with_names
from traceviz_dag.classify.topology.tables import topology_from_tables, topology_tables
from traceviz_dag.classify.topology.types import Group, Replicas, Topology
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.limits import MOST_ASSUMED_RANKS
from traceviz_dag.read.topology_file import TopologyFile
from traceviz_dag.vocabulary import Dimension, TopologySource

__all__ = ["candidate_dimensions", "group_dimension", "topology_from_tables", "topology_tables", "unite"]

_IMPLIED_DENSE = (*DENSE_GROUPS, "embd", "pos_embd")
_ONE_INSTANCE_TWINS = ("intra_dp_cp", "intra_edp")


def unite(
    headers: Mapping[int, TraceHeader], text: TopologyFile | None = None, computed: RankGrids | None = None
) -> Topology:
    """One topology out of all that is known; every contradiction is one sentence, and the earlier source wins.

    Headers come first, then the text file, then the computed grids. Where the groups known so far agree with exactly
    one pair of Megatron rank grids, these fill in ranks without a header (source computed). Coordinates are positions
    in the groups tp, cp, dp, pp, ep, etp and edp. Without any groups nothing is known, which is no error.

    Args:
        headers: rank → trace header; any subset of the job's ranks.
        text: the topology text file, if there is one.
        computed: grids of sizes that a user states.
    """
    remarks: list[str] = []
    world = _world_size(headers, text, computed, remarks)
    drafts = header_drafts(headers, world)
    described = described_ranks(drafts)
    if text is not None:
        for name, ranks in stated_groups(text).items():
            found = compare(drafts, name, ranks, TopologySource.TEXT_FILE, described)
            _note(found)
            drafts += with_names(found.additions, text)
        remarks += _size_remarks(drafts, text)
    grids = _fitting_grids(drafts, text, computed, world, described)
    if text is not None and not text.described:
        remarks += _restore_order(drafts, grids.dense)
    filled = _fill(drafts, grids, described)
    drafts += filled
    coordinates = rank_coordinates(drafts, grids.dense, grids.expert)
    replicas = model_replicas(coordinates, world, single_expert=_axis_sizes(drafts, text).get("ep") == 1)
    if text is not None:
        remarks += _replica_remarks(replicas, text)
    groups = _with_rank_set_dimensions(tuple(map(_group, drafts)), world)
    return Topology(
        world_size=world,
        coordinates=coordinates,
        groups=groups,
        pipelines=pipeline_groups(drafts),
        replicas=replicas,
        sources=_sources(headers, text, computed, filled),
        disagreements=tuple(dict.fromkeys((*remarks, *(note for draft in drafts for note in draft.notes)))),
    )


def _world_size(
    headers: Mapping[int, TraceHeader], text: TopologyFile | None, computed: RankGrids | None, remarks: list[str]
) -> int | None:
    """The world size that most headers state, else the text file's, else the computed one."""
    stated = Counter(header.world_size for header in headers.values() if header.world_size is not None)
    if len(stated) > 1:
        words = " but ".join(
            f"{size} by ranks {ranks_text(tuple(sorted(r for r in headers if headers[r].world_size == size)))}"
            for size in sorted(stated)
        )
        remarks.append(f"The world size is given as {words}.")
    world = max(stated, key=lambda size: (stated[size], size), default=None)
    others = [
        ("topology text file", None if text is None else text.sizes.get("world")),
        ("computed grid", None if computed is None else computed.sizes.world),
    ]
    for words, size in others:
        if world is not None and size is not None and size != world:
            remarks.append(f"The world size is {size} in the {words} but {world} elsewhere.")
        world = size if world is None else world
    named = _named_ranks(headers, text)
    if world is not None and world > max(MOST_ASSUMED_RANKS, len(named)):
        remarks.append(f"The world size of {world} is not believed: traces and groups name only {len(named)} ranks.")
        return None
    beyond = tuple(rank for rank in sorted(headers) if world is not None and rank >= world)
    if beyond:
        remarks.append(f"Ranks {ranks_text(beyond)} have traces, but the world size is {world}.")
    return world


def _named_ranks(headers: Mapping[int, TraceHeader], text: TopologyFile | None) -> set[int]:
    """The ranks that traces, groups and the topology file name one by one."""
    named = set(headers)
    for header in headers.values():
        named.update(*(group.ranks for group in header.process_groups))
    if text is not None:
        named.update(*(ranks for groups in text.groups.values() for ranks in groups))
        named.update(*(group.ranks for group in text.described))
    return named


def _axis_sizes(drafts: Iterable[GroupDraft], text: TopologyFile | None) -> dict[str, int]:
    """Axis → size, where all known groups agree on it; the text file's sizes where no group is known."""
    found: dict[str, set[int]] = defaultdict(set)
    for draft in drafts:
        if draft.axis is not None and draft.size > 0:
            found[draft.axis].add(draft.size)
    sizes = {} if text is None else {axis: size for axis, size in text.sizes.items() if axis in AXES}
    sizes |= {axis: min(values) for axis, values in found.items() if len(values) == 1}
    return {axis: size for axis, size in sizes.items() if len(found.get(axis, ())) <= 1}


def _size_remarks(drafts: list[GroupDraft], text: TopologyFile) -> list[str]:
    """Where sizes that the text file states differ from the sizes of known groups (its own or the headers')."""
    known = _axis_sizes(drafts, None)
    return [
        f"The topology text file states {axis.upper()} size {size}, but the groups have {known[axis]} members."
        for axis, size in text.sizes.items()
        if axis in known and known[axis] != size
    ]


@dataclass(frozen=True, slots=True)
class _Grids:
    """The computed grids that may fill in what other sources leave open, and the groups to take from them."""

    dense: RankGrids | None = None
    expert: RankGrids | None = None
    groups: Mapping[str, tuple[Ranks, ...]] = field(default_factory=dict)


def _fitting_grids(
    drafts: list[GroupDraft],
    text: TopologyFile | None,
    computed: RankGrids | None,
    world: int | None,
    described: frozenset[int],
) -> _Grids:
    """The stated grids where nothing contradicts them, else the grids that the known groups imply."""
    if computed is not None:
        groups = _created_groups(computed)
        found = [compare(drafts, name, groups[name], TopologySource.COMPUTED, described) for name in groups]
        for comparison in found:
            _note(comparison)
        if world == computed.sizes.world and not any(comparison.contradictions for comparison in found):
            return _Grids(computed, computed, groups)
    implied = _implied(drafts, text, world)
    if implied is None:
        return _Grids()
    names = (*_IMPLIED_DENSE, *(EXPERT_GROUPS if implied.expert_known else ()))
    return _Grids(
        dense=implied.grids,
        expert=implied.grids if implied.expert_known else None,
        groups={name: implied.grids.groups[name] for name in names},
    )


def _fill(drafts: list[GroupDraft], grids: _Grids, described: frozenset[int]) -> list[GroupDraft]:
    """The grids' groups that no other source knows, of kinds on which all sources agree."""
    filled: list[GroupDraft] = []
    for name, groups in grids.groups.items():
        found = compare(drafts, name, groups, TopologySource.COMPUTED, described)
        if name != "gtp" and not found.contradictions:
            filled += found.additions
    return filled


def _note(comparison: SourceComparison) -> None:
    for draft, sentence in comparison.contradictions:
        draft.notes.append(sentence)


def _created_groups(computed: RankGrids) -> dict[str, tuple[Ranks, ...]]:
    """The groups that Megatron would create; with one instance the partial groups are the full ones."""
    one_instance = computed.sizes.distributed_optimizer_instances == 1
    return {
        name: groups for name, groups in computed.groups.items() if not (one_instance and name in _ONE_INSTANCE_TWINS)
    }


def _implied(drafts: list[GroupDraft], text: TopologyFile | None, world: int | None) -> ImpliedGrids | None:
    groups: dict[str, list[Ranks]] = defaultdict(list)
    for draft in drafts:
        if draft.axis is not None and draft.ranks:
            groups[draft.axis].append(tuple(sorted(draft.ranks)))
    if not groups:
        return None
    return implied_grids(world, _axis_sizes(drafts, text), {axis: tuple(members) for axis, members in groups.items()})


def _restore_order(drafts: list[GroupDraft], dense: RankGrids | None) -> list[str]:
    """Put the text file's pipelines, whose ranks the file sorts, into stage order; say where no grid shows it."""
    remarks = []
    in_order = {} if dense is None else {frozenset(group): group for group in dense.groups["pp"]}
    for draft in drafts:
        if (
            draft.source is not TopologySource.TEXT_FILE
            or draft.axis != "pp"
            or list(draft.ranks) != sorted(draft.ranks)
        ):
            continue
        draft.ranks = in_order.get(frozenset(draft.ranks), draft.ranks)
        if dense is None and draft.size > 1:
            remarks.append(
                f"The stage order of pipeline {ranks_text(draft.ranks)} is the topology text file's, which sorts "
                "ranks: its sizes and groups fit no one Megatron rank grid that could confirm it."
            )
    return remarks


def _replica_remarks(replicas: Replicas, text: TopologyFile) -> list[str]:
    stated = {frozenset(group) for group in text.full_model}
    known = {frozenset(group) for group in replicas.closure}
    if not stated or not known or stated == known:
        return []
    return [
        f"The topology text file's full-model groups {ranks_text(*text.full_model)} are not the complete models "
        f"{ranks_text(*replicas.closure)} that the groups imply."
    ]


def _group(draft: GroupDraft) -> Group:
    description = draft.description
    if description is None and draft.source is TopologySource.COMPUTED:
        description = DESCRIPTIONS.get(draft.grid_group or "")
    kind = group_kind(description)
    if kind is not None:
        dimension = kind.dimension
    else:
        dimension = Dimension.UNKNOWN if draft.axis is None else Dimension(draft.axis)
    return Group(
        name=draft.name,
        description=description,
        dimension=dimension,
        ranks=draft.ranks,
        size=draft.size,
        source=draft.source,
        disagreement="\n".join(draft.notes) or None,
    )


def _with_rank_set_dimensions(groups: tuple[Group, ...], world: int | None) -> tuple[Group, ...]:
    """Give groups without a description the one dimension that their ranks can serve, if there is but one."""
    result = []
    for group in groups:
        dimension = group.dimension
        if dimension is Dimension.UNKNOWN and group.description is None:
            candidates = candidates_among(groups, world, group.ranks)
            if group.name == DEFAULT_GROUP_NAME and world is not None and group.size == world:
                dimension = Dimension.WORLD
            elif len(candidates) == 1:
                dimension = candidates[0]
        result.append(replace(group, dimension=dimension))
    return tuple(result)


def _sources(
    headers: Mapping[int, TraceHeader], text: TopologyFile | None, computed: RankGrids | None, filled: list[GroupDraft]
) -> tuple[TopologySource, ...]:
    used = {
        TopologySource.DISTRIBUTED_INFO: any(
            header.process_groups or header.world_size is not None for header in headers.values()
        ),
        TopologySource.TEXT_FILE: text is not None,
        TopologySource.COMPUTED: computed is not None or bool(filled),
    }
    return tuple(source for source in TopologySource if used[source])
