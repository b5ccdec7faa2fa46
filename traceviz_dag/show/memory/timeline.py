"""Pictures of GPU memory: what is requested over time, by category, and how the segments are filled at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.memory.roles import Role
from traceviz_dag.analyze.memory.schedule import Span
from traceviz_dag.analyze.wording import counted
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.printable import printable
from traceviz_dag.show.figures.step_blocks import StepStyle, draw_steps, step_legend
from traceviz_dag.show.memory.colours import COLOUR, FREE, label
from traceviz_dag.show.memory.recording import CATEGORIES, Recording
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import Steps
from traceviz_dag.show.page.blocks import Band, inches_per_unit
from traceviz_dag.show.page.page import Caption, LegendEntry, LegendGroup, Page, TimeScale, open_page
from traceviz_dag.show.page.typography import TINY, typography, width
from traceviz_dag.vocabulary import Category

_MIB = 1 << 20
_COLUMNS = 1500
_NUMBERS_HEIGHT, _STEPS_HEIGHT, _PASSES_HEIGHT, _BETWEEN, _HEIGHT = 0.16, 0.22, 0.22, 0.12, 4.2
_FARTHEST = 2.0
"""Widths of a number by which it may be right of its micro-batch; farther ones are left out."""

_SEGMENT_ROWS, _SEGMENTS_HEIGHT = 48, 4.6
_PASSES: dict[str, tuple[str, str]] = {
    Role.FORWARD: ("forward", palette.CATEGORY[Category.FWD_COMPUTATION]),
    Role.BACKWARD: ("backward", palette.CATEGORY[Category.BWD_COMPUTATION]),
    Role.RECOMPUTE: ("recompute", palette.CATEGORY[Category.BWD_COMPUTATION_RECOMPUTE]),
    Role.OPTIMIZER: ("optimizer", palette.CATEGORY[Category.OPTIMIZER_COMPUTATION]),
}


def draw_memory_timeline(
    recording: Recording,
    spans: Sequence[Span] = (),
    window_ns: tuple[int, int] | None = None,
    facts: Sequence[str] = (),
) -> Figure | None:
    """Draw requested memory by category over the recording.

    Each column of the picture shows the state in which most is requested within it. The lane above has the passes whose
    code allocates; above it, where the trace shows them, the numbered micro-batches of the host.

    Args:
        spans: forward and backward steps of the host, on the clock of the recording.
        window_ns: the part of the recording to show; by default all of it.
        facts: what else to say of it.

    Returns:
        The figure; None without events in the window.
    """
    every, unit = recording.times_ns, "event"
    first, last = 0, recording.events.num_rows
    if every is not None and window_ns is not None:
        first = int(np.searchsorted(every, window_ns[0], "left"))
        last = int(np.searchsorted(every, window_ns[1], "right"))
    if last <= first:
        return None
    zero = 0
    if every is None:
        times = np.arange(first, last, dtype=np.float64)
        limits = (float(first), max(float(last - 1), first + 1.0))
    else:
        zero, end = window_ns or (int(every[0]), int(every[-1]))
        scale = TimeScale.of(end - zero)
        times = (every[first:last] - zero) / scale.per_unit
        unit = f"time since the {'first event' if window_ns is None else 'first micro-batch began'}, {scale.unit}"
        limits = (0.0, scale.span_ns / scale.per_unit)
    requested, reserved = recording.requested[first:last], recording.reserved[first:last]
    where, shown = _columns(times, requested, limits)
    line, of_line = _columns(times, reserved, limits)
    categories = recording.category_bytes
    names = [name for name in CATEGORIES if name in categories and categories[name][first:last].any()]
    steps = _steps(spans) if every is not None else None
    legend = [
        LegendGroup("requested", [LegendEntry(label(each), COLOUR[each]) for each in names]),
        LegendGroup("allocating", [LegendEntry(word, colour) for word, colour in _PASSES.values()]),
    ]
    if steps is not None and len(steps):
        legend.append(LegendGroup("micro-batches", list(step_legend([steps]))))
    peak = int(requested.max())
    caption = Caption(
        f"{recording.subject}: at most {peak / _MIB:,.2f} MiB requested, of "
        f"{int(reserved.max()) / _MIB:,.2f} MiB reserved at most",
        [
            printable(recording.place),
            counted(last - first, "event", "events"),
            "each column shows its highest state",
            *facts,
        ],
        list(recording.warnings),
        legend,
        f"tables memory_events, memory_blocks{', microbatches' if steps is not None and len(steps) else ''}",
        "line: reserved",
    )
    with typography():
        lane = _NUMBERS_HEIGHT + _STEPS_HEIGHT + _BETWEEN if steps is not None and len(steps) else 0.0
        top = lane + _PASSES_HEIGHT + _BETWEEN
        page = open_page(caption, top + _HEIGHT)
        if lane and steps is not None:
            _draw_steps(page, steps, scale, zero)
        _draw_passes(page, recording, times, (first, last), limits, lane)
        axes = page.axes(top, _HEIGHT)
        parts = [categories[each][first:last][shown] / _MIB for each in names]
        axes.stackplot(where, *parts, colors=[COLOUR[each] for each in names], step="post", linewidth=0, zorder=2)
        axes.step(line, reserved[of_line] / _MIB, where="post", color=palette.INK, linewidth=0.9, zorder=3)
        axes.set(xlim=limits, ylim=(0, 1.04 * float(reserved.max()) / _MIB))
        axes.set_xlabel(unit, labelpad=3)
        axes.set_ylabel("MiB")
        axes.grid(visible=True, axis="y", color=palette.RULE, linewidth=0.5, zorder=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=11, steps=[1, 2, 2.5, 5, 10]))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    return page.figure


def draw_memory_segments(recording: Recording) -> Figure | None:
    """Draw the reserved memory at the end, segment behind segment in the order of their addresses, row by row.

    Returns:
        The figure; None without segments.
    """
    segments = recording.segments.to_pylist()
    reserved = sum(row["bytes"] for row in segments)
    if not reserved:
        return None
    codes, rows, inches = segment_image(recording)
    present = [category for place, category in enumerate(CATEGORIES) if (codes == place).any()]
    caption = Caption(
        f"{recording.subject}: {sum(row['inactive_bytes'] for row in segments) / _MIB:,.2f} of "
        f"{reserved / _MIB:,.2f} MiB reserved are free; the largest free block has "
        f"{max(row['largest_free_block_bytes'] for row in segments) / _MIB:,.2f} MiB",
        [
            printable(recording.place),
            counted(len(segments), "segment", "segments") + " in the order of their addresses",
            f"a row is {reserved / rows / _MIB:,.2f} MiB",
        ],
        [],
        [
            LegendGroup(
                "in use", [*(LegendEntry(label(each), COLOUR[each]) for each in present), LegendEntry("free", FREE)]
            )
        ],
        "tables memory_segments, memory_blocks",
        "dark: a segment starts",
    )
    colours = np.array([*(to_rgb(COLOUR[category]) for category in CATEGORIES), to_rgb(FREE), to_rgb(palette.INK)])
    with typography():
        page = open_page(caption, inches)
        axes = page.axes(0.0, inches)
        axes.imshow(colours[codes], aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
    return page.figure


def segment_image(recording: Recording) -> tuple[Int64, int, float]:
    """What each pixel of the map shows: the place of a category, then free, then the beginning of a segment."""
    segments = recording.segments.sort_by("address")
    address, sizes = (np.asarray(segments[name].to_numpy(), np.int64) for name in ("address", "bytes"))
    begins = np.cumsum(sizes) - sizes
    live = np.flatnonzero(recording.lives[1] == np.iinfo(np.int64).max)
    blocks = recording.blocks.take(live).sort_by("address").to_pylist()
    low = np.array([row["address"] for row in blocks], np.int64)
    # Sizes of live blocks are in the snapshot; one without is as large as what was requested.
    size = np.array([row["block_bytes"] or row["requested_bytes"] for row in blocks], np.int64)
    code = np.array([CATEGORIES.index(str(row["category"])) for row in blocks], np.int64)
    total = int(sizes.sum())
    rows = min(_SEGMENT_ROWS, max(total // (2 * _MIB), 1))
    pixels = (np.arange(rows * _COLUMNS, dtype=np.int64) * total + total // 2) // (rows * _COLUMNS)
    # Where each pixel is among the addresses.
    segment = np.searchsorted(begins, pixels, "right") - 1
    at = address[segment] + pixels - begins[segment]
    found = np.full(len(pixels), len(CATEGORIES), np.int64)
    if len(low):
        place = np.searchsorted(low, at, "right") - 1
        inside = (place >= 0) & (at < low[place] + size[place])
        found[inside] = code[place[inside]]
    first_pixels = np.searchsorted(pixels, begins)
    found[first_pixels[first_pixels < len(found)]] = len(CATEGORIES) + 1
    return found.reshape(rows, _COLUMNS), rows, max(_SEGMENTS_HEIGHT * rows / _SEGMENT_ROWS, 0.6)


def _columns(times: Float64, values: Int64, limits: tuple[float, float]) -> tuple[Float64, Int64]:
    """Where to draw which event: over each column of the picture that has events the one after which the value is
    highest, from its end on the last one of it, until the next column with events."""
    wide = (limits[1] - limits[0]) / _COLUMNS
    column = np.clip(((times - limits[0]) / wide).astype(np.int64), 0, _COLUMNS - 1)
    order = np.lexsort((-values, column))
    first = np.concatenate([[True], np.diff(column[order]) > 0])
    highest = order[first]
    last = np.flatnonzero(np.concatenate([np.diff(column) > 0, [True]]))
    begin = limits[0] + column[highest] * wide
    where = np.stack([begin, begin + wide], axis=1).reshape(-1)
    return where, np.stack([highest, last], axis=1).reshape(-1)


def _steps(spans: Sequence[Span]) -> Steps:
    ordered = sorted(spans, key=lambda span: span.start_ns)
    count = len(ordered)
    return Steps(
        Intervals(
            np.array([span.start_ns for span in ordered], np.int64),
            np.array([span.end_ns for span in ordered], np.int64),
        ),
        np.array([span.phase == "backward" for span in ordered], np.bool_),
        np.array([span.chunk for span in ordered], np.int64),
        np.array([span.microbatch for span in ordered], np.int64),
        np.zeros(count, np.int64),
    )


def _draw_steps(page: Page, steps: Steps, scale: TimeScale, zero_ns: int) -> None:
    """Draw the micro-batches, each with its number above it, moved to the right where its neighbour's is."""
    height = _NUMBERS_HEIGHT + _STEPS_HEIGHT
    axes = page.axes(0.0, height)
    axes.set(xlim=(0, scale.span_ns / scale.per_unit), ylim=(height, 0), yticks=[], xticks=[])
    axes.spines["bottom"].set_visible(False)
    band = Band(_NUMBERS_HEIGHT, height)
    draw_steps(axes, steps, band, StepStyle(0.0, None), scale, zero_ns, "memory")
    page.row_label(band.middle, "micro-batches")
    inches = inches_per_unit(axes)
    right = 0.0
    rows = zip(*(column.tolist() for column in (*steps.time, steps.backward, steps.microbatch)), strict=True)
    for start, end, backward, number in rows:
        middle = (start + end - 2 * zero_ns) / 2 / scale.per_unit * inches
        across = width(str(number), TINY)
        left = max(middle - across / 2, right)
        if left > middle + _FARTHEST * across:
            continue
        right = left + across + 0.03
        colour = palette.CATEGORY[Category.BWD_COMPUTATION if backward else Category.FWD_COMPUTATION]
        axes.text(left / inches, _NUMBERS_HEIGHT / 2, str(number), size=TINY, color=colour, va="center_baseline")


def _draw_passes(
    page: Page, recording: Recording, times: Float64, part: tuple[int, int], limits: tuple[float, float], top: float
) -> None:
    axes = page.axes(top, _PASSES_HEIGHT)
    axes.set(xlim=limits, ylim=(0, 1), yticks=[], xticks=[])
    axes.spines["bottom"].set_visible(False)
    page.row_label(top + _PASSES_HEIGHT / 2, "allocating")
    first, last = part
    known = [(place, role) for place, role in recording.allocations if first <= place < last and role in _PASSES]
    begins = [entry for number, entry in enumerate(known) if not number or known[number - 1][1] != entry[1]]
    edges = [*(float(times[place - first]) for place, _ in begins), limits[1]]
    for (_, role), low, high in zip(begins, edges, edges[1:], strict=False):
        axes.axvspan(low, high, color=_PASSES[role][1], lw=0)
