"""Tables of a SQLite file read page by page: what SQLite says, whatever the table is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.source import SqliteSource, Wanted

COLUMNS = {"a": ("a", None), "b": ("b", str(MISSING)), "c": ("c", "''"), "e": ("e", str(MISSING))}
"""Of a table with the columns a to e: d is not asked for."""

INTEGERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(
        [0, 1, -1, *(sign * 2**bits - one for bits in (7, 15, 23, 31, 47) for sign in (1, -1) for one in (0, 1))]
    ),
)
TEXTS = st.one_of(st.text(max_size=90), st.integers(0, 3000).map("ä€".__mul__))
ROWS = st.lists(st.tuples(INTEGERS, st.none() | INTEGERS, st.none() | TEXTS, st.none() | TEXTS, st.none() | INTEGERS))


def _write(path: Path, rows: list[tuple[object, ...]], *, size: int = 512, table: str = "(a, b, c, d, e)") -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {size}")
    connection.execute(f"CREATE TABLE its {table}")
    connection.executemany("INSERT INTO its (a, b, c, d, e) VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def _read(path: Path, wanted: Wanted) -> pa.Table:
    kinds = [pa.string() if default == "''" else pa.int64() for _, default in wanted.columns.values()]
    schema = pa.schema(list(zip(wanted.columns, kinds, strict=True)))
    with SqliteSource(path) as source:
        return pa.concat_tables([pa.Table.from_batches([one]).cast(schema) for one in source.batches(wanted)])


def _by_sqlite(path: Path, wanted: Wanted) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(wanted.sql).fetchall()
    connection.close()
    return rows


def _rows(found: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, times=st.sampled_from([1, 40]), size=st.sampled_from([512, 4096, 65536]), few=st.booleans())
def test_tables_of_every_size_and_kind_of_value_are_what_sqlite_says(tmp_path, rows, times, size, few):
    path = _write(tmp_path / "some.sqlite", rows * times, size=size)
    wanted = Wanted("its", COLUMNS, ("b", (0, 1, 127)) if few else None)
    assert _rows(_read(path, wanted)) == _by_sqlite(path, wanted)


def _large(path: Path, **options: object) -> Path:
    rows = [(number * 77, -number, f"name {number}", None, number % 3) for number in range(5000)]
    return _write(path, rows, **options)


def test_a_table_of_many_levels_is_read_without_a_query_for_its_rows(tmp_path, monkeypatch):
    path = _large(tmp_path / "large.sqlite")
    wanted = Wanted("its", COLUMNS, ("e", (1, 2)))
    monkeypatch.setattr(SqliteSource, "_answer", None)
    assert _rows(_read(path, wanted)) == _by_sqlite(path, wanted)


CHANGES = {
    "rows are gone": "DELETE FROM its WHERE a % 5 = 0",
    "texts got longer": "UPDATE its SET c = c || ' and some more words' WHERE a % 3 = 0",
    "one continues on other pages": "UPDATE its SET c = hex(zeroblob(9000)) WHERE a = 77 * 4000",
    "numbers are NULL": "UPDATE its SET a = NULL, e = NULL WHERE a > 7000",
    "a column came later": "ALTER TABLE its DROP COLUMN e; ALTER TABLE its ADD COLUMN e DEFAULT 7",
    "rows have numbers below zero": "UPDATE its SET rowid = -rowid",
    "an index covers all that is asked": "CREATE INDEX i ON its (e, a DESC, b, c); ANALYZE",
    "pages are counted by others": "PRAGMA auto_vacuum = FULL; VACUUM",
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_that_changed_are_what_sqlite_says(tmp_path, change):
    path = _large(tmp_path / "large.sqlite")
    connection = sqlite3.connect(path)
    connection.executescript(CHANGES[change])
    connection.execute("VACUUM" if "VACUUM" in CHANGES[change] else "SELECT 1")
    order = connection.execute("SELECT a, b, c, e FROM its NOT INDEXED ORDER BY rowid").fetchall()
    connection.close()
    values = [(a, b if b is not None else MISSING, c or "", e if e is not None else MISSING) for a, b, c, e in order]
    assert _rows(_read(path, Wanted("its", COLUMNS))) == values
    few = _rows(_read(path, Wanted("its", COLUMNS, ("e", (1, 2, 7)))))
    assert few == [row for row in values if row[3] in (1, 2, 7)]


@pytest.mark.parametrize(
    "table",
    [
        "(a INTEGER PRIMARY KEY, b, c, d, e)",
        "(a PRIMARY KEY, b, c, d, e) WITHOUT ROWID",
        "(x AS (a + 1), a, b, c, d, e)",
        "(a REAL, b, c, d, e)",
    ],
)
def test_tables_of_another_shape_are_what_sqlite_says(tmp_path, table):
    path, wanted = _large(tmp_path / "large.sqlite", table=table), Wanted("its", COLUMNS)
    assert _rows(_read(path, wanted)) == _by_sqlite(path, wanted)


def test_texts_in_utf_16_are_what_sqlite_says(tmp_path):
    path, wanted = tmp_path / "wide.sqlite", Wanted("its", COLUMNS)
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA encoding = 'UTF-16'; CREATE TABLE its (a, b, c, d, e)")
    connection.execute("INSERT INTO its VALUES (1, 2, 'ä€', NULL, 3)")
    connection.commit()
    connection.close()
    assert _rows(_read(path, wanted)) == [(1, 2, "ä€", 3)]


def _count(path: Path, *, by_query: bool) -> int | None:
    """How many rows a table has; None where the file is said to be damaged."""
    wanted = Wanted("its", COLUMNS)
    try:
        with SqliteSource(path) as source:
            if by_query:
                return source.query(wanted.sql).num_rows
            return sum(one.num_rows for one in source.batches(wanted))
    except BadInputError as error:
        assert "damaged" in str(error)
        return None


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), offset=st.integers(0, 40), value=st.integers(0, 255))
def test_a_damaged_page_is_read_or_refused_as_by_a_query(tmp_path, place, offset, value):
    path = tmp_path / "damaged.sqlite"
    if not path.exists():
        _write(path, [(number, None, f"name {number}", "x" * (number % 50), 1) for number in range(300)])
    whole = path.read_bytes()
    at = 512 + int(place * (len(whole) // 512 - 1)) * 512 + offset
    path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    try:
        assert _count(path, by_query=False) == _count(path, by_query=True)
    finally:
        path.write_bytes(whole)
