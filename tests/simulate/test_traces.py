"""Trace files: what a reader of real traces relies on, row by row, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.simulate.conftest import SOME_CONFIGURATIONS, Job, nanoseconds
from traceviz_dag.simulate.settings import Era

GPU_ROWS = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_ROWS = ("python_function", "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


def _complete(trace: dict, *categories: str) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def _key(event: dict) -> tuple[int, int]:
    return event["args"]["correlation"], event["args"].get("graph node id", -1)


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_truth_and_file_agree_row_by_row(job_of: Callable[[str], Job], name: str):
    job = job_of(name)
    rank = job.settings.world - 1
    rows = {_key(event): event for event in _complete(job.trace(rank), *GPU_ROWS)}
    truth = job.truth(rank)
    assert len(truth) == len(rows) > 50
    for kernel in truth.itertuples():
        event = rows[kernel.correlation, kernel.graph_node_id]
        assert (nanoseconds(event["ts"]), nanoseconds(event["dur"])) == (kernel.ts_ns, kernel.dur_ns)
        assert (event["name"], event["args"]["stream"]) == (kernel.name, kernel.stream)


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_kernels_start_after_their_launch(job_of: Callable[[str], Job], name: str):
    job = job_of(name)
    trace = job.trace(0)
    launches = {event["args"]["correlation"]: event for event in _complete(trace, "cuda_runtime", "cuda_driver")}
    for event in _complete(trace, *GPU_ROWS):
        launch = launches[event["args"]["correlation"]]
        assert nanoseconds(event["ts"]) >= nanoseconds(launch["ts"]) + nanoseconds(launch["dur"])


def test_computation_occupies_every_processor(job_of: Callable[[str], Job]):
    """All of it is as fast as the whole GPU's memory or arithmetic, which less than a block per SM cannot be."""
    kernels = [event for event in _complete(job_of("experts").trace(0), "kernel") if "nccl" not in event["name"]]
    assert len({event["name"] for event in kernels}) > 20
    assert min((event["args"]["blocks per SM"], event["name"]) for event in kernels)[0] >= 1


@pytest.mark.parametrize("name", SOME_CONFIGURATIONS)
def test_host_rows_nest_and_name_their_parents(job_of: Callable[[str], Job], name: str):
    by_thread = defaultdict(list)
    for event in _complete(job_of(name).trace(0), *HOST_ROWS):
        begin = nanoseconds(event["ts"])
        by_thread[event["tid"]].append((begin, -nanoseconds(event["dur"]), event))
    for rows in by_thread.values():
        stack: list[tuple[int, dict]] = []
        for begin, minus_length, event in sorted(rows, key=lambda row: row[:2]):
            while stack and stack[-1][0] <= begin:
                stack.pop()
            end = begin - minus_length
            assert not stack or end <= stack[-1][0], (event["name"], stack[-1][1]["name"])
            if event["cat"] == "python_function":
                around = [outer for _, outer in stack if outer["cat"] == "python_function"]
                parent = around[-1]["args"]["Python id"] if around else None
                assert event["args"]["Python parent id"] == parent
            stack.append((end, event))


@pytest.mark.parametrize("name", ["interleaved", "experts", "combined", "layer_graphs"])
def test_identifiers_are_unique(job_of: Callable[[str], Job], name: str):
    trace = job_of(name).trace(0)
    for categories, key in (
        (("python_function",), "Python id"),
        (("cpu_op", "user_annotation"), "External id"),
        (("cuda_runtime", "cuda_driver"), "correlation"),
    ):
        numbers = [event["args"][key] for event in _complete(trace, *categories)]
        assert len(numbers) == len(set(numbers)) > 0


@pytest.mark.parametrize("name", ["interleaved", "experts", "combined", "ring_attention"])
def test_backward_rows_name_nodes_that_forward_rows_made(job_of: Callable[[str], Job], name: str):
    operators = [event for event in _complete(job_of(name).trace(0), "cpu_op") if "Sequence number" in event["args"]]
    made = {e["args"]["Sequence number"] for e in operators if e["args"]["Fwd thread id"] == 0}
    run = [e for e in operators if e["args"]["Fwd thread id"] == 1 and e["name"].startswith("autograd::engine")]
    assert run
    assert {event["args"]["Sequence number"] for event in run} <= made
    names: dict[int, str] = {}
    for event in run:
        assert names.setdefault(event["args"]["Sequence number"], event["name"]) == event["name"]


def test_communication_facts_follow_the_rules_of_point_16(job_of: Callable[[str], Job]):
    facts_of = {event["args"].get("Collective name") for event in _complete(job_of("interleaved").trace(0), "kernel")}
    assert {None, "_allgather_base", "reduce_scatter_tensor_coalesced", "allgather_into_tensor_coalesced"} <= facts_of
    exchanges = [e for e in _complete(job_of("interleaved").trace(0), "kernel") if "SendRecv" in e["name"]]
    assert exchanges and all("Process Group Name" not in event["args"] for event in exchanges)
    single = [e for e in _complete(job_of("overlapped_p2p").trace(0), "kernel") if "SendRecv" in e["name"]]
    assert any(event["args"].get("Collective name") == "send" for event in single)
    # With two stages, half of the overlapped messages run on the world's communicator.
    described = {event["args"].get("Process Group Description") for event in single}
    assert described >= {"PIPELINE_MODEL_PARALLEL_GROUP", "default_pg"}
    graph = [e for e in _complete(job_of("layer_graphs").trace(0), "kernel") if "graph id" in e["args"]]
    assert graph and all("Collective name" not in event["args"] for event in graph)


def test_eras_differ_in_streams_names_and_facts(job_of: Callable[[str], Job]):
    newest, old = job_of("no_overlap"), job_of("old_torch")
    for job, own_stream in ((newest, False), (old, True)):
        trace = job.trace(0)
        gathers = [e for e in _complete(trace, "kernel") if e["args"].get("Collective name") == "_allgather_base"]
        tensor = [e for e in gathers if e["args"]["Group size"] == job.settings.tp]
        assert tensor
        assert all(("Seq" in event["args"]) is not own_stream for event in tensor)
        assert any(event["args"]["stream"] == 7 for event in tensor) is not own_stream
        assert all(event["name"].startswith("ncclKernel_") is own_stream for event in tensor)
    config = old.trace(0)["distributedInfo"]["pg_config"]
    assert {group["pg_desc"] for group in config} == {"default_pg", "undefined"}
    assert "baseTimeNanoseconds" not in old.trace(0)
    assert old.settings.era is Era.TORCH_2_3


def test_headers_hold_this_ranks_groups_alone(job_of: Callable[[str], Job]):
    job = job_of("experts")
    names: dict[str, tuple[str, list[int]]] = {}
    for rank in range(job.settings.world):
        info = job.trace(rank)["distributedInfo"]
        assert (info["rank"], info["world_size"]) == (rank, job.settings.world)
        for group in info["pg_config"]:
            assert rank in group["ranks"]
            assert names.setdefault(group["pg_name"], (group["pg_desc"], group["ranks"]))[1] == group["ranks"]


def test_metadata_names_threads_and_streams(job_of: Callable[[str], Job]):
    trace = job_of("interleaved").trace(1)
    rows = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    threads = [event["args"]["name"] for event in rows if event["name"] == "thread_name"]
    assert "stream 7 " in threads
    assert {name.split("(")[-1] for name in threads if "(" in name} == {
        "python3.12)",
        "pt_main_thread)",
        "pt_autograd_0)",
    }
    streams = {event["args"]["stream"] for event in _complete(trace, *GPU_ROWS)}
    assert {f"stream {stream} " for stream in streams} <= set(threads)
    assert {event["tid"] for event in _complete(trace, "cpu_op")} == {
        event["tid"] for event in rows if "(pt_" in str(event["args"].get("name"))
    }


def test_without_stacks_no_python_row_remains(job_of: Callable[[str], Job]):
    trace = job_of("without_stacks").trace(0)
    assert not _complete(trace, "python_function")
    assert "with_stack" not in trace
    assert _complete(trace, "cpu_op") and _complete(trace, "user_annotation")


def test_whole_graph_has_one_launch_for_all_micro_batches(job_of: Callable[[str], Job]):
    job = job_of("whole_graph")
    truth = job.truth(0)
    graph = truth[truth["graph_id"] >= 0]
    assert graph["correlation"].nunique() == 1
    assert set(graph["microbatch"]) >= set(range(job.settings.microbatches))


def test_clocks_of_nodes_differ_as_the_truth_says(job_of: Callable[[str], Job]):
    job = job_of("skewed")
    truth = job.truths()
    collectives = truth[truth["role"] == "grad_norm"].assign(
        local_end=lambda t: t["ts_ns"] + t["dur_ns"], true_end=lambda t: t["true_ts_ns"] + t["dur_ns"]
    )
    assert collectives["clock_offset_ns"].nunique() == job.settings.world
    shift = collectives["local_end"] - collectives["true_end"] - collectives["clock_offset_ns"]
    assert shift.max() - shift.min() < 1_000
    between = collectives.groupby(collectives["rank"] // job.settings.node_size)["clock_offset_ns"].mean()
    assert abs(between.diff().dropna()).min() > 20_000
