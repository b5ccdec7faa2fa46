"""What the classification says of kernels in hard places: each test is one small trace in the profiler's own form."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.kineto_file import AUTOGRAD, KinetoFile
from traceviz_dag.classify.dimensions.communication import job_groups
from traceviz_dag.classify.kernels import Classification, classify
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.kineto.reader import read_kineto

SCHEDULES = "megatron/core/pipeline_parallel/schedules.py(2147): "
FORWARD_STEP = "megatron/core/pipeline_parallel/schedules.py(402): forward_step"
BACKWARD_STEP = "megatron/core/pipeline_parallel/schedules.py(538): backward_step"
GEMM = "nvjet_hsh_64x64"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def run(file: KinetoFile, folder: Path, rules: Path | None = None) -> Classification:
    trace = read_kineto(file.write(folder / "rank_0000.json"))
    topology = unite({0: trace.header})
    return classify(trace, load_rules(rules), job_groups(topology), 0)


def kernels(file: KinetoFile, folder: Path, rules: Path | None = None) -> pd.DataFrame:
    table = run(file, folder, rules).kernels.to_pandas()
    return table.astype({name: object for name in table if str(table[name].dtype) == "category"})


def megatron_step(file: KinetoFile) -> None:
    """One forward and one backward step of a micro-batch inside a training step and the plain schedule."""
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.python("megatron/training/training.py(900): train_step", 50, 9_900)
    file.python(SCHEDULES + "forward_backward_pipelining_without_interleaving", 100, 9_000)
    file.python(FORWARD_STEP, 1_000, 2_000)
    file.python("nn.Module: GPTModel_0", 1_100, 1_900)
    file.operator("aten::mm", 1_200, 1_300, **{"Sequence number": 7})
    file.python(BACKWARD_STEP, 3_000, 5_000)
    file.operator("autograd::engine::evaluate_function: MmBackward0", 3_200, 3_600, AUTOGRAD, **{"Sequence number": 7})


def test_forward_and_backward_are_known_from_stack_and_by_autograd_thread(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.kernel(GEMM, 1_300, 1_400, launched=1_250)
    file.kernel(GEMM, 3_500, 3_700, launched=3_300, thread=AUTOGRAD)
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["fwd_computation", "bwd_computation"]
    assert table.phase_evidence.tolist() == ["call_stack", "call_stack"]
    assert table.microbatch.tolist() == [0, 0] and table.chunk.tolist() == [0, 0]
    assert table.module.tolist()[0] == "GPTModel_0"
    assert table.operator.tolist()[0] == "aten::mm"
    assert table.step.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("end", "layer"), [("3", 3), ("12 of 96", None), ("9" * 30, None), ("\u00b2", None), ("", None)]
)
def test_the_name_of_a_layer_may_end_in_anything(tmp_path, end, layer):
    file = KinetoFile()
    megatron_step(file)
    file.python(f"nn.Module: TransformerLayer_{end}", 1_150, 1_850)
    file.kernel(GEMM, 1_300, 1_400, launched=1_250)
    assert run(file, tmp_path).kernels["layer"].to_pylist() == [layer]


def test_forward_helpers_open_no_phantom_micro_batches(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.python("megatron/core/pipeline_parallel/schedules.py(1385): forward_step_helper", 900, 2_100)
    file.python("megatron/core/pipeline_parallel/schedules.py(295): forward_step_calc_loss", 1_910, 1_990)
    file.python("pretrain_gpt.py(13): forward_step", 1_050, 1_950)
    file.kernel(GEMM, 1_950, 1_960, launched=1_940)
    result = run(file, tmp_path)
    assert len(result.steps) == 2
    assert result.kernels["microbatch"].to_pylist() == [0]


def test_what_lies_outside_the_micro_batches_is_other(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.kernel(GEMM, 210, 220, launched=200)
    file.kernel(GEMM, 9_510, 9_520, launched=9_500)
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["other_computation"] * 2
    assert table.phase_rule.tolist() == ["pipeline_schedule", "training_loop"]
    assert table.microbatch.isna().all()


def test_recomputation_ends_at_the_nested_autograd_engine(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 3_700, 4_900, AUTOGRAD)
    file.operator("CheckpointFunctionBackward", 3_710, 4_890, AUTOGRAD)
    file.python("megatron/core/tensor_parallel/random.py(634): backward", 3_720, 4_880, AUTOGRAD)
    file.python("megatron/core/transformer/transformer_block.py(59): custom_forward", 3_730, 4_000, AUTOGRAD)
    file.python("torch/autograd/graph.py(966): _engine_run_backward", 4_100, 4_800, AUTOGRAD)
    file.operator("autograd::engine::evaluate_function: AddmmBackward0", 4_200, 4_300, AUTOGRAD)
    file.kernel(GEMM, 3_900, 3_950, launched=3_800, thread=AUTOGRAD)
    file.kernel(GEMM, 4_260, 4_290, launched=4_250, thread=AUTOGRAD)
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["bwd_computation_recompute", "bwd_computation"]
    assert table.microbatch.tolist() == [0, 0]


def test_the_first_forward_under_checkpointing_is_no_recomputation(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.python("megatron/core/tensor_parallel/random.py(600): forward", 1_310, 1_800)
    file.python("megatron/core/transformer/transformer_block.py(59): custom_forward", 1_320, 1_790)
    file.kernel(GEMM, 1_500, 1_600, launched=1_400)
    assert kernels(file, tmp_path).category.tolist() == ["fwd_computation"]


def test_overlapped_gradients_are_data_parallel_whatever_launched_them(tmp_path):
    groups = [{"pg_name": "5", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "pg_size": 2, "ranks": [0, 1]}]
    file = KinetoFile(world_size=2, groups=groups)
    megatron_step(file)
    file.python("megatron/core/distributed/param_and_grad_buffer.py(600): start_grad_sync", 3_300, 3_500, AUTOGRAD)
    facts = {"Process Group Name": "5", "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP"}
    reduce_scatter = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()"
    file.kernel(reduce_scatter, 3_500, 4_500, launched=3_400, thread=AUTOGRAD, stream=32, **facts)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert (row["category"], row["dimension"], row["dimension_evidence"]) == ("dp_communication", "dp", "process_group")
    assert row["phase"] == "backward" and pd.isna(row["microbatch"]) and row["launching_microbatch"] == 0
    assert row["role"] == "gradient_synchronisation"


def test_batched_send_receive_without_metadata_is_known_by_its_caller(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.python("megatron/core/pipeline_parallel/p2p_communication.py(280): _communicate", 2_200, 2_800)
    file.kernel(SENDRECV, 2_400, 2_700, launched=2_300, stream=28)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert (row["category"], row["dimension_evidence"]) == ("pp_communication", "call_stack")


def test_a_world_group_in_a_pipeline_call_is_pipeline_communication(tmp_path):
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    file = KinetoFile(world_size=2, groups=groups)
    megatron_step(file)
    file.python("megatron/core/pipeline_parallel/p2p_communication.py(280): _communicate", 2_200, 2_800)
    facts = {"Process Group Name": "0", "Process Group Description": "default_pg", "Collective name": "send"}
    file.kernel(SENDRECV, 2_400, 2_700, launched=2_300, stream=28, **facts)
    file.kernel(NCCL, 9_600, 9_700, launched=9_500, **facts)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["pp", "world"]
    assert table.category.tolist() == ["pp_communication", "other_communication"]


def test_token_counts_on_the_pipeline_group_and_gradient_norms_have_their_own_places(tmp_path):
    names = {"26": "PIPELINE_MODEL_PARALLEL_GROUP", "61": "MODEL_PARALLEL_GROUP", "5": "DATA_PARALLEL_GROUP_WITH_CP"}
    file = KinetoFile(
        world_size=2, groups=[{"pg_name": n, "pg_desc": d, "pg_size": 2, "ranks": [0, 1]} for n, d in names.items()]
    )
    megatron_step(file)
    file.python("megatron/core/distributed/finalize_model_grads.py(560): finalize_model_grads", 6_000, 7_000)
    file.python("megatron/core/optimizer/optimizer.py(1886): step", 7_100, 8_000)
    file.python("megatron/core/optimizer/clip_grads.py(55): get_grad_norm_fp32", 7_200, 7_900)

    def collective(name: str, group: str, launched: int) -> None:
        facts = {"Process Group Name": group, "Process Group Description": names[group], "Collective name": name}
        file.kernel(NCCL, launched + 20, launched + 60, launched=launched, **facts)

    collective("broadcast", "26", 6_100)
    collective("allreduce", "5", 6_300)
    collective("allreduce", "61", 7_300)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["control", "dp", "grad_norm"]
    assert table.category.tolist() == ["other_communication", "dp_communication", "other_communication"]


def test_a_combined_step_holds_one_forward_and_one_backward_step(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.python(
        "megatron/core/pipeline_parallel/combined_1f1b.py(20): combined_1f1b_schedule_for_no_pipelining", 50, 9_900
    )
    combined = "megatron/core/pipeline_parallel/combined_1f1b.py(200): combined_forward_backward_step"
    node = "megatron/core/pipeline_parallel/utils.py(150): "

    def work(at: int, direction: str) -> None:
        file.python(node + direction, at, at + 200)
        file.kernel(GEMM, at + 120, at + 150, launched=at + 100)

    # Warm-up runs one forward alone, cool-down one backward alone.
    file.python(combined, 1_000, 2_000)
    work(1_200, "forward")
    file.python(combined, 3_000, 4_000)
    work(3_100, "backward")
    work(3_500, "forward")
    file.python(combined, 5_000, 6_000)
    work(5_200, "backward")
    result = run(file, tmp_path)
    assert result.kernels["category"].to_pylist() == [
        "fwd_computation",
        "bwd_computation",
        "fwd_computation",
        "bwd_computation",
    ]
    assert result.kernels["microbatch"].to_pylist() == [0, 0, 1, 1]
    assert result.steps.direction.tolist() == [0, 0, 1, 1]


def test_one_graph_launch_gives_all_its_kernels_one_place(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    correlation = file.kernel(
        GEMM, 1_500, 1_600, launched=1_400, launcher="cudaGraphLaunch", **{"graph id": 1, "graph node id": 1}
    )
    file.kernel(
        GEMM, 1_600, 1_700, launched=1_400, correlation=correlation, stream=9, **{"graph id": 1, "graph node id": 2}
    )
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["fwd_computation"] * 2
    assert table.microbatch.tolist() == [0, 0]
    assert table.graph_node_id.tolist() == [1, 2]
    assert set(table.launch_name) == {"cudaGraphLaunch"}


def test_a_lost_launch_row_is_filled_only_between_agreeing_neighbours_of_its_stream(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    file.kernel(GEMM, 1_400, 1_450, launched=1_250)
    file.kernel("lost_inside", 1_460, 1_470, launched=None)
    file.kernel(GEMM, 1_500, 1_600, launched=1_300)
    file.kernel("lost_between", 2_500, 2_600, launched=None)
    file.kernel(GEMM, 3_500, 3_700, launched=3_300, thread=AUTOGRAD)
    table = kernels(file, tmp_path).set_index("name")
    inside, between = table.loc["lost_inside"], table.loc["lost_between"]
    assert (inside.category, inside.phase_evidence, inside.microbatch) == ("fwd_computation", "stream_group", 0)
    assert (between.category, between.phase_evidence) == ("unclassified", "none")
    assert inside.step_evidence == "start" and pd.isna(inside.launch_start_ns)


def test_kernels_belong_to_the_step_that_launched_them_and_strays_to_the_nearest(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#1", 1_000, 2_000)
    file.annotation("ProfilerStep#2", 2_000, 3_000)
    file.kernel("crosses", 2_100, 2_200, launched=1_900)
    file.kernel("before", 100, 200, launched=50)
    file.kernel("after", 4_000, 4_100, launched=3_900)
    table = kernels(file, tmp_path).set_index("name")
    assert table.step.to_dict() == {"crosses": 1, "before": 1, "after": 2}
    assert table.step_evidence.to_dict() == {"crosses": "launch", "before": "nearest", "after": "nearest"}


def test_without_stacks_the_autograd_thread_still_shows_backward_and_the_rest_stays_open(tmp_path):
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.operator("aten::mm", 1_200, 1_300)
    file.operator("autograd::engine::evaluate_function: MmBackward0", 3_200, 3_600, AUTOGRAD)
    file.annotation("Optimizer.step#AdamW.step", 6_000, 7_000)
    file.kernel(GEMM, 1_300, 1_400, launched=1_250)
    file.kernel(GEMM, 3_500, 3_700, launched=3_300, thread=AUTOGRAD)
    file.kernel(GEMM, 6_500, 6_700, launched=6_300)
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["unclassified", "bwd_computation", "optimizer_computation"]
    assert table.phase_evidence.tolist() == ["none", "call_stack", "annotation"]
    assert table.microbatch.isna().all()


def test_communication_is_more_than_nccl(tmp_path):
    file = KinetoFile()
    names = [
        "void deep_ep::intranode::dispatch<8>()",
        "mscclKernel_Sum",
        "nvshmem_barrier_all_kernel",
        "void userbuffers_fp16_sum()",
        "void dpsk::ep::combine()",
    ]
    for index, name in enumerate(names):
        file.kernel(name, 100 * index, 100 * index + 50, launched=None)
    table = kernels(file, tmp_path)
    assert set(table.kind) == {"communication"}
    assert table.set_index("name").loc["void deep_ep::intranode::dispatch<8>()"].dimension == "ep"


def test_one_stream_says_nothing_of_a_default_group_that_carries_everything(tmp_path):
    file = KinetoFile()
    file.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 100, 300, AUTOGRAD)
    file.kernel(NCCL, 210, 290, launched=200, thread=AUTOGRAD, stream=84)
    file.kernel(SENDRECV, 400, 500, launched=390, stream=84)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["dp", "unknown"]
    assert table.category.tolist() == ["dp_communication", "unclassified"]


def test_a_stream_of_one_known_group_shows_the_kernels_without_metadata(tmp_path):
    groups = [{"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]}]
    file = KinetoFile(world_size=2, groups=groups)
    megatron_step(file)
    facts = {
        "Process Group Name": "3",
        "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP",
        "Collective name": "allreduce",
    }
    file.kernel(NCCL, 1_400, 1_450, launched=1_350, stream=20, **facts)
    file.kernel(NCCL, 1_500, 1_550, launched=1_450, stream=20)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["tp", "tp"]
    assert table.dimension_evidence.tolist() == ["process_group", "stream_group"]
    assert table.category.tolist() == ["fwd_communication"] * 2


def test_hybridep_moves_tokens_of_experts_and_plans_and_permutes_on_its_own(tmp_path):
    groups = [
        {"pg_name": "1", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 2]},
        {"pg_name": "2", "pg_desc": "EXPERT_TENSOR_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]},
    ]
    file = KinetoFile(world_size=4, groups=groups)
    megatron_step(file)
    file.python("megatron/core/transformer/moe/fused_a2a.py(90): hybrid_ep_dispatch", 1_310, 1_890)
    names = (
        "void ag_nvl_kernel<1024>(void**, void*, int, long*)",
        "void hybrid_ep::scan<512, 108, 8, 1, 2>(bool const*)",
        "void permute_preprocessing_kernel<256, 32>(bool*, int*)",
        "void hybrid_ep::device_sync_kernel<8>(unsigned int*, unsigned int*)",
        "void hybrid_ep::dispatch_kernel<unsigned short>(hybrid_ep::dispatch_kernel_param_t<unsigned short>)",
        "void permute_kernel<512, unsigned short, float, float>(unsigned short*)",
    )
    for number, name in enumerate(names):
        file.kernel(name, 1_400 + 20 * number, 1_410 + 20 * number, launched=1_350 + 20 * number)
    table = kernels(file, tmp_path)
    moves = ["ep", None, None, "ep", "ep", None]
    assert table.dimension.astype(object).where(table.dimension.notna(), None).tolist() == moves
    assert table.kind.tolist() == ["communication" if dimension else "computation" for dimension in moves]
    assert set(table.phase) == {"forward"} and set(table.microbatch) == {0}


def test_layers_of_several_classes_have_numbers_of_their_own_and_further_tokens_none(tmp_path):
    file = KinetoFile()
    megatron_step(file)
    modules = ("MambaLayer_0", "TransformerLayer_0", "MLPLayer_0", "MambaLayer_1", "MultiTokenPredictionLayer_0")
    for number, name in enumerate(modules):
        file.python(f"nn.Module: {name}", 1_310 + 100 * number, 1_390 + 100 * number)
        if name.startswith("MultiToken"):
            file.python("nn.Module: TransformerLayer_1", 1_320 + 100 * number, 1_380 + 100 * number)
        file.kernel(GEMM, 1_360 + 100 * number, 1_370 + 100 * number, launched=1_340 + 100 * number)
    table = kernels(file, tmp_path)
    assert table.layer.tolist()[:4] == [0, 1, 2, 3] and pd.isna(table.layer[4])
    assert table.module.tolist()[4] == "TransformerLayer_1"
    assert set(table.category) == {"fwd_computation"}


@pytest.mark.parametrize(
    ("beside", "dimension", "candidates"),
    [
        ((), "ep", []),
        (("MambaSplitConv1dScanCombinedFn",), "cp", []),
        (("MambaSplitConv1dScanCombinedFn", "_moe_permute_mask_map"), "unknown", ["cp,ep"]),
    ],
)
def test_an_all_to_all_without_group_moves_tokens_unless_layers_mix_sequences(tmp_path, beside, dimension, candidates):
    file = KinetoFile(world_size=4)
    megatron_step(file)
    for number, name in enumerate(beside):
        file.operator(name, 1_310 + 10 * number, 1_315 + 10 * number)
    file.operator("_AllToAll", 1_330, 1_390)
    file.operator("c10d::alltoall_base_", 1_340, 1_380)
    file.kernel(SENDRECV, 1_400, 1_450, launched=1_350)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == [dimension] and table.dimension_candidates.dropna().tolist() == candidates
    assert table.dimension_rule.tolist() == ["expert_all_to_all_operator"]


def test_the_largest_context_exchanges_keys_over_the_group_that_sums_gradients(tmp_path):
    ranks = list(range(4))
    groups = [
        {"pg_name": "1", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "pg_size": 4, "ranks": ranks},
        {"pg_name": "2", "pg_desc": "HYBRID_DP_CP_GROUP_2", "pg_size": 2, "ranks": [0, 1]},
    ]
    file = KinetoFile(world_size=4, groups=groups)
    megatron_step(file)
    file.operator("AttnFuncWithCPAndKVAllGather", 1_310, 1_590)
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for number, (start, inside) in enumerate(((1_400, 1_350), (1_500, 1_450), (1_700, 1_650))):
        group = groups[1 if number == 1 else 0]
        facts = {"Process Group Name": group["pg_name"], "Process Group Description": group["pg_desc"]}
        file.kernel(gather, start, start + 20, launched=inside, **facts, **{"Collective name": "_allgather_base"})
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["cp", "cp", "dp"]
    assert table.microbatch.tolist()[:2] == [0, 0] and pd.isna(table.microbatch[2])


def test_ambiguous_rank_sets_stay_unknown_with_their_candidates(tmp_path):
    groups = [
        {"pg_name": "1", "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "2", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "3", "pg_desc": "DATA_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]},
    ]
    file = KinetoFile(world_size=2, groups=groups)
    megatron_step(file)
    facts = {"Process Group Name": "1", "Process Group Ranks": "[0, 1]", "Collective name": "allreduce"}
    file.kernel(NCCL, 1_400, 1_450, launched=1_350, stream=20, **facts)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert row["dimension"] == "unknown" and row["category"] == "unclassified"
    assert {"tp", "dp"} <= set(row["dimension_candidates"].split(","))


def test_plain_data_parallel_training_gives_what_its_evidence_allows(tmp_path):
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    file = KinetoFile(world_size=2, groups=groups)
    file.python("train.py(10): main", 0, 10_000)
    file.python("nn.Module: DistributedDataParallel_0", 1_000, 2_000)
    file.python("torch/_tensor.py(500): backward", 3_000, 5_000)
    file.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 3_500, 3_900, AUTOGRAD)
    facts = {"Process Group Name": "0", "Process Group Description": "default_pg", "Collective name": "allreduce"}
    file.kernel(GEMM, 1_400, 1_450, launched=1_350)
    file.kernel(NCCL, 3_700, 3_850, launched=3_600, thread=AUTOGRAD, stream=20, **facts)
    file.kernel(GEMM, 8_700, 8_850, launched=8_600)
    table = kernels(file, tmp_path)
    assert table.category.tolist() == ["fwd_computation", "dp_communication", "unclassified"]


def test_a_users_rule_comes_before_the_built_in_ones(tmp_path):
    rules = tmp_path / "mine.toml"
    rules.write_text(
        '[[frame]]\nname = "my_evaluation"\npatterns = ["*my_eval.py: *"]\nphase = "other"\n'
        '[[kernel]]\nname = "my_ring"\npatterns = ["my_ring_*"]\nkind = "communication"\ndimension = "cp"\n'
    )
    file = KinetoFile()
    megatron_step(file)
    file.python("my_eval.py(10): evaluate_now", 1_310, 1_390)
    file.kernel(GEMM, 1_400, 1_410, launched=1_350)
    file.kernel("my_ring_exchange", 1_500, 1_510, launched=1_450, stream=9)
    table = kernels(file, tmp_path, rules)
    assert table.phase_rule.tolist()[0] == "my_evaluation" and table.category.tolist()[0] == "other_computation"
    assert table.dimension.tolist()[1] == "cp" and table.dimension_rule.tolist()[1] == "my_ring"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[frame]\n", "is no TOML file"),
        ('[[frame]]\nname = "x"\n', "lacks a name or patterns"),
        ('[[frame]]\nname = "x"\npatterns = ["a"]\nphase = "sideways"\n', "'sideways' is not a phase"),
        ('[[frame]]\nname = "x"\npatterns = ["a"]\ncolour = "red"\n', "unknown keys"),
        ('[[frames]]\nname = "x"\npatterns = ["a"]\n', "unknown section"),
    ],
)
def test_a_malformed_rule_file_is_one_clear_error(tmp_path, text, fault):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=fault) as error:
        load_rules(path)
    assert str(path) in str(error.value)
