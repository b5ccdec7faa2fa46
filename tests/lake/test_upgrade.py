"""Homes of any earlier version open: what is missing is NULL and named, and no run keeps another from its answers."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.asked import asked
from tests.damage import call
from tests.lake.homes.make import unpacked
from tests.sets import fast
from tests.small_run import write_run
from traceviz_dag.errors import BadInputError, OutputError, UsageError
from traceviz_dag.lake import catalogue, upgrade
from traceviz_dag.lake.catalogue import queryable
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.tables import TABLES, all_tables
from traceviz_dag.tables.schema import BIGINT, Column, Table

COMMITS = ["b058964", "d74cbdd", "fcde076", "98b2d4e", "6f60f2e"]
COMMANDS = ["iterations", "topology", "overlap", "clocks", "waits", "pipelines", "periods", "critical-path", "findings"]


def sums(home: Path) -> dict[str, int]:
    """Rows and times of kernels per run, straight from the files."""
    found = {}
    for run in ("aaa", "zzz"):
        files = sorted((home / "lake/kernels").glob(f"run={run}/**/part.parquet"))
        found[run] = sum(sum(pq.read_table(file, partitioning=None)["duration_ns"].to_pylist()) for file in files)
    return found


@pytest.mark.parametrize("commit", fast(COMMITS, COMMITS[0]))
def test_a_home_of_an_earlier_commit_answers_and_says_what_it_lacks(tmp_path, commit):
    home = unpacked(commit, tmp_path)
    before = sums(home)
    lake = open_lake(home)
    for name, found in zip(queryable(), asked(lake, (f"SELECT * FROM {name}" for name in queryable())), strict=True):
        if name in TABLES and lake.partitions(name):
            assert lake.table(name).arrow().num_rows == found.num_rows
    rows = lake.query("SELECT run, sum(duration_ns) AS total FROM kernels GROUP BY run").to_pylist()
    assert {row["run"]: row["total"] for row in rows} == before == sums(home)
    assert call("lake", "verify", "--home", home).code == 0
    for command in COMMANDS:
        for run in ("aaa", "zzz"):
            answer = call(command, "--home", home, "--run", run)
            assert "cannot be built" not in answer.err and "a fault of traceviz" not in answer.err, (
                command,
                answer.err,
            )
            assert len(answer.err.splitlines()) < 12
    assert call("iterations", "--home", home).code in (0, 2)


@pytest.mark.parametrize("commit", fast(COMMITS, COMMITS[0]))
def test_the_first_analysis_after_an_upgrade_succeeds_beside_a_run_whose_traces_are_gone(tmp_path, commit):
    home = unpacked(commit, tmp_path)
    before = sums(home)
    run = write_run(tmp_path / "zzz", world=2)
    answer = call("analyze", run, "--home", home, "--workers", "1", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json[0]["aggregated"]
    assert sums(home)["aaa"] == before["aaa"]
    for command in COMMANDS:
        told = call(command, "--home", home, "--run", "zzz")
        assert "cannot be built" not in told.err and "NULL" not in told.err, told.err
    assert call("lake", "verify", "--home", home).code == 0
    rows = open_lake(home).query("SELECT run, count(*) AS n FROM iterations GROUP BY run ORDER BY run").to_pylist()
    assert [row["run"] for row in rows] == ["aaa", "zzz"]


def test_a_home_that_cannot_be_written_answers_as_it_is(tmp_path, monkeypatch):
    home = unpacked(COMMITS[0], tmp_path)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    def refused(path: Path, *_: object, **__: object) -> NoReturn:
        raise OutputError(path, "cannot be written (Read-only file system)", "choose another place", errno.EROFS)

    for module in (upgrade, catalogue):
        monkeypatch.setattr(module, "exclusive_lock", refused)
    lake = open_lake(home)
    assert lake.query("SELECT DISTINCT covered_ranks FROM iterations").to_pylist() == [{"covered_ranks": None}]
    counts = (f"SELECT '{name}' AS name, count(*) AS rows FROM {name}" for name in queryable())
    for name, rows in (tuple(row.values()) for row in lake.query(" UNION ALL ".join(counts)).to_pylist()):
        if name in TABLES and lake.partitions(name):
            assert lake.table(name).arrow().num_rows == rows
            narrow = lake.query_iteration(f"SELECT * FROM {name}", run="zzz", iteration=7)
            assert narrow.num_columns == len(TABLES[name].columns) + len(TABLES[name].partitioned_by)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


@contextmanager
def another_version(**tables: Table) -> Iterator[None]:
    """Tables as a version defines them; a process has one version, and keeps what it composed of it."""
    composed = (all_tables, catalogue._composed, upgrade._is_upgraded)
    try:
        with patch.dict(TABLES, tables):
            for one in composed:
                one.cache_clear()
            yield
    finally:
        for one in composed:
            one.cache_clear()


KERNELS = TABLES["kernels"]
MORE = replace(KERNELS, columns=(*KERNELS.columns, Column("cache_hits", BIGINT, "More.")))


@pytest.fixture
def one_rank(lake: Lake, sample) -> Lake:
    lake.write("kernels", sample("kernels", 3, name="gemm", duration_ns=5), run="job", iteration=1, rank=0)
    return lake


def test_a_version_with_one_column_more_and_back_loses_nothing(one_rank, sample, caplog):
    with another_version(kernels=MORE):
        newer = open_lake(one_rank.home)
        [row] = newer.query("SELECT sum(duration_ns) AS t, count(cache_hits) AS n FROM kernels").to_pylist()
        assert row == {"t": 15, "n": 0}
        assert "run job, without cache_hits, which are NULL there; run traceviz analyze" in caplog.text
        rows = sample("kernels", 3, name="gemm", duration_ns=7, cache_hits=[1, 2, 3])
        newer.write("kernels", rows, run="job", iteration=1, rank=1)
        assert newer.table("kernels").arrow(["cache_hits"])["cache_hits"].to_pylist() == [None] * 3 + [1, 2, 3]
        assert call("lake", "verify", "--home", newer.home).code == 0
    older = open_lake(one_rank.home)
    assert older.query("SELECT sum(duration_ns) AS t FROM kernels").to_pylist() == [{"t": 36}]
    assert older.table("kernels").arrow(["duration_ns"])["duration_ns"].to_pylist() == [5] * 3 + [7] * 3
    assert call("lake", "verify", "--home", older.home).code == 0
    with another_version(kernels=MORE):
        again = open_lake(one_rank.home)
        assert again.query("SELECT sum(cache_hits) AS n FROM kernels").to_pylist() == [{"n": 6}]


def test_what_cannot_be_converted_is_set_aside_by_name_while_the_rest_answers(one_rank, sample, caplog):
    other = one_rank.write("kernels", sample("kernels", name="gemm"), run="other", iteration=1, rank=0).path
    table = pq.read_table(other, partitioning=None).drop_columns(["duration_ns"])
    pq.write_table(table.append_column("duration_ns", pa.array(["five"])).replace_schema_metadata(None), other)
    shutil.rmtree(one_rank.home / "lake/.recorded")
    first = one_rank.path("kernels", run="job", iteration=1, rank=0)
    pq.write_table(pq.read_table(first, partitioning=None).replace_schema_metadata(None), first)
    lake = open_lake(one_rank.home)
    assert lake.query("SELECT run, sum(duration_ns) AS t FROM kernels GROUP BY run").to_pylist() == [
        {"run": "job", "t": 15}
    ]
    assert "table kernels, run other, iteration 1, rank 0: its file is damaged, or of another version" in caplog.text
    (aside,) = upgrade.set_aside(lake.tables_folder)
    assert str(aside) in caplog.text and aside.exists()
    assert call("lake", "verify", "--home", lake.home).code == 0


@pytest.mark.long
def test_a_damaged_part_of_a_version_without_a_record_is_one_line_whatever_is_damaged(lake, sample):
    texts = [f"größe_{number % 7}" for number in range(50)]
    path = lake.write("kernels", sample("kernels", 50, name=texts, duration_ns=5), run="job", iteration=1, rank=0).path
    pq.write_table(pq.read_table(path, partitioning=None).replace_schema_metadata(None), path)
    whole, chance = path.read_bytes(), random.Random(3)
    refused = 0
    for _ in range(50):
        shutil.rmtree(lake.home / "lake/.recorded", ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        opened = open_lake(lake.home)
        for ask in (
            lambda lake: lake.query("SELECT * FROM kernels").to_pylist(),
            lambda lake: lake.table("kernels").df().to_dict(),
            lambda lake: lake.query_iteration("SELECT name FROM kernels", run="job", iteration=1).to_pylist(),
        ):
            try:
                ask(opened)
            except (BadInputError, UsageError) as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > 5
