"""NVTX ranges and what they launched in the order in which the host came to them, thread by thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.tree import launch_positions, nested_ranges
from traceviz_dag.arrays import NONE, lookup
from traceviz_dag.read.nsys.profile import NsysProfile


@dataclass(frozen=True, slots=True)
class Step:
    """One range, or one operation on the GPU, placed where it was launched.

    Attributes:
        thread: number of the thread within its process.
        depth: ranges around it.
        kind: "range", or the kind of the operation.
        start_ns, duration_ns: of the range on the host, of the operation on the GPU.
        launched_ns: when the host came to it: start of the range, or of the launching call.
        operations: of a range, what calls inside it launched; of an operation None.
    """

    thread: int
    depth: int
    kind: str
    name: str
    start_ns: int
    duration_ns: int
    launched_ns: int
    operations: int | None


def in_order(
    profile: NsysProfile, activity: Activity, window: Clip, depth: int | None = None, most: int | None = None
) -> tuple[list[Step], int]:
    """Ranges that start in a window and operations that were launched in it, by thread and time; and how many.

    Args:
        depth: levels of ranges to take, None all; operations launched deeper down are shown below the deepest level.
        most: only so many of the first, None all.
    """
    processes = processes_of([activity])
    nested = nested_ranges(profile, processes)
    calls = profile.rows("calls", "start_ns", "thread", of=processes)
    call = calls.place(activity.launch)
    launched, thread = (lookup(calls.integers(name), call) for name in ("start_ns", "thread"))
    position = launch_positions(profile, activity, nested)
    mine = np.flatnonzero((call != NONE) & (launched >= window.start_ns) & (launched < window.end_ns))
    chosen = (nested.start_ns >= window.start_ns) & (nested.start_ns < window.end_ns)
    deepest = np.iinfo(np.int64).max if depth is None else depth
    shown = np.flatnonzero(chosen & (nested.depth < deepest))
    counts = np.zeros(len(nested), dtype=np.int64)
    above = position[mine]
    while (above != NONE).any():
        above = above[above != NONE]
        np.add.at(counts, above, 1)
        above = nested.parent[above]
    own_depth = np.minimum(np.where(position == NONE, 0, lookup(nested.depth, position) + 1), deepest)[mine]
    times = np.concatenate([nested.start_ns[shown], launched[mine]])
    depths = np.concatenate([nested.depth[shown], own_depth])
    threads = np.concatenate([nested.thread[shown], thread[mine]])
    order = np.lexsort((depths, times, threads))
    kinds = activity.intervals.kind
    steps = []
    for place in order[:most].tolist():
        if place < len(shown):
            row = int(shown[place])
            start, end = int(nested.start_ns[row]), int(nested.end_ns[row])
            kind, name, operations = "range", nested.names[nested.name[row]], int(counts[row])
        else:
            row = int(mine[place - len(shown)])
            start, end = int(activity.starts[row]), int(activity.ends[row])
            kind, name, operations = KINDS[kinds[row]], activity.names[activity.name[row]], None
        steps.append(
            Step(
                int(threads[place]) & 0xFFFFFF,
                int(depths[place]),
                kind,
                name,
                start,
                end - start,
                int(times[place]),
                operations,
            )
        )
    return steps, len(order)
