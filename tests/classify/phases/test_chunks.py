"""Model chunks and lost frames in traces with call stacks: each test is one small trace."""

from __future__ import annotations

import pytest

from tests.classify.test_kernels import BACKWARD_STEP, FORWARD_STEP, GEMM, kernels, megatron_step, run
from tests.kineto_file import AUTOGRAD, KinetoFile

COMBINED = "megatron/core/pipeline_parallel/combined_1f1b.py(200): combined_forward_backward_step"
INTERLEAVED = "megatron/core/pipeline_parallel/schedules.py(900): forward_backward_pipelining_with_interleaving"
NODE = "megatron/core/pipeline_parallel/utils.py(150): "


def combined_forward(file: KinetoFile, at: int, *modules: str) -> None:
    """The forward half of a combined step: nodes of a schedule plan around modules."""
    file.python(COMBINED, at, at + 900)
    for index, module in enumerate(modules):
        begin = at + 100 + 200 * index
        file.python(NODE + "forward", begin, begin + 180)
        file.python(f"nn.Module: {module}", begin + 20, begin + 160)
        file.kernel(GEMM, begin + 60, begin + 70, launched=begin + 50)


def test_modules_show_the_chunks_of_combined_steps_though_they_begin_differently(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 20_000)
    file.python(INTERLEAVED, 50, 19_900)
    first = ("Embedding_0", "SelfAttention_0", "TEGroupedMLP_0", "SelfAttention_1", "TEGroupedMLP_1")
    second = ("SelfAttention_2", "TEGroupedMLP_2", "LayerNorm_0")
    for index, modules in enumerate((first, first, second, second, first, first, second, second)):
        combined_forward(file, 1_000 + 2_000 * index, *modules)
    steps = run(file, tmp_path).steps
    assert steps.chunk.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert steps.microbatch.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_a_combined_step_loads_its_batch_forward_and_makes_its_first_gradient_backward(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.python(COMBINED, 1_000, 4_000)
    file.python("pretrain_gpt.py(120): forward_step", 1_100, 1_500)
    file.python("pretrain_gpt.py(30): get_batch", 1_150, 1_450)
    file.kernel("batch", 1_300, 1_400, launched=1_200)
    file.python("torch/autograd/__init__.py(60): _make_grads", 1_600, 1_700)
    file.kernel("first gradient", 1_660, 1_670, launched=1_650)
    table = kernels(file, tmp_path).set_index("name")
    assert table.phase.to_dict() == {"batch": "forward", "first gradient": "backward"}
    assert table.microbatch.to_dict() == {"batch": 0, "first gradient": 0}


def test_scaling_of_losses_belongs_to_the_half_of_a_combined_step_that_does_it(tmp_path):
    scale = "megatron/core/optimizer/optimizer.py(200): scale_loss"
    schedules = "megatron/core/pipeline_parallel/schedules.py(300): "
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.python(COMBINED, 1_000, 4_000)
    file.python(scale, 1_100, 1_200)
    file.kernel("of the backward step", 1_160, 1_170, launched=1_150)
    file.python(schedules + "forward_step_calc_loss", 2_000, 2_600)
    file.python(schedules + "_compute_loss_scale", 2_100, 2_500)
    file.kernel("one", 2_160, 2_170, launched=2_150)
    file.python(scale, 2_200, 2_300)
    file.kernel("of the forward step", 2_260, 2_270, launched=2_250)
    table = kernels(file, tmp_path).set_index("name")
    assert table.phase.to_dict() == {
        "of the backward step": "backward",
        "one": "forward",
        "of the forward step": "forward",
    }
    assert table.microbatch.notna().all()


@pytest.mark.parametrize("frame", [BACKWARD_STEP, None])
def test_a_backward_step_without_its_frame_is_known_by_its_forward_operators(tmp_path, frame):
    file = KinetoFile()
    megatron_step(file)
    file.python(FORWARD_STEP, 6_000, 7_000)
    file.python("nn.Module: GPTModel_0", 6_100, 6_900)
    file.operator("aten::mm", 6_200, 6_300, **{"Sequence number": 8})
    if frame:
        file.python(frame, 7_500, 8_900)
    node = "autograd::engine::evaluate_function: MmBackward0"
    file.operator(node, 7_600, 7_900, AUTOGRAD, **{"Sequence number": 8})
    file.kernel(GEMM, 7_800, 7_900, launched=7_700, thread=AUTOGRAD)
    result = run(file, tmp_path)
    assert result.steps.direction.tolist() == [0, 1, 0, 1]
    assert result.steps.microbatch.tolist() == [0, 0, 1, 1]
    assert result.kernels["microbatch"].to_pylist() == [1]
