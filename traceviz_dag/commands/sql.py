"""``traceviz sql``: run a SELECT over the lake's tables and print its rows."""

from __future__ import annotations

from typing import Annotated

import typer

from traceviz_dag.commands.common.failures import end_gone, tell_stale
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import terminal
from traceviz_dag.commands.common.rows import as_json, print_rows
from traceviz_dag.lake.lake import open_lake


def sql(
    query: Annotated[str, typer.Argument(help="A SELECT statement; SHOW TABLES lists the tables.")],
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Query the tables with SQL, read-only.

    Tables also hold what is stale: a line names it, and the table stale_tables says why it is kept.

    \f
    Raises:
        UsageError: one line on what is wrong with the query.
        BadInputError: the home holds no lake.
        IncompleteError: files of a table that it names are gone; the rows are of the others.
    """
    lake = open_lake(home, refresh=False)
    rows = lake.query(query)
    if json:
        typer.echo(as_json(rows))
    else:
        print_rows(rows, terminal())
    tell_stale(lake)
    end_gone(lake.gone_parts(query))
