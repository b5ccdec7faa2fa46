"""Makes the tables of other packages: asks their queries of one iteration, and says whose fault it is if one fails."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from traceviz_dag.errors import TracevizError, UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables import DerivedTable


def derive(lake: Lake, table: DerivedTable, run: str, iteration: int) -> pa.Table:
    """The rows of a derived table for one iteration.

    Raises:
        UsageError: the query fails, or gives other columns than the table has.
    """
    try:
        rows = lake.query_iteration(table.sql, run=run, iteration=iteration)
    except (duckdb.Error, TracevizError) as error:
        raise UsageError(f"table {table.name} of another package: {str(error).splitlines()[0]}") from error
    return table.from_query(rows)
