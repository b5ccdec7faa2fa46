"""Which call recorded the event that a synchronisation waits for.

A synchronisation waits for the latest record of its event before it. Profilers look this up by the event's number, some
before and some after they have seen all records, so what they name may be too early or too late: it counts only where
nothing contradicts it. Where the profiler lists all records (Kineto's ``cuda_event``), the latest one before is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup, number_groups
from traceviz_dag.classify.synchronizations.enqueue_order import HostCalls
from traceviz_dag.read.events import EVENT_RECORD, MISSING, UNRESOLVED, SynchronizationRows, TraceEvents

UNRESOLVED_BY_PROFILER = "unresolved by the profiler (-1)"
NO_RECORD = "no record row"
LATER_RECORD = "the record that the profiler names does not come before the wait"
RECORDED_AGAIN = "the event was recorded again before the wait"
RECORDED_AT_ONCE = "another thread records the event at that moment"
FAULTS = (UNRESOLVED_BY_PROFILER, NO_RECORD, LATER_RECORD, RECORDED_AGAIN, RECORDED_AT_ONCE)


@dataclass(frozen=True, slots=True)
class EventRecords:
    """The record that each of some synchronisations waits for.

    Attributes:
        call: row of ``LaunchRows`` of the call that recorded the event, or NONE.
        correlation, stream, device: its correlation id, and where the event was recorded; MISSING where not known.
        fault: index into FAULTS, or NONE.
    """

    call: Int64
    correlation: Int64
    stream: Int64
    device: Int64
    fault: Int64


def calls_with(correlation: Int64, trace: TraceEvents) -> Int64:
    """The host call with each correlation id; NONE where none has it, or calls of several processes have."""
    wanted = np.where(correlation > 0, correlation, MISSING)
    rows = np.flatnonzero(np.isin(trace.launches.correlation, wanted[wanted != MISSING]))
    if not len(rows):
        return np.full(len(correlation), NONE, np.int64)
    processes = np.array([thread.process_id for thread in trace.threads], np.int64)
    owner = processes[trace.launches.thread[rows]]
    keys = trace.launches.correlation[rows]
    order = np.lexsort((owner, keys))
    keys, owner, rows = keys[order], owner[order], rows[order]
    first = np.searchsorted(keys, wanted, side="left")
    end = np.searchsorted(keys, wanted, side="right")
    at, last = np.minimum(first, len(keys) - 1), np.maximum(end - 1, 0)
    return np.where((end > first) & (owner[at] == owner[last]), rows[at], NONE)


def event_records(trace: TraceEvents, calls: HostCalls, row: Int64, call: Int64) -> EventRecords:
    """The records of some synchronisations with an event.

    Args:
        row: row of ``SynchronizationRows`` of each.
        call: its host call, or NONE.
    """
    rows = trace.synchronizations
    named = rows.record_correlation[row]
    named_call = calls_with(named, trace)
    known = _known_records(rows, trace, calls)
    latest, unsure = _latest_before(known, rows, calls, row, call)
    known_call = lookup(known.call, latest)
    taken = known.listed & (latest != NONE)
    stream = np.where(rows.wait_on_stream[row] >= 0, rows.wait_on_stream[row], MISSING)
    unresolved = (named == UNRESOLVED) | (rows.wait_on_stream[row] == UNRESOLVED)
    fault = np.select(
        [
            taken & unsure,
            taken,
            unresolved,
            (named_call == NONE) | (stream == MISSING),
            (call != NONE) & ~calls.precede(named_call, call),
            (known_call != NONE) & (lookup(calls.rank, known_call) > lookup(calls.rank, named_call)),
        ],
        [
            FAULTS.index(RECORDED_AT_ONCE),
            NONE,
            FAULTS.index(UNRESOLVED_BY_PROFILER),
            FAULTS.index(NO_RECORD),
            FAULTS.index(LATER_RECORD),
            FAULTS.index(RECORDED_AGAIN),
        ],
        NONE,
    )
    told = fault == NONE
    shown = told | (fault == FAULTS.index(NO_RECORD))
    correlation = np.where(taken, lookup(known.correlation, latest), np.where(named > 0, named, MISSING))
    device = np.where(taken, lookup(known.device, latest), rows.wait_on_device[row])
    return EventRecords(
        call=np.where(told, np.where(taken, known_call, named_call), NONE),
        correlation=np.where(shown, correlation, MISSING),
        stream=np.where(shown, np.where(taken, lookup(known.stream, latest), stream), MISSING),
        device=np.where(shown, device, MISSING),
        fault=fault,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """Records of events whose calls are in the trace, by event and call.

    Attributes:
        listed: they are all that the profiler saw, not only those that something waits for.
        event, context: number of the event in its context, which its GPU represents.
        ordered: no earlier record of the event may have taken effect later.
    """

    listed: bool
    event: Int64
    context: Int64
    call: Int64
    correlation: Int64
    stream: Int64
    device: Int64
    ordered: Bool


def _known_records(rows: SynchronizationRows, trace: TraceEvents, calls: HostCalls) -> _Known:
    """The records that the profiler lists, else those that its synchronisations name."""
    is_record = rows.kind == EVENT_RECORD
    listed = bool(is_record.any())
    if listed:
        at = np.flatnonzero(is_record & (rows.stream != MISSING) & (rows.event != MISSING))
        correlation, stream, device = rows.correlation[at], rows.stream[at], rows.device[at]
    else:
        at = np.flatnonzero((rows.record_correlation > 0) & (rows.wait_on_stream >= 0) & (rows.event != MISSING))
        correlation, stream, device = rows.record_correlation[at], rows.wait_on_stream[at], rows.wait_on_device[at]
    call = calls_with(correlation, trace)
    event, context = rows.event[at], rows.device[at]
    order = np.lexsort((lookup(calls.rank, call), event, context))
    order = order[call[order] != NONE]
    event, context, call = event[order], context[order], call[order]
    ordered = np.ones(len(order), bool)
    begins = np.flatnonzero((np.diff(event, prepend=-1) != 0) | (np.diff(context, prepend=-1) != 0))
    for of_event in np.split(np.arange(len(order)), begins[1:]):
        if len(np.unique(calls.thread[call[of_event]])) > 1:
            ends = np.maximum.accumulate(calls.end_ns[call[of_event]])
            ordered[of_event[1:]] = ends[:-1] < calls.start_ns[call[of_event[1:]]]
    return _Known(listed, event, context, call, correlation[order], stream[order], device[order], ordered)


def _latest_before(
    known: _Known, rows: SynchronizationRows, calls: HostCalls, row: Int64, call: Int64
) -> tuple[Int64, Bool]:
    """For each synchronisation the last known record of its event before its call, as an index; NONE where none is.

    Beside it: whether another one may be the last, since threads call at once.
    """
    found, unsure = np.full(len(row), NONE, np.int64), np.zeros(len(row), bool)
    asks = np.flatnonzero((call != NONE) & (rows.event[row] != MISSING))
    count = len(known.event)
    if not count or not len(asks):
        return found, unsure
    asking = call[asks]
    event, context = rows.event[row[asks]], rows.device[row[asks]]
    _, group = number_groups(np.concatenate([known.context, context]), np.concatenate([known.event, event]))
    width = len(calls.rank) + 1
    place = np.searchsorted(
        group[:count] * width + calls.rank[known.call], group[count:] * width + calls.rank[asking], side="left"
    )
    before, after = np.maximum(place - 1, 0), np.minimum(place, count - 1)
    there = (place > 0) & (group[before] == group[count:])
    follows = (place < count) & (group[after] == group[count:])
    found[asks[there]] = before[there]
    unsure[asks] = ~calls.precede(known.call[before], asking) | ~known.ordered[before]
    unsure[asks] |= follows & ~calls.precede(asking, known.call[after])
    return found, unsure
