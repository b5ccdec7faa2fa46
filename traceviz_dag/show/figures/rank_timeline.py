"""Rank timeline: one rank on one clock, communication on its own lanes beside the computation it hides behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.intervals import Intervals, intersect, measure, merge
from traceviz_dag.analyze.waits.blamed import LateRank
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.show.figures.step_blocks import PALE_NOTE, StepStyle, draw_steps, entries, step_legend
from traceviz_dag.show.lanes.parts import HIDDEN, MEMORY_ALONE
from traceviz_dag.show.lanes.words import EXPOSED, MICROBATCHES, dimension_label, word_of
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Activity, is_partial, part_wall_clock, read_activity
from traceviz_dag.show.page.blocks import Band, Part, Resolution, draw_blocks, draw_shares, merge_for_page
from traceviz_dag.show.page.facts import RankMeasures, delay_finding, lead_in, lost_ranks, place
from traceviz_dag.show.page.page import DATA_WIDTH, Caption, LegendEntry, LegendGroup, Page, TimeScale, open_page
from traceviz_dag.show.page.typography import typography
from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.vocabulary import Category, Dimension

_GAP = 0.07
_STEPS_HEIGHT, _COMPUTATION_HEIGHT, _COMMUNICATION_HEIGHT, _THIN_HEIGHT = 0.3, 0.44, 0.3, 0.2
_WALL_CLOCK_HEIGHT = 0.4
_COLUMNS = 200


@dataclass(frozen=True, slots=True)
class _Lane:
    """One lane: what is drawn on it, by category, from the foot upwards."""

    label: str
    measures: str
    band: Band
    parts: Mapping[str, Intervals]


def draw_rank_timeline(source: TableSource, rank: int) -> Figure | None:
    """Draw one rank: micro-batches, computation, communication by dimension, memory, and what fills its wall clock.

    Returns:
        The figure; None for a rank without kernels.
    """
    activity = read_activity(source, rank)
    span = activity.span()
    if span is None:
        return None
    start, end = min(span[0], activity.window[0]), max(span[1], activity.window[1])
    lanes = list(_lanes(activity, 0.0 if not len(activity.steps) else _STEPS_HEIGHT + _GAP))
    height = lanes[-1].band.bottom + 2 * _GAP + _WALL_CLOCK_HEIGHT
    with typography():
        page = open_page(_caption(source, activity), height)
        scale = TimeScale.of(end - start)
        axes = page.lanes(scale, f"time since rank {rank}'s {'step began' if start < span[0] else 'first kernel'}")
        if len(activity.steps):
            band = Band(0.0, _STEPS_HEIGHT)
            style = StepStyle.of(axes, [activity.steps], band.height, 0.0, scale)
            draw_steps(axes, activity.steps, band, style, scale, start, f"rank-{rank}", activity.exposed())
            page.row_label(band.middle, MICROBATCHES, _count(activity))
        for lane in lanes:
            _draw_lane(page, axes, lane, scale, start, rank)
        _draw_wall_clock(page, axes, activity, (start, end), scale, Band(height - _WALL_CLOCK_HEIGHT, height))
    return page.figure


def _lanes(activity: Activity, top: float) -> Iterator[_Lane]:
    computation = activity.all_computation()
    y = top
    band = Band(y, y + _COMPUTATION_HEIGHT)
    yield _Lane("computation", duration(activity.time_of(computation)), band, activity.computation)
    y = band.bottom + _GAP
    for label, parts in _by_lane(activity).items():
        band = Band(y, y + _COMMUNICATION_HEIGHT)
        whole = merge(*parts.values())
        time, hidden = activity.time_of(whole), activity.time_of(intersect(whole, computation))
        measures = f"{duration(time)}, {share(hidden, time)} hidden"
        yield _Lane(label, measures, band, parts)
        y = band.bottom + _GAP
    if len(activity.memory.starts):
        band = Band(y, y + _THIN_HEIGHT)
        yield _Lane("memory", duration(activity.time_of(activity.memory)), band, {Category.MEMORY: activity.memory})


def _by_lane(activity: Activity) -> dict[str, dict[str, Intervals]]:
    """Lane → category → communication: a lane a dimension, in the order of the vocabulary."""
    found: dict[str, dict[str, Intervals]] = {}
    for (dimension, category), intervals in activity.communication.items():
        found.setdefault(dimension, {})[category] = intervals
    order = [dimension.value for dimension in Dimension]
    return {dimension_label(one): found[one] for one in sorted(found, key=order.index)}


def _draw_lane(page: Page, axes: Axes, lane: _Lane, scale: TimeScale, zero_ns: int, rank: int) -> None:
    axes.axhline(lane.band.bottom, color=palette.RULE, linewidth=0.6, zorder=1)
    # The category with the least time is drawn last: its thin blocks stay on top.
    for category, intervals in sorted(lane.parts.items(), key=lambda item: -measure(item[1])):
        blocks = merge_for_page(intervals, Resolution.of(scale.span_ns, DATA_WIDTH))
        name = f"rank-{rank}/{lane.label.replace(' ', '-')}/{category}"
        draw_blocks(axes, blocks, lane.band, palette.CATEGORY[category], scale, zero_ns, name)
    page.row_label(lane.band.middle, lane.label, lane.measures)


def _draw_wall_clock(
    page: Page, axes: Axes, activity: Activity, window: tuple[int, int], scale: TimeScale, band: Band
) -> None:
    """The lane at the foot: every instant in the colour of what fills it; exposed communication stands out."""
    start, end = window
    parts = part_wall_clock(activity, start, end)
    shown = [
        Part("exposed", parts.exposed, palette.EXPOSED),
        Part("hidden", parts.hidden, palette.HIDDEN),
        Part("computation-only", parts.computation_only, palette.COMPUTATION_ONLY),
        Part("memory-only", parts.memory_only, palette.MEMORY_ONLY),
        Part("idle", parts.idle, palette.IDLE),
    ]
    draw_shares(axes, shown, window, band, scale, _COLUMNS, f"rank-{activity.rank}/wall-clock")
    page.row_label(band.middle, "wall clock", f"{duration(activity.time_of(parts.exposed))} exposed")


def _count(activity: Activity) -> str:
    return f"{int((~activity.steps.backward).sum())} F, {int(activity.steps.backward.sum())} B"


def _caption(source: TableSource, activity: Activity) -> Caption:
    rank, measures = activity.rank, activity.measures
    partial = is_partial(activity.status)
    late = rows(source, "late_ranks", LateRank)
    delay = next((row for row in late if row["rank"] == rank and row["blamed"]), None)
    title, facts = f"Rank {rank}: {activity.kernels:,} kernels", [place(source)]
    if measures is not None:
        title = f"Rank {rank}: {_exposure(measures)}"
        facts += [
            *measures.notes,
            f"{measures.window_label} {duration(measures.window_ns)}",
            f"computation {duration(measures.compute_ns)}",
            f"communication {duration(measures.communication_ns)}, of it {duration(measures.hidden_ns)} hidden and "
            f"{duration(measures.exposed_ns)} exposed",
            f"idle {duration(measures.idle_ns)}",
        ]
    warnings = [f"a part of rank {rank}'s trace could not be read: what is missing here may have run"] * partial
    at_fault = lead_in(source).faults.get(rank)
    if delay is not None or at_fault is not None:
        # What it does to others matters more than its own waiting, of which it has least.
        delays = [] if delay is None else [delay_finding(delay), "a delay is not a saving"]
        title, *others = delays if at_fault is None else [at_fault, *delays]
        facts += [_exposure(measures)] if measures is not None else []
        facts += others
        warnings += lost_ranks(source)
    return Caption(
        title=title + (" (PARTIAL trace)" if partial else ""),
        facts=facts,
        warnings=warnings,
        legend=list(_legend(activity)),
        footer="tables kernels, microbatches, overlap, late_ranks, findings",
        note=f"height of a block: share of its time that is covered; {PALE_NOTE}",
    )


def _exposure(measures: RankMeasures) -> str:
    if not measures.communication_ns:
        return f"no communication; idle {share(measures.idle_ns, measures.window_ns)} of {measures.the_window}"
    return (
        f"{share(measures.exposed_ns, measures.communication_ns)} of communication is exposed, "
        f"{share(measures.exposed_ns, measures.window_ns)} of {measures.the_window}"
    )


def _legend(activity: Activity) -> Iterator[LegendGroup]:
    computation = [category for category in palette.LABEL if category in activity.computation]
    steps = list(step_legend([activity.steps]))
    stepped = {entry.colour for entry in steps}
    rest = [category for category in computation if palette.CATEGORY[category] not in stepped]
    yield LegendGroup("computation", [*steps, *entries(rest)])
    communication = {category for _, category in activity.communication}
    yield LegendGroup("communication", entries(category for category in palette.LABEL if category in communication))
    parts = [
        *(LegendEntry(*word_of(kind)) for kind in (EXPOSED, HIDDEN)),
        LegendEntry("computation alone", palette.COMPUTATION_ONLY),
        LegendEntry(*word_of(MEMORY_ALONE)),
        LegendEntry("idle", palette.IDLE),
    ]
    yield LegendGroup("wall clock", parts)
