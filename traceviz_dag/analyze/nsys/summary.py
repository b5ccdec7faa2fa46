"""Which kernels and memory operations take the time of a GPU, and what the capture's GPU metrics averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import Intervals, lay_end_to_end, measure_within, union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, active_gpus, activities, kinds_of
from traceviz_dag.arrays import Int64
from traceviz_dag.classify.rules import Rules
from traceviz_dag.read.nsys.profile import SCHEMAS, NsysProfile
from traceviz_dag.read.nsys.totals import (
    OF_GPU,
    OF_NAMES,
    OF_SHORT_NAMES,
    OF_STREAMS,
    Totals,
    busy_ns,
    streams_of,
    totals_by,
)
from traceviz_dag.vocabulary import Kind


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


NAME_COLUMNS = (
    *(("name", "operation"), "kind", "count", "total_ns", ("share", "share of totals")),
    *("mean_ns", "least_ns", "most_ns"),
)
"""What tables show of it, with their headers where its columns are called otherwise."""


def with_short_names(profile: NsysProfile, activity: Activity) -> Activity:
    """The same operations, each by its short name: that of a kernel's function, without namespaces and templates."""
    rows = profile.rows("operations", "short_name", of=[activity.device])
    short = rows["short_name"][rows.place(activity.row)].astype(np.int32, copy=False)
    return replace(activity, name=short, names=profile.names("operations", "short_name"))


def by_name(activity: Activity, window: Clip | None = None) -> list[NameMeasures]:
    """The operations of a GPU by name, longest total first."""
    chosen = activity.window(window)
    given = activity.starts, activity.ends, (chosen.start_ns, chosen.end_ns), activity.started_within(chosen)
    found = totals_by(activity.name, *given)
    return _named(found, activity.names, activity.intervals.kind[found.last])


def _named(found: Totals, names: Sequence[str], kind: npt.NDArray[np.int8]) -> list[NameMeasures]:
    """Totals by code of the name, with the kind of each."""
    everything = max(int(found.inside_ns.sum()), 1)
    shown = np.flatnonzero((found.inside_ns > 0) | (found.count > 0))
    shown = shown[np.argsort(-found.inside_ns[shown], kind="stable")]
    columns = (found.number, kind, found.count, found.inside_ns, found.whole_ns, found.least_ns, found.most_ns)
    return [
        NameMeasures(
            names[code],
            KINDS[of],
            count,
            inside,
            whole // count if count else None,
            least if count else None,
            most if count else None,
            inside / everything,
        )
        for code, of, count, inside, whole, least, most in zip(*(each[shown].tolist() for each in columns), strict=True)
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
    given = activity.starts, activity.ends, (chosen.start_ns, chosen.end_ns), activity.started_within(chosen)
    return _streams(*streams_of(activity.stream, *given))


def _streams(stream: Int64, count: Int64, busy: Int64) -> list[StreamMeasures]:
    order = np.argsort(-busy, kind="stable")
    columns = (stream, count, busy)
    return [StreamMeasures(*one) for one in zip(*(each[order].tolist() for each in columns), strict=True)]


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


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """What takes the time of one GPU in one window.

    Attributes:
        window: of all operations, where none was chosen.
        kernels: they and memory operations that start in it.
        busy_ns: how much of it at least one operation covers.
    """

    device: int
    window: Clip
    kernels: int
    busy_ns: int
    operations: list[NameMeasures]
    streams: list[StreamMeasures]
    metrics: list[MetricMeasures]


def summaries(
    profile: NsysProfile, rules: Rules, gpus: Sequence[int] = (), window: Clip | None = None, *, short: bool = False
) -> list[GpuSummary]:
    """The summary of each GPU; of the whole capture from the totals that are kept, without the operations.

    Args:
        gpus: only these, in this order; empty takes all that did something.
        short: adds kernels up by their short names.

    Raises:
        UsageError: as ``activities``.
    """
    if window is None:
        chosen = active_gpus(profile, gpus)
        kinds = kinds_of(profile.names("operations", "name"), rules)
        return [_kept_summary(profile, gpu, kinds, short=short) for gpu in chosen]
    return [_measured(profile, gpu, window, short=short) for gpu in activities(profile, rules, gpus)]


def _measured(profile: NsysProfile, activity: Activity, window: Clip, *, short: bool) -> GpuSummary:
    started = activity.started_within(window)
    return GpuSummary(
        activity.device,
        window,
        int(started.sum()),
        busy_ns(activity.starts, activity.ends, (window.start_ns, window.end_ns)),
        by_name(with_short_names(profile, activity) if short else activity, window),
        by_stream(activity, window),
        metric_means(profile, activity.device, window),
    )


def _kept_summary(profile: NsysProfile, gpu: int, kinds: npt.NDArray[np.int8], *, short: bool) -> GpuSummary:
    kept = profile.rows("totals", *SCHEMAS["totals"].names)
    mine = kept["device"] == gpu
    columns = {name: values[mine] for name, values in kept.values.items()}

    def of(code: int) -> dict[str, Int64]:
        return {name: values[columns["of"] == code].astype(np.int64) for name, values in columns.items()}

    names, streams, whole = of(OF_SHORT_NAMES if short else OF_NAMES), of(OF_STREAMS), of(OF_GPU)
    window = Clip(int(whole["window_start_ns"][0]), int(whole["window_end_ns"][0]), last_included=True)
    totals = Totals(last=names["name"], **{name: names[name] for name in Totals.__slots__ if name != "last"})
    kind = np.where(names["kernel"] == 1, kinds[names["name"]], KINDS.index(Kind.MEMORY))
    return GpuSummary(
        gpu,
        window,
        int(whole["count"][0]),
        int(whole["busy_ns"][0]),
        _named(totals, profile.names("operations", "short_name" if short else "name"), kind),
        _streams(streams["number"], streams["count"], streams["busy_ns"]),
        metric_means(profile, gpu, window),
    )


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
