"""Which tables and columns of an export are there: schemas change with the version, so everything is looked up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.limits import LONGEST_NAME, MOST_ROWS
from traceviz_dag.read.nsys.columns import integers, texts, usable, without_long_texts
from traceviz_dag.read.nsys.launching import processes_of_ids
from traceviz_dag.read.nsys.rows import integers_of
from traceviz_dag.read.nsys.source import NsysSource, Wanted
from traceviz_dag.read.secrets import masked_table

_VERSION = re.compile(r"_V(\d{1,9})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """One column that is wanted.

    Attributes:
        names: what the column is called, the first that exists is taken.
        default: SQL literal that represents NULL and for a column that does not exist; None: the column must exist,
            and rows in which it is NULL or beyond all times are left out.
        loss: what cannot be said without it; empty where nothing is lost.
    """

    names: tuple[str, ...]
    default: str | None = str(MISSING)
    loss: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the column holds text; all others hold integers."""
        return (self.default or "").startswith("'")


@dataclass(slots=True)
class Asked:
    """What was asked of a table.

    Attributes:
        texts: column → whether it holds text.
        rows: conditions, one of which each row that was asked for meets; all meet an empty one.
    """

    texts: dict[str, bool] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)


@dataclass(slots=True)
class NsysSchema:
    """The tables of one open export.

    Attributes:
        asked: table → what was asked of it.
        missing: one sentence for each table or column that was looked for in vain and takes something away.
        dropped: (table, process, GPU's number in the process) → rows that cannot be used; MISSING where they do not
            say whose they are.
    """

    source: NsysSource
    tables: Mapping[str, tuple[str, ...]]
    missing: list[str] = field(default_factory=list)
    dropped: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    asked: dict[str, Asked] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, source: NsysSource) -> NsysSchema:
        """Look at an export."""
        return cls(source, source.columns())

    def table(self, name: str) -> str | None:
        """The table of that name, or its highest version (``NAME_V3``); None where there is none."""
        versions = {0: name} if name in self.tables else {}
        for other in self.tables:
            match = _VERSION.search(other)
            if match and other[: match.start()] == name:
                versions[int(match[1])] = other
        return versions[max(versions)] if versions else None

    def has(self, table: str, column: str) -> bool:
        """Whether the export has a column."""
        found = self.table(table)
        return found is not None and column in self.tables[found]

    def count(self, table: str) -> int:
        """The rows of a table that is there."""
        if table not in self._counts:
            answer = self.source.query(f'SELECT count(*) AS rows FROM "{table}"')
            self._counts[table] = int(answer["rows"][0].as_py())
        return self._counts[table]

    def note(self, sentence: str) -> None:
        """Record once that something is missing."""
        if sentence not in self.missing:
            self.missing.append(sentence)

    def select(self, table: str, fields: Mapping[str, Field], where: str = "", loss: str = "") -> pa.Table | None:
        """Read some columns of a table; texts come without secrets.

        Args:
            table: its name without a version.
            fields: name in the answer → the column wanted.
            where: SQL behind WHERE; it may use the names of columns of the export that ``fields`` demands.
            loss: what cannot be said without the table; recorded where it is missing.

        Returns:
            The rows; None where the export has no such table.

        Raises:
            BadInputError: a column that must exist does not, a column holds another type, or the file is damaged.
        """
        wanted = self._wanted(table, fields, loss, where)
        if wanted is None:
            return None
        if where or not wanted.columns:
            condition = f" WHERE {where}" if where else ""
            rows, _ = self._typed(table, fields, self.source.query(wanted.sql + condition))
        else:
            pieces = (pa.Table.from_batches([one]) for one in self.source.batches(wanted))
            rows = pa.concat_tables([self._typed(table, fields, piece)[0] for piece in pieces])
        for name in fields.keys() - wanted.columns.keys():
            rows = rows.append_column(name, pa.repeat(_scalar(fields[name]), rows.num_rows))
        return masked_table(rows.select(list(fields)))

    def batches(
        self, table: str, fields: Mapping[str, Field], among: tuple[str, tuple[int, ...]], loss: str = ""
    ) -> Iterator[tuple[Mapping[str, pa.Array], npt.NDArray[np.bool_] | None]]:
        """As ``select``, piece by piece, so that a long table never is in memory as a whole; nothing without a table.

        Columns that the table does not have are left out. Texts come as they are: whoever keeps them takes secrets out,
        as ``TextCodes`` does. Beside each piece: which of the table's rows it is made of,
        None where all.

        Args:
            among: the name of a field that must exist, and its values that make a row count.
        """
        wanted = self._wanted(table, fields, loss)
        if wanted is not None:
            for batch in self.source.batches(replace(wanted, among=among)):
                rows, kept = self._typed(table, fields, pa.Table.from_batches([batch]))
                # combine_chunks copies even a single one.
                columns = [one.chunk(0) if one.num_chunks == 1 else one.combine_chunks() for one in rows.columns]
                yield dict(zip(rows.schema.names, columns, strict=True)), kept

    def _typed(
        self, table: str, fields: Mapping[str, Field], rows: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_] | None]:
        """Rows with every column of its type, those that cannot be used left out and noted."""
        for place, name in enumerate(rows.column_names):
            if name in fields:
                words = f"column {fields[name].names[0]} of table {table}"
                typed = texts if fields[name].is_text else integers
                values = typed(rows[name], words, self.source.path)
                if fields[name].is_text and (shorter := without_long_texts(values)) is not None:
                    self.note(f"{words} has texts of more than {LONGEST_NAME >> 20} MiB: they are left out")
                    values = shorter
                rows = rows.set_column(place, name, values)
        there = [name for name in rows.column_names if name in fields]
        needed = {name: rows[name] for name in there if fields[name].default is None}
        # What is no integer came as NULL, and NULL as the default.
        kept = usable(needed, [rows[name] for name in there if name not in needed and rows[name].null_count])
        if kept is not None:
            self.leave_out(table, dict(zip(rows.column_names, rows.columns, strict=True)), kept)
            rows = rows.filter(pa.array(kept))
        return rows, kept

    def leave_out(
        self, table: str, columns: Mapping[str, pa.ChunkedArray | pa.Array], kept: npt.NDArray[np.bool_]
    ) -> None:
        """Note that rows of a table are left out, and whose they are.

        Args:
            columns: some of the table's, by the names that they were asked for.
            kept: the rows that can be used.
        """
        self.note(
            f"table {table} has rows without a number where one is needed, at times beyond 146 years, of no GPU, or "
            "that end before they start: they are left out"
        )
        lost = np.full((2, len(kept) - int(kept.sum())), MISSING, dtype=np.int64)
        process = next((columns[name] for name in ("process_id", "process", "thread") if name in columns), None)
        if process is not None:
            lost[0] = processes_of_ids(integers_of(process.fill_null(MISSING))[~kept])
        if "device" in columns:
            lost[1] = integers_of(columns["device"].fill_null(MISSING))[~kept]
        owners, counts = np.unique(np.where(lost < 0, MISSING, lost), axis=1, return_counts=True)
        for (process_of, device), count in zip(owners.T.tolist(), counts.tolist(), strict=True):
            self.dropped[table, process_of, device] += count

    def _wanted(self, table: str, fields: Mapping[str, Field], loss: str, where: str = "") -> Wanted | None:
        """What to ask of the table, without the columns that it lacks; None without the table."""
        found = self.table(table)
        if found is None:
            if loss:
                self.note(f"no table {table}: {loss}")
            return None
        if self.count(found) > MOST_ROWS:
            fault = f"table {found} has {self.count(found):,} rows, more than {MOST_ROWS:,}"
            raise BadInputError(self.source.path, fault, "where the memory is there, call traceviz --most-rows N …")
        columns = {name: self._column(found, one) for name, one in fields.items()}
        asked = self.asked.setdefault(found, Asked())
        asked.texts |= {one: fields[name].is_text for name, one in columns.items() if one is not None}
        asked.rows.add(where)
        there = {name: (one, fields[name].default) for name, one in columns.items() if one is not None}
        return Wanted(found, there)

    def _column(self, table: str, wanted: Field) -> str | None:
        """The column of the table; None where it has none."""
        there = self.tables[table]
        name = next((name for name in wanted.names if name in there), None)
        if name is None and wanted.default is None:
            raise BadInputError(
                self.source.path,
                f"table {table} has no column {wanted.names[0]}",
                "export the report again with a current version of nsys",
            )
        if name is None and wanted.loss:
            self.note(f"table {table} has no column {wanted.names[0]}: {wanted.loss}")
        return name


def _scalar(wanted: Field) -> pa.Scalar:
    """What is in every row for a column that does not exist."""
    default = wanted.default or ""
    return pa.scalar(default.strip("'")) if default.startswith("'") else pa.scalar(int(default), pa.int64())


def required(*names: str) -> Field:
    """A column without which its table is of no use."""
    return Field(names, None)


def number(*names: str, loss: str = "") -> Field:
    """An integer column; MISSING where it says nothing. Rows in which it holds something else are left out."""
    return Field(names, str(MISSING), loss)


def text(*names: str, loss: str = "") -> Field:
    """A text column; empty where it says nothing."""
    return Field(names, "''", loss)
