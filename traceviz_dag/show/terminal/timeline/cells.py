"""Slices and counters as columns of letters: how much of a column's time they fill, what most of it is, and names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.lanes.words import brief_name
from traceviz_dag.show.screens.model import Counter, Overview, Slices
from traceviz_dag.show.terminal.glyphs import HEIGHTS, cut

_SHORTEST_LABEL = 6
"""Names that are cut to less than this say nothing."""

_SHADES = "░▒▓"
_DOTS = "·:"


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A line of columns.

    Attributes:
        kind: place in the kinds of what most of a column's busy time is; -1 where nothing runs.
        eighths: how much of the column's time is busy, in eighths; at least 1 where something runs.
        labels: (first column, text) of slices that are wide enough for their names.
    """

    kind: npt.NDArray[np.int64]
    eighths: Int64
    labels: tuple[tuple[int, str], ...] = ()


def cells_of(slices: Slices, window: Window, width: int) -> Cells:
    """The boxes of a lane as columns.

    A column that nothing fills wholly shows the share of its time in which something runs; where slices overlap, no
    more than all of it.
    """
    edges = window.start_ns + np.arange(width + 1, dtype=np.int64) * window.length_ns // width
    length = np.maximum(np.diff(edges), 1)
    time = np.zeros((max(len(slices.kinds), 1), width))
    start = np.clip(slices.start_ns, window.start_ns, window.end_ns)
    end = np.clip(slices.end_ns, window.start_ns, window.end_ns)
    whole = np.maximum(slices.end_ns - slices.start_ns, 1)
    density = slices.busy_ns / whole
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, width - 1)
    last = np.clip(np.searchsorted(edges, end, side="left") - 1, first, width - 1)
    kind = slices.kind.astype(np.int64)
    one = first == last
    # A slice of no length is seen all the same.
    np.add.at(time, (kind[one], first[one]), np.maximum((end - start)[one] * density[one], 1e-9))
    many = np.flatnonzero(~one)
    np.add.at(time, (kind[many], first[many]), (edges[first[many] + 1] - start[many]) * density[many])
    np.add.at(time, (kind[many], last[many]), (end[many] - edges[last[many]]) * density[many])
    steps = np.zeros((len(time), width + 1))
    np.add.at(steps, (kind[many], first[many] + 1), density[many])
    np.add.at(steps, (kind[many], last[many]), -density[many])
    time += np.cumsum(steps, axis=1)[:, :width] * length
    total = time.sum(axis=0)
    busy = total > 0
    eighths = np.where(busy, np.clip(np.ceil(np.minimum(total / length, 1) * 8 - 1e-6), 1, 8), 0).astype(np.int64)
    return Cells(np.where(busy, time.argmax(axis=0), -1), eighths, _labels(slices, first, last))


def _labels(slices: Slices, first: Int64, last: Int64) -> tuple[tuple[int, str], ...]:
    wide = np.flatnonzero((slices.count == 1) & (last > first) & (slices.name >= 0))
    found, free = [], 0
    for place in wide.tolist():
        begin, room = int(first[place]), int(last[place] - first[place])
        text = _fitting(slices.names[int(slices.name[place])], room)
        if begin >= free and text:
            found.append((begin, text))
            free = begin + cell_len(text) + 1
    return tuple(found)


def _fitting(name: str, room: int) -> str:
    """A name as there is room for it; empty where it would say nothing."""
    if cell_len(name) <= room:
        return name
    brief = brief_name(name)
    if brief != name:
        return brief if cell_len(brief) <= room else ""
    return cut(name, room) if room >= _SHORTEST_LABEL else ""


def counter_cells(counter: Counter, window: Window, width: int) -> tuple[Cells, int]:
    """A counter as columns of its largest value, and that value over all columns; it holds until it changes."""
    most = int(counter.most.max(initial=0))
    if not most or not len(counter.start_ns):
        return Cells(np.full(width, -1), np.zeros(width, np.int64)), most
    edges = window.start_ns + np.arange(width + 1, dtype=np.int64) * window.length_ns // width
    low = np.searchsorted(counter.start_ns, edges[:-1], side="right") - 1
    high = np.searchsorted(counter.start_ns, edges[1:], side="left")
    value = np.where(low >= 0, counter.last[np.maximum(low, 0)], 0)
    for place in np.flatnonzero(high > low + 1).tolist():
        value[place] = max(int(value[place]), int(counter.most[max(low[place], 0) : high[place]].max()))
    eighths = -(-value * 8 // most)
    return Cells(np.where(value > 0, 0, -1), np.clip(eighths, 0, 8)), most


def strip_eighths(time_ns: Int64, overview: Overview, width: int) -> Int64:
    """A time of each bin as eighths of its whole, for columns that share the bins out."""
    if not len(time_ns) or not overview.lanes:
        return np.zeros(width, np.int64)
    place = np.minimum(np.arange(width) * len(time_ns) // max(width, 1), len(time_ns) - 1)
    whole = np.maximum((overview.end_ns - overview.start_ns) * overview.lanes, 1)
    share = np.clip(time_ns / whole, 0, 1)[place]
    return np.where(time_ns[place] > 0, np.clip(np.ceil(share * 8 - 1e-6), 1, 8), 0).astype(np.int64)


def letter_of(word: str, eighths: int, colour: bool) -> str:
    """The letter of a column; without colours, communication is shaded, and memory dotted."""
    if eighths <= 0:
        return " "
    if colour:
        return HEIGHTS[eighths]
    if "communication" in word or word.startswith("exposed") or word in ("blocked", "nccl"):
        return _SHADES[min((eighths - 1) * 3 // 8, 2)]
    if "memory" in word or word in ("starved", "unexplained", "unexplained_gap"):
        return _DOTS[min((eighths - 1) // 4, 1)]
    return HEIGHTS[eighths]
