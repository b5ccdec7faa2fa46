"""Which ranks lie below one heading: by pipeline, by node, or none. Report and live page offer the same choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.waits.nodes import nodes_of_devices, nodes_of_host_clocks
from traceviz_dag.show.page.facts import lead_in
from traceviz_dag.show.page.members import Member
from traceviz_dag.show.source import TableSource


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks below one heading, by stage.

    Attributes:
        first: whether one of them is at fault, or named in a note: such groups come first.
    """

    key: str
    label: str
    ranks: tuple[int, ...]
    first: bool


def groupings(source: TableSource, known: Sequence[Member]) -> dict[str, list[RankGroup]]:
    """``pipeline`` and ``node`` → the groups of some ranks, those with a rank at fault first.

    What is unknown, or the same for a single rank, is not offered.
    """
    members = {member.rank: member for member in known}
    order = sorted(members, key=lambda rank: (members[rank].stage or 0, rank))
    offered = {"pipeline": {rank: members[rank].pipeline for rank in order}, "node": dict.fromkeys(order, None)}
    offered["node"] |= _nodes(source)
    named = set(lead_in(source).ranks)
    return {
        word: _groups(word, {rank: number_of[rank] for rank in order}, named)
        for word, number_of in offered.items()
        if len(order) > 1 and any(number_of[rank] is not None for rank in order)
    }


def _groups(word: str, number_of: Mapping[int, int | None], named: Collection[int]) -> list[RankGroup]:
    found: dict[int | None, list[int]] = {}
    for rank, number in number_of.items():
        found.setdefault(number, []).append(rank)
    groups = [
        RankGroup(
            f"{word}:{number}",
            f"no {word} known" if number is None else f"{word} {number}",
            tuple(ranks),
            any(rank in named for rank in ranks),
        )
        for number, ranks in sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0))
    ]
    return sorted(groups, key=lambda group: not group.first)


def _nodes(source: TableSource) -> dict[int, int]:
    """Rank → its node, as clocks of hosts or numbers of devices show it."""
    clocks = source.table("traces", ("rank", "host_clock_ns")).to_pylist()
    found = nodes_of_host_clocks({row["rank"]: row["host_clock_ns"] for row in clocks})
    if found:
        return found
    devices: dict[int, str | None] = {}
    for row in source.table("overlap", ("rank", "device")).to_pylist():
        devices[row["rank"]] = row["device"] if devices.get(row["rank"], row["device"]) == row["device"] else None
    return nodes_of_devices(devices)
