"""Gaps of a rank's computation, each split into blocked, starved and unexplained time: the table ``gpu_gaps``.

A gap ends when a computation kernel starts. That waited for the operation before it on its stream, for a kernel of
another stream, or for what its host waited for before launching it; take what ended last. Where that began within the
gap, its beginning cuts the gap, and the piece before it is looked at in the same way. So each *piece* ends with the
start of an operation X. It is *blocked* while what X waited for runs, then *starved* until the call that launched X has
returned and the launch has had the time that it takes to reach the GPU: this could have run X and had not been given
it. The rest is *unexplained*. A gap that no computation ends is blocked while anything runs, then starved. Everything
adds up: the parts to the piece, the pieces to the gap, and the gaps of a window to the window less its computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.gaps.host_work import Host, host_of, longest_within
from traceviz_dag.analyze.intervals import Intervals, clip, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes, holds
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import NONE, Bool, Int64, distinct, lookup
from traceviz_dag.classify.columns import coded, integers, labelled
from traceviz_dag.classify.launches import main_thread
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.read.host_tree import innermost
from traceviz_dag.tables import GPU_GAPS
from traceviz_dag.vocabulary import CPU_DEVICE, HostWork, Kind, SynchronizationKind

JUST_BEFORE_NS = 20_000
"""A kernel that starts so soon after a communication or copy, and was not launched after its end, waited for it."""

LATENCY_QUANTILE = 0.01
"""Quantile of the time from the start of a launch to that of its kernel that the way to the GPU takes."""

FEWEST_LAUNCHES = 100
"""Launches that show it; with fewer it counts as none."""

LONGEST_CHAIN = 64
"""Operations that are followed back from the end of a gap, each of which waited for the one before."""

_EVIDENCES = ("order", "recorded", "inferred")
_ORDER, _RECORDED, _INFERRED = range(3)
_COLUMNS = (
    *("kernel_id", "start_ns", "duration_ns", "device", "stream", "kind"),
    *("launch_start_ns", "launch_duration_ns", "launch_thread"),
)


@dataclass(frozen=True, slots=True)
class _Operations:
    """Kernels and memory operations of one device, by start.

    Attributes:
        launch_ns, launched_ns: start and return of the call that launched each. arrived_ns: when the launch can have
            reached the GPU. All three are MISSING without a launch row.
    """

    kernel_id: Int64
    start_ns: Int64
    end_ns: Int64
    stream: Int64
    computes: Bool
    launch_ns: Int64
    launched_ns: Int64
    arrived_ns: Int64
    thread: Int64


@dataclass(frozen=True, slots=True)
class _Waits:
    """What ended last of what each gap's kernel waited for.

    Attributes:
        producer: its place among the operations; NONE where nothing did. evidence: place in ``_EVIDENCES``.
        until_ns: its end; MISSING where there is none.
        synchronization: row of the table ``synchronizations`` of the host's wait; NONE where there is none.
    """

    producer: Int64
    evidence: Int64
    until_ns: Int64
    synchronization: Int64


@dataclass(frozen=True, slots=True)
class _Clues:
    """What shows what operations of a device waited for.

    Attributes:
        main: id of the thread that runs the training loop; MISSING where it is unknown.
        before: per operation, the one before it on its stream; NONE for the first.
        waiting, waited_for: operations of the waits between streams, by the end of what was waited for.
        host_row: rows of the table ``synchronizations`` in which the host waited, by when they returned; with
            ``host_returned``, their threads, and the operation waited for, NONE where that is unknown.
        others: communication and memory operations, by their end.
    """

    operations: _Operations
    main: int
    before: Int64
    waiting: Int64
    waited_for: Int64
    host_row: Int64
    host_returned: Int64
    host_thread: Int64
    host_waited_for: Int64
    others: Int64


def gpu_gaps_table(
    trace: TraceEvents,
    stacked: Int64,
    kernels: pa.Table,
    windows: Sequence[tuple[int, int, int]],
    synchronizations: pa.Table,
) -> pa.Table:
    """Find and split the gaps of one rank.

    Args:
        trace: its events. stacked: rows of the host that call stacks are made of, as ``Classification`` has them.
        kernels: table ``kernels`` of the whole file, as what runs in a window may be of another step; or of the
            iteration where there are no windows.
        windows: (number, start_ns, end_ns) of each ProfilerStep; without one, the kernels' own span is taken.
        synchronizations: table ``synchronizations``.

    Returns:
        The table ``gpu_gaps``, by device, window and start; no rows where the trace has no kernels of a GPU.
    """
    columns = kernels.select(_COLUMNS)
    devices = [name for name in codes(columns, "device")[1] if name != CPU_DEVICE]
    if not devices:
        return GPU_GAPS.schema.empty_table()
    main = main_thread(trace)
    found = []
    for device in devices:
        mine = _operations(columns.filter(pa.array(holds(columns, "device", device))))
        clues = _clues(mine, synchronizations, _thread_id(trace, main))
        if windows:
            chosen = [("step", *window) for window in windows]
        else:
            chosen = [("kernels", MISSING, int(mine.start_ns.min()), int(mine.end_ns.max()))]
        for name, step, begin, end in chosen:
            found.append(_split_gaps(clues, synchronizations, (device, name, step), (begin, end)))
    host = host_of(trace, stacked, main, _looked_at(found, synchronizations))
    return pa.concat_tables(_rows(trace, host, each, synchronizations) for each in found).unify_dictionaries()


def _operations(table: pa.Table) -> _Operations:
    table = table.sort_by([("start_ns", "ascending"), ("kernel_id", "ascending")])
    values = {name: optional_integers(table, name) for name in _COLUMNS if name not in ("device", "kind")}
    launch, length = values["launch_start_ns"], values["launch_duration_ns"]
    known = np.flatnonzero((launch != MISSING) & (length != MISSING))
    launched = np.where((launch == MISSING) | (length == MISSING), launch, launch + length)
    latency = 0
    if len(known) >= FEWEST_LAUNCHES:
        least = np.quantile((values["start_ns"] - launch)[known], LATENCY_QUANTILE, method="lower")
        latency = max(int(least), 0)
    return _Operations(
        values["kernel_id"],
        values["start_ns"],
        values["start_ns"] + values["duration_ns"],
        values["stream"],
        holds(table, "kind", Kind.COMPUTATION.value),
        launch,
        launched,
        np.where(launch == MISSING, MISSING, np.maximum(launched, launch + latency)),
        values["launch_thread"],
    )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces of gaps: what ends each, and what that waited for."""

    starts: Int64
    ends: Int64
    operation: Int64
    waits: _Waits

    def take(self, rows: Int64 | Bool) -> _Pieces:
        """Some of them."""
        waits = self.waits
        chosen = _Waits(waits.producer[rows], waits.evidence[rows], waits.until_ns[rows], waits.synchronization[rows])
        return _Pieces(self.starts[rows], self.ends[rows], self.operation[rows], chosen)


@dataclass(frozen=True, slots=True)
class _SplitGaps:
    """The pieces of the gaps of one window of a device, and where they are split.

    Attributes:
        place: device, name and number of the window.
        blocked_until, starved_until: of each piece, ns.
        thread_id: of the host, which shows what it did while a piece starved.
        host_wait: row of the table ``synchronizations`` of the host's wait that returned in it; NONE where none did.
    """

    place: tuple[str, str, int]
    operations: _Operations
    pieces: _Pieces
    blocked_until: Int64
    starved_until: Int64
    thread_id: Int64
    host_wait: Int64


def _split_gaps(
    clues: _Clues, synchronizations: pa.Table, place: tuple[str, str, int], window: tuple[int, int]
) -> _SplitGaps:
    operations = clues.operations
    busy = union(operations.start_ns[operations.computes], operations.end_ns[operations.computes])
    starts, ends = subtract(Intervals(np.array([window[0]]), np.array([window[1]])), clip(busy, *window))
    computing = np.flatnonzero(operations.computes & (operations.end_ns > operations.start_ns))
    position = np.searchsorted(operations.start_ns[computing], ends)
    followed = np.flatnonzero(position < len(computing))
    ended_by = np.full(len(ends), NONE)
    ended_by[followed] = computing[position[followed]]
    # The last gap of a window goes on until a kernel after it starts, which may have been launched long before.
    ends[followed] = operations.start_ns[ended_by[followed]]
    pieces = _chains(clues, Intervals(starts, ends), ended_by)
    pieces = pieces.take(pieces.starts < window[1])
    pieces = replace(pieces, ends=np.minimum(pieces.ends, window[1]))
    starts, ends, operation = pieces.starts, pieces.ends, pieces.operation
    launched = np.where(operation == NONE, ends, lookup(operations.arrived_ns, operation, MISSING))
    blocked_until = np.clip(pieces.waits.until_ns, starts, ends)
    starved_until = np.where(launched != MISSING, np.clip(launched, blocked_until, ends), blocked_until)
    thread_id = np.where(operation == NONE, clues.main, lookup(operations.thread, operation, MISSING))
    host_wait = _returned_by(synchronizations, pieces.waits.synchronization, ends)
    return _SplitGaps(place, operations, pieces, blocked_until, starved_until, thread_id, host_wait)


def _looked_at(found: Sequence[_SplitGaps], synchronizations: pa.Table) -> Intervals:
    """The times at which rows ask what the host did."""
    waits = [_values(synchronizations, "start_ns", each.host_wait[each.host_wait != NONE]) for each in found]
    starts = np.concatenate([*(each.blocked_until for each in found), *waits])
    ends = np.concatenate([*(each.starved_until for each in found), *(begin + 1 for begin in waits)])
    return union(starts, ends)


def _rows(trace: TraceEvents, host: Host, split: _SplitGaps, synchronizations: pa.Table) -> pa.Table:
    """The rows of a window, with what the host did while its pieces starved."""
    operations, pieces = split.operations, split.pieces
    blocked_until, starved_until = split.blocked_until, split.starved_until
    numbers = np.array([thread.thread_id for thread in trace.threads], np.int64)
    row, doing_ns = longest_within(host, _thread_index(numbers, split.thread_id), blocked_until, starved_until)
    blocked = blocked_until > pieces.starts
    around, of_framework = _around(host, numbers, synchronizations, split.host_wait)
    count = len(pieces.starts)
    return GPU_GAPS.from_columns(
        {
            "device": [split.place[0]] * count,
            "window_name": [split.place[1]] * count,
            "step": integers(np.full(count, split.place[2])),
            "start_ns": pieces.starts,
            "duration_ns": pieces.ends - pieces.starts,
            "kernel_id": integers(lookup(operations.kernel_id, pieces.operation, MISSING)),
            "blocked_ns": blocked_until - pieces.starts,
            "starved_ns": starved_until - blocked_until,
            "unexplained_ns": pieces.ends - starved_until,
            "producer_kernel_id": integers(
                lookup(operations.kernel_id, np.where(blocked, pieces.waits.producer, NONE), MISSING)
            ),
            "producer_evidence": labelled(np.where(blocked, pieces.waits.evidence, NONE), _EVIDENCES),
            "thread": integers(split.thread_id),
            "doing": coded(lookup(host.name, row, 0), host.strings),
            "doing_ns": integers(np.where(row == NONE, MISSING, doing_ns)),
            "host_work": labelled(lookup(host.work, row), tuple(HostWork)),
            "caller": coded(lookup(host.name, lookup(host.caller, row), 0), host.strings),
            "synchronization_id": integers(_values(synchronizations, "synchronization_id", split.host_wait)),
            "synchronization_caller": coded(lookup(host.name, around, 0), host.strings),
            "of_framework": of_framework,
        }
    )


def _chains(clues: _Clues, gaps: Intervals, ended_by: Int64) -> _Pieces:
    """Cut each gap where something began that what ends the gap waited for, and so on for what that waited for."""
    found = []
    starts, ends = gaps
    operation = ended_by
    for _ in range(LONGEST_CHAIN):
        waits = _waited_for(clues, Intervals(starts, ends), operation)
        began = lookup(clues.operations.start_ns, waits.producer, MISSING)
        cut = np.maximum(starts, np.where(waits.producer == NONE, starts, began))
        found.append(_Pieces(cut, ends, operation, waits))
        further = np.flatnonzero(cut > starts)
        starts, ends, operation = starts[further], cut[further], waits.producer[further]
        if not len(further):
            break
    else:
        # What lies before the last of a chain is not looked into.
        nothing = np.full(len(starts), NONE)
        found.append(_Pieces(starts, ends, operation, _Waits(nothing, nothing, starts, nothing)))
    waited = [each.waits for each in found]
    pieces = _Pieces(
        np.concatenate([each.starts for each in found]),
        np.concatenate([each.ends for each in found]),
        np.concatenate([each.operation for each in found]),
        _Waits(
            np.concatenate([each.producer for each in waited]),
            np.concatenate([each.evidence for each in waited]),
            np.concatenate([each.until_ns for each in waited]),
            np.concatenate([each.synchronization for each in waited]),
        ),
    )
    # What began where the gap ends, or took no time, cuts nothing off.
    kept = np.flatnonzero(pieces.ends > pieces.starts)
    return pieces.take(kept[np.argsort(pieces.starts[kept], kind="stable")])


def _waited_for(clues: _Clues, gaps_at: Intervals, kernel: Int64) -> _Waits:
    """Per gap, what ended last, within it, of what its kernel waited for."""
    operations = clues.operations
    starts, ends = gaps_at
    producer, evidence = np.full(len(starts), NONE), np.full(len(starts), NONE)
    until = np.full(len(starts), MISSING)

    def offer(gap: Int64, candidate: Int64, kind: int) -> None:
        """Take candidates that end later than what is known so far, and inside the gap."""
        end = lookup(operations.end_ns, candidate, MISSING)
        later = (end > until[gap]) & (end > starts[gap]) & (end <= ends[gap])
        producer[gap[later]], evidence[gap[later]] = candidate[later], kind
        until[gap[later]] = end[later]

    there = np.flatnonzero(kernel != NONE)
    offer(there, clues.before[kernel[there]], _ORDER)
    gap_of = np.full(len(operations.kernel_id), NONE)
    gap_of[kernel[there]] = there
    waits = np.flatnonzero(gap_of[clues.waiting] != NONE)
    offer(gap_of[clues.waiting[waits]], clues.waited_for[waits], _RECORDED)
    last, known = _last_host_waits(clues, gaps_at, kernel)
    gaps = np.flatnonzero(known != NONE)
    offer(gaps, clues.host_waited_for[known[gaps]], _ORDER)
    offer(there, _ended_just_before(clues, starts[there], ends[there], kernel[there]), _INFERRED)
    for gap in np.flatnonzero(kernel == NONE).tolist():
        # What no computation ends, at the end of a window, is blocked while anything still runs.
        runs = clues.others[operations.start_ns[clues.others] < ends[gap]]
        if len(runs) and operations.end_ns[runs].max() > starts[gap]:
            producer[gap], evidence[gap] = runs[operations.end_ns[runs].argmax()], _INFERRED
            until[gap] = min(operations.end_ns[producer[gap]], ends[gap])
    return _Waits(producer, evidence, np.where(until == MISSING, starts, until), lookup(clues.host_row, last))


def _clues(operations: _Operations, synchronizations: pa.Table, main: int) -> _Clues:
    order = np.lexsort((np.arange(len(operations.stream)), operations.stream))
    before = np.full(len(order), NONE)
    same = np.flatnonzero(np.diff(operations.stream[order]) == 0) + 1
    before[order[same]] = order[same - 1]
    streams = holds(synchronizations, "kind", SynchronizationKind.STREAM_WAIT.value)
    waiting, waited_for = (
        _places(operations, optional_integers(synchronizations, f"{which}_kernel_id"))
        for which in ("waiting", "waited_for")
    )
    waits = np.flatnonzero(streams & (waiting != NONE) & (waited_for != NONE))
    # One wait at a time can be the latest of its gap; so in the order of their ends.
    waits = waits[np.argsort(operations.end_ns[waited_for[waits]], kind="stable")]
    begin, length = (optional_integers(synchronizations, name) for name in ("start_ns", "duration_ns"))
    host = np.flatnonzero(~streams & (begin != MISSING) & (length != MISSING))
    host = host[np.argsort(begin[host] + length[host], kind="stable")]
    others = np.flatnonzero(~operations.computes)
    return _Clues(
        operations,
        main,
        before,
        waiting[waits],
        waited_for[waits],
        host,
        begin[host] + length[host],
        optional_integers(synchronizations, "thread")[host],
        waited_for[host],
        others[np.argsort(operations.end_ns[others], kind="stable")],
    )


def _last_host_waits(clues: _Clues, gaps_at: Intervals, kernel: Int64) -> tuple[Int64, Int64]:
    """Per gap, the last wait of the host that returned in it, before the launch, or NONE; and the last of those of
    which it is known what they waited for."""
    operations = clues.operations
    starts, ends = gaps_at
    last, known = np.full((2, len(starts)), NONE)
    launch = np.where(kernel == NONE, ends, lookup(operations.launch_ns, kernel, MISSING))
    mine = lookup(operations.thread, kernel, clues.main)
    for one in distinct(mine).tolist():
        # The backward pass runs on a thread of its own, and begins when the main thread lets it.
        seen = (clues.host_thread == one) | (clues.host_thread == clues.main)
        gaps = ((mine == one) & (launch != MISSING)).nonzero()[0]
        for result, chosen in ((last, seen), (known, seen & (clues.host_waited_for != NONE))):
            waits = chosen.nonzero()[0]
            if len(waits):
                returned = clues.host_returned[waits]
                position = returned.searchsorted(launch[gaps], side="right") - 1
                found = (position >= 0) & (returned[np.maximum(position, 0)] > starts[gaps])
                result[gaps[found]] = waits[position[found]]
    return last, known


def _ended_just_before(clues: _Clues, starts: Int64, ends: Int64, kernel: Int64) -> Int64:
    """Per gap, the communication or copy that ends within it just before its kernel starts.

    It is none where the kernel was launched after that end. Without a launch row it may be: the launch of a kernel that
    ran long after it is often before the trace begins.
    """
    operations, others = clues.operations, clues.others
    found = np.full(len(starts), NONE)
    if not len(others):
        return found
    position = np.searchsorted(operations.end_ns[others], ends, side="right") - 1
    candidate = np.where(position >= 0, others[np.maximum(position, 0)], NONE)
    end = lookup(operations.end_ns, candidate, MISSING)
    launched = lookup(operations.launched_ns, kernel, MISSING)
    waits = (end > starts) & (ends - end <= JUST_BEFORE_NS) & ((launched == MISSING) | (launched <= end))
    found[waits] = candidate[waits]
    return found


def _returned_by(synchronizations: pa.Table, rows: Int64, ends: Int64) -> Int64:
    """The waits of the host that returned by a time each; NONE for the others."""
    begin, length = _values(synchronizations, "start_ns", rows), _values(synchronizations, "duration_ns", rows)
    return np.where((rows != NONE) & (begin + np.maximum(length, 0) <= ends), rows, NONE)


def _around(host: Host, numbers: Int64, synchronizations: pa.Table, rows: Int64) -> tuple[Int64, pa.Array]:
    """The caller of each wait of the host, and whether it is Megatron's own code."""
    begin = _values(synchronizations, "start_ns", rows)
    thread = _thread_index(numbers, _values(synchronizations, "thread", rows))
    inner = np.full(len(rows), NONE)
    there = np.flatnonzero((rows != NONE) & (thread != NONE) & (begin != MISSING))
    if len(there) and len(host.tree):
        inner[there] = innermost(host.tree, thread[there].astype(np.int32), begin[there])
    caller = lookup(host.caller, inner)
    operator = lookup(host.tree.parent, inner)
    stacks = caller != NONE
    own = host.framework[np.maximum(caller, 0)] & stacks if len(host.tree) else stacks
    return np.where(stacks, caller, np.where(operator == NONE, inner, operator)), pa.array(own, mask=~stacks)


def _thread_id(trace: TraceEvents, thread: int) -> int:
    """The id of a thread of the trace; MISSING for none."""
    return trace.threads[thread].thread_id if thread != NONE else MISSING


def _thread_index(numbers: Int64, thread_id: Int64) -> Int64:
    """The index of each thread in the trace; NONE where it has none."""
    if not len(numbers):
        return np.full(len(thread_id), NONE)
    order = np.argsort(numbers, kind="stable")
    place = order[np.minimum(np.searchsorted(numbers[order], thread_id), len(numbers) - 1)]
    return np.where(numbers[place] == thread_id, place, NONE)


def _places(operations: _Operations, kernel_id: Int64) -> Int64:
    """The place of each kernel among the operations; NONE where it is not there."""
    order = np.argsort(operations.kernel_id, kind="stable")
    known = operations.kernel_id[order]
    place = np.minimum(np.searchsorted(known, kernel_id), max(len(known) - 1, 0))
    return np.where(known[place] == kernel_id, order[place], NONE) if len(known) else np.full(len(kernel_id), NONE)


def _values(table: pa.Table, name: str, rows: Int64) -> Int64:
    return lookup(optional_integers(table, name), rows, MISSING)
