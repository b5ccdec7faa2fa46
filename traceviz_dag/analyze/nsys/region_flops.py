"""How much of a GPU's arithmetic a region uses: floating-point operations of an NVTX range against time and peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.projections import Projection, project
from traceviz_dag.analyze.nsys.statistics import exact_sum
from traceviz_dag.analyze.nsys.summary import busy_by_group
from traceviz_dag.analyze.nsys.tree import launch_positions
from traceviz_dag.analyze.peaks import peak_of
from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.profile import NsysProfile


@dataclass(frozen=True, slots=True)
class RegionFlops:
    """All ranges of one region on one GPU.

    Attributes:
        count: ranges that launched something.
        flops: of all of them; None where neither given nor known from sizes.
        flops_from: where they are from, in words; why there are none.
        gpu_ns: sum of their times from first start to last end on the GPU. busy_ns: union of what they launched.
        peak_flops_per_s: of the GPU; None where unknown.
    """

    device: int
    count: int
    flops: int | None
    flops_from: str
    gpu_ns: int
    busy_ns: int
    peak_flops_per_s: int | None

    def utilization(self, time_ns: int) -> float | None:
        """The share of the peak that is used over a time; None where operations, time or peak are unknown."""
        if self.flops is None or not self.peak_flops_per_s or not time_ns:
            return None
        return self.flops * 1e9 / time_ns / self.peak_flops_per_s

    @property
    def above_peak(self) -> bool:
        """Whether the busy time is too short for the operations: one of the three is not right."""
        return (self.utilization(self.busy_ns) or 0) > 1


def region_flops(
    profile: NsysProfile,
    activity: Activity,
    wanted: Callable[[str], bool],
    window: Clip | None = None,
    flops: int | None = None,
    peak: int | None = None,
) -> RegionFlops:
    """Measure a region on one GPU.

    Args:
        wanted: which ranges are the region.
        window: ranges that start in it; None takes all.
        flops: of one such range; None: as the sizes of the matrix products inside show.
        peak: of the GPU, operations a second; None: by its name.
    """
    projection = project(profile, activity, window, wanted)
    outer = _outermost(projection)
    launched = outer[projection.operations[outer] > 0]
    told, words = _told(profile, projection, launched) if flops is None else (flops * len(launched), "as given")
    name = next((gpu.name for gpu in profile.facts.gpus if gpu.device == activity.device), None)
    lengths = (projection.gpu_end_ns - projection.gpu_start_ns)[launched]
    return RegionFlops(
        activity.device,
        len(launched),
        told,
        words,
        int(lengths.sum()),
        _busy(profile, activity, projection, launched),
        peak or peak_of(name),
    )


def _outermost(projection: Projection) -> Int64:
    """Entries that are in no other entry."""
    root = _roots(projection, np.arange(len(projection)))
    return np.flatnonzero(root[projection.position] == np.arange(len(projection)))


def _roots(projection: Projection, entries: Int64) -> Int64:
    """Per range the outermost of some entries of the projection that it is or is inside, or NONE."""
    nested = projection.ranges
    own = np.full(len(nested), NONE, dtype=np.int64)
    own[projection.position[entries]] = entries
    for level in range(int(nested.depth.max(initial=0)) + 1):
        here = np.flatnonzero(nested.depth == level)
        parent = nested.parent[here]
        above = np.where(parent == NONE, NONE, own[parent])
        own[here] = np.where(above == NONE, own[here], above)
    return own


def _told(profile: NsysProfile, projection: Projection, entries: Int64) -> tuple[int | None, str]:
    rows = profile.rows("ranges", "flops", of=None)
    flops = rows.integers("flops")[rows.place(projection.ranges.row)]
    mine = (_roots(projection, entries) != NONE) & (flops != MISSING)
    if not mine.any():
        return None, "no matrix product inside has sizes: give --flops, or profile with emit_nvtx(record_shapes=True)"
    return exact_sum(flops[mine]), f"sizes of {int(mine.sum())} matrix products"


def _busy(profile: NsysProfile, activity: Activity, projection: Projection, entries: Int64) -> int:
    position = launch_positions(profile, activity, projection.ranges)
    inside = np.append(_roots(projection, entries) != NONE, False)[position]
    time = Intervals(activity.starts[inside], activity.ends[inside])
    return int(busy_by_group(time, np.zeros(len(time.starts), dtype=np.int64), 1)[0])
