"""The settings of Megatron-LM and Megatron Bridge that make a change."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from traceviz_dag.analyze.advice.placement import PP_FIRST
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.schedules import Order

ONE = Fraction(1)


_VIRTUAL = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
_ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
_LAYOUT = "--pipeline-model-parallel-layout"
_BRIDGE_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_BRIDGE_LAYOUT = "pipeline_model_parallel_layout"
_COMBINED = (
    "--overlap-moe-expert-parallel-comm",
    "without --moe-shared-expert-overlap",
    "CUDA_DEVICE_MAX_CONNECTIONS above 1",
)
_BRIDGE_COMBINED = ("comm_overlap.overlap_moe_expert_parallel_comm=True", "moe_shared_expert_overlap=False")
_ZERO_BUBBLE = (
    "no flag: package zbpp_light (patch_megatron(), for Megatron-LM's own linear layers) or Primus "
    "(patch_zero_bubble: true)"
)


def flags(
    change: Change,
    present: Order,
    order: Order,
    layers: Sequence[int],
    size: Fraction = ONE,
    rank_order: str | None = None,
) -> dict[str, list[str]]:
    """What to set, and what to leave out, as lines.

    Args:
        present: the order as it is; order: as the change has it. layers: of each stage as they are; none unknown.
        size: of a micro-batch, over that of now. rank_order: of ``placement``, where it is another.
    """
    megatron, bridge = _of_layers(layers, change.layers, present.chunks, order.chunks)
    if order.overlapped != present.overlapped or 1 < order.chunks != present.chunks:
        if order.chunks > 1:
            megatron.append(f"{'without ' if order.overlapped else ''}--no-overlap-p2p-communication")
        # Megatron-LM batches exchanges that do not overlap; Bridge leaves that as it is.
        batched = f"comm_overlap.batch_p2p_comm={not order.overlapped}"
        bridge += [f"comm_overlap.overlap_p2p_comm={order.overlapped}", batched]
        # Both refuse it where exchanges do not overlap, as with one chunk.
        if order.overlapped or present.overlapped:
            megatron.append(f"{'' if order.overlapped else 'without '}--overlap-p2p-communication-warmup-flush")
            bridge.append(f"overlap_p2p_comm_warmup_flush={order.overlapped}")
    if order.combined and not present.combined:
        megatron += _COMBINED
        bridge += _BRIDGE_COMBINED
    if order.split and not present.split:
        megatron.append(_ZERO_BUBBLE)
        bridge.append("no setting: it has no zero-bubble schedule")
    if change.no_recompute is not None:
        if len(change.no_recompute) == present.stages:
            megatron.append("without --recompute-granularity and --recompute-activations")
            bridge.append("recompute_granularity=None")
        else:
            where = f"on ranks of {numbered('stage', change.no_recompute)}"
            megatron.append(f"no flag: TransformerConfig(recompute_granularity=None) {where}")
            bridge.append(f"recompute_granularity=None {where}")
    if rank_order is not None:
        first = rank_order == PP_FIRST
        megatron.append(f"{'' if first else 'without '}--use-tp-pp-dp-mapping")
        bridge.append(f"dist.use_tp_pp_dp_mapping={first}")
    if size != ONE:
        megatron.append(f"--micro-batch-size {float(size):g} times as large")
        bridge.append(f"train.micro_batch_size {float(size):g} times as large")
    if (batch := order.microbatches * size / present.microbatches) != ONE:
        times = f"{float(batch):g} times as large"
        megatron.append(f"--global-batch-size {times}")
        bridge.append(f"train.global_batch_size {times}")
    return {"megatron_lm": megatron, "megatron_bridge": bridge}


def _of_layers(
    was: Sequence[int], changed: Sequence[int] | None, chunks_before: int, chunks: int
) -> tuple[list[str], list[str]]:
    """Layers of each stage and chunk: by those of the first and the last stage where the others are even, else by a
    layout, beside which Megatron-LM takes neither these nor a number of chunks.

    Args:
        was: of each stage as they are. changed: as they are to be; None: as they are.
    """
    if changed is None and chunks == chunks_before:
        return [], []
    layers = changed or was
    first, *between, last = layers or (1, 1)
    laid_out = len(set(between)) > 1
    megatron, bridge = list[str](), list[str]()
    if chunks > 1 and not laid_out:
        megatron.append(f"{_VIRTUAL[0]} {chunks}")
        if chunks_before > 1:
            megatron.append(f"without {_VIRTUAL[1]}")
    elif chunks_before > 1:
        megatron.append(f"without {' and '.join(_VIRTUAL)}")
    if chunks != chunks_before:
        bridge.append(f"virtual_pipeline_model_parallel_size={chunks if chunks > 1 else None}")
    if laid_out:
        layout = "E" + "|".join("t" * (count // chunks) for _ in range(chunks) for count in layers) + "L"
        megatron.append(f"{_LAYOUT} '{layout}'")
        bridge.append(f"{_BRIDGE_LAYOUT}='{layout}'")
    if changed is None and (laid_out or len(set(was)) < 2):
        return megatron, bridge
    if not laid_out and len(set(layers)) > 1:
        megatron += [f"{name} {count}" for name, count in zip(_ENDS, (first, last), strict=True)]
        bridge += [f"{name}={count}" for name, count in zip(_BRIDGE_ENDS, (first, last), strict=True)]
    elif len(set(was)) > 1:
        megatron += [f"without {name}" for name in _ENDS]
        bridge += [f"{name}=None" for name in _BRIDGE_ENDS]
    if not laid_out and len(set(was)) > 1:
        megatron.append(f"without {_LAYOUT}")
        bridge.append(f"{_BRIDGE_LAYOUT}=None")
    return megatron, bridge
