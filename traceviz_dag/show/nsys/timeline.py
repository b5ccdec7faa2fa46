"""The timeline of an Nsight Systems profile, as the report's page draws it: GPUs, NVTX ranges and CUDA calls.

All times on the page are from one instant, which is every GPU's zero. Ranges and calls lie in rows, by thread and
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.iterations import iterations_of
from traceviz_dag.analyze.nsys.overlap import gaps
from traceviz_dag.analyze.nsys.projections import project
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.columns import integers
from traceviz_dag.classify.rules import Rules
from traceviz_dag.printable import printable
from traceviz_dag.read.events import KERNEL, MEMORY_COPY
from traceviz_dag.read.nsys.profile import PROCESS_BITS, NsysProfile
from traceviz_dag.show.page import palette
from traceviz_dag.show.report import bins
from traceviz_dag.show.report.signatures import Signatures, shortened
from traceviz_dag.show.report.timeline import Timeline
from traceviz_dag.vocabulary import Category, Kind

MOST_ROWS_A_THREAD = 24
"""Depths of ranges that a thread shows; what nests deeper is left out, and the page says so."""

_BINS = 2048
_OPEN = 1
"""GPUs whose rows are open from the start: more would not fit on a screen."""

_MOST_GAPS = 50_000
_NUMBERS = (
    *("bytes", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers_per_thread", "shared_memory_bytes", "graph_id", "context"),
)
_SIGNATURE = ("name", "kind", "category", "stream", "device", "table", *_NUMBERS)
_KIND_COLOURS = {
    Kind.COMPUTATION: palette.CATEGORY[Category.FWD_COMPUTATION],
    Kind.COMMUNICATION: palette.CATEGORY[Category.DP_COMMUNICATION],
    Kind.MEMORY: palette.MEMORY_ONLY,
}
_PARTS = {
    bins.COMPUTATION[-1]: ("computation", _KIND_COLOURS[Kind.COMPUTATION]),
    bins.EXPOSED_UNTOLD: ("exposed communication", palette.EXPOSED),
    bins.MEMORY_ALONE: ("memory operations alone", palette.MEMORY_ONLY),
    bins.HIDDEN: ("hidden communication", palette.HIDDEN),
}
_PART_NAMES = {bins.COMPUTATION[-1]: Kind.COMPUTATION.value}
"""What the filters call a part: kinds are the categories of a profile."""

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
    rows = [_GpuRows.of(profile, gpu, window) for gpu in gpus]
    zero, last = _span(rows, window)
    shortest, left_out = _limit(rows, most)
    found = Timeline()
    signatures = Signatures(_SIGNATURE)
    names = _Names()
    columns: dict[str, list[Int64]] = {}
    width = max(-(-(last - zero) // _BINS), 1)
    found.kernels = sum(len(one.activity) for one in rows)
    found.kept = sum(int(one.kept.sum()) for one in rows)
    ranks = [_rank(one, profile, rules, (zero, last, width), signatures, names, columns) for one in rows]
    for rank in ranks[:_OPEN]:
        rank["open"] = True
    for name, parts in columns.items():
        found.columns.add(name, np.concatenate(parts), differences=name in _DIFFERENCES)
    found.document = {
        "run": printable(profile.path.name),
        "iteration": 0,
        "member": "GPU",
        "whole": not any((~one.kept).any() for one in rows),
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
        "parts": [
            {"name": _PART_NAMES.get(name, name), "label": label, "colour": colour}
            for name, (label, colour) in _PARTS.items()
        ],
        "categories": [
            {"name": kind.value, "label": _KIND_WORDS[kind], "colour": colour} for kind, colour in _KIND_COLOURS.items()
        ],
        "signatures": signatures.document(),
        "path": {"causes": [None], "count": 0},
        "launches": True,
        "findings": [],
        "host_names": [shortened(printable(name)) for name in names.codes],
        "queries": {
            **_QUERIES,
            "gap": f"traceviz nsys gaps {command} --gpu {{rank}} --least-us 0 --trim {{start_s}} {{end_s}}",
        },
        "overlap_command": f"traceviz nsys overlap {command}",
        "overlap_options": "--gpu {rank} --trim {start_s} {end_s}",
    }
    found.notes = _notes(rows, shortest, left_out)
    return found


_DIFFERENCES = {"kernel.start", "kernel.id", "gap.start", "host.start"}
_KIND_WORDS = {
    Kind.COMPUTATION: "computation",
    Kind.COMMUNICATION: "communication",
    Kind.MEMORY: "memory operations",
}


@dataclass(slots=True)
class _Names:
    """Names of ranges and calls, each once."""

    codes: dict[str, int] = field(default_factory=dict)

    def of(self, words: Sequence[str], used: Int64) -> Int64:
        code = np.zeros(len(words), dtype=np.int64)
        for index in np.unique(used).tolist():
            code[index] = self.codes.setdefault(words[index], len(self.codes))
        return code[used]


@dataclass(slots=True)
class _HostRow:
    """What a thread did at one depth; none of it lies beside another.

    Attributes:
        row: of ``calls``, for calls.
        gpu_start_ns, gpu_end_ns, operations: of ranges, what they launched on the GPU.
    """

    label: str
    thread: int
    thread_name: str
    kind: str
    start_ns: Int64
    end_ns: Int64
    name: Int64
    words: Sequence[str]
    row: Int64
    gpu_start_ns: Int64
    gpu_end_ns: Int64
    operations: Int64

    def take(self, chosen: Bool) -> _HostRow:
        arrays = ("start_ns", "end_ns", "name", "row", "gpu_start_ns", "gpu_end_ns", "operations")
        taken = {key: getattr(self, key)[chosen] for key in arrays}
        return _HostRow(self.label, self.thread, self.thread_name, self.kind, words=self.words, **taken)


@dataclass(slots=True)
class _GpuRows:
    """A GPU with what its processes did on the host.

    Attributes:
        kept: per operation whether the page carries it.
        too_deep: ranges below the deepest row.
    """

    activity: Activity
    kept: Bool
    hosts: list[_HostRow]
    too_deep: int
    window: Clip | None

    @classmethod
    def of(cls, profile: NsysProfile, gpu: Activity, window: Clip | None) -> _GpuRows:
        whole = gpu
        if window is not None:
            gpu = gpu.take((gpu.ends > window.start_ns) & (gpu.starts < window.end_ns))
        kept = np.ones(len(gpu), dtype=bool)
        threads = profile.table("threads")
        words = dict(zip(*(threads[name].to_pylist() for name in ("thread", "name")), strict=True))
        # What a range launched is shown as a whole, also where it runs outside the window.
        ranges, too_deep = _ranges(profile, whole, window, words)
        return cls(gpu, kept, [*ranges, *_calls(profile, whole, window, words)], too_deep, window)


def _ranges(
    profile: NsysProfile, gpu: Activity, window: Clip | None, words: dict[int, str | None]
) -> tuple[list[_HostRow], int]:
    projection = project(profile, gpu)
    nested = projection.ranges
    start, end = projection.start_ns, projection.end_ns
    inside = np.ones(len(start), dtype=bool)
    if window is not None:
        inside = (end > window.start_ns) & (start < window.end_ns)
    depth, thread = nested.depth[projection.position], nested.thread[projection.position]
    too_deep = int((inside & (depth >= MOST_ROWS_A_THREAD)).sum())
    found = []
    for one in np.unique(thread[inside]).tolist():
        mine = inside & (thread == one)
        for level in range(min(int(depth[mine].max()) + 1, MOST_ROWS_A_THREAD)):
            rows = np.flatnonzero(mine & (depth == level))
            if len(rows):
                found.append(
                    _HostRow(
                        label=f"NVTX · {_thread_name(one, words)}" if not level else f"  depth {level}",
                        thread=one,
                        thread_name=_thread_name(one, words),
                        kind="range",
                        start_ns=start[rows],
                        end_ns=end[rows],
                        name=nested.name[projection.position[rows]].astype(np.int64),
                        words=nested.names,
                        row=np.full(len(rows), NONE, dtype=np.int64),
                        gpu_start_ns=projection.gpu_start_ns[rows],
                        gpu_end_ns=projection.gpu_end_ns[rows],
                        operations=projection.operations[rows],
                    )
                )
    return found, too_deep


def _calls(profile: NsysProfile, gpu: Activity, window: Clip | None, words: dict[int, str | None]) -> list[_HostRow]:
    calls = profile.rows("calls", "name", "start_ns", "duration_ns", "thread", of=processes_of([gpu]))
    start, thread = calls.integers("start_ns"), calls.integers("thread")
    end, name, row = start + calls.integers("duration_ns"), calls.integers("name"), calls.runs.rows()
    inside = np.ones(len(start), dtype=bool)
    if window is not None:
        inside = (end > window.start_ns) & (start < window.end_ns)
    names = profile.names("calls", "name")
    found = []
    for one in np.unique(thread[inside]).tolist():
        own = np.flatnonzero(inside & (thread == one))
        own = own[np.lexsort((-end[own], start[own]))]
        for level, rows in enumerate(_side_by_side(own, start, end)):
            nothing = np.zeros(len(rows), dtype=np.int64)
            found.append(
                _HostRow(
                    label=f"CUDA calls · {_thread_name(one, words)}" if not level else "  calls within calls",
                    thread=one,
                    thread_name=_thread_name(one, words),
                    kind="call",
                    start_ns=start[rows],
                    end_ns=end[rows],
                    name=name[rows],
                    words=names,
                    row=row[rows],
                    gpu_start_ns=nothing,
                    gpu_end_ns=nothing,
                    operations=nothing,
                )
            )
    return found


def _side_by_side(rows: Int64, start: Int64, end: Int64) -> list[Int64]:
    """Rows, by start, in as few layers as nest, the outermost first; what nests deeper than a thread shows is left."""
    found: list[Int64] = []
    while len(rows) and len(found) < MOST_ROWS_A_THREAD:
        reached = np.maximum.accumulate(end[rows])
        outer = np.concatenate([[True], start[rows][1:] >= reached[:-1]])
        found.append(rows[outer])
        rows = rows[~outer]
    return found


def _thread_name(thread: int, words: dict[int, str | None]) -> str:
    return f"{printable(words.get(thread) or 'thread')} {thread & ((1 << PROCESS_BITS) - 1)}"


def _span(rows: Sequence[_GpuRows], window: Clip | None) -> tuple[int, int]:
    """Zero and end of the axis, ns of the capture's clock."""
    if window is not None:
        return window.start_ns, window.end_ns
    starts = [int(each.min()) for one in rows for each in (one.activity.starts, *(h.start_ns for h in one.hosts))]
    ends = [int(each.max()) for one in rows for each in (one.activity.ends, *(h.end_ns for h in one.hosts))]
    return min(starts, default=0), max(ends, default=1)


def _limit(rows: Sequence[_GpuRows], most: int) -> tuple[int, int]:
    """Leave out the shortest until ``most`` are left: (below what length they are left out, how many are)."""
    lengths = [one.activity.ends - one.activity.starts for one in rows]
    lengths += [host.end_ns - host.start_ns for one in rows for host in one.hosts]
    every = np.concatenate([np.empty(0, np.int64), *lengths])
    if len(every) <= most:
        return 0, 0
    shortest = int(np.partition(every, len(every) - most - 1)[len(every) - most - 1]) + 1
    for one in rows:
        one.kept = one.activity.ends - one.activity.starts >= shortest
        one.hosts = [host.take(host.end_ns - host.start_ns >= shortest) for host in one.hosts]
        one.hosts = [host for host in one.hosts if len(host.start_ns)]
    return shortest, int((every < shortest).sum())


def _rank(
    one: _GpuRows,
    profile: NsysProfile,
    rules: Rules,
    axis: tuple[int, int, int],
    signatures: Signatures,
    names: _Names,
    columns: dict[str, list[Int64]],
) -> dict[str, Any]:
    """What the document says of a GPU; its rows go into the columns."""
    zero, last, width = axis
    gpu = one.activity

    def add(name: str, values: Int64) -> int:
        columns.setdefault(name, []).append(np.asarray(values, dtype=np.int64))
        return len(values)

    counts = {"steps": 0, "waits": 0, "bins": _add_bins(gpu, zero, last, width, add)}
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
    counts["kernels"] = add("kernel.id", part.row)
    idle = sorted(gaps(gpu, one.window)[:_MOST_GAPS], key=lambda gap: gap.start_ns)
    nothing = np.zeros(len(idle), dtype=np.int64)
    add("gap.start", np.array([gap.start_ns - zero for gap in idle], dtype=np.int64))
    add("gap.length", np.array([gap.duration_ns for gap in idle], dtype=np.int64))
    add("gap.blocked", nothing)
    counts["gaps"] = add("gap.starved", nothing)
    by_launch = np.argsort(part.launch, kind="stable")
    for host in one.hosts:
        launched = host.operations
        if host.kind == "call":
            place = np.searchsorted(part.launch[by_launch], host.row)
            at = lookup(by_launch, np.where(place < len(part), place, NONE))
            found = (at != NONE) & (lookup(part.launch, at) == host.row)
            launched = np.where(found, at + 1, 0)
        add("host.start", host.start_ns - zero)
        add("host.length", host.end_ns - host.start_ns)
        add("host.name", names.of(host.words, host.name))
        add("host.launched", launched)
        some = (launched > 0) & (host.kind == "range")
        add("host.gpu_start", np.where(some, host.gpu_start_ns - zero, 0))
        add("host.gpu_length", host.gpu_end_ns - host.gpu_start_ns)
    return {
        "rank": gpu.device,
        "stage": None,
        "pipeline": None,
        "replica": None,
        "first_ns": str(zero),
        "length": last - zero,
        "windows": _windows(profile, gpu, rules, zero),
        "hosts": [
            {
                "label": host.label,
                "thread": host.thread_name,
                "thread_id": str(host.thread),
                "kind": host.kind,
                "count": len(host.start_ns),
            }
            for host in one.hosts
        ],
        **counts,
    }


def _add_bins(gpu: Activity, zero: int, last: int, width: int, add: Any) -> int:
    kind = gpu.intervals.kind

    def of(wanted: Kind) -> Any:
        mask = kind == KINDS.index(wanted)
        return union(gpu.starts[mask], gpu.ends[mask])

    nothing = union(np.empty(0, np.int64), np.empty(0, np.int64))
    parts = bins.parts_of(
        {bins.COMPUTATION[-1]: of(Kind.COMPUTATION)}, of(Kind.COMMUNICATION), of(Kind.MEMORY), nothing, nothing
    )
    count = max(-(-(last - zero) // width), 1)
    values = bins.binned(parts, zero, width, count)[:, [bins.PARTS.index(name) for name in _PARTS]]
    add("bins", values.reshape(-1))
    return count


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


def _windows(profile: NsysProfile, gpu: Activity, rules: Rules, zero: int) -> list[dict[str, Any]]:
    """The iterations of the process that used a GPU most, on the host."""
    if not len(gpu):
        return []
    found = iterations_of(profile, gpu, rules)
    rows = zip(found.number.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return [{"step": number, "start": start - zero, "end": end - zero} for number, start, end in rows]


def _notes(rows: Sequence[_GpuRows], shortest: int, left_out: int) -> list[str]:
    notes = []
    if left_out:
        notes.append(
            f"{left_out:,} slices shorter than {shortest / 1e3:,.3f} µs are left out of the close view; the far view "
            "and its bins count all"
        )
    too_deep = sum(one.too_deep for one in rows)
    if too_deep:
        notes.append(f"{too_deep:,} ranges nest deeper than {MOST_ROWS_A_THREAD} rows and are left out")
    return notes
