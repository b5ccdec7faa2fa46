"""Gaps of computation: what blocked, what the host did, and that nothing is lost or counted twice."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.kineto_file import AUTOGRAD, KinetoFile
from traceviz_dag.analyze.gaps.gpu_gaps import gpu_gaps_table
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.classify.dimensions.communication import job_groups
from traceviz_dag.classify.kernels import classify
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.read.kineto.reader import read_kineto

GEMM, REDUCE = "nvjet_hsh_64x64", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TO_HOST = "Memcpy DtoH (Device -> Pageable)"
SUMS = ("duration_ns", "blocked_ns", "starved_ns", "unexplained_ns")


def a_step(end: int = 100_000) -> KinetoFile:
    file = KinetoFile()
    file.annotation("ProfilerStep#3", 0, end)
    file.python("megatron/training/training.py(900): train_step", 10, end - 10)
    return file


def gaps_of(file: KinetoFile, folder) -> tuple[pa.Table, pa.Table]:
    """The gaps, and the windows of overlap that they must fill."""
    trace = read_kineto(file.write(folder / "rank_0000.json"))
    classified = classify(trace, load_rules(), job_groups(unite({0: trace.header})), None)
    steps = classified.profiler_steps
    windows = list(zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))
    kernels = classified.kernels
    gaps = gpu_gaps_table(trace, classified.stacked, kernels, windows, classified.synchronizations)
    return gaps, overlap_table(kernels, windows, kernels)


def rows(file: KinetoFile, folder) -> list[dict[str, object]]:
    return gaps_of(file, folder)[0].to_pylist()


def test_a_gap_is_blocked_by_the_communication_before_it_and_starved_by_the_host(tmp_path):
    file = a_step()
    file.kernel(GEMM, 1_000, 10_000, launched=500)
    # An all-reduce on the same stream ends at 20,000; the next kernel is launched at 34,000, by a slow loader.
    file.kernel(REDUCE, 10_000, 20_000, launched=600)
    file.python("torch/utils/data/dataloader.py(700): __next__", 15_000, 33_000)
    file.kernel(GEMM, 35_000, 99_000, launched=34_000)
    begin, gap, end = rows(file, tmp_path)
    assert [begin[name] for name in SUMS] == [1_000, 0, 510, 490]
    assert (gap["start_ns"], gap["duration_ns"]) == (10_000, 25_000)
    # The call that launches takes 10 ns; then the kernel starts 990 ns later for no reason that is known.
    assert (gap["blocked_ns"], gap["starved_ns"], gap["unexplained_ns"]) == (10_000, 14_010, 990)
    assert (gap["producer_evidence"], gap["host_work"], gap["doing_ns"]) == ("order", "data_loading", 13_000)
    assert gap["doing"] == "torch/utils/data/dataloader.py(700): __next__"
    assert gap["caller"] == "megatron/training/training.py(900): train_step"
    assert (end["duration_ns"], end["kernel_id"], end["starved_ns"]) == (1_000, None, 1_000)


def test_the_tail_of_a_window_in_which_communication_runs_is_blocked_and_not_starved(tmp_path):
    file = a_step()
    file.kernel(GEMM, 0, 40_000, launched=10)
    file.kernel(REDUCE, 45_000, 60_000, launched=600, stream=20)
    file.kernel(REDUCE, 60_000, 90_000, launched=700, stream=20)
    ended = [row for row in rows(file, tmp_path) if row["start_ns"] >= 40_000]
    assert sum(row["duration_ns"] for row in ended) == 60_000
    assert sum(row["blocked_ns"] for row in ended) == 45_000
    assert ended[-1]["starved_ns"] == 10_000, "nothing runs in the last 10 us"


@pytest.mark.parametrize("launched", [700, None])
def test_what_ends_the_last_gap_of_a_window_may_follow_it(tmp_path, launched):
    """A GPU that lags behind its host is not idle for want of launches where the step of the host ends."""
    file = a_step()
    file.kernel(GEMM, 0, 10_000, launched=10)
    file.kernel(REDUCE, 5_000, 150_000, launched=600, stream=20)
    # A trace that begins late has no launches of what lags behind.
    file.kernel(GEMM, 150_500, 160_000, launched=launched)
    (blocked,) = rows(file, tmp_path)
    assert [blocked[name] for name in SUMS] == [90_000, 90_000, 0, 0]
    assert (blocked["producer_evidence"], blocked["synchronization_id"]) == ("inferred", None)


def test_a_copy_that_was_launched_late_is_the_hosts_delay(tmp_path):
    """Each operation is asked what it waited for in its turn."""
    file = a_step()
    file.kernel(GEMM, 0, 10_000, launched=10)
    file.python("<built-in function collect>", 11_000, 48_000)
    file.kernel("Memcpy HtoD (Pinned -> Device)", 50_000, 60_000, launched=49_000, category="gpu_memcpy")
    file.kernel(GEMM, 60_000, 100_000, launched=49_500)
    late, copied = rows(file, tmp_path)
    assert (late["duration_ns"], late["blocked_ns"], late["starved_ns"]) == (40_000, 0, 39_010)
    assert (late["host_work"], late["doing_ns"]) == ("garbage_collection", 37_000)
    assert [copied[name] for name in SUMS] == [10_000, 10_000, 0, 0]


@pytest.mark.parametrize(
    ("caller", "of_framework"),
    [
        ("my_project/hooks.py(12): log", False),
        ("megatron/core/optimizer/clip_grads.py(9): norm", True),
        ("megatron/training/utils.py(9): reduce_max_stat_across_model_parallel_group", True),
        ("megatron/bridge/training/utils/train_utils.py(9): logical_and_across_model_parallel_group", True),
    ],
)
def test_what_comes_after_a_wait_of_the_host_names_who_waited(tmp_path, caller, of_framework):
    file = a_step()
    file.kernel(GEMM, 0, 40_000, launched=10)
    file.python(caller, 20_000, 43_000)
    file.operator("aten::_local_scalar_dense", 21_000, 42_000)
    file.kernel(TO_HOST, 40_000, 41_000, launched=22_000, category="gpu_memcpy")
    file.row("cuda_runtime", "cudaStreamSynchronize", 23_000, 41_500, correlation=99)
    file.kernel(GEMM, 46_000, 100_000, launched=45_000)
    (gap,) = rows(file, tmp_path)
    assert [gap[name] for name in SUMS] == [6_000, 1_000, 4_010, 990]
    assert (gap["synchronization_caller"], gap["of_framework"]) == (caller, of_framework)


def test_the_backward_pass_is_launched_by_another_thread_and_the_main_one_shows_what_it_does(tmp_path):
    file = a_step()
    file.kernel(GEMM, 0, 10_000, launched=10)
    file.python("torch/_dynamo/convert_frame.py(31): _compile", 12_000, 60_000)
    file.operator("autograd::engine::evaluate_function: MmBackward0", 61_000, 70_000, AUTOGRAD)
    file.kernel(GEMM, 63_000, 100_000, launched=62_000, thread=AUTOGRAD)
    (gap,) = rows(file, tmp_path)
    assert (gap["host_work"], gap["doing_ns"], gap["starved_ns"]) == ("compilation", 48_000, 52_010)


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_to_the_gaps_and_gaps_to_the_time_without_computation(tmp_path, seed):
    """Whatever runs when: streams at once, launches after starts, waits, copies, no launches at all."""
    chance = random.Random(seed)
    file = a_step()
    free = dict.fromkeys((7, 20, 24), 0)
    for number in range(40):
        stream = chance.choice(list(free))
        start = max(free[stream], chance.randrange(95_000))
        end = free[stream] = start + chance.choice((0, 10, 900, 5_000))
        launched = chance.choice((None, max(start - chance.randrange(1, 3_000), 0), start + 500))
        name, category = chance.choice(((GEMM, "kernel"), (REDUCE, "kernel"), (TO_HOST, "gpu_memcpy")))
        file.kernel(name, start, end, launched, chance.choice((100, AUTOGRAD)), stream, category=category)
        if chance.random() < 0.2:
            file.row("cuda_runtime", "cudaDeviceSynchronize", start, start + 700, correlation=5_000 + number)
        if chance.random() < 0.3:
            file.python("aten::item", start, start + chance.randrange(4_000))
    gaps, overlap = gaps_of(file, tmp_path)
    (whole,) = [row for row in overlap.to_pylist() if (row["window_name"], row["dimension"]) == ("step", "all")]
    length = whole["window_end_ns"] - whole["window_start_ns"]
    assert pc.sum(gaps["duration_ns"]).as_py() == length - whole["compute_ns"]
    for row in gaps.to_pylist():
        parts = [row["blocked_ns"], row["starved_ns"], row["unexplained_ns"]]
        assert sum(parts) == row["duration_ns"] > 0
        assert min(parts) >= 0
        assert (row["doing_ns"] or 0) <= row["starved_ns"]
        assert (row["blocked_ns"] > 0) == (row["producer_kernel_id"] is not None)
    starts = gaps["start_ns"].to_pylist()
    ends = [start + row for start, row in zip(starts, gaps["duration_ns"].to_pylist(), strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
