"""Which call of which process launched each operation of an export."""

from __future__ import annotations

import numpy as np

from traceviz_dag.arrays import Int64, distinct
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.profile import PROCESS_BITS

_LARGEST_CORRELATION = 1 << 40
NOT_LAUNCHED = -1
"""``operations.launch`` of what no recorded call launched."""


def known_processes(process: Int64, call_thread: Int64) -> Int64:
    """The processes of operations; where only one process was profiled, operations without one are of that."""
    known = distinct(processes_of_ids(call_thread))
    return np.where(process == MISSING, known[0], process) if len(known) == 1 else process


def join_launches(process: Int64, correlation: Int64, call_process: Int64, call_correlation: Int64) -> Int64:
    """For each operation the first call of its process that has its correlation id, or NOT_LAUNCHED.

    Correlation ids are unique within a process only, so the id alone joins kernels to calls of other processes. Where
    operations bear no process, they are joined only if all calls are of one process.

    Args:
        process, correlation: of each operation; MISSING where unknown.
        call_process, call_correlation: of each call, by start.
    """
    nothing = np.full(len(correlation), NOT_LAUNCHED, dtype=np.int64)
    if not len(correlation) or not len(call_correlation):
        return nothing
    known = distinct(call_process)
    if len(known) == 1:
        process = np.where(process == MISSING, known[0], process)
    place = np.searchsorted(known, process)
    ours = known[np.minimum(place, len(known) - 1)] == process
    wanted = ours & (correlation != MISSING) & (correlation > 0)
    if max(correlation.max(), call_correlation.max()) >= _LARGEST_CORRELATION:
        correlation, call_correlation = _renamed(correlation, call_correlation)
    width = int(max(correlation.max(), call_correlation.max(), 0)) + 1
    call_key = np.searchsorted(known, call_process) * width + np.maximum(call_correlation, 0)
    order = np.argsort(call_key, kind="stable")
    key = place * width + np.maximum(correlation, 0)
    at = np.minimum(np.searchsorted(call_key[order], key), len(order) - 1)
    return np.where(wanted & (call_key[order[at]] == key), order[at], nothing)


def _renamed(correlation: Int64, call_correlation: Int64) -> tuple[Int64, Int64]:
    """Small numbers above zero instead of ids so large that a key of process and id would not fit; zero for none."""
    every = np.concatenate([correlation, call_correlation])
    positive = distinct(every[every > 0])
    small = [np.where(ids > 0, np.searchsorted(positive, ids) + 1, 0) for ids in (correlation, call_correlation)]
    return small[0], small[1]


def processes_of_ids(identifiers: Int64) -> Int64:
    """The processes of global ids of processes or threads; MISSING stays."""
    return np.where(identifiers == MISSING, MISSING, identifiers >> PROCESS_BITS)
