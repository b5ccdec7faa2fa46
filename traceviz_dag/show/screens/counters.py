"""Counters: a value that changes at instants, and its least, most and last value in cells of many widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.lanes.rows import Changes
from traceviz_dag.show.screens.levels import FEW_ROWS
from traceviz_dag.show.screens.model import Counter

_STEP, _LEAST_EXPONENT, _MOST_EXPONENT, _FEWEST_CELLS = 2, 8, 60, 256


@dataclass(frozen=True, slots=True, eq=False)
class CounterLevel:
    """Cells of 2^exponent ns in which a counter changes, with its least, most and last new value in each."""

    exponent: int
    cell: Int64
    least: Int64
    most: Int64
    last: Int64


@dataclass(frozen=True, slots=True, eq=False)
class DrawnCounter:
    """A counter as it is drawn."""

    key: str
    changes: Changes
    levels: Sequence[CounterLevel]
    unit: str


def counter_levels(changes: Changes) -> list[CounterLevel]:
    """The levels of a counter, finest first; none where it changes rarely."""
    if len(changes) <= FEW_ROWS:
        return []
    span = int(changes.time_ns[-1]) - int(changes.time_ns[0])
    exponent = max((4 * span // len(changes)).bit_length() - 1, _LEAST_EXPONENT)
    found = [_level(exponent, changes.time_ns >> exponent, changes.value, changes.value, changes.value)]
    while len(found[-1].cell) > _FEWEST_CELLS and exponent + _STEP <= _MOST_EXPONENT:
        exponent += _STEP
        found.append(_coarser(found[-1], _STEP))
    return found


def draw_counter(counter: DrawnCounter, window: Window, pixels: int) -> Counter:
    """What a counter shows in a window."""
    exponent = max(max(window.length_ns, 1) // max(pixels, 1), 1).bit_length() - 1
    changes = counter.changes
    low, high = np.searchsorted(changes.time_ns, [window.start_ns, window.end_ns])
    fitting = [level for level in counter.levels if level.exponent <= exponent]
    if fitting:
        level = fitting[-1]
        first, last = np.searchsorted(
            level.cell, [window.start_ns >> level.exponent, -(-window.end_ns >> level.exponent)]
        )
        parts = (np.asarray(part[first:last]) for part in (level.cell, level.least, level.most, level.last))
        found = _coarser(CounterLevel(level.exponent, *parts), exponent - level.exponent)
        before = int(np.searchsorted(changes.time_ns, (window.start_ns >> level.exponent) << level.exponent)) - 1
    else:
        value = np.asarray(changes.value[low:high])
        found = _level(exponent, np.asarray(changes.time_ns[low:high]) >> exponent, value, value, value)
        before = int(low) - 1
    start = found.cell << exponent
    end = start + (1 << exponent)
    least, most, last_value = found.least, found.most, found.last
    if before >= 0:
        value = np.array([changes.value[before]], np.int64)
        time = np.array([changes.time_ns[before]], np.int64)
        start, end = np.concatenate([time, start]), np.concatenate([time, end])
        least, most, last_value = (np.concatenate([value, part]) for part in (least, most, last_value))
    return Counter(counter.key, start, end, least, most, last_value, counter.unit)


def _coarser(level: CounterLevel, step: int) -> CounterLevel:
    if not step:
        return level
    return _level(level.exponent + step, level.cell >> step, level.least, level.most, level.last)


def _level(exponent: int, cell: Int64, least: Int64, most: Int64, last: Int64) -> CounterLevel:
    """Entries by cell, several a cell, as one each."""
    first = np.flatnonzero(np.diff(cell, prepend=cell[:1] - 1))
    if not len(first):
        return CounterLevel(exponent, cell, least, most, last)
    ends = np.append(first[1:], len(cell)) - 1
    return CounterLevel(
        exponent, cell[first], np.minimum.reduceat(least, first), np.maximum.reduceat(most, first), last[ends]
    )
