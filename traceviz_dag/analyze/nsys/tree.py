"""The NVTX hierarchy of a profile: for each path of nested ranges its span, and what the GPU did for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.summary import busy_by_group, numbered, sums
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.vocabulary import Kind

MEASURES = ("count", "span_ns", "operations", "busy_ns", "compute_ns", "communication_ns")
"""What is shown of a :class:`RangeNode` beside its name."""

_COLUMNS = ("name", "start_ns", "end_ns", "thread", "parent", "path")


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
    """NVTX ranges of some processes, nested by time within their threads; one entry a range, by process and start.

    Attributes:
        row: row of ``ranges``.
        thread: globalTid.
        parent: position of the range around it, or NONE.
        name: index into ``names``.
        path: number of its path of names.
        path_name, path_parent, path_depth: per path; the parent of an outermost one is NONE.
    """

    row: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    name: npt.NDArray[np.int32]
    names: tuple[str, ...]
    path: Int64
    path_name: Int64
    path_parent: Int64
    path_depth: Int64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def depth(self) -> Int64:
        """How many ranges are around each."""
        return self.path_depth[self.path]

    def position_of(self, thread: Int64, time_ns: Int64) -> Int64:
        """The innermost range that is open on a thread at a time, or NONE; threads as globalTid."""
        position = np.full(len(thread), NONE, dtype=np.int64)
        for one in np.unique(thread).tolist():
            asked = np.flatnonzero(thread == one)
            own = np.flatnonzero(self.thread == one)
            position[asked] = lookup(own, np.searchsorted(self.start_ns[own], time_ns[asked], side="right") - 1)
        pending = np.flatnonzero(position != NONE)
        while len(pending):
            pending = pending[self.end_ns[position[pending]] <= time_ns[pending]]
            position[pending] = self.parent[position[pending]]
            pending = pending[position[pending] != NONE]
        return position


def nested_ranges(profile: NsysProfile, processes: Sequence[int] | None) -> NestedRanges:
    """The nested ranges of some processes, None of all; marks, and ranges that end on another thread, hold nothing."""
    ranges = profile.rows("ranges", *_COLUMNS, of=processes)
    paths = profile.rows("paths", "name", "parent", "depth")
    columns = {name: ranges.integers(name) for name in ("thread", "start_ns", "end_ns", "path")}
    row, name, parent = ranges.runs.rows(), ranges["name"], ranges.place(ranges.integers("parent"))
    holds = columns["path"] != NONE
    if not holds.all():
        position = np.cumsum(holds) - 1
        parent = lookup(position, parent[holds])
        row, name = row[holds], name[holds]
        columns = {key: values[holds] for key, values in columns.items()}
    return NestedRanges(
        row=row,
        parent=parent,
        name=name.astype(np.int32, copy=False),
        names=profile.names("ranges", "name"),
        path_name=paths.integers("name"),
        path_parent=paths.integers("parent"),
        path_depth=paths.integers("depth"),
        **columns,
    )


def paths_within(profile: NsysProfile, names: Collection[str]) -> Bool:
    """Per path whether it holds one of these names of ranges."""
    paths = profile.rows("paths", "name", "parent", "depth")
    named = np.array([word in names for word in profile.names("ranges", "name")], dtype=bool)
    within = named[paths.integers("name")]
    parent, depth = paths.integers("parent"), paths.integers("depth")
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        within[here] |= within[parent[here]]
    return within


def range_tree(
    profile: NsysProfile, activity: Activity, window: Clip | None = None, *, by_busy: bool = False
) -> list[RangeNode]:
    """The hierarchy of the ranges of the processes that used a GPU, with what that GPU did.

    A range holds the kernels that calls inside it launched on its thread, at whatever time these ran.

    Args:
        window: None takes everything from the first range or operation to the last.
        by_busy: the longest busy time first, by name among equals, instead of the longest span.

    Returns:
        The outermost paths, in that order. What was launched outside all ranges, or without a recorded launch,
        is in none of them.
    """
    nested = nested_ranges(profile, processes_of([activity]))
    chosen = window or _everything(nested, activity)
    paths = len(nested.path_name)
    inside = np.clip(nested.end_ns, chosen.start_ns, chosen.end_ns) - np.clip(
        nested.start_ns, chosen.start_ns, chosen.end_ns
    )
    begun = (nested.start_ns >= chosen.start_ns) & (nested.start_ns < chosen.end_ns)
    span = sums(inside, nested.path, paths)
    count = np.bincount(nested.path[begun], minlength=paths)
    position = launch_positions(profile, activity, nested)
    operations, busy, compute, communication = _gpu_measures(nested, activity, position, chosen)
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
    order = np.argsort(-span, kind="stable").tolist()
    if by_busy:
        order.sort(key=lambda path: (-nodes[path].busy_ns, nodes[path].name))
    for path in order:
        node, parent = nodes[path], int(nested.path_parent[path])
        if node.span_ns or node.busy_ns or node.count:
            (roots if parent == NONE else nodes[parent].children).append(node)
    return roots


def launch_positions(profile: NsysProfile, activity: Activity, nested: NestedRanges) -> Int64:
    """For each operation the innermost range around the call that launched it, or NONE."""
    ranges = profile.rows("launch_ranges", "range", of=[activity.device])
    row = lookup(ranges.integers("range"), ranges.place(activity.row))
    # Rows of the nested ranges ascend, whether or not some rows between them hold nothing.
    position = np.searchsorted(nested.row, row)
    found = lookup(nested.row, np.where(position < len(nested), position, NONE))
    return np.where((row != NONE) & (found == row), position, NONE)


def _gpu_measures(
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
        distinct, group = numbered(path[here], paths)
        operations[distinct] += sums(begun[here], group, len(distinct))
        for row, wanted in enumerate(kinds):
            mine = slice(None) if wanted is None else kind[here] == wanted
            time = Intervals(starts[here][mine], ends[here][mine])
            unions[row, distinct] = busy_by_group(time, group[mine], len(distinct))
        path[here] = nested.path_parent[path[here]]
    return operations, unions[0], unions[1], unions[2]


def _everything(nested: NestedRanges, activity: Activity) -> Clip:
    starts = [activity.starts.min(), *([nested.start_ns.min()] if len(nested) else [])]
    ends = [activity.ends.max(), *([nested.end_ns.max()] if len(nested) else [])]
    return Clip(int(min(starts)), int(max(ends)), last_included=True)
