"""Many queries of one lake, answered in one connection: each of its own would cost a new DuckDB."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from traceviz_dag.lake.catalogue import queryable
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.read_only import open_read_only, run_select


def asked(lake: Lake, queries: Iterable[str]) -> list[pa.Table]:
    """The rows of each query, as ``Lake.query`` gives them."""
    lake.query("SELECT 1")  # Brings the catalogue up to date.
    with open_read_only(lake.home) as connection:
        return [run_select(connection, sql, None, queryable()) for sql in queries]
