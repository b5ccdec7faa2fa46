"""Figures of Nsight Systems profiles: known values of real ones, additivity, the NVTX tree, differences."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nsys_file import Export, small_export
from traceviz_dag.analyze.nsys.activity import Activity, Clip, activities
from traceviz_dag.analyze.nsys.diff import compare
from traceviz_dag.analyze.nsys.iterations import iteration_measures, iterations_of
from traceviz_dag.analyze.nsys.nccl import communication
from traceviz_dag.analyze.nsys.overlap import gaps, gpu_overlap, overlap_matrix
from traceviz_dag.analyze.nsys.search import search
from traceviz_dag.analyze.nsys.summary import by_name, by_stream
from traceviz_dag.analyze.nsys.tree import RangeNode, range_tree
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.read.nsys.reader import read_nsys

KNOWN = {
    ("mfu_2gpu_before", 0): (1993, 299848812, 253690832, 17172652, 0, 273817787),
    ("mfu_2gpu_before", 1): (2017, 298661551, 256095624, 8229100, 0, 267275916),
    ("h100_2gpu_1s", 0): (1721, 960485009, 22385163, 0, 0, 953946851),
    ("h100_2gpu_1s", 1): (1721, 960307663, 22444359, 0, 0, 953871950),
}
"""Kernels; from the first to the last of them span, compute, communication, hidden, busy, as another program says."""

DURATIONS = ("span_ns", "compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns")


@lru_cache
def _profile(path: Path) -> NsysProfile:
    return read_nsys(path)


def _gpu(path: Path, number: int) -> Activity:
    return activities(_profile(path), load_rules(), [number])[0]


@pytest.mark.parametrize(("export", "gpu"), KNOWN)
def test_overlap_of_real_exports_has_the_known_values(shared_data, export, gpu):
    operations = _gpu(shared_data / "nsys" / f"{export}.sqlite", gpu)
    kernels = operations.take(operations.kernel)
    measures = gpu_overlap(operations, kernels.window(None))
    measured = (len(kernels), measures.span_ns, measures.compute_ns, measures.communication_ns, measures.hidden_ns)
    assert (*measured, measures.busy_ns) == KNOWN[export, gpu]
    assert measures.idle_ns == measures.span_ns - measures.busy_ns


@settings(max_examples=60, deadline=None)
@given(points=st.lists(st.integers(0, 310_000_000), min_size=3, max_size=3, unique=True).map(sorted))
def test_every_duration_over_adjacent_clips_adds_up(shared_data, points):
    path = shared_data / "nsys" / "mfu_2gpu_before.sqlite"
    gpu = _gpu(path, 0)
    low, middle, high = (int(gpu.starts.min()) - 5_000_000 + point for point in points)
    whole, left, right = (Clip(low, high), Clip(low, middle), Clip(middle, high))
    measures = [gpu_overlap(gpu, clip) for clip in (whole, left, right)]
    for name in (*DURATIONS, "kernels"):
        assert getattr(measures[0], name) == getattr(measures[1], name) + getattr(measures[2], name), name
    totals = [{one.name: (one.total_ns, one.count) for one in by_name(gpu, clip)} for clip in (whole, left, right)]
    for name, (total, count) in totals[0].items():
        parts = [side.get(name, (0, 0)) for side in totals[1:]]
        assert (total, count) == (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    nccl = [
        sum(one.total_ns + one.hidden_ns for one in communication(_profile(path), gpu, clip))
        for clip in (whole, left, right)
    ]
    assert nccl[0] == nccl[1] + nccl[2]
    idle = [sum(gap.duration_ns for gap in gaps(gpu, clip)) for clip in (whole, left, right)]
    assert idle == [one.idle_ns for one in measures]
    trees = [_flat(range_tree(_profile(path), gpu, clip)) for clip in (whole, left, right)]
    for range_path, values in trees[0].items():
        parts = [side.get(range_path, (0, 0, 0, 0)) for side in trees[1:]]
        assert values == tuple(a + b for a, b in zip(*parts, strict=True)), range_path


def _flat(roots: list[RangeNode], above: str = "") -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for node in roots:
        path = f"{above}/{node.name}"
        found[path] = (node.count, node.span_ns, node.busy_ns, node.operations)
        found |= _flat(node.children, path)
    return found


def test_a_kernel_that_straddles_the_edge_is_cut_and_counted_once(tmp_path):
    export = Export()
    export.kernel(0, 100, "gemm")
    export.kernel(60, 140, "ncclDevKernel_AllGather_RING_LL", stream=9)
    gpu = activities(read_nsys(export.write(tmp_path / "cut.sqlite")), load_rules())[0]
    left, right = gpu_overlap(gpu, Clip(0, 80)), gpu_overlap(gpu, Clip(80, 200))
    assert (left.kernels, left.compute_ns, left.communication_ns, left.hidden_ns, left.idle_ns) == (2, 80, 20, 20, 0)
    assert (right.kernels, right.compute_ns, right.communication_ns, right.hidden_ns) == (0, 20, 60, 20)
    assert (right.exposed_ns, right.idle_ns) == (40, 60)


def test_a_kernel_without_a_duration_is_counted_where_it_starts_and_the_last_one_in_all_of_the_profile(tmp_path):
    export = Export()
    for start, end in ((0, 100), (80, 80), (100, 100)):
        export.kernel(start, end, "gemm", stream=start)
    profile = read_nsys(export.write(tmp_path / "instants.sqlite"))
    gpu = activities(profile, load_rules())[0]
    halves = [gpu_overlap(gpu, Clip(*window)).kernels for window in ((0, 80), (80, 100), (0, 100))]
    assert halves == [1, 1, 2] and gpu_overlap(gpu).kernels == 3
    assert gpu_overlap(gpu, Clip(0, 10**9).within(profile)).kernels == 3, "it reaches beyond the end"


def test_memory_copies_make_the_gpu_busy(tmp_path):
    gpu = activities(read_nsys(small_export().write(tmp_path / "a.sqlite")), load_rules())[0]
    measures = gpu_overlap(gpu)
    assert (measures.span_ns, measures.busy_ns, measures.idle_ns) == (600, 450, 150)
    assert (measures.memory_ns, measures.memory_alone_ns) == (100, 100)
    (gap,) = gaps(gpu)
    assert (gap.start_ns, gap.end_ns, gpu.names[gpu.name[gap.after]]) == (450, 600, "Memcpy HtoD")
    assert gpu.names[gpu.name[gap.before]] == "gemm"
    assert {one.stream: one.busy_ns for one in by_stream(gpu)} == {7: 400, 20: 150}


def test_the_tree_shows_span_from_busy_time(tmp_path):
    profile = read_nsys(small_export().write(tmp_path / "tree.sqlite"))
    gpu = activities(profile, load_rules())[0]
    (root,) = range_tree(profile, gpu)
    assert (root.name, root.count, root.span_ns, root.operations, root.busy_ns) == ("Iteration 5", 1, 1000, 3, 350)
    (child,) = root.children
    assert (child.name, child.span_ns, child.compute_ns, child.communication_ns) == ("forward", 390, 300, 150)


def test_the_tree_by_busy_time_puts_first_what_kept_the_gpu_busy_longest(tmp_path):
    export = Export()
    spans = {"waits": (0, 1000, 10), "works": (2000, 2100, 300), "also works": (3000, 3100, 300)}
    for number, (name, (start, end, busy)) in enumerate(spans.items(), 1):
        export.range(start, end, name)
        export.call(start + 1, start + 2, correlation=number)
        export.kernel(start + 5, start + 5 + busy, correlation=number)
    profile = read_nsys(export.write(tmp_path / "busy.sqlite"))
    gpu = activities(profile, load_rules())[0]
    assert [node.name for node in range_tree(profile, gpu)] == ["waits", "works", "also works"]
    assert [node.name for node in range_tree(profile, gpu, by_busy=True)] == ["also works", "works", "waits"]
    window = Clip(2200, 3000)
    found = {node.name: node.busy_ns for node in range_tree(profile, gpu, window, by_busy=True)}
    assert found == {"works": 105}


def test_ranges_hold_only_what_their_own_thread_launched(tmp_path):
    export = Export()
    for thread, name in ((1, "one"), (2, "two")):
        export.range(0, 100, name, thread=thread)
    export.call(10, 12, correlation=1, thread=2)
    export.kernel(50, 70, correlation=1)
    profile = read_nsys(export.write(tmp_path / "threads.sqlite"))
    tree = {node.name: node.busy_ns for node in range_tree(profile, activities(profile, load_rules())[0])}
    assert tree == {"one": 0, "two": 20}


@pytest.mark.parametrize(
    ("names", "numbers", "source"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [7, 8], "ProfilerStep"),
        (["Iteration 12", "Iteration 13"], [12, 13], "numbered"),
        (["sample_0", "sample_1"], [0, 1], "numbered"),
        (["train_step", "train_step"], [0, 1], "train_step"),
        (["megatron.core.schedules.forward_backward_pipelining_without_interleaving.warmup"] * 2, [0, 1], "Megatron"),
        (["aten::add", "aten::mul"], [0], "whole capture"),
    ],
)
def test_iterations_come_from_ranges(tmp_path, names, numbers, source):
    export = Export()
    for place, name in enumerate(names):
        export.range(place * 1000, place * 1000 + 900, name)
        export.kernel(place * 1000 + 100, place * 1000 + 950)
    profile = read_nsys(export.write(tmp_path / "steps.sqlite"))
    found = iterations_of(profile, activities(profile, load_rules())[0], load_rules())
    assert found.number.tolist() == numbers
    assert source in found.source


def test_the_whole_capture_of_a_gpu_that_two_processes_use_is_that_of_both(tmp_path):
    export = Export()
    export.kernel(100, 300, process=1)
    export.kernel(200, 500, "ncclDevKernel_AllReduce_Sum", process=2, stream=9)
    gpu = _gpu(export.write(tmp_path / "x.sqlite"), 0)
    profile = _profile(tmp_path / "x.sqlite")
    [one] = iteration_measures(profile, gpu, load_rules())
    assert one.overlap == gpu_overlap(gpu)
    assert (one.overlap.window_start_ns, one.overlap.window_end_ns, one.overlap.communication_ns) == (100, 500, 300)


def test_without_ranges_bursts_of_optimizer_kernels_end_iterations(tmp_path):
    export = Export()
    for step in range(3):
        for place in range(20):
            export.kernel(step * 1000 + place * 10, step * 1000 + place * 10 + 8)
        for place in range(3):
            export.kernel(step * 1000 + 300 + place * 10, step * 1000 + 305 + place * 10, "multi_tensor<AdamFunctor>")
    profile = read_nsys(export.write(tmp_path / "steps.sqlite"))
    found = iterations_of(profile, activities(profile, load_rules())[0], load_rules())
    assert "heuristic" in found.source
    assert found.start_ns.tolist() == [0, 321, 1321]
    assert found.end_ns.tolist() == [321, 1321, 2325]


def test_kernels_that_repeat_without_marks_are_said_but_are_no_iterations(tmp_path, shared_data):
    export = Export()
    for place in range(41):
        export.kernel(place * 10, place * 10 + 8, "start" if place == 0 else f"kernel{place % 8}")
    found = {}
    for path in (export.write(tmp_path / "repeats.sqlite"), shared_data / "nsys" / "mfu_2gpu_before.sqlite"):
        profile = read_nsys(path)
        found[path.stem] = iterations_of(profile, activities(profile, load_rules())[0], load_rules())
    assert [len(one) for one in found.values()] == [1, 1]
    assert "the same 8 kernels run 5 times" in found["repeats"].source
    assert "the same 119 kernels run 16 times" in found["mfu_2gpu_before"].source, "blocks of one forward pass"


def test_communication_has_the_communicator_and_size_of_the_call_that_launched_it(tmp_path):
    export = Export()
    payload = '{"NCCL communicator ID": %d, "Message size [bytes]": %d}'
    export.range(0, 20, "ncclAllReduce", payload=payload % (1, 100))
    export.call(5, 6, correlation=1)
    export.kernel(30, 60, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", correlation=1)
    for start, end, name, size in (
        (100, 110, "ncclGroupStart", 0),
        (111, 112, "ncclSend", 30),
        (113, 115, "ncclSend", 10),
        (116, 119, "ncclRecv", 70),
    ):
        export.range(start, end, name, payload=payload % (2, size) if size else None)
    export.range(120, 140, "ncclGroupEnd")
    export.call(125, 126, correlation=2)
    export.kernel(150, 190, "ncclDevKernel_SendRecv", correlation=2)
    export.kernel(160, 170, "gemm", stream=8)
    profile = read_nsys(export.write(tmp_path / "nccl.sqlite"))
    rows = communication(profile, activities(profile, load_rules())[0])
    assert [(one.operation, one.communicator, one.bytes, one.total_ns, one.hidden_ns) for one in rows] == [
        ("SendRecv", "0x0000000000000002", 40, 40, 10),
        ("AllReduce", "0x0000000000000001", 100, 30, 0),
    ]


def test_the_overlap_matrix_holds_unions_of_each_pair_of_categories(tmp_path):
    export = Export()
    export.kernel(0, 100, "gemm")
    export.kernel(50, 150, "relu")
    export.kernel(120, 200, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=8)
    export.kernel(140, 180, "ncclDevKernel_SendRecv", stream=9)
    export.copy(90, 130, kind=1, stream=10)
    export.copy(110, 160, kind=1, stream=11)
    profile = read_nsys(export.write(tmp_path / "pairs.sqlite"))
    pairs = overlap_matrix(activities(profile, load_rules())[0])
    assert [(one.first, one.second, one.beside_ns) for one in pairs] == [
        ("computation", "computation", 150),
        ("computation", "AllReduce", 30),
        ("computation", "Memcpy HtoD", 60),
        ("computation", "SendRecv", 10),
        ("AllReduce", "AllReduce", 80),
        ("AllReduce", "Memcpy HtoD", 40),
        ("AllReduce", "SendRecv", 40),
        ("Memcpy HtoD", "Memcpy HtoD", 70),
        ("Memcpy HtoD", "SendRecv", 20),
        ("SendRecv", "SendRecv", 40),
    ]


def test_search_finds_names_of_all_tables_whatever_their_case(tmp_path):
    profile = read_nsys(small_export().write(tmp_path / "a.sqlite"))
    assert [(one.table, one.name, one.count) for one in search(profile, "GEMM")] == [("operations", "gemm", 2)]
    assert [one.table for one in search(profile, "cuda*")] == ["calls"]
    assert search(profile, "launch*") == []
    assert [one.count for one in search(profile, "gemm", window=Clip(500, 1000))] == [1]


def test_parts_of_a_difference_sum_to_the_change_of_the_window(tmp_path):
    slower = small_export()
    slower.kernel(900, 1400, "new_kernel")
    sides = []
    for name, export in (("a", small_export()), ("b", slower)):
        profile = read_nsys(export.write(tmp_path / f"{name}.sqlite"))
        (gpu,) = activities(profile, load_rules())
        sides.append(([gpu_overlap(gpu)], by_name(gpu), range_tree(profile, gpu)))
    a, b = sides
    found = compare(a[0], b[0], (a[1], b[1]), (a[2], b[2]))
    assert sum(second - first for first, second in found.parts.values()) == found.window_b_ns - found.window_a_ns == 700
    new = [row for row in found.kernels if not row.count_a]
    assert [(row.name, row.total_b_ns) for row in new] == [("new_kernel", 500)]
    assert "slower" in found.verdict
    assert "computation" in found.verdict
    same = compare(a[0], a[0], (a[1], a[1]), (a[2], a[2]))
    assert same.comparable.startswith("comparable")
    assert same.verdict.startswith("No change")


def test_a_gpu_without_activity_is_an_error_that_names_those_with_some(tmp_path):
    profile = read_nsys(small_export().write(tmp_path / "a.sqlite"))
    with pytest.raises(UsageError, match="no activity on GPU 3; there is some on 0"):
        activities(profile, load_rules(), [3])
    with pytest.raises(UsageError, match="ends before it starts"):
        Clip.of_seconds(3, 2)
    for times in ((float("nan"), 2), (0, float("inf")), (0, 1e300)):
        with pytest.raises(UsageError, match="seconds of the capture's clock"):
            Clip.of_seconds(*times)


def test_a_window_is_cut_to_what_the_profile_covers_and_refused_outside_of_it(shared_data):
    """Over 2 s of a profile of 0.3 s, what was not recorded would count as idle."""
    path = shared_data / "nsys" / "mfu_2gpu_before.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
        spans = [
            connection.execute(f'SELECT min(start), max("end") FROM {table}').fetchone()
            for table in (*(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME")), "NVTX_EVENTS")
        ]
    covered = Clip(min(start for start, _ in spans), max(end for _, end in spans), last_included=True)
    assert Clip.of_seconds(60, 62).within(_profile(path)) == covered
    measures = gpu_overlap(_gpu(path, 1), covered)
    assert (measures.busy_ns, measures.idle_ns) == (267275916, covered.end_ns - covered.start_ns - 267275916)
    inside = Clip(covered.start_ns + 5, covered.end_ns - 5)
    assert inside.within(_profile(path)) == inside
    for outside in (Clip.of_seconds(0, 2), Clip(covered.end_ns, covered.end_ns + 9)):
        with pytest.raises(UsageError, match=r"outside the time covered, 60\.111430 to 60\.411416 s"):
            outside.within(_profile(path))


def test_sends_and_receives_inside_an_all_to_all_of_pytorch_are_one(shared_data):
    """nccl:all_to_all around the launch says it; by SQL: 32 of 33 kernels of each GPU, one has no launch."""
    path = shared_data / "nsys" / "mfu_2gpu_before.sqlite"
    sql = """
        SELECT deviceId, sum(kernel.end - kernel.start) FILTER (WHERE inside), count(*) FILTER (WHERE inside), count(*)
        FROM (SELECT *, EXISTS (
            SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call JOIN NVTX_EVENTS AS r USING (globalTid)
            WHERE call.globalTid >> 24 = globalPid >> 24 AND call.correlationId = kernel.correlationId
            AND r.text LIKE 'nccl:all_to_all%' AND r.start <= call.start AND r.end > call.start
        ) AS inside FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel) AS kernel JOIN StringIds ON id = shortName
        WHERE value LIKE 'nccl%' GROUP BY deviceId"""
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
        for device, total, inside, count in connection.execute(sql).fetchall():
            rows = {one.operation: one for one in communication(_profile(path), _gpu(path, device))}
            assert (rows["AllToAll"].total_ns, rows["AllToAll"].count) == (total, inside)
            assert rows["SendRecv"].count == count - inside == 1


def test_measures_are_whole_numbers(shared_data):
    gpu = _gpu(shared_data / "nsys" / "mfu_2gpu_before.sqlite", 1)
    assert all(
        isinstance(value, int) and not isinstance(value, np.integer) for value in asdict(gpu_overlap(gpu)).values()
    )
