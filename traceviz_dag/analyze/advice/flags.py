"""The settings of Megatron-LM and Megatron Bridge that make a change."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from traceviz_dag.analyze.advice.placement import PP_FIRST
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.schedules import Order

ONE = Fraction(1)


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
        present: the order as it is; order: as the change has it. layers: of each stage, with the change; none unknown.
        size: of a micro-batch, over that of now. rank_order: of ``placement``, where it is another.
    """
    megatron: list[str] = []
    bridge: list[str] = []
    if order.chunks != present.chunks:
        if order.chunks > 1:
            megatron.append(f"--num-virtual-stages-per-pipeline-rank {order.chunks}")
        else:
            megatron.append(
                "without --num-virtual-stages-per-pipeline-rank and --num-layers-per-virtual-pipeline-stage"
            )
        bridge.append(f"virtual_pipeline_model_parallel_size={order.chunks if order.chunks > 1 else None}")
    if order.chunks > 1 and (order.chunks != present.chunks or order.overlapped != present.overlapped):
        without = "without " if order.overlapped else ""
        megatron.append(f"{without}--no-overlap-p2p-communication")
        bridge.append(f"comm_overlap.overlap_p2p_comm={order.overlapped}")
    if change.layers is not None:
        own, its = _of_layers(layers, order.chunks)
        megatron += own
        bridge += its
    if change.no_recompute is not None:
        megatron.append("without --recompute-granularity")
        bridge.append("recompute_granularity=None")
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


def _of_layers(layers: Sequence[int], chunks: int) -> tuple[list[str], list[str]]:
    """Layers of each stage: by those of the first and the last stage where the others are even, else by a layout."""
    first, *between, last = layers
    if len(set(layers)) == 1:
        names = ["decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"]
        without = [f"without --{name}" for name in names]
        ends = (f"num_layers_in_{end}_pipeline_stage=None" for end in ("first", "last"))
        return without, list(ends)
    if len(set(between)) <= 1:
        return (
            [f"--decoder-first-pipeline-num-layers {first}", f"--decoder-last-pipeline-num-layers {last}"],
            [f"num_layers_in_first_pipeline_stage={first}", f"num_layers_in_last_pipeline_stage={last}"],
        )
    of_chunks = "|".join("t" * (count // chunks) for _ in range(chunks) for count in layers)
    return [f"--pipeline-model-parallel-layout 'E{of_chunks}L'"], [f"pipeline_model_parallel_layout='E{of_chunks}L'"]
