"""Makes the tables of other packages: asks their queries of one iteration, and says whose fault it is if one fails."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables import DerivedTable


def derive(lake: Lake, table: DerivedTable, run: str, iteration: int) -> pa.Table:
    """The rows of a derived table for one iteration.

    Raises:
        UsageError: the query fails, does more than read the tables in ``made_of``, or gives other columns.
        BadInputError: a file of one of these tables is damaged.
    """
    try:
        rows = lake.ask_iteration(table.sql, table.made_of, run=run, iteration=iteration)
    except UsageError as error:
        raise UsageError(f"table {table.name} of another package: its query fails ({error}); fix it") from error
    return table.from_query(rows)
