"""What is inferred where no call stack speaks: each test is one small trace of operators, threads and kernels."""

from __future__ import annotations

from tests.classify.test_kernels import GEMM, NCCL, kernels, run
from tests.kineto_file import AUTOGRAD, MAIN, KinetoFile

NODE = "autograd::engine::evaluate_function: "


def operator(file: KinetoFile, name: str, at: int, number: int | None = None, thread: int = MAIN) -> None:
    """An operator of 40 ns that launches one kernel, named after it; the number is its sequence number."""
    numbered = {} if number is None else {"Sequence number": number}
    file.operator(name, at, at + 40, thread, **numbered)
    file.kernel(f"{name} {at}", at + 20, at + 30, launched=at + 10, thread=thread)


def phases(file: KinetoFile, folder) -> dict[str, tuple[str, int | None]]:
    """Kernel → its phase and its micro-batch."""
    table = kernels(file, folder)
    microbatches = [None if value != value else int(value) for value in table.microbatch.astype(float)]
    return dict(zip(table.name, zip(table.phase, microbatches, strict=True), strict=True))


def test_a_training_step_falls_apart_by_zeroing_counting_and_sequence_numbers(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::zero_", 100, 7)
    operator(file, "aten::to", 200, 7)
    operator(file, "aten::mm", 300, 7)
    operator(file, "aten::add_", 400, 8)
    operator(file, "aten::ones_like", 500)
    operator(file, NODE + "MmBackward0", 600, 7, AUTOGRAD)
    operator(file, "aten::mul_", 800, 8)
    file.kernel("L2NormFunctor", 960, 970, launched=950)
    operator(file, "aten::pow", 1_000)
    file.annotation("Optimizer.step#FusedAdam.step", 1_100, 1_300)
    operator(file, "aten::copy_", 1_400)
    operator(file, "aten::div", 1_500, 8)
    assert phases(file, tmp_path) == {
        "aten::zero_ 100": ("other", None),
        "aten::to 200": ("forward", 0),
        "aten::mm 300": ("forward", 0),
        "aten::add_ 400": ("other", None),
        "aten::ones_like 500": ("backward", 0),
        f"{NODE}MmBackward0 600": ("backward", 0),
        "aten::mul_ 800": ("other", None),
        "L2NormFunctor": ("optimizer", None),
        "aten::pow 1000": ("optimizer", None),
        "aten::copy_ 1400": ("optimizer", None),
        "aten::div 1500": ("other", None),
    }


def test_without_zeroing_nothing_shows_where_the_first_forward_step_begins(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::to", 200, 7)
    operator(file, "aten::mm", 300, 7)
    operator(file, NODE + "MmBackward0", 600, 7, AUTOGRAD)
    assert phases(file, tmp_path)["aten::to 200"] == ("unknown", None)


def test_forward_and_backward_work_that_interleaves_is_distinguished_by_sequence_numbers(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::zero_", 50, 1)
    for number in (1, 2):
        operator(file, "aten::mm", 100 * number, number)
    # The second micro-batch's forward operators run between the first one's backward nodes.
    operator(file, NODE + "B", 300, 2, AUTOGRAD)
    operator(file, "aten::mm", 400, 3)
    operator(file, NODE + "B", 500, 1, AUTOGRAD)
    operator(file, "aten::mm", 600, 4)
    operator(file, NODE + "B", 700, 4, AUTOGRAD)
    operator(file, NODE + "B", 900, 3, AUTOGRAD)
    file.annotation("Optimizer.step#AdamW.step", 1_000, 1_300)
    result = run(file, tmp_path)
    assert result.steps.direction.tolist() == [0, 1, 0, 1]
    assert result.steps.microbatch.tolist() == [0, 0, 1, 1]
    told = phases(file, tmp_path)
    assert [told[f"aten::mm {at}"] for at in (100, 200, 400, 600)] == [("forward", number) for number in (0, 0, 1, 1)]
    assert [told[f"{NODE}B {at}"] for at in (300, 500, 700, 900)] == [("backward", number) for number in (0, 0, 1, 1)]


def test_the_end_of_a_training_step_does_not_flow_into_the_next_one_of_the_file(tmp_path):
    file = KinetoFile()
    for step, begin in ((1, 0), (2, 5_000)):
        file.annotation(f"ProfilerStep#{step}", begin, begin + 5_000)
        operator(file, "aten::zero_", begin + 100, step)
        operator(file, "aten::mm", begin + 300, step)
        operator(file, NODE + "MmBackward0", begin + 600, step, AUTOGRAD)
        file.annotation("Optimizer.step#AdamW.step", begin + 1_000, begin + 1_300)
        operator(file, "aten::copy_", begin + 1_400)
    told = phases(file, tmp_path)
    assert told["aten::copy_ 1400"] == told["aten::copy_ 6400"] == ("optimizer", None)
    assert told["aten::mm 300"] == told["aten::mm 5300"] == ("forward", 0)


def test_outputs_recomputed_in_a_hook_are_recomputation_and_summed_gradients_are_not(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.operator("CheckpointWithoutOutputFunction", 100, 200, **{"Sequence number": 7})
    file.operator("aten::layer_norm", 110, 190)
    node = NODE + "CheckpointWithoutOutputFunctionBackward"
    file.operator(node, 600, 900, AUTOGRAD, **{"Sequence number": 7})
    file.operator("CheckpointWithoutOutputFunctionBackward", 610, 650, AUTOGRAD, **{"Sequence number": 7})
    file.kernel("own", 630, 640, launched=620, thread=AUTOGRAD)
    file.operator("aten::layer_norm", 660, 760, AUTOGRAD)
    file.operator("aten::native_layer_norm", 670, 750, AUTOGRAD)
    file.kernel("again", 690, 700, launched=680, thread=AUTOGRAD)
    file.operator("aten::add", 800, 850, AUTOGRAD)
    file.kernel("sum", 820, 830, launched=810, thread=AUTOGRAD)
    assert phases(file, tmp_path) == {"own": ("backward", 0), "again": ("recompute", 0), "sum": ("backward", 0)}


def test_around_a_graph_of_the_whole_pass_the_rest_is_reported_and_the_graph_is_not(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::zero_", 100, 7)
    graph = {"graph id": 1, "graph node id": 1}
    file.kernel(GEMM, 220, 2_000, launched=200, launcher="cudaGraphLaunch", **graph)
    operator(file, "aten::mul_", 300, 7)
    file.annotation("Optimizer.step#AdamW.step", 400, 500)
    file.kernel("update", 2_100, 2_200, launched=450)
    told = phases(file, tmp_path)
    assert {name: phase for name, (phase, _) in told.items()} == {
        "aten::zero_ 100": "other",
        GEMM: "unknown",
        "aten::mul_ 300": "other",
        "update": "optimizer",
    }


def test_a_graph_launched_from_the_training_loop_can_hold_any_phase(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.python("megatron/training/training.py(900): train_step", 50, 9_900)
    graph = {"graph id": 1, "graph node id": 1}
    file.kernel(GEMM, 220, 2_000, launched=200, launcher="cudaGraphLaunch", **graph)
    file.kernel("plain", 3_000, 3_100, launched=2_900)
    told = phases(file, tmp_path)
    assert (told[GEMM], told["plain"]) == (("unknown", None), ("other", None))


def test_an_optimizers_kernel_without_a_launch_is_known_by_its_name(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 1_000, 10_000)
    file.kernel("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", 100, 200, launched=None)
    file.kernel(NCCL, 1_300, 1_400, launched=1_200)
    table = kernels(file, tmp_path)
    assert table.category.tolist()[0] == "optimizer_computation"
    assert (table.phase_evidence[0], table.phase_rule[0]) == ("kernel_name", "optimizer_update")


def test_a_communication_that_could_be_the_gradient_norm_does_not_make_the_norm_finalisation(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::zero_", 100, 7)
    operator(file, "aten::mm", 300, 7)
    operator(file, NODE + "MmBackward0", 600, 7, AUTOGRAD)
    operator(file, "aten::mul_", 800, 8)
    operator(file, "aten::zeros", 900)
    operator(file, "aten::linalg_vector_norm", 950)
    file.operator("c10d::allreduce_", 1_000, 1_040)
    file.kernel(NCCL, 1_020, 1_030, launched=1_010)
    operator(file, "aten::pow", 1_060)
    file.annotation("Optimizer.step#FusedAdam.step", 1_100, 1_300)
    told = phases(file, tmp_path)
    norm = [told[name][0] for name in ("aten::zeros 900", "aten::linalg_vector_norm 950", NCCL, "aten::pow 1060")]
    assert (told["aten::mul_ 800"][0], norm) == ("other", ["optimizer"] * 4)


def test_without_any_sign_of_the_optimizer_what_lies_between_backward_and_a_bare_reduction_stays_open(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    operator(file, "aten::zero_", 100, 7)
    operator(file, "aten::mm", 300, 7)
    operator(file, NODE + "MmBackward0", 600, 7, AUTOGRAD)
    operator(file, "aten::linalg_vector_norm", 800)
    file.operator("c10d::allreduce_", 900, 940)
    file.kernel(NCCL, 920, 930, launched=910)
    told = phases(file, tmp_path)
    assert told["aten::linalg_vector_norm 800"] == told[NCCL] == ("unknown", None)


def combined_steps(file: KinetoFile, counted: bool = True) -> None:
    """Two forward steps, the backward step of the first in and after the second; the engine starts twice in it, once
    for two outputs, so that its own root node stands above these."""
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.annotation("Optimizer.step#AdamW.step", 1_500, 1_600)
    operator(file, "aten::zero_", 100, 7)
    operator(file, "aten::mm", 200, 7)
    operator(file, "aten::gelu", 300, 8)
    operator(file, "aten::ones", 400)
    if counted:
        operator(file, "aten::add_", 450, 9)
    operator(file, "aten::to", 500, 9)
    operator(file, "aten::ones_like", 600)
    operator(file, NODE + "GeluBackward0", 700, 8, AUTOGRAD)
    operator(file, "aten::mm", 800, 9)
    operator(file, "aten::detach", 850, 10)
    operator(file, NODE + "torch::autograd::GraphRoot", 900, 10, AUTOGRAD)
    operator(file, NODE + "MmBackward0", 950, 7, AUTOGRAD)
    operator(file, "aten::gelu", 1_100, 11)
    operator(file, "aten::add_", 1_150, 12)
    operator(file, NODE + "GeluBackward0", 1_200, 11, AUTOGRAD)
    operator(file, NODE + "MmBackward0", 1_300, 9, AUTOGRAD)


def test_the_root_that_the_engine_puts_above_two_outputs_does_not_cut_a_backward_step(tmp_path):
    file = KinetoFile()
    combined_steps(file)
    told = phases(file, tmp_path)
    assert [told[f"{NODE}{name}"] for name in ("GeluBackward0 700", "MmBackward0 950")] == [("backward", 0)] * 2
    assert told["aten::mm 800"] == told["aten::gelu 1100"] == ("forward", 1)
    assert told[f"{NODE}MmBackward0 1300"] == ("backward", 1)


def test_the_counter_of_tokens_divides_two_forward_steps_without_backward_work_between(tmp_path):
    file = KinetoFile()
    combined_steps(file)
    told = phases(file, tmp_path)
    assert told["aten::ones 400"] == ("forward", 0)
    assert told["aten::add_ 450"] == ("other", None)
    assert told["aten::to 500"] == ("forward", 1)


def test_without_a_counter_it_stays_open_which_forward_step_a_kernel_between_two_belongs_to(tmp_path):
    file = KinetoFile()
    combined_steps(file, counted=False)
    told = phases(file, tmp_path)
    assert {told[name][1] for name in ("aten::ones 400", "aten::to 500")} == {None}
    assert told["aten::mm 200"] == ("forward", 0) and told["aten::mm 800"] == ("forward", 1)


def test_an_exchange_in_the_middle_of_a_combined_step_cuts_neither_of_its_halves(tmp_path):
    file = KinetoFile()
    combined_steps(file)
    file.operator("c10d::send", 860, 870)
    told = phases(file, tmp_path)
    assert [told[f"{NODE}{name}"] for name in ("GeluBackward0 700", "MmBackward0 950")] == [("backward", 0)] * 2
    assert told["aten::mm 800"] == told["aten::gelu 1100"] == ("forward", 1)


def test_parameters_gathered_right_after_zeroing_are_no_forward_work(tmp_path):
    groups = [{"pg_name": "5", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "pg_size": 2, "ranks": [0, 1]}]
    file = KinetoFile(world_size=2, groups=groups)
    file.annotation("ProfilerStep#3", 0, 10_000)
    facts = {"Process Group Name": "5", "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP"}
    operator(file, "aten::zero_", 100, 7)
    file.operator("c10d::_allgather_base_", 200, 240, **{"Sequence number": 7})
    file.kernel("ncclDevKernel_AllGather_RING_LL()", 220, 230, launched=210, **facts)
    operator(file, "aten::to", 300, 7)
    operator(file, "aten::mm", 400, 7)
    operator(file, NODE + "MmBackward0", 600, 7, AUTOGRAD)
    told = phases(file, tmp_path)
    assert told["ncclDevKernel_AllGather_RING_LL()"][0] == "other"
    assert told["aten::to 300"] == ("forward", 0)
