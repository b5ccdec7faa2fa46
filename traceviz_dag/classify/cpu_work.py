"""Work intervals of a trace without GPU rows: leaf operators compute, and a communication is its transfer.

On the CPU one communication shows twice: ``c10d::send`` is its launch, ``gloo:send`` its transfer, often on another
thread. The transfer becomes the interval and keeps the launch's place in the call stacks.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np

from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.classify.launches import Launches
from traceviz_dag.read.events import (
    COLLECTIVE_NUMBERS,
    CPU_OP,
    KERNEL,
    MISSING,
    USER_ANNOTATION,
    CollectiveFacts,
    DeviceRows,
    TraceEvents,
)
from traceviz_dag.read.host_tree import HostTree

CPU_DEVICE_NUMBER = -1
"""``DeviceRows.device`` of work intervals on the CPU."""

_TRANSFERS_OF = {
    "send": ("gloo:send",),
    "recv_": ("gloo:recv",),
    "recv_any_source_": ("gloo:recvAnySource", "gloo:recv"),
    "allreduce_": ("gloo:all_reduce",),
    "allreduce_coalesced_": ("gloo:all_reduce",),
    "reduce_": ("gloo:reduce",),
    "broadcast_": ("gloo:broadcast",),
    "allgather_": ("gloo:all_gather",),
    "_allgather_base_": ("gloo:all_gather",),
    "allgather_coalesced_": ("gloo:all_gather",),
    "allgather_into_tensor_coalesced_": ("gloo:all_gather",),
    "reduce_scatter_": ("gloo:reduce_scatter", "gloo:all_reduce"),
    "_reduce_scatter_base_": ("gloo:reduce_scatter", "gloo:all_reduce"),
    "reduce_scatter_tensor_coalesced_": ("gloo:reduce_scatter", "gloo:all_reduce"),
    "alltoall_base_": ("gloo:all_to_all",),
    "alltoall_": ("gloo:all_to_all",),
    "gather_": ("gloo:gather",),
    "scatter_": ("gloo:scatter",),
    "barrier": ("gloo:barrier",),
}
"""Launching operator (after ``c10d::``) → names of its transfer annotation; gloo reduce-scatters by all-reducing."""


def has_device_rows(trace: TraceEvents) -> bool:
    """Whether the trace holds kernels or memory operations of a device."""
    return len(trace.device) > 0


def cpu_work(trace: TraceEvents, tree: HostTree) -> tuple[TraceEvents, Launches]:
    """The trace with its CPU work as device rows on device ``cpu``, and where each was launched.

    Streams are thread ids; communication rows carry the launching operator's name as their collective.
    """
    position_of_row = np.full(len(trace.host), NONE, dtype=np.int64)
    position_of_row[tree.rows] = np.arange(len(tree))
    leaves = _leaf_operators(trace, tree)
    transfers, launching = _transfers(trace)
    rows = np.concatenate([leaves, transfers])
    launch_rows = np.concatenate([leaves, launching])
    host = trace.host
    thread_ids = np.array([thread.thread_id for thread in trace.threads], dtype=np.int64)
    collective = np.concatenate([np.zeros(len(leaves), dtype=np.int64), host.name[launching].astype(np.int64)])
    known = launch_rows != NONE
    thread = np.where(known, host.thread[launch_rows], NONE).astype(np.int32)
    time_ns = np.where(known, host.start_ns[launch_rows], MISSING)
    position = np.where(known, position_of_row[launch_rows], NONE)
    none = np.full(len(rows), NONE, dtype=np.int64)
    device = _device_rows(trace, rows, thread_ids, collective)
    return dataclasses.replace(trace, device=device), Launches(none, thread, time_ns, position)


def _leaf_operators(trace: TraceEvents, tree: HostTree) -> Int64:
    """aten operators that call no other operator."""
    is_aten = np.array([name.startswith("aten::") for name in trace.strings], dtype=bool)
    is_operator = trace.host.category[tree.rows] == CPU_OP
    caller = tree.parent[is_operator & (tree.parent >= 0)]
    calls = np.zeros(len(tree), dtype=bool)
    calls[caller] = True
    leaf = is_operator & ~calls & is_aten[trace.host.name[tree.rows]]
    return np.sort(tree.rows[leaf])


def _transfers(trace: TraceEvents) -> tuple[Int64, Int64]:
    """(rows that transfer, rows that launched them); a launch without a transfer row represents itself.

    Workers serve a queue, so the n-th launch of a kind gets the earliest transfer of that kind that is still free and
    does not start before the launch.
    """
    host = trace.host
    launch_kind = {
        code: name.removeprefix("c10d::")
        for code, name in enumerate(trace.strings)
        if name.startswith("c10d::") and name.removeprefix("c10d::") in _TRANSFERS_OF
    }
    is_gloo = np.array([name.startswith("gloo:") for name in trace.strings], dtype=bool)
    gloo = np.flatnonzero((host.category == USER_ANNOTATION) & is_gloo[host.name])
    free: dict[str, list[int]] = defaultdict(list)
    for row in gloo[np.argsort(host.start_ns[gloo], kind="stable")].tolist():
        free[trace.strings[host.name[row]]].append(row)
    launches = np.flatnonzero((host.category == CPU_OP) & np.isin(host.name, list(launch_kind)))
    launcher_of: dict[int, int] = {}
    alone = []
    for launch in launches[np.argsort(host.start_ns[launches], kind="stable")].tolist():
        taken = _take_first(free, _TRANSFERS_OF[launch_kind[host.name[launch]]], host.start_ns, launch)
        if taken is None:
            alone.append(launch)
        else:
            launcher_of[taken] = launch
    rows = [*gloo.tolist(), *alone]
    launching = [launcher_of.get(row, NONE) for row in gloo.tolist()] + alone
    return np.array(rows, dtype=np.int64), np.array(launching, dtype=np.int64)


def _take_first(free: dict[str, list[int]], kinds: tuple[str, ...], start_ns: Int64, launch: int) -> int | None:
    for kind in kinds:
        for index, row in enumerate(free[kind]):
            if start_ns[row] >= start_ns[launch]:
                return free[kind].pop(index)
    return None


def _device_rows(trace: TraceEvents, rows: Int64, thread_ids: Int64, collective: Int64) -> DeviceRows:
    host = trace.host
    count = len(rows)
    missing = np.full(count, MISSING, dtype=np.int64)
    nothing = np.zeros(count, dtype=np.int32)
    facts: dict[str, Any] = {
        name: missing if name in COLLECTIVE_NUMBERS else nothing for name in CollectiveFacts.__slots__
    }
    facts["collective"] = collective.astype(np.int32)
    given: dict[str, Any] = {
        "name": host.name[rows],
        "category": np.full(count, KERNEL, dtype=np.int8),
        "start_ns": host.start_ns[rows],
        "duration_ns": host.duration_ns[rows],
        "device": np.full(count, CPU_DEVICE_NUMBER, dtype=np.int64),
        "stream": thread_ids[host.thread[rows]] if len(thread_ids) else missing,
        "external_id": host.external_id[rows],
        "process": nothing,
        "collective": CollectiveFacts(**facts),
    }
    rest: dict[str, Any] = {field.name: missing for field in dataclasses.fields(DeviceRows) if field.name not in given}
    return DeviceRows(**given, **rest)
