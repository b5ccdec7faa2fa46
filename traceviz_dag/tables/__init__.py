"""Every table's schema in one place: columns, types, units and comments.

Parquet files, the DuckDB catalogue, Dagster's column metadata and the documentation follow from these definitions.
Times are integer nanoseconds on the rank's own clock and their names end in ``_ns``. ``run``, ``iteration`` and
``rank`` are the partition columns: they are in the path, not in the file.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from traceviz_dag.tables import across_ranks, causes, extras, findings, iterations, memory, ranks, topology
from traceviz_dag.tables.across_ranks import *  # noqa: F403 - a table is declared once, in its module
from traceviz_dag.tables.causes import *  # noqa: F403
from traceviz_dag.tables.derived import DerivedTable as DerivedTable
from traceviz_dag.tables.derived import plugin_tables
from traceviz_dag.tables.extras import *  # noqa: F403
from traceviz_dag.tables.findings import *  # noqa: F403
from traceviz_dag.tables.iterations import *  # noqa: F403
from traceviz_dag.tables.memory import *  # noqa: F403
from traceviz_dag.tables.ranks import *  # noqa: F403
from traceviz_dag.tables.schema import BY_ITERATION as BY_ITERATION
from traceviz_dag.tables.schema import BY_RANK as BY_RANK
from traceviz_dag.tables.schema import PARTITION_COLUMNS as PARTITION_COLUMNS
from traceviz_dag.tables.schema import Column as Column
from traceviz_dag.tables.schema import Table as Table
from traceviz_dag.tables.topology import *  # noqa: F403


def _tables_in(module: ModuleType) -> dict[str, Table]:
    """Name → table that a module declares, in its order."""
    return {table.name: table for table in vars(module).values() if isinstance(table, Table)}


TOPOLOGY_TABLES = tuple(_tables_in(topology))
"""Where each rank is, and in which groups."""

RANK_TABLES = tuple(_tables_in(ranks))
"""The tables that every rank's trace becomes, in the order in which they are written."""

EXTRA_TABLES = tuple(_tables_in(extras))
"""Tables that only ranks of some formats have; see ``TraceFormat.extra_tables``."""

MEMORY_TABLES = tuple(_tables_in(memory))
"""What snapshots of GPU memory show."""

CAUSES_TABLES = tuple(_tables_in(causes))
"""What the replay of a training step shows."""

ACROSS_RANKS_TABLES = (*_tables_in(across_ranks), *CAUSES_TABLES, *_tables_in(findings))
"""The tables across ranks; findings are made last, from the others."""

TABLES: dict[str, Table] = {
    name: table
    for module in (topology, ranks, extras, memory, iterations, across_ranks, causes, findings)
    for name, table in _tables_in(module).items()
}
"""The tables of this project."""


@cache
def derived_tables() -> dict[str, DerivedTable]:
    """Name → table that another package adds.

    Raises:
        UsageError: something is wrong with one of them.
    """
    return plugin_tables(TABLES)


@cache
def all_tables() -> dict[str, Table]:
    """Name → table, of this project and of other packages.

    Raises:
        UsageError: something is wrong with one of another package.
    """
    return {**TABLES, **derived_tables()}
