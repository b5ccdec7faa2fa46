"""The containers of an Nsight Systems export, a SQLite file or a folder of Parquet files, behind one way of asking.

Both answer the same SQL with Arrow tables, column by column. Tables that can hold secrets (environments, command lines,
host and user names, output of the profiled processes) are not offered at all, so nothing can ask for their rows.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.nsys.pages import PageColumn, TablePages, UnusualPagesError
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.system.duckdb_memory import connect_in_memory, keeping_interrupts
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    import duckdb

_ROWS_PER_BATCH = 1 << 16
_LONGEST_DEFAULT = 1 << 10
_BYTES_OF_A_ROW, _BYTES_OF_A_TABLE = 1 << 10, 1 << 28
"""Texts of an answer may take so many bytes per row, and so many besides."""
_SECRET_TABLES = frozenset({"PROCESSSTREAMS", "ANALYSIS_FILE", "PROCESSES", "DIAGNOSTIC_EVENT"})
_SECRET_PREFIXES = ("META_DATA_",)
_LENGTHS = {"varchar": "strlen", "blob": "octet_length"}
"""DuckDB's type of texts → its function that counts their bytes."""

_NESTED = frozenset({"list", "struct", "map", "array", "union", "variant"})
EXPORT_FACTS = "META_DATA_EXPORT"
"""Holds the versions of schema and product beside command lines; only those named rows may be asked for."""

SYSTEM_FACTS = "TARGET_INFO_SYSTEM_ENV"
"""Holds versions of the driver beside the host's name and whole environments; as above."""

_EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"
_WRITTEN_STILL = "wait until nsys export has ended, or export it again"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some columns of a table that is there.

    Attributes:
        columns: name in the answer → the column, and the SQL literal that represents NULL; None keeps NULL.
        among: the name in the answer of a column of integers, and the values in it that make a row count; None takes
            all rows.
    """

    table: str
    columns: Mapping[str, tuple[str, str | None]]
    among: tuple[str, tuple[int, ...]] | None = None

    @property
    def sql(self) -> str:
        """The query, which may be continued."""
        return self._asking(of_anything=False)

    @property
    def sql_of_anything(self) -> str:
        """The same for SQLite, where a column of integers holds anything: NULL for what is none."""
        return self._asking(of_anything=True)

    def _asking(self, *, of_anything: bool) -> str:
        columns = self.columns.items()
        parts = [f'{_read(column, default, of_anything)} AS "{name}"' for name, (column, default) in columns]
        asked = f'SELECT {", ".join(parts) or "1"} FROM "{self.table}"'
        if self.among is None:
            return asked
        name, values = self.among
        # The sign keeps SQLite from going by an index, in another order.
        return f'{asked} WHERE +"{self.columns[name][0]}" IN ({", ".join(map(str, values))})'


def _read(column: str, default: str | None, of_anything: bool) -> str:
    """SQL that reads a column."""
    if not of_anything or (default is not None and default.startswith("'")):
        return f'"{column}"' if default is None else f'coalesce("{column}", {default})'
    whole = f'CAST("{column}" AS INTEGER)'
    return (
        f"CASE typeof(\"{column}\") WHEN 'integer' THEN \"{column}\" WHEN 'null' THEN {default or 'NULL'} "
        f"WHEN 'real' THEN iif(\"{column}\" = {whole}, {whole}, NULL) END"
    )


class NsysSource(Protocol):
    """An open export."""

    path: Path

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Table → its columns, tables with secrets left out."""

    def query(self, sql: str) -> pa.Table:
        """The answer to a query as an Arrow table.

        Raises:
            BadInputError: the file is damaged or somebody else locks it.
        """

    def batches(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """Rows of a table piece by piece, one piece at least, so that it never is in memory as a whole.

        Types may differ from piece to piece, as in a SQLite file any row may hold anything.

        Raises:
            BadInputError: as ``query``.
        """

    def close(self) -> None:
        """Let go of the file."""


def offers(table: str) -> bool:
    """Whether a table may be read at all."""
    name = table.upper()
    return name not in _SECRET_TABLES and (name == EXPORT_FACTS or not name.startswith(_SECRET_PREFIXES))


class SqliteSource:
    """A ``.sqlite`` export, read only.

    Args:
        path: an existing file that begins as SQLite files do.

    Raises:
        BadInputError: the file cannot be opened or is damaged.
    """

    def __init__(self, path: Path) -> None:
        # Imported here because most commands find what they need in the home, and the drivers take long to import.
        import adbc_driver_manager
        import adbc_driver_sqlite.dbapi

        self.path = path
        self._error = adbc_driver_manager.Error
        try:
            # Quoted because a path may hold characters that mean something in a URI.
            uri = f"{real_path(path).as_uri()}?mode=ro{'&immutable=1' if _logs_ahead(path) else ''}"
            self._connection = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)
        except self._error as error:
            raise self._fault(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Table → its columns, tables with secrets left out; views and virtual tables too, for they run code.

        Raises:
            BadInputError: the file is damaged; or a long text is the default of a column, which a row without a value
                has, however small the file is.
        """
        rows = self.query(
            "SELECT CAST(tables.name AS BLOB) AS name, CAST(columns.name AS BLOB) AS field, "
            "coalesce(length(CAST(columns.dflt_value AS BLOB)), 0) AS bytes "
            "FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
            "WHERE tables.type = 'table' AND tables.rootpage > 0 "
            "ORDER BY tables.name, columns.cid"
        )
        found: dict[str, tuple[str, ...]] = {}
        if max(rows["bytes"].to_pylist(), default=0) > _LONGEST_DEFAULT:
            raise BadInputError(self.path, "a column has a default that no export has", _EXPORT_AGAIN)
        for row in zip(rows["name"].to_pylist(), rows["field"].to_pylist(), strict=True):
            # What is named in no UTF-8 is not of nsys.
            with suppress(UnicodeDecodeError):
                name, column = (text.decode() for text in row)
                if offers(name):
                    found[name] = (*found.get(name, ()), column)
        return found

    def query(self, sql: str) -> pa.Table:
        """The answer to a query as an Arrow table.

        Raises:
            BadInputError: the file is damaged or somebody else locks it.
        """
        try:
            with self._connection.cursor() as cursor:
                self._ask(cursor, sql)
                return cursor.fetch_arrow_table()
        # pyarrow passes on what the driver says while rows are read as an OSError or ArrowException.
        except (self._error, pa.ArrowException, OSError) as error:
            raise self._fault(error) from None

    def batches(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """Rows of a table piece by piece.

        Raises:
            BadInputError: as ``query``.
        """
        given = 0
        try:
            for batch in self._of_pages(wanted):
                given += batch.num_rows
                yield batch
            return
        except (UnusualPagesError, OSError):
            pass  # SQLite reads the rest, or says what is wrong with it
        # An index that holds all that is wanted has another order.
        rest = f" ORDER BY _rowid_ LIMIT -1 OFFSET {given}" if given else ""
        yield from self._answer(wanted.sql_of_anything + rest)

    def _of_pages(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The rows as ``TablePages`` reads them."""
        name = wanted.table.replace("'", "''")
        fields = self.query(
            "SELECT CAST(columns.name AS BLOB) AS name, columns.cid AS place, columns.hidden AS made, "
            "columns.pk AS key, tables.rootpage AS root "
            "FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns "
            f"WHERE tables.type = 'table' AND tables.name = '{name}'"
        ).to_pylist()
        # A record lacks columns that are computed, and a key that is the number of its row.
        places = {field["name"]: field["place"] for field in fields if not field["key"]}
        asked = {column.encode() for column, _ in wanted.columns.values()}
        if any(field["made"] for field in fields) or not asked or not asked <= places.keys():
            raise UnusualPagesError
        columns = {
            name: PageColumn(places[column.encode()], None if default is None else _value(default))
            for name, (column, default) in wanted.columns.items()
        }
        with open_regular(self.path) as file:
            yield from TablePages(file, fields[0]["root"], len(fields)).batches(columns, wanted.among)

    def _answer(self, sql: str) -> Iterator[pa.RecordBatch]:
        try:
            with self._connection.cursor() as cursor:
                self._ask(cursor, sql)
                reader = cursor.fetch_record_batch()
                yield from reader
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        # pyarrow passes on what the driver says while batches are read as an OSError or ArrowException.
        except (self._error, pa.ArrowException, OSError) as error:
            raise self._fault(error) from None

    def _ask(self, cursor: Any, sql: str) -> None:
        # The driver takes a column's type from its first batch.
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_ROWS_PER_BATCH)})
        cursor.execute(sql)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _fault(self, error: Exception) -> BadInputError:
        words = str(error)
        if "locked" in words or "busy" in words:
            return BadInputError(self.path, "another program has locked it", _WRITTEN_STILL)
        if "not a database" in words:
            return BadInputError(self.path, "not a SQLite file", _EXPORT_AGAIN)
        if "no such table" in words or "no such column" in words:
            return BadInputError(self.path, f"it lacks {words.split('no such ')[1].splitlines()[0]}", _EXPORT_AGAIN)
        if "disk I/O error" in words or "unable to open" in words or "failed to open" in words:
            return BadInputError(self.path, "the file cannot be read", "check its permissions and the disk")
        return BadInputError(self.path, "the SQLite file is damaged or was cut short", _EXPORT_AGAIN)


def _logs_ahead(path: Path) -> bool:
    """Whether SQLite would make files beside this one to read it, and could not in a folder that may not be written.

    It does for the journal mode WAL, which bytes 18 and 19 state. A log that holds something is refused earlier, so
    the file is whole and nobody writes it.
    """
    try:
        with open_regular(path) as file:
            return 2 in file.read(20)[18:]
    except OSError:
        return False


class ParquetSource:
    """A folder that ``nsys export --type parquetdir`` wrote: a Parquet file per table.

    Args:
        path: an existing folder.

    Raises:
        BadInputError: something in it that bears a table's name is no Parquet file.
    """

    def __init__(self, path: Path) -> None:
        import duckdb

        self.path = path
        self._error = duckdb.Error
        self._connection = connect_in_memory()
        for file in sorted(path.glob("*.parquet")):
            if offers(file.stem):
                self._view(file)

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Table → its columns, tables with secrets left out."""
        sql = "SELECT table_name, column_name FROM information_schema.columns ORDER BY table_name, ordinal_position"
        with keeping_interrupts():
            rows: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        found: dict[str, tuple[str, ...]] = {}
        for name, column in rows:
            found[name] = (*found.get(name, ()), column)
        return found

    def query(self, sql: str) -> pa.Table:
        """The answer to a query as an Arrow table.

        Raises:
            BadInputError: a file of the folder is damaged, a column is nested, or the texts of the answer are far
                longer than names: a file may hold one long text once and name it in every row.
        """
        try:
            with keeping_interrupts():
                relation = self._connection.sql(sql)
                self._check_size(relation)
                return relation.to_arrow_table()
        except self._error as error:
            raise BadInputError(self.path, f"a table cannot be read ({_first_line(error)})", _EXPORT_AGAIN) from None

    def batches(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """Rows of a table piece by piece.

        Raises:
            BadInputError: as ``query``.
        """
        rows = self.query(wanted.sql)
        yield from rows.to_batches(_ROWS_PER_BATCH)
        yield pa.RecordBatch.from_pylist([], schema=rows.schema)

    def _check_size(self, relation: duckdb.DuckDBPyRelation) -> None:
        texts = []
        for name, kind in zip(relation.columns, relation.types, strict=True):
            if kind.id in _NESTED:
                raise BadInputError(self.path, f"column {name} of a table is nested", _EXPORT_AGAIN)
            if kind.id in _LENGTHS:
                quoted = name.replace('"', '""')
                texts.append(f'coalesce(sum({_LENGTHS[kind.id]}("{quoted}")), 0)')
        if not texts:
            return
        ((rows, size),) = relation.aggregate(f"count(*), {' + '.join(texts)}").fetchall()
        if size > _BYTES_OF_A_TABLE + _BYTES_OF_A_ROW * rows:
            fault = f"{rows:,} rows of a table hold {size:,} bytes of text, far more than names"
            raise BadInputError(self.path, fault, _EXPORT_AGAIN)

    def close(self) -> None:
        """Let go of the files."""
        self._connection.close()

    def _view(self, file: Path) -> None:
        name, place = file.stem.replace('"', '""'), glob.escape(str(file)).replace("'", "''")
        # DuckDB would wait for whoever writes into a FIFO.
        open_regular(file).close()
        try:
            # What the names of folders say, as run=7, is no column.
            rows = f"read_parquet('{place}', hive_partitioning = false)"
            with keeping_interrupts():
                self._connection.execute(f'CREATE VIEW "{name}" AS FROM {rows}')
        except self._error as error:
            raise BadInputError(file, f"not a Parquet file ({_first_line(error)})", _EXPORT_AGAIN) from None


def _value(literal: str) -> int | str:
    """What a SQL literal represents."""
    return literal.strip("'") if literal.startswith("'") else int(literal)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
