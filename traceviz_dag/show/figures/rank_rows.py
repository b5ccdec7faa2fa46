"""Rows of ranks: each rank's micro-batches in numbered blocks over a strip of its communication, idle stages grey."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes

from traceviz_dag.analyze.intervals import Intervals, measure
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.show.figures.rank_summary import RankSummary, computing_longer, summarise
from traceviz_dag.show.figures.step_blocks import StepStyle, draw_steps, entries, step_legend
from traceviz_dag.show.lanes.words import rank_label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Activity
from traceviz_dag.show.page.alignment import Aligned
from traceviz_dag.show.page.blocks import Band, Resolution, draw_blocks, draw_boxes, merge_for_page
from traceviz_dag.show.page.members import Member
from traceviz_dag.show.page.page import DATA_WIDTH, LegendEntry, LegendGroup, Page, TimeScale
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL
from traceviz_dag.vocabulary import Category

MOST_ROWS = 64
"""From so many ranks on, they are aggregated by stage."""

_PAGE_HEIGHT, _HIGHEST_ROW, _LOWEST_ROW = 6.2, 0.6, 0.135
_HEADING = 0.2
_BLOCKS, _STRIP = (0.1, 0.68), (0.72, 0.92)
_RECOMPUTE_FROM = 0.7
_SMALLEST_LABEL = 5.5


@dataclass(frozen=True, eq=False)
class Row:
    """One rank's row.

    Attributes:
        activity: None for a rank without usable trace.
        fault: what is in the row instead.
    """

    member: Member
    activity: Activity | None
    fault: str = ""

    @cached_property
    def summary(self) -> RankSummary:
        """The rank in few numbers."""
        return summarise(self.member, self.activity)

    @property
    def label(self) -> str:
        """Rank and stage."""
        return rank_label(self.member.rank, self.member.stage)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows under one heading; no heading where the figure has one group only."""

    heading: str
    rows: Sequence[Row]


def rows_height(groups: Sequence[RowGroup]) -> float:
    """Height that the groups need, inches."""
    return row_height(groups) * sum(len(group.rows) for group in groups) + _HEADING * _headings(groups)


def row_height(groups: Sequence[RowGroup]) -> float:
    """Height of a row, so that a page holds them all, inches."""
    rows = max(sum(len(group.rows) for group in groups), 1)
    return min(max(_PAGE_HEIGHT / rows, _LOWEST_ROW), _HIGHEST_ROW)


def draw_rows(
    page: Page,
    axes: Axes,
    groups: Sequence[RowGroup],
    aligned: Aligned,
    scale: TimeScale,
    at_fault: Collection[int] = (),
) -> int:
    """Draw all rows, their labels and measures; returns how many micro-batch numbers fitted."""
    height = row_height(groups)
    rows = [row for group in groups for row in group.rows]
    active = [row.activity for row in rows if row.activity is not None]
    foot = 1 - _RECOMPUTE_FROM if any(len(each.recompute().starts) for each in active) else 0.0
    blocks = height * (_BLOCKS[1] - _BLOCKS[0])
    style = StepStyle.of(axes, [each.steps for each in active], blocks, foot, scale)
    size = max(min(LABEL, 0.8 * height * POINTS_PER_INCH), _SMALLEST_LABEL)
    longer = computing_longer([row.summary for row in rows])
    page.text(page.right, page.top - 0.08, _measures_heading(rows), SMALL, palette.QUIET_INK)
    y, fitted = 0.0, 0
    for group in groups:
        if group.heading:
            page.row_label(y + _HEADING / 2, group.heading, colour=palette.QUIET_INK, size=min(size + 1, LABEL))
            y += _HEADING
        for row in group.rows:
            band = Band(y, y + height)
            colour = palette.ATTENTION if row.member.rank in at_fault else palette.INK
            page.row_label(band.part(*_BLOCKS).middle, row.label, colour=colour, size=size)
            stands_out = row.member.rank in longer
            page.row_measures(band.part(*_BLOCKS).middle, _measures(row), min(size, SMALL), stands_out)
            if row.activity is None or row.member.rank not in aligned.zero_ns:
                _draw_missing(axes, row, band, scale)
            else:
                fitted += _draw_row(axes, row.activity, band, style, scale, aligned.zero_ns[row.member.rank])
            y += height
    return fitted


def rows_legend(groups: Sequence[RowGroup]) -> Iterator[LegendGroup]:
    """Swatches of what the rows hold."""
    active = [row.activity for group in groups for row in group.rows if row.activity is not None]
    blocks = list(step_legend([activity.steps for activity in active]))
    stepped = {entry.colour for entry in blocks}
    drawn = {category for activity in active for category in activity.outside_steps}
    if any(len(activity.recompute().starts) for activity in active):
        drawn.add(Category.BWD_COMPUTATION_RECOMPUTE)
    blocks += entries(name for name in palette.LABEL if name in drawn and palette.CATEGORY[name] not in stepped)
    if any(len(activity.steps) for activity in active):
        blocks.append(LegendEntry(palette.STAGE_IDLE_LABEL, palette.STAGE_IDLE))
    yield LegendGroup("blocks", blocks)
    strip = {category for activity in active for _, category in activity.communication}
    if strip:
        yield LegendGroup("communication", entries(name for name in palette.LABEL if name in strip))


def _draw_row(axes: Axes, activity: Activity, band: Band, style: StepStyle, scale: TimeScale, zero_ns: int) -> int:
    blocks, strip = band.part(*_BLOCKS), band.part(*_STRIP)
    resolution = Resolution.of(scale.span_ns, DATA_WIDTH)
    name = f"rank-{activity.rank}"
    axes.axhline(strip.bottom, color=palette.RULE, linewidth=0.5, zorder=1)
    idle = activity.stage_idle()
    if len(idle.starts):
        draw_boxes(axes, scale.on_axis(idle, zero_ns), blocks, palette.STAGE_IDLE, f"{name}/stage-idle", zorder=1.5)
    fitted = draw_steps(axes, activity.steps, blocks, style, scale, zero_ns, name, activity.exposed())

    def draw(intervals: Intervals, at: Band, category: str, word: str) -> None:
        merged = merge_for_page(intervals, resolution)
        draw_blocks(axes, merged, at, palette.CATEGORY[category], scale, zero_ns, f"{name}/{word}")

    # What takes least time is drawn last: its thin blocks stay on top.
    for category, intervals in sorted(activity.outside_steps.items(), key=lambda item: -measure(item[1])):
        if category != Category.BWD_COMPUTATION_RECOMPUTE:
            draw(intervals, blocks, category, category)
    again = activity.recompute()
    draw(again, blocks.part(_RECOMPUTE_FROM, 1.0), Category.BWD_COMPUTATION_RECOMPUTE, "recompute")
    communication = activity.communication_by_category()
    for category, intervals in sorted(communication.items(), key=lambda item: -measure(item[1])):
        draw(intervals, strip, category, f"{category}-communication" if category == Category.UNCLASSIFIED else category)
    return fitted


def _draw_missing(axes: Axes, row: Row, band: Band, scale: TimeScale) -> None:
    """A hatched row with its fault in words, so that a gap is never taken for idleness."""
    inner = band.part(_BLOCKS[0], _STRIP[1])
    whole = np.array([0.0]), np.array([scale.span_ns / scale.per_unit])
    edges = axes.fill_between(
        [0.0, float(whole[1][0])],
        inner.top,
        inner.bottom,
        facecolor=palette.MISSING,
        edgecolor=palette.RULE,
        hatch="////",
        linewidth=0,
    )
    edges.set_gid(f"rank-{row.member.rank}/missing")
    axes.text(
        float(whole[1][0]) / 2,
        inner.middle,
        row.fault,
        size=min(SMALL, max(0.7 * inner.height * POINTS_PER_INCH, _SMALLEST_LABEL)),
        color=palette.ATTENTION,
        ha="center",
        va="center_baseline",
        weight="bold",
        bbox={"facecolor": palette.PAPER, "edgecolor": "none", "pad": 1.0},
    )


def _measures_heading(rows: Sequence[Row]) -> str:
    return "idle · computation" if any(row.summary.pipeline_ns for row in rows) else "computation"


def _measures(row: Row) -> str:
    """What is right of a row: its idle share where micro-batches are known, and how long it computes."""
    summary = row.summary
    if not summary.usable:
        return ""
    computation = duration(summary.computation_ns)
    if not summary.pipeline_ns:
        return computation
    return f"{share(summary.pipeline_ns - summary.steps_ns, summary.pipeline_ns)} · {computation}"


def _headings(groups: Sequence[RowGroup]) -> int:
    return sum(bool(group.heading) for group in groups)
