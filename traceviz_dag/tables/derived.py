"""Tables that one SQL query makes of an iteration's other tables: how another package brings a table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from traceviz_dag.errors import UsageError
from traceviz_dag.system.plugins import Brought, ExtensionPoint, brought_by_others
from traceviz_dag.tables.schema import BY_ITERATION, Table


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
        raise UsageError(f"table {self.name} of another package: {told}; mend it")


OF_OTHERS = ExtensionPoint("traceviz_dag.tables", "table", DerivedTable, "DerivedTable", "docs/analyze.md")
"""Where other packages bring tables."""


def tables_of_others(own: Mapping[str, Table]) -> dict[str, DerivedTable]:
    """Name → table of another package, by name.

    Args:
        own: the tables there are without them.

    Raises:
        UsageError: one cannot be loaded, is no such table, bears the name of another, or reads one that is not ours.
    """
    return {brought.thing.name: _checked(brought, own) for brought in brought_by_others(OF_OTHERS, own)}


def _checked(brought: Brought[DerivedTable], own: Mapping[str, Table]) -> DerivedTable:
    table = brought.thing
    if table.partitioned_by != BY_ITERATION:
        raise brought.refused("it has no file for each iteration", "partition it by BY_ITERATION")
    unknown = sorted(set(table.made_of) - set(own))
    if unknown or not table.made_of:
        raise brought.refused(f"made_of names {', '.join(unknown) or 'nothing'}", "name tables of traceviz there")
    return table
