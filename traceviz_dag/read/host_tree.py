"""Which host rows lie around which: call stacks rebuilt from time, thread by thread, without a loop over events.

A row's parent is the latest row of its thread that is still open when it starts. Rows are taken in order of (thread,
start, longer first), so a parent always comes before its children, and all that lies in a row follows it. Parents are
found by pointer jumping, and what the ancestors say from where the rows that say it start and end: array passes, whose
number does not grow with that of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int32, Int64, lookup, ranges


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
        starts, count = marked.nonzero()[0], len(self)
        ends, hung_ends = self._ends[starts], self._ends[self._hung]
        outer = lookup(starts, _around(starts, ends))
        is_border, held = np.zeros(count + 1, dtype=bool), np.empty(count + 1, dtype=np.int64)
        # Of what ends at one position, the outermost says what is around that.
        for at, value in (([0, count], NONE), (self._hung, NONE), (hung_ends, NONE), (ends[::-1], outer[::-1])):
            is_border[at], held[at] = True, value
        is_border[starts], held[starts] = True, starts
        borders = is_border.nonzero()[0]
        found = held[borders[:-1]]
        if len(self._hung):
            above = found[borders.searchsorted(self.parent[self._hung], side="right") - 1]
            lows, highs = borders.searchsorted(self._hung), borders.searchsorted(hung_ends)
            below = ranges(lows, highs)
            found[below] = np.where(found[below] == NONE, np.repeat(above, highs - lows), found[below])
        return found.repeat(borders[1:] - borders[:-1])

    def levels(self) -> list[Int64]:
        """The positions of each depth, those without a parent first; by pointer doubling: each pass adds the depth of
        the ancestor that was reached so far."""
        depth = (self.parent >= 0).astype(np.int64)
        jump = self.parent.copy()
        pending = np.flatnonzero(jump >= 0)
        while len(pending):
            target = jump[pending]
            depth[pending] += depth[target]
            jump[pending] = jump[target]
            pending = pending[jump[pending] >= 0]
        return np.split(_by_depth(depth), np.cumsum(np.bincount(depth))[:-1])

    @cached_property
    def _hung(self) -> Int64:
        """Positions that hang below a row of another thread, which itself hangs below none."""
        return np.flatnonzero((self.parent != NONE) & (self.thread[self.parent] != self.thread))

    @cached_property
    def _ends(self) -> Int64:
        """For each position the one behind all that lies in it, on its own thread."""
        last = np.arange(len(self))
        inside = np.flatnonzero(self.parent != NONE)
        inside = inside[self.thread[self.parent[inside]] == self.thread[inside]]
        # Of several children the last one stays; then the last one of that, and so on.
        last[self.parent[inside]] = inside
        while ((further := last[last]) != last).any():
            last = further
        return last + 1


def _around(starts: Int64, ends: Int64) -> Int64:
    """For each span the innermost other one around it, or NONE.

    Args:
        starts: ascending. ends: of spans that lie in one another, or apart.
    """
    found = np.full(len(starts), NONE)
    opens = np.zeros(len(starts), dtype=bool)
    opens[1:] = ends[:-1] > starts[1:]
    if not opens.any():
        return found
    order = _by_depth(np.arange(len(starts)) - np.searchsorted(np.sort(ends), starts, side="right"))
    # Around a span is the one before it, if that is open still, else what is around the last one of the same depth.
    first = opens[order].nonzero()[0]
    found[order[first[0] :]] = np.repeat(order[first] - 1, np.diff(first, append=len(starts)))
    return found


def _by_depth(depth: Int64) -> Int64:
    """Positions by depth, those of one depth ascending."""
    # Stable sorts of 16-bit integers are radix sorts; no call stack is that deep.
    return np.argsort(depth.astype(np.uint16) if depth.max(initial=0) < 2**16 else depth, kind="stable")


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
    # A zero-length row holds nothing; an equal start holds what comes after it.
    pending = np.flatnonzero(end_ns[:-1] <= start_ns[1:]) + 1
    pending = pending[parent[pending] >= 0]
    starts = start_ns[pending]
    # Where there is no candidate, the last entry says that it never ends.
    ends = np.append(end_ns, np.iinfo(np.int64).max)
    while len(pending):
        candidate = parent.take(parent.take(pending))
        parent[pending] = candidate
        closed = (ends.take(candidate) <= starts).nonzero()[0]
        pending, starts = pending.take(closed), starts.take(closed)
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
