"""The catalogue is a plain DuckDB file: complete, commented, swapped whole, and safe to open at any time."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from tests.asked import asked
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake import catalogue
from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.lake.catalogue import view_columns
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.tables import TABLES


def test_every_table_has_a_view_with_types_and_comments(lake: Lake, sample):
    lake.write("kernels", sample("kernels"), run="r", iteration=1, rank=0)
    with duckdb.connect(str(lake.refresh_catalogue()), read_only=True) as connection:
        views = dict(
            connection.execute(
                "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
            ).fetchall()
        )
        assert views == {one.name: one.comment for one in (*TABLES.values(), *VIEWS)}
        columns = {table.name: [(one.name, one.comment) for one in view_columns(table)] for table in TABLES.values()}
        for name, expected in (columns | {view.name: list(view.columns) for view in VIEWS}).items():
            found = connection.execute(
                "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main' "
                "ORDER BY column_index",
                [name],
            ).fetchall()
            assert found == expected
        empty = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE traces)").fetchall())
        filled = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE kernels)").fetchall())
    assert empty["steps"] == "BIGINT[]"
    assert empty["has_stacks"] == "BOOLEAN"
    assert {filled[name] for name in ("run", "name", "phase")} == {"VARCHAR"}
    assert {filled[name] for name in ("iteration", "rank", "start_ns")} == {"BIGINT"}
    assert filled["stage"] == "INTEGER"


def test_the_empty_and_the_filled_view_of_every_table_have_the_same_columns(lake: Lake, sample):
    (lake.home / "lake").mkdir(parents=True)
    queries = [f"SELECT * FROM {name}" for name in TABLES]
    empty = asked(lake, queries)
    for name, table in TABLES.items():
        rank = {"rank": 0} if "rank" in table.partitioned_by else {}
        lake.write(name, sample(name), run="r", iteration=1, **rank)
    for name, before, filled in zip(TABLES, empty, asked(lake, queries), strict=True):
        assert filled.schema.equals(before.schema), name
        assert (before.num_rows, filled.num_rows) == (0, 1), name


def test_a_catalogue_that_followed_the_tables_as_they_came_and_went_is_the_one_built_anew(lake: Lake, sample):
    def told() -> list[tuple]:
        with duckdb.connect(str(lake.refresh_catalogue()), read_only=True) as connection:
            views = connection.execute(
                "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY 1"
            )
            columns = (
                "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() ORDER BY 1, column_index"
            )
            return views.fetchall() + connection.execute(columns).fetchall()

    lake.write("kernels", sample("kernels"), run="r", iteration=1, rank=0)
    lake.write("topology", sample("topology"), run="r", iteration=1)
    lake.refresh_catalogue()
    lake.write("runs", sample("runs"), run="r", iteration=1)
    lake.refresh_catalogue()
    lake.delete("kernels", run="r")
    followed = told()
    lake.catalogue_path.unlink()
    assert followed == told()


def test_new_partitions_appear_without_a_refresh(lake: Lake, sample):
    lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    with duckdb.connect(str(lake.refresh_catalogue()), read_only=True) as client:
        lake.write("topology", sample("topology", rank=1), run="new", iteration=2)
        assert client.execute("SELECT run, rank FROM topology ORDER BY rank").fetchall() == [("r", 0), ("new", 1)]


def test_an_open_client_survives_the_swap_and_queries_see_the_new_catalogue(lake: Lake, sample):
    lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    with duckdb.connect(str(lake.refresh_catalogue()), read_only=True) as client:
        assert client.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
        lake.write("runs", sample("runs", ranks=4), run="r", iteration=1)
        lake.refresh_catalogue()
        assert client.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
        assert client.execute("SELECT count(*) FROM topology").fetchall() == [(1,)]
        assert lake.query("SELECT ranks FROM runs").to_pylist() == [{"ranks": 4}]
        script = (
            "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print(c.sql('FROM runs').fetchall())"
        )
        other = [sys.executable, "-c", script, str(lake.catalogue_path)]
        assert "('r', 1, 4, " in subprocess.run(other, capture_output=True, text=True, check=True).stdout


def test_a_client_that_writes_into_the_catalogue_blocks_no_query_and_leaves_no_trace(lake: Lake, sample):
    lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    script = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); c.execute('CREATE TABLE mine AS SELECT 1 AS x');"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(lake.refresh_catalogue())]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "open\n"
        assert lake.query("SELECT rank FROM topology").to_pylist() == [{"rank": 0}]
    finally:
        client.kill()
        client.communicate()
    assert "mine" not in lake.query("SHOW TABLES")["name"].to_pylist()


def add_table_and_refresh(home: Path, name: str, rows: object) -> None:
    lake = open_lake(home)
    for iteration in range(5):
        lake.write(name, rows, run="r", iteration=iteration)
        lake.refresh_catalogue()


@pytest.mark.long
def test_concurrent_refreshers_lose_no_table(lake: Lake, sample):
    names = ["runs", "topology", "process_groups", "iterations"]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_table_and_refresh, args=(lake.home, n, sample(n))) for n in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with duckdb.connect(str(lake.catalogue_path), read_only=True) as client:
        assert [client.execute(f"SELECT count(*) FROM {name}").fetchall() for name in names] == [[(5,)]] * 4
    assert [path.name for path in lake.home.glob(".traceviz.duckdb*")] == [".traceviz.duckdb.lock"]


def test_a_moved_home_is_found_where_it_is_now(lake: Lake, sample):
    lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    lake.refresh_catalogue()
    moved = lake.home.with_name("moved")
    lake.home.rename(moved)
    open_lake(moved)
    with duckdb.connect(str(moved / "traceviz.duckdb"), read_only=True) as client:
        assert client.execute("SELECT rank FROM topology").fetchall() == [(0,)]
    copied = shutil.copytree(moved, moved.with_name("copied"))
    shutil.rmtree(moved)
    assert open_lake(copied).query("SELECT rank FROM topology").num_rows == 1


def _build_and_die(home: Path) -> None:
    change = catalogue._change

    def killed(*given: object) -> None:
        change(*given)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGKILL)

    catalogue._change = killed  # type: ignore[assignment]
    catalogue._EMPTY.clear()
    catalogue.refresh(home)


def test_a_process_that_dies_while_it_builds_a_catalogue_leaves_nothing(lake: Lake, sample, monkeypatch, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    lake.write("kernels", sample("kernels"), run="r", iteration=1, rank=0)
    process = multiprocessing.get_context("fork").Process(target=_build_and_die, args=(lake.home,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not list(temporary.iterdir())
    lake.refresh_catalogue()
    assert {path.name for path in lake.home.iterdir()} == {"lake", "traceviz.duckdb", ".traceviz.duckdb.lock"}
    assert lake.query("SELECT count(*) AS n FROM kernels").to_pylist() == [{"n": 1}]


def test_a_leftover_of_a_killed_refresher_and_a_broken_catalogue_are_replaced(lake: Lake, sample):
    lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    (lake.home / ".traceviz.duckdb.new.building").write_bytes(b"half a database")
    lake.catalogue_path.write_bytes(b"no database")
    assert lake.query("SELECT rank FROM topology").num_rows == 1
    assert not list(lake.home.glob("*.building*"))


def test_a_damaged_file_is_named(lake: Lake, sample):
    written = lake.write("topology", sample("topology", rank=0), run="r", iteration=1)
    written.path.write_bytes(b"damaged")
    with pytest.raises(BadInputError, match=r"part\.parquet") as caught:
        lake.refresh_catalogue()
    assert "\n" not in str(caught.value)


def test_homes_that_cannot_be_used(tmp_path):
    with pytest.raises(BadInputError, match="holds no analysed traces"):
        open_lake(tmp_path / "absent").query("SELECT 1")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="is a file"):
        open_lake(tmp_path / "file")
    with pytest.raises(BadInputError, match="holds a question mark"):
        open_lake(tmp_path / "what?")
    with pytest.raises(BadInputError, match="is not UTF-8"):
        open_lake(tmp_path / os.fsdecode(b"odd\xff"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory, sample) -> Lake:
    """A lake with one table, which no statement changes."""
    lake = open_lake(tmp_path_factory.mktemp("filled") / "home")
    rows = sample("kernels", 3, name=["x", "y", "x"], duration_ns=[1, 2, 2**60], dimension="tp")
    lake.write("kernels", rows, run="r", iteration=1, rank=0)
    lake.refresh_catalogue()
    return lake


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "statement",
    [
        "DROP VIEW kernels",
        "CREATE TABLE t (a INT)",
        "CREATE TEMP TABLE t (a INT)",
        "CREATE TABLE memory.t AS SELECT 1",
        "COPY kernels TO '{part}' (FORMAT parquet)",
        "COPY (SELECT 1) TO '{outside}'",
        "WITH w AS (COPY (SELECT 1 AS a) TO '{part}' (FORMAT parquet)) SELECT * FROM w",
        "SELECT (WITH w AS (COPY (SELECT 1 AS a) TO '{part}' (FORMAT parquet)) SELECT count(*) FROM w)",
        "DESCRIBE (WITH w AS (COPY (SELECT 1 AS a) TO '{part}' (FORMAT parquet)) SELECT * FROM w)",
        "WITH w AS (DELETE FROM kernels RETURNING *) SELECT * FROM w",
        "FROM query('WITH w AS (COPY (SELECT 1 AS a) TO ''{part}'' (FORMAT parquet)) SELECT * FROM w')",
        "FROM query_table('kernels')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{part}'",
        "EXPORT DATABASE '{outside}'",
        "ATTACH '{outside}' AS other",
        "ATTACH '{lake}/other.duckdb' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA enable_profiling",
        "CALL enable_logging(storage = 'file', storage_path = '{lake}/log')",
        "FROM enable_logging(storage = 'file', storage_path = '{lake}/log')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd.csv'",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_parquet('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_parquet('{lake}/../../secret.parquet')",
        "SELECT * FROM read_parquet('{lake}/*/../../../secret.parquet')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM local_variable",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_queries_can_only_read_the_lake(filled: Lake, statement):
    local_variable = filled.table("kernels").df()
    around = filled.home.parent
    secret = around / "secret.parquet"
    local_variable.to_parquet(secret)
    before = snapshot(around)
    part = filled.home / "lake" / "kernels" / "run=r" / "iteration=1" / "rank=0" / "part.parquet"
    text = statement.format(part=part, outside=around / "outside", lake=filled.home / "lake", secret=secret)
    with pytest.raises(UsageError) as caught:
        filled.query(text)
    assert "\n" not in str(caught.value)
    assert snapshot(around) == before


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELEC 1", r'^Parser Error: syntax error at or near "SELEC"$'),
        ("SELECT nme FROM kernels", r'Referenced column "nme" not found .* Candidate bindings: "name"'),
        (
            "SELECT * FROM kernel",
            r"^there is no table kernel; did you mean kernels\? the tables are .*kernels.*utilization, what_if$",
        ),
        ("SELECT strleng('x')", r'Did you mean "strlen"\?$'),
        ("SELECT CAST('a' AS INTEGER)", r"^Conversion Error: .*$"),
        ("PIVOT kernels ON name USING sum(duration_ns)", r"PIVOT with IN"),
        ("SELECT $run", r"parameters: run$|prepared parameter"),
    ],
)
def test_errors_are_one_line_that_keeps_the_hint(filled: Lake, statement, message):
    with pytest.raises(UsageError, match=message) as caught:
        filled.query(statement)
    assert "\n" not in str(caught.value)
    assert "LINE 1" not in str(caught.value)


def test_what_reading_statements_can_do(filled: Lake):
    total = filled.query("SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY name ORDER BY name")
    assert total.to_pylist() == [{"name": "x", "ns": 2**60 + 1}, {"name": "y", "ns": 2}]
    assert filled.query("SELECT ? AS a, ? AS b", [1, "x"]).to_pylist() == [{"a": 1, "b": "x"}]
    assert filled.query("SELECT 1 AS a, 2 AS a").column_names == ["a", "a_1"]
    assert filled.query("SUMMARIZE kernels").num_rows == len(view_columns(TABLES["kernels"]))
    assert "kernels" in filled.query("SHOW TABLES")["name"].to_pylist()
    assert filled.query("DESCRIBE kernels;").num_rows > 50
    assert filled.query("FROM duckdb_columns() WHERE comment IS NOT NULL").num_rows > 100
    pivoted = filled.query("PIVOT kernels ON name IN ('x', 'y') USING count(*) GROUP BY rank")
    assert pivoted.to_pylist() == [{"rank": 0, "x": 2, "y": 1}]
    recursive = (
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT max(n) AS n FROM r"
    )
    assert filled.query(recursive).to_pylist() == [{"n": 9}]
