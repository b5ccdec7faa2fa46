"""Arrow tables as DuckDB relations."""

from __future__ import annotations

from functools import cache
from threading import get_ident
from typing import TYPE_CHECKING

from traceviz_dag.system.duckdb_memory import connect_in_memory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


def relation(table: pa.Table) -> duckdb.DuckDBPyRelation:
    """A table as a relation; it stays usable for as long as the program runs.

    Relations that one thread made can be joined and united; each thread uses its own.
    """
    # A connection that another thread asks refuses instead of waiting.
    connection = _connections.get(get_ident())
    if connection is None:
        connection = _connections[get_ident()] = _database().cursor()
    return connection.from_arrow(table)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return connect_in_memory()


_connections: dict[int, duckdb.DuckDBPyConnection] = {}
"""Thread → its connection; they stay, since relations outlive the thread that made them."""
