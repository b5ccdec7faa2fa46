"""Critical path: through which stages and ranks the path of a step runs, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.causes.gains import named_edit, over_steps
from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.arrays import Int64
from traceviz_dag.show.figures.path_lanes import (
    SEGMENT_COLUMNS,
    Lane,
    StepPath,
    lanes_of_path,
    longest_path,
    microbatch_runs,
    path_finding,
    profile_of,
)
from traceviz_dag.show.lanes.words import Word
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import (
    Band,
    Part,
    draw_boxes,
    draw_numbers,
    draw_shares,
    inches_per_unit,
    number_size,
)
from traceviz_dag.show.page.facts import lead_in, lost_ranks, place, step_name, steps_left_out
from traceviz_dag.show.page.page import MARGIN, WIDTH, Caption, Page, Stretches, TimeScale, open_page
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL, TINY, typography, width
from traceviz_dag.show.source import TableSource

MOST_PARTS = 14
"""Rows of the profile; of more parts the least are one row."""

_ITEM_COLUMNS = ("rank", "stage")
_GAIN_COLUMNS = (
    *("step", "edit", "rank", "ranks", "dimension", "factor", "step_ns", "predicted_step_ns"),
    *("gain_ns", "gain_low_ns", "gain_high_ns", "refusal"),
)
_COLUMNS = 520
_PAGE_HEIGHT, _HIGHEST_LANE, _LOWEST_LANE, _PROFILE_ROW = 3.6, 0.62, 0.2, 0.22
_PROFILE, _PROFILE_LABELS, _PROFILE_NUMBERS, _SHARES = 3.45, 1.55, 1.15, 0.6
_AXIS, _LEAST_NUMBERED = 0.66, 0.08


def draw_critical_path(source: TableSource) -> Figure | None:
    """Draw the path of the iteration's longest step.

    Returns:
        The figure; None where no path is known.
    """
    path = longest_path(source.table("path_segments", SEGMENT_COLUMNS))
    if path is None:
        return None
    items = source.table("path_items", _ITEM_COLUMNS)
    ranks, stages = (optional_integers(items, name).tolist() for name in _ITEM_COLUMNS)
    stage_of = dict(zip(ranks, stages, strict=True))
    lane, lanes = lanes_of_path(path, stage_of)
    profile = profile_of(path, MOST_PARTS)
    height = min(max(_PAGE_HEIGHT / len(lanes), _LOWEST_LANE), _HIGHEST_LANE)
    scale = TimeScale.of(path.step_ns)
    caption = _caption(source, path, stage_of, profile)
    with typography():
        page = open_page(caption, max(height * len(lanes), _PROFILE_ROW * (len(profile) + 1) - 0.2), _AXIS)
        axes = page.lanes(
            scale, "time along the path, from the start of the step", height * len(lanes), _PROFILE + _SHARES
        )
        page.text(WIDTH - MARGIN - _PROFILE - _SHARES + 0.08, page.top - 0.08, "of step", SMALL, palette.QUIET_INK)
        for number, each in enumerate(lanes):
            _draw_lane(page, axes, each, Band(number * height, (number + 1) * height), path, lane == number, scale)
        _draw_moves(axes, path, lane, height, scale)
        _write_microbatches(axes, path, lane, height, scale)
        _draw_profile(page, path, profile)
    return page.figure


def _draw_lane(page: Page, axes: Axes, lane: Lane, band: Band, path: StepPath, mine: Int64, scale: TimeScale) -> None:
    """What the path is while it is in this lane: in each column of the page, each part's share of the time."""
    inner = _inner(band)
    axes.axhline(inner.bottom, color=palette.RULE, linewidth=0.6, zorder=1)
    starts, ends = path.edges_ns[:-1][mine], path.edges_ns[1:][mine]
    part = path.part[mine]
    parts = [
        Part(
            path.parts[number].label, Intervals(starts[part == number], ends[part == number]), path.parts[number].colour
        )
        for number in np.unique(part).tolist()
    ]
    if parts:
        draw_shares(axes, parts, (0, path.step_ns), inner, scale, _COLUMNS, lane.label)
    size = max(min(LABEL, 0.75 * band.height * POINTS_PER_INCH), TINY)
    colour = palette.INK if lane.path_ns else palette.QUIET_INK
    page.row_label(band.middle, lane.label, colour=colour, size=min(size, SMALL) if len(lane.label) > 17 else size)
    told = share(lane.path_ns, path.step_ns)
    page.text(
        WIDTH - MARGIN - _PROFILE - _SHARES + 0.08, page.top + band.middle, told, min(size, SMALL), palette.QUIET_INK
    )


def _inner(band: Band) -> Band:
    return band.part(0.12, 0.88)


def _draw_moves(axes: Axes, path: StepPath, lane: Int64, height: float, scale: TimeScale) -> None:
    """Strokes where the path moves to another lane; those that the page cannot part are one."""
    moves = np.flatnonzero(lane[1:] != lane[:-1])
    if not len(moves):
        return
    at = path.edges_ns[moves + 1]
    column = at * _COLUMNS // path.step_ns
    ends = np.sort(np.stack([lane[moves], lane[moves + 1]]), axis=0)
    _, first = np.unique(np.stack([column, *ends]), axis=1, return_index=True)
    upper, lower = ((row[first] + 0.5) * height for row in ends)
    lines = axes.vlines(at[first] / scale.per_unit, upper, lower, colors=palette.QUIET_INK, linewidths=0.6, zorder=1.5)
    lines.set_gid("moves")


def _write_microbatches(axes: Axes, path: StepPath, lane: Int64, height: float, scale: TimeScale) -> None:
    """The number of a micro-batch where the path stays on it for long enough."""
    least = _LEAST_NUMBERED / inches_per_unit(axes) * scale.per_unit
    runs = [run for run in microbatch_runs(path, lane) if run[2] - run[1] >= least]
    if not runs:
        return
    time = Stretches(*(np.array([run[side] for run in runs]) / scale.per_unit for side in (1, 2)))
    size = number_size(axes, time, 0.76 * height, [run[3] for run in runs])
    if size is None:
        return
    for where in sorted({(run[0], run[4]) for run in runs}):
        own = [number for number, run in enumerate(runs) if (run[0], run[4]) == where]
        band = _inner(Band(where[0] * height, (where[0] + 1) * height))
        stretches = Stretches(time.starts[own], time.ends[own])
        draw_numbers(axes, stretches, band, [runs[number][3] for number in own], size, palette.text_on(where[1]))


def _draw_profile(page: Page, path: StepPath, profile: Sequence[tuple[Word, int]]) -> None:
    """Bars of what the path is made of, with numbers that add up to the step in the last row."""
    left, right = WIDTH - MARGIN - _PROFILE, WIDTH - MARGIN
    height = _PROFILE_ROW * len(profile)
    axes = page.axes(0.0, height, left - MARGIN + _PROFILE_LABELS, _PROFILE_NUMBERS)
    axes.set(xlim=(0, profile[0][1]), ylim=(height, 0), xticks=[], yticks=[])
    axes.spines["bottom"].set_visible(False)
    page.text(left + _PROFILE_LABELS, page.top - 0.08, "what the path is made of", SMALL, palette.QUIET_INK, "center")
    page.text(right, page.top - 0.08, "ms", SMALL, palette.QUIET_INK, "right")
    rows = [*((part.label, length) for part, length in profile), ("the step", path.step_ns)]
    thousandths = _adding_up([length for _, length in profile])
    shares = right - max(0.5, width(f"{sum(thousandths) / 1e3:,.3f}", SMALL, bold=True) + 0.1)
    for number, (word, length) in enumerate(rows):
        band = Band(number * _PROFILE_ROW, (number + 1) * _PROFILE_ROW)
        y = page.top + band.middle
        last = number == len(profile)
        if not last:
            bar = Stretches(np.zeros(1), np.array([float(length)]))
            draw_boxes(axes, bar, band.part(0.18, 0.82), profile[number][0].colour, f"profile/{word}")
        told = sum(thousandths) if last else thousandths[number]
        page.text(left + _PROFILE_LABELS - 0.08, y, word, SMALL, palette.INK, "right", bold=last)
        page.text(shares, y, share(length, path.step_ns), SMALL, palette.QUIET_INK, "right")
        page.text(right, y, f"{told / 1e3:,.3f}", SMALL, palette.INK, "right", bold=last)


def _adding_up(lengths: Sequence[int]) -> list[int]:
    """Lengths in whole µs whose sum is that of the lengths, rounded: the largest remainders are rounded up."""
    whole = [length // 1000 for length in lengths]
    lacking = round(sum(lengths) / 1000) - sum(whole)
    largest = sorted(range(len(lengths)), key=lambda number: (-(lengths[number] % 1000), number))
    for number in largest[:lacking]:
        whole[number] += 1
    return whole


def _caption(
    source: TableSource, path: StepPath, stage_of: Mapping[int, int], profile: Sequence[tuple[Word, int]]
) -> Caption:
    gains, lead = source.table("what_if", _GAIN_COLUMNS).to_pylist(), lead_in(source)
    moves = int(np.count_nonzero(path.rank[1:] != path.rank[:-1]))
    crossed = len(np.unique(path.rank))
    which = f", the longest of {path.steps}" if path.steps > 1 else ""
    total = max(len(stage_of), crossed)
    warnings = lost_ranks(source)
    if total == 1:
        on = "one rank alone: what it communicates with others counts whole, waits included"
    else:
        of = f"of the {total} ranks read" if warnings else f"of {total} ranks"
        on = f"on {crossed} {of}, moves between ranks {moves:,} times"
    return Caption(
        title=path_finding(path, stage_of, profile),
        facts=[
            place(source),
            f"{step_name(path.step)}{which}: {duration(path.step_ns)} in {len(path.rank):,} segments",
            on,
            "no clocks are compared",
            *(
                [lead.limit]
                if lead.edits
                else _largest_gain([row for row in gains if row["step"] == path.step and row["refusal"] is None])
            ),
        ],
        warnings=[*warnings, *steps_left_out(gains)],
        legend=[],
        footer="tables path_segments, path_items, what_if, findings",
        note="number: micro-batch; grey line: the path moves; being on the path is not yet a gain",
    )


def _largest_gain(rows: Sequence[dict[str, int]]) -> Iterator[str]:
    best = next(iter(over_steps(rows)), None)
    if best is not None and best["gain_ns"] > 0 and best["gain_low_ns"] > 0:
        gain = f"{duration(best['gain_ns'])} ({share(best['gain_ns'], best['step_ns'])})"
        yield f"largest predicted gain: {named_edit(best)}, {gain}"
