"""Megatron's two rank grids, computed from parallel sizes: every process group, coordinate and replica.

The dense grid is (tp, cp, dp, pp), the expert grid (etp, ep, edp, pp); both are laid out by one order string, leftmost
token fastest. The rules are those of ``megatron.core.parallel_state.initialize_model_parallel``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.classify.topology.parallel_sizes import ParallelSizes, strides
from traceviz_dag.classify.topology.types import Coordinates, Replicas

Ranks = tuple[int, ...]

DENSE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "pp": ("pp",),
    "dp": ("dp",),
    "dp_cp": ("dp", "cp"),
    "cp": ("cp",),
    "mp(tp-pp)": ("tp", "pp"),
    "tp_cp": ("tp", "cp"),
    "tp_dp": ("tp", "dp"),
    "tp_dp_cp": ("tp", "dp", "cp"),
}
"""Groups of the dense grid: name → the tokens that vary inside a group."""

EXPERT_GROUPS: Mapping[str, tuple[str, ...]] = {
    "ep": ("ep",),
    "etp": ("tp",),
    "etp_ep": ("tp", "ep"),
    "etp_ep_pp": ("tp", "ep", "pp"),
    "edp": ("dp",),
}
"""Groups of the expert grid: name → the tokens that vary inside a group (its tp is etp, its dp is edp)."""


@dataclass(frozen=True, slots=True)
class RankGrids:
    """Everything that the sizes fix.

    Attributes:
        groups: name → groups, sorted by members; members in group order. ``inter_edp`` only with several instances
            of the distributed optimizer.
    """

    sizes: ParallelSizes
    groups: Mapping[str, tuple[Ranks, ...]]
    coordinates: Mapping[int, Coordinates]
    replicas: Replicas


def compute_grids(sizes: ParallelSizes) -> RankGrids:
    """All groups, coordinates and replicas of a job with these sizes.

    Source: ``RankGenerator.get_ranks`` and ``initialize_model_parallel`` of Megatron-core 0.16 to 0.20, whose groups
    for eleven configurations are reproduced exactly. Weight rematerialisation (``gtp``) is taken as off.
    """
    tokens = sizes.tokens()
    dense, expert = _Grid(tokens, sizes.dense()), _Grid(tokens, sizes.expert())
    arrays: dict[str, npt.NDArray[np.int64]] = {name: dense.groups(axes) for name, axes in DENSE_GROUPS.items()}
    arrays |= {name: expert.groups(axes) for name, axes in EXPERT_GROUPS.items()}
    arrays |= _instance_groups(arrays, sizes)
    arrays["embd"] = arrays["pp"][:, [0, -1]] if sizes.pp > 1 else arrays["pp"]
    arrays["pos_embd"] = arrays["pp"][:, :1]
    arrays["gtp"] = np.arange(sizes.world)[:, None]
    coordinates = _coordinates(dense, expert, sizes.world)
    return RankGrids(
        sizes=sizes,
        groups={name: tuple(sorted(map(tuple, array.tolist()))) for name, array in arrays.items()},
        coordinates=coordinates,
        replicas=replicas_of(coordinates),
    )


def replicas_of(coordinates: Mapping[int, Coordinates]) -> Replicas:
    """The copies of the model, from complete coordinates; a reading whose coordinate any rank lacks is empty.

    A dense replica is the ranks of one dp index, an expert replica those of one edp index, a complete model a connected
    component of both.
    """
    places = coordinates.items()
    dense = _by_key((rank, None if at.dp is None else (at.dp,)) for rank, at in places)
    dense_cp = _by_key((rank, None if at.dp is None or at.cp is None else (at.dp, at.cp)) for rank, at in places)
    expert = _by_key((rank, None if at.edp is None else (at.edp,)) for rank, at in places)
    closure = _connected((*dense, *expert)) if dense and expert else ()
    return Replicas(dense_by_dp=dense, dense_by_dp_cp=dense_cp, expert_by_edp=expert, closure=closure)


class _Grid:
    """One rank grid: axes by token, leftmost token fastest."""

    def __init__(self, tokens: list[str], sizes: Mapping[str, int]) -> None:
        self._axes = {token: axis for axis, token in enumerate(reversed(tokens))}
        self._ranks = np.arange(int(np.prod(list(sizes.values()))), dtype=np.int64).reshape(
            [sizes[token] for token in reversed(tokens)]
        )
        self._sizes = sizes
        self._strides = strides(tokens, sizes)

    def groups(self, varying: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """Groups in which the tokens vary: one row per group, in Megatron's order of creation."""
        inner = sorted(self._axes[token] for token in varying)
        outer = [axis for axis in range(self._ranks.ndim) if axis not in inner]
        size = int(np.prod([self._sizes[token] for token in varying]))
        return self._ranks.transpose([*outer, *inner]).reshape(-1, size)

    def coordinate(self, token: str) -> npt.NDArray[np.int64]:
        """Each rank's index along the token."""
        return self._ranks.reshape(-1) // self._strides[token] % self._sizes[token]


def _instance_groups(
    arrays: Mapping[str, npt.NDArray[np.int64]], sizes: ParallelSizes
) -> dict[str, npt.NDArray[np.int64]]:
    """Groups that depend on the number of distributed-optimizer instances."""
    instances = sizes.distributed_optimizer_instances
    result = {
        "intra_dp_cp": arrays["dp_cp"].reshape(-1, arrays["dp_cp"].shape[1] // instances),
        "intra_edp": arrays["edp"].reshape(-1, sizes.edp // instances),
    }
    if instances > 1:
        per_instance = arrays["edp"].reshape(-1, instances, sizes.edp // instances)
        result["inter_edp"] = per_instance.transpose(0, 2, 1).reshape(-1, instances)
    # Consecutive model groups make one instance; torch sorts the members of a group that is made from several.
    result["intra_dist_opt"] = np.sort(arrays["etp_ep_pp"].reshape(instances, -1), axis=1)
    return result


def _coordinates(dense: _Grid, expert: _Grid, world: int) -> dict[int, Coordinates]:
    columns = {name: dense.coordinate(name).tolist() for name in ("tp", "cp", "dp", "pp")}
    columns["ep"] = expert.coordinate("ep").tolist()
    columns["etp"] = expert.coordinate("tp").tolist()
    columns["edp"] = expert.coordinate("dp").tolist()
    return {rank: Coordinates(**{name: column[rank] for name, column in columns.items()}) for rank in range(world)}


def _by_key(items: Iterable[tuple[int, Ranks | None]]) -> tuple[Ranks, ...]:
    members: dict[Ranks, list[int]] = defaultdict(list)
    for rank, key in items:
        if key is None:
            return ()
        members[key].append(rank)
    return tuple(sorted(tuple(sorted(ranks)) for ranks in members.values()))


def _connected(groups: tuple[Ranks, ...]) -> tuple[Ranks, ...]:
    """Connected components of overlapping rank sets."""
    parent = {rank: rank for group in groups for rank in group}

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for group in groups:
        for rank in group[1:]:
            parent[root(rank)] = root(group[0])
    return _by_key((rank, (root(rank),)) for rank in parent)
