"""Pictures of GPU memory: what is requested over time, by category, and how the segments are filled at the end."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from traceviz_dag.analyze.memory.categories import CATEGORIES
from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.roles import Role
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.printable import printable
from traceviz_dag.read.memory.snapshot import INACTIVE, UNKNOWN, Action
from traceviz_dag.show.memory.colours import COLOUR, FREE, label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import Caption, LegendEntry, LegendGroup, Page, open_page
from traceviz_dag.show.page.typography import typography
from traceviz_dag.vocabulary import Category

_MIB = 1 << 20
_COLUMNS = 1500
_PASSES_HEIGHT, _BETWEEN, _HEIGHT = 0.22, 0.12, 4.2
_SEGMENT_ROWS, _SEGMENTS_HEIGHT = 48, 4.6
_PASSES: dict[Role, tuple[str, str]] = {
    Role.FORWARD: ("forward", palette.CATEGORY[Category.FWD_COMPUTATION]),
    Role.BACKWARD: ("backward", palette.CATEGORY[Category.BWD_COMPUTATION]),
    Role.RECOMPUTE: ("recompute", palette.CATEGORY[Category.BWD_COMPUTATION_RECOMPUTE]),
    Role.OPTIMIZER: ("optimizer", palette.CATEGORY[Category.OPTIMIZER_COMPUTATION]),
}
_TABLES = "tables memory_events, memory_blocks"


def draw_memory_timeline(name: str, one: Examined) -> Figure | None:
    """Draw requested memory by category over the recording.

    Each column of the picture shows the state in which most is requested within it. The lane above has the passes whose
    code allocates.

    Args:
        name: of the snapshot's file.

    Returns:
        The figure; None without events.
    """
    replay = one.replay
    if not len(replay.action):
        return None
    times, unit = _axis(one)
    highest = _highest(times, replay.requested[1:])
    where = times[highest]
    names = [str(category) for category in CATEGORIES if str(category) in one.category_bytes]
    caption = Caption(
        f"GPU {one.device}: at most {replay.peak_requested / _MIB:,.2f} MiB requested, of "
        f"{int(replay.reserved.max()) / _MIB:,.2f} MiB reserved at most",
        [printable(name), f"{len(replay.action):,} events", "each column shows its highest state"],
        _warnings(one),
        [
            LegendGroup("requested", [LegendEntry(label(each), COLOUR[each]) for each in names]),
            LegendGroup("allocating", [LegendEntry(word, colour) for word, colour in _PASSES.values()]),
        ],
        _TABLES,
        "line: reserved",
    )
    with typography():
        page = open_page(caption, _PASSES_HEIGHT + _BETWEEN + _HEIGHT)
        limits = (float(times[0]), max(float(times[-1]), float(times[0]) + 1e-9))
        _draw_passes(page, one, times, limits)
        axes = page.axes(_PASSES_HEIGHT + _BETWEEN, _HEIGHT)
        parts = [one.category_bytes[each][highest + 1] / _MIB for each in names]
        axes.stackplot(where, *parts, colors=[COLOUR[each] for each in names], step="post", linewidth=0, zorder=2)
        axes.step(where, replay.reserved[highest + 1] / _MIB, where="post", color=palette.INK, linewidth=0.9, zorder=3)
        axes.set(xlim=limits, ylim=(0, 1.04 * float(replay.reserved.max()) / _MIB))
        axes.set_xlabel(unit, labelpad=3)
        axes.set_ylabel("MiB")
        axes.grid(visible=True, axis="y", color=palette.RULE, linewidth=0.5, zorder=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=11, steps=[1, 2, 2.5, 5, 10]))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    return page.figure


def draw_memory_segments(name: str, one: Examined) -> Figure | None:
    """Draw the reserved memory at the end, segment behind segment in the order of their addresses, row by row.

    Returns:
        The figure; None without segments.
    """
    end = one.at_end
    if not end.reserved_bytes:
        return None
    codes, rows, inches = _segment_image(one)
    present = [str(category) for place, category in enumerate(CATEGORIES) if (codes == place).any()]
    caption = Caption(
        f"GPU {one.device}: {end.inactive_bytes / _MIB:,.2f} of {end.reserved_bytes / _MIB:,.2f} MiB reserved are "
        f"free; the largest free block has {end.largest_free_block_bytes / _MIB:,.2f} MiB",
        [
            printable(name),
            f"{len(one.replay.segments):,} segments in the order of their addresses",
            f"a row is {end.reserved_bytes / rows / _MIB:,.2f} MiB",
        ],
        [],
        [
            LegendGroup(
                "in use", [*(LegendEntry(label(each), COLOUR[each]) for each in present), LegendEntry("free", FREE)]
            )
        ],
        "tables memory_segments, memory_blocks",
        "dark: a segment begins",
    )
    colours = np.array([*(to_rgb(COLOUR[category]) for category in CATEGORIES), to_rgb(FREE), to_rgb(palette.INK)])
    with typography():
        page = open_page(caption, inches)
        axes = page.axes(0.0, inches)
        axes.imshow(colours[codes], aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
    return page.figure


def _segment_image(one: Examined) -> tuple[Int64, int, float]:
    """What each pixel of the map shows: the place of a category, then free, then the beginning of a segment."""
    snapshot, lives = one.snapshot, one.replay.lifetimes
    of_block = {
        int(lives.address[row]): int(one.categories.category[row]) for row in np.flatnonzero(lives.end == UNKNOWN)
    }
    segments = one.replay.segments[np.argsort(snapshot.segments["address"][one.replay.segments], kind="stable")]
    sizes = snapshot.segments["bytes"][segments]
    begins = np.cumsum(sizes) - sizes
    offset = dict(zip(segments.tolist(), (begins - snapshot.segments["address"][segments]).tolist(), strict=True))
    mine = np.flatnonzero(np.isin(snapshot.blocks["segment"], segments) & (snapshot.blocks["state"] != INACTIVE))
    starts, ends, codes = [], [], []
    for place in mine.tolist():
        address = int(snapshot.blocks["address"][place])
        starts.append(address + offset[int(snapshot.blocks["segment"][place])])
        ends.append(starts[-1] + int(snapshot.blocks["bytes"][place]))
        codes.append(of_block.get(address, len(CATEGORIES) - 1))
    total = int(sizes.sum())
    rows = min(_SEGMENT_ROWS, max(total // (2 * _MIB), 1))
    pixels = (np.arange(rows * _COLUMNS, dtype=np.int64) * total + total // 2) // (rows * _COLUMNS)
    found = np.full(len(pixels), len(CATEGORIES), np.int64)
    if starts:
        order = np.argsort(starts, kind="stable")
        low, high, code = (np.array(each, np.int64)[order] for each in (starts, ends, codes))
        at = np.searchsorted(low, pixels, "right") - 1
        inside = (at >= 0) & (pixels < high[at])
        found[inside] = code[at[inside]]
    first_pixels = np.searchsorted(pixels, begins)
    found[first_pixels[first_pixels < len(found)]] = len(CATEGORIES) + 1
    return found.reshape(rows, _COLUMNS), rows, max(_SEGMENTS_HEIGHT * rows / _SEGMENT_ROWS, 0.6)


def _axis(one: Examined) -> tuple[Float64, str]:
    """Where each event is on the axis: milliseconds since the first, or its number where there are no times."""
    time = one.replay.time_us
    if (time <= 0).any():
        return np.arange(len(time), dtype=np.float64), "event"
    return (np.maximum.accumulate(time) - time[0]) / 1000, "time since the first event, ms"


def _highest(times: Float64, requested: Int64) -> Int64:
    """The event of each column of the picture after which most is requested."""
    span = max(float(times[-1] - times[0]), 1e-9)
    columns = np.minimum(((times - times[0]) / span * _COLUMNS).astype(np.int64), _COLUMNS - 1)
    order = np.lexsort((-requested, columns))
    first = np.concatenate([[True], np.diff(columns[order]) > 0])
    return order[first]


def _draw_passes(page: Page, one: Examined, times: Float64, limits: tuple[float, float]) -> None:
    axes = page.axes(0.0, _PASSES_HEIGHT)
    axes.set(xlim=limits, ylim=(0, 1), yticks=[], xticks=[])
    axes.spines["bottom"].set_visible(False)
    page.row_label(_PASSES_HEIGHT / 2, "allocating")
    # Where others have frames, those without any are of the backward pass, as for the categories.
    frameless = Role.BACKWARD if any(role != Role.FRAMELESS for role in one.roles) else Role.FRAMELESS
    kept = np.flatnonzero(one.replay.action == Action.ALLOC)
    roles = [one.roles[stack] if stack != UNKNOWN else frameless for stack in one.replay.stack[kept].tolist()]
    known = [place for place, role in enumerate(roles) if role in _PASSES]
    begins = [place for number, place in enumerate(known) if not number or roles[known[number - 1]] != roles[place]]
    edges = [*times[kept[begins]].tolist(), limits[1]] if begins else []
    for begin, low, high in zip(begins, edges, edges[1:], strict=False):
        axes.axvspan(low, high, color=_PASSES[roles[begin]][1], lw=0)


def _warnings(one: Examined) -> list[str]:
    overflowed, _ = one.snapshot.ring
    found = ["older events were overwritten: an earlier peak is unknown"] if overflowed else []
    return [*found, *(f"{count:,} {what}" for what, count in one.replay.contradictions.items())]
