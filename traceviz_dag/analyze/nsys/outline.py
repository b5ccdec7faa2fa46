"""The NVTX ranges of a profile as an outline: paths or single ranges, with what is inside one measured when asked for.

What is inside a range was launched by calls inside it on its thread, at whatever time it ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, measure_within, union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.projections import project
from traceviz_dag.analyze.nsys.summary import busy_by_group, numbered, sums
from traceviz_dag.analyze.nsys.tree import launch_positions
from traceviz_dag.arrays import NONE, Bool, Int64, ranges
from traceviz_dag.read.nsys.profile import NsysProfile

OUTSIDE = "(launched outside all ranges)"
"""Name of the entry of operations that no range launched."""

RANGE = "range"
"""The kind of ranges, as operations have theirs."""


class Of(StrEnum):
    """What an entry is of: all ranges of a path of names, one range, what a range launched itself, or one operation."""

    PATH = "path"
    RANGE = "range"
    NAME = "name"
    OPERATION = "operation"
    OUTSIDE = "outside"


class Order(StrEnum):
    """How the entries inside one are ordered: by first start on the host, or by time on the GPU, longest first."""

    TIME = "time"
    HEAVIEST = "heaviest"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the outline.

    Attributes:
        of, number: what it is: number of the path, range, name or operation.
        within: number of the path or range that it is in; NONE of an outermost one.
        kind: "range", or the kind of the operations.
        count: ranges, or operations of the name.
        start_ns: first start on the host; of operations on the GPU.
        span_ns: of ranges, time inside them on the host; of operations, the sum of their durations.
        operations: kernels and memory operations that calls inside the ranges launched.
        gpu_start_ns, gpu_end_ns: first start and last end of these; both None where there is none.
        gpu_span_ns: from first start to last end of what each range launched, summed over the ranges.
        busy_ns: union of what they launched. idle_ns: time of the GPU spans in which the GPU ran nothing at all.
        holds: whether something is inside.
    """

    of: Of
    number: int
    within: int
    name: str
    kind: str
    count: int
    start_ns: int
    span_ns: int
    operations: int
    gpu_start_ns: int | None
    gpu_end_ns: int | None
    gpu_span_ns: int
    busy_ns: int
    idle_ns: int
    holds: bool


class Outline:
    """The outline of what one GPU did.

    Args:
        window: ranges that start in it, with all that they launched; None takes all.
    """

    def __init__(self, profile: NsysProfile, activity: Activity, window: Clip | None = None) -> None:
        self.activity = activity
        projection = project(profile, activity)
        nested = projection.ranges
        self.nested = nested
        back = np.argsort(projection.position, kind="stable")
        self.operations, self.gpu_start, self.gpu_end = (
            values[back] for values in (projection.operations, projection.gpu_start_ns, projection.gpu_end_ns)
        )
        self.busy_time = union(activity.starts, activity.ends)
        self.taken: Bool = np.ones(len(nested), dtype=bool)
        if window is not None:
            self.taken = (nested.start_ns >= window.start_ns) & (nested.start_ns < window.end_ns)
        self._taken_of = np.bincount(nested.path[self.taken], minlength=len(nested.path_name))
        position = launch_positions(profile, activity, nested)
        place = _places(nested.parent, nested.depth)
        size = _sizes(nested.parent, nested.depth)
        outside = position == NONE
        if window is not None:
            outside &= activity.started_within(window)
        self._outside = np.flatnonzero(outside)
        # Operations in the order of the ranges that launched them: what is inside a range is one run of them.
        within = np.flatnonzero(position != NONE)
        order = np.argsort(place[position[within]], kind="stable")
        self._operation = within[order]
        self._launched_at = place[position[self._operation]]
        self._place, self._size = place, size
        by_path = np.argsort(nested.path[position[self._operation]], kind="stable")
        self._of_path = self._operation[by_path]
        self._path_of = nested.path[position[self._of_path]]
        self._position = position
        self._ranges_of_path = np.argsort(nested.path, kind="stable")
        self._path_bounds = np.searchsorted(nested.path[self._ranges_of_path], np.arange(len(nested.path_name) + 1))
        self._by_parent = np.argsort(nested.parent, kind="stable")
        self._parents = nested.parent[self._by_parent]

    def paths_inside(self, path: int = NONE, order: Order = Order.HEAVIEST) -> list[Entry]:
        """The paths right below one, then the names of what its ranges launched themselves; NONE: the outermost."""
        nested = self.nested
        children = np.flatnonzero(nested.path_parent == path)
        entries = _ordered([self._path(child, path) for child in children.tolist() if self._taken_of[child]], order)
        if path == NONE:
            return entries + self._outside_entry()
        low, high = np.searchsorted(self._path_of, [path, path + 1])
        own = self._of_path[low:high]
        return entries + self._names(own[self.taken[self._position[own]]], path, order)

    def ranges_inside(self, position: int = NONE, order: Order = Order.TIME) -> list[Entry]:
        """The ranges right inside one and the operations that it launched itself; NONE: the outermost ranges."""
        low, high = np.searchsorted(self._parents, [position, position + 1])
        children = self._by_parent[low:high]
        if position == NONE:
            children = children[self.taken[children]]
        entries = self._single(children, position)
        if position != NONE:
            low, high = np.searchsorted(self._launched_at, [self._place[position], self._place[position] + 1])
            entries += [self._one(int(row), position) for row in self._operation[low:high].tolist()]
            return _ordered(entries, order)
        return _ordered(entries, order) + self._outside_entry()

    def outside(self, order: Order = Order.HEAVIEST) -> list[Entry]:
        """The names of what no range launched."""
        return self._names(self._outside, NONE, order)

    def _inside(self, positions: Int64) -> Int64:
        """What calls inside some ranges launched, range by range."""
        low = np.searchsorted(self._launched_at, self._place[positions])
        high = np.searchsorted(self._launched_at, self._place[positions] + self._size[positions])
        return ranges(low, high)

    def _single(self, positions: Int64, within: int) -> list[Entry]:
        """One entry for each of some ranges, none of which is inside another one."""
        nested = self.nested
        low = np.searchsorted(self._launched_at, self._place[positions])
        high = np.searchsorted(self._launched_at, self._place[positions] + self._size[positions])
        rows = self._operation[ranges(low, high)]
        group = np.repeat(np.arange(len(positions)), high - low)
        # The union by group takes intervals by start.
        by_start = np.argsort(rows, kind="stable")
        rows, group = rows[by_start], group[by_start]
        time = Intervals(self.activity.starts[rows], self.activity.ends[rows])
        busy = busy_by_group(time, group, len(positions))
        first, last = self.gpu_start[positions], self.gpu_end[positions]
        idle = last - first - measure_within(self.busy_time, first, last)
        found = []
        columns = (positions, self.operations[positions], first, last, busy, idle)
        for row, operations, start, end, used, unused in zip(*(each.tolist() for each in columns), strict=True):
            found.append(
                Entry(
                    of=Of.RANGE,
                    number=row,
                    within=within,
                    name=nested.names[nested.name[row]],
                    kind=RANGE,
                    count=1,
                    start_ns=int(nested.start_ns[row]),
                    span_ns=int(nested.end_ns[row] - nested.start_ns[row]),
                    operations=operations,
                    gpu_start_ns=start if operations else None,
                    gpu_end_ns=end if operations else None,
                    gpu_span_ns=end - start,
                    busy_ns=used,
                    idle_ns=unused,
                    holds=bool(self._size[row] > 1 or operations),
                )
            )
        return found

    def _path(self, path: int, within: int) -> Entry:
        """All ranges of a path together."""
        nested = self.nested
        members = self._ranges_of_path[self._path_bounds[path] : self._path_bounds[path + 1]]
        members = members[self.taken[members]]
        launched = members[self.operations[members] > 0]
        rows = np.sort(self._operation[self._inside(members)])
        first, last = self.gpu_start[launched], self.gpu_end[launched]
        busy = union(self.activity.starts[rows], self.activity.ends[rows])
        span = last - first
        return Entry(
            of=Of.PATH,
            number=path,
            within=within,
            name=nested.names[nested.path_name[path]],
            kind=RANGE,
            count=len(members),
            start_ns=int(nested.start_ns[members].min()),
            span_ns=int((nested.end_ns[members] - nested.start_ns[members]).sum()),
            operations=len(rows),
            gpu_start_ns=int(first.min()) if len(launched) else None,
            gpu_end_ns=int(last.max()) if len(launched) else None,
            gpu_span_ns=int(span.sum()),
            busy_ns=int((busy.ends - busy.starts).sum()),
            idle_ns=int((span - measure_within(self.busy_time, first, last)).sum()),
            holds=bool((self._size[members] > 1).any()) or len(rows) > 0,
        )

    def _names(self, rows: Int64, within: int, order: Order) -> list[Entry]:
        """Some operations by name."""
        activity = self.activity
        rows = np.sort(rows)
        distinct, group = numbered(activity.name[rows].astype(np.int64), len(activity.names))
        starts, ends = activity.starts[rows], activity.ends[rows]
        busy = busy_by_group(Intervals(starts, ends), group, len(distinct))
        total = sums(ends - starts, group, len(distinct))
        count = np.bincount(group, minlength=len(distinct))
        first, last = np.full(len(distinct), np.iinfo(np.int64).max), np.full(len(distinct), np.iinfo(np.int64).min)
        np.minimum.at(first, group, starts)
        np.maximum.at(last, group, ends)
        kind = np.zeros(len(distinct), dtype=np.int64)
        kind[group] = activity.intervals.kind[rows]
        columns = (distinct, kind, count, first, last, total, busy)
        entries = [
            Entry(
                of=Of.NAME,
                number=code,
                within=within,
                name=activity.names[code],
                kind=KINDS[of],
                count=many,
                start_ns=start,
                span_ns=spent,
                operations=many,
                gpu_start_ns=start,
                gpu_end_ns=end,
                gpu_span_ns=used,
                busy_ns=used,
                idle_ns=0,
                holds=False,
            )
            for code, of, many, start, end, spent, used in zip(*(each.tolist() for each in columns), strict=True)
        ]
        return _ordered(entries, order)

    def _one(self, row: int, within: int) -> Entry:
        """One operation."""
        activity = self.activity
        start, end = int(activity.starts[row]), int(activity.ends[row])
        return Entry(
            of=Of.OPERATION,
            number=row,
            within=within,
            name=activity.names[activity.name[row]],
            kind=KINDS[activity.intervals.kind[row]],
            count=1,
            start_ns=start,
            span_ns=end - start,
            operations=1,
            gpu_start_ns=start,
            gpu_end_ns=end,
            gpu_span_ns=end - start,
            busy_ns=end - start,
            idle_ns=0,
            holds=False,
        )

    def _outside_entry(self) -> list[Entry]:
        """What no range launched, in one entry; none where there is nothing."""
        rows = self._outside
        if not len(rows):
            return []
        starts, ends = self.activity.starts[rows], self.activity.ends[rows]
        busy, first, last = union(starts, ends), int(starts.min()), int(ends.max())
        covered = int(measure_within(self.busy_time, np.array([first]), np.array([last]))[0])
        return [
            Entry(
                of=Of.OUTSIDE,
                number=NONE,
                within=NONE,
                name=OUTSIDE,
                kind=RANGE,
                count=0,
                start_ns=first,
                span_ns=0,
                operations=len(rows),
                gpu_start_ns=first,
                gpu_end_ns=last,
                gpu_span_ns=last - first,
                busy_ns=int((busy.ends - busy.starts).sum()),
                idle_ns=last - first - covered,
                holds=True,
            )
        ]

    def path_to(self, of: Of, number: int) -> list[int]:
        """The paths or ranges around one, the outermost first, and itself."""
        parent = self.nested.path_parent if of is Of.PATH else self.nested.parent
        found = [number]
        while parent[found[-1]] != NONE:
            found.append(int(parent[found[-1]]))
        return found[::-1]

    def named(self, of: Of, wanted: Bool) -> Int64:
        """Paths or ranges of some names, in the order in which the host came to them.

        Args:
            wanted: by number of the name.
        """
        nested = self.nested
        if of is Of.PATH:
            first = np.full(len(nested.path_name), np.iinfo(np.int64).max)
            np.minimum.at(first, nested.path[self.taken], nested.start_ns[self.taken])
            found = np.flatnonzero(wanted[nested.path_name] & (first != np.iinfo(np.int64).max))
            return found[np.lexsort((nested.path_depth[found], first[found]))]
        found = np.flatnonzero(wanted[nested.name] & self.taken)
        return found[np.lexsort((nested.depth[found], nested.start_ns[found]))]


def _ordered(entries: list[Entry], order: Order) -> list[Entry]:
    if order is Order.TIME:
        return sorted(entries, key=lambda entry: entry.start_ns)
    return sorted(entries, key=lambda entry: (-entry.busy_ns, -entry.span_ns, entry.start_ns))


def _sizes(parent: Int64, depth: Int64) -> Int64:
    """How many ranges are in each, itself included."""
    size = np.ones(len(parent), dtype=np.int64)
    for level in range(int(depth.max(initial=0)), 0, -1):
        here = np.flatnonzero(depth == level)
        np.add.at(size, parent[here], size[here])
    return size


def _places(parent: Int64, depth: Int64) -> Int64:
    """The place of each range in an order in which all that is in a range comes right behind it."""
    size, place = _sizes(parent, depth), np.zeros(len(parent), dtype=np.int64)
    for level in range(int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        here = here[np.argsort(parent[here], kind="stable")]
        before = np.cumsum(size[here]) - size[here]
        of_parent = np.flatnonzero(np.diff(parent[here], prepend=-2)) if len(here) else here
        first = np.repeat(before[of_parent], np.diff(of_parent, append=len(here)))
        place[here] = before - first
        if level:
            place[here] += place[parent[here]] + 1
    return place
