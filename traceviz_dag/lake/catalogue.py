"""The DuckDB catalogue: a small file of commented views over the lake's Parquet files, built anew and swapped."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from traceviz_dag.errors import BadInputError, OutputError
from traceviz_dag.lake.across_ranks_views import VIEWS
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.partitions import ANALYSE_AGAIN, SCHEMA_VERSION_KEY, find_files, glob_literal, glob_pattern
from traceviz_dag.lake.partitions import FILE_NAME as PART_NAME
from traceviz_dag.lake.record_lines import Record
from traceviz_dag.lake.recorded import (
    Parts,
    check,
    find_packed,
    find_parts,
    iterations_below,
    own_path,
    recorded,
    refuse_gone,
    tell_missing,
)
from traceviz_dag.lake.stale import hidden_ranks, read_stale
from traceviz_dag.lake.upgrade import is_upgraded
from traceviz_dag.system.duckdb_memory import attaching_database
from traceviz_dag.system.whole_files import exclusive_lock, scratch_folder
from traceviz_dag.tables import PARTITION_COLUMNS, Column, Table, all_tables

if TYPE_CHECKING:
    import duckdb

FILE_NAME = "traceviz.duckdb"
LAKE_FOLDER = "lake"

_ALIAS = "traceviz"
# The oldest format that holds comments on views: older DuckDB clients can open the file, too.
_STORAGE_VERSION = "v1.0.0"
_META = "traceviz_meta"
"""Schema of what the views for users rest on: for each table a view over its files, and where the home was."""

_ORIGIN = f"{_META}.origin"
_ATTEMPTS = 5
_READ_ONCE = ((4, 1 << 18), (8, 4 << 20))
"""From so many mentions on, a table of so many bytes at most, which are compressed, is read once: reading all of its
columns takes as long as three mentions of a narrow one, nine of the widest; of few bytes, planning takes most."""
LEAST_COPIED = 64
"""Files from which on a table is copied into one file: opening a thousand takes a third of a second a query."""
_FEW_BYTES = 1 << 16
"""Of files of so many bytes at most on average opening takes most of the time."""
_COLUMNS_OF_A_MENTION = 12
"""Copying such files, with all of their columns, takes as long as a mention for so many of these, and two at the least;
of larger ones as long as eight."""
_COPY_ROWS = 20_480
"""Of a row group of a copy: more take more memory while they are gathered."""
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
    import duckdb

    path = home / FILE_NAME
    with exclusive_lock(home / _LOCK):
        _remove_left_overs(home)
        # A client that had the former catalogue open for writing may have left its log: not this file's.
        log = path.with_name(f"{FILE_NAME}.wal")
        if not log.exists() and is_current(home):
            return path
        temporary = home / f".{FILE_NAME}.new.building"
        former = None if log.exists() else _origin(home)
        attempts = 0
        while True:
            views = _views(home)
            try:
                _build(temporary, home, former, views)
                break
            except (duckdb.Error, OSError) as error:
                _remove_left_overs(home)
                if os.strerror(errno.ENOSPC) in str(error):
                    fault = f"cannot be built ({os.strerror(errno.ENOSPC)})"
                    raise OutputError(path, fault, "free space there", errno.ENOSPC) from error
                if isinstance(error, OSError):
                    raise
                # A table's last file can be deleted between the listing and the view that needs a file, or be packed.
                former, attempts = None, attempts + (_views(home) == views)
                if attempts == _ATTEMPTS:
                    for part in (home / LAKE_FOLDER).glob(f"*/**/{PART_NAME}"):
                        if not part.is_file():
                            raise BadInputError(
                                part, "is no file of a table", f"move it away; {ANALYSE_AGAIN}"
                            ) from error
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
    origin = _origin(home)
    return origin is not None and (origin.home, origin.definitions) == (str(home), _digests(_views(home)))


def recorded_home(home: Path) -> str | None:
    """Where the home was when its catalogue was built; None where none can be read."""
    origin = _origin(home)
    return None if origin is None else origin.home


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
    connection.execute(";\n".join([f"CREATE SCHEMA {_META}", *_views(home).values()]))


@dataclass(slots=True)
class NarrowViews:
    """A view of each table that queries name, over the files of one iteration alone, made as they name it, and made
    anew where its files are others since.

    Partitions that are kept although they are stale are left out. No other folder is listed, and a damaged file of
    another table is not opened: that table may be what the query is to make anew. A small table is read into memory
    instead: each mention of a view opens all its files again, one per rank, and takes longer to plan. One of many files
    is copied into a single one, which is gone with the folder that it is in.

    Files are listed, and compared with their record, once as long as it and they stay as they are: of a thousand ranks,
    it takes longer than most queries.

    Attributes:
        tables: the only ones that queries may read; None lets them read all.
        folders: takes the folder of copies until it is closed; None: nothing is copied.
        found: table → its files, how each looked, and the columns that some lack, with the runs that lack them. Whoever
            learns that a file is gone empties it.
    """

    connection: duckdb.DuckDBPyConnection
    home: Path
    run: str
    iteration: int
    tables: Collection[str] | None = None
    folders: ExitStack | None = None
    found: dict[str, tuple[_Files, _States, Mapping[str, set[str]]]] = field(default_factory=dict)
    _record: Record | None = None
    _folder: Path | None = None
    _mentions: Counter[str] = field(default_factory=Counter)
    _made: dict[str, tuple[str, object]] = field(default_factory=dict)
    """Table → what was made of it, TABLE or VIEW, and of which files."""
    _copies: dict[str, tuple[Path, _Held]] = field(default_factory=dict)
    """Table → the file that it was copied into, and what it held then."""

    def prepare(self, sql: str) -> set[str]:
        """Make what one query, or several, need, and return the tables that were made, or made anew.

        Raises:
            BadInputError: a part of a table that it names is not the one that was written there.
        """
        record = recorded(self.home / LAKE_FOLDER, self.run, self.iteration)
        if record is not self._record:
            self._record = record
            self.found.clear()
        named = [table for table in tables_named_in(sql) if self.tables is None or table.name in self.tables]
        # Other words, such as columns of the same name, open no file.
        mentions = Counter(re.findall(r"\b(?:from|join)\s+(\w+)", sql.lower()))
        self._mentions.update({table.name: mentions[table.name] for table in named})
        by_rank = any("rank" in table.partitioned_by for table in named)
        marks = read_stale(self.home / LAKE_FOLDER, self.run, self.iteration) if by_rank else ()
        statements: list[str] = []
        made: dict[str, tuple[str, object]] = {}
        for table in named:
            name, folder = quoted_name(table.name), self.home / LAKE_FOLDER / table.name
            known = self.found.get(table.name)
            if known is None or tuple(map(_state, known[0].paths)) != known[1]:
                known = self._find(table)
            files, states, missing = known
            tell_missing(table, missing, columns_named_in(sql, table))
            hidden = frozenset(hidden_ranks(table, marks))
            held = files, states, hidden
            former, made_of = self._made.get(table.name, (None, None))
            size = sum(size for size, *_ in states)
            has_copy = table.name in self._copies
            small = former == "TABLE" or (not has_copy and self._is_small(table, size))
            copied = not small and (has_copy or self._is_to_copy(table, len(states), size))
            kind = "TABLE" if small else "VIEW"
            wanted = (kind, (held, copied))
            if (former, made_of) == wanted:
                continue
            if not files.paths:
                refuse_gone(self.home / LAKE_FOLDER, table, self.run, self.iteration)
            # Not there where the one after it could not be made.
            statements += [f"DROP {former} IF EXISTS {name}"] if former else []
            if files.paths:
                rows = _rows(folder, table, files, hidden)
                rows = self._copy(table, rows, held) if copied else rows
                statements.append(f"CREATE {kind} {name} AS {rows}")
            else:
                # As small as it gets, and a view of no rows takes longer to plan.
                columns = (f"{quoted_name(column.name)} {sql_type(column.type)}" for column in view_columns(table))
                statements.append(f"CREATE {kind} {name} ({', '.join(columns)})")
            made[table.name] = wanted
        # All or none: what was made before one that fails would be made again, and be there.
        self.connection.begin()
        try:
            self.connection.execute(";\n".join(statements))
        except BaseException:
            # Also of an interrupt, which is no error of DuckDB's: until then, it would answer nothing more.
            self.connection.rollback()
            raise
        self.connection.commit()
        self._made |= made
        return set(made)

    def copy_of(self, table: Table) -> Path | None:
        """The file with the rows of all its ranks, in order, as they are now, if it was copied.

        Who asks reads all ranks, mostly several times: Arrow takes as long to open all files as copying them takes.
        """
        self._mentions[table.name] += _mentions_of_a_copy(table)
        self.prepare(f"FROM {table.name}")
        path, (files, _, hidden) = self._copies.get(table.name, (None, (_Files(), (), frozenset())))
        return None if files.packs or hidden else path

    def _find(self, table: Table) -> tuple[_Files, _States, Mapping[str, set[str]]]:
        lake = self.home / LAKE_FOLDER
        parts = find_parts(lake, table, self.run, self.iteration)
        missing = check(lake, table, (one for some in parts for one in some.one_a_file))
        # By rank.
        ordered = [replace(some, own=tuple(sorted(some.own, key=lambda one: one.sort_key))) for some in parts]
        paths = tuple(path for some in ordered for path in some.files(lake, table.name))
        files = _files_of(lake / table.name, ordered, paths)
        self.found[table.name] = (files, tuple(map(_state, paths)), missing)
        return self.found[table.name]

    def _is_to_copy(self, table: Table, files: int, size: int) -> bool:
        least = _mentions_of_a_copy(table) if size <= _FEW_BYTES * files else 8
        return self.folders is not None and files >= LEAST_COPIED and self._mentions[table.name] >= least

    def _copy(self, table: Table, rows: str, held: _Held) -> str:
        """Copy rows into one file; returns what selects them there, or the rows themselves where there is no room."""
        import duckdb

        self._copies.pop(table.name, None)
        try:
            if self._folder is None and self.folders is not None:
                self._folder = self.folders.enter_context(scratch_folder())
            path = Path(f"{self._folder}/{table.name}.parquet")
            version = f"{quoted_text(SCHEMA_VERSION_KEY.decode())}: {quoted_text(table.version)}"
            options = f"FORMAT parquet, ROW_GROUP_SIZE {_COPY_ROWS}, KV_METADATA {{{version}}}"
            self.connection.execute(f"COPY ({rows}) TO {quoted_text(str(path))} ({options})")
        except (OutputError, duckdb.IOException) as error:
            if isinstance(error, duckdb.IOException) and os.strerror(errno.ENOSPC) not in str(error):
                raise
            return rows
        self._copies[table.name] = (path, held)
        return f"FROM read_parquet({quoted_text(str(path))}, hive_partitioning = false)"

    def _is_small(self, table: Table, size: int) -> bool:
        mentions = self._mentions[table.name]
        return not size or any(mentions >= least and size <= most for least, most in _READ_ONCE)


def _mentions_of_a_copy(table: Table) -> int:
    """As many mentions of a table as take the time of a copy of small files."""
    return max(2, len(table.columns) // _COLUMNS_OF_A_MENTION)


def _state(path: Path) -> tuple[int, ...]:
    """Its size, first, and what else differs once a file is replaced."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return (0,)  # gone since it was listed: the query reports it
    return (status.st_size, status.st_mtime_ns, status.st_ino)


def tables_named_in(sql: str) -> list[Table]:
    """The tables that a query may read: those that it names, also by way of a view, and all where it names files."""
    words = words_of(sql)
    if "parquet" in sql.lower():
        return list(all_tables().values())
    for view in reversed(VIEWS):
        if view.name in words:
            words |= words_of(view.sql)
    return [table for table in all_tables().values() if not words.isdisjoint({table.name, _files_view(table)})]


def _files_view(table: Table) -> str:
    """The plain view over a table's files, on which its view rests."""
    return f"{table.name}_files"


def columns_named_in(sql: str, table: Table) -> set[str]:
    """The columns of a table that a query may read: all of them, where it has a star."""
    names = {column.name for column in table.columns}
    return names if "*" in sql else names & words_of(sql)


def words_of(sql: str) -> set[str]:
    """Every word of a query, in small letters, and so every name in it."""
    return set(re.findall(r"\w+", sql.lower()))


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
    """A statement with SQL instead of its parameters.

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


def _build(path: Path, home: Path, former: _Origin | None, views: Mapping[str, str]) -> None:
    """Write a catalogue: the former one of this place, or one without files, with each view that is now another."""
    if former is not None and former.home == str(home):
        known = former.definitions
        shutil.copyfile(home / FILE_NAME, path)
    else:
        empty = _composed(Path(), ())
        known = _digests(empty)
        _write_empty(path, empty)
    _change(path, home, known, views)


def _write_empty(path: Path, views: Mapping[str, str]) -> None:
    """The catalogue of a home without files: its hundreds of comments take ten times as long as its views."""
    written = tuple(views.items())
    if written not in _EMPTY:
        # Built where it belongs: what a killed process leaves there, the next one removes.
        _change(path, Path(), {}, views)
        _EMPTY.clear()
        _EMPTY[written] = path.read_bytes()
    else:
        path.write_bytes(_EMPTY[written])


_EMPTY: dict[tuple[tuple[str, str], ...], bytes] = {}
"""The views of a catalogue without files → its bytes, as this process built it."""


def _change(path: Path, home: Path, known: Mapping[str, str], views: Mapping[str, str]) -> None:
    """Make those views of a catalogue anew that are others than those known, by their digests."""
    digests = _digests(views)
    script = [f"CREATE SCHEMA IF NOT EXISTS {_META}"]
    script += [f"DROP VIEW {name}" for name in sorted(known.keys() - digests.keys(), reverse=True)]
    script += [statements for name, statements in views.items() if known.get(name) != digests[name]]
    script.append(
        f"CREATE OR REPLACE VIEW {_ORIGIN} AS SELECT {quoted_text(str(home))} AS home, "
        f"{quoted_text(json.dumps(digests))} AS definitions"
    )
    with attaching_database() as connection:
        connection.execute(f"ATTACH {quoted_text(str(path))} AS {_ALIAS} (STORAGE_VERSION '{_STORAGE_VERSION}')")
        connection.execute(f"USE {_ALIAS}")
        # A quarter of the time otherwise, and there is nothing to optimise; other connections keep theirs.
        connection.execute("PRAGMA disable_optimizer")
        # One transaction: hundreds of them, each with its own write to the disk, take ten times as long.
        connection.execute("BEGIN")
        connection.execute(";\n".join(script))
        connection.execute("COMMIT")
        connection.execute("USE memory")
        connection.execute(f"DETACH {_ALIAS}")


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a catalogue says of itself: where the home was, and view → digest of the statements that made it."""

    home: str
    definitions: Mapping[str, str]


def _origin(home: Path) -> _Origin | None:
    import duckdb

    try:
        file = (home / FILE_NAME).stat()
        return _origin_in(home, file.st_ino, file.st_size, file.st_mtime_ns)
    except (OSError, duckdb.Error, ValueError):
        return None


@lru_cache(maxsize=16)
def _origin_in(home: Path, *_of_file: int) -> _Origin:
    """A file that is as it was when it was last asked is not opened again."""
    with attaching_database() as connection:
        attach(connection, home)
        [[built_at, definitions]] = connection.execute(f"SELECT home, definitions FROM {_ORIGIN}").fetchall()
        connection.execute("USE memory")
        connection.execute(f"DETACH {_ALIAS}")
    return _Origin(built_at, json.loads(definitions))


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a table that a view is over.

    Attributes:
        own: DuckDB's patterns of those of one part each.
        packs: patterns of packed ones, each with the ranks of which it does not count.
        paths: all of them, where the view is of one iteration.
    """

    own: tuple[str, ...] = ()
    packs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    paths: tuple[Path, ...] = ()


_States = tuple[tuple[int, ...], ...]
_Held = tuple[_Files, _States, frozenset[int]]
"""The files of a table in an iteration, how each looked, and the ranks that are left out."""


def _files_of_table(folder: Path, table: Table, packed: Sequence[Parts]) -> _Files:
    """Whatever is there or will be, as long as nothing is packed; from then on iteration by iteration, so that no view
    counts a rank twice, and one that is older than a packing fails rather than miss what was packed.
    """
    if packed:
        places = {(parts.run, parts.iteration) for parts in packed}
        rest = (place for place in iterations_below(folder) if place not in places)
        own = [
            glob_pattern(folder, table, *place)
            for place in rest
            if next(find_files(folder, table, *place), None) is not None
        ]
        return _files_of(folder, packed, (), own)
    is_there = next(find_files(folder, table), None) is not None
    return _Files((glob_pattern(folder, table),) if is_there else ())


def _files_of(folder: Path, found: Sequence[Parts], paths: tuple[Path, ...], patterns: Sequence[str] = ()) -> _Files:
    own = (glob_literal(own_path(folder.parent, folder.name, one)) for parts in found for one in parts.own)
    packs = (
        (glob_literal(parts.pack.path(folder.parent, parts.run, parts.iteration)), parts.others)
        for parts in found
        if parts.pack is not None and parts.packed
    )
    return _Files((*patterns, *own), tuple(packs), paths)


def _views(home: Path) -> Mapping[str, str]:
    """View, with its schema → the statements that make it and its comments, for a home as it is now."""
    lake, tables = home / LAKE_FOLDER, all_tables().items()
    packed = find_packed(lake)
    files = tuple((name, _files_of_table(lake / name, table, packed.get(name, ()))) for name, table in tables)
    # Of another version, what the views are depends on what the files have.
    compose = _composed if is_upgraded(lake) else _composed.__wrapped__
    return compose(lake, files)


@lru_cache(maxsize=16)
def _composed(lake: Path, files: tuple[tuple[str, _Files], ...]) -> Mapping[str, str]:
    views: dict[str, str] = {}
    of_table = dict(files)
    for table in all_tables().values():
        name = f"{_META}.{quoted_name(_files_view(table))}"
        rows = _rows(lake / table.name, table, of_table.get(table.name, _Files()))
        views[name] = f"CREATE OR REPLACE VIEW {name} AS {rows}"
        views.update(_view_of_table(table))
    for view in VIEWS:
        views.update(_commented_view(view.name, view.sql, view.comment, view.columns))
    return views


@lru_cache(maxsize=256)
def _view_of_table(table: Table) -> Mapping[str, str]:
    """The view that users see, over that of files: the same in every home."""
    columns = view_columns(table)
    names = ", ".join(quoted_name(column.name) for column in columns)
    comments = tuple((column.name, column.comment) for column in columns)
    rows = f"SELECT {names} FROM {_META}.{quoted_name(_files_view(table))}"
    return _commented_view(table.name, rows, table.comment, comments)


def _commented_view(view: str, rows: str, comment: str, columns: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    name = f"main.{quoted_name(view)}"
    statements = [
        f"CREATE OR REPLACE VIEW {name} AS {rows}",
        f"COMMENT ON VIEW {name} IS {quoted_text(comment)}",
        *(f"COMMENT ON COLUMN {name}.{quoted_name(column)} IS {quoted_text(text)}" for column, text in columns),
    ]
    return {name: ";\n".join(statements)}


def _digests(views: Mapping[str, str]) -> Mapping[str, str]:
    return {name: _digest(statements) for name, statements in views.items()}


@lru_cache(maxsize=512)
def _digest(statements: str) -> str:
    return xxhash.xxh3_128_hexdigest(statements.encode())


def _rows(folder: Path, table: Table, files: _Files, hidden: Collection[int] = ()) -> str:
    columns = view_columns(table)
    if not (files.own or files.packs):
        nulls = (f"CAST(NULL AS {sql_type(column.type)}) AS {quoted_name(column.name)}" for column in columns)
        return f"SELECT {', '.join(nulls)} WHERE false"
    if is_upgraded(folder.parent):
        names = ", ".join(quoted_name(column.name) for column in columns)
    else:
        # A home of another version that cannot be written: what its files have, the rest NULL.
        held = {*table.partitioned_by, *_held_columns(folder, table)}
        names = ", ".join(
            quoted_name(column.name)
            if column.name in held
            else f"CAST(NULL AS {sql_type(column.type)}) AS {quoted_name(column.name)}"
            for column in columns
        )
    by_others: dict[tuple[int, ...], list[str]] = {}
    for pattern, others in files.packs:
        by_others.setdefault(others, []).append(pattern)
    in_path = [name for name in table.partitioned_by if name != "rank"]
    # One with ranks that do not count is read by itself: a condition on all rows of the others takes half of a query.
    selects = [
        _select(folder, names, patterns, in_path, {*others, *hidden}) for others, patterns in sorted(by_others.items())
    ]
    if files.own:
        selects.append(_select(folder, names, files.own, table.partitioned_by, hidden))
    return " UNION ALL ".join(selects)


def _select(folder: Path, names: str, patterns: Sequence[str], in_path: Sequence[str], without: Collection[int]) -> str:
    texts = ", ".join(map(quoted_text, patterns))
    types = ", ".join(f"{name}: {sql_type(PARTITION_COLUMNS[name].type)}" for name in in_path)
    options = f"hive_partitioning = true, hive_types = {{{types}}}"
    if not is_upgraded(folder.parent):
        options += ", union_by_name = true"
    rows = f"SELECT {names} FROM read_parquet({texts if len(patterns) == 1 else f'[{texts}]'}, {options})"
    return f"{rows} WHERE rank NOT IN ({', '.join(map(str, sorted(without)))})" if without else rows


def _held_columns(folder: Path, table: Table) -> set[str]:
    """The columns that some part has; a damaged one is reported by the query."""
    names: set[str] = set()
    for parts in find_parts(folder.parent, table):
        for path in parts.files(folder.parent, table.name):
            with suppress(*DAMAGED):
                names.update(pq.read_schema(path).names)
    return names
