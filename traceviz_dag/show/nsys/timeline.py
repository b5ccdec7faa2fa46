"""The timeline of an Nsight Systems profile, as the report's page draws it: the lanes of its GPUs and their threads.

All times on the page are from one instant, which is every GPU's zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.projections import project
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.columns import integers
from traceviz_dag.classify.rules import Rules
from traceviz_dag.printable import printable
from traceviz_dag.read.events import KERNEL, MEMORY_COPY, MISSING
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes import words as said
from traceviz_dag.show.lanes.bundle import GPU_PART_KINDS, Bundle, Content, everything
from traceviz_dag.show.lanes.lane import Lane, LaneKind
from traceviz_dag.show.lanes.profile import CALL_NAMES, HostLane, add_gpu_lanes, gpu_parts, host_lanes, iteration_marks
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.report.lane_columns import LaneColumns, lane_document
from traceviz_dag.show.report.signatures import Signatures
from traceviz_dag.show.report.timeline import Timeline

_BINS = 2048
_OPEN = 1
"""GPUs whose rows are open from the start: more would not fit on a screen."""

_MOST_GAPS = 50_000
_NUMBERS = (
    *("bytes", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers_per_thread", "shared_memory_bytes", "graph_id", "context"),
)
_SIGNATURE = ("name", "kind", "category", "stream", "device", "table", *_NUMBERS)
_KERNELS, _GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES, _SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_QUERIES = {
    "kernel": "SELECT * FROM {table} WHERE deviceId = {rank} AND start = {start_ns}",
    "range": "SELECT * FROM NVTX_EVENTS WHERE globalTid = {thread} AND start = {start_ns}",
    "call": "SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE globalTid = {thread} AND start = {start_ns}",
}


def profile_timeline(
    profile: NsysProfile, gpus: Sequence[Activity], rules: Rules, command: str, window: Clip | None, most: int
) -> Timeline:
    """Everything that the timeline of a profile shows.

    Args:
        gpus: what the GPUs did that are shown.
        command: names the profile, to measure a window of it: what follows ``traceviz nsys overlap``.
        window: only what runs inside it; None takes all.
        most: operations, ranges and calls that the page carries at the most; the shortest are left out first.
    """
    shown = [_Gpu.of(profile, gpu, window) for gpu in gpus]
    zero, last = _span(shown, window)
    shortest, left_out = _limit(shown, most)
    found, columns, signatures = Timeline(), LaneColumns(), Signatures(_SIGNATURE)
    width = max(-(-(last - zero) // _BINS), 1)
    found.kernels = sum(len(one.activity) for one in shown)
    found.kept = sum(int(one.kept.sum()) for one in shown)
    ranks = [_rank(one, profile, rules, (zero, last, width), columns, signatures) for one in shown]
    for rank in ranks[:_OPEN]:
        rank["open"] = True
    columns.hand_over(found.columns)
    found.document = {
        "run": printable(profile.path.name),
        "iteration": 0,
        "member": "GPU",
        "whole": not any((~one.kept).any() for one in shown),
        "ranks": ranks,
        "axes": [
            {
                "name": "global",
                "label": "the capture's clock",
                "sentence": f"From {zero / 1e9:,.6f} s of the capture's clock.",
                "at": [0] * len(ranks),
                "length": max(last - zero, 1),
            }
        ],
        "bin_ns": width,
        "parts": _PARTS,
        "categories": KINDS,
        "kinds": list(columns.kinds),
        "gap_kinds": said.GAP_KINDS,
        "words": said.WORDS,
        "names": list(columns.names),
        **signatures.document(),
        "launches": True,
        "groupings": {},
        "findings": [],
        "queries": {
            **_QUERIES,
            "gap": f"traceviz nsys gaps {command} --gpu {{rank}} --least-us 0 --trim {{start_s}} {{end_s}}",
        },
        "overlap_command": f"traceviz nsys overlap {command}",
        "overlap_options": "--gpu {rank} --trim {start_s} {end_s}",
    }
    if left_out:
        found.notes = [
            f"{left_out:,} slices shorter than {shortest / 1e3:,.3f} µs are left out of the close view; the far view "
            "and its bins count all"
        ]
    return found


_PARTS = (*(kind for kind in GPU_PART_KINDS if kind != parts.HIDDEN), parts.HIDDEN)
"""What lies beside computation comes last, as in the bins of a report."""


@dataclass(slots=True)
class _Gpu:
    """A GPU with its lanes and those of the threads of its processes.

    Attributes:
        whole: what it did at any time, of which a window shows a part.
        kept: per operation whether the page carries it.
        threads: the lane of each thread, and the lanes below it.
    """

    whole: Activity
    activity: Activity
    lanes: Bundle
    kept: Bool
    threads: list[tuple[Lane, list[HostLane]]]

    @classmethod
    def of(cls, profile: NsysProfile, gpu: Activity, window: Clip | None) -> _Gpu:
        chosen = gpu if window is None else gpu.take((gpu.ends > window.start_ns) & (gpu.starts < window.end_ns))
        bundle = Bundle()
        add_gpu_lanes(bundle, profile, gpu, everything(gpu_parts(gpu.intervals)))
        threads = []
        processes = processes_of([gpu])
        for process in sorted(profile.keys("calls")) if processes is None else processes:
            for head, lanes in host_lanes(profile, process, (CALL_NAMES,)):
                inside = [_taken(one, one.rows, window) for one in lanes]
                if any(len(one.rows) for one in inside):
                    threads.append((head, [one for one in inside if len(one.rows)]))
        return cls(gpu, chosen, bundle, np.ones(len(chosen), dtype=bool), threads)

    @property
    def hosts(self) -> list[HostLane]:
        """The lanes of all threads."""
        return [one for _, lanes in self.threads for one in lanes]


def _taken(host: HostLane, rows: LaneRows, window: Clip | None, least_ns: int = 0) -> HostLane:
    """The slices of a lane inside a window that are long enough."""
    kept = rows.end_ns - rows.start_ns >= least_ns
    if window is not None:
        kept &= (rows.end_ns > window.start_ns) & (rows.start_ns < window.end_ns)
    return HostLane(host.lane, rows.take(np.flatnonzero(kept)), host.kinds, host.words)


def _span(shown: Sequence[_Gpu], window: Clip | None) -> tuple[int, int]:
    """Zero and end of the axis, ns of the capture's clock."""
    if window is not None:
        return window.start_ns, window.end_ns
    starts = [int(each.min()) for one in shown for each in (one.activity.starts, *(h.rows.start_ns for h in one.hosts))]
    ends = [int(each.max()) for one in shown for each in (one.activity.ends, *(h.rows.end_ns for h in one.hosts))]
    return min(starts, default=0), max(ends, default=1)


def _limit(shown: Sequence[_Gpu], most: int) -> tuple[int, int]:
    """Leave out the shortest until ``most`` are left: (below what length they are left out, how many are)."""
    lengths = [one.activity.ends - one.activity.starts for one in shown]
    lengths += [host.rows.end_ns - host.rows.start_ns for one in shown for host in one.hosts]
    every = np.concatenate([np.empty(0, np.int64), *lengths])
    if len(every) <= most:
        return 0, 0
    shortest = int(np.partition(every, len(every) - most - 1)[len(every) - most - 1]) + 1
    for one in shown:
        one.kept = one.activity.ends - one.activity.starts >= shortest
        kept = [(head, [_taken(host, host.rows, None, shortest) for host in lanes]) for head, lanes in one.threads]
        one.threads = [(head, [host for host in lanes if len(host.rows)]) for head, lanes in kept]
    return shortest, int((every < shortest).sum())


def _rank(
    one: _Gpu,
    profile: NsysProfile,
    rules: Rules,
    axis: tuple[int, int, int],
    columns: LaneColumns,
    signatures: Signatures,
) -> dict[str, Any]:
    """What the document says of a GPU; its rows go into the columns."""
    zero, last, width = axis
    gpu, add = one.activity, columns.add
    count = max(-(-(last - zero) // width), 1)
    values = parts.binned(gpu_parts(gpu.intervals), zero, width, count, _PARTS)
    add("bins", values.reshape(-1))
    part = gpu.take(one.kept)
    calls = profile.rows("calls", "start_ns", "duration_ns", of=processes_of([gpu]))
    place = calls.place(part.launch)
    before = part.starts - lookup(calls.integers("start_ns"), place)
    told = place != NONE
    add("kernel.start", part.starts - zero)
    add("kernel.length", part.ends - part.starts)
    add("kernel.signature", signatures.of(_operations(profile, part)))
    add("kernel.microbatch", np.zeros(len(part), dtype=np.int64))
    add("kernel.launch", np.where(told, np.where(before >= 0, before + 1, before), 0))
    add("kernel.launch_length", np.where(told, lookup(calls.integers("duration_ns"), place), 0))
    kernels = add("kernel.id", part.row)
    gaps = next(lane for lane in one.lanes.lanes if lane.kind is LaneKind.GAPS)
    there = set(part.stream.tolist())
    streams = [
        lane_document(lane, {"stream": None if number == MISSING else number})
        for lane in one.lanes.lanes
        if lane.kind is LaneKind.STREAM and (number := int(lane.key.rpartition(":")[2])) in there
    ]
    idle = _idle(one.lanes.contents[gaps.key], (zero, last))
    return {
        "rank": gpu.device,
        "label": said.gpu_label(gpu.device),
        "stage": None,
        "first_ns": str(zero),
        "length": last - zero,
        "windows": [
            {"step": mark.number, "start": mark.start_ns - zero, "end": mark.end_ns - zero}
            for mark in iteration_marks(profile, gpu, rules)
        ],
        "lanes": [
            *streams,
            columns.add_lane(gaps, idle, zero),
            *_hosts(one, profile, part, zero, columns),
        ],
        **{"waits": 0, "bins": len(values), "kernels": kernels},
    }


def _idle(content: Content, axis: tuple[int, int]) -> Content:
    """The longest idle times inside the axis, cut at its ends."""
    rows = content.rows
    start, end = np.maximum(rows.start_ns, axis[0]), np.minimum(rows.end_ns, axis[1])
    inside = np.flatnonzero(start < end)
    longest = np.sort(inside[np.argsort(start[inside] - end[inside], kind="stable")[:_MOST_GAPS]])
    return Content(LaneRows.of(start[longest], end[longest], rows.kind[longest]), content.kinds)


def _hosts(
    one: _Gpu, profile: NsysProfile, part: Activity, zero: int, columns: LaneColumns
) -> Iterator[dict[str, Any]]:
    """The lanes of threads; of ranges what they launched on the GPU, of calls the first operation."""
    # What a range launched is shown as a whole, also where it runs outside the window.
    projection = project(profile, one.whole)
    order = np.argsort(projection.ranges.row[projection.position], kind="stable")
    by_row = projection.ranges.row[projection.position][order]
    by_launch = np.argsort(part.launch, kind="stable")
    launched_by = part.launch[by_launch]
    for head, host in ((head, host) for head, hosts in one.threads for host in hosts):
        source = host.rows.source.astype(np.int64)
        lane = columns.add_lane(host.lane, Content(host.rows, host.kinds), zero, profile.names(host.words, "name"))
        yield {**lane, "thread": printable(head.label), "thread_id": head.key.rpartition(":")[2]}
        if host.lane.kind is LaneKind.CALLS:
            at = _found(launched_by, source)
            columns.add("call.launched", np.where(at == NONE, 0, lookup(by_launch, at) + 1))
            continue
        at = lookup(order, _found(by_row, source))
        launched = lookup(projection.operations, at, 0)
        columns.add("range.launched", launched)
        columns.add("range.gpu_start", np.where(launched > 0, lookup(projection.gpu_start_ns, at, 0) - zero, 0))
        columns.add("range.gpu_length", lookup(projection.gpu_end_ns - projection.gpu_start_ns, at, 0))


def _found(ordered: Int64, values: Int64) -> Int64:
    """The first place of each value; NONE where it is not there."""
    place = np.searchsorted(ordered, values)
    there = place < len(ordered)
    there[there] = ordered[place[there]] == values[there]
    return np.where(there, place, NONE)


def _operations(profile: NsysProfile, part: Activity) -> pa.Table:
    """What operations have in common with others, as a table for signatures."""
    rows = profile.rows("operations", "category", *_NUMBERS, of=[part.device])
    place = rows.place(part.row)
    category = rows["category"][place]
    graphs = np.array([name.startswith("CUDA graph") for name in part.names], dtype=bool)[part.name]
    table = np.where(category == KERNEL, np.where(graphs, 1, 0), np.where(category == MEMORY_COPY, 2, 3))
    kind = pa.DictionaryArray.from_arrays(pa.array(part.intervals.kind.astype(np.int32)), pa.array(KINDS))
    words = pa.array([_KERNELS, _GRAPHS, _COPIES, _SETS])
    columns: dict[str, pa.Array] = {
        "name": profile.texts("operations", "name", part.name),
        "kind": kind,
        "category": kind,
        "stream": integers(part.stream),
        "device": pa.array(np.full(len(part), part.device, dtype=np.int64)),
        "table": pa.DictionaryArray.from_arrays(pa.array(table.astype(np.int32)), words),
    }
    columns |= {name: integers(rows.integers(name)[place]) for name in _NUMBERS}
    return pa.table(columns)
