"""The groups of a topology file by the use that their descriptions name, and those names for groups found there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from traceviz_dag.classify.topology.group_dimensions import clean_description, group_kind
from traceviz_dag.classify.topology.group_drafts import GroupDraft
from traceviz_dag.classify.topology.rank_grids import Ranks
from traceviz_dag.read.events import ProcessGroup
from traceviz_dag.read.topology_file import TopologyFile


def stated_groups(file: TopologyFile) -> Mapping[str, tuple[Ranks, ...]]:
    """Name of such groups in ``rank_grids`` → all groups that the file states, twins (gloo, all-gather) left out."""
    if not file.described:
        return file.groups
    found: dict[str, list[Ranks]] = defaultdict(list)
    for name, group in _by_use(file):
        found[name].append(group.ranks)
    return {name: tuple(groups) for name, groups in found.items()}


def with_names(additions: Iterable[GroupDraft], file: TopologyFile) -> list[GroupDraft]:
    """Groups taken from the file, with the names and descriptions that it gives them."""
    known = {(name, group.ranks): group for name, group in _by_use(file)}
    drafts = []
    for draft in additions:
        group = known.get((draft.grid_group or "", draft.ranks))
        named = draft if group is None else replace(draft, name=group.name, description=group.description)
        drafts.append(named)
    return drafts


def _by_use(file: TopologyFile) -> Iterable[tuple[str, ProcessGroup]]:
    for group in file.described:
        kind = group_kind(clean_description(group.description))
        if kind is not None and kind.primary and kind.grid_group is not None:
            yield kind.grid_group, group
