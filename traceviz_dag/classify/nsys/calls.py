"""Which NCCL call of a profile's NVTX ranges launched which communication kernel, and what the call says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.host_tree import build_tree, innermost
from traceviz_dag.read.nsys.profile import MARK

ALL_TO_ALL = "all_to_allv"
"""An all-to-all, as torch.distributed calls it."""

OPERATIONS = {
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "_allgather_base",
    "ncclReduceScatter": "_reduce_scatter_base",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAllToAll": ALL_TO_ALL,
    "ncclAlltoAll": ALL_TO_ALL,
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
"""NCCL's calls, and what torch.distributed calls them."""

SEND_AND_RECEIVE = "coalesced"
"""A group of sends and receives at once, as torch.distributed calls it."""

ALL_TO_ALL_RANGES = frozenset({"nccl:all_to_all", "nccl:all_to_allv", "c10d::alltoall_", "c10d::alltoall_base_"})
"""PyTorch's ranges around the sends and receives that together are an all-to-all."""

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_IN_KERNEL_NAME = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class NcclCalls:
    """NCCL's calls of some processes.

    Attributes:
        row: row of ``ranges`` of each.
        operation: index into ``words``; of the last call of a group of sends and receives that of the group.
        own: index into ``words`` of the call itself; negative for the begin and end of groups.
        begin: of the last call of a group the group's begin, as an index into these; or NONE.
        words: operations as torch.distributed calls them; SEND_AND_RECEIVE is the last.
    """

    row: Int64
    operation: Int64
    own: Int64
    begin: Int64
    words: tuple[str, ...]

    def bytes_of(self, message_bytes: Int64) -> Int64:
        """The message size of each call; of a group all that it sends, or receives if it sends nothing.

        Args:
            message_bytes: of each row of ``ranges``, as NCCL states it; MISSING where it does not.
        """
        if not len(self.row):
            return np.empty(0, dtype=np.int64)
        stated = message_bytes[self.row]
        begin, known = np.maximum(self.begin, 0), stated != MISSING
        whole = stated
        for word in ("recv", "send"):
            mine = self.own == self.words.index(word)
            calls, unknown = np.cumsum(mine), np.cumsum(mine & ~known)
            moved = np.cumsum(np.where(mine & known, stated, 0))
            total = np.where(unknown > unknown[begin], MISSING, moved - moved[begin])
            whole = np.where((self.begin != NONE) & (calls > calls[begin]), total, whole)
        return whole


@dataclass(frozen=True, slots=True)
class RangeColumns:
    """NVTX ranges as arrays; ``name`` indexes ``names``, whose last one represents no name."""

    names: tuple[str, ...]
    name: npt.NDArray[np.int32]
    kind: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64

    @classmethod
    def of(cls, ranges: pa.Table) -> RangeColumns:
        """The columns of a table ``ranges``."""
        values = ranges["name"].unify_dictionaries().combine_chunks()
        words = values.dictionary.to_pylist()
        codes = np.asarray(values.indices.fill_null(len(words)).to_numpy(zero_copy_only=False), dtype=np.int32)
        columns = (
            np.asarray(ranges[name].to_numpy(), dtype=np.int64) for name in ("kind", "thread", "start_ns", "end_ns")
        )
        return cls((*(word or "" for word in words), ""), codes, *columns)


def nccl_calls_of(ranges: RangeColumns, launch_thread: Int64, launch_ns: Int64) -> tuple[NcclCalls, Int64]:
    """For each launch the NCCL call that it happened in.

    What a group launches is launched when the group ends, so it belongs to the group's last call; where a group both
    sends and receives, its operation is SEND_AND_RECEIVE, or ALL_TO_ALL where a range of PyTorch around it says so.

    Args:
        ranges: all ranges of the profile, or of some processes.
        launch_thread, launch_ns: of each launch; the thread is negative where unknown.

    Returns:
        The calls, and per launch the index of its call, or NONE.
    """
    names, name, thread, start_ns = ranges.names, ranges.name, ranges.thread, ranges.start_ns
    words = (*dict.fromkeys(OPERATIONS.values()), SEND_AND_RECEIVE)
    code_of = np.array([words.index(OPERATIONS[word]) if word in OPERATIONS else -1 for word in names], dtype=np.int64)
    start_of = np.array([word == _GROUP_START for word in names], dtype=bool)
    end_of = np.array([word == _GROUP_END for word in names], dtype=bool)
    rows = np.flatnonzero(((code_of >= 0) | start_of | end_of)[name] & (ranges.kind != MARK))
    nothing = np.full(len(launch_ns), NONE, dtype=np.int64)
    if not len(rows):
        return NcclCalls(rows, rows, rows, rows, words), nothing
    threads, place = np.unique(thread[rows], return_inverse=True)
    thread_number = np.zeros(len(thread), dtype=np.int32)
    thread_number[rows] = place
    tree = build_tree(rows, thread_number, start_ns, ranges.end_ns - start_ns)
    of_thread = np.minimum(np.searchsorted(threads, launch_thread), len(threads) - 1)
    known = threads[of_thread] == launch_thread
    position = nothing.copy()
    position[known] = innermost(tree, of_thread[known].astype(np.int32), launch_ns[known])

    operation = code_of[name[tree.rows]]
    call, begins = operation >= 0, start_of[name[tree.rows]]
    slots = np.arange(len(tree))
    last_call = np.maximum.accumulate(np.where(call, slots, NONE))
    last_begin = np.maximum.accumulate(np.where(begins, slots, NONE))
    sends = np.cumsum(operation == words.index("send"))
    receives = np.cumsum(operation == words.index("recv"))
    before = np.maximum(last_begin, 0)
    both = (last_begin != NONE) & (sends > sends[before]) & (receives > receives[before])
    # A call must be of the group that ends, on its thread.
    in_group = (last_call != NONE) & (last_call > last_begin) & (tree.thread[np.maximum(last_call, 0)] == tree.thread)
    target = np.where(call, slots, np.where(in_group, last_call, NONE))
    mixed, ended = (np.flatnonzero(~call & chosen & (target != NONE)) for chosen in (both, last_begin != NONE))
    operation, begin, own = operation.copy(), np.full(len(tree), NONE, dtype=np.int64), operation
    everybody = _within_all_to_all(ranges, thread[tree.rows[mixed]], start_ns[tree.rows[mixed]])
    operation[target[mixed]] = np.where(everybody, words.index(ALL_TO_ALL), words.index(SEND_AND_RECEIVE))
    begin[target[ended]] = last_begin[ended]
    found = np.where(position == NONE, NONE, target[np.maximum(position, 0)])
    return NcclCalls(tree.rows, operation, own, begin, words), found


def _within_all_to_all(ranges: RangeColumns, thread: Int64, time_ns: Int64) -> npt.NDArray[np.bool_]:
    """Whether a range around each of these instants says that it is part of an all-to-all."""
    inside = np.zeros(len(thread), dtype=bool)
    named = np.array([word in ALL_TO_ALL_RANGES for word in ranges.names], dtype=bool)
    rows = np.flatnonzero(named[ranges.name] & (ranges.kind != MARK))
    for one in np.unique(ranges.thread[rows]).tolist():
        asked, own = np.flatnonzero(thread == one), rows[ranges.thread[rows] == one]
        own = own[np.argsort(ranges.start_ns[own], kind="stable")]
        # Ranges of one thread nest, so an instant lies in one if the latest end of all that began is still to come.
        last = np.searchsorted(ranges.start_ns[own], time_ns[asked], side="right") - 1
        ends = np.maximum.accumulate(ranges.end_ns[own])
        inside[asked] = (last >= 0) & (ends[np.maximum(last, 0)] > time_ns[asked])
    return inside


def operation_in_name(kernel: str) -> str:
    """The operation that a communication kernel's own name shows, in NCCL's words; its bare name otherwise."""
    match = _IN_KERNEL_NAME.search(kernel)
    return (
        match[1] if match else kernel.split("(", maxsplit=1)[0].split("<", maxsplit=1)[0].removeprefix("void ").strip()
    )


def launch_places(calls: pa.Table, launch: Int64) -> tuple[Int64, Int64]:
    """(thread, start) of the call that launched each operation; a thread of NONE where none did."""
    thread = np.asarray(calls["thread"].to_numpy(), dtype=np.int64)
    start = np.asarray(calls["start_ns"].to_numpy(), dtype=np.int64)
    known = launch >= 0
    of_thread, of_start = np.full(len(launch), NONE, dtype=np.int64), np.zeros(len(launch), dtype=np.int64)
    of_thread[known], of_start[known] = thread[launch[known]], start[launch[known]]
    return of_thread, of_start
