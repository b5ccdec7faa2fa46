"""Which host rows lie around which: call stacks rebuilt from time, thread by thread, without a loop over events.

A row's parent is the latest row of its thread that is still open when it starts. Rows are taken in order of (thread,
start, longer first), so a parent always comes before its children. Parents are found by pointer jumping, and what the
ancestors say is handed down level by level: array passes, whose number does not grow with that of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int32, Int64, lookup


@dataclass(frozen=True, slots=True)
class _Levels:
    """The positions of a tree by depth.

    Attributes:
        order: positions, those without a parent first, then their children, and so on.
        parent: of each position in that order, the place of its parent in it; NONE in the first level.
        bounds: level k is at places bounds[k] to bounds[k + 1].
    """

    order: Int64
    parent: Int64
    bounds: list[int]


@dataclass(frozen=True)
class HostTree:
    """Host rows in nesting order.

    Attributes:
        rows: tree position → row of ``HostRows``.
        thread, start_ns, end_ns: of each position.
        parent: position of the enclosing row, or NONE.
    """

    rows: Int64
    thread: Int32
    start_ns: Int64
    end_ns: Int64
    parent: Int64

    def __len__(self) -> int:
        return len(self.rows)

    def nearest(self, marked: Bool) -> Int64:
        """For each position the nearest marked position among itself and its ancestors, or NONE."""
        levels = self._levels
        found = np.where(marked[levels.order], levels.order, NONE)
        for begin, end in pairwise(levels.bounds[1:]):
            level = found[begin:end]
            np.copyto(level, found[levels.parent[begin:end]], where=level == NONE)
        by_position = np.empty_like(found)
        by_position[levels.order] = found
        return by_position

    def levels(self) -> list[Int64]:
        """The positions of each depth, those without a parent first."""
        levels = self._levels
        return [levels.order[begin:end] for begin, end in pairwise(levels.bounds)]

    @cached_property
    def _levels(self) -> _Levels:
        """Depths by pointer doubling: each pass adds the depth of the ancestor that was reached so far."""
        depth = (self.parent >= 0).astype(np.int32)
        jump = self.parent.copy()
        pending = np.flatnonzero(jump >= 0)
        while len(pending):
            target = jump[pending]
            depth[pending] += depth[target]
            jump[pending] = jump[target]
            pending = pending[jump[pending] >= 0]
        # Stable sorts of 16-bit integers are radix sorts; no call stack is that deep.
        order = np.argsort(depth.astype(np.uint16) if depth.max(initial=0) < 2**16 else depth, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        bounds = np.concatenate(([0], np.cumsum(np.bincount(depth))))
        return _Levels(order, lookup(place, self.parent[order]), bounds.tolist())


def build_tree(
    rows: Int64, thread: Int32, start_ns: Int64, duration_ns: Int64, ordinal: Int64 | None = None
) -> HostTree:
    """Nest rows by time within their threads.

    Args:
        rows: the rows that take part; rows that outlive their callers (asynchronous communication) must not.
        thread, start_ns, duration_ns: columns of all host rows.
        ordinal: see ``nesting_order``.
    """
    thread_of, start_of, duration_of = thread[rows], start_ns[rows], duration_ns[rows]
    order = nesting_order(thread_of, start_of, duration_of, None if ordinal is None else ordinal[rows])
    thread_of, start_of = thread_of[order], start_of[order]
    end_of = start_of + duration_of[order]
    return HostTree(rows[order], thread_of, start_of, end_of, _parents(thread_of, start_of, end_of))


def nesting_order(thread: Int32, start_ns: Int64, duration_ns: Int64, ordinal: Int64 | None = None) -> Int64:
    """By thread, start, and the longer first: one sort by thread and start, and a second among equal starts alone.

    Args:
        ordinal: orders rows that start and end together, such as frames that are open as a profiler starts and stops.
    """
    if not len(thread):
        return np.zeros(0, dtype=np.int64)
    first = int(start_ns.min())
    span = int(start_ns.max()) - first + 1
    number = thread.astype(np.int64) - int(thread.min())
    if (int(number.max()) + 1) * span > np.iinfo(np.int64).max:
        return np.lexsort((*(() if ordinal is None else (ordinal,)), -duration_ns, start_ns, thread))
    key = number * span + (start_ns - first)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    tied = np.union1d(same, same + 1)
    rows = order[tied]
    order[tied] = rows[np.lexsort((*(() if ordinal is None else (ordinal[rows],)), -duration_ns[rows], key[rows]))]
    return order


def _parents(thread: Int32, start_ns: Int64, end_ns: Int64) -> Int64:
    """Candidate: the row before. While it has closed by then, its own candidate: every row between those two has
    closed as well, so the jump skips no open row, and candidates that have jumped already double the stride."""
    count = len(start_ns)
    parent = np.arange(-1, count - 1, dtype=np.int64)
    if not count:
        return parent
    parent[np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))] = NONE
    pending = np.flatnonzero(parent >= 0)
    while len(pending):
        candidate = parent[pending]
        # A zero-length row holds nothing; an equal start holds what comes after it.
        closed = end_ns[candidate] <= start_ns[pending]
        pending, candidate = pending[closed], candidate[closed]
        parent[pending] = parent[candidate]
        pending = pending[parent[pending] >= 0]
    return parent


def innermost(tree: HostTree, thread: Int32, time_ns: Int64) -> Int64:
    """For each (thread, time) the position of the innermost row that is open then, or NONE.

    Where a thread has no open row, and the last one hangs below what another thread did, what that one does by now.
    """
    if not len(tree) or not len(time_ns):
        return np.full(len(time_ns), NONE, dtype=np.int64)
    origin = min(int(tree.start_ns.min()), int(time_ns.min()))
    span = max(int(tree.start_ns.max()), int(time_ns.max())) - origin + 1
    threads = max(int(tree.thread.max()), int(thread.max())) + 1
    starts, times = tree.start_ns - origin, time_ns - origin
    if threads * span > np.iinfo(np.int64).max:
        # Centuries apart: places in the order of all times represent the times.
        distinct = np.unique(tree.start_ns)
        span = len(distinct) + 1
        starts = np.searchsorted(distinct, tree.start_ns) + 1
        times = np.searchsorted(distinct, time_ns, side="right")
    key = tree.thread.astype(np.int64) * span + starts
    wanted = thread.astype(np.int64) * span + times
    position = np.searchsorted(key, wanted, side="right") - 1
    position[(position >= 0) & (tree.thread[position] != thread)] = NONE
    pending = np.flatnonzero(position >= 0)
    while len(pending):
        here = position[pending]
        closed = tree.end_ns[here] <= time_ns[pending]
        pending, here = pending[closed], here[closed]
        position[pending] = tree.parent[here]
        pending = pending[position[pending] >= 0]
    # An open row of the other thread may hold another by now, in which it is.
    below = np.flatnonzero((position >= 0) & (tree.thread[position] != thread))
    if len(below):
        position[below] = innermost(tree, tree.thread[position[below]], time_ns[below])
    return position
