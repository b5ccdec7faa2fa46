"""A table of many files that a session asks often is copied into one file, and no answer is another for it."""

from __future__ import annotations

import pickle
import re
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.damage import truncate
from tests.lake.conftest import SampleTable
from traceviz_dag.errors import BadInputError, OutputError
from traceviz_dag.lake import catalogue, recorded
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.reader import TableReader
from traceviz_dag.system.whole_files import scratch_folder
from traceviz_dag.tables import Table

ASKED = "SELECT rank, name, duration_ns FROM kernels WHERE run = $run AND iteration = $iteration ORDER BY ALL"
PLACE = {"run": "a job", "iteration": 1}


def write(lake: Lake, sample: SampleTable, rank: int, name: str) -> None:
    lake.write("kernels", sample("kernels", 2, name=[name, None], duration_ns=[rank, 7]), **PLACE, rank=rank)


@pytest.fixture
def job(lake: Lake, sample: SampleTable, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Three ranks, which are as many as are copied from the second mention on."""
    monkeypatch.setattr(catalogue, "_COLUMNS_OF_A_MENTION", 30)
    monkeypatch.setattr(catalogue, "LEAST_COPIED", 3)
    monkeypatch.setattr(catalogue, "_READ_ONCE", ())
    for rank in range(3):
        write(lake, sample, rank, "gemm")
    return lake


def scratch(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if "lake" not in path.parts]


def test_a_copy_answers_as_its_files_and_follows_what_is_written(job: Lake, sample: SampleTable, monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "scratch_folder", lambda: scratch_in(tmp_path / "scratch"))
    with job.session(**PLACE) as session:
        first = session.ask(ASKED)
        assert not scratch(tmp_path)
        assert session.ask(ASKED).equals(first)
        assert len(scratch(tmp_path)) == 1
        write(job, sample, 1, "conv")
        changed = session.ask(ASKED)
        assert changed["name"].to_pylist().count("conv") == 1
    assert changed.equals(job.query_iteration(ASKED, **PLACE))
    assert not scratch(tmp_path)


def test_rows_of_all_ranks_come_from_the_copy_until_one_is_written(job: Lake, sample: SampleTable, monkeypatch):
    files = job.rows("kernels", "a job", 1)
    with job.session(**PLACE) as session:
        session.ask_each([ASKED, ASKED])
        within, opened, part_of = session.within(), [], TableReader._part
        monkeypatch.setattr(TableReader, "_part", lambda *words: opened.append(words) or part_of(*words))
        copied = within.rows("kernels", "a job", 1)
        assert copied.schema.equals(files.schema)
        assert copied.to_pylist() == files.to_pylist()
        assert not opened
        assert within.rows("kernels", "a job", 1, ["duration_ns"], 2)["duration_ns"].to_pylist() == [2, 7]
        assert len(opened) == 1, "a rank by itself has the smaller file"
        write(job, sample, 1, "conv")
        assert within.rows("kernels", "a job", 1)["name"].to_pylist().count("conv") == 1


def test_another_process_gets_the_lake_without_the_session(job: Lake):
    with job.session(**PLACE) as session:
        sent = pickle.loads(pickle.dumps(session.within()))
    assert type(sent) is Lake and sent == job


def test_rows_of_all_ranks_that_a_session_asks_are_copied_at_once(job: Lake, monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "scratch_folder", lambda: scratch_in(tmp_path / "scratch"))
    with job.session(**PLACE) as session:
        session.within().rows("kernels", "a job", 1, rank=2)
        assert not scratch(tmp_path)
        session.within().rows("kernels", "a job", 1)
        assert len(scratch(tmp_path)) == 1


def test_a_damaged_file_that_no_record_tells_of_is_named_and_not_copied(job: Lake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded, "check", lambda *_: {})
    damaged = job.path("kernels", **PLACE, rank=1)
    with job.session(**PLACE) as session:
        session.ask(ASKED)
        truncate(damaged)
        with pytest.raises(BadInputError, match=re.escape(str(damaged))):
            session.within().rows("kernels", "a job", 1)


def test_a_file_that_is_replaced_while_tables_are_made_costs_no_answer(lake: Lake, sample: SampleTable, monkeypatch):
    lake.write("topology", sample("topology"), **PLACE)
    lake.write("kernels", sample("kernels"), **PLACE, rank=0)
    file, away = lake.path("kernels", **PLACE, rank=0), lake.home / "away"
    find, rows_of, gone = catalogue.NarrowViews._find, catalogue._rows, []

    def found(views: catalogue.NarrowViews, table: Table) -> object:
        if away.exists():
            away.rename(file)
        return find(views, table)

    def gone_meanwhile(folder: Path, table: Table, *rest: object) -> str:
        if table.name == "kernels" and not gone:
            gone.append(file.rename(away))
        return rows_of(folder, table, *rest)

    monkeypatch.setattr(catalogue.NarrowViews, "_find", found)
    monkeypatch.setattr(catalogue, "_rows", gone_meanwhile)
    with lake.session(**PLACE) as session:
        assert session.ask("SELECT count(*) AS n FROM topology, kernels").to_pylist() == [{"n": 1}]
    assert gone


def test_where_there_is_no_room_the_files_are_asked(job: Lake, monkeypatch: pytest.MonkeyPatch):
    def full() -> None:
        raise OutputError("scratch", "is full", "free space there")

    monkeypatch.setattr(catalogue, "scratch_folder", full)
    with job.session(**PLACE) as session:
        assert session.ask(ASKED).equals(session.ask(ASKED))


def scratch_in(folder: Path) -> AbstractContextManager[Path]:
    folder.mkdir(exist_ok=True)
    return scratch_folder(folder)
