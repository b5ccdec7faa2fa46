"""The table ``synchronizations`` of one trace.

The profiler's own rows show the streams and the call that recorded an event (Kineto's ``cuda_sync``, Nsight Systems'
``CUPTI_ACTIVITY_KIND_SYNCHRONIZATION``). Where there is only the host call, its streams are unknown. What was put on a
stream before a record, or after a wait, follows from the order of the calls (``enqueue_order``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64, lookup, number_groups, rows_at
from traceviz_dag.classify.columns import coded, integers, labelled
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.phases.marks import ProfilerSteps, nearest_step, step_at
from traceviz_dag.classify.synchronizations.enqueue_order import HostCalls
from traceviz_dag.classify.synchronizations.found import COPY, Found, find_synchronizations
from traceviz_dag.classify.synchronizations.operations import (
    FAULTS,
    Answers,
    Places,
    Streams,
    find_places,
    waited_for_operations,
    waiting_operations,
)
from traceviz_dag.read.events import (
    DEVICE_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    MISSING,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
    TraceEvents,
)
from traceviz_dag.tables import SYNCHRONIZATIONS
from traceviz_dag.vocabulary import SynchronizationEvidence, SynchronizationKind

_LABELS = {
    STREAM_WAIT: SynchronizationKind.STREAM_WAIT,
    EVENT_SYNCHRONIZE: SynchronizationKind.EVENT_SYNCHRONIZE,
    STREAM_SYNCHRONIZE: SynchronizationKind.STREAM_SYNCHRONIZE,
    DEVICE_SYNCHRONIZE: SynchronizationKind.DEVICE_SYNCHRONIZE,
    COPY: SynchronizationKind.MEMORY_COPY,
}
_EVIDENCES = tuple(SynchronizationEvidence)


def synchronizations_table(
    trace: TraceEvents, launches: Launches, profiler: ProfilerSteps, kernel_id: Int64
) -> pa.Table:
    """The table ``synchronizations``, all training steps of the file, by start.

    Args:
        launches: of the operations on the GPU.
        kernel_id: of each of them.
    """
    found = find_synchronizations(trace, launches)
    if not len(found.kind):
        return SYNCHRONIZATIONS.schema.empty_table()
    streams = Streams(trace.device, launches, HostCalls.of(trace.launches))
    places = find_places(trace, found, streams)
    waited_for = waited_for_operations(found, places, streams)
    waiting = waiting_operations(found, places, streams)
    return _table(trace, profiler, kernel_id, found, places, waited_for, waiting)


def _table(
    trace: TraceEvents,
    profiler: ProfilerSteps,
    kernel_id: Int64,
    found: Found,
    places: Places,
    waited_for: Answers,
    waiting: Answers,
) -> pa.Table:
    calls, rows = trace.launches, trace.synchronizations
    has_call = found.call != NONE
    start = np.where(has_call, lookup(calls.start_ns, found.call), lookup(rows.start_ns, found.row))
    duration = np.where(has_call, lookup(calls.duration_ns, found.call), lookup(rows.duration_ns, found.row))
    correlation = np.where(has_call, lookup(calls.correlation, found.call), lookup(rows.correlation, found.row))
    threads = np.array([thread.thread_id for thread in trace.threads], np.int64)
    step = step_at(profiler, start)
    step = np.where(step == MISSING, nearest_step(profiler, start), step)
    waits = found.kind == STREAM_WAIT
    wait_on = np.where(waits | (found.kind == EVENT_SYNCHRONIZE), places.records.stream, places.stream)
    first, gpu = number_groups(places.gpu)
    gpus = [None if one == MISSING else f"gpu:{one}" for one in places.gpu[first].tolist()]
    order = np.lexsort((correlation, start))

    def in_order(values: Int64) -> pa.Array:
        return integers(values[order])

    return SYNCHRONIZATIONS.from_columns(
        {
            "synchronization_id": np.arange(len(order)),
            "kind": labelled(found.kind[order], [_LABELS.get(code) for code in range(COPY + 1)]),
            "name": coded(lookup(calls.name.astype(np.int64), found.call[order], 0), trace.strings),
            "thread": in_order(lookup(threads, lookup(calls.thread.astype(np.int64), found.call), MISSING)),
            "start_ns": start[order],
            "duration_ns": duration[order],
            "step": in_order(step),
            "device": labelled(gpu[order], gpus),
            "stream": in_order(np.where(waits, places.stream, MISSING)),
            "wait_on_stream": in_order(wait_on),
            "correlation": in_order(correlation),
            "record_correlation": in_order(places.records.correlation),
            "record_start_ns": in_order(lookup(calls.start_ns, places.records.call, MISSING)),
            "waited_for_kernel_id": in_order(lookup(kernel_id, waited_for.row, MISSING)),
            "waiting_kernel_id": in_order(lookup(kernel_id, waiting.row, MISSING)),
            "evidence": labelled(np.where(found.row[order] == NONE, 1, 0), _EVIDENCES),
            "fault": _faults(waited_for.fault[order], waiting.fault[order]),
        }
    )


def _faults(waited_for: Int64, waiting: Int64) -> pa.Array:
    """One column of both: where neither operation is known for two reasons, both of them."""
    first, which = number_groups(waited_for, waiting)
    pairs = rows_at(first, [waited_for, waiting])
    texts = ["; ".join(dict.fromkeys(FAULTS[one] for one in pair if one != NONE)) or None for pair in pairs]
    return labelled(which, texts)
