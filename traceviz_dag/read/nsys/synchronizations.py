"""Synchronisations of an export, each with the record of the event that it waits for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.read.events import (
    DEVICE_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    MISSING,
    OTHER_SYNCHRONIZATION,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
)
from traceviz_dag.read.nsys.launching import known_processes, processes_of_ids
from traceviz_dag.read.nsys.profile import SCHEMAS
from traceviz_dag.read.nsys.rows import numbers, order_by_key
from traceviz_dag.read.nsys.schema import NsysSchema, number, required

_NONE_32 = 2**32 - 1
"""How exports say that there is no such stream."""

_KINDS = {1: EVENT_SYNCHRONIZE, 2: STREAM_WAIT, 3: STREAM_SYNCHRONIZE, 4: DEVICE_SYNCHRONIZE}
"""``syncType`` → kind."""

Contexts = Mapping[tuple[int, int], int]
"""(process, CUDA context) → the GPU that operations of this context ran on."""

_PLACE = {
    "context": number("contextId"),
    "stream": number("streamId"),
    "process_id": number("globalPid"),
    "correlation": number("correlationId"),
}


def contexts_of(operations: pa.Table) -> Contexts:
    """The GPU of each context, from what ran in it."""
    found: dict[tuple[int, int], int] = {}
    for row in operations.group_by(["process", "context", "device"]).aggregate([]).to_pylist():
        key = (row["process"], row["context"])
        # A context is of one GPU.
        found[key] = MISSING if key in found else row["device"]
    return found


def read_synchronizations(schema: NsysSchema, calls: pa.Table, contexts: Contexts) -> pa.Table:
    """Synchronisations by process and start, without rows of an export that has none.

    The record of an event is the one with the same ``eventSyncId``: numbers of events are used again, and times of
    events are 0 unless they were asked for. The GPU follows from the context: the ``deviceId`` of a synchronisation is
    0 on every GPU.

    Args:
        calls: as ``read_calls`` gives them.
        contexts: as ``contexts_of`` gives them.
    """
    rows = schema.select(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {
            "start_ns": required("start"),
            "end_ns": required("end"),
            "type": number("syncType"),
            "sync_id": number("eventSyncId", loss="nothing shows which event a stream or host call waits for"),
            **_PLACE,
        },
        loss="nothing shows which stream waits for which",
    )
    if rows is None or not rows.num_rows:
        return SCHEMAS["synchronizations"].empty_table()
    process, device = _owners(rows, calls, contexts)
    record, events = _records(schema, calls, contexts, process, numbers(rows, "sync_id"))
    kind, start, stream = numbers(rows, "type"), numbers(rows, "start_ns"), numbers(rows, "stream")
    columns: dict[str, npt.NDArray[np.integer]] = {
        "kind": np.array([_KINDS.get(one, OTHER_SYNCHRONIZATION) for one in kind.tolist()], np.int8),
        "start_ns": start,
        "duration_ns": numbers(rows, "end_ns") - start,
        "process": process,
        "device": device,
        "stream": np.where((stream == _NONE_32) | (stream < 0), MISSING, stream),
        "correlation": numbers(rows, "correlation"),
        "wait_on_stream": lookup(events["stream"], record, MISSING),
        "wait_on_device": lookup(events["device"], record, MISSING),
        "record_correlation": lookup(events["correlation"], record, MISSING),
    }
    order = order_by_key(process, start)
    wanted = SCHEMAS["synchronizations"]
    return pa.Table.from_arrays([pa.array(columns[field.name][order], field.type) for field in wanted], schema=wanted)


def _records(
    schema: NsysSchema,
    calls: pa.Table,
    contexts: Contexts,
    process: Int64,
    sync_id: Int64,
) -> tuple[Int64, dict[str, Int64]]:
    """For each synchronisation the record of its event, or NONE; and where each record is."""
    rows = schema.select(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        {"sync_id": number("eventSyncId"), **_PLACE},
        loss="nothing shows which event a stream or host call waits for",
    )
    if rows is None or not rows.num_rows:
        if rows is not None and (sync_id > 0).any():
            schema.note("table CUPTI_ACTIVITY_KIND_CUDA_EVENT is empty: nothing shows which record a stream waits for")
        nothing = np.empty(0, np.int64)
        return np.full(len(process), NONE, np.int64), dict.fromkeys(("stream", "device", "correlation"), nothing)
    owner, device = _owners(rows, calls, contexts)
    ids = numbers(rows, "sync_id")
    keys = np.stack([np.concatenate([owner, process]), np.concatenate([ids, sync_id])])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    of_record, wanted = group[: len(ids)], group[len(ids) :]
    found = np.full(int(group.max()) + 1, NONE, np.int64)
    found[of_record] = np.arange(len(ids))
    # An id that several records bear names none of them.
    found[np.bincount(of_record, minlength=len(found)) > 1] = NONE
    record = np.where(sync_id > 0, found[wanted], NONE)
    return record, {
        "stream": numbers(rows, "stream"),
        "device": device,
        "correlation": numbers(rows, "correlation"),
    }


def _owners(rows: pa.Table, calls: pa.Table, contexts: Contexts) -> tuple[Int64, Int64]:
    """Process and GPU of each row; MISSING where nothing ran in its context."""
    process = known_processes(processes_of_ids(numbers(rows, "process_id")), numbers(calls, "thread"))
    pairs, which = np.unique(np.stack([process, numbers(rows, "context")]), axis=1, return_inverse=True)
    gpus = np.array([contexts.get((owner, context), MISSING) for owner, context in pairs.T.tolist()], np.int64)
    return process, gpus[which.reshape(-1)]
