"""Operators among the host rows: by name, outermost ones, and what lies inside which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.events import CPU_OP, PYTHON_FUNCTION, USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree

_DISTRIBUTED = ("c10d::", "record_param_comms", "nccl:", "gloo:")
_EXCHANGES = ("nccl:coalesced", "nccl:send", "nccl:recv", "c10d::send", "c10d::recv")


_SIZED_CONTEXT, _PACKED = "_DP_CP_GROUP_", "FlashAttnVarlenFunc"
"""In the descriptions of groups of a micro-batch's own size, and attention of packed sequences."""


WHOLE = frozenset(
    {
        *("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm"),
        *("aten::convolution", "aten::convolution_backward", "aten::batch_norm"),
        *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward"),
        *(
            f"aten::_scaled_dot_product_{kind}_attention{direction}"
            for kind in ("flash", "efficient", "cudnn")
            for direction in ("", "_backward")
        ),
    }
)
"""Operators that are one operation with all that they call. Their names are those of every vendor: what they call, such
as ``aten::miopen_convolution``, differs from GPU to GPU."""

GATHERING = frozenset({"_Linear", "_LayerNormLinear", "_LayerNormMLP", "_LayerNormMLPBackward"})
"""Functions of Transformer Engine that state one rank's shard of an activation, and gather the others before they
multiply, where the sequence is sharded over tensor-parallel ranks."""

_WHOLE_PREFIX = "c10d::"
_BACKWARD = "Backward"


@dataclass(frozen=True, slots=True)
class LaunchingOperators:
    """Which operation launched each kernel, and with which inputs; one entry per kernel.

    Attributes:
        call: number of the call, equal for all kernels of one; NONE where no operator or annotation is recorded.
        name: code of its name in ``TraceEvents.strings``, 0 where there is none.
        inputs: code of its inputs in ``TraceEvents.operator_inputs``, 0 where none are recorded.
        forward_inputs: the same of the forward pass of the autograd function whose backward pass it is; else 0.
        backward_inputs: the same of the backward pass of an operator of GATHERING; else 0.
        annotation: whether it is an annotation, of what lies in no operator.
        gathering: number of the call of an operator of GATHERING around the launch; NONE where there is none.
    """

    call: Int64
    name: Int64
    inputs: Int64
    forward_inputs: Int64
    backward_inputs: Int64
    annotation: Bool
    gathering: Int64


def launching_operators(trace: TraceEvents, tree: HostTree, innermost: Int64, launched_at: Int64) -> LaunchingOperators:
    """The innermost operator around each launch that states its inputs; else the innermost one; else an annotation.

    Args:
        innermost: per tree position the innermost operator, or NONE.
        launched_at: tree position of each launch, NONE where unknown.
    """
    host, rows = trace.host, tree.rows
    operator = host.category[rows] == CPU_OP
    stating = operator & (host.inputs[rows] > 0)
    whole = np.array([name in WHOLE or name.startswith(_WHOLE_PREFIX) for name in trace.strings], dtype=bool)
    gathering = np.array([name in GATHERING for name in trace.strings], dtype=bool)
    found = np.full(len(launched_at), NONE, dtype=np.int64)
    others = ~operator & (host.category[rows] != PYTHON_FUNCTION)
    for marked in (stating & whole.take(host.name[rows]), stating, operator, others):
        missing = np.flatnonzero((found == NONE) & (launched_at != NONE))
        if len(missing) and marked.any():
            around = innermost if marked is operator else tree.nearest(marked)
            found[missing] = lookup(around, launched_at[missing])
    own = lookup(rows, found)
    inputs = lookup(host.inputs.astype(np.int64), own, 0)
    return LaunchingOperators(
        call=found,
        name=lookup(host.name.astype(np.int64), own, 0),
        inputs=inputs,
        forward_inputs=_forward_inputs(trace, own),
        backward_inputs=_backward_inputs(trace, own),
        annotation=lookup((host.category == USER_ANNOTATION).astype(np.int64), own, 0) == 1,
        gathering=lookup(tree.nearest(operator & gathering.take(host.name[rows])), launched_at),
    )


def _forward_inputs(trace: TraceEvents, own: Int64) -> Int64:
    """Inputs of the forward pass of each host row that is the backward pass of an autograd function, else 0.

    Both have the number of the graph's node. Of several rows with the number and name, the last made the node.
    """
    host, known = trace.host, {name: code for code, name in enumerate(trace.strings)}
    forward_of = np.full(len(trace.strings), NONE, dtype=np.int64)
    for name, code in known.items():
        if name.endswith(_BACKWARD) and name.removesuffix(_BACKWARD) in known:
            forward_of[code] = known[name.removesuffix(_BACKWARD)]
    found = np.zeros(len(own), dtype=np.int64)
    number = lookup(host.sequence_number, own)
    wanted_name = lookup(forward_of, lookup(host.name.astype(np.int64), own))
    wanted = np.flatnonzero((wanted_name > 0) & (number >= 0))
    is_wanted = np.zeros(len(trace.strings), dtype=bool)
    is_wanted[wanted_name[wanted]] = True
    makers = np.flatnonzero(is_wanted.take(host.name) & (host.inputs > 0) & (host.sequence_number >= 0))
    if not len(makers):
        return found
    keys = host.name[makers].astype(np.int64), host.sequence_number[makers]
    order = np.lexsort((host.start_ns[makers], *keys))
    last = {
        (name, place): row
        for name, place, row in zip(*(key[order].tolist() for key in keys), makers[order].tolist(), strict=True)
    }
    for at in wanted.tolist():
        row = last.get((int(wanted_name[at]), int(number[at])))
        if row is not None:
            found[at] = host.inputs[row]
    return found


def _backward_inputs(trace: TraceEvents, own: Int64) -> Int64:
    """Inputs of the backward pass of each host row that is an operator of GATHERING, else 0: the graph's node again."""
    host, known = trace.host, {name: code for code, name in enumerate(trace.strings)}
    found = np.zeros(len(own), dtype=np.int64)
    name, number = (lookup(column.astype(np.int64), own) for column in (host.name, host.sequence_number))
    for forward in sorted(GATHERING & known.keys()):
        backward = known.get(f"{forward}{_BACKWARD}", NONE)
        made = np.flatnonzero((host.name == backward) & (host.inputs > 0) & (host.sequence_number >= 0))
        if not len(made):
            continue
        made = made[np.argsort(host.sequence_number[made], kind="stable")]
        numbers = host.sequence_number[made]
        wanted = np.flatnonzero((name == known[forward]) & (number >= 0))
        at = np.minimum(np.searchsorted(numbers, number[wanted]), len(numbers) - 1)
        found[wanted] = np.where(numbers[at] == number[wanted], host.inputs[made[at]], 0)
    return found


def packs_sequences(trace: TraceEvents) -> bool:
    """Whether the trace shows that the job packs sequences, which then travel to the ranks that run them."""
    groups = trace.header.process_groups or ()
    return _PACKED in trace.strings or any(_SIZED_CONTEXT in (group.description or "") for group in groups)


def operators_named(trace: TraceEvents, tree: HostTree, *prefixes: str) -> Bool:
    """Tree positions of operators whose names begin with one of the prefixes."""
    named = np.array([name.startswith(prefixes) for name in trace.strings], dtype=bool)
    return ((trace.host.category == CPU_OP) & named.take(trace.host.name))[tree.rows]


def inside_operators(trace: TraceEvents, tree: HostTree) -> Bool:
    """Whether an operator lies around each tree position, those of ``torch.distributed`` itself aside."""
    distributed = np.array([name.startswith(_DISTRIBUTED) for name in trace.strings], dtype=bool)
    holds = (trace.host.category[tree.rows] == CPU_OP) & ~distributed.take(trace.host.name[tree.rows])
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
