"""Where a figure takes its tables from: anything that hands out the rows of one iteration, a lake or a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from traceviz_dag.tables import PARTITION_COLUMNS, TABLES


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
    types = {column.name: column.type for column in TABLES[name].columns}
    types |= {column.name: column.type for column in PARTITION_COLUMNS.values() if column.name not in types}
    return pa.schema([(column, types[column]) for column in columns]).empty_table()


def rows(source: TableSource, name: str, columns: Sequence[str], rank: int | None = None) -> list[dict[str, Any]]:
    """The rows of a small table as dictionaries."""
    found: list[dict[str, Any]] = source.table(name, columns, rank).to_pylist()
    return found
