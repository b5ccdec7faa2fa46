"""Databases for one query, on an instance that a process keeps."""

from __future__ import annotations

import os

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traceviz_dag.system.duckdb_memory import scratch_database


def test_databases_know_nothing_of_each_other_and_leave_nothing():
    with scratch_database() as outer, scratch_database() as inner:
        outer.execute("CREATE VIEW rows AS SELECT 1 AS number")
        inner.execute("CREATE VIEW rows AS SELECT 2 AS number")
        outer.register("given", pa.table({"number": [3]}))
        assert [one.execute("SELECT number FROM rows").fetchall() for one in (outer, inner)] == [[(1,)], [(2,)]]
        with pytest.raises(duckdb.CatalogException):
            inner.execute("SELECT * FROM given")
    with scratch_database() as later:
        assert later.execute("SELECT * FROM duckdb_tables()").fetchall() == []
        assert later.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == []


def test_a_query_that_fails_costs_the_next_one_nothing():
    with pytest.raises(duckdb.Error), scratch_database() as connection:
        connection.execute("SELECT * FROM nothing")
    with scratch_database() as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_file_that_was_replaced_is_read_anew_even_where_it_looks_the_same(tmp_path):
    path, seen = tmp_path / "table.parquet", []
    for number in (1, 2):
        new = tmp_path / "new.parquet"
        pq.write_table(pa.table({"number": [number]}), new)
        os.utime(new, ns=(10**18, 10**18))
        new.replace(path)
        with scratch_database() as connection:
            seen += connection.execute(f"SELECT number FROM '{path}'").fetchall()
    assert seen == [(1,), (2,)]


class Interrupted:
    """Rows that DuckDB asks Python for when an interrupt comes."""

    def __arrow_c_stream__(self, _schema: object = None) -> object:
        raise KeyboardInterrupt


def test_an_interrupt_while_duckdb_asks_python_for_rows_is_one():
    with pytest.raises(KeyboardInterrupt), scratch_database() as connection:
        connection.register("given", Interrupted())
        connection.execute("FROM given")
