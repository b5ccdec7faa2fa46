"""Running a user's SQL where it can read the lake and nothing else: no writing, no other file, no network.

DuckDB's own settings confine it to the lake's folder, but there they let it write as well as read; a statement is
therefore also checked by its parsed form before it runs.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from traceviz_dag.errors import BadInputError, OutputError, TracevizError, UsageError
from traceviz_dag.lake import catalogue
from traceviz_dag.lake.bounds import UNBOUND, Bounds, FilesGoneError, Parameters
from traceviz_dag.lake.partitions import FILE_NAME, fault_and_remedy, glob_literal
from traceviz_dag.system.duckdb_memory import connect_in_memory, interruptible
from traceviz_dag.system.whole_files import scratch_folder

_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
# Functions of a FROM clause that neither run SQL held in a text nor change the state of the database.
_READING_FUNCTIONS = {
    "generate_series",
    "json_each",
    "json_tree",
    "parquet_file_metadata",
    "parquet_metadata",
    "parquet_schema",
    "parquet_scan",
    "pragma_table_info",
    "range",
    "read_parquet",
    "repeat",
    "repeat_row",
    "unnest",
}
_SPILL = ".duckdb_spill"
_GONE = (os.strerror(errno.ENOENT), "No files found that match the pattern")
_TOO_HUGE = "UHUGEINT"
_HUGE_INTEGER = pa.decimal128(38, 0)
_LAKE_FILE = re.compile(rf"""(["']).*?{re.escape(FILE_NAME)}\1""")
_MISSING_TABLE = re.compile(r'Table with name "?([^" ]+)"? does not exist')


def tells_damage(error: Exception) -> bool:
    """Whether an error of a query that is known to be right concerns its files: damaged, gone, with other columns."""
    of_files = (duckdb.IOException, duckdb.InvalidInputException, duckdb.BinderException, UnicodeDecodeError)
    # A footer that cannot be decoded raises the base class itself.
    return isinstance(error, of_files) or type(error) is duckdb.Error


def are_gone(error: Exception) -> bool:
    """Whether an error is about files that were deleted between the listing and the opening."""
    text = str(error)
    return isinstance(error, duckdb.IOException) and any(words in text for words in _GONE)


@contextmanager
def open_read_only(home: Path, in_memory: bool = False, in_home: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a home's catalogue that can read the files under its lake and whose settings are locked.

    Args:
        in_memory: make the views anew, for this connection alone. in_home: see ``Bounds``.

    Raises:
        duckdb.Error: the catalogue cannot be opened.
    """
    lake = home / catalogue.LAKE_FOLDER
    # The views' patterns are checked before they are expanded, the files after.
    allowed = ", ".join(catalogue.quoted_text(f"{prefix}/") for prefix in (lake, glob_literal(lake)))
    with _spill_folder(home if in_home else None) as spill, connect_in_memory() as connection:
        if in_memory:
            catalogue.build_in_memory(connection, home)
        else:
            catalogue.attach(connection, home)
        connection.execute(f"SET temp_directory = {catalogue.quoted_text(str(spill or ''))}")
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


@contextmanager
def _spill_folder(home: Path | None) -> Iterator[Path | None]:
    """Where a large query puts what memory does not hold: in the home, beside the lake; what a killed query left there
    goes. Of a home that can only be read, the system's folder; None where that has no room either.
    """
    base = None if home is None else home / _SPILL
    with ExitStack() as stack:
        spill = None
        for place in dict.fromkeys((base, None)):
            with suppress(OutputError):
                spill = stack.enter_context(scratch_folder(place))
                break
        yield spill
    if base is not None:
        with suppress(OSError):
            base.rmdir()


def run_select(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Parameters,
    tables: Sequence[str],
    bounds: Bounds = UNBOUND,
) -> pa.Table:
    """Run one reading statement.

    Integers that DuckDB widens to 128 bits (sums) come back as 64 bits where they fit; those without a sign, which no
    type of Arrow holds, as texts. A column name that stands twice gets a number behind it.

    Args:
        parameters: values of ``$name`` (a mapping) or ``?`` (a sequence).
        tables: names to offer when a table is not found.

    Raises:
        UsageError: one line, when the statement does more than read, or DuckDB refuses it.
        BadInputError: a file of the lake that it reads is damaged.
    """

    def asked() -> pa.Table:
        _check_reads_only(connection, sql)
        return fetch(connection, sql, parameters, many=True, bounds=bounds)

    try:
        result = interruptible(connection, asked, bounds.seconds)
    except (duckdb.InternalException, duckdb.FatalException):
        raise
    except duckdb.Error as error:
        if are_gone(error):
            raise FilesGoneError(_one_line(str(error), tables)) from error
        raise _refusal(error, tables) from error
    except UnicodeDecodeError as error:
        raise UsageError("a file that the query reads holds damaged text; traceviz lake verify names it") from error
    return _distinct_names(result)


def fetch(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Parameters,
    *,
    many: bool = False,
    bounds: Bounds = UNBOUND,
) -> pa.Table:
    """The rows of a query that is known to read only, 128-bit integers as 64 bits where they fit.

    Args:
        many: take no copy of the rows. That plans the query twice, for its columns and to run; the many queries of an
            iteration have few rows, and planning is most of what they take.
        bounds: how many of them; only of ``many``.
    """
    asked: Any = connection.sql(sql, params=parameters) if many else connection.execute(sql, parameters)
    if bounds.rows is not None:
        asked = asked.limit(bounds.rows, bounds.offset)
    if many and any(_TOO_HUGE in str(kind) for kind in asked.types):
        asked = asked.project(", ".join(starmap(_exact, enumerate(zip(asked.columns, asked.types, strict=True), 1))))
    result = asked.to_arrow_table()
    columns = [_narrowed(column) for column in result.columns]
    return pa.Table.from_arrays(columns, names=result.column_names)


def _check_reads_only(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        advice = "; name the values of a PIVOT with IN (…)" if re.search(r"\bpivot\b", sql, re.IGNORECASE) else ""
        raise UsageError(f"one statement that reads is taken: SELECT, DESCRIBE, SUMMARIZE or SHOW{advice}")
    [[form]] = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [sql]).fetchall()
    parsed = json.loads(form)
    if parsed["error"]:
        raise UsageError(f"the statement cannot be checked for writes: {parsed.get('error_message', 'no parsed form')}")
    for node in _dictionaries(parsed):
        kind = str(node.get("type", ""))
        if (kind.endswith("_NODE") or "cte_map" in node) and kind not in _READING_NODES:
            raise UsageError(f"only reading is possible here: {kind.split('_', maxsplit=1)[0]} is not")
        if kind == "TABLE_FUNCTION":
            _check_function(str(node["function"]["function_name"]).lower())


def _check_function(name: str) -> None:
    if name not in _READING_FUNCTIONS and not name.startswith("duckdb_"):
        raise UsageError(f"the table function {name} is not available here: queries read the lake's tables only")


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _refusal(error: duckdb.Error, tables: Sequence[str]) -> TracevizError:
    damaged = _LAKE_FILE.search(str(error))
    if damaged is not None and isinstance(error, duckdb.InvalidInputException | duckdb.IOException):
        fault, remedy = fault_and_remedy(error)
        words = str(error).splitlines()[0].replace(damaged[0], "it")
        return BadInputError(damaged[0].strip("\"'"), f"{fault} ({words})", remedy)
    return UsageError(_one_line(str(error), tables))


def _one_line(message: str, tables: Sequence[str]) -> str:
    """DuckDB's message without the excerpt of the statement; the hint stays, where it is one of use."""
    text = re.split(r"\n\s*\nLINE \d+:", message, maxsplit=1)[0]
    missing = _MISSING_TABLE.search(text)
    if missing is None:
        return " ".join(text.split())
    close = difflib.get_close_matches(missing[1], tables, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"there is no table {missing[1]}; {hint}the tables are {', '.join(tables)}"


def _exact(number: int, column: tuple[str, object]) -> str:
    """A column by its number, in a type that Arrow has."""
    name, kind = column
    text = str(kind)
    cast = f"::{text.replace(_TOO_HUGE, 'VARCHAR')}" if _TOO_HUGE in text else ""
    return f"#{number}{cast} AS {catalogue.quoted_name(name)}"


def _narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type != _HUGE_INTEGER:
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _distinct_names(result: pa.Table) -> pa.Table:
    names: list[str] = []
    for name in result.column_names:
        candidate, number = name, 0
        while candidate in names:
            number += 1
            candidate = f"{name}_{number}"
        names.append(candidate)
    return result.rename_columns(names)
