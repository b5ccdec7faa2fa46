"""Which host call launched which kernel, and from where in the call stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Int32, Int64, among, distinct, lookup
from traceviz_dag.classify.autograd_links import AUTOGRAD_NODE
from traceviz_dag.read.events import CPU_OP, MISSING, USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree, build_tree, innermost

_ASYNCHRONOUS = ("ProfilerStep#", "gloo:")
"""Annotations that outlive their callers or straddle frames: they hold nothing that is launched inside them."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Per kernel, where it was launched.

    Attributes:
        row: row of ``LaunchRows``, or NONE.
        thread: thread index of the launch, or NONE.
        time_ns: when it was launched, or MISSING.
        position: tree position of the innermost host row around the launch, or NONE.
    """

    row: Int64
    thread: Int32
    time_ns: Int64
    position: Int64


def call_tree(trace: TraceEvents) -> HostTree:
    """All host rows that can hold launches, nested; rows of autograd threads hang below what the main thread does.

    The backward pass runs on a thread of its own while the main thread waits inside the step that started it, so the
    outermost rows there get the main thread's innermost open row as their parent.
    """
    host = trace.host
    asynchronous = np.array([name.startswith(_ASYNCHRONOUS) for name in trace.strings], dtype=bool)
    rows = np.flatnonzero(~((host.category == USER_ANNOTATION) & asynchronous.take(host.name)))
    tree = build_tree(rows, host.thread, host.start_ns, host.duration_ns, host.python_id)
    main = main_thread(trace)
    if main == NONE:
        return tree
    autograd = among(tree.thread, autograd_threads(trace, main))
    orphans = np.flatnonzero(autograd & (tree.parent == NONE))
    on_main = np.full(len(orphans), main, dtype=np.int32)
    parent = tree.parent.copy()
    parent[orphans] = innermost(tree, on_main, tree.start_ns[orphans])
    return HostTree(tree.rows, tree.thread, tree.start_ns, tree.end_ns, parent)


def main_thread(trace: TraceEvents) -> int:
    """The thread that runs the training loop: the one with ProfilerStep annotations, else with most forward rows."""
    host = trace.host
    if not len(host):
        return NONE
    is_step = np.array([name.startswith("ProfilerStep#") for name in trace.strings], dtype=bool)
    stepping = host.thread[np.flatnonzero((host.category == USER_ANNOTATION) & is_step.take(host.name))]
    if len(stepping):
        return int(np.bincount(stepping).argmax())
    others = host.thread[~among(host.thread, _threads_with_nodes(trace))]
    return int(np.bincount(others if len(others) else host.thread).argmax())


def autograd_threads(trace: TraceEvents, main: int) -> Int64:
    """Threads other than the main one that run autograd nodes."""
    running = set(_threads_with_nodes(trace).tolist())
    running |= {index for index, thread in enumerate(trace.threads) if "pt_autograd" in thread.name}
    return np.array(sorted(running - {main}), dtype=np.int64)


def _threads_with_nodes(trace: TraceEvents) -> Int32:
    """Threads that run autograd nodes."""
    host = trace.host
    is_node = np.array([name.startswith(AUTOGRAD_NODE) for name in trace.strings], dtype=bool)
    return distinct(host.thread[np.flatnonzero((host.category == CPU_OP) & is_node.take(host.name))])


def find_launches(trace: TraceEvents, tree: HostTree) -> Launches:
    """Join kernels to runtime calls on the correlation id (flows are incomplete in real traces), and those to the
    call tree. A kernel without a runtime call but with the external id of an operator counts as launched by that
    operator."""
    device, launches, host = trace.device, trace.launches, trace.host
    row = _first_with(launches.correlation, device.correlation)
    thread = lookup(launches.thread.astype(np.int64), row).astype(np.int32)
    time_ns = lookup(launches.start_ns, row, MISSING)
    # The same external id is on an operator and on what it launched, but annotations number theirs likewise.
    operators = np.flatnonzero((host.category == CPU_OP) & (host.external_id > 0))
    by_operator = _first_with(host.external_id[operators], np.where(row == NONE, device.external_id, MISSING))
    operator = lookup(operators, by_operator)
    unlaunched = (row == NONE) & (operator >= 0)
    thread[unlaunched] = host.thread[operator[unlaunched]]
    time_ns[unlaunched] = host.start_ns[operator[unlaunched]]
    position = np.full(len(device), NONE, dtype=np.int64)
    known = thread >= 0
    position[known] = innermost(tree, thread[known], time_ns[known])
    return Launches(row, thread, time_ns, position)


def _first_with(keys: Int64, wanted: Int64) -> Int64:
    """For each wanted key the first row that has it, or NONE; 0 and MISSING are no keys."""
    if not len(keys):
        return np.full(len(wanted), NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.clip(np.searchsorted(keys[order], wanted), 0, len(keys) - 1)
    found = (keys[order[at]] == wanted) & (wanted != MISSING) & (wanted != 0)
    return np.where(found, order[at], NONE)
