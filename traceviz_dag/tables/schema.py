"""What a table is: named, typed and commented columns, and how its files are partitioned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import xxhash

TEXT = pa.string()
INTEGER = pa.int32()
BIGINT = pa.int64()
DOUBLE = pa.float64()
BOOLEAN = pa.bool_()
RANKS = pa.list_(pa.int32())
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, and a comment that gives meaning and unit."""

    name: str
    type: pa.DataType
    comment: str


@dataclass(frozen=True)
class Table:
    """One table of the lake.

    Attributes:
        partitioned_by: the partition columns in path order; ``("run", "iteration")`` or with ``"rank"``.
        columns: what a file holds, in order.
        how: sentences for who sees the table for the first time.
        commands: those that show it, without the word traceviz.
    """

    name: str
    comment: str
    partitioned_by: tuple[str, ...]
    columns: tuple[Column, ...]
    how: str = ""
    commands: tuple[str, ...] = ()

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a file of this table."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    @cached_property
    def version(self) -> str:
        """That of the schema: another one wherever a column has another name, type or index."""
        return xxhash.xxh3_64_hexdigest(str(self.schema).encode())

    def from_rows(self, rows: pa.Table) -> pa.Table:
        """This table's columns of some rows, in its order and with its types.

        Raises:
            KeyError: one is missing. pyarrow.ArrowInvalid: a value does not fit.
        """
        return rows.select([column.name for column in self.columns]).cast(self.schema)

    def from_columns(self, data: dict[str, object]) -> pa.Table:
        """Build an Arrow table with exactly this table's schema.

        Args:
            data: column name → array, list or Arrow array; each column of the table must be there.

        Raises:
            KeyError: a column is missing or unknown.
        """
        names = [column.name for column in self.columns]
        unknown = set(data) - set(names)
        if unknown:
            raise KeyError(f"table {self.name} has no column {sorted(unknown)}")
        arrays = []
        for column in self.columns:
            values = data[column.name]
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if isinstance(values, pa.Array):
                arrays.append(values if values.type == column.type else values.cast(column.type))
            else:
                arrays.append(pa.array(values, type=column.type, from_pandas=False))
        return pa.Table.from_arrays(arrays, schema=self.schema)


PARTITION_COLUMNS = {
    "run": Column("run", TEXT, "The training job's profile folder."),
    "iteration": Column("iteration", BIGINT, "The training step."),
    "rank": Column("rank", BIGINT, "The global rank."),
}

BY_RANK = ("run", "iteration", "rank")
BY_ITERATION = ("run", "iteration")
