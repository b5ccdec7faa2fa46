"""Bubble waterfall: from the ideal time of a pipeline stage, part by part of its bubble, to the time that it took."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.stage_times import STAGE_COLUMNS, StageTime, stage_times
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.show.lanes.words import rank_label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes
from traceviz_dag.show.page.bubbles import PARTS, DrawnPipeline, Waterfall, bubble_finding, chosen_pipelines
from traceviz_dag.show.page.facts import lead_in, lost_ranks, place
from traceviz_dag.show.page.page import (
    DATA_WIDTH,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    TimeScale,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL, TINY, typography, width
from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.tables.rows import PartedPipelineRow, PipelineRow, is_parted

_PAGE_HEIGHT, _HIGHEST_ROW, _LOWEST_ROW, _HEADING = 5.6, 0.62, 0.17, 0.2


def draw_bubble_waterfall(source: TableSource) -> Figure | None:
    """Draw the stages of the iteration's pipelines in the step that took longest.

    Returns:
        The figure; None where no bubble is known.
    """
    table = rows(source, "pipelines", PipelineRow)
    known = [row for row in table if is_parted(row)]
    if not known:
        return None
    step = max(known, key=lambda row: row["span_ns"])["step"]
    of_step = [row for row in known if row["step"] == step]
    groups = chosen_pipelines(of_step, lead_in(source))
    slowest = stage_times(source.table("microbatches", STAGE_COLUMNS)).slowest
    drawn = [row for group in groups for row in group.stages]
    headings = _HEADING * (len(groups) if len(of_step) > len(groups[0].stages) else 0)
    height = min(max((_PAGE_HEIGHT - headings) / len(drawn), _LOWEST_ROW), _HIGHEST_ROW)
    scale = TimeScale.of(round(1.03 * max(max(Waterfall.of(row).edges_ns) for row in drawn)))
    with typography():
        page = open_page(_caption(source, table, of_step, groups, slowest), headings + height * len(drawn))
        axes = page.lanes(scale, "time of the stage, on its own clock")
        page.text(page.right, page.top - 0.08, "bubble · ideal", SMALL, palette.QUIET_INK)
        y = 0.0
        for group in groups:
            if headings:
                size = min(LABEL if len(group.alike) == 1 else SMALL, height * 60)
                page.row_label(y + _HEADING / 2, group.heading, colour=palette.QUIET_INK, size=size)
                y += _HEADING
            for row in group.stages:
                _draw_row(page, axes, Waterfall.of(row), Band(y, y + height), scale)
                y += height
    return page.figure


def _draw_row(page: Page, axes: Axes, waterfall: Waterfall, band: Band, scale: TimeScale) -> None:
    """The ideal over the whole row, then each part on a step of its own, from where the one before it ended."""
    row, edges = waterfall.row, [edge / scale.per_unit for edge in waterfall.edges_ns]
    inner = band.part(0.06, 0.94)
    name = f"pipeline-{row['pipeline']}/stage-{row['stage']}"
    ideal = Stretches(np.array([0.0]), np.array([edges[1]]))
    draw_boxes(axes, ideal, inner, palette.COMPUTATION_ONLY, f"{name}/ideal")
    steps = len(PARTS)
    for number, (column, _, colour) in enumerate(PARTS):
        start, end = edges[number + 1 : number + 3]
        if row[column]:
            step = inner.part(number / steps, (number + 1) / steps)
            time = Stretches(np.array([min(start, end)]), np.array([max(start, end)]))
            draw_boxes(axes, time, step, colour, f"{name}/{column}")
            _write_part(axes, row[column], max(start, end), edges[-1], step, scale)
    axes.vlines(edges[-1], inner.top, inner.bottom, colors=palette.INK, linewidths=1.2, zorder=3)
    size = max(min(LABEL, 0.75 * band.height * POINTS_PER_INCH), TINY)
    page.row_label(band.middle, rank_label(row["rank"], row["stage"]), size=size)
    measures = f"{share(row['bubble_ns'], row['span_ns'])} · {share(round(row['ideal_share'] * 1e6), 1_000_000)}"
    page.row_measures(band.middle, measures, min(size, SMALL))


def _write_part(axes: Axes, nanoseconds: int, end: float, line: float, step: Band, scale: TimeScale) -> None:
    """The part in words right of its box, where the step is high enough and it is worth a word.

    Args:
        line: where the black line is, which must not go through the words: they are right of it then.
    """
    words = duration(nanoseconds).replace("-", "−")
    inches = scale.span_ns / scale.per_unit / DATA_WIDTH
    if step.height * POINTS_PER_INCH < TINY or abs(nanoseconds) < 0.01 * scale.span_ns:
        return
    across = (width(words, TINY) + 0.08) * inches
    left = line if end < line < end + across else end
    if left + across < scale.span_ns / scale.per_unit:
        axes.text(left + 0.05 * inches, step.middle, words, size=TINY, color=palette.QUIET_INK, va="center_baseline")


def _caption(
    source: TableSource,
    table: Sequence[PipelineRow],
    known: Sequence[PartedPipelineRow],
    drawn: Sequence[DrawnPipeline],
    slowest: StageTime | None,
) -> Caption:
    pipelines = len({row["pipeline"] for row in known})
    shown = sum(len(pipeline.alike) for pipeline in drawn)
    which = "1 pipeline" if pipelines == 1 else f"{pipelines} pipelines"
    if shown < pipelines:
        which = f"the {shown} longest of {which}"
    if len(drawn) < shown:
        which += f", of {len(drawn)} kinds: the longest of each" if len(drawn) > 1 else ", of 1 kind: the longest"
    first = known[0]
    steps = {row["step"] for row in table}
    facts = [place(source), which, f"schedule {first['schedule']}", f"{first['microbatches']} micro-batches"]
    if len(steps) > 1:
        facts.append(f"step {first['step']}, the longest of {len(steps)}")
    facts.append("each stage on its own clock: no alignment is needed")
    refused = sorted({row["refusal"] for row in table if row["refusal"] is not None})
    entries = [LegendEntry("ideal: micro-batches × mean stage", palette.COMPUTATION_ONLY)]
    return Caption(
        title=bubble_finding(known, slowest),
        facts=facts,
        warnings=[*lost_ranks(source), *(f"a pipeline is left out: {reason}" for reason in refused)],
        legend=[LegendGroup("", [*entries, *(LegendEntry(word, colour) for _, word, colour in PARTS)])],
        footer="tables pipelines, microbatches",
        note="black line: time that the stage took; a negative part points back",
    )
