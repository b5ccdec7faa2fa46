"""Predicted gains: what each of the usual edits would save, the largest first, with its error bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.causes.gains import named_edit, over_steps
from traceviz_dag.analyze.wording import duration, signed_percent
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes, prepare_bars
from traceviz_dag.show.page.facts import lead_in, lost_ranks, place, steps_left_out
from traceviz_dag.show.page.gain_rows import (
    MOST_ROWS,
    changes_step,
    gain_findings,
    is_gain,
    refused_edits,
    signed,
    signed_share,
)
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
from traceviz_dag.show.page.typography import LABEL, SMALL, typography, width
from traceviz_dag.show.source import TableSource

_COLUMNS = (
    *("step", "edit", "rank", "ranks", "dimension", "factor", "step_ns", "predicted_step_ns"),
    *("gain_ns", "gain_low_ns", "gain_high_ns", "replay_error", "refusal"),
)
_ROW, _NUMBERS, _CAP, _AXIS = 0.28, 2.35, 0.05, 0.66
_COLUMN_ENDS = tuple(WIDTH - MARGIN - left for left in (1.75, 1.2, 0.6, 0.0))
_WIDEST_LABEL = 3.6


def draw_predicted_gains(source: TableSource) -> Figure | None:
    """Draw what edits would gain, summed over the iteration's steps.

    Returns:
        The figure; None where nothing can be predicted.
    """
    table = source.table("what_if", _COLUMNS).to_pylist()
    told = over_steps([row for row in table if row["refusal"] is None])
    if not told:
        return None
    refused = refused_edits(table)
    steps = max(row["steps"] for row in told)
    changing = [row for row in told if changes_step(row)] or told
    shown = [{**row, "refusal": None} for row in changing[: MOST_ROWS - len(refused)]]
    low = min([0, *(row["gain_low_ns"] for row in shown)])
    high = max([1, *(row["gain_high_ns"] for row in shown)])
    scale = TimeScale.of(max(high - low, 1))
    labels = [*(_label(row, steps) for row in shown), *(named_edit(row) for row in refused)]
    left = min(max(width(label, LABEL) for label in labels) + 0.2, _WIDEST_LABEL)
    with typography():
        page = open_page(_caption(source, table, told, changing[len(shown) :]), _ROW * len(labels), _AXIS)
        axes = page.axes(0.0, _ROW * len(labels), left, _NUMBERS)
        limits = low / scale.per_unit, high / scale.per_unit
        prepare_bars(axes, limits, _ROW * len(labels), f"predicted gain, {scale.unit}")
        for x, word in zip(_COLUMN_ENDS, ("gain", "of step", "at least", "at most"), strict=True):
            page.text(x, page.top - 0.08, word, SMALL, palette.QUIET_INK, "right")
        for number, (row, label) in enumerate(zip((*shown, *refused), labels, strict=True)):
            band = Band(number * _ROW, (number + 1) * _ROW)
            y = page.top + band.middle
            colour = palette.INK if row["refusal"] is None else palette.QUIET_INK
            page.text(MARGIN + left - 0.12, y, label, LABEL, colour, "right")
            if row["refusal"] is not None:
                page.text(MARGIN + left + 0.08, y, f"refused: {row['refusal']}", SMALL, colour)
                continue
            _draw_row(axes, row, band, scale)
            for x, word in zip(_COLUMN_ENDS, _measures(row), strict=True):
                page.text(x, y, word, SMALL, palette.INK if is_gain(row) else palette.QUIET_INK, "right")
    return page.figure


def _draw_row(axes: Axes, row: Mapping[str, Any], band: Band, scale: TimeScale) -> None:
    gain, low, high = (row[name] / scale.per_unit for name in ("gain_ns", "gain_low_ns", "gain_high_ns"))
    colour = palette.HIDDEN if is_gain(row) else palette.COMPUTATION_ONLY
    bar = Stretches(np.array([min(gain, 0.0)]), np.array([max(gain, 0.0)]))
    draw_boxes(axes, bar, band.part(0.16, 0.84), colour, f"gain/{named_edit(row)}")
    line = axes.hlines(band.middle, low, high, colors=palette.INK, linewidths=1.0, zorder=3)
    line.set_gid(f"bar/{named_edit(row)}")
    axes.vlines([low, high], band.middle - _CAP, band.middle + _CAP, colors=palette.INK, linewidths=1.0, zorder=3)


def _label(row: Mapping[str, Any], steps: int) -> str:
    words = named_edit(row)
    return words if row["steps"] == steps else f"{words} ({row['steps']} of {steps} steps)"


def _measures(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    gain, low, high = (signed(row[name]) for name in ("gain_ns", "gain_low_ns", "gain_high_ns"))
    return gain, signed_share(row["gain_ns"], row["step_ns"]), low, high


def _caption(
    source: TableSource,
    table: Sequence[Mapping[str, Any]],
    told: Sequence[Mapping[str, Any]],
    rest: Sequence[Mapping[str, Any]],
) -> Caption:
    steps, step_ns = told[0]["steps"], max(row["step_ns"] for row in told)
    numbers = sorted({row["step"] for row in table if row["refusal"] is None and row["step"] is not None})
    named = f"step {numbers[0]}" if len(numbers) == 1 else "1 step"
    errors = [row["replay_error"] for row in table if row["refusal"] is None]
    low, high = (signed_percent(error).replace("-", "−") for error in (min(errors), max(errors)))
    error = low if low == high else f"{low} to {high}"
    idle = [named_edit(row) for row in told if not changes_step(row)]
    fewer = f"{len(rest)} more gain {duration(rest[0]['gain_ns'])} or less each" if rest else ""
    none = f"no effect: {', '.join(idle)}" if idle else ""
    entries = [LegendEntry("gain", palette.HIDDEN)]
    if not all(is_gain(row) for row in told if changes_step(row)):
        entries.append(LegendEntry("its error bar is not above 0: it may be no gain", palette.COMPUTATION_ONLY))
    title, *largest = gain_findings(told, lead_in(source))
    return Caption(
        title=title,
        facts=[
            place(source),
            *largest,
            f"{steps} steps, {duration(step_ns)} together, gains are sums"
            if steps > 1
            else f"{named}, {duration(step_ns)}",
            "gains do not add up: each edit alone; they are ceilings",
            *(text for text in (fewer, none) if text),
        ],
        warnings=[*lost_ranks(source), *steps_left_out(table)],
        legend=[LegendGroup("", entries)],
        footer="tables what_if, findings",
        note="error bar: host as it was and free, unmatched transfers in and out, widened by the replay's error "
        f"({error} of the step)",
    )
