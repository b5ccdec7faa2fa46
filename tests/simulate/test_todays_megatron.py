"""Megatron-FSDP, offloaded activations and products of few bits: what the simulated job does, by its truth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulate.conftest import Job, small
from traceviz_dag.simulate.settings import Era, Precision
from traceviz_dag.simulate.tree import Kernel, Node, Row
from traceviz_dag.simulate.work import quantized
from traceviz_dag.simulate.work.fsdp import REDUCE_STREAM, reduce
from traceviz_dag.simulate.work.job import Job as Trees

LAYERS, MICROBATCHES = 3, 2


@pytest.fixture(scope="module")
def sharded(job_of: Callable[[str], Job]) -> Job:
    return job_of("sharded")


def test_each_unit_is_gathered_before_both_passes_of_each_micro_batch_and_reduced_after_the_second(sharded: Job):
    truth = sharded.truth(0)
    dp = truth[(truth.dimension == "dp") & (truth.role != "amax")]
    counts = dp[dp.launching_microbatch >= 0].groupby(["role", "phase", "launching_microbatch"], observed=True).size()
    # The embedding belongs to no unit: gathered once in a step, reduced with the last gradients of each pass.
    assert counts.to_dict() == {
        ("param_sync", "forward", 0): LAYERS + 1,
        ("param_sync", "forward", 1): LAYERS,
        ("param_sync", "backward", 0): LAYERS,
        ("param_sync", "backward", 1): LAYERS,
        ("grad_sync", "backward", 0): LAYERS + 1,
        ("grad_sync", "backward", 1): LAYERS + 1,
    }
    assert dp.groupby("role", observed=True).stream.nunique().loc[["param_sync", "grad_sync"]].tolist() == [1, 1]


def test_the_next_unit_is_gathered_while_the_one_before_it_computes(sharded: Job):
    truth = sharded.truth(0)
    gathers = truth[(truth.role == "param_sync") & (truth.phase == "forward") & (truth.launching_microbatch == 1)]
    computing = truth[(truth.kind == "computation") & (truth.phase == "forward") & (truth.microbatch == 1)]
    for ordinal, start in enumerate(sorted(gathers.ts_ns)[1:]):
        layer = computing[computing.layer == ordinal]
        assert start < layer.ts_ns.max(), "prefetched: it begins before the layer before has ended"


def test_what_reduces_gradients_computes_on_a_separate_stream_within_the_micro_batch(sharded: Job):
    truth = sharded.truth(0)
    stream = truth[truth.role == "grad_sync"].stream.iloc[0]
    beside = truth[(truth.stream == stream) & (truth.kind == "computation")]
    assert len(beside) == 2 * MICROBATCHES * (LAYERS + 1)
    assert set(beside.phase) == {"backward"} and set(beside.microbatch) == {0, 1}
    assert set(beside.category) == {"bwd_computation"}


@pytest.mark.parametrize(("name", "offloaded"), [("sharded", LAYERS - 1), ("offloaded_layers", 2)])
def test_what_the_forward_pass_sends_to_the_host_the_backward_pass_gets_back(job_of, name: str, offloaded: int):
    truth = job_of(name).truth(0)
    compute = truth.stream.mode().iloc[0]
    copies = truth[(truth.kind == "memory") & (truth.stream != compute)]
    assert set(copies.category) == {"memory"}
    down, up = (copies[copies.name.str.contains(way)] for way in ("DtoH", "HtoD"))
    assert set(down.phase) == {"forward"} and set(up.phase) == {"backward"}
    for microbatch in range(MICROBATCHES):
        sent, brought = down[down.microbatch == microbatch], up[up.microbatch == microbatch]
        assert len(sent) == len(brought) and len(sent) % offloaded == 0 and len(sent) > 0
        assert brought.ts_ns.min() > sent.ts_ns.min() + sent.dur_ns.min()


def test_ranks_agree_on_maxima_once_in_each_pass_over_tensor_and_data_parallelism(sharded: Job):
    truth = sharded.truth(1)
    maxima = truth[truth.role == "amax"]
    assert set(maxima.group) == {"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"}
    assert set(maxima.peers) == {"[0, 1, 2, 3]"} and set(maxima.dimension) == {"dp"}
    counts = maxima.groupby(["phase", "launching_microbatch"], observed=True).size()
    assert counts.to_dict() == {(phase, number): 1 for phase in ("forward", "backward") for number in (0, 1)}


def _kernels(nodes: tuple[Node, ...]) -> list[Kernel]:
    found = []
    for node in nodes:
        found += [node] if isinstance(node, Kernel) else _kernels(node.children) if isinstance(node, Row) else []
    return found


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        (Precision.BF16, ()),
        (Precision.FP8, ("cast_transpose",)),
        (Precision.FP8_CURRENT, ("amax_kernel", "AllReduce", "scale_from_amax", "cast_transpose")),
        (Precision.FP8_BLOCKWISE, ("block_scaled_1d_cast_transpose",)),
        (Precision.MXFP8, ("quantize_mxfp8",)),
        (Precision.NVFP4, ("HadamardAmax", "AllReduce", "quantize_transpose_nvfp4")),
    ],
)
def test_each_recipe_scales_in_its_own_way(precision: Precision, words: tuple[str, ...]):
    trees = Trees.of(small(tp=2, dp=2, precision=precision))
    names = [kernel.name for kernel in _kernels(quantized.cast(trees, 1 << 20, shard=True))]
    assert len(names) == len(words) and all(word in name for word, name in zip(words, names, strict=True))
    whole = [kernel.name for kernel in _kernels(quantized.cast(trees, 1 << 20))]
    assert not any("nccl" in name for name in whole), "nobody else has a part of the tensor"


def test_before_pytorch_2_7_the_reduction_runs_on_the_groups_stream():
    trees = Trees.of(small(dp=2, fsdp=True, era=Era.TORCH_2_4))
    scaled, sent, added = _kernels(reduce(trees, "dense"))
    assert (scaled.stream, sent.stream, added.stream) == (REDUCE_STREAM, "nccl:dp_cp", REDUCE_STREAM)
    assert sent.after == (REDUCE_STREAM,) and sent.blocks == REDUCE_STREAM
