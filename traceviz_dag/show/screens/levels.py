"""Tiles of a lane at many widths: how many slices begin in a cell, how long any of them ran, which is the longest.

Cells of level k are 2^k ns long and lie at multiples of that, so four cells of a level are one of the next. A level
holds the slices that are shorter than its cells in cells, by kind, and lists the longer ones: there cannot be many of
them in a window of so many cells, unless they overlap. Cells in which nothing is are not stored. What a slice covers is
counted once: each has the part that none before it covers (``LaneRows.own``), so that times of cells, of kinds and of
listed slices add up to the union of all, at every level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.show.lanes.rows import LaneRows

FEW_ROWS = 4096
"""Lanes of so many rows have no levels: they are put into cells when they are drawn."""

_STEP = 2
_LEAST_EXPONENT = 8
_FEWEST_CELLS = 256
_MOST_EXPONENT = 60
_KINDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One level of a lane; an entry a cell and kind, by cell, then kind.

    Attributes:
        exponent: cells are 2^exponent ns long.
        cell: number of the cell: its start divided by its length.
        count: slices that begin in it; reaching: slices that began in the cell before and end here.
        busy_ns: their own time in the cell.
        longest: row of the longest of them.
        long: rows of the slices that are not shorter than a cell, ascending; they are in no cell.
    """

    exponent: int
    cell: Int64
    kind: npt.NDArray[np.int8]
    count: npt.NDArray[np.int32]
    reaching: npt.NDArray[np.int32]
    busy_ns: Int64
    longest: npt.NDArray[np.int32]
    long: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.cell)

    def take(self, entries: slice | Bool) -> Level:
        """Some of the cells, with all long slices."""
        return Level(
            self.exponent,
            self.cell[entries],
            self.kind[entries],
            self.count[entries],
            self.reaching[entries],
            self.busy_ns[entries],
            self.longest[entries],
            self.long,
        )


def levels_of(rows: LaneRows) -> list[Level]:
    """The levels of a lane, finest first; none where it has few rows."""
    if len(rows) <= FEW_ROWS:
        return []
    level = level_of(rows, _finest(rows))
    found = [level]
    while len(level) > _FEWEST_CELLS and level.exponent + _STEP <= _MOST_EXPONENT:
        level = coarser(rows, level, _STEP)
        found.append(level)
    return found


def level_of(rows: LaneRows, exponent: int, chosen: Int64 | None = None) -> Level:
    """One level of some rows of a lane, of all for None, made from the rows themselves."""
    if chosen is None:
        is_long = rows.end_ns - rows.start_ns >= 1 << exponent
        own_start, own_end = rows.own()
        short = np.flatnonzero(~is_long)
        entries = _split(rows, exponent, short, own_start[short], own_end[short])
        return _grouped(rows, exponent, [entries], np.flatnonzero(is_long))
    is_long = rows.end_ns[chosen] - rows.start_ns[chosen] >= 1 << exponent
    return _grouped(rows, exponent, [_of_rows(rows, exponent, chosen[~is_long])], chosen[is_long])


def coarser(rows: LaneRows, level: Level, step: int) -> Level:
    """A level of cells that are 2^step times as long, made from one and its long slices."""
    exponent = level.exponent + step
    long = np.asarray(level.long, np.int64)
    short = rows.end_ns[long] - rows.start_ns[long] < 1 << exponent
    inner = np.asarray(level.cell) & ((1 << step) - 1) == 0
    entries = _Entries(
        np.asarray(level.cell) >> step,
        np.asarray(level.kind),
        np.asarray(level.count),
        # What reaches from one cell into the next stays within the longer one, but at its start.
        np.where(inner, level.reaching, 0).astype(np.int32),
        np.asarray(level.busy_ns),
        np.asarray(level.longest),
    )
    return _grouped(rows, exponent, [entries, _of_rows(rows, exponent, long[short])], long[~short])


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Contributions to cells, several a cell and kind; as in ``Level``."""

    cell: Int64
    kind: npt.NDArray[np.int8]
    count: npt.NDArray[np.int32]
    reaching: npt.NDArray[np.int32]
    busy_ns: Int64
    longest: npt.NDArray[np.int32]


def _of_rows(rows: LaneRows, exponent: int, chosen: Int64) -> _Entries:
    return _split(rows, exponent, chosen, *rows.own_of(chosen))


def _split(rows: LaneRows, exponent: int, chosen: Int64, own_start: Int64, own_end: Int64) -> _Entries:
    """Slices shorter than a cell: in the cell where each begins, and in the next one where it ends there."""
    start, end, kind = rows.start_ns[chosen], rows.end_ns[chosen], rows.kind[chosen]
    cell = start >> exponent
    edge = (cell + 1) << exponent
    over = np.flatnonzero(end > edge)
    zero, one = (np.full(len(over), number, np.int32) for number in (0, 1))
    first = np.maximum(np.minimum(own_end, edge) - np.minimum(own_start, edge), 0)
    rest = own_end[over] - np.maximum(own_start[over], edge[over])
    return _Entries(
        np.concatenate([cell, cell[over] + 1]),
        np.concatenate([kind, kind[over]]),
        np.concatenate([np.ones(len(cell), np.int32), zero]),
        np.concatenate([np.zeros(len(cell), np.int32), one]),
        np.concatenate([first, np.maximum(rest, 0)]),
        np.concatenate([chosen, chosen[over]]).astype(np.int32),
    )


def _grouped(rows: LaneRows, exponent: int, parts: list[_Entries], long: Int64) -> Level:
    """Contributions added up by cell and kind."""
    joined = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("cell", "kind", "count", "reaching", "busy_ns", "longest")
    ]
    cell, kind, count, reaching, busy, longest = joined
    key = (cell - (cell.min() if len(cell) else 0)) * _KINDS + kind
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key, cell, kind, count, reaching, busy, longest = (
            part[order] for part in (key, cell, kind, count, reaching, busy, longest)
        )
    first = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
    if not len(first):
        return Level(exponent, cell, kind, count, reaching, busy, longest, long.astype(np.int32))
    return Level(
        exponent,
        cell[first],
        kind[first],
        np.add.reduceat(count, first).astype(np.int32),
        np.add.reduceat(reaching, first).astype(np.int32),
        np.add.reduceat(busy, first),
        longest[longest_of_groups(rows, longest, first)],
        long.astype(np.int32),
    )


def longest_of_groups(rows: LaneRows, longest: npt.NDArray[np.integer], first: Int64) -> Int64:
    """Of entries in groups that begin at ``first``: the place of that with the longest row, the first among equals."""
    length = rows.end_ns[longest] - rows.start_ns[longest]
    most = np.maximum.reduceat(length, first)
    sizes = np.diff(first, append=len(length))
    place = np.flatnonzero(length == np.repeat(most, sizes))
    group = np.searchsorted(first, place, side="right") - 1
    return place[np.flatnonzero(np.diff(group, prepend=-1))]


def _finest(rows: LaneRows) -> int:
    """The shortest cells of which at most a quarter as many are needed as there are rows."""
    span = int(rows.reached[-1]) - int(rows.start_ns[0])
    exponent = max((span // len(rows)).bit_length() - 1, _LEAST_EXPONENT)
    while exponent < _MOST_EXPONENT:
        cell = np.asarray(rows.start_ns) >> exponent
        if int((cell[1:] != cell[:-1]).sum()) + 1 <= len(rows) // 4:
            return exponent
        exponent += 1
    return exponent
