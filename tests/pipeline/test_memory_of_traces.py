"""What traces without a snapshot show of GPU memory enters the tables of snapshots, as far as they carry it."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.analyze.across_ranks import TINY
from tests.kineto_file import KinetoFile
from tests.nsys_file import PROCESS, small_export
from tests.small_run import GEMM
from traceviz_dag.analyze.findings.rules.registry import rule_named
from traceviz_dag.pipeline.memory import memory_sources, store_memory
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.read.kineto.memory import read_memory
from traceviz_dag.read.nsys.reader import read_nsys
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format
from traceviz_dag.tables import MEMORY_TABLES

GPU_BYTES = 1 << 36


def _stored(one: StoredIteration) -> list[dict[str, Any]]:
    assert one.inputs is not None
    sources = memory_sources(one.lake, one.inputs)
    outcomes = list(store_memory(one.lake, one.run, one.iteration, sources, 1))
    assert [outcome.fault for outcome in outcomes] == [""] * len(sources)
    assert all(set(outcome.tables) == set(MEMORY_TABLES) for outcome in outcomes)
    return one.lake.table("memory_events", one.run, one.iteration).arrow().to_pylist() if sources else []


def _kineto(path: Path, *, told: bool = True) -> Path:
    file = KinetoFile()
    file.header |= {"profile_memory": int(told), "deviceProperties": [{"id": 0, "totalGlobalMem": GPU_BYTES}]}
    file.annotation("ProfilerStep#7", 0, 9_000)
    file.kernel(GEMM, 1_000, 2_000, launched=500)
    for at, allocated, size, kind in ((1_003, 1_000, 512, 1), (2_001, 488, -512, 6), (1_500, 77, 64, 0)):
        file.memory(at, allocated, device_type=kind)
        file.events[-1]["args"] |= {"Bytes": size, "Addr": 0x7F00_0000_0000 + at}
    return file.write(path)


def test_allocations_of_a_kineto_trace_are_events_with_its_totals_and_nothing_that_it_does_not_show(tmp_path):
    path = _kineto(tmp_path / "job/iteration_7/rank_0000_iter_7.pt.trace.json")
    with iterations_at(path.parents[1], tmp_path / "home") as (one,):
        rows = _stored(one)
        names = ("event_id", "device", "action", "source", "address", "bytes", "allocated_bytes", "reserved_bytes")
        assert [tuple(row[name] for name in names) for row in rows] == [
            (0, 0, "alloc", "kineto", 0x7F00_0000_0000 + 1_003, 512, 1_000, 2_000),
            (1, 0, "free_requested", "kineto", 0x7F00_0000_0000 + 2_001, 512, 488, 976),
        ]
        assert [row["requested_bytes"] for row in rows] == [None, None]
        (kernel,) = one.kernels(0, ("start_ns",)).to_pylist()
        assert [row["time_ns"] - kernel["start_ns"] for row in rows] == [3, 1_001]
        rule = rule_named("memory_headroom")
        (row,) = one.lake.query_iteration(rule.sql, run=one.run, iteration=one.iteration).to_pylist()
        assert (row["reserved_bytes"], row["unused_bytes"]) == (2_000, GPU_BYTES - 2_000)
        for name in ("memory_leak", "memory_fragmentation", "memory_imbalance"):
            sql = rule_named(name).unable_sql or ""
            (told,) = one.lake.query_iteration(sql, run=one.run, iteration=one.iteration).to_pylist()
            assert "no snapshot of GPU memory with events" in told["reason"]


def test_a_trace_without_memory_is_not_read_for_it(tmp_path):
    path = _kineto(tmp_path / "job/iteration_7/rank_0000_iter_7.pt.trace.json", told=False)
    with iterations_at(path.parents[1], tmp_path / "home") as (one,):
        assert _stored(one) == []


def test_allocations_of_the_driver_are_segments_of_the_rank_whose_process_and_gpu_they_are_of(tmp_path):
    export = small_export()
    export.allocation(9, 1 << 21, memoryOperationType=1)
    export.allocation(5, 1 << 21, streamId=7)
    export.allocation(6, 64, memKind=1)
    export.allocation(7, 32, process=PROCESS + 9)
    export.allocation(8, 16, device=3)
    (tmp_path / "job").mkdir()
    export.write(tmp_path / "job" / "node0.sqlite")
    with iterations_at(tmp_path / "job", tmp_path / "home") as found:
        rows = _stored(found[0])
    names = ("time_ns", "device", "action", "source", "address", "bytes", "stream", "allocated_bytes", "reserved_bytes")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (5, 0, "segment_alloc", "nsys", 4096, 1 << 21, 7, None, None),
        (9, 0, "segment_free", "nsys", 4096, 1 << 21, None, None, None),
    ]


def test_what_the_driver_allocates_in_a_simulated_job_is_the_truth_of_each_rank(tmp_path):
    """Segments, a module's variables and a buffer of the communication library; not the host's page-locked memory."""
    memory = JobSettings(pp=2, dp=2, microbatches=4, node_size=2, format=Format.NSYS, memory=True, **TINY)
    run = simulate(memory, tmp_path / "job", workers=1)
    truth = pq.read_table(run / "truth" / "driver_memory.parquet").to_pylist()
    reserved = {row["rank"]: row["reserved_bytes"] for row in pq.read_table(run / "truth/memory.parquet").to_pylist()}
    with iterations_at(run, tmp_path / "home") as (one,):
        rows = _stored(one)
        segments = one.lake.table("memory_segments", one.run, one.iteration).arrow()
    assert segments.num_rows == 0 and {row["source"] for row in rows} == {"nsys"}
    names = ("rank", "time_ns", "action", "address", "bytes")
    actions = ("segment_alloc", "segment_free")
    wanted = [tuple(({**row, "action": actions[row["released"]]})[name] for name in names) for row in truth]
    assert [tuple(row[name] for name in names) for row in rows] == wanted and len(reserved) == 4
    for rank, size in reserved.items():
        mine = [row for row in rows if row["rank"] == rank]
        held = [row["bytes"] if row["action"] == "segment_alloc" else -row["bytes"] for row in mine]
        # At the end what PyTorch reserved is left, and the module's variables: the buffer is given back.
        assert sum(held) == size + 3 * (1 << 20)
        assert min(accumulate(held)) > 0, "nothing is given back before it is taken"
        assert mine[-1]["time_ns"] - mine[0]["time_ns"] < 60 * 10**9, "all of it in the time of the recording"
        assert {row["device"] for row in mine} == {rank % 2}


def test_operations_that_nothing_is_known_of_are_left_out_and_said(tmp_path):
    export = small_export()
    export.allocation(5, 1 << 21)
    export.allocation(6, 1 << 22, memoryOperationType=2)
    profile = read_nsys(export.write(tmp_path / "node0.sqlite"))
    assert profile.table("memory")["bytes"].to_pylist() == [1 << 21]
    assert [line for line in profile.facts.missing if "neither an allocation nor a release" in line]


@pytest.mark.parametrize(("name", "events"), [("h100_qwen05b", 2250), ("mi300_qwen05b", 2588)])
def test_totals_of_real_traces_change_by_the_bytes_of_each_event_on_nvidia_and_amd(shared_data, name, events):
    rows = read_memory(shared_data / "kineto/tracelens" / f"{name}.json.gz").to_pylist()
    rows = [row for row in rows if row["device"] == "gpu:0"]
    signed = [row["bytes"] if row["action"] == "alloc" else -row["bytes"] for row in rows]
    totals = [row["allocated_bytes"] for row in rows]
    assert len(rows) == events
    assert [after - before for before, after in pairwise(totals)] == signed[1:]
