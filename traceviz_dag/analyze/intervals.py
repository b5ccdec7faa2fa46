"""Interval algebra on arrays: unions, intersections and covered lengths, linear in the intervals once they are sorted.

An interval is half-open, ``[start, end)``, in integer nanoseconds. An interval whose end is not after its start covers
nothing. A set of intervals is *normal* when it is sorted, disjoint, without empty and without touching intervals;
every function here that returns ``Intervals`` returns a normal set, ``clip`` apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Intervals(NamedTuple):
    """Intervals as two int64 arrays of one length: starts and ends, ns."""

    starts: Int64
    ends: Int64


NOTHING = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


class Axis(NamedTuple):
    """Groups of intervals laid end to end on one time axis, so that one pass over it serves all groups.

    Attributes:
        offsets: per group, what to add to its times to come to its segment.
        segment_starts: per group, first instant of its segment.
        segment_ends: per group, end of its segment; at least 1 ns before the next one.
    """

    offsets: Int64
    segment_starts: Int64
    segment_ends: Int64

    def place(self, intervals: Intervals, groups: npt.NDArray[np.integer]) -> Intervals:
        """Move each interval of a group (by number) to the group's segment."""
        shift = self.offsets[groups]
        return Intervals(intervals.starts + shift, intervals.ends + shift)


def union(starts: Int64, ends: Int64) -> Intervals:
    """Return the normal set that covers exactly what the given intervals cover; touching intervals become one."""
    starts, ends = _int64(starts), _int64(ends)
    if _is_normal(starts, ends):
        return Intervals(starts, ends)
    filled = ends > starts
    if not filled.all():
        starts, ends = starts[filled], ends[filled]
    if not len(starts):
        return Intervals(starts, ends)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    opens = (starts[1:] > reached[:-1]).nonzero()[0] + 1
    return Intervals(
        starts[np.concatenate(([0], opens))],
        reached[np.concatenate((opens - 1, [len(reached) - 1]))],
    )


def merge(*sets: Intervals) -> Intervals:
    """Return the union of several sets."""
    if not sets:
        return union(np.empty(0, np.int64), np.empty(0, np.int64))
    return union(np.concatenate([each.starts for each in sets]), np.concatenate([each.ends for each in sets]))


def measure(intervals: Intervals) -> int:
    """Return the length that the intervals cover, ns; what several of them cover counts once."""
    covered = union(*intervals)
    return int((covered.ends - covered.starts).sum())


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the normal set of what both sets cover."""
    a, b = union(*a), union(*b)
    if not len(a.starts) or not len(b.starts):
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    first = np.searchsorted(b.ends, a.starts, side="right")
    partners = np.searchsorted(b.starts, a.ends, side="left") - first
    of_a = np.repeat(np.arange(len(a.starts)), partners)
    before = np.cumsum(partners) - partners
    of_b = np.arange(len(of_a)) - before[of_a] + first[of_a]
    return Intervals(np.maximum(a.starts[of_a], b.starts[of_b]), np.minimum(a.ends[of_a], b.ends[of_b]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the normal set of what ``a`` covers and ``b`` does not."""
    b = union(*b)
    rest = Intervals(np.concatenate(([_LOWEST], b.ends)), np.concatenate((b.starts, [_HIGHEST])))
    return intersect(a, rest)


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """Cut intervals at the edges of ``[low, high)``; what remains stays as it was, overlapping or not, in its order."""
    starts = np.maximum(_int64(intervals.starts), low)
    ends = np.minimum(_int64(intervals.ends), high)
    kept = ends > starts
    return Intervals(starts[kept], ends[kept])


def measure_within(normal: Intervals, window_starts: Int64, window_ends: Int64) -> Int64:
    """Return, for many windows at once, the length that a normal set covers inside each, ns.

    Args:
        normal: a normal set, as ``union`` gives it.
        window_starts: first instant of each window; windows may overlap and come in any order.
        window_ends: end of each window; a window that ends before it starts holds nothing.
    """
    window_starts, window_ends = _int64(window_starts), _int64(window_ends)
    before = _covered_before(normal, np.concatenate((window_starts, np.maximum(window_starts, window_ends))))
    return before[len(window_starts) :] - before[: len(window_starts)]


def lay_end_to_end(group_starts: Int64, group_ends: Int64) -> Axis:
    """Give each group a segment of its own on one axis, in the order of the groups.

    Args:
        group_starts: per group, an instant not after its first start.
        group_ends: per group, an instant not before its last end.

    Raises:
        OverflowError: the segments together are too long for 64-bit nanoseconds.
    """
    group_starts, group_ends = _int64(group_starts), _int64(group_ends)
    # One nanosecond of air keeps touching intervals of neighbouring groups from being merged.
    lengths = np.maximum(group_ends - group_starts, 0) + 1
    if float(lengths.sum(dtype=np.float64)) >= 2.0**62:
        raise OverflowError(f"{len(lengths)} groups of intervals are too long to lie on one axis of nanoseconds")
    segment_starts = np.cumsum(lengths) - lengths
    return Axis(segment_starts - group_starts, segment_starts, segment_starts + lengths - 1)


def _covered_before(normal: Intervals, instants: Int64) -> Int64:
    """Return the length that a normal set covers before each instant."""
    if not len(normal.starts):
        return np.zeros(len(instants), dtype=np.int64)
    total = np.zeros(len(normal.starts) + 1, np.int64)
    np.cumsum(normal.ends - normal.starts, out=total[1:])
    opened = np.searchsorted(normal.starts, instants, side="right")
    still_open = np.maximum(normal.ends[opened - 1] - instants, 0)
    return total[opened] - np.where(opened > 0, still_open, 0)


def _is_normal(starts: Int64, ends: Int64) -> bool:
    return bool((ends > starts).all() and (starts[1:] > ends[:-1]).all())


def _int64(values: npt.ArrayLike) -> Int64:
    return np.asarray(values, dtype=np.int64)
