"""Operators among the host rows: by name, outermost ones, and what lies inside which."""

from __future__ import annotations

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.events import CPU_OP, USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree

_DISTRIBUTED = ("c10d::", "record_param_comms", "nccl:", "gloo:")
_EXCHANGES = ("nccl:coalesced", "nccl:send", "nccl:recv", "c10d::send", "c10d::recv")


_SIZED_CONTEXT, _PACKED = "_DP_CP_GROUP_", "FlashAttnVarlenFunc"
"""In the descriptions of groups of a micro-batch's own size, and attention of packed sequences."""


def packs_sequences(trace: TraceEvents) -> bool:
    """Whether the trace shows that the job packs sequences, which then travel to the ranks that run them."""
    groups = trace.header.process_groups or ()
    return _PACKED in trace.strings or any(_SIZED_CONTEXT in (group.description or "") for group in groups)


def operators_named(trace: TraceEvents, tree: HostTree, *prefixes: str) -> Bool:
    """Tree positions of operators whose names begin with one of the prefixes."""
    named = np.array([name.startswith(prefixes) for name in trace.strings], dtype=bool)
    return (trace.host.category[tree.rows] == CPU_OP) & named[trace.host.name[tree.rows]]


def inside_operators(trace: TraceEvents, tree: HostTree) -> Bool:
    """Whether an operator lies around each tree position, those of ``torch.distributed`` itself aside."""
    distributed = np.array([name.startswith(_DISTRIBUTED) for name in trace.strings], dtype=bool)
    holds = (trace.host.category[tree.rows] == CPU_OP) & ~distributed[trace.host.name[tree.rows]]
    return lookup(tree.nearest(holds), tree.parent) != NONE


def outermost_operators(trace: TraceEvents, tree: HostTree, thread: int) -> Int64:
    """Tree positions of the operators of a thread around which no other operator lies, by start."""
    operator = trace.host.category[tree.rows] == CPU_OP
    around = lookup(tree.nearest(operator), tree.parent)
    return np.flatnonzero(operator & (tree.thread == thread) & (around == NONE))


def exchanges_between_steps(trace: TraceEvents, tree: HostTree, thread: int) -> Bool:
    """Tree positions where a thread sends to or receives from other ranks outside all operators.

    A pipeline does so between the steps of micro-batches; context-parallel attention does so inside an operator.
    """
    named = np.array([name.startswith(_EXCHANGES) for name in trace.strings], dtype=bool)
    category = trace.host.category[tree.rows]
    exchange = named[trace.host.name[tree.rows]] & ((category == CPU_OP) | (category == USER_ANNOTATION))
    return exchange & (tree.thread == thread) & ~inside_operators(trace, tree)
