"""What a communication does, whatever the trace calls it, and its bandwidth by the formulas of nccl-tests.

nccl-tests (doc/PERFORMANCE.md) divides a size by the time: the *algorithm bandwidth*. Times a factor of the group size
it is the *bus bandwidth*, which can be held against the speed of the links whatever the operation and the group.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

import numpy as np

from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.read.events import MISSING


class Operation(StrEnum):
    """A kind of communication."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"
    SEND = "send"
    RECEIVE = "recv"
    SEND_RECEIVE = "send_recv"
    OTHER = "other"


OPERATIONS = tuple(Operation)
"""The operation behind each code."""

ENDS_TOGETHER = frozenset(
    {
        Operation.ALL_REDUCE,
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.ALL_TO_ALL,
        Operation.BARRIER,
        Operation.SEND_RECEIVE,
    }
)
"""Operations in which no member can end before the last one has arrived, so that all end at about the same instant."""

_WORDS = (
    ("reducescatter", Operation.REDUCE_SCATTER),
    ("allreduce", Operation.ALL_REDUCE),
    ("allgather", Operation.ALL_GATHER),
    ("alltoall", Operation.ALL_TO_ALL),
    ("broadcast", Operation.BROADCAST),
    ("barrier", Operation.BARRIER),
    ("sendrecv", Operation.SEND_RECEIVE),
    ("gather", Operation.GATHER),
    ("scatter", Operation.SCATTER),
    ("reduce", Operation.REDUCE),
    ("send", Operation.SEND),
    ("recv", Operation.RECEIVE),
)
_BYTES_OF = {
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2", "char", "byte", "bool", "int8", "uint8", "signedchar", "unsignedchar"), 1
    ),
    **dict.fromkeys(("bfloat16", "half", "float16", "short", "int16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("double", "float64", "long", "int64", "complexfloat"), 8),
    # As NCCL's kernels are named, today and before 2.18.
    **dict.fromkeys(("f8e4m3", "f8e5m2", "i8", "u8", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("bf16", "f16", "__nv_bfloat16"), 2),
    **dict.fromkeys(("f32", "i32", "u32", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("f64", "i64", "u64", "int64_t", "uint64_t"), 8),
}
_REDUCTION = re.compile(
    r"(?:AllReduce|ReduceScatter|Reduce)_(?:(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv)_([a-z0-9_]+?)_[A-Z]"
    r"|[A-Z0-9_]+_(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv)_([a-z0-9_]+))"
)
"""Names since NCCL 2.18 (operation, type, algorithm), and earlier ones (algorithm, operation, type)."""
_RING = frozenset({Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL})
_ROOTED = frozenset({Operation.GATHER, Operation.SCATTER})


@lru_cache(maxsize=1 << 14)  # The ranks of a job have the same names.
def operation_of(collective: str | None, kernel_name: str | None) -> Operation:
    """The operation that a trace's own word for it means, else what the kernel's name says."""
    for text in (collective, kernel_name):
        plain = re.sub("[^a-z0-9]", "", (text or "").lower())
        for word, operation in _WORDS:
            if word in plain:
                return operation
    return Operation.OTHER


def reduced_type(kernel_name: str | None) -> str | None:
    """The type that NCCL's name of a reduction states, such as f16 in ncclDevKernel_AllReduce_Sum_f16_RING_LL; None for
    other kernels, which move bytes."""
    match = _REDUCTION.search(kernel_name or "")
    return None if match is None else match[1] or match[2]


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of PyTorch's or NCCL's name for a type; None where it is not known."""
    return _BYTES_OF.get(re.sub("^c10::| ", "", (dtype or "").lower()).removesuffix("tensor"))


def message_bytes(operation: Int64, in_elements: Int64, out_elements: Int64, size: Int64) -> Int64:
    """The size that nccl-tests reports: of the whole buffer, for a gather over all ranks together.

    Args:
        operation: codes of ``OPERATIONS``.
        in_elements, out_elements, size: elements of both buffers and bytes of an element; ``MISSING`` where unknown.

    Returns:
        Bytes, ``MISSING`` where they are not known.
    """
    gathers = np.isin(operation, [OPERATIONS.index(Operation.ALL_GATHER), OPERATIONS.index(Operation.GATHER)])
    elements = np.where(gathers, out_elements, in_elements)
    known = (elements != MISSING) & (size != MISSING)
    return np.where(known, elements * np.where(known, size, 1), MISSING)


def bus_factor(operation: Int64, members: Int64) -> Float64:
    """Bus bandwidth / algorithm bandwidth: 2(n-1)/n for an all-reduce, (n-1)/n for other gathers and exchanges, else 1.

    Args:
        operation: codes of ``OPERATIONS``.
        members: ranks of the group, n.
    """
    share = (members - 1) / np.maximum(members, 1)
    factor = np.ones(len(operation))
    halves = [OPERATIONS.index(each) for each in _RING | _ROOTED]
    factor = np.where(np.isin(operation, halves), share, factor)
    return np.where(operation == OPERATIONS.index(Operation.ALL_REDUCE), 2 * share, factor)


def bandwidth(nbytes: Int64, transfer_ns: Int64) -> Float64:
    """Algorithm bandwidth in GB/s (bytes per nanosecond); NaN where the size is unknown or no time passed."""
    known = (nbytes != MISSING) & (transfer_ns > 0)
    return np.where(known, nbytes / np.where(known, transfer_ns, 1), np.nan)
