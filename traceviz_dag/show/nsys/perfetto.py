"""A Nsight Systems profile as a Perfetto trace: streams, calls with their launches, NVTX ranges, GPU metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.lost import partial_mark
from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.classify.columns import integers
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.show.lanes.bundle import Bundle, everything
from traceviz_dag.show.lanes.lane import LaneKind
from traceviz_dag.show.lanes.profile import (
    HostLane,
    add_gpu_lanes,
    add_metrics,
    gpu_parts,
    host_lanes,
    process_label,
)
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.lanes.words import gpu_label, ranges_label
from traceviz_dag.show.perfetto.trace import Column, PerfettoTrace, Slices, Track, perfetto_trace

_TIMES = (
    *((table, "start_ns") for table in ("ranges", "calls", "system_calls")),
    *((table, "time_ns") for table in ("memory", "metrics")),
)
"""Tables of a profile that are shown beside its operations, and when a row of them is."""

_CLOCK = "nanoseconds of the capture's clock"
_FROM_FIRST = "nanoseconds from the first event"
_UTC = "nanoseconds of UTC, from the start that the capture states"


def write_perfetto(profile: NsysProfile, gpus: Sequence[Activity], path: Path, window: Clip | None = None) -> int:
    """Write a trace.

    Args:
        gpus: what the GPUs did that are shown; calls and ranges of their processes are shown too.
        path: the file; gzip-compressed where its name ends in ``.gz``.
        window: only what runs inside it, uncut; None takes all.

    Returns:
        How many slices were written.
    """
    base, clock = _clock(profile, gpus)
    about = {"export": profile.path.name, "nsys": profile.facts.product_version or "unknown"}
    with perfetto_trace(path, clock, about) as trace:
        launched: list[Int64] = []
        for place, gpu in enumerate(gpus):
            track = trace.add_track(gpu_label(gpu.device), order=place)
            if mark := partial_mark(profile, [gpu.device]):
                trace.add_track(mark, track)
            launched.append(_add_gpu(trace, track, profile, gpu, base, window))
        launching = np.unique(np.concatenate(launched))
        for place, process in enumerate(np.unique(np.concatenate([gpu.process for gpu in gpus])).tolist(), len(gpus)):
            _add_threads(trace, profile, process, place, launching, base, window)
        return trace.slices


def _clock(profile: NsysProfile, gpus: Sequence[Activity]) -> tuple[int, str]:
    """What to add to the export's times, and what they count then: Perfetto takes none below 0."""
    base = profile.facts.utc_start_ns or 0
    starts = [gpu.starts for gpu in gpus]
    starts += [profile.rows(table, time).integers(time) for table, time in _TIMES]
    first = min((int(each.min()) for each in starts if len(each)), default=0)
    if first + base < 0:
        return -first, _FROM_FIRST
    return base, _UTC if base else _CLOCK


def _add_gpu(
    trace: PerfettoTrace, track: Track, profile: NsysProfile, gpu: Activity, base: int, window: Clip | None
) -> Int64:
    """The lanes and counters of a GPU; returns the calls that launched what is shown."""
    bundle = Bundle()
    add_gpu_lanes(bundle, profile, gpu, everything(gpu_parts(gpu.intervals)))
    add_metrics(bundle, profile, gpu.device)
    rows = profile.rows("operations", "correlation", "bytes", "launch", of=[gpu.device])
    launched = [np.empty(0, np.int64)]
    for order, lane in enumerate(bundle.lanes):
        if lane.kind is LaneKind.COUNTER:
            changes = bundle.counters[lane.key]
            kept = slice(None)
            if window is not None:
                kept = slice(*np.searchsorted(changes.time_ns, [window.start_ns, window.end_ns]).tolist())
            counter = trace.add_counter(lane.label, track, unit=lane.unit, order=order)
            trace.add_counts(counter, changes.time_ns[kept] + base, changes.value[kept])
            continue
        content = bundle.contents[lane.key]
        found = _inside(content.rows, window)
        place = rows.place(found.source.astype(np.int64))
        if lane.kind is LaneKind.STREAM:
            launch = rows.integers("launch")[place]
            launched.append(launch[launch >= 0])
            facts: dict[str, Column] = {name: integers(rows.integers(name)[place]) for name in ("correlation", "bytes")}
            names = profile.texts("operations", "name", found.name)
            flows = [(launch + 1).astype(np.uint64)]
        else:
            names, facts, flows = content.labels(found), {}, []
        slices = Slices(
            found.start_ns + base,
            found.end_ns - found.start_ns,
            names,
            content.keys(found),
            facts,
            flows_in=flows,
        )
        trace.add_slices(trace.add_track(lane.label, track, order=order), slices)
    return np.concatenate(launched)


def _inside(rows: LaneRows, window: Clip | None, kept: Int64 | None = None) -> LaneRows:
    """The slices that touch a window, and those whose sources are kept all the same."""
    if window is None:
        return rows
    chosen = (rows.end_ns > window.start_ns) & (rows.start_ns < window.end_ns)
    return rows.take(np.flatnonzero(chosen if kept is None else chosen | np.isin(rows.source, kept)))


def _add_threads(
    trace: PerfettoTrace,
    profile: NsysProfile,
    process: int,
    order: int,
    launching: Int64,
    base: int,
    window: Clip | None,
) -> None:
    """The lanes of a process's threads; levels of ranges are one track, on which they nest.

    Args:
        launching: calls that launched something shown: a flow begins at each.
    """
    parent = trace.add_track(process_label(process), order=order)
    ranges = profile.rows("ranges", "domain_name", "communicator", of=[process])
    calls = profile.rows("calls", "correlation", of=[process])
    for head, lanes in host_lanes(profile, process):
        thread = trace.add_track(head.label, parent)
        tracks: dict[str, list[HostLane]] = {}
        for host in lanes:
            is_level = host.lane.kind is LaneKind.RANGES and host.lane.key.rpartition(":")[2].isdigit()
            tracks.setdefault(ranges_label(0, NONE) if is_level else host.lane.label, []).append(host)
        for place, (label, hosts) in enumerate(tracks.items()):
            # A launch before the window whose kernel is inside stays, so that its arrow has a begin.
            kept = launching if hosts[0].lane.kind is LaneKind.CALLS else None
            rows = [_inside(host.rows, window, kept) for host in hosts]
            start, length, source = (np.concatenate(each) for each in zip(*map(_columns, rows), strict=True))
            kind = pa.array(np.concatenate([one.kind for one in rows]))
            names = np.concatenate([one.name for one in rows])
            facts: dict[str, Column] = {}
            flows = []
            if hosts[0].lane.kind is LaneKind.RANGES:
                at = ranges.place(source)
                facts = {
                    "domain": profile.texts("ranges", "domain_name", ranges["domain_name"][at]),
                    "communicator": profile.texts("ranges", "communicator", ranges["communicator"][at]),
                }
            elif hosts[0].lane.kind is LaneKind.CALLS:
                facts = {"correlation": integers(calls.integers("correlation")[calls.place(source)])}
                flows = [np.where(np.isin(source, launching), source + 1, 0).astype(np.uint64)]
            slices = Slices(
                start + base,
                length,
                profile.texts(hosts[0].words, "name", names),
                pa.array(hosts[0].kinds, pa.string()).take(kind),
                facts,
                flows_out=flows,
            )
            trace.add_slices(trace.add_track(label, thread, order=place), slices, nested=True)


def _columns(rows: LaneRows) -> tuple[Int64, Int64, Int64]:
    """Start, length and source of slices."""
    return rows.start_ns, rows.end_ns - rows.start_ns, rows.source.astype(np.int64)
