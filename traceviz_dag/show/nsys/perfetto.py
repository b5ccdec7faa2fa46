"""A Nsight Systems profile as a Perfetto trace: streams, calls with their launches, NVTX ranges, GPU metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.classify.columns import integers
from traceviz_dag.read.nsys.profile import MARK, NsysProfile
from traceviz_dag.show.perfetto.trace import PerfettoTrace, Slices, Track, perfetto_trace

_RANGE = ("name", "kind", "start_ns", "end_ns", "thread", "domain_name", "communicator")
_CALL = ("name", "start_ns", "duration_ns", "thread", "correlation")
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
            chosen = gpu if window is None else gpu.take((gpu.ends > window.start_ns) & (gpu.starts < window.end_ns))
            track = trace.add_track(f"GPU {gpu.device}", order=place)
            _add_streams(trace, track, profile, chosen, base)
            _add_metrics(trace, track, profile, gpu.device, base, window)
            launched.append(chosen.launch[chosen.launch >= 0])
        processes = np.unique(np.concatenate([gpu.process for gpu in gpus]))
        _add_threads(trace, profile, processes, np.unique(np.concatenate(launched)), base, window, len(gpus))
        return trace.slices


def _clock(profile: NsysProfile, gpus: Sequence[Activity]) -> tuple[int, str]:
    """What to add to the export's times, and what they count then: Perfetto takes none below 0."""
    base = profile.facts.utc_start_ns or 0
    starts = [gpu.starts for gpu in gpus]
    starts += [profile.rows(table, "start_ns").integers("start_ns") for table in ("ranges", "calls")]
    first = min((int(each.min()) for each in starts if len(each)), default=0)
    if first + base < 0:
        return -first, _FROM_FIRST
    return base, _UTC if base else _CLOCK


def _add_streams(trace: PerfettoTrace, parent: Track, profile: NsysProfile, gpu: Activity, base: int) -> None:
    rows = profile.rows("operations", "correlation", of=[gpu.device])
    correlation = rows.integers("correlation")[rows.place(gpu.row)]
    names = pa.array(gpu.names, pa.string())
    for place, stream in enumerate(np.unique(gpu.stream).tolist()):
        mine = np.flatnonzero(gpu.stream == stream)
        slices = Slices(
            gpu.starts[mine] + base,
            (gpu.ends - gpu.starts)[mine],
            names.take(pa.array(gpu.name[mine])),
            pa.array(KINDS, pa.string()).take(pa.array(gpu.intervals.kind[mine])),
            {"correlation": integers(correlation[mine]), "bytes": integers(gpu.bytes[mine])},
            flows_in=[(gpu.launch[mine] + 1).astype(np.uint64)],
        )
        trace.add_slices(trace.add_track(f"stream {stream}", parent, order=place), slices)


def _add_metrics(
    trace: PerfettoTrace, parent: Track, profile: NsysProfile, device: int, base: int, window: Clip | None
) -> None:
    metrics = profile.rows("metrics", "time_ns", "device", "metric", "value")
    time = metrics.integers("time_ns")
    kept = metrics["device"] == device
    if window is not None:
        kept &= (time >= window.start_ns) & (time < window.end_ns)
    names = profile.names("metrics", "metric")
    for code in sorted(np.unique(metrics["metric"][kept]).tolist(), key=lambda code: names[code]):
        rows = np.flatnonzero(kept & (metrics["metric"] == code))
        trace.add_counts(trace.add_counter(names[code], parent), time[rows] + base, metrics.integers("value")[rows])


def _add_threads(
    trace: PerfettoTrace,
    profile: NsysProfile,
    processes: Int64,
    launching: Int64,
    base: int,
    window: Clip | None,
    order: int,
) -> None:
    """Ranges and calls of the threads of some processes; calls that launched something shown begin a flow."""
    threads = profile.table("threads")
    names = dict(zip(*(threads[name].to_pylist() for name in ("thread", "name")), strict=True))
    for place, process in enumerate(processes.tolist()):
        parent = trace.add_track(f"process {process & 0xFFFFFF}", order=order + place)
        ranges = profile.rows("ranges", *_RANGE, of=[process])
        calls = profile.rows("calls", *_CALL, of=[process])
        begins = calls.place(launching)
        begins, flow = begins[begins != NONE], np.zeros(len(calls), dtype=np.uint64)
        flow[begins] = calls.runs.rows()[begins] + 1
        own = ranges["kind"] != MARK, np.ones(len(calls), dtype=bool)
        if window is not None:
            own[0][:] &= (ranges["end_ns"] > window.start_ns) & (ranges["start_ns"] < window.end_ns)
            ended = calls.integers("start_ns") + calls["duration_ns"]
            own[1][:] = (ended > window.start_ns) & (calls["start_ns"] < window.end_ns)
            # A launch before the window whose kernel is inside stays, so that its arrow has a begin.
            own[1][begins] = True
        for thread in np.union1d(ranges["thread"][own[0]], calls["thread"][own[1]]).tolist():
            label = f"{names.get(thread) or 'thread'} {thread & 0xFFFFFF}"
            rows = np.flatnonzero(own[0] & (ranges["thread"] == thread))
            nvtx = Slices(
                ranges.integers("start_ns")[rows] + base,
                (ranges.integers("end_ns") - ranges["start_ns"])[rows],
                profile.texts("ranges", "name", ranges["name"][rows]),
                "nvtx",
                {
                    "domain": profile.texts("ranges", "domain_name", ranges["domain_name"][rows]),
                    "communicator": profile.texts("ranges", "communicator", ranges["communicator"][rows]),
                },
            )
            trace.add_slices(trace.add_track(f"{label} · NVTX", parent, order=0), nvtx, nested=True)
            rows = np.flatnonzero(own[1] & (calls["thread"] == thread))
            made = Slices(
                calls.integers("start_ns")[rows] + base,
                calls.integers("duration_ns")[rows],
                profile.texts("calls", "name", calls["name"][rows]),
                "call",
                {"correlation": integers(calls.integers("correlation")[rows])},
                flows_out=[flow[rows]],
            )
            trace.add_slices(trace.add_track(f"{label} · calls", parent, order=1), made, nested=True)
