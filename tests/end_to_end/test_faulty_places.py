"""Full disks, homes that can only be read or that moved, clocks that went back, files that change or cannot be read.

One line each, exit code 2 where something is missing, and nothing that was computed is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.damage import call
from tests.end_to_end.conftest import program
from tests.small_run import rank_file, write_run
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.errors import OutputError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline import ranks as rank_pipeline
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import IterationTask, analyse_into_lake, analyse_ranks

ONE_FIGURE = ("figures", "--kind", "rank_timeline", "--ranks", "0", "--formats", "png")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory) -> tuple[Path, Path]:
    """A run, and a home that holds it."""
    folder = tmp_path_factory.mktemp("analysed")
    run = write_run(folder / "job", {7: 2}, 2)
    program("analyze", run, "--home", folder / "home")
    return run, folder / "home"


@contextmanager
def small_disk(folder: Path, size: str):
    """A small file system; skips where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all but so many bytes of a disk."""
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - leave))
    return disk / "filler"


def tables(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in (home / "lake").rglob("*.parquet")}


def temporaries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name.endswith((".writing", ".building"))]


def ranks_of(run: Path, home: Path):
    (inputs,) = inputs_below([run])
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home)
    return IterationTask(home, inputs.run, inputs.iteration, read_topology(inputs), load_rules()), traces


@pytest.mark.long
def test_a_full_disk_and_one_that_can_only_be_read_cost_nothing_that_is_there(tmp_path: Path, analysed):
    _, ready = analysed
    with small_disk(tmp_path / "disk", "8m") as disk:
        home = Path(shutil.copytree(ready, disk / "home"))
        before = tables(home)
        filler = fill(disk, leave=4096)
        told = program(*ONE_FIGURE, "--home", home, code=2).stderr
        # Dagster's records are opened first, and may be what finds no room.
        assert re.search(
            r"cannot be written \((No space left on device|disk I/O error|.*disk is full)\); free space", told
        )
        assert "Traceback" not in told
        task, traces = ranks_of(write_run(tmp_path / "job", {7: 2}, 2), home)
        rank_file(1, 2, scale=2).write(traces[1].path)
        with pytest.raises(OutputError, match="No space left on device"):
            list(analyse_ranks(task, traces, 2))
        assert {name: tables(home)[name] for name in before} == before
        assert not temporaries(disk)
        with pytest.raises(OutputError, match="No space left on device"):
            open_lake(home).refresh_catalogue()
        assert open_lake(home).query("SELECT count(*) AS n FROM traces")["n"].to_pylist() == [2]
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert open_lake(home).query("SELECT count(*) AS n FROM traces")["n"].to_pylist() == [2]
        told = program(*ONE_FIGURE, "--home", home, code=2).stderr
        assert "cannot be written (Read-only file system); choose a place that can be written" in told
        assert "Traceback" not in told


@pytest.mark.long
def test_a_disk_too_full_for_the_instance_says_so_and_space_mends_it(tmp_path: Path):
    run = write_run(tmp_path / "job", {7: 2}, 2)
    with small_disk(tmp_path / "disk", "8m") as disk:
        (disk / "home/dagster").mkdir(parents=True)
        filler = fill(disk, leave=100_000)
        answer = call("analyze", run, "--home", disk / "home")
        assert answer.code == 2 and "free" in answer.err and "move the folder away" not in answer.err, answer.err
        assert "check the storage" not in answer.err
        filler.unlink()
        assert call("analyze", run, "--home", disk / "home").code == 0


@pytest.mark.long
def test_a_home_that_moved_is_whole_and_time_that_goes_back_is_no_change(tmp_path: Path, analysed):
    run, ready = analysed
    home = Path(shutil.copytree(ready, tmp_path / "moved"))
    hours_ahead = 2_000_000_000
    for path in home.rglob("*"):
        os.utime(path, (hours_ahead, hours_ahead))
    assert open_lake(home).query("SELECT count(*) AS n FROM traces")["n"].to_pylist() == [2]
    first = json.loads(program("analyze", run, "--home", home, "--json").stdout)
    assert (first[0]["ranks_computed"], first[0]["ranks_skipped"]) == (0, 2)
    mine = Path(shutil.copytree(run, tmp_path / "job"))
    changed = mine / "iteration_7/rank_0001_iter_7.pt.trace.json"
    rank_file(1, 2, scale=2).write(changed)
    os.utime(changed, (1_000_000_000, 1_000_000_000))
    shutil.rmtree(run)
    mine.rename(run)
    try:
        again = json.loads(program("analyze", run, "--home", home, "--json").stdout)
        assert (again[0]["ranks_computed"], again[0]["ranks_skipped"]) == (1, 1), "the changed file is the older one"
    finally:
        write_run(run, {7: 2}, 2)


def test_a_rank_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path):
    # Permission bits do not stop root; reading this file gives an input/output error for everybody.
    run = write_run(tmp_path / "job", {7: 3}, 3)
    task, traces = ranks_of(run, tmp_path / "home")
    traces[1].path.unlink()
    traces[1].path.symlink_to("/proc/self/mem")
    outcomes = {outcome.rank: outcome for outcome in analyse_ranks(task, traces, 2)}
    assert [rank for rank, outcome in outcomes.items() if outcome.failed] == [1]
    assert "rank_0001" in outcomes[1].fault
    assert "\n" not in outcomes[1].fault
    lake = open_lake(tmp_path / "home")
    assert [part.rank for part in lake.partitions("kernels")] == [0, 2]


def test_a_file_that_changes_while_it_is_read_is_read_again_and_refused_where_it_does_not_rest(tmp_path, monkeypatch):
    run = write_run(tmp_path / "job", {7: 1}, 2)
    task, (trace,) = ranks_of(run, tmp_path / "home")
    readings = []
    read = rank_pipeline.read_events

    def read_while_it_grows(*arguments, **options):
        events = read(*arguments, **options)
        readings.append(1)
        if len(readings) in changes_after:
            rank_file(0, 2, scale=1 + len(readings)).write(trace.path)
        return events

    monkeypatch.setattr(rank_pipeline, "read_events", read_while_it_grows)
    changes_after = {1}
    outcome = analyse_into_lake(task, trace)
    assert not outcome.failed
    monkeypatch.setattr(rank_pipeline, "read_events", read)
    rank_file(0, 2, scale=2).write(trace.path)
    assert analyse_into_lake(task, trace).tables["kernels"].digest == outcome.tables["kernels"].digest
    monkeypatch.setattr(rank_pipeline, "read_events", read_while_it_grows)
    readings.clear()
    changes_after = {1, 2}
    refused = analyse_into_lake(task, trace)
    assert "changes while it is read; analyse it again once it is written" in str(refused.fault)
    assert refused.failed and refused.kept
    kept = open_lake(tmp_path / "home").content("kernels", run=task.run, iteration=task.iteration, rank=0)
    assert kept.digest == outcome.tables["kernels"].digest
