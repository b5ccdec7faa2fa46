"""Where a figure takes its tables from: anything that hands out the rows of one iteration, a lake or a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

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


def rows(source: TableSource, name: str, row: type[Row], rank: int | None = None) -> list[Row]:
    """The rows of a small table, of one rank where it is given."""
    return rows_of(source.table(name, columns_of(row), rank), row)
