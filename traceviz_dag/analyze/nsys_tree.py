"""The NVTX hierarchy of a profile: for each path of nested ranges its span, and what the GPU did for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import Int64, Intervals
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys_activity import Activity, Clip, name_codes, numbers
from traceviz_dag.analyze.nsys_summary import busy_by_group, sums
from traceviz_dag.classify.host_tree import NONE, HostTree, build_tree, innermost
from traceviz_dag.read.nsys_profile import MARK, PROCESS_BITS, NsysProfile
from traceviz_dag.vocabulary import Kind

_COLUMNS = ("name", "kind", "start_ns", "end_ns", "thread", "end_thread")


@dataclass(slots=True)
class RangeNode:
    """All ranges of one path of names.

    Attributes:
        count: ranges that begin in the window.
        span_ns: time inside the ranges on the host, cut at the window's edges.
        operations: kernels and memory operations that calls inside the ranges launched, and that start in the window.
        busy_ns: union of these on the GPU, cut at the window's edges. compute_ns, communication_ns: of their kinds.
        children: by span, longest first.
    """

    name: str
    count: int
    span_ns: int
    operations: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    children: list[RangeNode] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, RangeNode]]:
        """This node and all below it with their depths."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(frozen=True, slots=True)
class NestedRanges:
    """NVTX ranges of some processes, nested by time within their threads.

    Attributes:
        tree: positions over rows of ``ranges``; its threads are indices into ``threads``.
        threads: globalTid of each thread, ascending.
        name: per position, index into ``names``.
        path: per position, the number of its path of names.
        path_name, path_parent, path_depth: per path; the parent of an outermost one is NONE.
    """

    tree: HostTree
    threads: Int64
    name: npt.NDArray[np.int32]
    names: tuple[str, ...]
    path: Int64
    path_name: Int64
    path_parent: Int64
    path_depth: Int64

    def position_of(self, thread: Int64, time_ns: Int64) -> Int64:
        """The innermost range that is open on a thread at a time, or NONE; threads as globalTid."""
        if not len(self.threads):
            return np.full(len(thread), NONE, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.threads, thread), len(self.threads) - 1)
        known = self.threads[place] == thread
        position = np.full(len(thread), NONE, dtype=np.int64)
        position[known] = innermost(self.tree, place[known].astype(np.int32), time_ns[known])
        return position


def nested_ranges(profile: NsysProfile, processes: Int64) -> NestedRanges:
    """Nest the ranges of some processes; marks, and ranges that end on another thread, hold nothing."""
    table = profile.table("ranges", *_COLUMNS)
    thread = numbers(table, "thread")
    ended = numbers(table, "end_thread")
    rows = np.flatnonzero(
        (numbers(table, "kind") != MARK)
        & np.isin(thread >> PROCESS_BITS, processes)
        & ((ended < 0) | (ended == thread) | (ended == 0))
    )
    threads, place = np.unique(thread[rows], return_inverse=True)
    thread_number = np.zeros(len(thread), dtype=np.int32)
    thread_number[rows] = place
    start = numbers(table, "start_ns")
    tree = build_tree(rows, thread_number, start, numbers(table, "end_ns") - start)
    codes, names = name_codes(table, "name")
    name = codes[tree.rows]
    return NestedRanges(tree, threads, name, names, *_paths(tree, name))


def range_tree(profile: NsysProfile, activity: Activity, window: Clip | None = None) -> list[RangeNode]:
    """The hierarchy of the ranges of the processes that used a GPU, with what that GPU did.

    A range holds the kernels that calls inside it launched on its thread, at whatever time these ran.

    Args:
        window: None takes everything from the first range or operation to the last.

    Returns:
        The outermost paths, longest span first. What was launched outside all ranges, or without a recorded launch,
        is in none of them.
    """
    nested = nested_ranges(profile, np.unique(activity.process))
    chosen = window or _everything(nested, activity)
    tree = nested.tree
    paths = len(nested.path_name)
    inside = np.clip(tree.end_ns, chosen.start_ns, chosen.end_ns) - np.clip(
        tree.start_ns, chosen.start_ns, chosen.end_ns
    )
    begun = (tree.start_ns >= chosen.start_ns) & (tree.start_ns < chosen.end_ns)
    span = sums(inside, nested.path, paths)
    count = np.bincount(nested.path[begun], minlength=paths)
    position = launch_positions(profile, activity, nested)
    operations, busy, compute, communication = _gpu_figures(nested, activity, position, chosen)
    nodes = [
        RangeNode(
            nested.names[nested.path_name[path]],
            int(count[path]),
            int(span[path]),
            operations=int(operations[path]),
            busy_ns=int(busy[path]),
            compute_ns=int(compute[path]),
            communication_ns=int(communication[path]),
        )
        for path in range(paths)
    ]
    roots: list[RangeNode] = []
    for path in np.argsort(-span, kind="stable").tolist():
        node, parent = nodes[path], int(nested.path_parent[path])
        if node.span_ns or node.busy_ns or node.count:
            (roots if parent == NONE else nodes[parent].children).append(node)
    return roots


def launch_positions(profile: NsysProfile, activity: Activity, nested: NestedRanges) -> Int64:
    """For each operation the innermost range around the call that launched it, or NONE."""
    calls = profile.table("calls", "start_ns", "thread")
    position = np.full(len(activity), NONE, dtype=np.int64)
    launched = np.flatnonzero(activity.launch >= 0)
    call = activity.launch[launched]
    position[launched] = nested.position_of(numbers(calls, "thread")[call], numbers(calls, "start_ns")[call])
    return position


def _gpu_figures(
    nested: NestedRanges, activity: Activity, position: Int64, window: Clip
) -> tuple[Int64, Int64, Int64, Int64]:
    """Per path: operations, and the unions of all, of computation and of communication."""
    paths = len(nested.path_name)
    kept = np.flatnonzero((position != NONE) & (activity.starts < window.end_ns) & (activity.ends > window.start_ns))
    path = nested.path[position[kept]] if len(kept) else np.array([], dtype=np.int64)
    starts = np.maximum(activity.starts[kept], window.start_ns)
    ends = np.minimum(activity.ends[kept], window.end_ns)
    begun = activity.started_within(window)[kept].astype(np.int64)
    kind = activity.intervals.kind[kept]
    operations = np.zeros(paths, dtype=np.int64)
    unions = np.zeros((3, paths), dtype=np.int64)
    kinds = (None, KINDS.index(Kind.COMPUTATION), KINDS.index(Kind.COMMUNICATION))
    for depth in range(int(nested.path_depth.max(initial=-1)), -1, -1):
        here = np.flatnonzero(nested.path_depth[path] == depth)
        distinct, group = np.unique(path[here], return_inverse=True)
        operations[distinct] += sums(begun[here], group, len(distinct))
        for row, wanted in enumerate(kinds):
            mine = slice(None) if wanted is None else kind[here] == wanted
            time = Intervals(starts[here][mine], ends[here][mine])
            unions[row, distinct] = busy_by_group(time, group[mine], len(distinct))
        path[here] = nested.path_parent[path[here]]
    return operations, unions[0], unions[1], unions[2]


def _paths(tree: HostTree, name: npt.NDArray[np.int32]) -> tuple[Int64, Int64, Int64, Int64]:
    """Number the distinct paths of names, level by level."""
    path = np.full(len(tree), NONE, dtype=np.int64)
    names: list[Int64] = []
    parents: list[Int64] = []
    depths: list[Int64] = []
    count, depth = 0, 0
    level = np.flatnonzero(tree.parent == NONE)
    pending = np.flatnonzero(tree.parent != NONE)
    while len(level):
        above = np.where(tree.parent[level] == NONE, NONE, path[tree.parent[level]])
        keys, which = np.unique(np.stack([above, name[level].astype(np.int64)]), axis=1, return_inverse=True)
        path[level] = count + which.reshape(-1)
        parents.append(keys[0])
        names.append(keys[1])
        depths.append(np.full(keys.shape[1], depth, dtype=np.int64))
        count, depth = count + keys.shape[1], depth + 1
        ready = path[tree.parent[pending]] != NONE
        level, pending = pending[ready], pending[~ready]
    nothing = np.empty(0, dtype=np.int64)
    return (
        path,
        np.concatenate([nothing, *names]),
        np.concatenate([nothing, *parents]),
        np.concatenate([nothing, *depths]),
    )


def _everything(nested: NestedRanges, activity: Activity) -> Clip:
    starts = [activity.starts.min(), *([nested.tree.start_ns.min()] if len(nested.tree) else [])]
    ends = [activity.ends.max(), *([nested.tree.end_ns.max()] if len(nested.tree) else [])]
    return Clip(int(min(starts)), int(max(ends)))
