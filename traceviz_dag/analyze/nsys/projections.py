"""NVTX ranges projected onto a GPU, from first start to last end of what they launched, and the pace of ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.statistics import Durations, by_group
from traceviz_dag.analyze.nsys.tree import NestedRanges, launch_positions, nested_ranges
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.read.nsys.profile import NsysProfile


@dataclass(frozen=True, slots=True)
class Projection:
    """NVTX ranges with what they launched on one GPU, one entry a range.

    Attributes:
        position: of the range among ``ranges``.
        operations: kernels and memory operations that calls inside it launched.
        gpu_start_ns, gpu_end_ns: first start and last end of these; both 0 where it launched nothing.
    """

    ranges: NestedRanges
    position: Int64
    operations: Int64
    gpu_start_ns: Int64
    gpu_end_ns: Int64

    def __len__(self) -> int:
        return len(self.position)

    @property
    def start_ns(self) -> Int64:
        """Start of each range on the host."""
        return self.ranges.start_ns[self.position]

    @property
    def end_ns(self) -> Int64:
        """End of each range on the host."""
        return self.ranges.end_ns[self.position]

    def names(self) -> list[str]:
        """Name of each range."""
        return [self.ranges.names[code] for code in self.ranges.name[self.position].tolist()]


def project(
    profile: NsysProfile,
    activity: Activity,
    window: Clip | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> Projection:
    """The ranges of the processes that used a GPU, by start, projected onto it.

    Args:
        window: ranges that start in it, with all that they launched; None takes all.
        wanted: which names of ranges to take; None takes all.
    """
    nested = nested_ranges(profile, processes_of([activity]))
    chosen = _named(nested.names, wanted)[nested.name]
    if window is not None:
        chosen &= (nested.start_ns >= window.start_ns) & (nested.start_ns < window.end_ns)
    count, first, last = _launched(nested, activity, launch_positions(profile, activity, nested))
    position = np.flatnonzero(chosen)
    # Ranges come by process and start, the longer one first.
    if (np.diff(nested.start_ns[position]) < 0).any():
        position = position[np.argsort(nested.start_ns[position], kind="stable")]
    return Projection(nested, position, count[position], first[position], last[position])


@dataclass(frozen=True, slots=True)
class ProjectedName:
    """All ranges of one name in one window, on the host and projected onto a GPU.

    Attributes:
        host: time inside the ranges on the host.
        gpu: from first start to last end of what each launched, of those that launched something.
        operations: kernels and memory operations that they launched; of ranges within ranges of the same name, twice.
    """

    name: str
    host: Durations
    gpu: Durations
    operations: int


def by_projected_name(projection: Projection) -> list[ProjectedName]:
    """Projected ranges by name, longest total on the GPU first."""
    nested = projection.ranges
    host, gpu = projection.end_ns - projection.start_ns, projection.gpu_end_ns - projection.gpu_start_ns
    launched = projection.operations > 0
    found = [
        ProjectedName(
            nested.names[code],
            Durations.of(host[members]),
            Durations.of(gpu[members[launched[members]]]),
            int(projection.operations[members].sum()),
        )
        for code, members in by_group(nested.name[projection.position])
    ]
    return sorted(found, key=lambda one: (-one.gpu.total_ns, -one.host.total_ns, one.name))


@dataclass(frozen=True, slots=True)
class Pace:
    """What repeats, one entry each time, by start.

    Attributes:
        start_ns, end_ns: of a range on the host, or of a kernel on its GPU.
        gpu_start_ns, gpu_end_ns: of what a range launched; of a kernel its own.
        launched: which have times of the GPU.
    """

    start_ns: Int64
    end_ns: Int64
    gpu_start_ns: Int64
    gpu_end_ns: Int64
    launched: Bool

    def __len__(self) -> int:
        return len(self.start_ns)

    def periods(self) -> Int64:
        """From each start to the next; one less than there are entries."""
        return self.start_ns[1:] - self.start_ns[:-1]

    def gpu_periods(self) -> Int64:
        """From each start on the GPU to the next, of those that launched something."""
        starts = np.sort(self.gpu_start_ns[self.launched])
        return starts[1:] - starts[:-1]


def pace_of_ranges(projection: Projection) -> Pace:
    """The pace of projected ranges, those inside another chosen one left out: a name may nest in itself."""
    nested, inner = projection.ranges, np.zeros(len(projection), dtype=bool)
    chosen = np.zeros(len(nested) + 1, dtype=bool)
    chosen[projection.position] = True
    above = nested.parent[projection.position]
    while (above != NONE).any():
        inner |= chosen[above] & (above != NONE)
        above = np.where((above != NONE) & ~inner, nested.parent[above], NONE)
    kept = ~inner
    return Pace(
        projection.start_ns[kept],
        projection.end_ns[kept],
        projection.gpu_start_ns[kept],
        projection.gpu_end_ns[kept],
        projection.operations[kept] > 0,
    )


def pace_of_operations(activity: Activity, wanted: Callable[[str], bool], window: Clip | None = None) -> Pace:
    """The pace of the kernels and memory operations of some names that start in a window."""
    chosen = _named(activity.names, wanted)[activity.name]
    if window is not None:
        chosen &= activity.started_within(window)
    starts, ends = activity.starts[chosen], activity.ends[chosen]
    return Pace(starts, ends, starts, ends, np.ones(len(starts), dtype=bool))


def _named(names: tuple[str, ...], wanted: Callable[[str], bool] | None) -> npt.NDArray[np.bool_]:
    return np.array([wanted is None or wanted(name) for name in names], dtype=bool)


def _launched(nested: NestedRanges, activity: Activity, position: Int64) -> tuple[Int64, Int64, Int64]:
    """Per range: operations that calls inside it launched, first start and last end of these."""
    count = np.zeros(len(nested), dtype=np.int64)
    first, last = np.full(len(nested), np.iinfo(np.int64).max), np.full(len(nested), np.iinfo(np.int64).min)
    rows = np.flatnonzero(position != NONE)
    if len(rows):
        order = rows[np.argsort(position[rows], kind="stable")]
        own = position[order]
        begin = np.flatnonzero(np.diff(own, prepend=own[0] - 1))
        at = own[begin]
        count[at] = np.diff(begin, append=len(own))
        first[at] = np.minimum.reduceat(activity.starts[order], begin)
        last[at] = np.maximum.reduceat(activity.ends[order], begin)
        depth = nested.depth
        for level in range(int(depth[at].max()), 0, -1):
            here = np.flatnonzero((depth == level) & (count > 0))
            above = nested.parent[here]
            np.add.at(count, above, count[here])
            np.minimum.at(first, above, first[here])
            np.maximum.at(last, above, last[here])
    nothing = count == 0
    first[nothing] = last[nothing] = 0
    return count, first, last
