"""What a communication serves where its group's description is silent: each test is one small trace."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.classify.test_kernels import GEMM, NCCL, SENDRECV, kernels, megatron_step
from tests.kineto_file import AUTOGRAD, KinetoFile

P2P = "megatron/core/pipeline_parallel/p2p_communication.py(280): _communicate"
DESCRIPTIONS = {
    "1": "TENSOR_MODEL_PARALLEL_GROUP",
    "2": "PIPELINE_MODEL_PARALLEL_GROUP",
    "3": "CONTEXT_PARALLEL_GROUP",
    "4": "EXPERT_TENSOR_PARALLEL_GROUP",
}


def described(*names: str) -> KinetoFile:
    """A trace of rank 0 of two whose header describes these groups, each of both ranks."""
    groups = [{"pg_name": name, "pg_desc": DESCRIPTIONS[name], "pg_size": 2, "ranks": [0, 1]} for name in names]
    default = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    return KinetoFile(world_size=2, groups=[default, *groups])


def undescribed(**ranks: list[int]) -> KinetoFile:
    """A trace of rank 0 of four; groups t, p, d and e are TP, PP, DP and embedding, and others stay without a name.

    Each group stands in the header twice: described under its own name, and undescribed with ``u`` before it, as one
    that only its ranks show.
    """
    known = {
        "t": "TENSOR_MODEL_PARALLEL_GROUP",
        "p": "PIPELINE_MODEL_PARALLEL_GROUP",
        "d": "DATA_PARALLEL_GROUP",
        "e": "EMBEDDING_GROUP",
        "m": "MODEL_PARALLEL_GROUP",
    }
    groups = []
    for name, members in ranks.items():
        entry = {"pg_name": f"u{name}", "pg_desc": "undefined", "pg_size": len(members), "ranks": members}
        groups.append(entry)
        if name in known:
            groups.append({**entry, "pg_name": name, "pg_desc": known[name]})
    return KinetoFile(world_size=4, groups=groups)


def collective(file: KinetoFile, name: str, group: str, ranks: list[int], launched: int, **more: Any) -> None:
    facts = {"Process Group Name": group, "Process Group Ranks": str(ranks), "Collective name": name}
    file.kernel(NCCL, launched + 20, launched + 60, launched=launched, stream=40, **facts, **more)


def test_the_communicators_frame_knows_more_than_the_annotation_below_it(tmp_path):
    file = described("2", "3")
    megatron_step(file)
    file.python(P2P, 2_200, 2_800)
    file.annotation("nccl:coalesced", 2_250, 2_700)
    file.kernel(SENDRECV, 2_400, 2_700, launched=2_300, stream=28)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert (row["dimension"], row["dimension_rule"]) == ("pp", "pipeline_send_receive")


def test_a_pipeline_sends_between_operators_and_ring_attention_inside_one(tmp_path):
    file = described("2", "3")
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.annotation("nccl:coalesced", 1_000, 1_100)
    file.kernel(SENDRECV, 1_060, 1_200, launched=1_050, stream=28)
    file.operator("AttnFuncWithCPAndKVP2P", 2_000, 2_400)
    file.annotation("nccl:coalesced", 2_100, 2_200)
    file.kernel(SENDRECV, 2_160, 2_300, launched=2_150, stream=32)
    assert kernels(file, tmp_path).dimension.tolist() == ["pp", "cp"]


@pytest.mark.parametrize(("groups", "dimension"), [(("1", "2"), "pp"), (("1",), "world")])
def test_messages_on_the_group_of_all_ranks_are_the_pipelines_where_there_is_one(tmp_path, groups, dimension):
    file = described(*groups)
    facts = {"Process Group Name": "0", "Process Group Description": "default_pg", "Collective name": "send"}
    file.kernel(SENDRECV, 2_400, 2_700, launched=2_300, stream=28, **facts)
    assert kernels(file, tmp_path).dimension.tolist() == [dimension]


@pytest.mark.parametrize(
    ("module", "dimension", "candidates"),
    [("nn.Module: GPTModel_0", "tp", ""), ("nn.Module: MoELayer_0", "unknown", "tp,etp")],
)
def test_a_layers_graph_holds_what_its_layer_communicates(tmp_path, module, dimension, candidates):
    # Megatron creates groups for experts in every job; only a job with experts uses them.
    file = described("1", "4")
    megatron_step(file)
    file.python(module, 1_310, 1_800)
    file.operator("_CudagraphReplayNode", 1_320, 1_700, **{"Sequence number": 8})
    graph = {"launcher": "cudaGraphLaunch", "graph id": 1, "graph node id": 1}
    file.kernel("ncclDevKernel_AllGather_RING_LL", 1_500, 1_600, launched=1_400, **graph)
    (row,) = kernels(file, tmp_path).fillna({"dimension_candidates": ""}).to_dict("records")
    assert (row["dimension"], row["dimension_candidates"]) == (dimension, candidates)
    assert row["category"] == "fwd_communication" and row["microbatch"] == 0


def test_the_collective_and_its_place_distinguish_groups_of_equal_ranks(tmp_path):
    file = undescribed(t=[0, 1], m=[0, 1], p=[0, 2], e=[0, 2])
    megatron_step(file)
    file.python("megatron/core/distributed/finalize_model_grads.py(560): finalize_model_grads", 6_000, 7_000)
    collective(file, "_allgather_base", "ut", [0, 1], 1_400)
    collective(file, "allreduce", "ut", [0, 1], 3_400, thread=AUTOGRAD)
    collective(file, "broadcast", "up", [0, 2], 6_100)
    collective(file, "allreduce", "ux", [0, 2], 6_300)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["tp", "tp", "control", "unknown"]
    assert table.dimension_candidates.tolist()[3] == "embedding,control"
    assert table.category.tolist()[2:] == ["other_communication"] * 2


def test_call_stacks_show_an_undescribed_group_wherever_it_is_used(tmp_path):
    file = undescribed(x=[0, 3])
    megatron_step(file)
    file.python("megatron/core/tensor_parallel/layers.py(700): forward", 1_300, 1_600)
    collective(file, "_allgather_base", "ux", [0, 3], 1_400)
    collective(file, "_reduce_scatter_base", "ux", [0, 3], 3_400, thread=AUTOGRAD)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["tp", "tp"]
    assert table.dimension_rule.tolist() == ["tensor_parallel_region", "same_group_elsewhere"]


def test_gradients_on_a_group_that_no_source_lists_may_be_those_of_experts(tmp_path):
    file = undescribed(x=[0, 3])
    megatron_step(file)
    file.operator("GroupedGemm", 1_310, 1_350)
    file.python("megatron/core/distributed/param_and_grad_buffer.py(600): start_grad_sync", 3_300, 3_500, AUTOGRAD)
    collective(file, "reduce_scatter_tensor_coalesced", "ux", [0, 3], 3_400, thread=AUTOGRAD)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert (row["dimension"], row["dimension_candidates"]) == ("unknown", "dp,edp")
    assert row["category"] == "dp_communication"


def test_the_token_dispatcher_gathers_for_experts_whatever_function_does_it(tmp_path):
    file = undescribed(x=[0, 3])
    megatron_step(file)
    file.python("megatron/core/transformer/moe/token_dispatcher.py(400): dispatch_postprocess", 1_300, 1_800)
    file.python("megatron/core/tensor_parallel/mappings.py(90): _gather_along_first_dim", 1_350, 1_750)
    collective(file, "_allgather_base", "ux", [0, 3], 1_400)
    (row,) = kernels(file, tmp_path).to_dict("records")
    assert (row["dimension"], row["dimension_candidates"]) == ("unknown", "ep,etp")
    assert row["category"] == "fwd_communication" and row["microbatch"] == 0


def test_a_communication_that_may_be_anything_is_no_micro_batchs_work(tmp_path):
    file = undescribed(t=[0, 1], d=[0, 1])
    megatron_step(file)
    collective(file, "_allgather_base", "ut", [0, 1], 1_400)
    row = kernels(file, tmp_path).iloc[0]
    assert row.dimension == "unknown" and row.dimension_candidates == "tp,dp"
    assert row.microbatch != row.microbatch and row.launching_microbatch == 0


def test_a_message_without_a_launch_is_known_by_its_stream(tmp_path):
    file = described("2", "3")
    file.annotation("ProfilerStep#3", 0, 10_000)
    file.annotation("nccl:coalesced", 1_000, 1_100)
    file.kernel(SENDRECV, 1_060, 1_200, launched=1_050, stream=28)
    file.kernel(SENDRECV, 1_300, 1_400, launched=None, stream=28)
    file.kernel(GEMM, 1_060, 1_200, launched=1_150)
    table = kernels(file, tmp_path)
    lost = table[(table.name == SENDRECV) & table.launch_start_ns.isna()].iloc[0]
    assert (lost.dimension, lost.dimension_evidence) == ("pp", "stream_group")


def test_a_group_of_which_no_source_shows_lists_what_could_have_such_a_collective_there(tmp_path):
    file = undescribed()
    megatron_step(file)
    collective(file, "_allgather_base", "ux", [0, 3], 1_400)
    collective(file, "send", "uy", [0, 2], 6_300)
    table = kernels(file, tmp_path)
    assert table.dimension.tolist() == ["unknown", "unknown"]
    assert table.category.tolist() == ["unclassified", "unclassified"]
    gathered, sent = (set(text.split(",")) for text in table.dimension_candidates)
    assert gathered == {"tp", "cp", "dp", "pp"}
    assert "pp" in sent and sent.isdisjoint({"dp", "embedding", "grad_norm"})


@pytest.mark.parametrize("name", [SENDRECV, "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"])
def test_an_annotation_shows_operation_size_and_type_of_a_kernel_whose_name_does_not(tmp_path, name):
    file = KinetoFile(world_size=8)
    stated = {"Input Dims": [[4, 1000]], "Input type": ["c10::Half"]}
    inputs = {"Concrete Inputs": ["", "3", "77", "0", "", "[]", "[]", "8"], "Input Dims": [[[4, 1000]], *[[]] * 7]}
    for start, kernel, annotation in (
        (1_000, name, "all_reduce"),
        (3_000, NCCL, "_all_gather_base"),
        (5_000, name, "send"),
    ):
        file.operator("record_param_comms", start, start + 900, **inputs)
        file.annotation(f"nccl:{annotation}", start + 10, start + 800, **stated)
        file.kernel(kernel, start + 500, start + 900, launched=start + 50, stream=40)
    told, named, message = kernels(file, tmp_path).to_dict("records")
    assert (told["collective"], told["dtype"], told["in_elements"], told["group_size"]) == (
        "all_reduce",
        "Half",
        4_000,
        8,
    )
    assert pd.isna(named["collective"]), "what its own name says is not overruled"
    assert pd.isna(message["collective"]) and message["group_size"] == 8
