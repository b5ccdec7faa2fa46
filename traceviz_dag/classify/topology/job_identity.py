"""Which ranks of one iteration are of another job than the rest, by what their trace headers state.

One fact that two ranks of a job cannot differ in is enough: the world size, the backend, the version of NCCL, who is in
a process group, or the day. The model of the GPU and how much the header states may each differ within a job; where
both do, it is another one. A fact that a header does not state contradicts nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from traceviz_dag.read.events import ProcessGroup, TraceHeader

APART_NS = 15 * 3600 * 1_000_000_000
"""Traces of one iteration begin closer to each other, also where a host's clock is off by its time zone."""

_HOUR_NS = 3600 * 1_000_000_000
_WEAK_FACTS_NEEDED = 2


@dataclass(frozen=True, slots=True)
class TraceIdentity:
    """What identifies the job of one rank's trace.

    Attributes:
        header: of the trace.
        first_ns: wall clock near its first event, ns since 1970; None where the trace does not show.
    """

    header: TraceHeader
    first_ns: int | None = None


@dataclass(frozen=True, slots=True)
class _Conflict:
    """Ranks on two sides that cannot be of one job.

    Attributes:
        told: given a rank of either side and one of the other, what each states.
    """

    one: frozenset[int]
    other: frozenset[int]
    told: Callable[[int, int], str]


def ranks_of_other_jobs(ranks: Mapping[int, TraceIdentity]) -> dict[int, str]:
    """Ranks that are not of the job that most ranks are of, each with the evidence in words.

    Where no job has most of the ranks, none is preferred: all that contradict each other are returned.

    Args:
        ranks: rank → what its trace states; ranks whose trace cannot be read are left out.
    """
    conflicts = [*_of_facts(ranks), *_of_groups(ranks), *_of_times(ranks), *_of_weak_facts(ranks)]
    against: defaultdict[int, set[int]] = defaultdict(set)
    for conflict in conflicts:
        for rank in conflict.one:
            against[rank] |= conflict.other
        for rank in conflict.other:
            against[rank] |= conflict.one
    left = {rank: set(others) for rank, others in against.items() if others}
    refused: list[int] = []
    while left:
        most = max(len(others) for others in left.values())
        worst = {rank for rank, others in left.items() if len(others) == most}
        refused += sorted(worst)
        left = {rank: others - worst for rank, others in left.items() if rank not in worst and others - worst}
    kept = set(ranks) - set(refused)
    return {rank: _evidence(rank, conflicts, kept) for rank in sorted(refused)}


def _evidence(rank: int, conflicts: Iterable[_Conflict], kept: set[int]) -> str:
    """The first, which is the strongest, conflict of a rank with one that is kept, else with any."""
    sides = [
        (others, conflict.told)
        for conflict in conflicts
        for own, others in ((conflict.one, conflict.other), (conflict.other, conflict.one))
        if rank in own
    ]
    for others, told in sides:
        if others & kept:
            return told(rank, min(others & kept))
    others, told = sides[0]
    return told(rank, min(others))


def _of_facts(ranks: Mapping[int, TraceIdentity]) -> list[_Conflict]:
    facts: tuple[tuple[str, Callable[[TraceHeader], object]], ...] = (
        ("world size", lambda header: header.world_size),
        ("backend", lambda header: header.backend),
        ("NCCL version", lambda header: header.nccl_version),
    )
    found = []
    for name, fact in facts:
        stated = {rank: value for rank, one in ranks.items() if (value := fact(one.header)) is not None}

        def told(rank: int, other: int, name: str = name, stated: dict[int, object] = stated) -> str:
            return f"its {name} is {stated[rank]}, that of rank {other} is {stated[other]}"

        found += [_Conflict(one, other, told) for one, other in combinations(_by_value(stated), 2)]
    return found


def _by_value(stated: Mapping[int, object]) -> list[frozenset[int]]:
    classes: defaultdict[Hashable, set[int]] = defaultdict(set)
    for rank, value in stated.items():
        classes[value if isinstance(value, Hashable) else str(value)].add(rank)
    return [frozenset(members) for members in classes.values()]


def _of_groups(ranks: Mapping[int, TraceIdentity]) -> list[_Conflict]:
    """A rank names another as a member of a group, and that one has groups of the kind, but not this one."""
    claims: defaultdict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    of_kind: defaultdict[str, defaultdict[int, list[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(list))
    for rank, one in ranks.items():
        for group in one.header.process_groups:
            if _is_telling(group, rank):
                members = tuple(sorted(group.ranks))
                claims[group.description or "", members].add(rank)
                of_kind[group.description or ""][rank].append(members)
    found = []
    for (kind, members), claimants in claims.items():
        denying = {rank for rank in members if rank in of_kind[kind]} - claimants
        if denying:

            def told(rank: int, other: int, kind: str = kind) -> str:
                own, others = of_kind[kind][rank][0], of_kind[kind][other][0]
                return f"its {kind} is {_members(own)}, rank {other} has {_members(others)}"

            found.append(_Conflict(frozenset(claimants), frozenset(denying), told))
    return found


def other_groups(one: TraceHeader, other: TraceHeader, rank: int) -> tuple[str, str] | None:
    """Two headers of one rank that list other members of its group of some kind: the kind and who is in it, and who is
    in that of the other; None where both may be of one job, which may have made more groups meanwhile."""
    lists: tuple[defaultdict[str, set[tuple[int, ...]]], ...] = (defaultdict(set), defaultdict(set))
    for header, listed in zip((one, other), lists, strict=True):
        for group in header.process_groups:
            if _is_telling(group, rank):
                listed[group.description or ""].add(tuple(sorted(group.ranks)))
    for kind in sorted(lists[0].keys() & lists[1].keys()):
        mine, its = lists[0][kind] - lists[1][kind], lists[1][kind] - lists[0][kind]
        if mine and its:
            return f"its {kind} is {_members(min(mine))}", _members(min(its))
    return None


def _is_telling(group: ProcessGroup, rank: int) -> bool:
    """Whether a group has a kind and lists all of its members, the rank itself among them."""
    return bool(group.description) and rank in group.ranks and len(group.ranks) == group.size


def _members(ranks: tuple[int, ...], most: int = 8) -> str:
    return f"[{', '.join(map(str, ranks[:most]))}{', …' if len(ranks) > most else ''}]"


def _of_times(ranks: Mapping[int, TraceIdentity]) -> list[_Conflict]:
    """Ranks that were recorded at one time, against those of another, with a gap between them."""
    times = {rank: one.first_ns for rank, one in ranks.items() if one.first_ns is not None}
    ordered = sorted(times, key=lambda rank: times[rank])
    sittings: list[list[int]] = []
    for rank in ordered:
        if not sittings or times[rank] - times[sittings[-1][-1]] > APART_NS:
            sittings.append([])
        sittings[-1].append(rank)

    def told(rank: int, other: int) -> str:
        hours = abs(times[rank] - times[other]) / _HOUR_NS
        side = "after" if times[rank] > times[other] else "before"
        return f"it was recorded {hours:,.0f} hours {side} rank {other}"

    return [_Conflict(frozenset(one), frozenset(other), told) for one, other in combinations(sittings, 2)]


def _of_weak_facts(ranks: Mapping[int, TraceIdentity]) -> list[_Conflict]:
    """Both differ of which a job may mix each alone: the model of the GPU, and how much the header states."""
    signs = {rank: _weak_facts(one.header) for rank, one in ranks.items() if one.header.world_size is not None}
    classes: defaultdict[tuple[str | None, ...], set[int]] = defaultdict(set)
    for rank, sign in signs.items():
        classes[sign].add(rank)

    def told(rank: int, other: int) -> str:
        pairs = _differing(signs[rank], signs[other])
        return f"it has {', '.join(own for own, _ in pairs)}, rank {other} has {', '.join(its for _, its in pairs)}"

    return [
        _Conflict(frozenset(classes[one]), frozenset(classes[other]), told)
        for one, other in combinations(classes, 2)
        if len(_differing(one, other)) >= _WEAK_FACTS_NEEDED
    ]


def _weak_facts(header: TraceHeader) -> tuple[str | None, ...]:
    groups = "process groups" if header.process_groups else "no process groups"
    return header.device_name, f"{groups} and {'an' if header.nccl_version else 'no'} NCCL version stated"


def _differing(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> list[tuple[str, str]]:
    return [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None and a != b]
