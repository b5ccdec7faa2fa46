"""The rows of one lane: slices by start, and which part of each no earlier one covers; the changes of a counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64

NO_NAME = -1


@dataclass(frozen=True, slots=True, eq=False)
class LaneRows:
    """Slices of a lane, by start.

    Attributes:
        start_ns, end_ns: the end is not before the start.
        kind: place among the kinds of the lane.
        name: place among the names of the lane, ``NO_NAME`` for none.
        source: the row of the table, or the id, that it was made of. It and the name are of the least type that fits.
        reached: end of the time that this slice and those before it cover: the largest end so far.
    """

    start_ns: Int64
    end_ns: Int64
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.signedinteger]
    source: npt.NDArray[np.signedinteger]
    reached: Int64

    @classmethod
    def of(
        cls,
        start_ns: Int64,
        end_ns: Int64,
        kind: npt.ArrayLike = 0,
        name: npt.ArrayLike = NO_NAME,
        source: Int64 | None = None,
    ) -> LaneRows:
        """Rows that are sorted here, where they are not by start."""
        start = np.asarray(start_ns, np.int64)
        end = np.maximum(np.asarray(end_ns, np.int64), start)
        count = len(start)
        kinds = np.broadcast_to(np.asarray(kind, np.int8), count)
        names = np.broadcast_to(np.asarray(name, np.int32), count)
        sources = np.arange(count, dtype=np.int64) if source is None else np.asarray(source, np.int64)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end, kinds, names, sources = start[order], end[order], kinds[order], names[order], sources[order]
        # Rows that do not overlap are reached by their own ends.
        reached = end if (end[1:] >= end[:-1]).all() else np.maximum.accumulate(end)
        return cls(start, end, kinds, _narrow(names), _narrow(sources), reached)

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: slice | Int64) -> LaneRows:
        """Some of the rows; ``reached`` stays that of all."""
        return LaneRows(
            self.start_ns[rows],
            self.end_ns[rows],
            self.kind[rows],
            self.name[rows],
            self.source[rows],
            self.reached[rows],
        )

    def reaching(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """First and last (excluded) of the rows among which are all that touch a window."""
        high = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        low = int(np.searchsorted(self.reached, start_ns, side="right"))
        # A slice without length at the very start covers nothing, and yet is there.
        return min(low, int(np.searchsorted(self.start_ns, start_ns, side="left"))), high

    def own(self) -> tuple[Int64, Int64]:
        """Start and end of the part of each row that no row before covers: disjoint, together the union."""
        before = np.empty(len(self), np.int64)
        before[:1], before[1:] = self.start_ns[:1], self.reached[:-1]
        begin = np.maximum(self.start_ns, before)
        return begin, np.maximum(self.end_ns, begin)

    def own_of(self, rows: Int64) -> tuple[Int64, Int64]:
        """``own`` of rows that need not follow one another."""
        start = self.start_ns[rows]
        before = np.where(rows > 0, self.reached[np.maximum(rows - 1, 0)], start)
        begin = np.maximum(start, before)
        return begin, np.maximum(self.end_ns[rows], begin)


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The changes of a counter, by time; several at one instant are one."""

    time_ns: Int64
    value: Int64

    @classmethod
    def of(cls, time_ns: Int64, value: Int64) -> Changes:
        """Changes by time, where of several at one instant the last holds."""
        last = np.append(time_ns[1:] != time_ns[:-1], True)[: len(time_ns)]
        return cls(time_ns[last], value[last])

    @classmethod
    def of_steps(cls, time_ns: Int64, step: Int64) -> Changes:
        """A counter that begins with 0 and goes up or down by each step."""
        order = np.argsort(time_ns, kind="stable")
        return cls.of(time_ns[order], np.cumsum(step[order]))

    def __len__(self) -> int:
        return len(self.time_ns)


def _narrow(values: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """The same values in as few bytes as hold them all."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
