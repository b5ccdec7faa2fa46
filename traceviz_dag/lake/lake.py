"""The lake of one home folder: partitions of tables written as Parquet files, read back, and queried with SQL.

DuckDB is imported where something is asked of it: who only reads tables starts without, a seventh sooner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake import catalogue, inputs, recorded
from traceviz_dag.lake.bounds import UNBOUND, Bounds, FilesGoneError, Parameters
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.partitions import (
    FILE_NAME,
    Partition,
    check_filters,
    checked_partition,
    fault_and_remedy,
    find_files,
    own_columns,
)
from traceviz_dag.lake.reader import TableReader
from traceviz_dag.lake.record_lines import NO_FILE, Content
from traceviz_dag.lake.stale import Stale, hidden_ranks, read_stale
from traceviz_dag.lake.upgrade import is_begun, move_aside, upgrade
from traceviz_dag.lake.write import Written, write_parts
from traceviz_dag.system.duckdb_memory import connect_in_memory, interruptible, keeping_interrupts, scratch_database
from traceviz_dag.system.paths import real_path
from traceviz_dag.system.whole_files import remove_all_stale_temporaries, remove_stale_temporaries
from traceviz_dag.tables import TABLES, Table, all_tables
from traceviz_dag.vocabulary import StaleStage

Rows = TypeVar("Rows")

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.02


def open_lake(home: Path, *, refresh: bool = True) -> Lake:
    """The lake of a home folder, which need not exist before something is written.

    A catalogue that was built before the home was moved is built anew, and parts of other versions are converted.

    Args:
        refresh: False: leave the catalogue as it is; who only reads asks with ``Bounds.in_home`` false.

    Raises:
        BadInputError: ``home`` is a file, or has a question mark or what is no UTF-8 in its path.
    """
    home = real_path(home)
    if "?" in str(home):
        # DuckDB reads the path of a database like a URL, and what follows the mark as its query.
        raise BadInputError(home, "holds a question mark, which DuckDB cannot open", "choose another path")
    try:
        str(home).encode()
    except UnicodeEncodeError:
        raise BadInputError(home, "is not UTF-8, which DuckDB cannot open", "choose another path") from None
    if home.exists() and not home.is_dir():
        raise BadInputError(home, "is a file, not a folder", "name the folder that holds the lake with --home")
    lake = Lake(home)
    if lake.tables_folder.is_dir():
        upgrade(lake.tables_folder)
    if refresh and catalogue.recorded_home(home) not in (None, str(home)):
        # Who asks by SQL learns of a damaged file; who analyses its traces again must get this far to fix it.
        with suppress(BadInputError):
            lake._refresh_where_possible()
    return lake


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one home folder; it holds nothing open, and can be sent to other processes.

    Attributes:
        home: the folder, absolute.
        tables_folder: that of all tables.
    """

    home: Path
    tables_folder: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables_folder", self.home / catalogue.LAKE_FOLDER)

    @property
    def catalogue_path(self) -> Path:
        """The DuckDB file of views, for any DuckDB client to open read-only."""
        return self.home / catalogue.FILE_NAME

    def write(
        self, table_name: str, data: pa.Table, *, run: str, iteration: int, rank: int | None = None, made: str = ""
    ) -> Written:
        """Write one partition, in the order of its rows, instead of what was there.

        Equal tables give equal bytes. A reader sees the former file or the new one, never a part. Call
        :meth:`refresh_catalogue` once the first partitions of a table are written, for the sake of other clients.

        Args:
            made: of what it is made, a word without blanks; see ``pipeline/staleness.py``.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
            ValueError: the columns or their types are not those of the table.
        """
        return self.write_together({table_name: data}, run=run, iteration=iteration, rank=rank, made=made)[table_name]

    def write_together(
        self, tables: Mapping[str, pa.Table], *, run: str, iteration: int, rank: int | None = None, made: str = ""
    ) -> dict[str, Written]:
        """Write the partitions of several tables for the same place, as :meth:`write` does one."""
        parts = [(definition(name), data) for name, data in tables.items()]
        partition, *_ = [checked_partition(table, run, iteration, rank) for table, _ in parts]
        if not is_begun(self.tables_folder):
            upgrade(self.tables_folder)
        return write_parts(self.tables_folder, partition, parts, made)

    def exists(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> bool:
        """Whether the partition was written.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
        """
        return self.path(table_name, run=run, iteration=iteration, rank=rank).is_file()

    def is_as_written(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> bool:
        """Whether the partition is there, and its file is the one that was written; read once a process.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
            OSError: the file cannot be read.
        """
        partition = checked_partition(definition(table_name), run, iteration, rank)
        return recorded.is_as_recorded(self.tables_folder, table_name, partition, may_be_gone=False)

    def content(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> Content | None:
        """What is recorded of a partition; None where nothing is.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
        """
        partition = checked_partition(definition(table_name), run, iteration, rank)
        return recorded.content_of(self.tables_folder, table_name, partition)

    def written(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> Written:
        """What :meth:`write` said of a partition that is there.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
            BadInputError: it is not recorded.
            OSError: the file cannot be read.
        """
        path = self.path(table_name, run=run, iteration=iteration, rank=rank)
        content = self.content(table_name, run=run, iteration=iteration, rank=rank)
        if content is None:
            raise BadInputError(path, "is not recorded", "analyse its traces again")
        if rank is None or not recorded.pack_of(self.tables_folder, table_name, Partition(run, iteration, rank)):
            return Written(path, pq.read_metadata(path).num_rows, path.stat().st_size, content.computed)
        rows = self.table(table_name, run, iteration, rank).arrow(["rank"]).num_rows
        return Written(path, rows, path.stat().st_size, content.computed)

    def path(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> Path:
        """The file of a partition, or the packed one that holds it; where it will be, if it is not there.

        Raises:
            UsageError: no such table, or values that cannot name a partition of it.
        """
        table = definition(table_name)
        partition = checked_partition(table, run, iteration, rank)
        return recorded.file_of(self.tables_folder, table.name, partition)

    def partitions(
        self,
        table_name: str,
        run: str | None = None,
        iteration: int | None = None,
        rank: int | None = None,
        *,
        with_stale: bool = False,
    ) -> list[Partition]:
        """The table's partitions, by run, iteration and rank; of the given values alone, where they are given.

        Args:
            with_stale: those of ranks, too, that are kept although they are stale; a rank that is named has its own.

        Raises:
            UsageError: no such table, or values that no partition of it can have.
            BadInputError: the file of the one iteration that is asked for was written, and somebody deleted it.
        """
        table = definition(table_name)
        check_filters(table, run, iteration, rank)
        found = list(recorded.find_partitions(self.tables_folder, table, run, iteration, rank))
        if not (found or with_stale or run is None or iteration is None):
            recorded.refuse_gone(self.tables_folder, table, run, iteration)
        if rank is None and not with_stale and "rank" in table.partitioned_by:
            places = {(part.run, part.iteration) for part in found}
            hidden = {place: hidden_ranks(table, self.stale(*place)) for place in places}
            found = [part for part in found if part.rank not in hidden[part.run, part.iteration]]
        return sorted(found, key=lambda partition: partition.sort_key)

    def stale(self, run: str, iteration: int) -> tuple[Stale, ...]:
        """What of an iteration is kept although it could not be made anew.

        Raises:
            BadInputError: the file that says so is damaged.
        """
        return read_stale(self.tables_folder, run, iteration)

    def has_stale_measures(self, run: str, iteration: int) -> bool:
        """Whether the tables of the iteration itself are kept although its ranks are others now.

        Raises:
            BadInputError: the file that says so is damaged.
        """
        return any(row.stage == StaleStage.ITERATIONS for row in self.stale(run, iteration))

    def is_readable(self, table_name: str, *, run: str, iteration: int, rank: int | None = None) -> bool:
        """Whether the partition is there, and its file is the one that was written, with the columns of the table.

        Raises:
            OSError: the system does not let this process look.
        """
        if not self.is_as_written(table_name, run=run, iteration=iteration, rank=rank):
            return False
        path = self.path(table_name, run=run, iteration=iteration, rank=rank)
        try:
            names = pq.read_schema(path).names
        except DAMAGED:
            return False
        table = definition(table_name)
        return own_columns(table, names) == table.schema.names

    def delete(
        self,
        *table_names: str,
        run: str,
        iteration: int | None = None,
        rank: int | None = None,
        set_aside: bool = False,
    ) -> list[Partition]:
        """Delete the partitions of tables of a run, an iteration or a rank, and return what was deleted.

        Where they were the last ones of a table, the catalogue is refreshed, once: a view needs a file.

        Args:
            set_aside: keep the files beside the lake, where no query reads them.

        Raises:
            UsageError: no such table, or values that no partition of it can have.
            OutputError: a file cannot be set aside.
        """
        deleted: list[Partition] = []
        lost_a_file = False
        for table in map(definition, table_names):
            folder, before = self._folder(table), len(deleted)
            found = recorded.find_parts(self.tables_folder, table, run, iteration, rank)
            packed = {Partition(one.run, one.iteration, rank) for one in found for rank in one.packed}
            for partition in self.partitions(table.name, run, iteration, rank, with_stale=True):
                part = partition.folder(folder)
                with recorded.change_of(self.tables_folder, partition, {table.name: NO_FILE}):
                    with suppress(FileNotFoundError):
                        if partition in packed:
                            (part / FILE_NAME).unlink(missing_ok=True)
                        elif set_aside:
                            move_aside(self.tables_folder, table, partition)
                        else:
                            (part / FILE_NAME).unlink()
                        deleted.append(partition)
                    remove_stale_temporaries(part / FILE_NAME)
            lost_a_file |= bool(packed) or (len(deleted) > before and next(find_files(folder, table), None) is None)
        if rank is None:
            for place in {(one.run, one.iteration) for one in deleted}:
                self.settle(*place)
        if lost_a_file and self.catalogue_path.exists():
            self.refresh_catalogue()
        return deleted

    def sweep(self, run: str, iteration: int) -> None:
        """Remove what killed processes left of an iteration, in the list of inputs and of the catalogue."""
        self.settle(run, iteration)
        remove_all_stale_temporaries(self.tables_folder / recorded.FOLDER)
        remove_all_stale_temporaries(self.home / inputs.FOLDER)
        for table in all_tables().values():
            partition = Partition(run, iteration)
            remove_all_stale_temporaries(partition.folder(self._folder(table)))
            recorded.remove_empty_folders(self.tables_folder, table.name, partition)
        catalogue.remove_left_overs(self.home)

    def settle(self, run: str, iteration: int) -> None:
        """Bring the record of an iteration's parts into its shortest form, once they are written, and remove what it
        names no more of what was packed."""
        recorded.settle(self.tables_folder, run, iteration)
        recorded.remove_unnamed(self.tables_folder, run, iteration)

    def table(
        self, name: str, run: str | None = None, iteration: int | None = None, rank: int | None = None
    ) -> TableReader:
        """A reader of a table, or of the run, iteration and rank that are given; only their files are opened.

        Raises:
            UsageError: no such table, or values that no partition of it can have.
            BadInputError: no partition was written for these values.
        """
        table = definition(name)
        partitions = self.partitions(name, run, iteration, rank)
        if not partitions:
            raise self._nothing_there(table, run, iteration, rank)
        return TableReader(table, self._folder(table), tuple(partitions))

    def rows(
        self, name: str, run: str, iteration: int, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """The rows of a table of an iteration, as :meth:`TableReader.arrow` gives them; none where no part is there.

        Raises:
            UsageError, BadInputError: as for :meth:`partitions` and there.
        """
        return self.rows_of(name, self.partitions(name, run, iteration, rank), columns)

    def rows_of(self, name: str, partitions: Iterable[Partition], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some partitions of a table, one after the other, as :meth:`TableReader.arrow` gives them.

        Raises:
            UsageError, BadInputError: as there.
        """
        table = definition(name)
        return TableReader(table, self._folder(table), tuple(partitions)).arrow(columns)

    def refresh_catalogue(self) -> Path:
        """Build the catalogue anew and swap it in, safe beside other refreshers and open readers.

        Raises:
            BadInputError: a file of the lake cannot be read, or was written with other columns.
        """
        return catalogue.refresh(self.home)

    def query(self, sql: str, parameters: Parameters = None, bounds: Bounds = UNBOUND) -> pa.Table:
        """The rows of one SELECT over the catalogue's views; it can neither write nor read anything else.

        A catalogue that lacks a table, or was built by another version or elsewhere, is refreshed first, or not used
        where nothing is to be written into the home.

        Args:
            parameters: values of ``$name`` (a mapping) or ``?`` (a sequence).
            bounds: how long it may take, and which of its rows are wanted.

        Raises:
            UsageError: one line on what is wrong with the statement, or that it was stopped.
            BadInputError: the home holds no lake, or its catalogue can be neither opened nor built.
        """
        if not self.tables_folder.is_dir():
            raise self.is_empty()
        return _asked_again(lambda: self._query(sql, parameters, bounds))

    def is_empty(self) -> BadInputError:
        """What to raise where nothing was ever analysed into the home."""
        remedy = "analyse a trace into it first, or name another home with --home or TRACEVIZ_HOME"
        return BadInputError(self.home, "holds no analysed traces", remedy)

    def gone_parts(self, sql: str, run: str | None = None, iteration: int | None = None) -> dict[str, list[Partition]]:
        """Parts of the tables that a query names that were written, and that somebody deleted: table → parts.

        Args:
            run, iteration: look at these alone.
        """
        tables = catalogue.tables_named_in(sql)
        found = {table.name: recorded.gone_parts(self.tables_folder, table, run, iteration) for table in tables}
        return {name: parts for name, parts in found.items() if parts}

    def _query(self, sql: str, parameters: Parameters, bounds: Bounds) -> pa.Table:
        import duckdb

        from traceviz_dag.lake import read_only

        packed = self._packed()
        self._check_named(sql)
        current = catalogue.is_current(self.home)
        if not current and bounds.in_home:
            current = self._refresh_where_possible()
            # What the new views are over may be other files than before.
            self._check_named(sql)
        try:
            with read_only.open_read_only(self.home, not current, bounds.in_home) as connection:
                rows = read_only.run_select(connection, sql, parameters, catalogue.queryable(), bounds)
            if self._packed() != packed:
                raise FilesGoneError("tables are being packed; ask again")
            return rows
        except duckdb.Error as error:
            fault = f"the catalogue cannot be opened: {str(error).splitlines()[0]}"
            raise BadInputError(self.catalogue_path, fault, "close the program that holds it, or delete it") from error

    def _packed(self) -> list[tuple[str, int, object]]:
        """What is packed: a view over patterns does not notice that files which it finds no more were packed."""
        packed = recorded.packed_iterations(self.tables_folder)
        return [(*place, recorded.recorded(self.tables_folder, *place).packs) for place in packed]

    def query_iteration(self, sql: str, *, run: str, iteration: int) -> pa.Table:
        """The rows of a named query, with ``$run`` and ``$iteration`` bound; no file of another iteration is listed.

        Raises:
            UsageError: values that no partition can have.
            BadInputError: a file of the iteration is damaged, or has other columns.
        """
        (rows,) = self.query_iteration_each([sql], run=run, iteration=iteration)
        return rows

    def query_iteration_each(self, queries: Sequence[str], *, run: str, iteration: int) -> list[pa.Table]:
        """The rows of several named queries, as :meth:`query_iteration`, in one connection: the files are listed once.

        Raises:
            UsageError, BadInputError: as there.
        """
        with self.session(run=run, iteration=iteration) as session:
            return session.ask_each(queries)

    @contextmanager
    def session(self, *, run: str, iteration: int) -> Iterator[Session]:
        """Named queries of an iteration, one after the other, in one connection.

        Raises:
            UsageError: values that no partition can have.
        """
        check_filters(TABLES["iterations"], run, iteration, None)
        with scratch_database() as connection, ExitStack() as folders:
            yield Session(self, catalogue.NarrowViews(connection, self.home, run, iteration, folders=folders))

    def ask_iteration(self, sql: str, tables: Collection[str], *, run: str, iteration: int) -> pa.Table:
        """The rows of a query that somebody else wrote: as :meth:`query_iteration`, of some tables alone.

        Raises:
            UsageError: one line, where the query does more than read these tables, or DuckDB refuses it.
            BadInputError: a file of the iteration is damaged.
        """
        from traceviz_dag.lake import read_only

        check_filters(TABLES["iterations"], run, iteration, None)

        def asked() -> pa.Table:
            with connect_in_memory() as connection:
                catalogue.NarrowViews(connection, self.home, run, iteration, tables).prepare(sql)
                return read_only.run_select(connection, sql, _named(sql, run, iteration), sorted(tables))

        try:
            return _asked_again(asked)
        except FilesGoneError as error:
            raise BadInputError(self.home, str(error), "analyse again") from error

    def _check_named(self, sql: str) -> None:
        """Compare the parts that a query may read with their record."""
        for table in catalogue.tables_named_in(sql):
            found = recorded.find_parts(self.tables_folder, table)
            files = (one for parts in found for one in parts.one_a_file)
            missing = recorded.check(self.tables_folder, table, files)
            recorded.tell_missing(table, missing, catalogue.columns_named_in(sql, table))

    def _folder(self, table: Table) -> Path:
        return self.tables_folder / table.name

    def _refresh_where_possible(self) -> bool:
        """Whether it was possible: a home that this user may only read, or whose disk is full, still answers."""
        try:
            self.refresh_catalogue()
        except OSError:
            return False
        return True

    def _nothing_there(self, table: Table, run: str | None, iteration: int | None, rank: int | None) -> BadInputError:
        if not self.tables_folder.is_dir():
            return self.is_empty()
        wanted = {"run": run, "iteration": iteration, "rank": rank}
        words = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
        runs = sorted({parts.run for parts in recorded.find_parts(self.tables_folder, table)})
        remedy = f"runs with this table: {', '.join(runs)}" if runs else "nothing that was analysed here gives it"
        fault = f"no partition of table {table.name}" + (f" for {words}" if words else "")
        return BadInputError(self.home, fault, remedy)


@dataclass(slots=True)
class Session:
    """Named queries of an iteration in one connection: its tables are found once, by :meth:`Lake.session`."""

    lake: Lake
    views: catalogue.NarrowViews
    made: dict[str, str] = field(default_factory=dict)
    """Table of a shared part → the part, as long as what it was made of is the same."""

    def within(self) -> Lake:
        """The lake, which asks its named queries of this iteration in this session."""
        return _LakeInSession(self.lake.home, open=self)

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query, with ``$run`` and ``$iteration`` bound; errors as :meth:`Lake.query_iteration`."""
        (rows,) = self.ask_each([sql])
        return rows

    def ask_each(self, queries: Sequence[str], shared: Sequence[str] = ()) -> list[pa.Table]:
        """The rows of several, as :meth:`ask`; what they read together is prepared together.

        Args:
            shared: parts of them, each behind those that stand in it: SELECTs, bare or in brackets. One that stands in
                the queries several times is asked once: else each place would be planned and read for itself.
        """
        try:
            connection = self.views.connection
            return _asked_again(lambda: interruptible(connection, lambda: self._asked(queries, shared)))
        except FilesGoneError as error:
            raise BadInputError(self.lake.home, str(error), "analyse again") from error

    def _asked(self, queries: Sequence[str], shared: Sequence[str]) -> list[pa.Table]:
        import duckdb

        from traceviz_dag.lake import read_only

        views = self.views
        try:
            short, parts = _with_shared(queries, shared)
            changed = views.prepare("\n".join([*short, *parts.values()]))
            self.made = {name: sql for name, sql in self.made.items() if changed.isdisjoint(catalogue.words_of(sql))}
            for name, sql in parts.items():
                if self.made.get(name) != sql or not changed.isdisjoint(catalogue.words_of(sql)):
                    made = f"CREATE OR REPLACE TABLE {name} AS {sql}"
                    views.connection.execute(made, _named(sql, views.run, views.iteration))
                    self.made[name] = sql
                    changed.add(name)
            rows = {
                sql: read_only.fetch(views.connection, sql, _named(sql, views.run, views.iteration))
                for sql in dict.fromkeys(short)
            }
            return [rows[sql] for sql in short]
        except (duckdb.Error, UnicodeDecodeError) as error:
            if not read_only.tells_damage(error):
                raise
            if read_only.are_gone(error):
                views.found.clear()
                raise FilesGoneError(str(error).splitlines()[0]) from error
            fault = f"iteration {views.iteration} of run {views.run} cannot be read: {str(error).splitlines()[0]}"
            raise BadInputError(self.lake.home, fault, fault_and_remedy(error)[1]) from error


@dataclass(frozen=True, slots=True)
class _LakeInSession(Lake):
    """See :meth:`Session.within`; another process gets it without the session."""

    open: Session = field(kw_only=True, compare=False)

    def __reduce__(self) -> tuple[type[Lake], tuple[Path]]:
        return Lake, (self.home,)

    def rows_of(self, name: str, partitions: Iterable[Partition], columns: Sequence[str] | None = None) -> pa.Table:
        """As :meth:`Lake.rows_of`; of several ranks from the file that the session copied them into, if it did."""
        import duckdb

        from traceviz_dag.lake import read_only

        table, chosen, views = definition(name), tuple(partitions), self.open.views
        is_inside = {(one.run, one.iteration) for one in chosen} == {(views.run, views.iteration)}
        try:
            is_copied = is_inside and len(chosen) >= catalogue.LEAST_COPIED
            copy = interruptible(views.connection, lambda: views.copy_of(table)) if is_copied else None
        except (BadInputError, duckdb.Error, UnicodeDecodeError) as error:
            if not (isinstance(error, BadInputError) or read_only.tells_damage(error)):
                raise
            copy = None  # whoever reads the files names the damaged one
        return TableReader(table, self._folder(table), chosen, copy).arrow(columns)

    @contextmanager
    def session(self, *, run: str, iteration: int) -> Iterator[Session]:
        """The open one, where it is of this iteration."""
        if (run, iteration) == (self.open.views.run, self.open.views.iteration):
            yield self.open
        else:
            with Lake.session(self, run=run, iteration=iteration) as session:
                yield session


def _with_shared(queries: Sequence[str], shared: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Queries that read tables instead of the parts that stand in them several times, and these: name → part."""
    texts, parts = [*queries, *shared], {}
    for number in range(len(queries), len(texts)):
        part, name = texts[number], f"shared_{number - len(queries)}"
        if sum(text.count(part) for text in texts[: len(queries)]) > 1:
            parts[name] = part
            rows = f"(FROM {name})" if part.startswith("(") else f"FROM {name}"
            texts = [text.replace(part, rows) for text in texts]
    return texts[: len(queries)], parts


def _named(sql: str, run: str, iteration: int) -> dict[str, object]:
    """The values that a query names; DuckDB refuses others."""
    values: dict[str, object] = {"run": run, "iteration": iteration}
    return {name: values[name] for name in values.keys() & catalogue.named_parameters(sql)}


def _asked_again(ask: Callable[[], Rows]) -> Rows:
    """The rows of a query; one whose files a writer deletes under it is asked again, a bounded number of times."""
    with keeping_interrupts():
        for _ in range(_ATTEMPTS - 1):
            try:
                return ask()
            except FilesGoneError:
                time.sleep(_PAUSE_SECONDS)
        return ask()


def definition(table_name: str) -> Table:
    """The definition of a table by its name.

    Raises:
        UsageError: no such table.
    """
    table = all_tables().get(table_name)
    if table is None:
        raise UsageError(f"there is no table {table_name}; the tables are {', '.join(sorted(all_tables()))}")
    return table
