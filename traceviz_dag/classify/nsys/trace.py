"""One rank's part of an Nsight Systems profile as the events that the classification takes from any format.

NVTX ranges become host rows: what PyTorch pushes for its operators is an operator, everything else an annotation.
NCCL's calls say which communicator a kernel runs on, as ``record_param_comms`` does in Kineto traces. Iterations become
``ProfilerStep#N`` annotations where the capture has none. Times are UTC where the capture states its start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.classify.launches import main_thread
from traceviz_dag.classify.nsys.calls import RangeColumns, launch_places, nccl_calls_of
from traceviz_dag.classify.rules import Rules
from traceviz_dag.read.events import (
    CPU_OP,
    KERNEL,
    MISSING,
    USER_ANNOTATION,
    CollectiveFacts,
    DeviceRows,
    HostRows,
    LaunchRows,
    ProcessGroup,
    ReadReport,
    SynchronizationRows,
    Thread,
    TraceEvents,
    TraceHeader,
)
from traceviz_dag.read.nsys.iterations import Iterations
from traceviz_dag.read.nsys.profile import MARK, PROCESS_BITS, SCHEMAS, NsysProfile

_ANNOTATION = re.compile(
    r"ProfilerStep#|Optimizer\.|FSDP::|CustomFSDP\.|DistributedDataParallel|nccl:|gloo:|## |enumerate\(DataLoader\)"
)
_OPERATOR = re.compile(
    r"(?:aten|autograd|c10d|torch|_?c10d_functional|transformer_engine|flash_attn\w*)::|\w+Backward\d*$"
)
_COPIED = (
    *("duration_ns", "device", "stream", "correlation", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers_per_thread", "shared_memory_bytes", "graph_id", "graph_node_id", "bytes"),
)
_OPERATION_COLUMNS = (
    *("name", "category", "start_ns", "process", "launch", "source_memory", "destination_memory"),
    *_COPIED,
)
_MEMORIES = ("Pageable", "Pinned", "Device")
"""Kinds of memory by CUDA's codes, as Kineto writes them."""
_RANGE_COLUMNS = (
    *("name", "kind", "start_ns", "end_ns", "thread", "operator", "sequence"),
    *("communicator", "message_bytes"),
)
_OF_RANKS = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS")
"""Tables whose rows are events of a rank start so."""

_LOW_BITS = (1 << PROCESS_BITS) - 1


@dataclass(frozen=True, slots=True)
class NsysPart:
    """What of a profile is one rank: the operations of one process on one GPU."""

    process: int
    device: int

    @property
    def key(self) -> str:
        """How lists of inputs name it."""
        return f"{self.process}:{self.device}"

    @classmethod
    def of_key(cls, key: str) -> NsysPart:
        """The part that a key names."""
        process, device = key.split(":")
        return cls(int(process), int(device))


class _Strings:
    """Strings and their codes; code 0 is the empty string."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"": 0}

    def code(self, word: str | None) -> int:
        return self.codes.setdefault(word or "", len(self.codes))

    def column(self, values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int32]:
        """A dictionary column as codes."""
        one = values.unify_dictionaries().combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        code_of = np.array([*(self.code(word) for word in one.dictionary.to_pylist()), 0], dtype=np.int32)
        indices = np.asarray(one.indices.fill_null(len(one.dictionary)).to_numpy(zero_copy_only=False))
        return code_of[indices]


def trace_events(
    profile: NsysProfile,
    part: NsysPart,
    header: TraceHeader,
    iterations: Iterations | None = None,
    rules: Rules | None = None,
) -> TraceEvents:
    """The events of one rank.

    Args:
        rules: where given, annotations that none of them gives a meaning are left out: around half a schedule, they
            would hide that a launch inside lies in no operator.
        header: what is known of the rank; its process groups name communicators and their members.
        iterations: the rank's iterations, in the capture's clock.
    """
    base = profile.facts.utc_start_ns or 0
    strings = _Strings()
    calls, first_call = profile.part("calls", part.process, *SCHEMAS["calls"].names)
    ranges, _ = profile.part("ranges", part.process, *_RANGE_COLUMNS)
    ranges = ranges.filter(pa.array(_numbers(ranges, "kind") != MARK))
    operations, _ = profile.part("operations", part.device, *_OPERATION_COLUMNS)
    operations = operations.filter(pa.array(_numbers(operations, "process") == part.process))
    threads = np.union1d(_numbers(ranges, "thread"), _numbers(calls, "thread"))
    ranges = _meaningful(ranges, rules) if rules is not None else ranges
    host = _host_rows(ranges, threads, strings, base)
    collective, nccl_rows, nccl_facts = _communication(operations, ranges, calls, first_call, header, strings)
    synchronizations = _synchronization_rows(profile, part, base)
    report = _report(profile, part, operations, len(operations) + len(calls) + len(ranges) + len(synchronizations))
    events = TraceEvents(
        header=header,
        strings=(),
        threads=_threads(profile, threads),
        host=host,
        launches=_launch_rows(calls, threads, strings, base),
        device=_device_rows(operations, strings, base, collective),
        communication_operators=nccl_rows,
        operator_facts=nccl_facts,
        report=report,
        synchronizations=synchronizations,
    )
    events = replace(events, strings=tuple(strings.codes))
    if iterations is None or "ProfilerStep" in iterations.source:
        return events
    return _with_steps(events, iterations, base, strings)


def _report(profile: NsysProfile, part: NsysPart, operations: pa.Table, rows: int) -> ReadReport:
    """What of the rank was not read, or of any rank, and whether kernels have no name."""
    dropped: Counter[str] = Counter()
    for lost in profile.facts.faults:
        mine = lost.process in (None, part.process) and lost.device in (None, part.device)
        if mine and not lost.nameless and lost.source.startswith(_OF_RANKS):
            of_any = ", of any rank" if lost.process is lost.device is None else ""
            dropped[f"row of table {lost.source} without usable times or numbers{of_any}"] += lost.rows
    kernels = operations.filter(pa.array(_numbers(operations, "category") == KERNEL))
    nameless = kernels["name"].null_count
    fault = f"{nameless:,} of {len(kernels):,} kernels have no name, so what communicates is not known; export it again"
    return ReadReport(rows + sum(dropped.values()), dropped, fault if nameless else None)


def _meaningful(ranges: pa.Table, rules: Rules) -> pa.Table:
    """Operators, NCCL's calls, and annotations that a frame rule matches."""
    columns = RangeColumns.of(ranges)
    rule = rules.match_frames(columns.names, USER_ANNOTATION)
    kept = np.array(
        [
            place >= 0 or word.startswith(("ProfilerStep#", "nccl")) or _OPERATOR.match(word) is not None
            for word, place in zip(columns.names, rule, strict=True)
        ]
    )
    pushed = np.asarray(ranges["operator"].to_numpy(zero_copy_only=False), dtype=bool)
    return ranges.filter(pa.array(kept[columns.name] | pushed))


def _host_rows(ranges: pa.Table, threads: Int64, strings: _Strings, base: int) -> HostRows:
    name = strings.column(ranges["name"])
    words = list(strings.codes)
    annotation = np.array([_ANNOTATION.match(word) is not None for word in words], dtype=bool)
    operator = np.array([_OPERATOR.match(word) is not None for word in words], dtype=bool)
    pushed = np.asarray(ranges["operator"].to_numpy(zero_copy_only=False), dtype=bool)
    is_operator = (pushed | operator[name]) & ~annotation[name]
    start = _numbers(ranges, "start_ns")
    nothing = np.full(len(start), MISSING, dtype=np.int64)
    return HostRows(
        name=name,
        input_sizes=np.zeros(len(start), dtype=np.int32),
        inputs=np.zeros(len(start), dtype=np.int32),
        category=np.where(is_operator, CPU_OP, USER_ANNOTATION).astype(np.int8),
        start_ns=start + base,
        duration_ns=_numbers(ranges, "end_ns") - start,
        thread=np.searchsorted(threads, _numbers(ranges, "thread")).astype(np.int32),
        external_id=nothing,
        python_id=nothing,
        python_parent_id=nothing,
        sequence_number=_numbers(ranges, "sequence"),
        forward_thread=nothing,
    )


def _launch_rows(calls: pa.Table, threads: Int64, strings: _Strings, base: int) -> LaunchRows:
    return LaunchRows(
        name=strings.column(calls["name"]),
        start_ns=_numbers(calls, "start_ns") + base,
        duration_ns=_numbers(calls, "duration_ns"),
        thread=np.searchsorted(threads, _numbers(calls, "thread")).astype(np.int32),
        correlation=_numbers(calls, "correlation"),
        external_id=np.full(calls.num_rows, MISSING, dtype=np.int64),
    )


def _synchronization_rows(profile: NsysProfile, part: NsysPart, base: int) -> SynchronizationRows:
    """Those of the process, also on its other GPUs: a host call may wait for these."""
    rows, _ = profile.part("synchronizations", part.process, *SCHEMAS["synchronizations"].names)
    copied = (
        "duration_ns",
        "device",
        "stream",
        "correlation",
        "wait_on_stream",
        "wait_on_device",
        "record_correlation",
    )
    return SynchronizationRows(
        kind=_numbers(rows, "kind").astype(np.int8),
        start_ns=_numbers(rows, "start_ns") + base,
        event=np.full(rows.num_rows, MISSING, dtype=np.int64),
        **{name: _numbers(rows, name) for name in copied},
    )


def _device_rows(operations: pa.Table, strings: _Strings, base: int, collective: CollectiveFacts) -> DeviceRows:
    process = _numbers(operations, "process")
    return DeviceRows(
        name=_with_memories(operations, strings),
        category=_numbers(operations, "category").astype(np.int8),
        start_ns=_numbers(operations, "start_ns") + base,
        external_id=np.full(operations.num_rows, MISSING, dtype=np.int64),
        process=(process & _LOW_BITS).astype(np.int32),
        collective=collective,
        **{name: _numbers(operations, name) for name in _COPIED},
    )


def _with_memories(operations: pa.Table, strings: _Strings) -> npt.NDArray[np.int32]:
    """Names of operations; those of copies with the kinds of memory that the export states, as Kineto's have them."""
    name = strings.column(operations["name"]).astype(np.int64)
    words = list(strings.codes)
    kinds = [_numbers(operations, f"{side}_memory") for side in ("source", "destination")]
    stated = np.flatnonzero(np.all([(one >= 0) & (one < len(_MEMORIES)) for one in kinds], axis=0))
    keys, inverse = np.unique(np.stack([name, *kinds])[:, stated], axis=1, return_inverse=True)
    codes = [
        strings.code(f"{words[code]} ({_MEMORIES[source]} -> {_MEMORIES[destination]})")
        if words[code].startswith("Memcpy") and "(" not in words[code]
        else code
        for code, source, destination in keys.T.tolist()
    ]
    name[stated] = np.array(codes, dtype=np.int64)[inverse.ravel()] if codes else name[stated]
    return name.astype(np.int32)


def _communication(
    operations: pa.Table, ranges: pa.Table, calls: pa.Table, first_call: int, header: TraceHeader, strings: _Strings
) -> tuple[CollectiveFacts, Int64, CollectiveFacts]:
    """Facts of each operation that an NCCL call launched; and of the calls themselves, as rows of ``ranges``."""
    columns = RangeColumns.of(ranges)
    of_profile = _numbers(operations, "launch")
    launch = launch_places(calls, np.where(of_profile < 0, NONE, of_profile - first_call))
    nccl, of_operation = nccl_calls_of(columns, *launch)
    members = {group.name: str(list(group.ranks)) for group in header.process_groups if group.name and group.ranks}
    sizes = {group.name: group.size for group in header.process_groups if group.name}
    communicator = strings.column(ranges["communicator"])
    bytes_ = _numbers(ranges, "message_bytes")
    known = nccl.bytes_of(bytes_)
    facts = _facts_of_calls(nccl.row, nccl.operation, nccl.words, communicator, known, members, sizes, strings)
    is_call = nccl.operation >= 0
    own = _taken(facts, of_operation)
    marked = np.flatnonzero(is_call)
    return own, nccl.row[marked], _taken(facts, marked)


def _facts_of_calls(
    row: Int64,
    operation: Int64,
    words: tuple[str, ...],
    communicator: npt.NDArray[np.int32],
    known: Int64,
    members: Mapping[str, str],
    sizes: Mapping[str, int],
    strings: _Strings,
) -> CollectiveFacts:
    count = len(row)
    group = communicator[row] if count else np.empty(0, dtype=np.int32)
    names = list(strings.codes)
    ranks = np.array([strings.code(members.get(names[code])) for code in group.tolist()], dtype=np.int32)
    size = np.array([sizes.get(names[code], MISSING) for code in group.tolist()], dtype=np.int64)
    word_codes = np.array([*(strings.code(word) for word in words), 0], dtype=np.int32)
    nothing, empty = np.full(count, MISSING, dtype=np.int64), np.zeros(count, dtype=np.int32)
    # Element types are not recorded: a message of N bytes counts as N elements of one byte.
    dtype = np.where(known != MISSING, strings.code("Byte"), 0).astype(np.int32)
    return CollectiveFacts(
        collective=word_codes[operation] if count else empty,
        group_name=group,
        group_description=empty,
        group_ranks=ranks,
        group_size=size,
        dtype=dtype,
        in_elements=known,
        out_elements=known,
        in_split=empty,
        out_split=empty,
        sequence=nothing,
        source_rank=nothing,
        destination_rank=nothing,
        group_address=nothing,
    )


def _taken(facts: CollectiveFacts, index: Int64) -> CollectiveFacts:
    """The facts of some calls; none where the index is NONE."""
    columns: dict[str, npt.NDArray[np.int32] | Int64] = {}
    for name in CollectiveFacts.__slots__:
        values = getattr(facts, name)
        absent = 0 if values.dtype == np.int32 else MISSING
        if len(values):
            columns[name] = np.where(index == NONE, absent, values[np.maximum(index, 0)]).astype(values.dtype)
        else:
            columns[name] = np.full(len(index), absent, dtype=values.dtype)
    return CollectiveFacts(**columns)  # type: ignore[arg-type]


def _threads(profile: NsysProfile, threads: Int64) -> tuple[Thread, ...]:
    table = profile.table("threads")
    names = dict(zip(table["thread"].to_pylist(), table["name"].to_pylist(), strict=True))
    return tuple(
        Thread((thread >> PROCESS_BITS) & _LOW_BITS, thread & _LOW_BITS, names.get(thread) or "")
        for thread in threads.tolist()
    )


def _with_steps(events: TraceEvents, iterations: Iterations, base: int, strings: _Strings) -> TraceEvents:
    """Add the iterations as ProfilerStep annotations on the training thread."""
    host = events.host
    main = main_thread(events)
    if main == NONE:
        main = 0
    names = [strings.code(f"ProfilerStep#{number}") for number in iterations.number.tolist()]
    count = len(names)
    added = {
        "name": np.array(names, dtype=np.int32),
        "input_sizes": np.zeros(count, dtype=np.int32),
        "inputs": np.zeros(count, dtype=np.int32),
        "category": np.full(count, USER_ANNOTATION, dtype=np.int8),
        "start_ns": iterations.start_ns + base,
        "duration_ns": iterations.end_ns - iterations.start_ns,
        "thread": np.full(count, main, dtype=np.int32),
    }
    nothing = np.full(count, MISSING, dtype=np.int64)
    columns = {name: np.concatenate([getattr(host, name), added.get(name, nothing)]) for name in HostRows.__slots__}
    threads = events.threads or (Thread(0, 0, ""),)
    return replace(events, host=HostRows(**columns), strings=tuple(strings.codes), threads=threads)


def communicator_groups(
    profile: NsysProfile, ranks: Mapping[int, int]
) -> dict[str, tuple[ProcessGroup, tuple[int, ...]]]:
    """The communicators that the processes of a profile use.

    Args:
        ranks: process → its rank; processes that hold several ranks must not be in it.

    Returns:
        Communicator → (its group with the members found, and these). The size is the one that NCCL's initialisation
        states where that was captured, else the number of members found.
    """
    table = profile.table("ranges", "thread", "communicator", "communicator_size", "communicator_rank")
    values = table["communicator"].unify_dictionaries().combine_chunks()
    names = values.dictionary.to_pylist()
    codes = np.asarray(values.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
    process = _numbers(table, "thread") >> PROCESS_BITS
    stated = _numbers(table, "communicator_size")
    found: dict[str, tuple[ProcessGroup, tuple[int, ...]]] = {}
    for code, name in enumerate(names):
        rows = codes == code
        used = sorted(ranks[one] for one in np.unique(process[rows]).tolist() if one in ranks)
        sizes = stated[rows & (stated != MISSING)]
        size = int(sizes.max()) if len(sizes) else len(used)
        if name and used:
            found[name] = (ProcessGroup(name, None, tuple(used), size), tuple(used))
    return found


def _numbers(table: pa.Table, name: str) -> Int64:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)
