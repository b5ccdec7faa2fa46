"""Reading partitions of a table back, with the types of its definition.

Whole partitions come through Arrow's own reader: it keeps repeated texts as dictionaries, where DuckDB would spell
each one out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.catalogue import view_columns
from traceviz_dag.lake.conversion import DAMAGED, converted
from traceviz_dag.lake.packed_rows import rows_of_ranks
from traceviz_dag.lake.partitions import FILE_NAME, SCHEMA_VERSION_KEY, Partition, fault_and_remedy
from traceviz_dag.lake.record_lines import Pack
from traceviz_dag.lake.recorded import check, pack_of, tell_missing
from traceviz_dag.tables import Table

if TYPE_CHECKING:
    import pandas as pd

_ROWS_FOR_THREADS = 100_000
"""Below, handing columns to threads takes longer than decoding them."""

_OF_JOINED = ("run", "iteration")
"""Columns that are in the path of a file with the rows of several ranks."""

_Part = tuple[Sequence[str], Partition, pa.Table]
"""Columns that are in the path of a file, the partition that it is of, and its rows without these columns."""


@dataclass(frozen=True, slots=True)
class TableReader:
    """Partitions of one table, read when asked for: by run, iteration and rank, each in the order of its file.

    Attributes:
        folder: the table's folder in the lake.
        partitions: where there are none, there are no rows.
        copy: a file with the rows of all their ranks, read instead of theirs.
    """

    definition: Table
    folder: Path
    partitions: tuple[Partition, ...]
    copy: Path | None = None

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows as an Arrow table: the partition columns, then the table's, with the types of its definition.

        Args:
            columns: names to read, in the order wanted; all by default.

        Raises:
            UsageError: no such column.
            BadInputError: a file is not the one that was written, or has other columns; or every partition was deleted
                meanwhile.
        """
        known = {column.name: column.type for column in view_columns(self.definition)}
        names = list(known) if columns is None else list(columns)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(f"table {self.definition.name} has no column {unknown}; it has {', '.join(known)}")
        tell_missing(self.definition, check(self.folder.parent, self.definition, self.partitions), names)
        schema = pa.schema([(name, known[name]) for name in names])
        parts = self._parts(schema)
        if not parts and self.partitions:
            raise BadInputError(self.folder, "the partitions were deleted while they were read", "analyse again")
        return _joined(schema, parts).unify_dictionaries()

    def df(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows as a pandas frame; texts that repeat are categoricals. Arguments and errors as :meth:`arrow`."""
        return self.arrow(columns).to_pandas()

    def _parts(self, schema: pa.Schema) -> list[_Part]:
        """The rows of each partition, or of several that lie side by side in a packed file; without deleted ones."""
        own, joined = _without(schema, self.definition.partitioned_by), _without(schema, _OF_JOINED)
        if self.copy is not None:
            part = self._joined_parts(self.copy, self.partitions, joined)
            return [] if part is None else [part]
        while True:
            held = [pack_of(self.folder.parent, self.definition.name, one) for one in self.partitions]
            parts: list[_Part | None] = []
            for (*_, pack), some in groupby(zip(self.partitions, held, strict=True), key=_place):
                partitions = [partition for partition, _ in some]
                if pack is None:
                    parts += [self._part(partition, own) for partition in partitions]
                else:
                    first = partitions[0]
                    path = pack.path(self.folder.parent, first.run, first.iteration)
                    parts.append(self._joined_parts(path, partitions, joined))
            # A file that is gone was deleted, or its rows are in a packed file since.
            if None not in parts or held == [
                pack_of(self.folder.parent, self.definition.name, one) for one in self.partitions
            ]:
                return [part for part in parts if part is not None]

    def _part(self, partition: Partition, schema: pa.Schema) -> _Part | None:
        rows = self._rows(partition.folder(self.folder) / FILE_NAME, schema)
        return None if rows is None else (self.definition.partitioned_by, partition, rows)

    def _joined_parts(self, path: Path, partitions: Sequence[Partition], schema: pa.Schema) -> _Part | None:
        rows = self._rows(path, schema, [one.rank for one in partitions if one.rank is not None])
        return None if rows is None else (_OF_JOINED, partitions[0], rows)

    def _rows(self, path: Path, schema: pa.Schema, ranks: Sequence[int] | None = None) -> pa.Table | None:
        """The rows of a file, of one of several ranks those of some; None where it is gone."""
        # DuckDB, which wrote the copy, does not say what texts repeat.
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)] if path == self.copy else []
        try:
            # By its path, ParquetFile looks for the file's system first: a third of opening a small one.
            with pa.OSFile(str(path)) as source, pq.ParquetFile(source, read_dictionary=texts) as file:
                version = (file.metadata.metadata or {}).get(SCHEMA_VERSION_KEY)
                # Arrow's schema takes half as long to build as a part of one rank to read.
                is_ours = version == self.definition.version.encode()
                columns = schema.names
                if not is_ours:
                    there = set(file.schema_arrow.names)
                    columns = [name for name in columns if name in there]
                threads = file.metadata.num_rows >= _ROWS_FOR_THREADS
                data = (
                    file.read(columns=columns, use_threads=threads)
                    if ranks is None
                    else rows_of_ranks(file, ranks, columns)
                )
                if version is None:
                    # Of a version that kept no record: damaged texts would be seen when somebody prints them.
                    data.validate(full=True)
        except FileNotFoundError:
            return None
        except DAMAGED as error:
            fault, remedy = fault_and_remedy(error)
            raise BadInputError(path, f"{fault} ({str(error)[:120]})", remedy) from error
        # Parts of this version are as they should be; of a home that cannot be written, none is converted before.
        return data if data.schema.equals(schema) else converted(path, data, schema)


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """What the files have of a schema, where some columns are in their paths."""
    return pa.schema([field for field in schema if field.name not in names])


def _joined(schema: pa.Schema, parts: Sequence[_Part]) -> pa.Table:
    """The rows of parts one behind the other, with the columns that are in paths: of all files at once, since making
    them for each takes as long as reading it."""
    tables = [schema.empty_table()] if not parts else []
    for in_path, some in groupby(parts, key=itemgetter(0)):
        _, places, rows = zip(*some, strict=True)
        data, lengths = pa.concat_tables(rows), [one.num_rows for one in rows]
        columns = [
            _repeated([getattr(place, field.name) for place in places], lengths)
            if field.name in in_path
            else data.column(field.name)
            for field in schema
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables)


def _repeated(values: Sequence[str] | Sequence[int], lengths: Sequence[int]) -> pa.ChunkedArray:
    """Each value so often, as Arrow has it; pyarrow's own way imports pandas first, a third of the time of a small
    command."""
    counted = [
        (value, sum(count for _, count in some))
        for value, some in groupby(zip(values, lengths, strict=True), itemgetter(0))
    ]
    if isinstance(values[0], str):
        return pa.chunked_array([pa.repeat(_text(value), count) for value, count in counted], pa.string())
    every = np.repeat(*np.array(counted, np.int64).T)
    return pa.chunked_array([pa.Array.from_buffers(pa.int64(), len(every), [None, pa.py_buffer(every)])])


def _place(one: tuple[Partition, Pack | None]) -> tuple[str, int, Pack | None]:
    """What partitions have in common that lie in the same packed file."""
    partition, pack = one
    return partition.run, partition.iteration, pack


def _text(value: str) -> pa.Scalar:
    text = value.encode()
    offsets = struct.pack("<2i", 0, len(text))
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])[0]
