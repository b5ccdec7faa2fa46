"""Connections to DuckDB that print nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def connect_in_memory() -> duckdb.DuckDBPyConnection:
    """A connection to a new database in memory.

    DuckDB's own shows a progress bar on standard output once a query takes two seconds, also where that is no terminal:
    in the middle of JSON.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    return connection
