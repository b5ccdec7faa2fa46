"""Snapshots of GPU memory beside traces: found, stored by run, iteration and rank, read again if changed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sensors.listing import LocalFolders, look_at
from tests.analyze.across_ranks import SMALL
from tests.assets.loop import Loop
from tests.show.home import fill_home
from traceviz_dag.analyze.memory.schedule import Model
from traceviz_dag.commands.common.summary import iteration_summary
from traceviz_dag.commands.main import app
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.lake.inputs import registered
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.memory_summary import memory_statement
from traceviz_dag.pipeline.analysis import AnalysisSettings, IterationResult, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.memory import mark_mismatched, memory_sources, set_aside_unreadable, store_memory
from traceviz_dag.pipeline.memory_schedule import memory_by_stage
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.read.memory.files import FoundSnapshot, is_snapshot_name, of_iteration
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.tables import MEMORY_TABLES
from traceviz_dag.vocabulary import MemoryCategory

JOB = JobSettings(pp=2, vpp=2, microbatches=4, iterations=2, memory=True, clock_skew_ms=3.0, **{**SMALL, "layers": 4})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return simulate(JOB, tmp_path_factory.mktemp("traces") / "job", workers=1)


@pytest.mark.long
def test_snapshots_of_all_ranks_are_stored_beside_their_kernels_and_are_the_truth(run, tmp_path):
    home, job = tmp_path / "home", run
    lake = open_lake(home)
    for inputs in fill_home(home, [job]):
        outcomes = list(store_memory(lake, "job", inputs.iteration, memory_sources(lake, inputs), 1))
        assert [(outcome.rank, outcome.fault) for outcome in outcomes] == [(0, ""), (1, "")]
        assert not mark_mismatched(lake, inputs)
    lake.refresh_catalogue()
    stored = lake.query(
        "SELECT rank, iteration AS step, category, sum(requested_bytes) AS bytes FROM memory_peaks "
        "WHERE moment = 'peak' GROUP BY ALL"
    ).to_pylist()
    truth = pq.read_table(run / "truth" / "memory.parquet").to_pylist()
    wanted = {
        (row["rank"], row["step"], str(category)): row[category]
        for row in truth
        for category in MemoryCategory
        if row[category]
    }
    assert {(row["rank"], row["step"], row["category"]): row["bytes"] for row in stored} == wanted

    model = Model(JOB.sequence, JOB.hidden, JOB.heads)
    joined = memory_by_stage(lake, "job", 11, model, gpu_bytes=8 << 30)
    of_step = {row["rank"]: row for row in truth if row["step"] == 11}
    for rank in joined:
        wanted = of_step[rank.rank]
        assert rank.memory.in_flight == rank.memory.expected_in_flight == wanted["in_flight"]
        assert rank.memory.layer_bytes == wanted["layer_bytes"] == pytest.approx(rank.formula_bytes, rel=0.01)
        assert rank.memory.in_flight_bytes == wanted["activation"]
        assert rank.peak_requested_bytes == wanted["peak_bytes"] and rank.memory.peak_phase == "forward"
        assert rank.headroom_bytes == (8 << 30) - rank.reserved_bytes
        assert rank.headroom_microbatches == rank.headroom_bytes // rank.memory.chunk_bytes
        # The formula without stored scores is proportional to the sequence.
        fitting = JOB.sequence * (rank.memory.in_flight_bytes + rank.headroom_bytes) // rank.memory.in_flight_bytes
        assert rank.longest_sequence == pytest.approx(fitting, abs=1)
        assert rank.alignment.refusal is None and 0 < rank.alignment.residue_ns < 100_000
    for rank in memory_by_stage(lake, "job", 10):
        # The simulated allocator gives no segment back: most is reserved at the end, behind the optimizer's first step.
        (path,) = (run / "iteration_10").glob(f"rank_{rank.rank:04d}_*.memory.pickle")
        assert rank.reserved_bytes == sum(one["total_size"] for one in pickle.loads(path.read_bytes())["segments"])
    told = json.loads(CliRunner().invoke(app, ["memory", "schedule", "--home", str(home), "--json"]).output)
    assert [row["in_flight"] for row in told[1]["ranks"]] == [rank.memory.in_flight for rank in joined]
    picture = ["-o", str(tmp_path / "stages.svg"), "--iteration", "11", "--sequence", str(JOB.sequence)]
    words = ["memory", "schedule", "--home", str(home), *picture, "--hidden", str(JOB.hidden)]
    assert "in flight" in CliRunner().invoke(app, words).output
    drawn = (tmp_path / "stages.svg").read_text()
    assert f"{joined[0].memory.in_flight_bytes / (1 << 20):,.2f} MiB in {joined[0].memory.in_flight} chunks" in drawn
    assert "2 of 2 ranks keep as many as their schedule implies" in drawn

    first = iteration_summary(open_lake(home), IterationResult("job@11", "job", 11))["memory"]
    wanted = max(of_step.values(), key=lambda row: (row["peak_bytes"], -row["rank"]))
    assert (first["rank"], first["peak_requested_bytes"], first["ranks"]) == (wanted["rank"], wanted["peak_bytes"], 2)
    assert first["category_bytes"] == wanted[first["category"]] == max(wanted[str(each)] for each in MemoryCategory)
    sites = lake.query(
        f"SELECT sum(requested_bytes) AS bytes FROM memory_blocks JOIN memory_stacks USING (iteration, rank, stack_id) "
        f"WHERE iteration = 11 AND rank = {first['rank']} AND category = '{first['category']}' AND live_at_peak "
        "GROUP BY site"
    )["bytes"].to_pylist()
    assert first["site_bytes"] == max(sites) and f"{max(sites) / (1 << 20):,.2f} MiB" in memory_statement(first)
    kinds = ("memory_timeline", "memory_peak", "memory_segments", "memory_stages")
    words = ["figures", "--home", str(home), "--iteration", "11", "--kind", ",".join(kinds), "--formats", "svg"]
    titles = CliRunner().invoke(app, [*words, "--processes", "1", "--json"]).stdout
    shown = {(row["kind"], row["number"]): row for row in json.loads(titles)}
    assert set(shown) == {*((kind, rank) for kind in kinds[:3] for rank in (0, 1)), ("memory_stages", None)}
    for rank in joined:
        peak = f"{of_step[rank.rank]['peak_bytes'] / (1 << 20):,.2f} MiB requested"
        assert shown["memory_timeline", rank.rank]["title"].startswith(f"Rank {rank.rank}: at most {peak}")
        assert shown["memory_peak", rank.rank]["title"].startswith(f"Rank {rank.rank}: {peak} at the peak")
        picture = Path(shown["memory_timeline", rank.rank]["files"]["svg"]).read_text()
        assert all(word in picture for word in ("micro-batches", "clocks as recorded", "memory/forward-0"))

    keys = ["memory", "diff", "job@10", "job@11", "--home", str(home), "--rank", "1"]
    stored = json.loads(CliRunner().invoke(app, [*keys, "--json"]).stdout)
    files = [str(one) for one in sorted(job.glob("iteration_1?/rank_0001*.memory.pickle"))]
    given = json.loads(CliRunner().invoke(app, ["memory", "diff", *files, "--json"]).stdout)
    for name in ("peak_requested_bytes", "change_bytes", "categories"):
        assert stored[name] == given[name]
    assert sorted(map(str, stored["changes"])) == sorted(map(str, given["changes"])) and stored["changes"]
    nobody = CliRunner().invoke(app, [*keys[:-1], "9"])
    assert isinstance(nobody.exception, NoEvidenceError)
    # Of runs every rank counts, each at its own peak; "job" is its last iteration.
    words = ["memory", "diff", "job@10", "job", "--home", str(home)]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    peaks = {(row["rank"], row["step"]): row["peak_bytes"] for row in truth}
    assert [row["peak_requested_bytes"] for row in told["ranks"]] == [[peaks[r, 10], peaks[r, 11]] for r in (0, 1)]
    assert [row["stages"] for row in told["stages"]] == [[0, 0], [1, 1]]
    change = sum(size if step == 11 else -size for (_, step), size in peaks.items())
    assert change == told["change_bytes"] == sum(told["categories"].values()) != 0
    for parts in (told["ranks"], told["stages"], told["changes"]):
        assert sum(part["change_bytes"] for part in parts) == change
    others = lake.path("memory_peaks", run="job", iteration=10, rank=1)
    others.rename(others.with_suffix(".away"))
    shown = CliRunner().invoke(app, words).output
    assert "job@11 alone has a snapshot of rank 1: in none of these numbers" in shown
    assert f"peak {peaks[0, 10] / (1 << 20):,.2f} MiB → {peaks[0, 11] / (1 << 20):,.2f} MiB" in shown
    others.with_suffix(".away").rename(others)


@pytest.mark.long
def test_a_snapshot_that_cannot_be_taken_costs_its_rank_alone_until_it_is_fixed(run, tmp_path):
    home, folder = tmp_path / "home", shutil.copytree(run / "iteration_11", tmp_path / "job" / "iteration_11")
    broken, other = sorted(folder.glob("*.memory.pickle"))
    broken.write_bytes(broken.read_bytes()[:-9])
    _changed(run / "iteration_11" / other.name, other, device=5)
    shutil.copyfile(other, folder / "rank_0007_iter_11.memory.pickle")
    inputs = inputs_below([folder], home=home)
    told = "snapshot of rank 7, of which no trace is taken in iteration 11"
    assert [line for line in inputs[0].warnings if told in line]
    [result] = analyse(AnalysisSettings(home, workers=1), inputs)
    assert result.aggregated and len(result.failures) == 2
    assert "memory of rank 0" in result.failures[0] and "cut off or broken" in result.failures[0]
    assert "not taken: it is of GPU 5, and the trace of its rank of GPU 1; put that of this" in result.failures[1]
    assert iteration_summary(open_lake(home), result)["memory"] is None
    lake = open_lake(home)
    assert not [part for name in MEMORY_TABLES for part in lake.partitions(name, "job", 11)]
    # One is fixed, one is gone.
    shutil.copyfile(run / "iteration_11" / broken.name, broken)
    other.unlink()
    [result] = analyse(AnalysisSettings(home, workers=1), inputs_below([folder], home=home))
    assert result.failures == [] and result.skipped == [0, 1]
    assert lake.exists("memory_peaks", run="job", iteration=11, rank=0)
    assert "; known of 1 of 2 ranks" in _headroom(lake)
    # What an earlier version wrote of a snapshot that is gone keeps nothing else from being read.
    older = lake.path("memory_events", run="job", iteration=11, rank=0)
    pq.write_table(pq.read_table(older, partitioning=None).drop_columns(["source"]), older)
    broken.unlink()
    (inputs,) = inputs_below([folder], home=home)
    kept = lake.path("memory_peaks", run="job", iteration=11, rank=0).read_bytes()
    assert set_aside_unreadable(lake, inputs) == [0]
    assert not lake.exists("memory_peaks", run="job", iteration=11, rank=0)
    aside = lake.tables_folder / ".set_aside/memory_peaks"
    assert [path.read_bytes() for path in aside.rglob("*.parquet")] == [kept], "nothing is lost"


@pytest.mark.parametrize(
    ("change", "fault", "matched_by"),
    [
        ({}, "", "time"),
        ({"later_us": 3_600_000_000}, "it is of another time or job; put that of this trace in its place", None),
        # Without times the name alone decides.
        ({"later_us": None}, "", "name"),
    ],
)
def test_a_snapshot_is_taken_for_that_of_the_trace_beside_it_by_its_times_and_its_name(
    run, tmp_path, change, fault, matched_by
):
    folder = shutil.copytree(run / "iteration_11", tmp_path / "job" / "iteration_11")
    snapshot, other = sorted(folder.glob("*.memory.pickle"))
    other.unlink()
    _changed(run / "iteration_11" / snapshot.name, snapshot, **change)
    with iterations_at(tmp_path / "job", tmp_path / "home") as (iteration,):
        (inputs,) = inputs_below([tmp_path / "job"])
        (outcome,) = store_memory(iteration.lake, "job", 11, memory_sources(iteration.lake, inputs), 1)
        assert fault in outcome.fault and bool(outcome.fault) == bool(fault)
        rows = [
            row
            for part in iteration.lake.partitions("memory_recordings", "job", 11)
            for row in iteration.lake.table("memory_recordings", "job", 11, part.rank).arrow().to_pylist()
        ]
    assert [row["matched_by"] for row in rows] == [matched_by] * (not fault)
    if matched_by == "name":
        (row,) = rows
        assert (row["events"], row["first_ns"], row["unknown"], row["lost"]) == (len(_events(snapshot)), None, 0, 0)


@pytest.mark.long
def test_snapshots_change_again_and_again_and_the_tables_follow(run, tmp_path):
    home, job = tmp_path / "home", shutil.copytree(run, tmp_path / "job")
    results = analyse(AnalysisSettings(home, workers=1), inputs_below([job], home=home))
    assert [result.failures for result in results] == [[], []]
    lake = open_lake(home)
    # One rank's snapshot is damaged, one is gone: the first costs its rank alone, the tables of the second stay.
    broken, gone = sorted((job / "iteration_11").glob("*.memory.pickle"))
    broken.write_bytes(broken.read_bytes()[:-9])
    gone.unlink()
    before = lake.path("memory_peaks", run="job", iteration=10, rank=0).stat().st_mtime_ns
    [result] = analyse(AnalysisSettings(home, workers=1), inputs_below([job / "iteration_11"], home=home))
    assert len(result.failures) == 1
    assert "memory of rank 0" in result.failures[0] and "cut off or broken" in result.failures[0]
    assert result.aggregated and result.skipped == [0, 1]
    assert [part.rank for part in lake.partitions("memory_peaks", "job", 11)] == [1]
    assert lake.exists("memory_peaks", run="job", iteration=11, rank=0), "kept, and counted nowhere"
    assert "; known of 1 of 2 ranks" in _headroom(lake)
    assert lake.exists("memory_blocks", run="job", iteration=11, rank=1)
    assert lake.path("memory_peaks", run="job", iteration=10, rank=0).stat().st_mtime_ns == before
    shutil.copyfile(run / "iteration_11" / broken.name, broken)
    [result] = analyse(AnalysisSettings(home, workers=1), inputs_below([job / "iteration_11"], home=home))
    assert result.failures == []
    assert lake.exists("memory_peaks", run="job", iteration=11, rank=0)
    assert "; known of 2 of 2 ranks" in _headroom(lake)

    # What an earlier version wrote of a snapshot that is gone keeps nothing else from being read.
    older = lake.path("memory_events", run="job", iteration=11, rank=1)
    pq.write_table(pq.read_table(older, partitioning=None).drop_columns(["source"]), older)
    [result] = analyse(AnalysisSettings(home, workers=1, force=True), inputs_below([job / "iteration_11"], home=home))
    assert result.aggregated and "tables of rank 1 were damaged, or of an earlier version" in result.failures[0]
    assert "; known of 1 of 2 ranks" in _headroom(lake)

    # A snapshot of another time, of another GPU, or of a rank without a trace shows nothing of this step.
    folder = job / "iteration_11"
    _changed(run / "iteration_11" / gone.name, gone, later_us=3_600_000_000)
    _changed(broken, broken, device=5)
    shutil.copyfile(gone, folder / "rank_0007_iter_11.memory.pickle")
    inputs = inputs_below([folder], home=home)
    assert [
        line for line in inputs[0].warnings if "snapshot of rank 7, of which no trace is taken in iteration 11" in line
    ]
    assert [one.rank for one in inputs[0].snapshots] == [0, 1]
    [result] = analyse(AnalysisSettings(home, workers=1), inputs)
    assert result.aggregated and len(result.failures) == 2
    assert "not taken: it is of GPU 5, and the trace of its rank of GPU 0; put that of this" in result.failures[0]
    assert "it is of another time or job; put that of this trace in its place" in result.failures[1]
    assert iteration_summary(open_lake(home), result)["memory"] is None
    assert not [part for name in MEMORY_TABLES for part in lake.partitions(name, "job", 11)]
    # Without times the name alone decides, which the summary says.
    _changed(run / "iteration_11" / gone.name, gone, later_us=None)
    broken.unlink()
    [result] = analyse(AnalysisSettings(home, workers=1), inputs_below([folder], home=home))
    assert result.failures == []
    told = iteration_summary(open_lake(home), result)["memory"]
    assert (told["rank"], told["ranks"], told["matched_by"]) == (1, 1, "name")
    assert "the only rank with a snapshot, matched to its trace by its name alone: " in memory_statement(told)
    (row,) = lake.table("memory_recordings", "job", 11, 1).arrow().to_pylist()
    assert (row["events"], row["first_ns"], row["unknown"], row["lost"]) == (len(_events(gone)), None, 0, 0)


def _events(path: Path) -> list[dict[str, Any]]:
    return [event for trace in pickle.loads(path.read_bytes())["device_traces"] for event in trace]


def _changed(path: Path, out: Path, later_us: int | None = 0, device: int | None = None) -> None:
    """Write a snapshot with other times (None: without any), or of another GPU."""
    plain = pickle.loads(path.read_bytes())
    for row in (*(event for trace in plain["device_traces"] for event in trace), *plain["external_annotations"]):
        if later_us is None:
            del row["time_us"]
        else:
            row["time_us"] += later_us
    if later_us is None:
        plain["external_annotations"] = []
    if device is not None:
        plain["device_traces"] = [*([] for _ in range(device)), next(one for one in plain["device_traces"] if one)]
        for segment in plain["segments"]:
            segment["device"] = device
    out.write_bytes(pickle.dumps(plain))


def _headroom(lake: Lake) -> str:
    """What the findings of an iteration say of unused memory: they are made anew with the tables of snapshots."""
    rows = lake.table("findings", "job", 11).arrow().to_pylist()
    return next(f"{row['statement']}; {row['detail']}" for row in rows if row["rule"] == "memory_headroom")


def test_a_snapshot_is_of_the_iteration_whose_traces_lie_beside_it(run, tmp_path):
    job = shutil.copytree(run, tmp_path / "job")
    folder = job / "iteration_10"
    (folder / "rank_0000_iter_10.memory.pickle").rename(folder / "snapshot_0.pickle")
    shutil.copyfile(folder / "snapshot_0.pickle", folder / "snapshot_oom_rank-1.pickle")
    shutil.copyfile(folder / "snapshot_0.pickle", folder / "snapshot.pickle")
    (folder / "model.pickle").write_bytes(b"other")
    (job / "snapshot_0.pickle").write_bytes(b"beside no trace")
    os.utime(folder / "snapshot_oom_rank-1.pickle", (1e9, 1e9))
    first, second = inputs_below([job])
    assert [(one.rank, one.name) for one in first.snapshots] == [
        (0, "iteration_10/snapshot_0.pickle"),
        (1, "iteration_10/rank_0001_iter_10.memory.pickle"),
    ]
    assert ["names no rank" in line or "has a later snapshot" in line for line in first.warnings] == [True, True]
    assert [one.rank for one in second.snapshots] == [0, 1] and not second.warnings and not second.problems


@pytest.mark.long
def test_automation_asks_for_the_snapshots_of_an_iteration_once(run, tmp_path):
    job = shutil.copytree(run, tmp_path / "root" / "job")
    shutil.rmtree(job / "iteration_11")
    loop = Loop(tmp_path / "home", tmp_path / "root")
    loop.computed = MEMORY_TABLES
    loop.settle()
    asked = [loop.evaluate() for _ in range(3)]
    assert asked == [set(), {(name, "job@10") for name in MEMORY_TABLES}, set()]
    loop._materialise(MEMORY_TABLES, partition_key="job@10")
    assert loop.failures == [] and open_lake(loop.home).exists("memory_peaks", run="job", iteration=10, rank=1)
    assert loop.evaluate() == loop.evaluate() == set()
    path = open_lake(loop.home).path("memory_peaks", run="job", iteration=10, rank=1)
    written, key = path.stat().st_mtime_ns, dg.AssetKey("memory_peaks")
    loop._materialise(MEMORY_TABLES, partition_key="job@10")
    assert path.stat().st_mtime_ns == written, "what is current is recorded, and no snapshot is read for it"
    records = loop.instance.fetch_materializations(key, limit=2).records
    assert len({record.asset_materialization.tags["dagster/data_version"] for record in records}) == 1


def test_of_a_folder_of_several_iterations_the_last_has_the_snapshots_that_name_none():
    found = [FoundSnapshot(Path("a"), 0, None), FoundSnapshot(Path("b"), 0, 5)]
    assert of_iteration(found, 5, {5, 6}) == [found[1]]
    assert of_iteration(found, 6, {5, 6}) == [found[0]]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("snapshot_3.pickle", True),
        ("snapshot_oom_rank-0.pickle", True),
        ("rank_0001_iter_7.memory.pickle", True),
        ("SNAPSHOT_1.PKL", True),
        (".snapshot_1.pickle", False),
        ("model.pickle", False),
        ("snapshot_1.pickle.tmp", False),
    ],
)
def test_the_names_of_snapshots(name, is_one):
    assert is_snapshot_name(name) is is_one


def test_the_sensor_sees_a_snapshot_that_comes_late(run, tmp_path):
    job = shutil.copytree(run, tmp_path / "job")
    folder = job / "iteration_10"
    whole = look_at(LocalFolders(), str(folder))
    snapshot = folder / "rank_0001_iter_10.memory.pickle"
    content = snapshot.read_bytes()
    snapshot.unlink()
    assert look_at(LocalFolders(), str(folder)).digest != whole.digest
    snapshot.write_bytes(content[:-1])

    from sensors.registration import FolderTask, register_folder

    home = tmp_path / "home"
    waiting = register_folder(home, FolderTask(str(folder), str(tmp_path)))
    assert not waiting.iterations and snapshot.name in waiting.record.reason
    snapshot.write_bytes(content)
    register_folder(home, FolderTask(str(folder), str(tmp_path)))
    assert [one.rank for one in registered(home, "job@10").snapshots] == [0, 1]
    assert all(one.digest for one in registered(home, "job@10").snapshots)
