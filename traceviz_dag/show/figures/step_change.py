"""A change of the step as two waterfalls, by path and by replay: each row goes on where the one before it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from traceviz_dag.analyze.diff.changes import Change
from traceviz_dag.analyze.diff.replayed import ReplayRow
from traceviz_dag.analyze.diff.words import Verdict, named_class, named_part
from traceviz_dag.analyze.wording import signed
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes
from traceviz_dag.show.page.page import (
    MARGIN,
    WIDTH,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    TimeScale,
    open_page,
    rule_across,
)
from traceviz_dag.show.page.typography import LABEL, SMALL, typography, width

_MOST_ROWS = 12
_ROW, _HEAD, _AXIS, _NUMBERS = 0.26, 0.34, 0.62, 1.0
_WIDEST_LABEL = 4.2


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    change_ns: int
    is_change: bool = True
    is_sum: bool = False


def draw_step_change(
    judged: Verdict, sides: Sequence[str], step: Change, parts: Sequence[Change], replay: Sequence[ReplayRow]
) -> Figure:
    """Draw the change of the mean step.

    Args:
        sides: A and B in words.
        parts, replay: rows by ``PART_KEY`` and by class, which both add up to the change; where there are none, there
            is no such waterfall.
    """
    ordered = sorted(replay, key=lambda row: (-abs(row.change_ns), row.order))
    waterfalls = [
        (
            "By replay: what each class of work makes of it",
            _most([_Row(named_class(row.work), row.change_ns, row.is_change) for row in ordered], step),
        ),
        (
            "By path: what the critical path has more or less of",
            _most([_Row(_label(row), row.change_ns, row.is_change) for row in parts], step),
        ),
    ]
    waterfalls = [(title, rows) for title, rows in waterfalls if len(rows) > 1 or not step.change_ns]
    ends = [0, *(each for _, rows in waterfalls for each in _ends(rows))]
    scale = TimeScale.of(max(max(ends) - min(ends), 1))
    left = min(
        max((width(row.label, LABEL) for _, rows in waterfalls for row in rows), default=1.0) + 0.2, _WIDEST_LABEL
    )
    height = sum(_HEAD + _ROW * len(rows) for _, rows in waterfalls)
    with typography():
        page = open_page(_caption(judged, sides), height, _AXIS)
        top = 0.0
        for place, (title, rows) in enumerate(waterfalls):
            page.text(MARGIN, page.top + top + _HEAD / 2, title, LABEL, bold=True)
            axes = page.axes(top + _HEAD, _ROW * len(rows), left, _NUMBERS)
            _prepare(axes, ends, len(rows), scale, last=place == len(waterfalls) - 1)
            _draw(page, axes, rows, top + _HEAD, left, scale, f"change{place}")
            top += _HEAD + _ROW * len(rows)
    return page.figure


def _label(part: Change) -> str:
    stage, category, cause = part.key
    return f"{named_part(category, cause)}{'' if stage is None else f' of stage {stage}'}"


def _most(rows: Sequence[_Row], step: Change) -> list[_Row]:
    """The rows that change, the small ones together, and the change as a whole."""
    changed = [row for row in rows if row.change_ns]
    shown, rest = changed[:_MOST_ROWS], changed[_MOST_ROWS:]
    if len(rest) == 1:
        shown, rest = changed, []
    more = [_Row(f"{len(rest)} more", sum(row.change_ns for row in rest), is_change=False)] if rest else []
    return [*shown, *more, _Row("change of the step", step.change_ns, step.is_change, is_sum=True)]


def _ends(rows: Sequence[_Row]) -> list[int]:
    """Where each row ends; the last one begins at zero again."""
    return [*np.cumsum([row.change_ns for row in rows[:-1]]).tolist(), rows[-1].change_ns]


def _prepare(axes: Axes, ends: Sequence[int], rows: int, scale: TimeScale, *, last: bool) -> None:
    low, high = min(ends) / scale.per_unit, max(ends) / scale.per_unit
    room = 0.02 * max(high - low, 1e-9)
    axes.set(xlim=(low - room, high + room), ylim=(_ROW * rows, 0), yticks=[])
    rule_across(axes, f"longer than A's step, {scale.unit}" if last else "", 9)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _minus(f"{value:+,.6g}") if value else "0"))
    if not last:
        axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.axvline(0, color=palette.QUIET_INK, linewidth=0.8, zorder=1.5)


def _draw(page: Page, axes: Axes, rows: Sequence[_Row], top: float, left: float, scale: TimeScale, name: str) -> None:
    begins = [0, *_ends(rows)[:-2], 0] if len(rows) > 1 else [0]
    for number, (row, begin) in enumerate(zip(rows, begins, strict=True)):
        band = Band(number * _ROW, (number + 1) * _ROW)
        y = page.top + top + band.middle
        end = begin + row.change_ns
        colour = palette.COMPUTATION_ONLY
        if row.is_change:
            colour = palette.EXPOSED if row.change_ns > 0 else palette.HIDDEN
        stretch = Stretches(np.array([min(begin, end) / scale.per_unit]), np.array([max(begin, end) / scale.per_unit]))
        draw_boxes(axes, stretch, band.part(0.16, 0.84), colour, f"{name}/{row.label}")
        page.text(MARGIN + left - 0.12, y, row.label, LABEL, palette.INK, "right", bold=row.is_sum)
        words = _minus(signed(row.change_ns))
        ink = palette.INK if row.is_change else palette.QUIET_INK
        page.text(WIDTH - MARGIN, y, words, SMALL, ink, "right", row.is_sum)


def _minus(text: str) -> str:
    """A text whose numbers have a sign that reads as minus."""
    return re.sub(r"-(?=\d)", "−", text)


def _caption(judged: Verdict, sides: Sequence[str]) -> Caption:
    entries = [
        LegendEntry("longer", palette.EXPOSED),
        LegendEntry("shorter", palette.HIDDEN),
        LegendEntry("within its error bar, or several rows", palette.COMPUTATION_ONLY),
    ]
    return Caption(
        title=_minus(judged.headline),
        facts=[f"A: {sides[0]}", f"B: {sides[1]}", _minus(judged.bar)],
        warnings=[],
        legend=[LegendGroup("", entries)],
        footer="traceviz diff",
        note="each row goes on where the one before it ends; the rows add up to the last one",
    )
