"""Which call recorded the event that a synchronisation waits for.

A synchronisation waits for the latest record of its event before it. Profilers look this up by the event's number, some
before and some after they have seen all records, so what they name may be too early or too late: it counts only where
nothing contradicts it. Where the profiler lists all records (Kineto's ``cuda_event``), the latest one before is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.synchronizations.enqueue_order import HostCalls
from traceviz_dag.read.events import EVENT_RECORD, MISSING, UNRESOLVED, SynchronizationRows, TraceEvents

UNRESOLVED_BY_PROFILER = "unresolved by the profiler (-1)"
NO_RECORD = "no record row"
LATER_RECORD = "the record that the profiler names comes after the wait"
RECORDED_AGAIN = "the event was recorded again before the wait"
FAULTS = (UNRESOLVED_BY_PROFILER, NO_RECORD, LATER_RECORD, RECORDED_AGAIN)


@dataclass(frozen=True, slots=True)
class EventRecords:
    """The record that each of some synchronisations waits for.

    Attributes:
        call: row of ``LaunchRows`` of the call that recorded the event, or NONE.
        correlation, stream, device: its correlation id, and where the event was recorded; MISSING where not told.
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
    known = _known_records(rows, trace)
    latest = _latest_before(known, rows, calls, row, call)
    listed = bool((rows.kind == EVENT_RECORD).any())
    known_call = lookup(known.call, latest)
    own_rank = np.where(call == NONE, len(calls.rank), lookup(calls.rank, call))
    named_rank = lookup(calls.rank, named_call)
    replaced = listed & (latest != NONE)
    fault = np.full(len(row), NONE, np.int64)
    fault[(known_call != NONE) & (lookup(calls.rank, known_call) > named_rank)] = FAULTS.index(RECORDED_AGAIN)
    fault[named_rank > own_rank] = FAULTS.index(LATER_RECORD)
    streams = np.where(rows.wait_on_stream[row] >= 0, rows.wait_on_stream[row], MISSING)
    fault[(named_call == NONE) | (streams == MISSING)] = FAULTS.index(NO_RECORD)
    unresolved = (named == UNRESOLVED) | (rows.wait_on_stream[row] == UNRESOLVED)
    fault[unresolved] = FAULTS.index(UNRESOLVED_BY_PROFILER)
    fault[replaced] = NONE
    told = fault == NONE
    return EventRecords(
        call=np.where(replaced, known_call, np.where(told, named_call, NONE)),
        correlation=np.where(replaced, lookup(known.correlation, latest), np.where(named > 0, named, MISSING)),
        stream=np.where(replaced, lookup(known.stream, latest), streams),
        device=np.where(replaced, lookup(known.device, latest), rows.wait_on_device[row]),
        fault=fault,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """Records of events whose calls are in the trace."""

    event: Int64
    context: Int64
    call: Int64
    correlation: Int64
    stream: Int64
    device: Int64


def _known_records(rows: SynchronizationRows, trace: TraceEvents) -> _Known:
    """The records that the profiler lists, else those that its synchronisations name."""
    listed = rows.kind == EVENT_RECORD
    if listed.any():
        at = np.flatnonzero(listed & (rows.stream != MISSING))
        correlation, stream, device = rows.correlation[at], rows.stream[at], rows.device[at]
    else:
        at = np.flatnonzero((rows.record_correlation > 0) & (rows.wait_on_stream >= 0))
        correlation, stream, device = rows.record_correlation[at], rows.wait_on_stream[at], rows.wait_on_device[at]
    call = calls_with(correlation, trace)
    kept = (call != NONE) & (rows.event[at] != MISSING)
    return _Known(
        rows.event[at][kept], rows.device[at][kept], call[kept], correlation[kept], stream[kept], device[kept]
    )


def _latest_before(known: _Known, rows: SynchronizationRows, calls: HostCalls, row: Int64, call: Int64) -> Int64:
    """For each synchronisation the last known record of its event before its call, as an index; NONE where none is."""
    found = np.full(len(row), NONE, np.int64)
    asks = np.flatnonzero((call != NONE) & (rows.event[row] != MISSING))
    if not len(known.event) or not len(asks):
        return found
    # Events are numbered within the context of a GPU.
    keys = np.stack(
        [
            np.concatenate([known.context, rows.device[row[asks]]]),
            np.concatenate([known.event, rows.event[row[asks]]]),
        ]
    )
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    width = len(calls.rank) + 1
    of_known = group[: len(known.event)] * width + calls.rank[known.call]
    wanted = group[len(known.event) :] * width + calls.rank[call[asks]]
    order = np.argsort(of_known, kind="stable")
    at = np.searchsorted(of_known[order], wanted, side="left") - 1
    candidate = order[np.maximum(at, 0)]
    same = (at >= 0) & (of_known[candidate] // width == group[len(known.event) :])
    found[asks[same]] = candidate[same]
    return found
