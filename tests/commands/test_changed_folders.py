"""Folders that change between two analyses: the second one gives what the files are now, or says what it kept."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.damage import call
from tests.show.home import fill_home
from tests.small_run import rank_file, write_run
from traceviz_dag.errors import BadInputError
from traceviz_dag.pipeline.live_pages import iteration_source
from traceviz_dag.show.lanes.lane import Window


def _file(run: Path, rank: int, iteration: int = 7) -> Path:
    return run / f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"


def _tables(home: Path) -> dict[str, str]:
    files = sorted((home / "lake").rglob("*.parquet"))
    return {str(path.relative_to(home)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def run(small) -> Path:
    return small / "job"


@pytest.fixture
def home(small) -> Path:
    """The home in which the whole run was analysed."""
    return small / "home"


def _analysed_anew(run: Path, folder: Path) -> dict[str, str]:
    """The tables of a home that never held anything else."""
    fill_home(folder / "clean", [run])
    return _tables(folder / "clean")


@pytest.mark.long
def test_a_smaller_job_in_place_of_a_larger_one_is_not_mixed_with_it(run, home, tmp_path):
    shutil.rmtree(run)
    write_run(run, world=2)
    answer = call("analyze", run, "--home", home, "--json")
    assert answer.code == 0 and answer.json[0]["measures"]["covered_ranks"] == [0, 1]
    assert _tables(home) == _analysed_anew(run, tmp_path)


@pytest.mark.long
def test_a_rank_whose_trace_was_archived_is_still_counted_and_named(run, home):
    before = _tables(home)
    _file(run, 3).unlink()
    answer = call("analyze", run, "--home", home, "--json")
    assert answer.code == 0 and answer.json[0]["ranks_vanished"] == [3] and answer.json[0]["ranks_computed"] == 0
    assert "the trace of rank 3 is gone" in answer.err
    assert call("analyze", run, "--home", home, "--force").code == 0
    marks = call("sql", "SELECT rank, cause FROM stale_tables", "--home", home, "--json").json
    assert marks == [{"rank": 3, "cause": "gone"}], "which was asked for and could not be made anew"
    assert {name: digest for name, digest in _tables(home).items() if "stale_tables" not in name} == before


@pytest.mark.long
def test_a_rank_that_is_gone_is_counted_nowhere_once_another_one_changed_and_kept_until_it_is_back(run, home, tmp_path):
    before = _tables(home)
    _file(run, 3).rename(tmp_path / "archived")
    rank_file(1, 4, scale=2).write(_file(run, 1))
    answer = call("analyze", run, "--home", home)
    assert answer.code == 2 and "no trace of rank 3" in answer.err and "rank 3 is stale" in answer.err
    kept = {name: digest for name, digest in before.items() if "rank=3" in name}
    after = {name: digest for name, digest in _tables(home).items() if "stale_tables" not in name}
    assert after == _analysed_anew(run, tmp_path) | kept
    assert {row["rank"] for row in call("overlap", "--home", home, "--json").json} == {0, 1, 2}
    rank_file(1, 4).write(_file(run, 1))
    (tmp_path / "archived").rename(_file(run, 3))
    assert call("analyze", run, "--home", home).code == 0 and _tables(home) == before


@pytest.mark.long
def test_rules_that_a_rank_without_a_trace_cannot_get_are_reported(run, home, tmp_path):
    _file(run, 3).unlink()
    rules = tmp_path / "rules.toml"
    rules.write_text('[[kernel]]\nname = "own_gemm"\npatterns = ["nvjet*"]\nkind = "computation"\n')
    answer = call("analyze", run, "--home", home, "--rules", rules)
    assert answer.code == 2 and "rank 3 cannot be made anew" in answer.err


@pytest.mark.long
def test_a_change_of_a_rank_counts_though_another_file_is_named(run, home, tmp_path):
    rank_file(1, 4, scale=2).write(_file(run, 1))
    assert call("analyze", _file(run, 0), "--home", home).code == 0
    assert _tables(home) == _analysed_anew(run, tmp_path)


def test_a_table_that_is_gone_leaves_its_rank_out_of_no_answer_in_silence(run, home):
    (home / "lake/overlap/run=job/iteration=7/rank=1/part.parquet").unlink()
    for command in ("overlap", "waits"):
        answer = call(command, "--run", "job", "--home", home)
        assert answer.code == 2 and "rank 1" in answer.err and "overlap" in answer.err


@pytest.mark.long
def test_a_deleted_table_of_an_iteration_is_no_empty_one_and_is_made_anew(run, home):
    for table, commands in {
        "findings": ("report", "findings"),
        "rank_clocks": ("report",),
        "topology": ("topology", "report"),
    }.items():
        (home / f"lake/{table}/run=job/iteration=7/part.parquet").unlink()
        for command in commands:
            answer = call(*command.split(), "--home", home)
            assert answer.code == 2 and f"table {table}" in answer.err and "deleted" in answer.err, (command, answer)
        with pytest.raises(BadInputError, match=f"table {table}"):
            iteration_source(home, "job", 7).open().model.marks(Window(0, 1))
        assert call("analyze", run, "--home", home).code == 0
    assert call("report", "--home", home).code == 0


def test_a_live_page_says_which_rank_is_not_on_it(home):
    assert not any("PARTIAL" in note for note in iteration_source(home, "job", 7).open().model.notes)
    (home / "lake/kernels/run=job/iteration=7/rank=1/part.parquet").unlink()
    first = iteration_source(home, "job", 7).open().model.notes[0]
    assert "PARTIAL" in first and "rank 1" in first


@pytest.mark.long
def test_an_iteration_that_is_not_whole_is_marked_and_one_without_figures_named(tmp_path):
    run, home = write_run(tmp_path / "job", {7: 2, 8: 2, 9: 2}, world=2), tmp_path / "home"
    _file(run, 1, 8).unlink()
    _file(run, 1, 9).write_text("{")
    answer = call("analyze", run, "--home", home, "--json")
    assert answer.code == 2 and [one["partial"] for one in answer.json] == [False, True, True]
    assert call("overlap", "--iteration", "7", "--home", home).code == 0
    assert call("overlap", "--iteration", "8", "--home", home).code == 2
    answer = call("iterations", "--home", home, "--json")
    assert [row["iteration"] for row in answer.json] == [7, 8]
    assert answer.code == 2 and "no measures of job 9" in answer.err


@pytest.mark.long
def test_files_that_are_named_one_after_the_other_are_not_missed(run, tmp_path):
    home = tmp_path / "home of its own"
    for rank in (0, 1):
        answer = call("analyze", _file(run, rank), "--home", home, "--json")
        assert answer.code == 0, answer.err
        assert answer.json[0]["measures"]["covered_ranks"] == list(range(rank + 1))
    assert call("analyze", run / "iteration_7", "--home", home).code == 0
    _file(run, 2).unlink()
    assert call("overlap", run).code == 2
