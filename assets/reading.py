"""The descriptions of assets: what a table or figure holds, how it is read, what NULL means, which command asks it."""

from __future__ import annotations

from collections.abc import Iterable

from assets.figure_assets import asset_of
from assets.plotted import PLOTS
from traceviz_dag.show.registry import FigureKind, figure_kinds
from traceviz_dag.tables import Table

FIGURES = {
    "rank_timeline": (
        "below the computation a lane for each communication dimension; the lane at the foot says at each time "
        "what fills the wall clock"
    ),
    "overlap_bars": ("a bar for each micro-batch and phase; magenta is communication that nothing hides"),
    "pipeline_group": ("a row for each stage; grey is a stage that runs no micro-batch, the strip below it why"),
    "model_replica": (
        "a row for each rank, pipeline by pipeline; a rank that computes longer than its stage is marked"
    ),
    "all_ranks": ("as a model replica, of the whole job"),
    "wait_map": (
        "a row for each rank, a cell for each communication; a light row among dark ones is the rank that the "
        "others wait for"
    ),
    "same_work": (
        "a row for each rank, a column for each class of work; a dark cell takes longer than on the rank's peers"
    ),
    "overlap_savings": (
        "a bar for each dimension: its hidden communication, of which the magenta part is lost to slower computation"
    ),
    "roofline": (
        "a panel for each stage, a point for each operation; what is far below the line has headroom, under the slope "
        "its bytes limit it"
    ),
    "module_tree": (
        "a row for each module, below the one that holds it; magenta is communication that nothing hides, black the "
        "part of its time that is headroom"
    ),
    "bubble_waterfall": (
        "a row for each stage, from its ideal time, part by part, to the black line: the time it took"
    ),
    "period_distribution": ("above, how long units take; below, OverlapScores: 1 is hidden, 0 takes turns"),
    "critical_path": (
        "a lane for each rank that limits the step, along the path; where it changes lanes, one rank waits for another"
    ),
    "efficiency_tree": (
        "above, the step: useful time, then what is lost, the most first; below each loss what it is made of"
    ),
    "advised_pipelines": ("a pipeline as it is, and below with the best changes: a row for each stage, a box a step"),
    "predicted_gains": ("a bar for each edit: what the replay predicts that it would save"),
    "memory_timeline": "requested memory by category; the line above it is what is reserved, below it micro-batches",
    "memory_peak": "a rectangle for each call site; its area is what the site holds when most is requested",
    "memory_segments": "the segments at the end, row by row, and what is free in them",
    "memory_stages": "the activations that each rank keeps at once, beside what its schedule implies",
    "clock_residuals": ("how far ends of communications are from each other on solved clocks: near 0 is good"),
}
"""Kind of figure → how it is read."""


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
        how = FIGURES.get(kind.name)
        tables = ", ".join(f"[{name}](/assets/{name})" for name in kind.tables)
        lines.append(f"- `{kind.name}`: {kind.shows}{f'. {how[:1].upper()}{how[1:]}' if how else ''}. From {tables}.")
    names = ",".join(kind.name for kind in kinds)
    return "\n\n".join(
        (
            "Each figure's title is its finding, with its numbers. What the tables do not show is not drawn.",
            "\n".join(lines),
            f"**Ask:** `traceviz figures --kind {names}`; `traceviz serve` shows them in a browser.",
        )
    )
