"""What each process group of Megatron or of a DeviceMesh serves, by its description (pg_desc)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from traceviz_dag.vocabulary import Dimension

AXES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp")
"""The coordinates of a rank; each is its position in the group of that name."""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """What a description says.

    Attributes:
        grid_group: name of these groups in ``rank_grids``; None where the sizes do not fix them.
        primary: whether it is the group itself, not a twin on the same ranks (gloo, all-gather).
    """

    dimension: Dimension
    grid_group: str | None = None
    primary: bool = True


_KINDS: Mapping[str, GroupKind] = {
    "default_pg": GroupKind(Dimension.WORLD),
    "TENSOR_MODEL_PARALLEL_GROUP": GroupKind(Dimension.TP, "tp"),
    "PIPELINE_MODEL_PARALLEL_GROUP": GroupKind(Dimension.PP, "pp"),
    # Megatron reduces the gradient norm, and little else, over a model's ranks.
    "MODEL_PARALLEL_GROUP": GroupKind(Dimension.GRAD_NORM, "mp(tp-pp)"),
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": GroupKind(Dimension.GRAD_NORM, "intra_dist_opt"),
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": GroupKind(Dimension.GRAD_NORM, "etp_ep_pp"),
    "EMBEDDING_GROUP": GroupKind(Dimension.EMBEDDING, "embd"),
    "POSITION_EMBEDDING_GROUP": GroupKind(Dimension.EMBEDDING, "pos_embd"),
    "CONTEXT_PARALLEL_GROUP": GroupKind(Dimension.CP, "cp"),
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP": GroupKind(Dimension.CP),
    # Each sample's sequence is split over one of these: they play the part of a CP group of that size.
    "HYBRID_DP_CP_GROUP": GroupKind(Dimension.CP),
    # Megatron renamed the functions of these groups in 2026; nothing else could be described so.
    "DYNAMIC_DP_CP_GROUP": GroupKind(Dimension.CP),
    "DATA_PARALLEL_GROUP": GroupKind(Dimension.DP, "dp"),
    "DATA_PARALLEL_GROUP_WITH_CP": GroupKind(Dimension.DP, "dp_cp"),
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": GroupKind(Dimension.DP, "intra_dp_cp"),
    "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": GroupKind(Dimension.DP),
    # FP8 maxima, expert-bias counts and the global auxiliary loss: statistics that wait for the data replicas, which
    # no TP group could give; so they are dp, like the reductions of loss and token counts over DATA_PARALLEL_GROUP.
    "TENSOR_AND_DATA_PARALLEL_GROUP": GroupKind(Dimension.DP, "tp_dp"),
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": GroupKind(Dimension.DP, "tp_dp_cp"),
    # The router's auxiliary loss over the shards of one sequence; without CP it is the TP group.
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": GroupKind(Dimension.TP, "tp_cp"),
    "EXPERT_MODEL_PARALLEL_GROUP": GroupKind(Dimension.EP, "ep"),
    "EXPERT_TENSOR_PARALLEL_GROUP": GroupKind(Dimension.ETP, "etp"),
    # Token counts of the dispatcher: part of sending tokens to experts.
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": GroupKind(Dimension.EP, "etp_ep"),
    "EXPERT_DATA_PARALLEL_GROUP": GroupKind(Dimension.EDP, "edp"),
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP": GroupKind(Dimension.EDP),
    # Weights are sharded over ranks with different data, gathered before use and their gradients scattered after it:
    # sharded data parallelism, carved out of dp and edp.
    "GTP_WEIGHT_REMAT_GROUP": GroupKind(Dimension.DP, "gtp"),
    "EXPERT_GTP_WEIGHT_REMAT_GROUP": GroupKind(Dimension.EDP),
}

_MESHES: Mapping[str, Dimension] = {
    **dict.fromkeys(("mesh_default", "mesh_world"), Dimension.WORLD),
    **dict.fromkeys(
        (
            *("mesh_dp", "mesh_ddp", "mesh_fsdp", "mesh_hsdp", "mesh_dp_replicate", "mesh_dp_shard", "mesh_replicate"),
            *("mesh_shard", "mesh_dp_cp", "mesh_dp_shard_cp", "mesh_dp_replicate_cp", "mesh_batch", "mesh_loss"),
        ),
        Dimension.DP,
    ),
    **dict.fromkeys(("mesh_edp", "mesh_efsdp", "mesh_dp_shard_mod_ep"), Dimension.EDP),
    "mesh_tp": Dimension.TP,
    "mesh_cp": Dimension.CP,
    "mesh_pp": Dimension.PP,
    "mesh_ep": Dimension.EP,
    "mesh_etp": Dimension.ETP,
}
"""Groups of a DeviceMesh, which PyTorch describes as mesh_ and the name of their dimension; the names are TorchTitan's.
No Megatron grid follows from them."""

_HIERARCHY_LEVELS: Mapping[tuple[str, int], str] = {
    ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP", 0): "intra_edp",
    ("HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP", 1): "inter_edp",
}

_TWIN_SUFFIXES = ("_GLOO", "_AG")
_LARGER_SUFFIXES = ("_WITH_GTP_REMAT", "_WITH_EGTP")
_NUMBERED = re.compile(
    r"(?P<base>HIERARCHICAL_\w+?_GROUP(?:_GLOO)?)_L(?P<level>\d{1,4})|(?P<sized>(?:HYBRID|DYNAMIC)_DP_CP_GROUP)_\d+"
)

DESCRIPTIONS: Mapping[str, str] = {
    **{kind.grid_group: description for description, kind in _KINDS.items() if kind.grid_group is not None},
    **{name: f"{base}_L{level}" for (base, level), name in _HIERARCHY_LEVELS.items()},
}
"""Name of a group in ``rank_grids`` → the description that Megatron gives such a group."""


def clean_description(description: str | None) -> str | None:
    """A description without padding; None for absent ones and for torch's "undefined"."""
    text = (description or "").strip()
    return None if text in ("", "undefined") else text


@lru_cache(maxsize=4096)
def group_kind(description: str | None) -> GroupKind | None:
    """What a pg_desc says of its group; None where it is no description that we know.

    The suffixes _GLOO and _AG name twins on the same ranks; _WITH_GTP_REMAT and _WITH_EGTP name larger groups of the
    same use; _L{n} and _{n} number the levels and sizes of hierarchical and hybrid groups.
    """
    text = clean_description(description)
    if text is None:
        return None
    if text in _MESHES:
        return GroupKind(_MESHES[text])
    level: int | None = None
    numbered = _NUMBERED.fullmatch(text)
    if numbered is not None:
        text = numbered["sized"] or numbered["base"]
        level = None if numbered["level"] is None else int(numbered["level"])
    text, twin = _without_suffixes(text, _TWIN_SUFFIXES)
    text, larger = _without_suffixes(text, _LARGER_SUFFIXES)
    kind = _KINDS.get(text)
    if kind is None:
        return None
    grid_group = kind.grid_group if level is None else _HIERARCHY_LEVELS.get((text, level))
    return GroupKind(kind.dimension, None if larger else grid_group, primary=not (twin or larger))


def _without_suffixes(text: str, suffixes: tuple[str, ...]) -> tuple[str, bool]:
    """The text without any of the suffixes, and whether it had one."""
    found = False
    for suffix in suffixes:
        if text.endswith(suffix):
            text, found = text.removesuffix(suffix), True
    return text, found
