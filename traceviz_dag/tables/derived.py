"""Tables that one SQL query makes of an iteration's other tables: how another package brings a table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.errors import UsageError
from traceviz_dag.system.plugins import Brought, ExtensionPoint, plugins
from traceviz_dag.tables.schema import (
    BIGINT,
    BOOLEAN,
    BY_ITERATION,
    DICTIONARY,
    DOUBLE,
    INTEGER,
    PARTITION_COLUMNS,
    RANKS,
    TEXT,
    Column,
    Table,
)


@dataclass(frozen=True, slots=True)
class DerivedTable(Table):
    """A table of one file an iteration, made by a query.

    Attributes:
        made_of: the tables that the query reads; a change in one of them makes it anew.
        sql: a SELECT that gives the columns by name, with ``$run`` and ``$iteration`` as parameters. The tables hold
            this iteration's rows alone.
    """

    made_of: tuple[str, ...] = ()
    sql: str = ""

    def from_query(self, rows: pa.Table) -> pa.Table:
        """What the query gave, with exactly this table's schema.

        Raises:
            UsageError: it gave other columns, or values that do not fit.
        """
        if rows.column_names != [column.name for column in self.columns]:
            told = f"its query gives the columns {', '.join(rows.column_names)}"
        else:
            try:
                return rows.cast(self.schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                told = f"what its query gives does not fit its columns ({error})"
        raise UsageError(f"table {self.name} of another package: {told}; fix it")


OF_OTHERS = ExtensionPoint("traceviz_dag.tables", "table", DerivedTable, "DerivedTable", "docs/analyze.md")
"""Where other packages bring tables."""

NAMES_IN_USE = (
    *("kernels_aligned", "path_profiles", "path_hosts", "modules", "raw_traces", "topology_files"),
    "classification_rules",
    *("nsys_profile", "memory_snapshots", "retention"),
    *("rank_figures", "pipeline_figures", "replica_figures", "across_ranks_figures", "memory_figures"),
    *("perfetto_trace", "report"),
)
"""Views of the catalogue and assets that are no tables: a table of their name could not be beside them."""

_TYPES = (TEXT, INTEGER, BIGINT, DOUBLE, BOOLEAN, RANKS, DICTIONARY)


def plugin_tables(own: Mapping[str, Table]) -> dict[str, DerivedTable]:
    """Name → table of another package, by name.

    Args:
        own: the tables there are without them.

    Raises:
        UsageError: one cannot be loaded, is no such table, bears the name of another, or reads one that is not ours.
    """
    return {brought.thing.name: _checked(brought, own) for brought in plugins(OF_OTHERS, own)}


def _checked(brought: Brought[DerivedTable], own: Mapping[str, Table]) -> DerivedTable:
    table = brought.thing
    if table.name in NAMES_IN_USE:
        raise brought.refused(f"{table.name} is the name of a view or an asset", "give it another")
    if table.partitioned_by != BY_ITERATION:
        raise brought.refused("it has no file for each iteration", "partition it by BY_ITERATION")
    unknown = sorted({str(name) for name in table.made_of} - set(own))
    if unknown or not table.made_of:
        raise brought.refused(f"made_of names {', '.join(unknown) or 'nothing'}", "name tables of traceviz there")
    fault = _fault_of_columns(table)
    if fault:
        raise brought.refused(fault, f"fix it; {OF_OTHERS.page} shows an example")
    return table


def _fault_of_columns(table: DerivedTable) -> str:
    """What is wrong with a table's columns and texts; empty where nothing is."""
    if not isinstance(table.columns, tuple | list) or not table.columns:
        return "columns names no columns"
    for column in table.columns:
        if not isinstance(column, Column) or not isinstance(column.name, str) or not isinstance(column.comment, str):
            return f"{column!r} is no Column with a name and a comment"
        if column.type not in _TYPES:
            return f"column {column.name} has type {column.type}, which is none of {', '.join(map(str, _TYPES))}"
    names = [column.name.lower() for column in table.columns]
    twice = sorted({name for name in names if names.count(name) > 1 or name in PARTITION_COLUMNS})
    if twice:
        return f"column {', '.join(twice)} is there twice (run, iteration and rank are in the path)"
    texts = (table.comment, table.sql, table.how, *table.commands)
    return "" if all(isinstance(text, str) for text in texts) else "its comment, sql, how or commands are no texts"
