"""The synchronisations of a trace: host calls, the profiler's rows of them, and copies that the host waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int32, Int64, among, distinct, lookup, number_groups
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.synchronizations.event_records import calls_with
from traceviz_dag.read.events import (
    DEVICE_SYNCHRONIZE,
    EVENT_RECORD,
    EVENT_SYNCHRONIZE,
    MEMORY_COPY,
    MISSING,
    OTHER_SYNCHRONIZATION,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
    TraceEvents,
)

COPY = OTHER_SYNCHRONIZATION + 1
"""Kind of a synchronisation beside those of ``SynchronizationRows``: the host waits for a copy."""

_QUERY = COPY + 1
WAITS = (STREAM_WAIT, EVENT_SYNCHRONIZE, STREAM_SYNCHRONIZE, DEVICE_SYNCHRONIZE)
_IS_WAIT = np.isin(np.arange(_QUERY + 1), WAITS)
_CALLS = {
    "StreamWaitEvent": STREAM_WAIT,
    "EventSynchronize": EVENT_SYNCHRONIZE,
    "StreamSynchronize": STREAM_SYNCHRONIZE,
    **dict.fromkeys(("DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"), DEVICE_SYNCHRONIZE),
    **dict.fromkeys(("EventQuery", "StreamQuery"), _QUERY),
}
_CALL = re.compile(rf"(?:cuda|cu|hip)({'|'.join(_CALLS)})(?:_\w+)?$")
_SYNCHRONOUS_COPY = re.compile(r"(?:cudaMemcpy|hipMemcpy|hipMemcpyWithStream|(?:cu|hip)MemcpyDtoH)(?:_v\d+)?$")
_COPY_CALL = re.compile(r"(?:cuda|cu|hip)Memcpy")
_WAITED_FOR_COPY = re.compile(r"Memcpy DtoH|CopyDeviceToHost|Memcpy HtoD \(Pinned -> Device\)")
_TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")
_BLUR_NS = 1000
"""Times of host and GPU may be whole microseconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """Synchronisations: the host call of each, the profiler's row of it, the copy that it waits for; NONE for none."""

    kind: Int64
    call: Int64
    row: Int64
    copy: Int64


def find_synchronizations(trace: TraceEvents, launches: Launches) -> Found:
    """What the profiler has a row of, other calls that wait, and copies that wait."""
    rows = trace.synchronizations
    kind_of_name = np.full(len(trace.strings), NONE)
    for name in distinct(trace.launches.name).tolist():
        kind_of_name[name] = _kind_of_call(trace.strings[name])
    kind_of_call = kind_of_name[trace.launches.name]
    row = np.flatnonzero(rows.kind != EVENT_RECORD)
    row = row[
        _first_of_equals(
            rows.correlation[row], rows.kind[row].astype(np.int64), rows.stream[row], rows.record_correlation[row]
        )
    ]
    call = calls_with(rows.correlation[row], trace)
    told = lookup(kind_of_call, call)
    kind = np.where(told == NONE, rows.kind[row].astype(np.int64), told)
    without_row = (kind_of_call != NONE) & (kind_of_call != _QUERY)
    without_row[call[call != NONE]] = False
    alone = np.flatnonzero(without_row)
    # Asking whether the GPU is done is no waiting, though profilers have the same row for it.
    waits = _IS_WAIT[kind]
    # A process's streams on other GPUs than this rank's are those of other ranks.
    own = among(rows.device[row], np.append(distinct(trace.device.device), MISSING))
    waits &= (kind != STREAM_WAIT) | own
    kind, call, row = kind[waits], call[waits], row[waits]
    copy = _waiting_copies(trace, launches)
    return Found(
        kind=np.concatenate([kind, kind_of_call[alone], np.full(len(copy), COPY)]),
        call=np.concatenate([call, alone, launches.row[copy]]),
        row=np.concatenate([row, np.full(len(alone) + len(copy), NONE)]),
        copy=np.concatenate([np.full(len(row) + len(alone), NONE), copy]),
    )


def _kind_of_call(name: str) -> int:
    match = _CALL.match(name)
    return _CALLS[match[1]] if match else NONE


def _first_of_equals(*columns: Int64) -> Int64:
    return np.sort(number_groups(*columns)[0])


def _waiting_copies(trace: TraceEvents, launches: Launches) -> Int64:
    """Copies whose call returned only when they were done: CUDA promises it of these, and the times bear it out."""
    device = trace.device
    copies = np.flatnonzero((device.category == MEMORY_COPY) & (launches.row != NONE))
    call = launches.row[copies]
    of_call, of_copy = trace.launches.name[call], device.name[copies]
    synchronous, waited_for = _named(_SYNCHRONOUS_COPY, trace, of_call), _named(_WAITED_FOR_COPY, trace, of_copy)
    any_copy, to_pageable = _named(_COPY_CALL, trace, of_call), _named(_TO_PAGEABLE, trace, of_copy)
    promised = (synchronous & waited_for) | (any_copy & to_pageable)
    returned = trace.launches.start_ns[call] + trace.launches.duration_ns[call]
    done = device.start_ns[copies] + device.duration_ns[copies]
    return copies[promised & (returned >= done - _BLUR_NS)]


def _named(pattern: re.Pattern[str], trace: TraceEvents, names: Int32) -> Bool:
    """Whether each name is as the pattern says."""
    found = np.zeros(len(trace.strings), bool)
    for name in distinct(names).tolist():
        found[name] = pattern.match(trace.strings[name]) is not None
    return found[names]
