"""Which kernels and memory operations take the time of a GPU, and what the capture's GPU metrics averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, lay_end_to_end, measure_within, union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.arrays import Int64, distinct
from traceviz_dag.read.nsys.profile import NsysProfile


@dataclass(frozen=True, slots=True)
class NameMeasures:
    """All operations of one name in one window.

    Attributes:
        count: of those that start in the window.
        total_ns: sum of the durations inside the window; operations that run side by side count each, so this is no
            busy time and its share is no utilisation.
        mean_ns, least_ns, most_ns: of the whole durations of those counted; None where none is.
        share: total_ns as a share of the sum over all names of the GPU.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    mean_ns: int | None
    least_ns: int | None
    most_ns: int | None
    share: float


def with_short_names(profile: NsysProfile, activity: Activity) -> Activity:
    """The same operations, each by its short name: that of a kernel's function, without namespaces and templates."""
    rows = profile.rows("operations", "short_name", of=[activity.device])
    short = rows["short_name"][rows.place(activity.row)].astype(np.int32, copy=False)
    return replace(activity, name=short, names=profile.names("operations", "short_name"))


def by_name(activity: Activity, window: Clip | None = None) -> list[NameMeasures]:
    """The operations of a GPU by name, longest total first."""
    chosen = activity.window(window)
    inside = np.maximum(np.minimum(activity.ends, chosen.end_ns) - np.maximum(activity.starts, chosen.start_ns), 0)
    counted = activity.started_within(chosen)
    size = len(activity.names)
    total = sums(inside, activity.name, size)
    count = np.bincount(activity.name[counted], minlength=size)
    whole = (activity.ends - activity.starts)[counted]
    whole_total = sums(whole, activity.name[counted], size)
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, -1, dtype=np.int64)
    np.minimum.at(least, activity.name[counted], whole)
    np.maximum.at(most, activity.name[counted], whole)
    kind = np.zeros(size, dtype=np.int64)
    kind[activity.name] = activity.intervals.kind
    everything = max(int(total.sum()), 1)
    shown = np.flatnonzero((total > 0) | (count > 0))
    return [
        NameMeasures(
            activity.names[code],
            KINDS[kind[code]],
            int(count[code]),
            int(total[code]),
            int(whole_total[code] // count[code]) if count[code] else None,
            int(least[code]) if count[code] else None,
            int(most[code]) if count[code] else None,
            int(total[code]) / everything,
        )
        for code in shown[np.argsort(-total[shown], kind="stable")].tolist()
    ]


@dataclass(frozen=True, slots=True)
class StreamMeasures:
    """One stream of a GPU in one window: operations that start there, and the union of all that ran."""

    stream: int
    count: int
    busy_ns: int


def by_stream(activity: Activity, window: Clip | None = None) -> list[StreamMeasures]:
    """The streams of a GPU, busiest first."""
    chosen = activity.window(window)
    streams = distinct(activity.stream)
    which = np.searchsorted(streams, activity.stream)
    counts = np.bincount(which[activity.started_within(chosen)], minlength=len(streams))
    busy = busy_by_group(_cut(activity, chosen), which, len(streams))
    order = np.argsort(-busy, kind="stable")
    return [StreamMeasures(int(streams[place]), int(counts[place]), int(busy[place])) for place in order.tolist()]


@dataclass(frozen=True, slots=True)
class MetricMeasures:
    """One GPU metric in one window: samples, and their mean and largest value."""

    metric: str
    samples: int
    mean: float
    most: int


def metric_means(profile: NsysProfile, device: int, window: Clip) -> list[MetricMeasures]:
    """GPU metrics of one GPU, by name; empty where none were sampled."""
    metrics = profile.rows("metrics", "time_ns", "device", "metric", "value")
    if not len(metrics):
        return []
    time = metrics["time_ns"]
    rows = np.flatnonzero((metrics["device"] == device) & (time >= window.start_ns) & (time < window.end_ns))
    names = profile.names("metrics", "metric")
    codes, values = metrics.integers("metric")[rows], metrics.integers("value")[rows]
    count = np.bincount(codes, minlength=len(names))
    total = np.bincount(codes, weights=values.astype(np.float64), minlength=len(names))
    most = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(most, codes, values)
    found = [
        MetricMeasures(names[code], int(count[code]), float(total[code]) / int(count[code]), int(most[code]))
        for code in np.flatnonzero(count).tolist()
    ]
    return sorted(found, key=lambda measures: measures.metric)


def busy_by_group(time: Intervals, groups: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> Int64:
    """The union of the intervals of each group, ns.

    Args:
        groups: group of each interval, from 0 to ``count - 1``.
    """
    if not len(time.starts):
        return np.zeros(count, dtype=np.int64)
    if count <= 2**16:
        # A radix sort: operations come by start, so that they then come by start within their groups.
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        groups, time = groups[order], Intervals(time.starts[order], time.ends[order])
    low, high = int(time.starts.min()), int(time.ends.max())
    axis = lay_end_to_end(np.full(count, low), np.full(count, max(high, low)))
    covered = union(*axis.place(time, groups))
    return measure_within(covered, axis.segment_starts, axis.segment_ends)


def numbered(values: Int64, count: int) -> tuple[Int64, Int64]:
    """The distinct values, ascending, and the place of each value among them; values run from 0 to ``count - 1``."""
    occurs = np.zeros(count, dtype=bool)
    occurs[values] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[values]


def sums(values: Int64, groups: np.ndarray[tuple[int], np.dtype[np.integer]], count: int) -> Int64:
    """The exact sum of the values of each group; floating point would lose nanoseconds."""
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, groups, values)
    return total


def _cut(activity: Activity, window: Clip) -> Intervals:
    """Operations cut at the edges of a window, all of them: outside of it they are empty."""
    starts = np.clip(activity.starts, window.start_ns, window.end_ns)
    return Intervals(starts, np.clip(activity.ends, window.start_ns, window.end_ns))
