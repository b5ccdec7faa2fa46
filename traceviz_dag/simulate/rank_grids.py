"""Megatron's process groups, computed from scratch: the simulator's own rank grids.

This is deliberately a second implementation beside the classifier's, so that the two can disagree. Facts of the
creation order are those of Megatron-core's ``initialize_model_parallel``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceviz_dag.simulate.settings import Era, JobSettings


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group: ``name`` is the creation ordinal as text, the same on each member."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Grid:
    """Ranks on a mixed-radix grid whose axes are given leftmost fastest."""

    def __init__(self, order: Sequence[str], sizes: dict[str, int]) -> None:
        self.axes = [(axis, sizes[axis]) for axis in order]

    def place(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank, by axis."""
        coordinates = {}
        for axis, size in self.axes:
            rank, coordinates[axis] = divmod(rank, size)
        return coordinates

    def groups(self, *varying: str) -> list[tuple[int, ...]]:
        """All groups along some axes: members differ in these alone; groups and members leftmost fastest."""
        strides, stride = {}, 1
        for axis, size in self.axes:
            strides[axis] = stride
            stride *= size
        inside = [(axis, size) for axis, size in self.axes if axis in varying]
        outside = [(axis, size) for axis, size in self.axes if axis not in varying]
        return [tuple(base + offset for offset in _walk(inside, strides)) for base in _walk(outside, strides)]


def _walk(axes: list[tuple[str, int]], strides: dict[str, int]) -> Iterator[int]:
    slowest_first = list(reversed(axes))
    for point in itertools.product(*(range(size) for _, size in slowest_first)):
        yield sum(index * strides[axis] for index, (axis, _) in zip(point, slowest_first, strict=True))


def dense_grid(settings: JobSettings) -> Grid:
    """The grid of dense parameters: tp, cp, dp, pp."""
    sizes = {"tp": settings.tp, "cp": settings.cp, "ep": 1, "dp": settings.dp, "pp": settings.pp}
    return Grid(settings.order.split("-"), sizes)


def expert_grid(settings: JobSettings) -> Grid:
    """The grid of expert parameters; its ``tp`` is expert tensor and its ``dp`` expert data parallelism."""
    sizes = {"tp": settings.expert_tensor, "cp": 1, "ep": settings.ep, "dp": settings.expert_data, "pp": settings.pp}
    return Grid(settings.order.split("-"), sizes)


@dataclass(frozen=True, slots=True)
class RankGrids:
    """All groups of a job in creation order, and where each rank is."""

    settings: JobSettings
    groups: tuple[ProcessGroup, ...]

    @classmethod
    def of(cls, settings: JobSettings) -> RankGrids:
        """Build the groups of a job."""
        named = [
            ProcessGroup(str(ordinal), description, ranks)
            for ordinal, (description, ranks) in enumerate(_creation(settings))
        ]
        return cls(settings, tuple(named))

    def of_rank(self, rank: int) -> dict[str, ProcessGroup]:
        """Description → the group of a rank."""
        return {group.description: group for group in self.groups if rank in group.ranks}

    def coordinates(self, rank: int) -> dict[str, int]:
        """tp, cp, dp, pp and ep, etp, edp of a rank."""
        dense, expert = dense_grid(self.settings).place(rank), expert_grid(self.settings).place(rank)
        place = {axis: dense[axis] for axis in ("tp", "cp", "dp", "pp")}
        return place | {"ep": expert["ep"], "etp": expert["tp"], "edp": expert["dp"]}


def _creation(settings: JobSettings) -> Iterator[tuple[str, tuple[int, ...]]]:
    dense, expert = dense_grid(settings), expert_grid(settings)
    everyone = tuple(range(settings.world))
    newest = settings.era is Era.TORCH_2_7
    yield "default_pg", everyone
    if newest:
        yield from (("GTP_WEIGHT_REMAT_GROUP", (rank,)) for rank in everyone)
    yield from _with_gloo("DATA_PARALLEL_GROUP_WITH_CP", dense.groups("dp", "cp"))
    if settings.dynamic_context:
        yield from _sized_contexts(dense.groups("dp", "cp"), 1 if newest else 2)
    yield from _with_gloo("DATA_PARALLEL_GROUP", dense.groups("dp"))
    yield from _each("CONTEXT_PARALLEL_GROUP", dense.groups("cp"))
    yield from _each("MODEL_PARALLEL_GROUP", dense.groups("tp", "pp"))
    yield from _each("TENSOR_MODEL_PARALLEL_GROUP", dense.groups("tp"))
    for pipeline in dense.groups("pp"):
        yield "PIPELINE_MODEL_PARALLEL_GROUP", pipeline
        yield "EMBEDDING_GROUP", pipeline[:1] if len(pipeline) == 1 else (pipeline[0], pipeline[-1])
        yield "POSITION_EMBEDDING_GROUP", pipeline[:1]
    yield from _each("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", dense.groups("tp", "dp", "cp"))
    yield from _each("TENSOR_AND_DATA_PARALLEL_GROUP", dense.groups("tp", "dp"))
    yield from _each("TENSOR_AND_CONTEXT_PARALLEL_GROUP", dense.groups("tp", "cp"))
    if newest:
        yield from (("EXPERT_GTP_WEIGHT_REMAT_GROUP", (rank,)) for rank in everyone)
    yield from _each("EXPERT_MODEL_PARALLEL_GROUP", expert.groups("ep"))
    yield from _each("EXPERT_TENSOR_PARALLEL_GROUP", expert.groups("tp"))
    yield from _each("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", expert.groups("tp", "ep"))
    yield from _each("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", expert.groups("tp", "ep", "pp"))
    if newest:
        yield from _each("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP", expert.groups("tp", "ep", "pp"))
    yield from _with_gloo("EXPERT_DATA_PARALLEL_GROUP", expert.groups("dp"))
    yield "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", everyone


def _sized_contexts(domains: list[tuple[int, ...]], least: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Neighbours in each domain of data and context parallelism, in all powers of two below its size."""
    for domain in domains:
        size = least
        while size < len(domain):
            for first in range(0, len(domain), size):
                yield f"HYBRID_DP_CP_GROUP_{size}", domain[first : first + size]
            size *= 2


def _each(description: str, groups: list[tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((description, ranks) for ranks in groups)


def _with_gloo(description: str, groups: list[tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for ranks in groups:
        yield description, ranks
        yield f"{description}_GLOO", ranks
