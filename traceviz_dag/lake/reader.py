"""Reading partitions of a table back, with the types of its definition.

Whole partitions come through Arrow's own reader: it keeps repeated texts as dictionaries, where DuckDB would spell
each one out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

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
        return pa.concat_tables([*parts, *([] if parts else [schema.empty_table()])]).unify_dictionaries()

    def df(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows as a pandas frame; texts that repeat are categoricals. Arguments and errors as :meth:`arrow`."""
        return self.arrow(columns).to_pandas()

    def _parts(self, schema: pa.Schema) -> list[pa.Table]:
        """The rows of each partition, or of several that lie side by side in a packed file; without deleted ones."""
        if self.copy is not None:
            part = self._joined_parts(self.copy, self.partitions, schema)
            return [] if part is None else [part]
        while True:
            held = [pack_of(self.folder.parent, self.definition.name, one) for one in self.partitions]
            parts: list[pa.Table | None] = []
            for (*_, pack), some in groupby(zip(self.partitions, held, strict=True), key=_place):
                partitions = [partition for partition, _ in some]
                if pack is None:
                    parts += [self._part(partition, schema) for partition in partitions]
                else:
                    first = partitions[0]
                    path = pack.path(self.folder.parent, first.run, first.iteration)
                    parts.append(self._joined_parts(path, partitions, schema))
            # A file that is gone was deleted, or its rows are in a packed file since.
            if None not in parts or held == [
                pack_of(self.folder.parent, self.definition.name, one) for one in self.partitions
            ]:
                return [part for part in parts if part is not None]

    def _part(self, partition: Partition, schema: pa.Schema) -> pa.Table | None:
        in_path = {name: getattr(partition, name) for name in self.definition.partitioned_by}
        return self._rows(partition.folder(self.folder) / FILE_NAME, in_path, schema)

    def _joined_parts(self, path: Path, partitions: Sequence[Partition], schema: pa.Schema) -> pa.Table | None:
        in_path: dict[str, str | int] = {"run": partitions[0].run, "iteration": partitions[0].iteration}
        return self._rows(path, in_path, schema, [one.rank for one in partitions if one.rank is not None])

    def _rows(
        self, path: Path, in_path: Mapping[str, str | int], schema: pa.Schema, ranks: Sequence[int] | None = None
    ) -> pa.Table | None:
        """The rows of a file, of one of several ranks those of some; None where it is gone."""
        # DuckDB, which wrote the copy, does not say what texts repeat.
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)] if path == self.copy else []
        try:
            # By its path, ParquetFile looks for the file's system first: a third of opening a small one.
            with pa.OSFile(str(path)) as source, pq.ParquetFile(source, read_dictionary=texts) as file:
                version = (file.metadata.metadata or {}).get(SCHEMA_VERSION_KEY)
                # Arrow's schema takes half as long to build as a part of one rank to read.
                is_ours = version == self.definition.version.encode()
                names = schema.names if is_ours else file.schema_arrow.names
                columns = [name for name in schema.names if name not in in_path and name in names]
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
        wanted = pa.schema([field for field in schema if field.name not in in_path])
        # Parts of this version are as they should be; of a home that cannot be written, none is converted before.
        if not data.schema.equals(wanted):
            data = converted(path, data, wanted)
        arrays = [
            pa.repeat(_scalar(in_path[field.name]), data.num_rows) if field.name in in_path else data.column(field.name)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def _place(one: tuple[Partition, Pack | None]) -> tuple[str, int, Pack | None]:
    """What partitions have in common that lie in the same packed file."""
    partition, pack = one
    return partition.run, partition.iteration, pack


def _scalar(value: str | int) -> pa.Scalar:
    """The value as Arrow has it; pyarrow's own way imports pandas first, a third of the time of a small command."""
    if isinstance(value, str):
        text = value.encode()
        offsets = struct.pack("<2i", 0, len(text))
        return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])[0]
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("<q", value))])[0]
