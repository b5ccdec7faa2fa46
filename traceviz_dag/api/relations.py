"""Arrow tables as DuckDB relations."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from traceviz_dag.system.duckdb_memory import connect_in_memory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


def relation(table: pa.Table) -> duckdb.DuckDBPyRelation:
    """A table as a relation; it stays usable for as long as the program runs."""
    # A connection that another thread asks refuses instead of waiting.
    return _connection().cursor().from_arrow(table)


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    return connect_in_memory()
