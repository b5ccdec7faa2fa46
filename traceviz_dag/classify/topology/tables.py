"""The topology as the tables ``topology`` and ``process_groups``, and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from traceviz_dag.classify.topology.group_dimensions import AXES
from traceviz_dag.classify.topology.rank_grids import Ranks, replicas_of
from traceviz_dag.classify.topology.types import Coordinates, Group, Replicas, Topology
from traceviz_dag.tables import PROCESS_GROUPS, TOPOLOGY
from traceviz_dag.tables.rows import ProcessGroupRow, TopologyRow, rows_of
from traceviz_dag.vocabulary import Dimension, TopologySource


def topology_tables(topology: Topology) -> tuple[pa.Table, pa.Table]:
    """The tables ``topology`` (a row per rank of the world) and ``process_groups``.

    Rows of ``process_groups`` of dimension world without name and description speak of the job as a whole: its size, a
    source that adds no group of its own, or a contradiction that belongs to no one group.
    """
    return _rank_table(topology), _group_table(topology)


def topology_from_tables(topology: pa.Table, process_groups: pa.Table) -> Topology:
    """What ``topology_tables`` was given, from its two tables (partition columns may be there)."""
    groups: list[Group] = []
    remarks: list[str] = []
    sources: set[TopologySource] = set()
    world: int | None = None
    for row in rows_of(process_groups, ProcessGroupRow):
        group = Group(
            name=row["group_name"],
            description=row["description"],
            dimension=Dimension(row["dimension"]),
            ranks=tuple(row["ranks"]),
            size=row["size"],
            source=TopologySource(row["source"]),
            disagreement=row["disagreement"],
        )
        sources.add(group.source)
        if not _speaks_of_job(group):
            groups.append(group)
            continue
        world = group.size or world
        remarks += [] if group.disagreement is None else [group.disagreement]
    rows = sorted(rows_of(topology, TopologyRow), key=lambda row: row["rank"])
    coordinates = {row["rank"]: _coordinates(row) for row in rows}
    notes = [note for group in groups if group.disagreement for note in group.disagreement.split("\n")]
    return Topology(
        world_size=world,
        coordinates={rank: at for rank, at in coordinates.items() if at != Coordinates()},
        groups=tuple(groups),
        pipelines=_by_ordinal((row["pipeline"], row["stage"] or 0, row["rank"]) for row in rows),
        replicas=_replicas(rows, coordinates),
        sources=tuple(source for source in TopologySource if source in sources),
        disagreements=tuple(dict.fromkeys((*remarks, *notes))),
    )


def _rank_table(topology: Topology) -> pa.Table:
    ranks = sorted({*range(topology.world_size or 0), *topology.coordinates})
    places = [topology.coordinates.get(rank, Coordinates()) for rank in ranks]
    pipelines = ordinals_of(topology.pipelines)
    stages = {rank: (place, len(pipeline)) for pipeline in topology.pipelines for place, rank in enumerate(pipeline)}
    sources = _coordinate_sources(topology)
    replicas = topology.replicas
    ordinals = {
        "pipeline": pipelines,
        "dense_replica": ordinals_of(replicas.dense_by_dp),
        "expert_replica": ordinals_of(replicas.expert_by_edp),
        "model_replica": ordinals_of(replicas.closure),
    }
    return TOPOLOGY.from_columns(
        {
            "rank": ranks,
            **{axis: [getattr(at, axis) for at in places] for axis in AXES},
            "stage": [stages.get(rank, (None, None))[0] for rank in ranks],
            "stages": [stages.get(rank, (None, None))[1] for rank in ranks],
            **{name: [ordinal.get(rank) for rank in ranks] for name, ordinal in ordinals.items()},
            "source": [sources.get(rank) for rank in ranks],
        }
    )


def _group_table(topology: Topology) -> pa.Table:
    groups = (*_job_rows(topology), *topology.groups)
    return PROCESS_GROUPS.from_columns(
        {
            "group_name": [group.name for group in groups],
            "description": [group.description for group in groups],
            "dimension": [group.dimension.value for group in groups],
            "size": [group.size for group in groups],
            "ranks": [list(group.ranks) for group in groups],
            "source": [group.source.value for group in groups],
            "disagreement": [group.disagreement for group in groups],
        }
    )


def _job_rows(topology: Topology) -> tuple[Group, ...]:
    """Rows that speak of the job as a whole: a row per remark, and per source that no other row names."""
    notes = {note for group in topology.groups if group.disagreement for note in group.disagreement.split("\n")}
    remarks = [sentence for sentence in topology.disagreements if sentence not in notes]
    main = topology.sources[0] if topology.sources else TopologySource.DISTRIBUTED_INFO
    said: list[tuple[TopologySource, str | None]] = [(main, remark) for remark in remarks]
    if not said and topology.world_size is not None:
        said.append((main, None))
    named = {group.source for group in topology.groups} | {source for source, _ in said}
    said += [(source, None) for source in topology.sources if source not in named]
    return tuple(
        Group(None, None, Dimension.WORLD, (), topology.world_size or 0, source, remark) for source, remark in said
    )


def _speaks_of_job(group: Group) -> bool:
    return group.name is None and group.description is None and group.dimension is Dimension.WORLD


def _coordinate_sources(topology: Topology) -> dict[int, str]:
    """Rank → the best source of a group that gives it a coordinate, else ``computed``; ranks with a coordinate only."""
    axes = {Dimension(axis) for axis in AXES}
    best: dict[int, TopologySource] = {}
    for source in reversed(TopologySource):
        for group in topology.groups:
            if group.source is source and group.dimension in axes:
                best |= dict.fromkeys(group.ranks, source)
    return {
        rank: best.get(rank, TopologySource.COMPUTED).value
        for rank, at in topology.coordinates.items()
        if at != Coordinates()
    }


def ordinals_of(groups: tuple[Ranks, ...]) -> dict[int, int]:
    """Rank → the number of its group, from 0; ranks of no group are left out."""
    return {rank: ordinal for ordinal, group in enumerate(groups) for rank in group}


def _by_ordinal(rows: Iterable[tuple[int | None, int, int]]) -> tuple[Ranks, ...]:
    """Groups from (ordinal of the group, place in it, rank); rows without an ordinal are in none."""
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for ordinal, place, rank in rows:
        if ordinal is not None:
            members[ordinal].append((place, rank))
    return tuple(tuple(rank for _, rank in sorted(members[ordinal])) for ordinal in sorted(members))


def _coordinates(row: TopologyRow) -> Coordinates:
    dense, expert = (row["tp"], row["cp"], row["dp"], row["pp"]), (row["ep"], row["etp"], row["edp"])
    return Coordinates(*dense, *expert)


def _replicas(rows: Sequence[TopologyRow], coordinates: Mapping[int, Coordinates]) -> Replicas:
    dense = _by_ordinal((row["dense_replica"], row["rank"], row["rank"]) for row in rows)
    expert = _by_ordinal((row["expert_replica"], row["rank"], row["rank"]) for row in rows)
    closure = _by_ordinal((row["model_replica"], row["rank"], row["rank"]) for row in rows)
    by_dp_cp = replicas_of(coordinates).dense_by_dp_cp if dense else ()
    return Replicas(dense_by_dp=dense, dense_by_dp_cp=by_dp_cp, expert_by_edp=expert, closure=closure)
