"""Which host rows lie around which: call stacks rebuilt from time, thread by thread, without a loop over events.

A row's parent is the latest row of its thread that is still open when it starts. Rows are taken in order of (thread,
start, longer first), so a parent always stands before its children, and "climb until true" runs by pointer jumping:
a number of array passes that grows with the logarithm of the depth, not with the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.read.events import Int32, Int64

NONE = -1
"""No row."""

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
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


def build_tree(rows: Int64, thread: Int32, start_ns: Int64, duration_ns: Int64) -> HostTree:
    """Nest rows by time within their threads.

    Args:
        rows: the rows that take part; rows that outlive their callers (asynchronous communication) must not.
        thread, start_ns, duration_ns: columns of all host rows.
    """
    thread_of, start_of, duration_of = thread[rows], start_ns[rows], duration_ns[rows]
    order = np.lexsort((-duration_of, start_of, thread_of))
    thread_of, start_of = thread_of[order], start_of[order]
    end_of = start_of + duration_of[order]
    return HostTree(rows[order], thread_of, start_of, end_of, _parents(thread_of, start_of, end_of))


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
    """For each (thread, time) the position of the innermost row that is open then, or NONE."""
    if not len(tree) or not len(time_ns):
        return np.full(len(time_ns), NONE, dtype=np.int64)
    origin = min(int(tree.start_ns.min()), int(time_ns.min()))
    span = max(int(tree.start_ns.max()), int(time_ns.max())) - origin + 1
    key = tree.thread.astype(np.int64) * span + (tree.start_ns - origin)
    wanted = thread.astype(np.int64) * span + (time_ns - origin)
    position = np.searchsorted(key, wanted, side="right") - 1
    position[(position >= 0) & (tree.thread[position] != thread)] = NONE
    pending = np.flatnonzero(position >= 0)
    while len(pending):
        here = position[pending]
        closed = tree.end_ns[here] <= time_ns[pending]
        pending, here = pending[closed], here[closed]
        position[pending] = tree.parent[here]
        pending = pending[position[pending] >= 0]
    return position


def nearest(marked: Bool, parent: Int64) -> Int64:
    """For each position the nearest marked position among itself and its ancestors, or NONE."""
    found = np.where(marked, np.arange(len(marked), dtype=np.int64), NONE)
    jump = parent.copy()
    pending = np.flatnonzero((found == NONE) & (jump >= 0))
    while len(pending):
        target = jump[pending]
        reached = found[target]
        found[pending] = reached
        jump[pending] = jump[target]
        pending = pending[(reached == NONE) & (jump[pending] >= 0)]
    return found


def take(values: Int64, positions: Int64, absent: int = NONE) -> Int64:
    """``values[positions]`` with ``absent`` where a position is NONE."""
    if not len(values):
        return np.full(len(positions), absent, dtype=np.int64)
    return np.where(positions >= 0, values[positions], absent)
