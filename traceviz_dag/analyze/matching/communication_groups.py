"""Which process group each communication belongs to: by the trace's own name, else by its dimension, else the world.

The name of a group is the same on all its members, and different groups can have the same members: so the name decides
wherever the trace gives one. Without a name (graph replays, CPU traces) the topology's group of the dimension decides,
if there is but one of the recorded size. In a job of which no group at all is known, a group as large as the world has
all ranks as members; where no size is recorded, the whole world is taken for one group if the job shows no model
parallelism. Several groups of one size differ within a rank by their address, and across ranks by which of them
a rank uses first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import Communications, labels, optional_integers
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.classify.topology.types import Group, Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension

NO_GROUP = -1

BY_NAME, BY_DIMENSION, BY_SIZE, BY_WORLD = "group_name", "dimension", "group_size", "world"
"""What a group is known from: its name in the trace, the topology's group of the dimension, that it is as large as the
world, or that no group is known at all."""

_PRIMARY = {
    Dimension.TP: ("TENSOR_MODEL_PARALLEL_GROUP",),
    Dimension.CP: ("CONTEXT_PARALLEL_GROUP",),
    Dimension.EP: ("EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"),
    Dimension.ETP: ("EXPERT_TENSOR_PARALLEL_GROUP",),
    Dimension.DP: ("DATA_PARALLEL_GROUP_WITH_CP", "DATA_PARALLEL_GROUP"),
    Dimension.EDP: ("EXPERT_DATA_PARALLEL_GROUP",),
    Dimension.PP: ("PIPELINE_MODEL_PARALLEL_GROUP",),
    Dimension.CONTROL: ("PIPELINE_MODEL_PARALLEL_GROUP",),
    Dimension.EMBEDDING: ("EMBEDDING_GROUP",),
    Dimension.GRAD_NORM: (
        *("MODEL_PARALLEL_GROUP", "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"),
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
    ),
    Dimension.WORLD: ("default_pg",),
}
"""Dimension → descriptions of the groups that Megatron runs it on."""


_OF_EITHER = {
    Dimension.GRAD_NORM: frozenset({"MODEL_PARALLEL_GROUP", "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"}),
}
"""Dimensions that run on one group or the other, as the job is configured: one of them alone shows nothing."""


@dataclass(frozen=True, slots=True)
class CommunicationGroup:
    """One group of ranks that communicate together.

    Attributes:
        name, description: as the trace or the topology has them; None where nothing says.
        members: global ranks in group order; None where only their number is known.
        size: number of members; None where nothing says.
        evidence: BY_NAME, BY_DIMENSION, BY_SIZE or BY_WORLD.
        ordinal: which of the groups without a name that have these members, by first use.
    """

    name: str | None
    description: str | None
    members: tuple[int, ...] | None
    size: int | None
    evidence: str
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """The group of each communication.

    Attributes:
        group: number of its group, ``NO_GROUP`` where it cannot be known.
        groups: the groups by number.
    """

    group: Int64
    groups: tuple[CommunicationGroup, ...]


def group_communications(rows: Communications, topology: Topology) -> GroupedRows:
    """Find the group of every communication; the work is per distinct label, not per row."""
    found, which = label_communications(rows)
    known = group_labels(found, topology)
    return GroupedRows(known.group[which], known.groups)


def label_communications(rows: Communications, *more: Int64) -> tuple[pa.Table, Int64]:
    """The distinct labels of communications, which show their groups: far fewer than rows.

    Args:
        more: of each row what else divides labels.

    Returns:
        A row per rank × label, with the columns that ``group_labels`` takes; and of each row of ``rows`` its label.
    """
    size = rows.integers("group_size")
    ordinal = _by_first_use(rows, size)
    keys = [rows.rank, *(labels(rows.table, column)[0] for column in _LABELS), size, ordinal, *more]
    first, which = number_groups(*keys)
    texts = rows.table.select(list(_LABELS)).take(pa.array(first, pa.int64()))
    numbers = {"rank": rows.rank, "group_size": size, "ordinal": ordinal}
    columns = {name: pa.array(values[first]) for name, values in numbers.items()}
    return pa.table({**columns, **{name: texts[name] for name in _LABELS}}), which.astype(np.int64)


def group_labels(found: pa.Table, topology: Topology) -> GroupedRows:
    """Find the group of every label of all ranks, as ``label_communications`` gives them."""
    names = {column: labels(found, column) for column in _LABELS}
    rank, size, ordinal = (optional_integers(found, name) for name in ("rank", "group_size", "ordinal"))
    known = _KnownGroups(topology, divided=bool(_DIVIDING.intersection(names["dimension"][1])))
    group = np.full(found.num_rows, NO_GROUP, dtype=np.int64)
    numbers: dict[CommunicationGroup, int] = {}
    keys = [rank, *(code for code, _ in names.values()), size, ordinal]
    for place in np.lexsort(keys[::-1]).tolist():
        texts = {column: values[code[place]] for column, (code, values) in names.items()}
        one = known.find(int(rank[place]), texts, int(size[place]), int(ordinal[place]))
        if one is not None:
            group[place] = numbers.setdefault(one, len(numbers))
    return GroupedRows(group, tuple(numbers))


def _by_first_use(rows: Communications, size: Int64) -> Int64:
    """Per row, which of its rank's groups of this size it is on, by when these are used first; 0 without addresses."""
    ordinal, address = np.zeros(len(rows), dtype=np.int64), rows.integers("group_address")
    known = np.flatnonzero(address != MISSING)
    if not len(known):
        return ordinal
    _, queue = number_groups(rows.rank[known], size[known])
    known = known[rows.order(known, queue.astype(np.int64))]
    first, group = number_groups(rows.rank[known], size[known], address[known])
    by_use = np.lexsort((first, size[known[first]], rows.rank[known[first]]))
    rank, of_size = rows.rank[known[first[by_use]]], size[known[first[by_use]]]
    new = np.append(True, (rank[1:] != rank[:-1]) | (of_size[1:] != of_size[:-1]))
    starts = np.flatnonzero(new)
    place = np.empty(len(first), dtype=np.int64)
    place[by_use] = np.arange(len(first)) - np.repeat(starts, np.diff(np.append(starts, len(first))))
    ordinal[known] = place[group]
    return ordinal


_DIVIDING = frozenset(
    {Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.EDP, Dimension.PP, Dimension.EMBEDDING}
)
"""Dimensions whose groups are parts of the world: in a job that has one, others may be parts, too."""

_LABELS = ("group_name", "group_description", "group_ranks", "dimension", "role")


class _KnownGroups:
    """The topology's groups, found by rank and by what a trace says of them.

    Args:
        divided: whether some communication is of a dimension whose groups are parts of the world.
    """

    def __init__(self, topology: Topology, divided: bool) -> None:
        self._by_name: dict[tuple[str, int], list[Group]] = defaultdict(list)
        self._by_rank: dict[int, list[Group]] = defaultdict(list)
        for group in topology.groups:
            for rank in group.ranks:
                self._by_rank[rank].append(group)
                if group.name is not None:
                    self._by_name[group.name, rank].append(group)
        self._world = topology.world_size
        # Made once: the world may be large.
        self._everybody = tuple(range(self._world or 0))
        known = None if self._world is None else self._everybody
        self._everyone = CommunicationGroup(None, None, known, self._world, BY_WORLD)
        self._divided = divided

    def find(self, rank: int, texts: dict[str, str | None], size: int, ordinal: int) -> CommunicationGroup | None:
        name, description = texts["group_name"], texts["group_description"]
        if name is not None:
            return self._named(rank, name, description, texts["group_ranks"], size)
        if not self._by_rank:
            if 1 < size == self._world:
                return CommunicationGroup(None, None, self._everybody, size, BY_SIZE, ordinal)
            whole = size <= 0 or self._world in (None, size)
            return self._everyone if whole and not self._divided else None
        return self._of_dimension(rank, texts["dimension"], size)

    def _named(
        self, rank: int, name: str, description: str | None, listed: str | None, size: int
    ) -> CommunicationGroup:
        of_name = self._by_name.get((name, rank), [])
        same = [group for group in of_name if description in (None, group.description)] or of_name
        members = same[0].ranks if same else _listed_ranks(listed)
        if members and rank not in members:
            members = ()
        if members and size > 0 and len(members) != size:
            # Of a long list the profiler writes a part only; what the kernel itself says of its size is whole.
            members = ()
        if not members and self._world is not None and size == self._world:
            members = self._everybody
        if members:
            return CommunicationGroup(
                name, same[0].description if same else description, members, len(members), BY_NAME
            )
        return CommunicationGroup(name, description, None, size if size > 0 else None, BY_NAME)

    def _of_dimension(self, rank: int, dimension: str | None, size: int) -> CommunicationGroup | None:
        if dimension is None or dimension == Dimension.UNKNOWN:
            return None
        mine = self._by_rank.get(rank, [])
        primary = [group for group in mine if group.description in _PRIMARY.get(Dimension(dimension), ())]
        plain = [group for group in mine if group.dimension == dimension and group.description is None]
        # A text file's groups of experts are not those that tensor parallelism multiplies: both may exchange tokens.
        candidates = [*primary, *plain] if dimension == Dimension.EP else primary or plain
        either = _OF_EITHER.get(Dimension(dimension), frozenset())
        if size <= 1 and not either <= {group.description for group in candidates}:
            # The other group that it may run on is not known: only a recorded size could choose this one.
            return None
        candidates = [group for group in candidates if size <= 0 or group.size == size]
        distinct = {group.ranks for group in candidates}
        if len(distinct) != 1:
            return None
        members = distinct.pop()
        return CommunicationGroup(None, candidates[0].description, members, len(members), BY_DIMENSION)


def _listed_ranks(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text))) if text else ()
