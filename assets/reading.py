"""The descriptions of assets: what a table or figure holds, how it is read, what NULL means, which command asks it."""

from __future__ import annotations

from collections.abc import Iterable

from assets.figure_assets import asset_of
from assets.plotted import PLOTS
from traceviz_dag.analyze.wording import capitalised
from traceviz_dag.show.registry import FigureKind, figure_kinds
from traceviz_dag.tables import Table


def table_description(table: Table) -> str:
    """What Dagster shows above a table's columns, as Markdown."""
    parts = [table.comment]
    if table.how:
        parts.append(f"**How to read it.** {table.how}")
    nullable = [f"`{column.name}`" for column in table.columns if "NULL" in column.comment]
    if nullable:
        several = f"columns {', '.join(nullable)} say below when they are NULL"
        one = f"column {nullable[0]} says below when it is NULL"
        parts.append(f"**NULL** is an answer: {several if len(nullable) > 1 else one}.")
    asked = [f"`traceviz {command}`" for command in table.commands]
    asked.append(f'`traceviz sql "SELECT * FROM {table.name} LIMIT 10"`')
    parts.append(f"**Ask:** {', '.join(asked)}.")
    plots = [f"`{name}` ({plot.says})" for name, plot in PLOTS.get(table.name, {}).items()]
    if plots:
        parts.append(f"**Plotted** over the iterations, under Metadata: {'; '.join(plots)}.")
    drawn = [kind for kind in figure_kinds().values() if table.name in kind.tables]
    if drawn:
        shown = ", ".join(f"`{kind.name}` ([{asset_of(kind)}](/assets/{asset_of(kind)}))" for kind in drawn)
        parts.append(f"**Drawn in** {shown}.")
    return "\n\n".join(parts)


def figures_description(kinds: Iterable[FigureKind]) -> str:
    """What Dagster shows of an asset that draws some kinds of figures, as Markdown."""
    kinds = tuple(kinds)
    lines = []
    for kind in kinds:
        tables = ", ".join(f"[{name}](/assets/{name})" for name in kind.tables)
        lines.append(f"- `{kind.name}`: {kind.shows}{f'. {capitalised(kind.how)}' if kind.how else ''}. From {tables}.")
    names = ",".join(kind.name for kind in kinds)
    return "\n\n".join(
        (
            "Each figure's title is its finding, with its numbers. What the tables do not show is not drawn.",
            "\n".join(lines),
            f"**Ask:** `traceviz figures --kind {names}`; `traceviz serve` shows them in a browser.",
        )
    )
