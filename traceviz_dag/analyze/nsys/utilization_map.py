"""How busy each GPU is over time: a window cut into equal parts, and what ran in each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.vocabulary import Kind


@dataclass(frozen=True, slots=True)
class GpuParts:
    """One GPU in the parts of a window, one entry per part: unions, ns.

    Attributes:
        device: the GPU's number.
    """

    device: int
    busy_ns: Int64
    compute_ns: Int64
    communication_ns: Int64
    memory_ns: Int64


def edges_of(window: Clip, parts: int) -> Int64:
    """The edges of equal parts of a window; to the nanosecond, so lengths differ by 1 ns at the most.

    Raises:
        UsageError: the window has fewer nanoseconds than parts.
    """
    span = window.end_ns - window.start_ns
    if span < parts:
        raise UsageError(f"a window of {span} ns cannot be cut into {parts} parts")
    return np.array([window.start_ns + span * part // parts for part in range(parts + 1)], dtype=np.int64)


def gpu_parts(activity: Activity, edges: Int64) -> GpuParts:
    """What one GPU did in each part."""
    time, kind = activity.intervals.time, activity.intervals.kind
    low, high = edges[:-1], edges[1:]
    wanted = (None, Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY)
    chosen = [slice(None) if one is None else kind == KINDS.index(one) for one in wanted]
    return GpuParts(
        activity.device, *(measure_within(union(time.starts[one], time.ends[one]), low, high) for one in chosen)
    )


def metric_parts(profile: NsysProfile, device: int, metric: str, edges: Int64) -> list[float | None]:
    """The mean of one GPU metric in each part; None where it was not sampled.

    Raises:
        UsageError: the profile has no such metric.
    """
    names = profile.names("metrics", "metric")[:-1]
    if metric not in names:
        there = ", ".join(sorted(names)) or "none: profile with --gpu-metrics-devices"
        raise UsageError(f"{profile.path}: no GPU metric {metric}; there is {there}")
    rows = profile.rows("metrics", "time_ns", "device", "metric", "value")
    mine = (rows["device"] == device) & (rows["metric"] == names.index(metric))
    part = np.searchsorted(edges, rows.integers("time_ns")[mine], side="right") - 1
    inside = (part >= 0) & (part < len(edges) - 1)
    count = np.bincount(part[inside], minlength=len(edges) - 1)
    values = rows.integers("value")[mine][inside].astype(np.float64)
    total = np.bincount(part[inside], weights=values, minlength=len(edges) - 1)
    return [value / number if number else None for value, number in zip(total.tolist(), count.tolist(), strict=True)]
