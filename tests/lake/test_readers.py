"""Readers beside writers that delete: no reader sees an error because of a writer."""

from __future__ import annotations

import duckdb
import pytest

from traceviz_dag.errors import UsageError
from traceviz_dag.lake import read_only
from traceviz_dag.lake.lake import Lake

COUNT = "SELECT count(*) AS n FROM kernels WHERE run = 'r' AND iteration = 1"


@pytest.fixture
def deleting(lake: Lake, sample, monkeypatch):
    """A lake, and a switch: from then on a rank is deleted whenever a query has listed its files."""
    for rank in (0, 1, 2):
        lake.write("kernels", sample("kernels", 10), run="r", iteration=1, rank=rank)
    lake.refresh_catalogue()
    asked = []

    def connect_and_delete(connection, sql, parameters, **how):
        asked.append(sql)
        if len(asked) <= 2:
            lake.delete("kernels", run="r", iteration=1, rank=len(asked))
            raise duckdb.IOException('IO Error: Cannot open file "part.parquet": No such file or directory')
        return fetch(connection, sql, parameters, **how)

    fetch = read_only.fetch
    monkeypatch.setattr(read_only, "fetch", connect_and_delete)
    return lake, asked


def test_a_query_whose_files_are_deleted_under_it_answers_with_what_is_left(deleting):
    lake, asked = deleting
    assert lake.query(COUNT)["n"].to_pylist() == [10]
    assert len(asked) == 3


def test_so_does_one_of_an_iteration(deleting):
    lake, asked = deleting
    narrow = "SELECT count(*) AS n FROM kernels WHERE run = $run AND iteration = $iteration"
    assert lake.query_iteration(narrow, run="r", iteration=1)["n"].to_pylist() == [10]
    assert len(asked) == 3


def test_a_file_that_is_gone_for_good_is_reported_after_a_bounded_number_of_looks(deleting, monkeypatch):
    lake, asked = deleting

    def gone(_connection, sql, _parameters, **_how):
        asked.append(sql)
        raise duckdb.IOException('IO Error: Cannot open file "x": No such file or directory')

    monkeypatch.setattr(read_only, "fetch", gone)
    with pytest.raises(UsageError, match="No such file or directory"):
        lake.query(COUNT)
    assert len(asked) == 10


def test_what_a_killed_query_put_on_disk_goes_with_the_next_one(lake: Lake, sample):
    lake.write("kernels", sample("kernels", 10), run="r", iteration=1, rank=0)
    lake.refresh_catalogue()
    left = lake.home / ".duckdb_spill" / "traceviz_0123456789abcdef"
    left.mkdir(parents=True)
    (left / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"spilt")
    assert (
        lake.query("SELECT current_setting('temp_directory') AS place")["place"][0].as_py().startswith(str(left.parent))
    )
    assert not left.parent.exists()


def test_no_query_prints_how_far_it_is_into_the_answer(lake: Lake, sample):
    lake.write("kernels", sample("kernels", 1), run="r", iteration=1, rank=0)
    lake.refresh_catalogue()
    asked = "SELECT current_setting('enable_progress_bar') AS shown FROM kernels"
    answers = [lake.query(asked), lake.query_iteration(asked, run="r", iteration=1)]
    assert [answer["shown"].to_pylist() for answer in answers] == [[False], [False]]
