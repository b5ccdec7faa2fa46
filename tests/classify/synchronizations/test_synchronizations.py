"""Who waits for whom: against a model of CUDA's streams and events, and in the profiler's own odd forms."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.classify.synchronizations.cuda_model import Model, Wait
from tests.classify.test_kernels import run
from tests.kineto_file import AUTOGRAD, MAIN, KinetoFile
from traceviz_dag.classify.dimensions.communication import job_groups
from traceviz_dag.classify.kernels import classify
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.synchronizations.event_records import (
    LATER_RECORD,
    NO_RECORD,
    RECORDED_AGAIN,
    UNRESOLVED_BY_PROFILER,
)
from traceviz_dag.classify.synchronizations.operations import AT_ONCE, NO_ROW, NOTHING_AFTER, NOTHING_BEFORE, UNTOLD
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.read.kineto.reader import read_kineto

WAIT, SYNC = "cudaStreamWaitEvent", "Stream Wait Event"


def found(file: KinetoFile, folder: Path) -> list[dict[str, object]]:
    """The rows of the table, with the names of kernels instead of their ids."""
    classified = run(file, folder)
    names = dict(zip(*(classified.kernels[name].to_pylist() for name in ("kernel_id", "name")), strict=True))
    rows = classified.synchronizations.to_pylist()
    return [
        {
            **row,
            "waited_for": names.get(row["waited_for_kernel_id"]),
            "waiting": names.get(row["waiting_kernel_id"]),
        }
        for row in rows
    ]


def numbers(model: Model) -> dict[int, dict[str, object]]:
    """Correlation → its row, with the model's numbers of operations."""
    with TemporaryDirectory() as folder:
        rows = found(model.file, Path(folder))
    for row in rows:
        for name in ("waited_for", "waiting"):
            row[name] = None if row[name] is None else int(str(row[name]).split()[-1])
    assert len({row["correlation"] for row in rows}) == len(rows)
    return {row["correlation"]: row for row in rows}  # type: ignore[misc]


def is_right(model: Model, wait: Wait, operation: int | None) -> bool:
    """Whether this is what a wait waits for; of operations of a whole GPU that end together, either will do."""
    together = wait.kind == "device_synchronize" and None not in (operation, wait.waited_for)
    return operation == wait.waited_for or (together and model.ends_together(operation, wait.waited_for))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), threads=st.integers(1, 3), listed=st.booleans())
def test_every_wait_has_the_operations_that_cuda_gives_it_where_calls_do_not_overlap(seed, threads, listed):
    model = Model(seed, threads=threads, listed=listed, named="nothing" if listed else "right")
    rows = numbers(model)
    never_recorded = rows.keys() - {wait.correlation for wait in model.waits}
    assert all(rows[one]["fault"].startswith(NO_ROW) and rows[one]["waited_for"] is None for one in never_recorded)
    for wait in model.waits:
        row = rows[wait.correlation]
        assert (row["kind"], row["waiting"]) == (wait.kind, wait.waiting)
        assert is_right(model, wait, row["waited_for"])
        faults = [NOTHING_BEFORE] * (wait.waited_for is None) + [NOTHING_AFTER] * (wait.waiting is None)
        assert (row["fault"] or "") == "; ".join(faults)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    threads=st.integers(1, 3),
    named=st.sampled_from(["right", "last", "nothing"]),
    listed=st.booleans(),
    microseconds=st.booleans(),
    lost=st.sampled_from([0, 0.2]),
)
@example(seed=1241, threads=1, named="right", listed=False, microseconds=True, lost=0.2)
def test_no_wait_has_a_wrong_operation_however_calls_overlap_and_whatever_the_profiler_names(
    seed, threads, named, listed, microseconds, lost
):
    options = {"named": named, "listed": listed, "microseconds": microseconds, "lost": lost if threads == 1 else 0}
    model = Model(seed, threads=threads, apart=False, **options)
    rows = numbers(model)
    for wait in model.waits:
        row = rows[wait.correlation]
        assert row["waited_for"] is None or is_right(model, wait, row["waited_for"])
        assert row["waiting"] in (None, wait.waiting)
        assert row["fault"] or None not in (row["waited_for"], row["waiting"])


def sync(file: KinetoFile, name: str, correlation: int, stream: int, **more: int) -> None:
    """The profiler's row of a synchronisation."""
    arguments = {"cuda_sync_kind": name, "stream": stream, "correlation": correlation, "device": 0, **more}
    file.row("cuda_sync", name, 0, 1, stream, pid=0, **arguments)


def named(stream: int, record: int, event: int = 9) -> dict[str, int]:
    return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": event}


def call(file: KinetoFile, name: str, at: int, correlation: int, thread: int = MAIN, end: int | None = None) -> None:
    file.row("cuda_runtime", name, at, at + 10 if end is None else end, thread, correlation=correlation)


@pytest.fixture
def two_streams() -> KinetoFile:
    """A kernel on stream 7, a record there, a wait of stream 20 for it, a kernel on stream 20."""
    file = KinetoFile()
    file.kernel("producer", 100, 500, launched=50)
    call(file, "cudaEventRecord", 70, 11)
    call(file, WAIT, 90, 12)
    file.kernel("consumer", 510, 600, launched=110, stream=20)
    return file


def one_wait(file: KinetoFile, folder: Path) -> dict[str, object]:
    (row,) = [row for row in found(file, folder) if row["kind"] == "stream_wait"]
    return row


def test_a_recorded_wait_has_all_that_the_profiler_and_its_call_show(two_streams, tmp_path):
    two_streams.annotation("ProfilerStep#4", 0, 1_000)
    sync(two_streams, SYNC, 12, 20, **named(7, 11))
    row = one_wait(two_streams, tmp_path)
    assert (row["name"], row["thread"], row["start_ns"], row["duration_ns"]) == (WAIT, MAIN, 90, 10)
    assert (row["step"], row["device"], row["stream"], row["wait_on_stream"]) == (4, "gpu:0", 20, 7)
    assert (row["waited_for"], row["waiting"]) == ("producer", "consumer")
    assert (row["evidence"], row["fault"]) == ("recorded", None)
    assert (row["correlation"], row["record_correlation"], row["record_start_ns"]) == (12, 11, 70)


def test_the_same_wait_without_the_profilers_row_has_no_streams_and_no_operations(two_streams, tmp_path):
    row = one_wait(two_streams, tmp_path)
    assert (row["evidence"], row["fault"]) == ("order", NO_ROW)
    assert (row["device"], row["stream"], row["wait_on_stream"]) == (None, None, None)
    assert (row["waited_for"], row["waiting"]) == (None, None)


@pytest.mark.parametrize(
    ("told", "fault", "wait_on_stream"),
    [
        (named(-1, -1), UNRESOLVED_BY_PROFILER, None),
        (named(7, 4_000), NO_RECORD, 7),
        (named(7, 13), LATER_RECORD, None),
    ],
)
def test_a_record_that_does_not_count_leaves_what_waits_but_not_what_is_waited_for(
    two_streams, tmp_path, told, fault, wait_on_stream
):
    call(two_streams, "cudaEventRecord", 150, 13)
    sync(two_streams, SYNC, 12, 20, **told)
    row = one_wait(two_streams, tmp_path)
    assert (row["fault"], row["wait_on_stream"]) == (fault, wait_on_stream)
    assert (row["waited_for"], row["waiting"]) == (None, "consumer")


def test_a_record_that_another_wait_shows_to_be_out_of_date_does_not_count(two_streams, tmp_path):
    call(two_streams, "cudaEventRecord", 80, 13)
    call(two_streams, WAIT, 130, 14)
    sync(two_streams, SYNC, 12, 20, **named(7, 11))
    sync(two_streams, SYNC, 14, 24, **named(20, 13))
    rows = {row["correlation"]: row for row in found(two_streams, tmp_path)}
    assert (rows[12]["waited_for"], rows[12]["fault"]) == (None, RECORDED_AGAIN)


def test_another_thread_may_launch_what_waits_but_not_at_the_same_moment(tmp_path):
    for start, waiting, fault in ((200, "backward", None), (95, None, AT_ONCE)):
        file = KinetoFile()
        file.kernel("producer", 100, 500, launched=50, stream=20)
        call(file, "cudaEventRecord", 70, 11)
        call(file, WAIT, 90, 12)
        file.kernel("backward", 510, 600, launched=start, thread=AUTOGRAD)
        file.kernel("forward", 610, 700, launched=400)
        sync(file, SYNC, 12, 7, **named(20, 11))
        row = one_wait(file, tmp_path)
        assert (row["waiting"], row["fault"]) == (waiting, fault)


def test_an_operation_without_a_launch_row_counts_only_where_it_began_before(tmp_path):
    for start, waited_for, fault in ((60, "lost", None), (75, None, UNTOLD)):
        file = KinetoFile()
        file.kernel("early", 40, 55, launched=20)
        file.kernel("lost", start, start + 30, launched=None, correlation=0)
        call(file, "cudaEventRecord", 70, 11)
        call(file, WAIT, 90, 12)
        file.kernel("consumer", 510, 600, launched=110, stream=20)
        sync(file, SYNC, 12, 20, **named(7, 11))
        row = one_wait(file, tmp_path)
        assert (row["waited_for"], row["fault"]) == (waited_for, fault)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), threads=st.integers(1, 3))
def test_where_launch_rows_are_lost_correlation_ids_show_what_a_stream_waits_for(seed, threads):
    model = Model(seed, threads=threads, lost=0.3)
    rows = numbers(model)
    for wait in model.waits:
        row = rows[wait.correlation]
        assert is_right(model, wait, row["waited_for"]) or (threads > 1 and UNTOLD in row["fault"])
        assert row["waiting"] == wait.waiting or (row["waiting"] is None and UNTOLD in row["fault"])


def test_all_waits_before_an_operation_are_kept_and_repeated_rows_count_once(two_streams, tmp_path):
    call(two_streams, WAIT, 101, 13)
    for _ in range(2):
        sync(two_streams, SYNC, 12, 20, **named(7, 11))
        sync(two_streams, SYNC, 13, 20, **named(7, 11))
    waits = [row for row in found(two_streams, tmp_path) if row["kind"] == "stream_wait"]
    assert [(row["correlation"], row["waited_for"], row["waiting"]) for row in waits] == [
        (12, "producer", "consumer"),
        (13, "producer", "consumer"),
    ]


def test_rows_of_older_and_of_broken_forms_are_read_and_cost_no_event(two_streams, tmp_path):
    call(two_streams, "cudaStreamSynchronize", 120, 13)
    call(two_streams, "cudaDeviceSynchronize", 700, 14)
    sync(two_streams, SYNC, 12, 20, **named(7, 11))
    two_streams.row("cuda_sync", "Stream Sync", 0, 1, 1_000_007, pid=0, correlation=13)
    sync(two_streams, "Context Sync", 14, 2**32 - 1)
    two_streams.events[-1] |= {"dur": -5}
    del two_streams.events[-2]["dur"]
    rows = found(two_streams, tmp_path)
    assert [(row["kind"], row["wait_on_stream"], row["waited_for"]) for row in rows] == [
        ("stream_wait", 7, "producer"),
        ("stream_synchronize", 7, "producer"),
        ("device_synchronize", None, "consumer"),
    ]
    assert not read_kineto(tmp_path / "rank_0000.json").report.dropped


def test_a_copy_to_pageable_memory_is_waited_for_and_one_to_pinned_memory_is_not(tmp_path):
    file = KinetoFile()
    for name, launcher, start in (
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", 100),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", 200),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy", 300),
        ("Memcpy DtoD (Device -> Device)", "cudaMemcpy", 400),
    ):
        file.kernel(name, start + 3, start + 8, launched=start, launcher=launcher, category="gpu_memcpy")
    file.kernel("behind", 510, 600, launched=500)
    rows = found(file, tmp_path)
    assert [(row["kind"], row["start_ns"], row["waited_for"]) for row in rows] == [
        ("memory_copy", 100, "Memcpy DtoH (Device -> Pageable)"),
        ("memory_copy", 300, "Memcpy DtoH (Device -> Pinned)"),
    ]
    assert all(row["wait_on_stream"] == 7 and row["stream"] is None for row in rows)


def test_the_recorded_wait_of_two_streams_is_an_edge_from_the_right_one(shared_data, tmp_path):
    path = shared_data / "kineto" / "hta_sync" / "cuda_event_sync_multi_stream.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for stripped, streams in ((False, (20, 24)), (True, (None, None))):
        file = KinetoFile()
        file.events = [event for event in trace["traceEvents"] if not (stripped and event.get("cat") == "cuda_sync")]
        classified = run(file, tmp_path)
        kernels = dict(zip(*(classified.kernels[name].to_pylist() for name in ("kernel_id", "stream")), strict=True))
        kinds = {row["kind"]: row for row in classified.synchronizations.to_pylist()}
        assert sorted(kinds) == ["device_synchronize", "stream_wait"], "asking for an event is no wait"
        wait = kinds["stream_wait"]
        assert (kernels.get(wait["waited_for_kernel_id"]), kernels.get(wait["waiting_kernel_id"])) == streams


def test_the_handbooks_example_is_what_the_trace_gives(shared_data):
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    trace = read_kineto(shared_data / "kineto" / "hta_sync" / "cuda_event_sync_multi_stream.json.gz")
    rows = classify(trace, load_rules(), job_groups(unite({0: trace.header})), None).synchronizations.to_pylist()
    columns = page[page.index("| kind | stream | wait_on_stream") :].splitlines()
    names = columns[0].strip("| ").split(" | ")
    lines = ["| " + " | ".join("" if row[name] is None else str(row[name]) for name in names) + " |" for row in rows]
    assert [line.replace("|  |", "| |").replace("|  |", "| |") for line in lines] == columns[2 : 2 + len(rows)]


def test_waits_without_rows_of_the_profiler_are_counted_and_nothing_is_made_up_for_them(shared_data):
    trace = read_kineto(shared_data / "kineto" / "dlrm8" / "rank0.json.gz")
    classified = classify(trace, load_rules(), job_groups(unite({0: trace.header})), None)
    waits = [row for row in classified.synchronizations.to_pylist() if row["kind"] == "stream_wait"]
    assert len(waits) == 44
    assert {(row["waited_for_kernel_id"], row["waiting_kernel_id"], row["fault"]) for row in waits} == {
        (None, None, NO_ROW)
    }


def test_a_trace_without_a_gpu_has_none(tmp_path):
    file = KinetoFile()
    file.operator("aten::mm", 10, 20)
    call(file, WAIT, 30, 12)
    assert found(file, tmp_path) == []
