"""A job's folder: reproducible to the byte, with each table of truth, in each layout, with real files' oddities."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from isal import igzip

from tests.simulate.conftest import Job, decode, small
from traceviz_dag.errors import BadInputError
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges, Faults, Layout
from traceviz_dag.system.processes import WorkerDiedError


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.long
def test_a_seed_gives_the_same_bytes_however_many_workers_write(tmp_path: Path):
    settings = small(tp=2, pp=2, vpp=2, iterations=2, clock_skew_ms=3.0, faults=Faults(slow_gpu=1))
    here = _digests(simulate(settings, tmp_path / "a", workers=1))
    spawned = _digests(simulate(settings, tmp_path / "b", workers=2))
    other = _digests(simulate(small(tp=2, pp=2, vpp=2, iterations=2, seed=5), tmp_path / "c", workers=1))
    assert here == spawned
    assert here.keys() == other.keys()
    trace = f"iteration_{settings.first_iteration}/rank_0000_iter_{settings.first_iteration}.pt.trace.json.gz"
    assert here[trace] != other[trace]
    assert not [name for name in here if name.endswith(".part")]


def test_an_old_simulation_is_replaced_and_files_of_others_in_it_stay(tmp_path: Path):
    simulate(small(pp=2, memory=True), tmp_path, workers=1)
    (trace,) = tmp_path.glob("iteration_*/rank_0000_*.json*")
    theirs = [tmp_path / name for name in ("truth/notes.txt", "node_times.sqlite", "iteration_plan.md")]
    theirs += [trace.with_name("notes.md"), tmp_path / "truth/mine/rank_0001.parquet"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
    simulate(small(), tmp_path, workers=1)
    assert {path.read_text() for path in theirs} == {"theirs"}
    assert [path.name for path in (tmp_path / "truth").glob("rank_*")] == ["rank_0000.parquet"]
    assert len(list(tmp_path.glob("iteration_*/rank_*"))) == 1 and not list(tmp_path.rglob("*.pickle"))


def test_traces_of_others_are_not_touched(tmp_path: Path):
    real = tmp_path / "iteration_1" / "rank_0000_iter_1.pt.trace.json"
    real.parent.mkdir()
    real.write_text("{}")
    with pytest.raises(BadInputError, match="no simulation"):
        simulate(small(), tmp_path, workers=1)
    assert real.read_text() == "{}"


def test_a_simulation_killed_before_its_first_whole_file_is_taken_up_again(tmp_path: Path):
    left = tmp_path / "truth/.culprits.parquet.0123456789abcdef.writing"
    left.parent.mkdir()
    left.touch()
    simulate(small(), tmp_path, workers=1)
    assert not left.exists() and (tmp_path / "truth/culprits.parquet").is_file()


def test_a_worker_that_is_killed_is_reported_in_a_line(tmp_path: Path):
    def kill_a_writer(what: str, done: int, total: int) -> None:
        if what == "traces":
            next(iter(multiprocessing.active_children())).kill()

    # As Dagster leaves it in a job in the background, whose workers inherit it.
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(WorkerDiedError, match="fewer workers"):
            simulate(small(pp=2, iterations=8), tmp_path, workers=2, progress=kill_a_writer)
    finally:
        signal.signal(signal.SIGTERM, former)


def test_progress_counts_steps_and_traces(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    simulate(small(pp=2, iterations=2), tmp_path, workers=1, progress=lambda *call: seen.append(call))
    assert ("steps", 2, 2) in seen
    assert seen[-1] == ("traces", 4, 4)


def test_truth_tables_stand_beside_the_traces(job_of: Callable[[str], Job]):
    job = job_of("skewed")
    folder = job.folder / "truth"
    clocks = pd.read_parquet(folder / "clocks.parquet")
    assert list(clocks["rank"]) == list(range(job.settings.world))
    assert clocks["offset_ns"].abs().max() <= 3_005_000
    culprits = pd.read_parquet(folder / "culprits.parquet")
    assert culprits[["fault", "rank", "stage"]].values.tolist() == [["slow_gpu", 3, 0]]
    pipelines = pd.read_parquet(folder / "pipelines.parquet")
    assert len(pipelines) == job.settings.world
    window = pipelines["end_ns"] - pipelines["start_ns"]
    assert (pipelines["busy_ns"] + pipelines["idle_ns"] == window).all()
    assert (pipelines["computation_ns"] <= pipelines["busy_ns"]).all()
    assert (pipelines["exposed_ns"] <= pipelines["communication_ns"]).all()
    assert (pipelines["idle_ns"] > 0).all()


def test_spans_of_micro_batches_follow_from_the_kernels(job_of: Callable[[str], Job]):
    job = job_of("interleaved")
    spans = pd.read_parquet(job.folder / "truth" / "microbatches.parquet")
    per_rank = 3 * job.settings.vpp * job.settings.microbatches
    assert len(spans) == per_rank * job.settings.world
    kernels = job.truth(1)
    one = spans[(spans["rank"] == 1) & (spans["chunk"] == 1) & (spans["microbatch"] == 2)]
    for span in one.itertuples():
        phases = ["backward", "recompute"] if span.phase == "backward" else [span.phase]
        mine = kernels[kernels["phase"].isin(phases) & (kernels["chunk"] == 1) & (kernels["microbatch"] == 2)]
        assert (len(mine), mine["true_ts_ns"].min()) == (span.kernels, span.start_ns)
        assert span.host_start_ns < span.start_ns


def test_categories_of_the_truth_cover_all_that_happens(job_of: Callable[[str], Job]):
    truth = job_of("interleaved").truths()
    expected = {
        "fwd_computation",
        "fwd_communication",
        "bwd_computation",
        "bwd_communication",
        "bwd_computation_recompute",
        "bwd_communication_recompute",
        "pp_communication",
        "dp_communication",
        "optimizer_computation",
        "other_computation",
        "other_communication",
        "memory",
    }
    assert set(truth["category"]) == expected
    of_no_microbatch = truth[truth["dimension"].isin(["dp", "edp", "pp"])]
    assert (of_no_microbatch["microbatch"] == -1).all()
    overlapped = truth[truth["role"] == "grad_sync"]
    assert set(overlapped["launching_microbatch"]) == {job_of("interleaved").settings.microbatches - 1}


@pytest.mark.parametrize("layout", [Layout.TORCH_PROFILE, Layout.TENSORBOARD])
def test_layouts_with_several_steps_in_one_file(tmp_path: Path, layout: Layout):
    settings = small(pp=2, iterations=2, layout=layout, gzip=False)
    simulate(settings, tmp_path, workers=1)
    pattern = "torch_profile/rank-*.json" if layout is Layout.TORCH_PROFILE else "node*_*.*.pt.trace.json"
    files = sorted(tmp_path.glob(pattern))
    assert len(files) == settings.world
    for file in files:
        trace = decode(file.read_bytes())
        steps = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation" and "Step#" in e["name"]]
        assert sorted(steps) == ["ProfilerStep#10", "ProfilerStep#11"]
        truth = pd.read_parquet(tmp_path / "truth" / f"rank_{trace['distributedInfo']['rank']:04d}.parquet")
        assert set(truth["step"]) == {10, 11}


def test_kernels_cross_the_end_of_a_step_in_one_file(tmp_path: Path):
    settings = small(pp=2, iterations=2, layout=Layout.TORCH_PROFILE)
    simulate(settings, tmp_path, workers=1)
    trace = decode((tmp_path / "torch_profile" / "rank-0.json.gz").read_bytes())
    rows = trace["traceEvents"]
    first = next(e for e in rows if e.get("cat") == "user_annotation" and e["name"] == "ProfilerStep#10")
    end = first["ts"] + first["dur"]
    crossing = [e for e in rows if e.get("cat") == "kernel" and e["ts"] < end < e["ts"] + e["dur"]]
    assert crossing


def test_oddities_of_real_files(tmp_path: Path):
    edges = Edges(
        missing_launches=0.1,
        early_kernels=True,
        zero_durations=True,
        control_characters=True,
        without_distributed_info=1,
        missing_rank=2,
        duplicate_rank=3,
        truncated_rank=5,
    )
    settings = small(tp=2, pp=2, dp=2, edges=edges)
    job = Job(settings, simulate(settings, tmp_path, workers=1))
    raw = igzip.decompress(job.trace_path(0).read_bytes())
    assert b"\x01" in raw
    trace = msgspec.json.decode(raw.replace(b"\x01", b""))
    launched = {e["args"]["correlation"] for e in trace["traceEvents"] if e.get("cat", "").startswith("cuda_")}
    truth = job.truth(0)
    assert not truth[~truth["launched"]]["correlation"].isin(launched).any()
    assert truth[truth["launched"]]["correlation"].isin(launched).all()
    assert 0.02 < (~truth["launched"]).mean() < 0.3
    assert (truth["dur_ns"] == 0).any()
    assert truth["true_ts_ns"].min() < truth[truth["launched"]]["true_ts_ns"].min()
    assert "distributedInfo" not in msgspec.json.decode(_clean(job, 1))
    assert not list((tmp_path / "iteration_10").glob("rank_0002_*"))
    assert msgspec.json.decode(_clean(job, 3))["distributedInfo"]["rank"] == 2
    with pytest.raises((EOFError, OSError, igzip.isal_zlib.IsalError)):
        igzip.decompress(job.trace_path(5).read_bytes())


def _clean(job: Job, rank: int) -> bytes:
    return igzip.decompress(job.trace_path(rank).read_bytes()).replace(b"\x01", b"")


def test_topology_text_file_is_traceviz_s(tmp_path: Path):
    simulate(small(tp=2, pp=2, dp=2, ep=2, etp=1), tmp_path, workers=1)
    text = next(tmp_path.glob("unique_parallel_groups_*.txt")).read_text()
    assert "TP Size: 2\nPP Size: 2\nCP Size: 1\nEP Size: 2\nWorld Size: 8" in text
    assert "PIPELINE PARALLEL (PP) GROUPS\n" + "-" * 50 + "\nGroup 1: [0, 4]\n" in text
    assert "EXPERT PARALLEL (EP) GROUPS" in text
