"""What is known of a job's ranks and process groups, whichever source said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.vocabulary import Dimension, TopologySource


@dataclass(frozen=True, slots=True)
class Coordinates:
    """One rank's place in the dense (tp, cp, dp, pp) and the expert (etp, ep, edp, pp) grid; None where unknown."""

    tp: int | None = None
    cp: int | None = None
    dp: int | None = None
    pp: int | None = None
    ep: int | None = None
    etp: int | None = None
    edp: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One process group.

    Attributes:
        name: pg_name; None where no trace header knows the group.
        description: pg_desc; None where no source gives one.
        dimension: the parallel dimension it serves, unknown where nothing says.
        ranks: members in group order; empty where no source lists them.
        disagreement: how another source contradicts it; None where none does.
    """

    name: str | None
    description: str | None
    dimension: Dimension
    ranks: tuple[int, ...]
    size: int
    source: TopologySource
    disagreement: str | None = None


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ranks that hold one copy of the model, by the four readings of "copy".

    Attributes:
        dense_by_dp: all ranks of one dp index. dense_by_dp_cp: of one dp and cp index. expert_by_edp: of one edp index.
        closure: connected components of dense_by_dp and expert_by_edp, the complete models.
    """

    dense_by_dp: tuple[tuple[int, ...], ...] = ()
    dense_by_dp_cp: tuple[tuple[int, ...], ...] = ()
    expert_by_edp: tuple[tuple[int, ...], ...] = ()
    closure: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """A job's topology, united over sources.

    Attributes:
        pipelines: pipeline groups, members in stage order, sorted by lowest member.
        disagreements: one sentence per contradiction between sources.
    """

    world_size: int | None
    coordinates: Mapping[int, Coordinates]
    groups: tuple[Group, ...]
    pipelines: tuple[tuple[int, ...], ...]
    replicas: Replicas
    sources: tuple[TopologySource, ...]
    disagreements: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """That of few fields, as what follows from a topology is kept for the next rank, and a mapping has none."""
        return hash((self.world_size, self.sources, len(self.groups)))

    def stage_of(self, rank: int) -> tuple[int | None, int | None]:
        """(stage, number of stages) of a rank; (None, None) where its pipeline group is unknown."""
        for pipeline in self.pipelines:
            if rank in pipeline:
                return pipeline.index(rank), len(pipeline)
        return None, None
