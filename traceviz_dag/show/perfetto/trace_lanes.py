"""Slices on tracks: which lane each takes so that none overlaps another, and in which order they begin and end."""

from __future__ import annotations

import heapq

import numpy as np

from traceviz_dag.arrays import Bool, Int64, lookup
from traceviz_dag.read.host_tree import build_tree

_NEVER = np.iinfo(np.int64).max


def lanes_of(starts: Int64, ends: Int64) -> Int64:
    """The lowest free lane of each slice, by start: slices of one lane never overlap, touching ones may share it.

    Linear once sorted; only slices that do overlap others are stepped through.
    """
    lanes = np.zeros(len(starts), np.int64)
    order = np.lexsort((ends, starts))
    sorted_starts, sorted_ends = starts[order], ends[order]
    reached = np.maximum.accumulate(sorted_ends) if len(order) else sorted_ends
    joins = sorted_starts[1:] < reached[:-1]
    crowded = np.zeros(len(order), np.bool_)
    crowded[1:] |= joins
    crowded[:-1] |= joins
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    opened = 0
    for place in np.flatnonzero(crowded).tolist():
        start, end = int(sorted_starts[place]), int(sorted_ends[place])
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, opened)
            opened += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (end, lane))
        lanes[order[place]] = lane
    return lanes


def nests(starts: Int64, ends: Int64) -> bool:
    """Whether every two slices are apart or one holds the other, as a call stack has it."""
    tree = build_tree(np.arange(len(starts)), np.zeros(len(starts), np.int32), starts, ends - starts)
    return bool((lookup(tree.end_ns, tree.parent, _NEVER) >= tree.end_ns).all())


def begin_end_order(starts: Int64, ends: Int64) -> tuple[Int64, Bool]:
    """The order in which slices begin and end, such that a reader with a stack pairs them rightly.

    At one instant the slices that began earlier end first, inner before outer; then others begin, outer before inner;
    last, those without a duration begin and end one by one.

    Returns:
        The slice of each of the 2n events, and whether the event is its begin.
    """
    count = len(starts)
    slices = np.concatenate((np.arange(count), np.arange(count)))
    begins = np.arange(2 * count) < count
    times = np.concatenate((starts, ends))
    order = np.argsort(times, kind="stable")
    # Few events share an instant: only those are distinguished, by all that differs.
    ordered = times[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    tied = np.union1d(same, same + 1)
    rows = order[tied]
    begin, own, own_starts, own_ends = begins[rows], slices[rows], starts[slices[rows]], ends[slices[rows]]
    instant = own_starts == own_ends
    turn = np.where(instant, 2, np.where(begin, 1, 0))
    inner = np.where(instant, own, np.where(begin, -own_ends, -own_starts))
    tie = np.where(instant, ~begin, np.where(begin, own, -own))
    order[tied] = rows[np.lexsort((tie, inner, turn, times[rows]))]
    return slices[order], begins[order]
