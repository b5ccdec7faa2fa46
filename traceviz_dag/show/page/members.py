"""Which ranks a figure shows and where they are: pipelines and replicas from the table topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.tables.rows import TopologyRow, TraceStatusRow


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's place; None where the topology is unknown."""

    rank: int
    stage: int | None
    stages: int | None
    pipeline: int | None
    replica: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that belong together in a figure, in the order of their rows.

    Attributes:
        number: the group's ordinal in the table topology; None for ranks whose group is unknown.
    """

    number: int | None
    members: Sequence[Member]

    @property
    def ranks(self) -> list[int]:
        """The ranks, in the order of their rows."""
        return [member.rank for member in self.members]


def read_members(source: TableSource) -> list[Member]:
    """Every rank of the iteration, by number: those of the topology, else those with a trace."""
    found = rows(source, "topology", TopologyRow)
    known = {
        row["rank"]: Member(row["rank"], row["stage"], row["stages"], row["pipeline"], row["model_replica"])
        for row in found
    }
    for row in rows(source, "traces", TraceStatusRow):
        known.setdefault(row["rank"], Member(row["rank"], None, None, None, None))
    return [known[rank] for rank in sorted(known)]


def pipelines(members: Sequence[Member]) -> list[Group]:
    """The pipeline groups that are known, each in the order of its stages."""
    return _groups(members, lambda member: member.pipeline)


def replicas(members: Sequence[Member]) -> list[Group]:
    """The complete models that are known; all ranks as one group without a number where none is."""
    found = _groups(members, lambda member: member.replica)
    return found or ([Group(None, members)] if members else [])


def by_stage(members: Sequence[Member]) -> list[Group]:
    """The ranks of each stage, unknown stages last."""
    found = _groups(members, lambda member: member.stage)
    rest = [member for member in members if member.stage is None]
    return [*found, *([Group(None, rest)] if rest else [])]


def _groups(members: Sequence[Member], key: Callable[[Member], int | None]) -> list[Group]:
    found: dict[int, list[Member]] = {}
    for member in members:
        number = key(member)
        if number is not None:
            found.setdefault(number, []).append(member)
    return [
        Group(number, sorted(found[number], key=lambda member: (member.stage or 0, member.rank)))
        for number in sorted(found)
    ]
