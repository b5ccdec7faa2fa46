"""A Nsight Systems profile as a Perfetto trace: streams, calls with their launches, NVTX ranges, GPU metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys_activity import Activity, Clip, numbers
from traceviz_dag.read.events import MISSING, Int64
from traceviz_dag.read.nsys_profile import MARK, PROCESS_BITS, NsysProfile
from traceviz_dag.show.perfetto_trace import PerfettoTrace, Slices, Track, perfetto_trace

_CLOCK = "nanoseconds of the capture's clock"
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
    base = profile.facts.utc_start_ns or 0
    about = {"export": profile.path.name, "nsys": profile.facts.product_version or "unknown"}
    with perfetto_trace(path, _UTC if base else _CLOCK, about) as trace:
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


def _add_streams(trace: PerfettoTrace, parent: Track, profile: NsysProfile, gpu: Activity, base: int) -> None:
    correlation = numbers(profile.table("operations", "correlation"), "correlation")[gpu.row]
    names = pa.array(gpu.names, pa.string())
    for place, stream in enumerate(np.unique(gpu.stream).tolist()):
        mine = np.flatnonzero(gpu.stream == stream)
        slices = Slices(
            gpu.starts[mine] + base,
            (gpu.ends - gpu.starts)[mine],
            names.take(pa.array(gpu.name[mine])),
            pa.array(KINDS, pa.string()).take(pa.array(gpu.intervals.kind[mine])),
            {"correlation": _known(correlation[mine]), "bytes": _known(gpu.bytes[mine])},
            flows_in=[(gpu.launch[mine] + 1).astype(np.uint64)],
        )
        trace.add_slices(trace.add_track(f"stream {stream}", parent, order=place), slices)


def _add_metrics(
    trace: PerfettoTrace, parent: Track, profile: NsysProfile, device: int, base: int, window: Clip | None
) -> None:
    metrics = profile.table("metrics")
    time = numbers(metrics, "time_ns")
    kept = numbers(metrics, "device") == device
    if window is not None:
        kept &= (time >= window.start_ns) & (time < window.end_ns)
    if not kept.any():
        return
    mine = metrics.filter(pa.array(kept))
    for name in sorted(pc.unique(mine["metric"].cast(pa.string())).to_pylist()):
        rows = mine.filter(pc.equal(mine["metric"].cast(pa.string()), name))
        trace.add_counts(trace.add_counter(name, parent), numbers(rows, "time_ns") + base, numbers(rows, "value"))


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
    ranges = profile.table("ranges", "name", "kind", "start_ns", "end_ns", "thread", "domain_name", "communicator")
    calls = profile.table("calls", "name", "start_ns", "duration_ns", "thread", "correlation")
    range_start, range_end, call_start = (
        numbers(ranges, "start_ns"),
        numbers(ranges, "end_ns"),
        numbers(calls, "start_ns"),
    )
    call_duration = numbers(calls, "duration_ns")
    range_kept, call_kept = numbers(ranges, "kind") != MARK, np.ones(len(call_start), dtype=bool)
    if window is not None:
        range_kept &= (range_end > window.start_ns) & (range_start < window.end_ns)
        call_kept = (call_start + call_duration > window.start_ns) & (call_start < window.end_ns)
        # A launch before the window whose kernel is inside stays, so that its arrow has a begin.
        call_kept[launching] = True
    flow = np.zeros(len(call_start), dtype=np.uint64)
    flow[launching] = launching + 1
    range_thread, call_thread = numbers(ranges, "thread"), numbers(calls, "thread")
    names = dict(zip(*(profile.table("threads")[name].to_pylist() for name in ("thread", "name")), strict=True))
    for place, process in enumerate(processes.tolist()):
        parent = trace.add_track(f"process {process & 0xFFFFFF}", order=order + place)
        own = (
            range_kept & (range_thread >> PROCESS_BITS == process),
            call_kept & (call_thread >> PROCESS_BITS == process),
        )
        for thread in np.union1d(range_thread[own[0]], call_thread[own[1]]).tolist():
            label = f"{names.get(thread) or 'thread'} {thread & 0xFFFFFF}"
            rows = np.flatnonzero(own[0] & (range_thread == thread))
            some = ranges.take(pa.array(rows))
            nvtx = Slices(
                range_start[rows] + base,
                (range_end - range_start)[rows],
                some["name"],
                "nvtx",
                {"domain": some["domain_name"], "communicator": some["communicator"]},
            )
            trace.add_slices(trace.add_track(f"{label} · NVTX", parent, order=0), nvtx, nested=True)
            rows = np.flatnonzero(own[1] & (call_thread == thread))
            made = Slices(
                call_start[rows] + base,
                call_duration[rows],
                calls["name"].take(pa.array(rows)),
                "call",
                {"correlation": _known(numbers(calls, "correlation")[rows])},
                flows_out=[flow[rows]],
            )
            trace.add_slices(trace.add_track(f"{label} · calls", parent, order=1), made, nested=True)


def _known(values: Int64) -> pa.Array:
    return pa.array(values, mask=values == MISSING)
