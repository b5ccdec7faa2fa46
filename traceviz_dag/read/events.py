"""Typed columnar events: what a reader of any format hands to the classification.

Strings are dictionary codes into ``TraceEvents.strings`` (code 0 is the empty string, "not given"). Times are int64
nanoseconds on the rank's clock. An integer that an event does not carry is ``MISSING``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from traceviz_dag.arrays import Int8, Int32, Int64

MISSING = -(2**62)
"""Represents an absent integer in event columns; no real value reaches it."""

CPU_OP, PYTHON_FUNCTION, USER_ANNOTATION = 0, 1, 2
"""Codes of ``HostRows.category``."""

KERNEL, MEMORY_COPY, MEMORY_SET = 0, 1, 2
"""Codes of ``DeviceRows.category``."""

EVENT_SYNCHRONIZE, STREAM_WAIT, STREAM_SYNCHRONIZE, DEVICE_SYNCHRONIZE, EVENT_RECORD, OTHER_SYNCHRONIZATION = range(6)
"""Codes of ``SynchronizationRows.kind``."""

UNRESOLVED = -1
"""What profilers write for a stream or record of a synchronisation that they did not find."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group as a trace header or a topology file states it.

    Attributes:
        name: pg_name, the same string on each member; None where the source has none.
        description: pg_desc; None where the source has none or says "undefined".
        ranks: members in group order; empty where the source does not list them.
        size: number of members.
    """

    name: str | None
    description: str | None
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """Whitelisted facts of a trace's header; host and user names, paths and environments are never kept.

    ``captured_ranks`` are those that the capture meant to record, as ``0-3, 6``; ``host_clock_ns`` is UTC minus the
    monotonic clock of the rank's host. Both are None where nothing states them.
    """

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    process_groups: tuple[ProcessGroup, ...] = ()
    with_stack: bool | None = None
    record_shapes: bool | None = None
    base_time_ns: int = 0
    schema_version: int | None = None
    device_name: str | None = None
    nccl_version: str | None = None
    runtime_version: str | None = None
    driver_version: str | None = None
    driver_release: str | None = None
    profiler_version: str | None = None
    device_memory_bytes: int | None = None
    profile_memory: bool | None = None
    captured_ranks: str | None = None
    host_clock_ns: int | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TracePeek:
    """What a look at a trace shows, without reading its events.

    Attributes:
        header: its header.
        steps: numbers of its ProfilerSteps, ascending.
        has_kernels: it holds kernels.
        has_stacks: it holds Python functions.
        has_operators: it holds CPU operators.
        has_shapes: some of them state the sizes of their inputs.
        first_ns: wall clock near its first event, ns since 1970; None where the trace does not show.
        fault: why its end cannot be vouched for: the stream ends early, or the JSON does; None where it is whole.
    """

    header: TraceHeader
    steps: tuple[int, ...] = ()
    has_kernels: bool = False
    has_stacks: bool = False
    has_operators: bool = False
    has_shapes: bool = False
    first_ns: int | None = None
    fault: str | None = None


def bounded(text: str, longest: int) -> str:
    """A text, or in the place of a longer one its digest: texts are compared, and never computed with."""
    return text if len(text) <= longest else f"#{blake2b(text.encode(), digest_size=8).hexdigest()}"


class OperatorInputs(NamedTuple):
    """What an operator states of its inputs: JSON lists with an entry for each argument, empty where not recorded.

    Attributes:
        sizes: of tensors, and of the tensors in lists.
        types: element types, or what an argument is instead of a tensor.
        strides: in elements.
        values: numbers, truth values and lists of these, as text, of operators whose work depends on them.
    """

    sizes: str = ""
    types: str = ""
    strides: str = ""
    values: str = ""


@dataclass(frozen=True, slots=True)
class HostRows:
    """CPU operators, Python functions and user annotations, in file order.

    Attributes:
        input_sizes: codes of strings: the sizes of an operator's inputs; 0 where it states none, or no tensor has any.
        inputs: codes of ``TraceEvents.operator_inputs``, 0 where an operator states no inputs.
    """

    name: Int32
    input_sizes: Int32
    inputs: Int32
    category: Int8
    start_ns: Int64
    duration_ns: Int64
    thread: Int32
    external_id: Int64
    python_id: Int64
    python_parent_id: Int64
    sequence_number: Int64
    forward_thread: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class LaunchRows:
    """Runtime and driver calls, in file order."""

    name: Int32
    start_ns: Int64
    duration_ns: Int64
    thread: Int32
    correlation: Int64
    external_id: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """What a trace says of a communication; one row per device row, or per ``record_param_comms`` operator.

    ``group_address`` is equal for all communications of one group of a process, and means nothing elsewhere.
    """

    collective: Int32
    group_name: Int32
    group_description: Int32
    group_ranks: Int32
    group_size: Int64
    dtype: Int32
    in_elements: Int64
    out_elements: Int64
    in_split: Int32
    out_split: Int32
    sequence: Int64
    source_rank: Int64
    destination_rank: Int64
    group_address: Int64

    def __len__(self) -> int:
        return len(self.collective)


COLLECTIVE_NUMBERS = (
    *("group_size", "in_elements", "out_elements", "sequence", "source_rank", "destination_rank", "group_address"),
)
"""Columns of ``CollectiveFacts`` that hold integers; the others are codes of strings."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Kernels, memory copies and memory sets, in file order."""

    name: Int32
    category: Int8
    start_ns: Int64
    duration_ns: Int64
    device: Int64
    stream: Int64
    correlation: Int64
    external_id: Int64
    process: Int32
    grid_x: Int64
    grid_y: Int64
    grid_z: Int64
    block_x: Int64
    block_y: Int64
    block_z: Int64
    registers_per_thread: Int64
    shared_memory_bytes: Int64
    graph_id: Int64
    graph_node_id: Int64
    bytes: Int64
    collective: CollectiveFacts

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class SynchronizationRows:
    """What the profiler recorded of synchronisations and of recorded events, in file order.

    Attributes:
        kind: which synchronisation; EVENT_RECORD says on which stream an event was recorded.
        start_ns, duration_ns: as the profiler gives them; MISSING where it does not.
        device: GPU of the stream.
        stream: the stream that waits, that the host waits for, or on which the event was recorded; MISSING where none.
        correlation: of the host call.
        wait_on_stream, wait_on_device: stream and GPU of the event that is waited for; may be UNRESOLVED.
        record_correlation: of the call that recorded this event; may be UNRESOLVED.
        event: number of the event. Numbers are used again: a record's correlation shows more, where it is given.
    """

    kind: Int8
    start_ns: Int64
    duration_ns: Int64
    device: Int64
    stream: Int64
    correlation: Int64
    wait_on_stream: Int64
    wait_on_device: Int64
    record_correlation: Int64
    event: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def no_synchronizations() -> SynchronizationRows:
    """What a trace has whose profiler recorded no synchronisations."""
    nothing = np.empty(0, np.int64)
    return SynchronizationRows(nothing.astype(np.int8), *[nothing] * (len(SynchronizationRows.__slots__) - 1))


@dataclass(frozen=True, slots=True)
class Thread:
    """One host thread."""

    process_id: int
    thread_id: int
    name: str


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What was read from a file and what was not.

    Attributes:
        rows_read: events decoded, of all categories.
        dropped: reason → number of events dropped for it.
        fault: one line on what is wrong with the file and what to do; None when nothing is.
        breaks_off: whether the file ends amid its events: what is missing comes after them.
        digest: of the file, where reading it gave that; else None.
    """

    rows_read: int
    dropped: dict[str, int] = field(default_factory=dict)
    fault: str | None = None
    breaks_off: bool = False
    digest: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TraceEvents:
    """One trace file in columns.

    Attributes:
        communication_operators: rows of ``host`` that state facts of a communication, aligned with ``operator_facts``:
            ``record_param_comms`` operators, and annotations inside them.
        operator_inputs: the different inputs of operators, the first of them none; ``HostRows.inputs`` are their codes.
    """

    header: TraceHeader
    strings: tuple[str, ...]
    threads: tuple[Thread, ...]
    host: HostRows
    launches: LaunchRows
    device: DeviceRows
    communication_operators: Int64
    operator_facts: CollectiveFacts
    report: ReadReport
    synchronizations: SynchronizationRows = field(default_factory=no_synchronizations)
    operator_inputs: tuple[OperatorInputs, ...] = (OperatorInputs(),)


def same_events(one: object, other: object) -> bool:
    """Whether two traces, or parts of traces, hold the same."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)  # type: ignore[arg-type]
    if is_dataclass(one) and type(one) is type(other):
        return all(
            same_events(getattr(one, each.name), getattr(other, each.name)) for each in fields(one) if each.compare
        )
    return one == other
