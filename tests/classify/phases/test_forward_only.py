"""Training steps that only run forward, in traces without call stacks: evaluations, and forward passes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.classify.test_kernels import GEMM, NCCL, kernels
from tests.kineto_file import AUTOGRAD, KinetoFile

LINEAR = "LinearWithGradAccumulationAndAsyncCommunication"
REDUCE = "_ReduceFromModelParallelRegion"


def forward(start: int = 0) -> KinetoFile:
    """A batch that is loaded, a linear layer, what lies between it and its reduction, and a loss that is summed."""
    file = KinetoFile(world_size=2)
    file.annotation("ProfilerStep#3", start, start + 10_000)
    for name, at in (("aten::to", 500), (LINEAR, 1_000), ("aten::bmm", 2_000), (REDUCE, 3_000), ("aten::sum", 9_000)):
        file.operator(name, start + at, start + at + 400)
        kernel = NCCL if name == REDUCE else GEMM
        file.kernel(kernel, start + at + 300, start + at + 800, launched=start + at + 100)
    return file


def phases(file: KinetoFile, folder: Path) -> list[str]:
    return kernels(file, folder).phase.tolist()


def test_what_lies_between_forward_operators_is_forward_and_the_rest_unknown(tmp_path):
    table = kernels(forward(), tmp_path)
    assert table.phase.tolist() == ["unknown", "forward", "forward", "forward", "unknown"]
    assert table.phase_rule.tolist()[2] == "amid_a_forward_only_step"
    assert table.dimension.dropna().tolist() == ["tp"]
    assert table.category.tolist()[1:4] == ["fwd_computation", "fwd_computation", "fwd_communication"]


@pytest.mark.parametrize("sign", ["backward", "optimizer"])
def test_a_step_that_also_runs_backward_or_an_optimizer_is_no_forward_only_step(tmp_path, sign):
    file = forward()
    if sign == "backward":
        file.operator("autograd::engine::evaluate_function: MmBackward0", 5_000, 6_000, AUTOGRAD)
    else:
        file.annotation("Optimizer.step#Adam.step", 5_000, 6_000)
    assert phases(file, tmp_path) == ["unknown", "forward", "unknown", "forward", "unknown"]


def test_an_evaluation_beside_training_steps_is_reported(tmp_path):
    file = forward()
    trained = KinetoFile()
    trained.annotation("ProfilerStep#4", 20_000, 30_000)
    trained.operator("aten::mm", 21_000, 21_400, **{"Sequence number": 7})
    trained.operator(
        "autograd::engine::evaluate_function: MmBackward0", 23_000, 24_000, AUTOGRAD, **{"Sequence number": 7}
    )
    file.events += trained.events
    file.kernel(GEMM, 21_300, 21_800, launched=21_100)
    file.kernel(GEMM, 23_300, 23_800, launched=23_100, thread=AUTOGRAD)
    assert phases(file, tmp_path) == ["unknown", "forward", "forward", "forward", "unknown", "forward", "backward"]


def test_forward_operators_that_run_again_in_a_backward_step_are_recomputed(tmp_path):
    file = KinetoFile(world_size=2)
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 1_000, 3_000, AUTOGRAD)
    file.operator("CheckpointFunctionBackward", 1_100, 2_900, AUTOGRAD)
    file.operator(REDUCE, 1_200, 1_800, AUTOGRAD)
    file.kernel(NCCL, 1_500, 1_900, launched=1_300, thread=AUTOGRAD)
    file.operator("_CopyToModelParallelRegionBackward", 2_000, 2_800, AUTOGRAD)
    file.kernel(NCCL, 2_500, 2_900, launched=2_300, thread=AUTOGRAD)
    table = kernels(file, tmp_path)
    assert table.phase.tolist()[0] == "recompute"
    assert table.dimension.tolist() == ["tp", "tp"]
