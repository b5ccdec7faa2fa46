"""Which operation a synchronisation waits for, and which one waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.synchronizations.enqueue_order import HostCalls, StreamOrder
from traceviz_dag.classify.synchronizations.event_records import FAULTS as RECORD_FAULTS
from traceviz_dag.classify.synchronizations.event_records import EventRecords, event_records
from traceviz_dag.classify.synchronizations.found import COPY, Found
from traceviz_dag.read.events import (
    DEVICE_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    MISSING,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
    DeviceRows,
    TraceEvents,
)

NO_ROW = "no row of the profiler"
NO_CALL = "no row of the host call"
NOTHING_BEFORE = "nothing launched before"
NOTHING_AFTER = "nothing launched after"
AT_ONCE = "another thread launches on the stream at that moment"
UNTOLD = "an operation beside it on the stream has no launch row"
OUT_OF_ORDER = "the stream ran operations in another order than they were launched in"
SEVERAL_GPUS = "several GPUs may be meant"
ELSEWHERE = "it waits for a GPU without operations in the trace"
FAULTS = (
    *RECORD_FAULTS,
    *(NO_ROW, NO_CALL, NOTHING_BEFORE, NOTHING_AFTER, AT_ONCE, UNTOLD, OUT_OF_ORDER, SEVERAL_GPUS, ELSEWHERE),
)
"""Why an operation is not known."""


@dataclass(slots=True)
class Answers:
    """An operation for each of some questions.

    Attributes:
        row: row of ``DeviceRows``, or NONE.
        fault: index into FAULTS, or NONE.
    """

    row: Int64
    fault: Int64

    @classmethod
    def none(cls, count: int) -> Answers:
        """No operation, and not yet a fault."""
        return cls(np.full(count, NONE, np.int64), np.full(count, NONE, np.int64))

    def fail(self, which: Bool, fault: str) -> None:
        """Say why some have no operation; what was said before stays."""
        self.fault[which & (self.fault == NONE)] = FAULTS.index(fault)

    def take(self, at: Int64, others: Answers) -> None:
        """Fill in the answers to some of the questions."""
        self.row[at], self.fault[at] = others.row, others.fault

    def is_open(self) -> Bool:
        """Which are without a fault."""
        return self.fault == NONE


class Streams:
    """The operations of a trace by stream, in the order in which they were put on it."""

    def __init__(self, device: DeviceRows, launches: Launches, calls: HostCalls) -> None:
        self.device, self.launches, self.calls = device, launches, calls
        self.gpus: list[int] = distinct(device.device).tolist()
        self._orders: dict[tuple[int, int], StreamOrder] = {}

    def of_gpu(self, gpu: int) -> list[int]:
        """The streams of a GPU."""
        return distinct(self.device.stream[self.device.device == gpu]).tolist()

    def gpus_with(self, stream: int) -> list[int]:
        """The GPUs that have a stream of this number."""
        return distinct(self.device.device[self.device.stream == stream]).tolist()

    def before(self, gpu: int, stream: int, call: Int64) -> Answers:
        """The last operation on a stream before each host call, or launched by it."""
        order, last, _, answers = self._around(gpu, stream, call)
        answers.fail(last < 0, NOTHING_BEFORE)
        told = answers.is_open()
        answers.row[told] = order.row[last[told]]
        return answers

    def after(self, gpu: int, stream: int, call: Int64) -> Answers:
        """The first operation on a stream after each host call."""
        order, _, first, answers = self._around(gpu, stream, call)
        answers.fail(first >= len(order.row), NOTHING_AFTER)
        told = answers.is_open()
        answers.row[told] = order.row[first[told]]
        return answers

    def _around(self, gpu: int, stream: int, call: Int64) -> tuple[StreamOrder, Int64, Int64, Answers]:
        """What ``StreamOrder.around`` says of some calls, and answers that say where it is unsure."""
        key = (gpu, stream)
        if key not in self._orders:
            rows = np.flatnonzero((self.device.stream == stream) & (self.device.device == gpu))
            self._orders[key] = StreamOrder.of(self.device, self.launches, self.calls, rows)
        order = self._orders[key]
        last, first = order.around(self.calls, call)
        answers = Answers.none(len(call))
        launched = np.append(order.rank != NONE, True)
        unsure = first > last + 1
        answers.fail(first < last + 1, OUT_OF_ORDER)
        answers.fail(unsure & ~(launched[last + 1] & launched[first - 1]), UNTOLD)
        answers.fail(unsure, AT_ONCE)
        return order, last, first, answers


@dataclass(frozen=True, slots=True)
class Places:
    """Where each synchronisation waits and what for; MISSING where unknown, and where there is no such thing.

    Attributes:
        gpu, stream: that waits, or that the host waits for; ``stream`` is MISSING for a whole GPU.
        records: of the events that are waited for, one each; without an event nothing but NONE and MISSING.
    """

    gpu: Int64
    stream: Int64
    records: EventRecords


def find_places(trace: TraceEvents, found: Found, streams: Streams) -> Places:
    """Where synchronisations wait, by the profiler's rows; a call for a whole GPU means the trace's only one."""
    rows, count = trace.synchronizations, len(found.kind)
    with_event = np.flatnonzero(_has_event(found) & (found.row != NONE))
    some = event_records(trace, streams.calls, found.row[with_event], found.call[with_event])
    columns = {name: np.full(count, MISSING, np.int64) for name in ("correlation", "stream", "device")}
    columns |= {name: np.full(count, NONE, np.int64) for name in ("call", "fault")}
    for name, values in columns.items():
        values[with_event] = getattr(some, name)
    is_copy = found.copy != NONE
    gpu = np.where(is_copy, lookup(trace.device.device, found.copy, MISSING), lookup(rows.device, found.row, MISSING))
    if len(streams.gpus) == 1:
        gpu = np.where((found.kind == DEVICE_SYNCHRONIZE) & (gpu == MISSING), streams.gpus[0], gpu)
    own = np.where((found.kind == STREAM_WAIT) | (found.kind == STREAM_SYNCHRONIZE), found.row, NONE)
    stream = np.where(is_copy, lookup(trace.device.stream, found.copy, MISSING), lookup(rows.stream, own, MISSING))
    return Places(gpu, stream, EventRecords(**columns))


def waited_for_operations(found: Found, places: Places, streams: Streams) -> Answers:
    """The last operation before the record of an event, or before the host call that waits."""
    kind, records, has_event = found.kind, places.records, _has_event(found)
    answers = Answers.none(len(kind))
    whole = kind == DEVICE_SYNCHRONIZE
    answers.fail((found.row == NONE) & (kind != COPY) & ~whole, NO_ROW)
    answers.fault = np.where(has_event & answers.is_open(), records.fault, answers.fault)
    answers.fail(whole & (places.gpu == MISSING), SEVERAL_GPUS)
    answers.fail(found.call == NONE, NO_CALL)
    answers.fail((kind == STREAM_SYNCHRONIZE) & (places.stream == MISSING), NO_ROW)
    answers.row = np.where(kind == COPY, found.copy, NONE)
    gpu = np.where(has_event, _gpus_of_events(records, has_event, streams, answers), places.gpu)
    stream = np.where(has_event, records.stream, places.stream)
    call = np.where(has_event, records.call, found.call)
    answers.fail(~has_event & (kind != COPY) & ~among(gpu, np.array(streams.gpus)), ELSEWHERE)
    one = np.flatnonzero(answers.is_open() & (has_event | (kind == STREAM_SYNCHRONIZE)))
    for number, name, at in _by_stream(gpu, stream, one):
        answers.take(at, streams.before(number, name, call[at]))
    of_gpu = np.flatnonzero(answers.is_open() & whole)
    for number in distinct(gpu[of_gpu]).tolist():
        at = of_gpu[gpu[of_gpu] == number]
        answers.take(at, _last_of_gpu(streams, number, call[at]))
    return answers


def waiting_operations(found: Found, places: Places, streams: Streams) -> Answers:
    """The first operation after a wait on its stream; where the host waits, the next one that its thread launches."""
    on_stream = found.kind == STREAM_WAIT
    answers = Answers.none(len(found.kind))
    answers.fail(on_stream & (places.stream == MISSING), NO_ROW)
    answers.fail(found.call == NONE, NO_CALL)
    for gpu, stream, at in _by_stream(places.gpu, places.stream, np.flatnonzero(on_stream & answers.is_open())):
        answers.take(at, streams.after(gpu, stream, found.call[at]))
    host = np.flatnonzero(~on_stream & answers.is_open())
    answers.take(host, _next_launched(streams, found.call[host]))
    answers.fail(answers.row == NONE, NOTHING_AFTER)
    return answers


def _has_event(found: Found) -> Bool:
    return (found.kind == STREAM_WAIT) | (found.kind == EVENT_SYNCHRONIZE)


def _gpus_of_events(records: EventRecords, has_event: Bool, streams: Streams, answers: Answers) -> Int64:
    """The GPU of each event's stream: as recorded, else the only one that has a stream of this number."""
    gpu = records.device.copy()
    for stream in distinct(records.stream[has_event & (gpu == MISSING)]).tolist():
        untold = has_event & (gpu == MISSING) & (records.stream == stream)
        gpus = streams.gpus_with(stream)
        answers.fail(untold & (len(gpus) > 1), SEVERAL_GPUS)
        gpu[untold] = (gpus or streams.gpus)[0]
    answers.fail(has_event & ~among(gpu, np.array(streams.gpus)), ELSEWHERE)
    return gpu


def _last_of_gpu(streams: Streams, gpu: int, call: Int64) -> Answers:
    """Of the last operations before some calls on all streams of a GPU, the one that ends last."""
    found, unsure = Answers.none(len(call)), Answers.none(len(call))
    latest = np.full(len(call), MISSING, np.int64)
    ends = streams.device.start_ns + streams.device.duration_ns
    for stream in streams.of_gpu(gpu):
        before = streams.before(gpu, stream, call)
        end = lookup(ends, before.row, MISSING)
        later = end > latest
        found.row[later], latest[later] = before.row[later], end[later]
        open_ = unsure.is_open() & ~before.is_open() & (before.fault != FAULTS.index(NOTHING_BEFORE))
        unsure.fault[open_] = before.fault[open_]
    found.fault = unsure.fault
    found.fail(found.row == NONE, NOTHING_BEFORE)
    found.row[~found.is_open()] = NONE
    return found


def _next_launched(streams: Streams, call: Int64) -> Answers:
    """The next operation that the thread of each call launches after it."""
    calls, launched = streams.calls, np.flatnonzero(streams.launches.row != NONE)
    by = streams.launches.row[launched]
    order = np.lexsort((streams.device.start_ns[launched], calls.rank[by], calls.thread[by]))
    launched, by = launched[order], by[order]
    key = calls.thread * (len(calls.rank) + 1) + calls.rank
    at = np.searchsorted(key[by], key[call], side="right")
    same = np.append(calls.thread[by], NONE)[at] == calls.thread[call]
    following = np.where(same, np.append(launched, NONE)[at], NONE)
    answers = Answers.none(len(call))
    answers.fail(_lost_between(streams, call, following), UNTOLD)
    answers.row = np.where(answers.is_open(), following, NONE)
    return answers


def _lost_between(streams: Streams, call: Int64, following: Int64) -> Bool:
    """Whether an operation whose launch row was lost may have been launched between calls and what follows them."""
    calls, device = streams.calls, streams.device
    lost = np.flatnonzero(streams.launches.row == NONE)
    told = calls.counted & (device.correlation[lost] > 0)
    numbers, starts = np.sort(device.correlation[lost[told]]), np.sort(device.start_ns[lost[~told]])
    never = np.iinfo(np.int64).max
    return _any_between(numbers, calls.correlation[call], lookup(device.correlation, following, never)) | _any_between(
        starts, calls.start_ns[call], lookup(device.start_ns, following, never)
    )


def _any_between(ordered: Int64, low: Int64, high: Int64) -> Bool:
    return np.searchsorted(ordered, low, side="right") < np.searchsorted(ordered, high, side="left")


def _by_stream(gpu: Int64, stream: Int64, at: Int64) -> Iterator[tuple[int, int, Int64]]:
    """GPU, stream, and which of ``at`` are of it, of each stream that occurs."""
    order = at[np.lexsort((stream[at], gpu[at]))]
    keys = np.stack([gpu[order], stream[order]])
    for rows in np.split(order, np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1):
        if len(rows):
            yield int(gpu[rows[0]]), int(stream[rows[0]]), rows
