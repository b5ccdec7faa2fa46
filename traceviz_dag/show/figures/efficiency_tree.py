"""Efficiency tree: how much of the step the mean rank computes, and what each factor loses of it, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.causes.factors import named_factor, over_steps
from traceviz_dag.analyze.wording import duration
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes
from traceviz_dag.show.page.factor_rows import (
    COLOURS,
    USEFUL,
    Loss,
    efficiency_finding,
    label,
    losses,
    measures,
    refused_steps,
)
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import (
    MARGIN,
    WIDTH,
    Caption,
    LegendEntry,
    LegendGroup,
    Stretches,
    TimeScale,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, SMALL, typography
from traceviz_dag.show.source import TableSource

_COLUMNS = (
    *("step", "replica", "ranks", "factor", "dimension", "parent", "value", "ideal_ns", "time_ns", "lost_ns"),
    "reason",
)
_ROW, _INDENT, _NUMBERS = 0.3, 0.13, 2.0
_COLUMN_ENDS = tuple(WIDTH - MARGIN - left for left in (1.3, 0.6, 0.0))


def draw_efficiency_tree(source: TableSource) -> Figure | None:
    """Draw the factors of all ranks, summed over the iteration's steps.

    Returns:
        The figure; None where they are not known.
    """
    table = source.table("efficiencies", _COLUMNS).to_pylist()
    told = [row for row in over_steps(table) if row["replica"] is None]
    if not told:
        return None
    tree = losses(told)
    whole = told[0]
    scale = TimeScale.of(whole["time_ns"])
    with typography():
        page = open_page(_caption(source, table, told), _ROW * len(tree))
        axes = page.lanes(scale, "time, useful and lost", right=_NUMBERS)
        for x, word in zip(_COLUMN_ENDS, ("value", "lost", "of step"), strict=True):
            page.text(x, page.top - 0.08, word, SMALL, palette.QUIET_INK, "right")
        for number, loss in enumerate(tree):
            band = Band(number * _ROW, (number + 1) * _ROW)
            _draw_row(axes, loss, tree, band.part(0.14, 0.86), scale)
            y = page.top + band.middle
            page.text(MARGIN + loss.depth * _INDENT, y, label(loss.row), LABEL, bold=not loss.depth)
            for x, word in zip(_COLUMN_ENDS, measures(loss.row, whole["time_ns"]), strict=True):
                page.text(x, y, word, SMALL, palette.INK, "right", bold=not loss.depth)
    return page.figure


def _draw_row(axes: Axes, loss: Loss, tree: Sequence[Loss], band: Band, scale: TimeScale) -> None:
    """A factor's loss below that of what it is a part of; first the useful time and all losses, which are the step."""
    if loss.depth:
        _draw(axes, loss.start_ns, loss.row["lost_ns"] or 0, band, scale, loss.colour, named_factor(loss.row))
        return
    _draw(axes, 0, loss.row["ideal_ns"], band, scale, palette.COMPUTATION_ONLY, "useful")
    for part in tree:
        if part.depth == 1:
            _draw(axes, part.start_ns, part.row["lost_ns"], band, scale, part.colour, f"step/{named_factor(part.row)}")


def _draw(axes: Axes, start_ns: int, length_ns: int, band: Band, scale: TimeScale, colour: str, name: str) -> None:
    ends = sorted((start_ns / scale.per_unit, (start_ns + length_ns) / scale.per_unit))
    if length_ns:
        draw_boxes(axes, Stretches(np.array(ends[:1]), np.array(ends[1:])), band, colour, name)


def _caption(source: TableSource, table: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]) -> Caption:
    whole = told[0]
    efficiency = (
        f"parallel efficiency {measures(whole, whole['time_ns'])[0]}: the mean of {whole['ranks']} ranks computes "
        f"{duration(whole['ideal_ns'])}"
    )
    entries = [LegendEntry(USEFUL, palette.COMPUTATION_ONLY)]
    entries += [LegendEntry(f"lost: {factor.value.replace('_', ' ')}", colour) for factor, colour in COLOURS.items()]
    several = [f"{whole['steps']} steps together"] if whole["steps"] > 1 else []
    return Caption(
        title=efficiency_finding(told),
        facts=[place(source), efficiency, *several, "factors multiply, and losses add up to the step"],
        warnings=[*lost_ranks(source), *refused_steps(table)],
        legend=[LegendGroup("", entries)],
        footer="table efficiencies",
        note="a loss is no saving: ask what-if; dimensions are restored one after the other",
    )
