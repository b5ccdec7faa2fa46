"""A page: the finding as its title, what was measured, a legend outside the data, and axes whose sizes are inches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.typography import FACTS, LABEL, SMALL, TITLE, typography, width, wrapped

WIDTH = 11.0
"""Width of every page, inches: a landscape sheet of A4 or letter with narrow margins."""

MARGIN = 0.3
LABELS = 1.3
"""Width left of the data, for the names of lanes and rows."""

MEASURES = 1.25
"""Width right of the data, for the measures of lanes and rows."""

DATA_WIDTH = WIDTH - 2 * MARGIN - LABELS - MEASURES
"""Width of the data, inches."""

_TITLE_LINE, _FACTS_LINE, _LEGEND_LINE = 0.24, 0.18, 0.21
_SWATCH, _SWATCH_HEIGHT, _BETWEEN = 0.22, 0.11, 0.2
_AXIS = 0.42
_FOOTER = 0.14
_NANOSECONDS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One swatch of the legend; ``second`` parts it into two colours."""

    label: str
    colour: str
    second: str | None = None


@dataclass(frozen=True, slots=True)
class LegendGroup:
    """Swatches of one part of a figure, under its name; each group begins a line of the legend."""

    name: str
    entries: Sequence[LegendEntry]


@dataclass(frozen=True, slots=True)
class Caption:
    """The words of a figure.

    Attributes:
        title: the finding, with its figures.
        facts: what was measured, where and on which clock; sentences that are laid out one after the other.
        warnings: what a reader must know before believing the figure; shown under the title in a colour of its own.
        legend: outside the data, a group a line.
        footer: the tables that the figure was drawn from.
        note: how to read a detail; shown left of the footer.
    """

    title: str
    facts: Sequence[str]
    warnings: Sequence[str]
    legend: Sequence[LegendGroup]
    footer: str
    note: str = ""


class Stretches(NamedTuple):
    """Intervals in units of an axis."""

    starts: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Nanoseconds of a rank's clock → numbers on the axis, in a unit that suits the span.

    Attributes:
        unit: s, ms or µs.
        per_unit: nanoseconds in a unit.
        span_ns: length of the axis.
    """

    unit: str
    per_unit: int
    span_ns: int

    @classmethod
    def of(cls, span_ns: int) -> TimeScale:
        """The scale of an axis that is so long."""
        span_ns = max(int(span_ns), 1)
        if span_ns < 2_000_000:
            return cls("µs", 1_000, span_ns)
        if span_ns < 20 * _NANOSECONDS_PER_SECOND:
            return cls("ms", 1_000_000, span_ns)
        return cls("s", _NANOSECONDS_PER_SECOND, span_ns)

    def on_axis(self, intervals: Intervals, zero_ns: int) -> Stretches:
        """Intervals relative to a zero, in units of the axis."""
        # The difference is exact in integers; as a float of milliseconds it is so far below a pixel.
        return Stretches(
            (intervals.starts - zero_ns) / self.per_unit,
            (intervals.ends - zero_ns) / self.per_unit,
        )


@dataclass(frozen=True, slots=True)
class Page:
    """A figure whose header is written; ``paper`` covers all of it and counts inches from the top left corner.

    Attributes:
        top: where the data begin, inches from the top.
        data_height: room for the data, inches.
    """

    figure: Figure
    paper: Axes
    top: float
    data_height: float

    @property
    def right(self) -> float:
        """Where the column of figures begins, inches from the left."""
        return WIDTH - MEASURES - MARGIN + 0.1

    def axes(self, top: float, height: float, left: float = LABELS, right: float = MEASURES) -> Axes:
        """Axes over the data's width; ``top`` counts from the top of the data."""
        page_height = float(self.figure.get_figheight())
        bottom = page_height - self.top - top - height
        across = WIDTH - 2 * MARGIN - left - right
        box = ((MARGIN + left) / WIDTH, bottom / page_height, across / WIDTH, height / page_height)
        axes: Axes = self.figure.add_axes(box)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        return axes

    def lanes(self, scale: TimeScale, label: str, height: float | None = None, right: float = MEASURES) -> Axes:
        """Axes for lanes on one clock: x in units of the scale, y in inches from the top of the data.

        Args:
            height: of the lanes together, inches; by default that of the data. right: width right of them, inches.
        """
        height = self.data_height if height is None else height
        axes = self.axes(0.0, height, right=right)
        axes.set_xlim(0, scale.span_ns / scale.per_unit)
        axes.set_ylim(height, 0)
        axes.set_yticks([])
        rule_across(axes, f"{label}, {scale.unit}")
        return axes

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = LABEL,
        colour: str = palette.INK,
        align: str = "left",
        bold: bool = False,
    ) -> None:
        """Write one line at inches from the top left corner, ``y`` at half its height."""
        weight = "bold" if bold else "normal"
        self.paper.text(x, y, text, size=size, color=colour, ha=align, va="center_baseline", weight=weight)

    def row_label(
        self, y: float, text: str, measures: str = "", colour: str = palette.INK, size: float = LABEL
    ) -> None:
        """Name a lane left of the data and write its measures right of them; ``y`` counts from the top of the data."""
        room = MARGIN + LABELS - 0.22
        self.text(
            room + 0.1, self.top + y, text, size * min(room / max(width(text, size), room), 1), colour, align="right"
        )
        self.row_measures(y, measures, min(size, SMALL))

    def row_measures(self, y: float, measures: str, size: float = SMALL, stands_out: bool = False) -> None:
        """Write the measures of a lane right of the data, in the colour of attention where they stand out."""
        colour = palette.ATTENTION if stands_out else palette.QUIET_INK
        self.text(self.right, self.top + y, measures, size, colour, bold=stands_out)


def rule_across(axes: Axes, label: str, ticks: int = 11) -> None:
    """Label an axis across, with round numbers at most so often and a rule at each."""
    axes.set_xlabel(label, labelpad=3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.grid(visible=True, axis="x", color=palette.RULE, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)


def open_page(caption: Caption, data_height: float, axis_height: float = _AXIS) -> Page:
    """Make a page with its header, legend and footer, with room for the data."""
    across = WIDTH - 2 * MARGIN
    title = wrapped(caption.title, TITLE, across, bold=True)
    warnings = [line for sentence in caption.warnings for line in wrapped(sentence, FACTS, across, bold=True)]
    facts = [line.strip("· ") for line in wrapped(" · ".join(caption.facts), FACTS, across)]
    longest = max((width(group.name, SMALL) for group in caption.legend), default=0.0)
    names = longest + 0.15 if longest else 0.0
    legend = [
        (group.name if first else "", row)
        for group in caption.legend
        for first, row in _flow(group.entries, across - names)
    ]
    top = MARGIN + _TITLE_LINE * len(title) + _FACTS_LINE * (len(warnings) + len(facts))
    top += _LEGEND_LINE * len(legend) + (0.22 if legend else 0.1)
    height = top + data_height + axis_height + _FOOTER
    with typography():
        figure = Figure(figsize=(WIDTH, height), label=caption.title)
        paper = figure.add_axes((0, 0, 1, 1))
    paper.set(xlim=(0, WIDTH), ylim=(height, 0))
    paper.set_axis_off()
    page = Page(figure, paper, top, data_height)
    y = MARGIN
    for line in title:
        page.text(MARGIN, y, line, TITLE, bold=True)
        y += _TITLE_LINE
    for line in warnings:
        page.text(MARGIN, y, line, FACTS, palette.ATTENTION, bold=True)
        y += _FACTS_LINE
    for line in facts:
        page.text(MARGIN, y, line, FACTS, palette.QUIET_INK)
        y += _FACTS_LINE
    for name, row in legend:
        page.text(MARGIN, y + 0.06, name, SMALL, palette.QUIET_INK)
        _write_legend(page, row, MARGIN + names, y + 0.06)
        y += _LEGEND_LINE
    page.text(MARGIN, height - 0.2, caption.note, SMALL, palette.QUIET_INK)
    page.text(WIDTH - MARGIN, height - 0.2, caption.footer, SMALL, palette.QUIET_INK, align="right")
    return page


def _flow(entries: Iterable[LegendEntry], across: float) -> Iterator[tuple[bool, list[tuple[float, LegendEntry]]]]:
    """Lay swatches out in rows: whether it is the first one, and (distance from the left, entry) of its swatches."""
    row: list[tuple[float, LegendEntry]] = []
    x, first = 0.0, True
    for entry in entries:
        needed = _SWATCH + 0.07 + width(entry.label, SMALL)
        if row and x + needed > across:
            yield first, row
            row, x, first = [], 0.0, False
        row.append((x, entry))
        x += needed + _BETWEEN
    if row:
        yield first, row


def _write_legend(page: Page, row: Sequence[tuple[float, LegendEntry]], left: float, y: float) -> None:
    low, high = y - _SWATCH_HEIGHT / 2, y + _SWATCH_HEIGHT / 2
    for x, entry in row:
        start, end = left + x, left + x + _SWATCH
        parts = [(start, end, entry.colour)]
        if entry.second is not None:
            parts.append((start + _SWATCH / 2, end, entry.second))
        for first, last, colour in parts:
            page.paper.fill([first, last, last, first], [low, low, high, high], color=colour, lw=0)
        page.text(left + x + _SWATCH + 0.07, y, entry.label, SMALL)
