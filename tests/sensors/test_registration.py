"""What a registering run makes of a folder: whole, complete, late, renamed, remote."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import fsspec
import pytest

from sensors.ledger import FolderState
from sensors.registration import FolderTask, Registration, register_folder
from tests.classify.topology.test_topology_file import NEW_FORM
from tests.nsys_file import node_export
from tests.small_run import rank_file, write_run
from traceviz_dag.lake.inputs import registered
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.read.formats import is_whole
from traceviz_dag.tables import OVERLAP

TRACE = "rank_{rank:04d}_iter_{iteration}.pt.trace.json"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def trace(run: Path, rank: int, iteration: int = 7) -> Path:
    return run / f"iteration_{iteration}" / TRACE.format(rank=rank, iteration=iteration)


def register_iteration(home: Path, run: Path, iteration: int = 7, **options) -> Registration:
    return register_folder(home, FolderTask(str(run / f"iteration_{iteration}"), str(run.parent), **options))


def ranks(home: Path, key: str = "job@7") -> list[int]:
    return [entry.rank for entry in registered(home, key).ranks]


def test_a_complete_folder_is_registered_with_its_ranks(tmp_path, home):
    run = write_run(tmp_path / "job")
    outcome = register_iteration(home, run)
    assert outcome.record.state is FolderState.REGISTERED
    assert (outcome.record.ranks, outcome.record.is_iteration, outcome.partial) == (4, True, {})
    assert ranks(home) == [0, 1, 2, 3]
    assert all(entry.digest for entry in registered(home, "job@7").ranks)


def test_fewer_ranks_than_the_world_wait_and_are_flagged_once_overdue(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 3})
    waiting = register_iteration(home, run)
    assert (waiting.record.state, waiting.iterations) == (FolderState.WAITING, ())
    assert "lacks ranks [3]" in waiting.record.reason
    overdue = register_iteration(home, run, overdue=True)
    assert overdue.record.state is FolderState.REGISTERED and overdue.partial == {"job@7": [3]}
    assert registered(home, "job@7").warnings == ("job@7: no traces of ranks [3] yet",)


def test_a_late_rank_joins_and_takes_the_flag_away(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 3})
    register_iteration(home, run, overdue=True)
    rank_file(3, 4).write(trace(run, 3))
    assert register_iteration(home, run).partial == {}
    assert ranks(home) == [0, 1, 2, 3] and registered(home, "job@7").warnings == ()


def test_a_capture_of_some_ranks_by_intention_is_complete_from_its_second_iteration_on(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 1, 8: 1})
    assert register_iteration(home, run).record.state is FolderState.WAITING
    register_iteration(home, run, overdue=True)
    assert register_iteration(home, run, 8).record.state is FolderState.REGISTERED


def test_an_iteration_waits_for_the_ranks_that_earlier_ones_have_and_names_them(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 4, 8: 2})
    register_iteration(home, run)
    assert "lacks ranks [2, 3]" in register_iteration(home, run, 8).record.reason


def test_exports_of_some_nodes_wait_for_the_ranks_that_the_topology_text_file_counts(tmp_path, home):
    folder = tmp_path / "job"
    node_export(folder / "node0.sqlite")
    (folder / "unique_parallel_groups_20260101_000000.txt").write_text(NEW_FORM)
    task = FolderTask(str(folder), str(tmp_path))
    assert "lacks ranks [2, 3]" in register_folder(home, task).record.reason
    node_export(folder / "node1.sqlite")
    assert register_folder(home, task).record.state is FolderState.REGISTERED and ranks(home, "job@0") == [0, 1, 2, 3]


def test_configured_ranks_come_before_the_world_size(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 2})
    assert register_iteration(home, run, expected_ranks=2).record.state is FolderState.REGISTERED
    other = write_run(tmp_path / "more", {7: 4})
    assert register_iteration(home, other, expected_ranks=6).record.state is FolderState.WAITING


def test_a_half_written_file_keeps_its_folder_waiting(tmp_path, home):
    run = write_run(tmp_path / "job")
    whole = trace(run, 2).read_bytes()
    trace(run, 2).write_bytes(whole[: len(whole) // 2])
    waiting = register_iteration(home, run)
    assert waiting.record.state is FolderState.WAITING
    assert waiting.record.reason == f"still being written: iteration_7/{trace(run, 2).name}"
    trace(run, 2).write_bytes(whole)
    assert register_iteration(home, run).record.state is FolderState.REGISTERED


def test_whole_and_broken_off_files_are_distinguished(tmp_path):
    text = b'{"traceEvents": [' + b'{"ph": "X"},' * 50_000 + b"{}]}\n"
    files = {"a.json": (text, True), "b.json": (text[:-20], False), "c.json": (b"", False)}
    packed = gzip.compress(text)
    files |= {"d.json.gz": (packed, True), "e.json.gz": (packed[:-9], False), "f.json.gz": (packed[:100], False)}
    for name, (content, whole) in files.items():
        (tmp_path / name).write_bytes(content)
        assert is_whole(tmp_path / name) is whole, name


def test_a_folder_that_changed_since_the_look_is_left_to_the_next_looks(tmp_path, home):
    run = write_run(tmp_path / "job")
    outcome = register_iteration(home, run, digest="as it looked before")
    assert (outcome.record, outcome.iterations) == (None, ())


def test_a_file_that_was_archived_away_keeps_its_rank(tmp_path, home):
    run = write_run(tmp_path / "job")
    register_iteration(home, run)
    trace(run, 1).unlink()
    register_iteration(home, run)
    assert ranks(home) == [0, 1, 2, 3]


def test_a_file_that_is_gone_sets_its_rank_aside_once_another_one_changed(tmp_path, home):
    """The job was recorded again with fewer ranks: the former one's tables would be mixed with the new one's."""
    run = write_run(tmp_path / "job")
    register_iteration(home, run)
    lake = open_lake(home)
    lake.write("overlap", OVERLAP.schema.empty_table(), run="job", iteration=7, rank=3)
    trace(run, 3).unlink()
    rank_file(1, 4, scale=2).write(trace(run, 1))
    assert register_iteration(home, run).partial == {"job@7": [3]}
    assert ranks(home) == [0, 1, 2]
    assert lake.exists("overlap", run="job", iteration=7, rank=3) and not lake.partitions("overlap")
    assert [(row.rank, row.cause) for row in lake.stale("job", 7)] == [(3, "unlisted")]


def test_a_renamed_and_a_copied_folder_are_iterations_whose_origin_is_said(tmp_path, home):
    run = write_run(tmp_path / "job", {10: 2}, world=2)
    assert register_iteration(home, run, 10).warnings == ()
    (run / "iteration_10").rename(run / "iteration_110")
    (said,) = register_iteration(home, run, 110).warnings
    assert said.startswith("job@110 has the traces that job@10 had: a renamed folder")
    assert ranks(home, "job@10") == ranks(home, "job@110") == [0, 1]
    shutil.copytree(run / "iteration_110", run / "iteration_10")
    (said,) = register_iteration(home, run, 10).warnings
    assert said.startswith("job@10 has the traces that job@110 has: a copied folder")
    rank_file(1, 2, step=10, scale=2).write(trace(run, 1, 10))
    assert register_iteration(home, run, 10).warnings == ()


def test_two_runs_of_one_name_are_kept_apart(tmp_path, home):
    first, second = write_run(tmp_path / "a/job"), write_run(tmp_path / "b/job")
    register_iteration(home, first)
    (other,) = register_iteration(home, second).iterations
    assert other.run.startswith("job-") and other.folder == str(second)
    assert registered(home, "job@7").folder == str(first)
    assert register_iteration(home, second).iterations[0].run == other.run


def test_json_that_is_no_trace_is_said_to_be_of_no_use(tmp_path, home):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    outcome = register_folder(home, FolderTask(str(folder), str(tmp_path)))
    assert outcome.record.state is FolderState.NOTHING and "no trace files" in outcome.record.reason


def test_a_topology_file_that_comes_later_joins_the_runs_iterations(tmp_path, home):
    run = write_run(tmp_path / "job", {7: 4, 8: 2})
    register_iteration(home, run)
    (run / "unique_parallel_groups_20260101_000000.txt").write_text("not looked into here")
    outcome = register_folder(home, FolderTask(str(run), str(tmp_path)))
    assert [one.key for one in outcome.iterations] == ["job@7"], "iteration 8 was not registered yet"
    assert registered(home, "job@7").topology_file == str(run / "unique_parallel_groups_20260101_000000.txt")
    register_iteration(home, run, 8, overdue=True)
    both = register_folder(home, FolderTask(str(run), str(tmp_path), overdue=True))
    assert {one.key: len(one.ranks) for one in both.iterations} == {"job@7": 4, "job@8": 2} and both.record.ranks == 4


def test_a_topology_file_that_comes_while_the_traces_are_away_is_registered_all_the_same(tmp_path, home):
    run = write_run(tmp_path / "job")
    register_iteration(home, run)
    before = registered(home, "job@7").ranks
    for rank in range(len(before)):
        trace(run, rank).rename(tmp_path / f"away_{rank}")
    file = run / "unique_parallel_groups_20260101_000000.txt"
    file.write_text(NEW_FORM)
    assert register_folder(home, FolderTask(str(run), str(tmp_path))).record.state is FolderState.REGISTERED
    assert (registered(home, "job@7").topology_file, registered(home, "job@7").ranks) == (str(file), before)


def test_unchanged_content_with_new_times_stays_the_same_version(tmp_path, home):
    run = write_run(tmp_path / "job")
    (before,) = register_iteration(home, run).iterations
    os.utime(trace(run, 0))
    (after,) = register_iteration(home, run).iterations
    assert [entry.version for entry in after.ranks] == [entry.version for entry in before.ranks]
    assert after != before


def test_a_remote_folder_is_fetched_and_only_what_changed_is_fetched_again(tmp_path, home):
    run = write_run(tmp_path / "job")
    store = fsspec.filesystem("memory")
    store.put(str(run), "/remote-runs/job", recursive=True)
    task = FolderTask("memory://remote-runs/job/iteration_7", "memory://remote-runs")
    try:
        (one,) = register_folder(home, task).iterations
        assert (one.key, len(one.ranks)) == ("job@7", 4)
        copies = {entry.path: Path(entry.path).stat().st_ino for entry in one.ranks}
        assert all(Path(path).is_relative_to(home / "fetched") for path in copies)
        rank_file(1, 4, scale=2).write(tmp_path / "again")
        store.put_file(str(tmp_path / "again"), f"/remote-runs/job/iteration_7/{trace(run, 1).name}")
        (again,) = register_folder(home, task).iterations
        changed = {entry.rank for entry, before in zip(again.ranks, one.ranks, strict=True) if entry != before}
        assert changed == {1}
        assert {path for path, inode in copies.items() if Path(path).stat().st_ino != inode} == {one.ranks[1].path}
    finally:
        store.rm("/remote-runs", recursive=True)
