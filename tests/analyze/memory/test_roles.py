"""What the code of a stack does, known from its frames; names that only look like it tell nothing."""

from __future__ import annotations

import pytest

from traceviz_dag.analyze.memory.roles import Role, role_of, roles_of, site_of
from traceviz_dag.read.memory.snapshot import Frame, Stacks


def _frames(*texts: str) -> list[Frame]:
    """Frames as ``file:name``, innermost first; C++ without a file."""
    return [
        Frame(text.rpartition(":")[2], text.rpartition(":")[0], 7) if ".py:" in text else Frame(text, "??", 0)
        for text in texts
    ]


SCRIPT = "job/train_optimized.py:main"
MODULE = "torch/nn/modules/module.py:_call_impl"
ENGINE = "torch::autograd::Engine::evaluate_function(torch::autograd::Node*)"


@pytest.mark.parametrize(
    ("frames", "role"),
    [
        ((), Role.FRAMELESS),
        (("job/model.py:forward", MODULE, SCRIPT), Role.FORWARD),
        (("torch::autograd::VariableType::mul", "job/model.py:forward", SCRIPT), Role.FORWARD),
        (("torch::autograd::generated::MulBackward0::apply()", ENGINE), Role.BACKWARD),
        (("job/layer.py:backward", "torch/autograd/function.py:apply", ENGINE), Role.BACKWARD),
        (("job/layer.py:forward", "megatron/core/tensor_parallel/random.py:backward", ENGINE), Role.RECOMPUTE),
        (("torch/optim/adamw.py:_init_group", "torch/optim/optimizer.py:wrapper", SCRIPT), Role.OPTIMIZER),
        (("job/optimizer.py:step", SCRIPT), Role.OPTIMIZER),
        (("megatron/core/optimizer/distrib_optimizer.py:_copy_model_grads_to_main_grads", SCRIPT), Role.OPTIMIZER),
        (("torch/optim/optimizer.py:zero_grad", SCRIPT), Role.ZERO_GRADIENTS),
        (("job/layers.py:__init__", "pretrain_gpt.py:model_provider", SCRIPT), Role.CONSTRUCTION),
        (("megatron/core/distributed/param_and_grad_buffer.py:__init__", SCRIPT), Role.GRADIENT_BUFFER),
        (("megatron/core/distributed/param_and_grad_buffer.py:start_grad_sync", ENGINE), Role.COMMUNICATION),
        (("torch/distributed/distributed_c10d.py:all_reduce", "job/layer.py:forward", SCRIPT), Role.COMMUNICATION),
        (("pretrain_gpt.py:get_batch", "megatron/core/pipeline_parallel/schedules.py:forward_step"), Role.INPUT),
        (("job/metrics.py:log", SCRIPT), Role.OTHER),
    ],
)
def test_the_role_of_a_stack(frames, role):
    assert role_of(_frames(*frames)) is role


def test_of_the_buffers_of_megatron_the_upper_line_makes_parameters():
    file = "megatron/core/distributed/param_and_grad_buffer.py"
    both = (Frame("__init__", file, 610), Frame("__init__", file, 590))
    assert roles_of(Stacks(both, ((0,), (1,)))) == [Role.GRADIENT_BUFFER, Role.CONSTRUCTION]
    assert roles_of(Stacks(both, ((0,),))) == [Role.GRADIENT_BUFFER]


def test_who_asked_is_the_innermost_frame_that_is_no_librarys():
    assert site_of(_frames("torch/functional.py:einsum", "job/model.py:forward", MODULE)) == "job/model.py:7 forward"
    assert site_of(_frames("torch::autograd::AccumulateGrad::apply()", ENGINE)) == "autograd: AccumulateGrad"
    assert site_of(_frames(MODULE)) == "torch/nn/modules/module.py:7 _call_impl"
