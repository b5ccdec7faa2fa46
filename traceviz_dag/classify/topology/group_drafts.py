"""Process groups while they are united: first the trace headers of all ranks, then further sources beside them.

Groups differ by name and description, never by their ranks alone: often groups of different use have the same
members.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from traceviz_dag.classify.topology.group_dimensions import AXES, clean_description, group_kind
from traceviz_dag.classify.topology.rank_grids import Ranks
from traceviz_dag.printable import printable
from traceviz_dag.read.events import ProcessGroup, TraceHeader
from traceviz_dag.vocabulary import TopologySource

_MOST_FILLED = 32
"""Groups as large as the world whose members are filled in though no header lists them; no job has so many."""

_SHOWN_RANKS = 16


@dataclass(slots=True)
class GroupDraft:
    """One process group, with the sentences on how sources contradict it.

    Attributes:
        grid_group: name of such groups in ``rank_grids``; None where the description gives none.
        primary: whether it is the group itself, not a twin on the same ranks.
        stated_by: ranks whose own header names the group.
    """

    name: str | None
    description: str | None
    ranks: Ranks
    size: int
    source: TopologySource
    grid_group: str | None = None
    primary: bool = True
    stated_by: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)

    @property
    def axis(self) -> str | None:
        """The coordinate that a position in the group gives; None for twins and combined groups."""
        return self.grid_group if self.primary and self.grid_group in AXES else None

    @property
    def label(self) -> str:
        """How sentences name the group."""
        name = "" if self.name is None else f" {self.name}"
        return printable(f"process group{name} ({self.description or self.grid_group or 'no description'})")


def header_drafts(headers: Mapping[int, TraceHeader], world: int | None) -> list[GroupDraft]:
    """The groups that the headers name, united over ranks by (name, description).

    Members that no header lists are filled in where they are certain: for a group as large as the world, and where as
    many headers name the group as it has members.

    Args:
        headers: rank → header; any subset of the job's ranks.
        world: the world size.
    """
    stated: dict[tuple[str | None, str | None], dict[int, ProcessGroup]] = defaultdict(dict)
    for rank in sorted(headers):
        for group in headers[rank].process_groups:
            stated[group.name, clean_description(group.description)][rank] = group
    drafts: list[GroupDraft] = []
    everyone = tuple(range(world)) if world is not None else ()
    filled = 0
    for (name, description), statements in stated.items():
        united = _united(name, description, statements, everyone if filled < _MOST_FILLED else ())
        filled += sum(draft.ranks is everyone for draft in united)
        drafts += united
    with_groups = {rank for rank, header in headers.items() if header.process_groups}
    for draft in drafts:
        _note_unknowing_members(draft, with_groups - stated[draft.name, draft.description].keys())
    _note_shared_names(drafts)
    return sorted(drafts, key=lambda draft: (*_name_order(draft.name), draft.description or "", draft.ranks))


def described_ranks(drafts: Iterable[GroupDraft]) -> frozenset[int]:
    """Ranks whose own header describes groups that give a coordinate."""
    return frozenset(rank for draft in drafts if draft.axis is not None for rank in draft.stated_by)


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """What another source says beside the known groups.

    Attributes:
        additions: groups that only the other source knows.
        contradictions: (known group, sentence) for each known group that the other source contradicts.
    """

    additions: tuple[GroupDraft, ...]
    contradictions: tuple[tuple[GroupDraft, str], ...]


def compare(
    drafts: Iterable[GroupDraft],
    grid_group: str,
    groups: tuple[Ranks, ...],
    source: TopologySource,
    described: frozenset[int],
) -> SourceComparison:
    """Compare all groups of one kind, as another source gives them, with those known.

    Args:
        drafts: what is known.
        grid_group: the kind, by its name in ``rank_grids``.
        groups: all of the other source's groups of that kind.
        source: the other source.
        described: ranks whose headers list all of their groups, so that no group of these ranks alone is added.
    """
    known = [draft for draft in drafts if draft.grid_group == grid_group and draft.primary and draft.ranks]
    covered = {rank: group for group in groups for rank in group}
    contradictions = []
    for draft in known:
        if frozenset(covered.get(draft.ranks[0], ())) != frozenset(draft.ranks):
            instead = sorted({covered[rank] for rank in draft.ranks if rank in covered})
            words = f"has {ranks_text(*instead)}" if instead else "has no group"
            sentence = f"{_SOURCE_WORDS[source]} {words} where {draft.label} is {ranks_text(draft.ranks)}."
            contradictions.append((draft, sentence))
    taken = {rank for draft in known for rank in draft.ranks}
    additions = tuple(
        GroupDraft(None, None, group, len(group), source, grid_group)
        for group in groups
        if taken.isdisjoint(group) and not described.issuperset(group)
    )
    return SourceComparison(additions, tuple(contradictions))


def ranks_text(*groups: Ranks) -> str:
    """Rank lists for a sentence, long ones cut."""
    shown = []
    for group in groups[:3]:
        cut = ", …" if len(group) > _SHOWN_RANKS else ""
        shown.append(f"[{', '.join(map(str, group[:_SHOWN_RANKS]))}{cut}]")
    return " and ".join(shown) + (" …" if len(groups) > 3 else "")


_SOURCE_WORDS = {
    TopologySource.DISTRIBUTED_INFO: "A trace header",
    TopologySource.TEXT_FILE: "The topology text file",
    TopologySource.COMPUTED: "The grid computed from the sizes",
}


def _united(
    name: str | None, description: str | None, statements: Mapping[int, ProcessGroup], everyone: Ranks
) -> list[GroupDraft]:
    """The statements on one (name, description): one draft, or one per list of members where ranks contradict."""
    listings: dict[frozenset[int], dict[Ranks, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, group in statements.items():
        if group.ranks:
            listings[frozenset(group.ranks)][group.ranks].append(rank)
    silent = {rank for rank, group in statements.items() if not group.ranks}
    sizes = Counter(group.size for group in statements.values() if group.size > 0)
    size = max(sizes, key=lambda value: (sizes[value], -value), default=0)
    if not listings:
        draft = _draft(name, description, _certain_members(size, silent, everyone), size, silent)
        _note_sizes(draft, statements)
        return [draft]
    drafts = []
    for orders in listings.values():
        ranks = max(orders, key=lambda order: (len(orders[order]), [-rank for rank in order]))
        own = {rank for stating in orders.values() for rank in stating}
        draft = _draft(name, description, ranks, len(ranks), own | (silent if len(listings) == 1 else set()))
        if len(orders) > 1:
            draft.notes.append(f"The ranks list the members of {draft.label} in different orders.")
        outside = sorted(draft.stated_by - set(ranks))
        if outside:
            draft.notes.append(
                f"Ranks {ranks_text(tuple(outside))} name {draft.label} without being among its members."
            )
        _note_sizes(draft, {rank: statements[rank] for rank in draft.stated_by})
        drafts.append(draft)
    if len(drafts) > 1:
        words = " but ".join(
            f"{ranks_text(draft.ranks)} by ranks {ranks_text(tuple(sorted(draft.stated_by)))}" for draft in drafts[:3]
        )
        for draft in drafts:
            draft.notes.append(f"The members of {draft.label} are given as {words}.")
    return sorted(drafts, key=lambda draft: -len(draft.stated_by))


def _draft(
    name: str | None, description: str | None, ranks: Ranks, size: int, stated_by: Collection[int]
) -> GroupDraft:
    kind = group_kind(description)
    return GroupDraft(
        name=name,
        description=description,
        ranks=ranks,
        size=size,
        source=TopologySource.DISTRIBUTED_INFO,
        grid_group=None if kind is None else kind.grid_group,
        primary=kind is None or kind.primary,
        stated_by=frozenset(stated_by),
    )


def _certain_members(size: int, stating: Collection[int], everyone: Ranks) -> Ranks:
    if size > 0 and size == len(everyone):
        return everyone
    return tuple(sorted(stating)) if size == len(stating) else ()


def _note_sizes(draft: GroupDraft, statements: Mapping[int, ProcessGroup]) -> None:
    """Say where the stated sizes differ from the draft's."""
    other = sorted({group.size for group in statements.values() if group.size > 0} - {draft.size})
    if other:
        words = " and ".join(map(str, other))
        draft.notes.append(f"The size of {draft.label} is given as {words}, but it has {draft.size} members.")


def _note_unknowing_members(draft: GroupDraft, unknowing: Collection[int]) -> None:
    members = tuple(sorted(set(draft.ranks) & set(unknowing)))
    if members:
        words = ranks_text(members)
        draft.notes.append(f"Ranks {words} are members of {draft.label}, but their own headers do not name it.")


def _note_shared_names(drafts: list[GroupDraft]) -> None:
    """A pg_name is the same string on each member and belongs to one group; say where several have it."""
    descriptions: dict[str, dict[str | None, None]] = defaultdict(dict)
    for draft in drafts:
        if draft.name is not None:
            descriptions[draft.name][draft.description] = None
    for draft in drafts:
        others = (
            [] if draft.name is None else [other for other in descriptions[draft.name] if other != draft.description]
        )
        if others:
            words = printable(" and ".join(other or "no description" for other in others))
            draft.notes.append(f"The name of {draft.label} is also that of {words}.")


def _name_order(name: str | None) -> tuple[int, int, str]:
    """Numbered names first, in numeric order."""
    if name is None:
        return (2, 0, "")
    return (0, int(name), name) if name.isascii() and name.isdecimal() and len(name) < 20 else (1, 0, name)
