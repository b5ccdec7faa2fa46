"""The DuckDB catalogue: a small file of commented views over the lake's Parquet files, built anew and swapped."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import xxhash

from traceviz_dag.errors import BadInputError, OutputError
from traceviz_dag.lake.across_ranks_views import VIEWS, View
from traceviz_dag.lake.partitions import ANALYSE_AGAIN, find_partitions, glob_pattern
from traceviz_dag.lake.stale import hidden_ranks
from traceviz_dag.system.duckdb_memory import connect_in_memory
from traceviz_dag.system.whole_files import exclusive_lock
from traceviz_dag.tables import PARTITION_COLUMNS, Column, Table, all_tables

FILE_NAME = "traceviz.duckdb"
LAKE_FOLDER = "lake"

_ALIAS = "traceviz"
# The oldest format that holds comments on views: older DuckDB clients can open the file, too.
_STORAGE_VERSION = "v1.0.0"
_ORIGIN = "traceviz_meta.origin"
_ATTEMPTS = 5
_LOCK = f".{FILE_NAME}.lock"
_LEFT_OVERS = f".{FILE_NAME}.*.building*"
_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
}


def queryable() -> list[str]:
    """Everything that a query can name: the tables, and the views over them."""
    return sorted([*all_tables(), *(view.name for view in VIEWS)])


def refresh(home: Path) -> Path:
    """Bring the catalogue of a home up to date: where it is not, build it anew and swap it in.

    Open readers keep the one they have.

    One refresher works at a time and each lists the files after it got its turn, so a table that appeared before
    the call is in the catalogue after it, however many processes refresh.

    Returns:
        The catalogue's path.

    Raises:
        BadInputError: a file of the lake cannot be read, or was written with other columns.
        OutputError: the home cannot be written.
    """
    path = home / FILE_NAME
    with exclusive_lock(home / _LOCK):
        _remove_left_overs(home)
        # A client that had the former catalogue open for writing may have left its log: not this file's.
        log = path.with_name(f"{FILE_NAME}.wal")
        if not log.exists() and is_current(home):
            return path
        temporary = home / f".{FILE_NAME}.new.building"
        for attempt in range(_ATTEMPTS):
            try:
                _build(temporary, home)
                break
            except duckdb.Error as error:
                # A table's last file can be deleted between the listing and the view that needs a file.
                _remove_left_overs(home)
                if os.strerror(errno.ENOSPC) in str(error):
                    fault = f"cannot be built ({os.strerror(errno.ENOSPC)})"
                    raise OutputError(path, fault, "free space there", errno.ENOSPC) from error
                if attempt == _ATTEMPTS - 1:
                    fault = f"the catalogue cannot be built: {str(error).splitlines()[0]}"
                    raise BadInputError(home / LAKE_FOLDER, fault, ANALYSE_AGAIN) from error
        log.unlink(missing_ok=True)
        temporary.replace(path)
    return path


def remove_left_overs(home: Path) -> None:
    """Remove what a killed refresher left; one that is at work is waited for."""
    if any(home.glob(_LEFT_OVERS)):
        with exclusive_lock(home / _LOCK):
            _remove_left_overs(home)


def is_current(home: Path) -> bool:
    """Whether the catalogue has a view of each table that has files, as this version defines it, in this place."""
    return recorded_origin(home) == (str(home), _definition(_script(home)))


def recorded_origin(home: Path) -> tuple[str, str] | None:
    """(home at the time it was built, digest of its definition) of the catalogue; None where none can be read."""
    if not (home / FILE_NAME).is_file():
        return None
    try:
        with connect_in_memory() as connection:
            attach(connection, home)
            [[built_at, definition]] = connection.execute(f"SELECT home, definition FROM {_ORIGIN}").fetchall()
    except duckdb.Error:
        return None
    return built_at, definition


def attach(connection: duckdb.DuckDBPyConnection, home: Path) -> None:
    """Attach a home's catalogue read-only to an in-memory connection, and make it the default.

    Opened by its path, DuckDB hands out the catalogue that another connection of the process has open, also when
    the file was swapped since; attached, it opens the file that is there.
    """
    connection.execute(f"ATTACH {quoted_text(str(home / FILE_NAME))} AS {_ALIAS} (READ_ONLY)")
    connection.execute(f"USE {_ALIAS}")


def build_in_memory(connection: duckdb.DuckDBPyConnection, home: Path) -> None:
    """Make the views in the connection itself, for a home that can only be read and whose catalogue is of no use."""
    connection.execute(f"ATTACH ':memory:' AS {_ALIAS}")
    connection.execute(f"USE {_ALIAS}")
    connection.execute(";\n".join(_script(home)))


def create_narrow_views(
    connection: duckdb.DuckDBPyConnection,
    home: Path,
    run: str,
    iteration: int,
    sql: str,
    tables: Collection[str] | None = None,
) -> None:
    """Create a view of each table that a query names, over the files of one iteration alone.

    Partitions that are kept although they are stale are left out. No other folder is listed, and a damaged file of
    another table is not opened: that table may be what the query is to make anew.

    Args:
        tables: the only ones that the query may read; None lets it read all.
    """
    words = set(re.findall(r"\w+", sql.lower()))
    for table in all_tables().values():
        if table.name not in words or (tables is not None and table.name not in tables):
            continue
        folder = home / LAKE_FOLDER / table.name
        present = next(find_partitions(folder, table, run, iteration), None) is not None
        hidden = hidden_ranks(home / LAKE_FOLDER, table, run, iteration)
        connection.execute(_view(folder, table, present, run, iteration, hidden))


def view_columns(table: Table) -> tuple[Column, ...]:
    """The columns of a table's view: its partition columns, then those of its files."""
    return tuple(PARTITION_COLUMNS[name] for name in table.partitioned_by) + table.columns


def quoted_text(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def named_parameters(sql: str) -> set[str]:
    """The parameters (``$name``) of a statement; a dollar sign in a text, a quoted name or a comment names none."""
    return {found["name"] for found in _WORDS.finditer(sql) if found["name"]}


def with_values(sql: str, values: Mapping[str, str]) -> str:
    """A statement with SQL in place of its parameters.

    Args:
        values: parameter, without its dollar sign → SQL; others stay.
    """
    return _WORDS.sub(lambda found: values.get(found["name"] or "", found[0]), sql)


_WORDS = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<name>[A-Za-z_]\w*)""", re.VERBOSE | re.DOTALL
)
"""What may hold a dollar sign that names no parameter; else a parameter."""


def quoted_name(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_type(arrow_type: pa.DataType) -> str:
    """DuckDB's name of the type that a column of the tables has in a query."""
    if pa.types.is_list(arrow_type):
        return sql_type(arrow_type.value_type) + "[]"
    return _SQL_TYPES[arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type]


def _remove_left_overs(home: Path) -> None:
    for left_over in home.glob(_LEFT_OVERS):
        left_over.unlink(missing_ok=True)


def _build(path: Path, home: Path) -> None:
    script = _script(home)
    with connect_in_memory() as connection:
        connection.execute(f"ATTACH {quoted_text(str(path))} AS {_ALIAS} (STORAGE_VERSION '{_STORAGE_VERSION}')")
        connection.execute(f"USE {_ALIAS}")
        schema, _, view = _ORIGIN.partition(".")
        origin = f"SELECT {quoted_text(str(home))} AS home, {quoted_text(_definition(script))} AS definition"
        # One transaction: hundreds of them, each with its own write to the disk, take ten times as long.
        connection.execute("BEGIN")
        connection.execute(";\n".join([*script, f"CREATE SCHEMA {schema}", f"CREATE VIEW {schema}.{view} AS {origin}"]))
        connection.execute("COMMIT")
        connection.execute("USE memory")
        connection.execute(f"DETACH {_ALIAS}")


def _script(home: Path) -> list[str]:
    lake = home / LAKE_FOLDER
    tables = all_tables()
    present = {name for name, table in tables.items() if next(find_partitions(lake / name, table), None) is not None}
    statements = [statement for table in tables.values() for statement in _statements(lake, table, present)]
    return statements + [statement for view in VIEWS for statement in _statements_of_view(view)]


def _definition(script: list[str]) -> str:
    return xxhash.xxh3_128_hexdigest("\n".join(script).encode())


def _statements(lake: Path, table: Table, present: Collection[str]) -> list[str]:
    columns = [(column.name, column.comment) for column in view_columns(table)]
    return [_view(lake / table.name, table, table.name in present), *_comments(table.name, table.comment, columns)]


def _statements_of_view(view: View) -> list[str]:
    return [f"CREATE VIEW {quoted_name(view.name)} AS {view.sql}", *_comments(view.name, view.comment, view.columns)]


def _comments(view: str, comment: str, columns: Sequence[tuple[str, str]]) -> list[str]:
    name = quoted_name(view)
    return [
        f"COMMENT ON VIEW {name} IS {quoted_text(comment)}",
        *(f"COMMENT ON COLUMN {name}.{quoted_name(column)} IS {quoted_text(text)}" for column, text in columns),
    ]


def _view(
    folder: Path,
    table: Table,
    present: bool,
    run: str | None = None,
    iteration: int | None = None,
    hidden: Collection[int] = (),
) -> str:
    columns = view_columns(table)
    head = f"CREATE VIEW {quoted_name(table.name)} AS SELECT "
    if not present:
        nulls = (f"CAST(NULL AS {sql_type(column.type)}) AS {quoted_name(column.name)}" for column in columns)
        return head + ", ".join(nulls) + " WHERE false"
    pattern = quoted_text(glob_pattern(folder, table, run, iteration))
    types = ", ".join(f"{name}: {sql_type(PARTITION_COLUMNS[name].type)}" for name in table.partitioned_by)
    names = ", ".join(quoted_name(column.name) for column in columns)
    rows = f"{head}{names} FROM read_parquet({pattern}, hive_partitioning = true, hive_types = {{{types}}})"
    return f"{rows} WHERE rank NOT IN ({', '.join(map(str, sorted(hidden)))})" if hidden else rows
