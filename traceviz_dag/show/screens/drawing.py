"""What a lane shows in a window at so many pixels: boxes from the tiles of the level that fits, or from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.screens.levels import Level, coarser, level_of, longest_of_groups
from traceviz_dag.show.screens.model import ALL, Filter, Slices

_BY_THEMSELVES = 4
"""So many slices a pixel are drawn by themselves."""

_MOST_LONG = 8
"""So many slices a pixel that are longer than a pixel are drawn; they overlap, and those that others cover are left."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A lane as it is drawn: its rows, its levels from the finest on, words of kinds and names."""

    key: str
    rows: LaneRows
    levels: Sequence[Level]
    kinds: Sequence[str]
    names: Sequence[str]


def draw(lane: Drawn, window: Window, pixels: int, only: Filter = ALL) -> Slices:
    """The boxes of a lane."""
    pixels = max(pixels, 1)
    low, high = lane.rows.reaching(*window)
    exponent = _exponent(window, pixels)
    if high - low > _BY_THEMSELVES * pixels:
        return _boxes(lane, _level(lane, window, exponent), pixels, only)
    return _by_themselves(lane, _touching(lane.rows, np.arange(low, high), window), only)


def time_by_kind(lane: Drawn, window: Window, pixels: int) -> tuple[int, int, Int64]:
    """Own time of each kind in each cell of a window: exact, and adding up to the union of the slices.

    Returns:
        Start of the first cell; length of a cell, at most a pixel; time, ns, cells × kinds.
    """
    exponent = _exponent(window, pixels)
    first = window.start_ns >> exponent
    number = max(-(-window.end_ns >> exponent) - first, 0)
    whole = Window(first << exponent, (first + number) << exponent)
    level = _level(lane, whole, exponent)
    found = np.zeros((number, max(len(lane.kinds), 1)), np.int64)
    cell, busy = level.cell - first, level.busy_ns
    inside = (cell >= 0) & (cell < number)
    np.add.at(found, (cell[inside], level.kind[inside]), busy[inside])
    long = np.asarray(level.long, np.int64)
    edges = (first + np.arange(number + 1, dtype=np.int64)) << exponent
    start, end = lane.rows.own_of(long)
    kinds = lane.rows.kind[long]
    for kind in np.unique(kinds).tolist():
        mine = kinds == kind
        found[:, kind] += measure_within(union(start[mine], end[mine]), edges[:-1], edges[1:])
    return first << exponent, 1 << exponent, found


def _exponent(window: Window, pixels: int) -> int:
    """Of the longest cells that are not longer than a pixel."""
    return max(max(window.length_ns, 1) // max(pixels, 1), 1).bit_length() - 1


def _level(lane: Drawn, window: Window, exponent: int) -> Level:
    """What touches a window, in cells of an exponent."""
    rows, levels = lane.rows, lane.levels
    fitting = [place for place, level in enumerate(levels) if level.exponent <= exponent]
    if not fitting:
        return level_of(rows, exponent, _rows_touching(rows, levels, window))
    level = levels[fitting[-1]]
    first = int(np.searchsorted(level.cell, window.start_ns >> level.exponent, side="left"))
    last = int(np.searchsorted(level.cell, -(-window.end_ns >> level.exponent), side="left"))
    long = _long_touching(rows, levels[fitting[-1] :], window)
    found = replace(level.take(slice(first, last)), long=long.astype(np.int32))
    return coarser(rows, found, exponent - level.exponent) if exponent > level.exponent else found


def _rows_touching(rows: LaneRows, levels: Sequence[Level], window: Window) -> Int64:
    """The rows that touch a window, ascending."""
    low, high = rows.reaching(*window)
    if not levels:
        return _touching(rows, np.arange(low, high), window)
    # A slice that is shorter than the finest cells does not begin earlier than that before the window.
    near = max(int(np.searchsorted(rows.start_ns, window.start_ns - (1 << levels[0].exponent))), low)
    far = _long_touching(rows, levels, window)
    return np.concatenate([far[far < near], _touching(rows, np.arange(near, high), window)])


def _long_touching(rows: LaneRows, levels: Sequence[Level], window: Window) -> Int64:
    """Those of the long slices of the first level that touch a window, ascending.

    What begins longer before the window than cells of a level are long, and touches it, is among the long slices of
    that level: so few are looked at, however many slices another one covers.
    """
    low, high = rows.reaching(*window)
    found = []
    for place, level in enumerate(levels):
        first = low
        if place + 1 < len(levels):
            first = max(int(np.searchsorted(rows.start_ns, window.start_ns - (1 << levels[place + 1].exponent))), low)
        begin, end = np.searchsorted(level.long, [first, high])
        found.append(_touching(rows, np.asarray(level.long[begin:end], np.int64), window))
        high = min(first, high)
        if first == low:
            break
    return np.concatenate(found[::-1])


def _touching(rows: LaneRows, chosen: Int64, window: Window) -> Int64:
    start, end = rows.start_ns[chosen], rows.end_ns[chosen]
    return chosen[((end > window.start_ns) | (start >= window.start_ns)) & (start < window.end_ns)]


def _wanted(lane: Drawn, chosen: Int64, only: Filter) -> Int64:
    if only.least_ns:
        chosen = chosen[lane.rows.end_ns[chosen] - lane.rows.start_ns[chosen] >= only.least_ns]
    if only.kinds or only.without:
        chosen = chosen[_of_kinds(lane, lane.rows.kind[chosen], only)]
    return chosen


def _of_kinds(lane: Drawn, kind: np.ndarray, only: Filter) -> Bool:
    return np.array([only.keeps(word) for word in lane.kinds] or [not only.kinds], dtype=bool)[kind]


def _by_themselves(lane: Drawn, chosen: Int64, only: Filter) -> Slices:
    chosen = _wanted(lane, chosen, only)
    rows = lane.rows.take(chosen)
    return Slices(
        lane.key,
        rows.start_ns,
        rows.end_ns,
        np.ones(len(chosen), np.int64),
        rows.end_ns - rows.start_ns,
        rows.kind,
        rows.name.astype(np.int32),
        chosen,
        0,
        lane.kinds,
        lane.names,
    )


def _boxes(lane: Drawn, level: Level, pixels: int, only: Filter) -> Slices:
    """Cells, all kinds of one together, and the long slices, by start."""
    rows = lane.rows
    long, left_out = _not_too_many(rows, _wanted(lane, np.asarray(level.long, np.int64), only), _MOST_LONG * pixels)
    if only.kinds or only.without:
        level = level.take(_of_kinds(lane, level.kind, only))
    if only.least_ns:
        level = level.take(rows.end_ns[level.longest] - rows.start_ns[level.longest] >= only.least_ns)
    found = _cells(rows, level)
    singles = rows.take(long)
    start, end = np.concatenate([found.start, singles.start_ns]), np.concatenate([found.end, singles.end_ns])
    row = np.concatenate([found.row, long])
    order = np.lexsort((start - end, start))
    return Slices(
        lane.key,
        start[order],
        end[order],
        np.concatenate([found.touching, np.ones(len(long), np.int64)])[order],
        np.concatenate([found.busy, singles.end_ns - singles.start_ns])[order],
        np.concatenate([found.kind, singles.kind])[order],
        rows.name[row[order]].astype(np.int32),
        row[order],
        1 << level.exponent,
        lane.kinds,
        lane.names,
        left_out,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Cells as boxes: all kinds of one together."""

    start: Int64
    end: Int64
    touching: Int64
    busy: Int64
    kind: npt.NDArray[np.int8]
    row: Int64


def _cells(rows: LaneRows, level: Level) -> _Cells:
    first = np.flatnonzero(np.diff(level.cell, prepend=level.cell[:1] - 1))
    none = np.empty(0, np.int64)
    if not len(first):
        return _Cells(none, none, none, none, none.astype(np.int8), none)
    touching = np.add.reduceat((level.count + level.reaching).astype(np.int64), first)
    row = level.longest[longest_of_groups(rows, level.longest, first)].astype(np.int64)
    start = level.cell[first] << level.exponent
    # A slice that is alone in its cell is drawn as itself; one that is alone in two cells, once.
    alone = touching == 1
    again = np.zeros(len(row), dtype=bool)
    again[1:] = alone[1:] & alone[:-1] & (row[1:] == row[:-1])
    start = np.where(alone, rows.start_ns[row], start)
    end = np.where(alone, rows.end_ns[row], (level.cell[first] + 1) << level.exponent)
    busy = np.where(alone, end - start, np.add.reduceat(level.busy_ns, first))
    kind = level.kind[_most_busy(level.busy_ns, first)]
    kept = ~again
    return _Cells(start[kept], end[kept], touching[kept], busy[kept], kind[kept], row[kept])


def _most_busy(busy_ns: Int64, first: Int64) -> Int64:
    """Of entries in groups, the place of the one that ran longest, the first among equals."""
    most = np.repeat(np.maximum.reduceat(busy_ns, first), np.diff(first, append=len(busy_ns)))
    place = np.flatnonzero(busy_ns == most)
    group = np.searchsorted(first, place, side="right") - 1
    return place[np.flatnonzero(np.diff(group, prepend=-1))]


def _not_too_many(rows: LaneRows, long: Int64, most: int) -> tuple[Int64, int]:
    """Long slices; of too many, those that others do not cover, and of these the longest."""
    if len(long) <= most:
        return long, 0
    before = np.where(long > 0, rows.reached[np.maximum(long - 1, 0)], rows.start_ns[long])
    own = np.maximum(rows.end_ns[long] - np.maximum(rows.start_ns[long], before), 0)
    kept = np.sort(np.argsort(-own, kind="stable")[:most])
    return long[kept], len(long) - most
