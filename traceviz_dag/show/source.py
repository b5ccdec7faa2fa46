"""Where a figure takes its tables from: anything that hands out the rows of one iteration, a lake or a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from traceviz_dag.tables import PARTITION_COLUMNS, all_tables
from traceviz_dag.tables.rows import columns_of, rows_of

Row = TypeVar("Row")


class TableSource(Protocol):
    """The tables of one iteration."""

    @property
    def run(self) -> str:
        """Name of the run, for titles."""

    @property
    def iteration(self) -> int:
        """Number of the iteration, for titles."""

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        """The chosen columns of a table, of one rank where it is given; no rows where nothing was written."""


def empty_table(name: str, columns: Sequence[str]) -> pa.Table:
    """Those columns of a table with their types and no rows: what a source hands out where nothing was written."""
    types = {column.name: column.type for column in all_tables()[name].columns}
    types |= {column.name: column.type for column in PARTITION_COLUMNS.values() if column.name not in types}
    return pa.schema([(column, types[column]) for column in columns]).empty_table()


def rows(source: TableSource, name: str, row: type[Row], rank: int | None = None) -> list[Row]:
    """The rows of a small table, of one rank where it is given."""
    return rows_of(source.table(name, columns_of(row), rank), row)
