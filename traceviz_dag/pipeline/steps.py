"""The steps that make several tables at once, and which of them speaks for its step to automation.

A step makes all its tables or none, so one of them, its lead, bears the condition and is asked about by what comes
after it; Dagster requests the others together with it. Every clause on a further table would say the same, at the same
cost: Dagster evaluates each clause of each table anew at every tick.
"""

from __future__ import annotations

from collections.abc import Iterable

from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.tables import (
    ACROSS_RANKS_TABLES,
    BY_RANK,
    EXTRA_TABLES,
    MEMORY_TABLES,
    RANK_TABLES,
    TOPOLOGY_TABLES,
    all_tables,
)

STEPS = {
    "topology": TOPOLOGY_TABLES,
    # The lead of the ranks is the table that is recorded last: where it is, all are.
    "overlap": (*RANK_TABLES, *EXTRA_TABLES),
    "runs": AGGREGATED_TABLES,
    "late_ranks": ACROSS_RANKS_TABLES,
    "memory_peaks": MEMORY_TABLES,
}
"""Lead → the tables of its step."""

READS = {
    "runs": ("traces", "overlap", "topology"),
    "late_ranks": (*RANK_TABLES, *TOPOLOGY_TABLES),
}
"""Lead of a step that is made once an iteration → the tables that it reads: what automation waits for, and what is
compared to know whether its tables are current."""

LEADS = tuple(STEPS)


def lead_of(table: str) -> str:
    """The table that speaks for the step of a table; a table of a step of its own speaks for itself."""
    return next((lead for lead, tables in STEPS.items() if table in tables), table)


def is_by_rank(table: str) -> bool:
    """Whether a table is made rank by rank, each from its own trace."""
    return all_tables()[table].partitioned_by == BY_RANK and table not in MEMORY_TABLES


def with_leads(tables: Iterable[str]) -> tuple[str, ...]:
    """The tables, and the leads of their steps, which whoever depends on a table must depend on as well."""
    tables = tuple(tables)
    return tuple(dict.fromkeys((*tables, *map(lead_of, tables))))
