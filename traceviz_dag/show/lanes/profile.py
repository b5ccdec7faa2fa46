"""The lanes of a profile of Nsight Systems: of each GPU, and of each process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import NOTHING, Intervals, subtract, union
from traceviz_dag.analyze.kernel_intervals import KINDS, KernelIntervals
from traceviz_dag.analyze.nsys.activity import Activity, activities, processes_of
from traceviz_dag.analyze.nsys.iterations import iterations_of
from traceviz_dag.analyze.nsys.launches import queue_depth
from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.rules import Rules
from traceviz_dag.printable import printable
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.profile import MARK, PROCESS_BITS, NsysProfile
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes import words as said
from traceviz_dag.show.lanes.bundle import GPU_PART_KINDS, Bundle, everything, part_rows
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Mark, MarkKind
from traceviz_dag.show.lanes.rows import Changes, LaneRows

MOST_LEVELS = 24
"""Ranges that are nested deeper share one lane."""

OPERATION_NAMES, RANGE_NAMES, CALL_NAMES, SYSTEM_CALL_NAMES = "operations", "ranges", "calls", "system_calls"


def gpu_key(device: int) -> str:
    """Key of the lane of a GPU."""
    return f"gpu:{device}"


def process_key(process: int) -> str:
    """Key of the lane of a process."""
    return f"process:{process}"


def root_bundle(profile: NsysProfile, gpus: Sequence[int] = ()) -> Bundle:
    """The lanes of GPUs and processes alone, without their slices; a process that drives one GPU lies below it.

    Args:
        gpus: only these, and the processes that drive one of them; empty takes all.
    """
    names = {gpu.device: gpu.name for gpu in profile.facts.gpus}
    devices = profile.keys("operations")
    gpus_of: dict[int, set[int]] = {}
    for device in devices:
        for number in _distinct(profile.rows("operations", "process", of=[device]).integers("process")):
            gpus_of.setdefault(number, set()).add(device)
    tables = ("ranges", "calls", "system_calls")
    processes = sorted({key for table in tables for key in profile.keys(table)})
    bundle = Bundle()
    if gpus:
        devices = [device for device in devices if device in gpus]
        processes = [number for number in processes if gpus_of.get(number, set()) & set(gpus)]
    for device in devices:
        label = said.gpu_label(device, names.get(device))
        bundle.lanes.append(Lane(gpu_key(device), label, None, LaneKind.GPU, holds_lanes=True))
    for process in processes:
        own = gpus_of.get(process, set())
        parent = gpu_key(next(iter(own))) if len(own) == 1 else None
        label = process_label(process)
        bundle.lanes.append(Lane(process_key(process), label, parent, LaneKind.PROCESS, holds_lanes=True))
    return bundle


def gpu_bundle(profile: NsysProfile, rules: Rules, device: int) -> Bundle:
    """The lanes of one GPU: parts of its time, streams, gaps, how much is queued and allocated; its iterations."""
    activity = activities(profile, rules, [device])[0]
    bundle, key = Bundle(), gpu_key(device)
    found = gpu_parts(activity.intervals)
    lane = Lane(key, said.gpu_label(device), None, LaneKind.GPU, holds_lanes=True)
    bundle.add(lane, part_rows(found, GPU_PART_KINDS), GPU_PART_KINDS)
    add_gpu_lanes(bundle, profile, activity, everything(found))
    add_metrics(bundle, profile, device)
    bundle.marks = iteration_marks(profile, activity, rules)
    return bundle


def add_gpu_lanes(bundle: Bundle, profile: NsysProfile, activity: Activity, busy: Intervals) -> None:
    """The streams of a GPU, its idle times, and how much is queued and allocated.

    Args:
        busy: the union of its operations.
    """
    key = gpu_key(activity.device)
    for stream in _distinct(activity.stream):
        rows = np.flatnonzero(activity.stream == stream)
        found = LaneRows.of(
            activity.starts[rows],
            activity.ends[rows],
            activity.intervals.kind[rows],
            activity.name[rows],
            activity.row[rows],
        )
        number = None if stream == MISSING else stream
        lane = Lane(f"{key}/stream:{stream}", said.stream_label(number), key, LaneKind.STREAM, len(rows))
        bundle.add(lane, found, KINDS, OPERATION_NAMES)
    returned = _returns(profile, activity)
    idle = _idle(activity, busy, returned)
    bundle.add(Lane(f"{key}/gaps", said.IDLE, key, LaneKind.GAPS, len(idle)), idle, said.GAP_KINDS)
    known = returned != MISSING
    if known.any():
        changes = Changes.of(*queue_depth(returned[known], activity.starts[known]))
        lane = Lane(f"{key}/queue", said.QUEUE, key, LaneKind.COUNTER, len(changes), unit="operations")
        bundle.add_counter(lane, changes)
    memory = _memory(profile, activity.device)
    if len(memory):
        lane = Lane(f"{key}/memory", said.FROM_DRIVER, key, LaneKind.COUNTER, len(memory), unit="bytes")
        bundle.add_counter(lane, memory)


def add_metrics(bundle: Bundle, profile: NsysProfile, device: int) -> None:
    """What was sampled of a GPU, by name: utilisation, bandwidths, clocks."""
    rows, key = profile.rows("metrics", "time_ns", "device", "metric", "value"), gpu_key(device)
    names = profile.names("metrics", "metric")
    time, mine = rows.integers("time_ns"), rows["device"] == device
    for code in sorted(_distinct(rows["metric"][mine]), key=lambda code: names[code]):
        chosen = np.flatnonzero(mine & (rows["metric"] == code))
        chosen = chosen[np.argsort(time[chosen], kind="stable")]
        changes = Changes.of(time[chosen], rows.integers("value")[chosen])
        label = printable(names[code])
        bundle.add_counter(Lane(f"{key}/metric:{code}", label, key, LaneKind.COUNTER, len(changes)), changes)


@dataclass(frozen=True, slots=True, eq=False)
class HostLane:
    """A lane of a thread; ``words`` is the table that its names are from."""

    lane: Lane
    rows: LaneRows
    kinds: tuple[str, ...]
    words: str


def process_bundle(profile: NsysProfile, process: int) -> Bundle:
    """The lanes of one process: per thread its NVTX ranges by level, its calls of CUDA, and of the operating system."""
    bundle, key = Bundle(), process_key(process)
    bundle.lanes.append(Lane(key, process_label(process), None, LaneKind.PROCESS))
    for head, lanes in host_lanes(profile, process):
        bundle.lanes.append(head)
        for one in lanes:
            bundle.add(one.lane, one.rows, one.kinds, one.words)
    return bundle


def host_lanes(
    profile: NsysProfile, process: int, calls: Sequence[str] = (CALL_NAMES, SYSTEM_CALL_NAMES)
) -> Iterator[tuple[Lane, list[HostLane]]]:
    """The lane of each thread of a process, and the lanes below it.

    Args:
        calls: tables of calls that are shown.
    """
    key = process_key(process)
    by_thread: dict[int, list[HostLane]] = {}
    for thread, lane, rows in _range_lanes(profile, process, key):
        by_thread.setdefault(thread, []).append(HostLane(lane, rows, said.RANGE_KINDS, RANGE_NAMES))
    for table in calls:
        kind, label = _CALLS[table]
        for thread, rows in _calls(profile, table, process):
            above = _thread_key(key, thread)
            lane = Lane(f"{above}/{kind.value}", label, above, kind, len(rows))
            by_thread.setdefault(thread, []).append(HostLane(lane, rows, said.CALL_KINDS, table))
    names = _thread_names(profile)
    for thread, lanes in sorted(by_thread.items()):
        label = said.thread_label(_number(thread), names.get(thread))
        yield Lane(_thread_key(key, thread), label, key, LaneKind.THREAD, holds_lanes=True), lanes


_CALLS = {
    CALL_NAMES: (LaneKind.CALLS, said.CALLS),
    SYSTEM_CALL_NAMES: (LaneKind.SYSTEM_CALLS, said.SYSTEM_CALLS),
}


def gpu_parts(intervals: KernelIntervals) -> dict[str, Intervals]:
    """What a GPU did, as ``GPU_PART_KINDS``: without phases all computation is one part, and no wait is known."""
    computes, communicates, moves = (
        union(intervals.time.starts[mask], intervals.time.ends[mask])
        for mask in (intervals.computes(), intervals.communicates(), intervals.moves_memory())
    )
    computation = parts.COMPUTATION[-1]
    found = parts.parts_of({computation: computes}, communicates, moves, NOTHING, NOTHING)
    untold, hidden, alone = (found[name] for name in (parts.EXPOSED_UNTOLD, parts.HIDDEN, parts.MEMORY_ALONE))
    return dict(zip(GPU_PART_KINDS, (found[computation], untold, hidden, alone), strict=True))


def process_label(process: int) -> str:
    """The lane of a process."""
    return f"process {_number(process)}"


def _number(of: int) -> int:
    """The number of a process or thread, as the operating system gives it."""
    return of & ((1 << PROCESS_BITS) - 1)


def _returns(profile: NsysProfile, activity: Activity) -> Int64:
    """When the call that launched each operation returned; MISSING where none is recorded."""
    calls = profile.rows("calls", "start_ns", "duration_ns", of=processes_of([activity]))
    call = calls.place(activity.launch)
    return np.where(
        call == NONE, MISSING, lookup(calls.integers("start_ns"), call) + lookup(calls.integers("duration_ns"), call)
    )


def _idle(activity: Activity, busy: Intervals, returned: Int64) -> LaneRows:
    """Times from the first to the last operation in which none ran; ``source`` is the row of the one that ends it."""
    if not len(busy.starts):
        return LaneRows.of(*NOTHING)
    whole = Intervals(busy.starts[:1], busy.ends[-1:])
    idle = subtract(whole, busy)
    # Of the operations that start where a gap ends, the first one in the table.
    ends = np.searchsorted(activity.starts, idle.ends, side="left")
    starved = np.clip(returned[ends], idle.starts, idle.ends) - idle.starts
    mostly = (returned[ends] != MISSING) & (2 * starved >= idle.ends - idle.starts)
    kind = np.where(mostly, said.GAP_KINDS.index(said.STARVED), said.GAP_KINDS.index(said.UNEXPLAINED))
    return LaneRows.of(idle.starts, idle.ends, kind, source=activity.row[ends])


def _memory(profile: NsysProfile, device: int) -> Changes:
    """What the driver holds on a GPU since the capture began."""
    rows = profile.rows("memory", "time_ns", "device", "bytes", "released")
    mine = rows["device"] == device
    step = np.where(rows["released"][mine] != 0, -rows.integers("bytes")[mine], rows.integers("bytes")[mine])
    return Changes.of_steps(rows.integers("time_ns")[mine], step)


def iteration_marks(profile: NsysProfile, activity: Activity, rules: Rules) -> list[Mark]:
    """The iterations of the process that used a GPU most, on the host; none without operations."""
    if not len(activity):
        return []
    found = iterations_of(profile, activity, rules)
    # It may hold the name of a range.
    source = printable(found.source)
    columns = zip(found.number.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return [
        Mark(
            MarkKind.ITERATION,
            start,
            end,
            f"iteration {number}",
            gpu_key(activity.device),
            number=number,
            evidence=source,
        )
        for number, start, end in columns
    ]


def _range_lanes(profile: NsysProfile, process: int, key: str) -> list[tuple[int, Lane, LaneRows]]:
    rows = profile.rows("ranges", "name", "kind", "start_ns", "end_ns", "thread", "operator", "path", of=[process])
    if not len(rows):
        return []
    depths = profile.rows("paths", "depth").integers("depth")
    path, thread, is_mark = rows.integers("path"), rows.integers("thread"), rows["kind"] == MARK
    level = np.minimum(lookup(depths, path, NONE), MOST_LEVELS)
    kind = np.where(is_mark, 2, rows["operator"].astype(np.int8))
    source, starts, ends = rows.runs.rows(), rows.integers("start_ns"), rows.integers("end_ns")
    found = []
    for one in _distinct(thread):
        above = _thread_key(key, one)
        mine = np.flatnonzero(thread == one)
        for depth in _distinct(level[mine]):
            for marks in (False, True):
                chosen = mine[(level[mine] == depth) & (is_mark[mine] == marks)]
                if not len(chosen):
                    continue
                name, label = _range_lane(depth, marks)
                made = LaneRows.of(starts[chosen], ends[chosen], kind[chosen], rows["name"][chosen], source[chosen])
                lane = Lane(f"{above}/{name}", label, above, LaneKind.RANGES, len(chosen), level=max(depth, 0))
                found.append((one, lane, made))
    return found


def _range_lane(depth: int, marks: bool) -> tuple[str, str]:
    if marks:
        return "marks", said.MARKS
    if depth == NONE:
        return "ranges:across", said.ACROSS
    return f"ranges:{depth}", said.ranges_label(depth, MOST_LEVELS)


def _calls(profile: NsysProfile, table: str, process: int) -> list[tuple[int, LaneRows]]:
    rows = profile.rows(table, "name", "start_ns", "duration_ns", "thread", of=[process])
    if not len(rows):
        return []
    kinds = np.array([_call_kind(name) for name in profile.names(table, "name")], np.int8)
    thread, start, source = rows.integers("thread"), rows.integers("start_ns"), rows.runs.rows()
    end = start + rows.integers("duration_ns")
    found = []
    for one in _distinct(thread):
        mine = np.flatnonzero(thread == one)
        name = rows["name"][mine]
        found.append((one, LaneRows.of(start[mine], end[mine], kinds[name], name, source[mine])))
    return found


def _call_kind(name: str) -> int:
    if "Launch" in name:
        return said.CALL_KINDS.index("launch_call")
    if "Synchronize" in name or "Wait" in name:
        return said.CALL_KINDS.index("synchronization")
    return said.CALL_KINDS.index("memory_call" if "Mem" in name or "Alloc" in name or "Free" in name else "call")


def _thread_key(process: str, thread: int) -> str:
    return f"{process}/thread:{thread}"


def _thread_names(profile: NsysProfile) -> dict[int, str | None]:
    rows = profile.rows("threads", "thread", "name")
    words = profile.store.words("threads", "name")
    return {
        thread: words[code] if code < len(words) else None
        for thread, code in zip(rows.integers("thread").tolist(), rows["name"].tolist(), strict=True)
    }


def _distinct(values: npt.NDArray[np.integer]) -> Sequence[int]:
    return np.unique(values).tolist()
