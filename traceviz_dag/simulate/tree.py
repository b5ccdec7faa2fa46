"""The host's call tree as data: rows that nest, and the GPU work that they launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from traceviz_dag.vocabulary import Dimension, Kind, Phase


class RowKind(IntEnum):
    """What a host row is in the trace."""

    PYTHON = 0
    MODULE = 1
    OPERATOR = 2
    ANNOTATION = 3
    RUNTIME = 4


@dataclass(frozen=True, slots=True)
class Collective:
    """A communication as a rank calls it.

    Attributes:
        group: key of the process group among those of ``GROUP_OF``.
        operation: name in the trace's facts ("allreduce", "_allgather_base" ...).
        nbytes: the larger of input and output, bytes on one rank.
        role: what it carries; dimension: whom it serves.
        uneven: "dispatch" or "combine" where the router decides the split sizes of an all-to-all; empty otherwise.
        row_elements: elements of one token in such an all-to-all.
        via: group that it is recorded under, where that is not the group it serves.
        peer: for a message: 1 the next member of the group's ring, -1 the one before.
    """

    group: str
    operation: str
    in_elements: int
    out_elements: int
    dtype: str
    nbytes: int
    role: str
    dimension: Dimension
    uneven: str = ""
    row_elements: int = 1
    peer: int = 0
    via: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One direction of a point-to-point kernel: to or from the next (1) or the previous (-1) member of the ring."""

    sends: bool
    peer: int
    nbytes: int
    channel: str


class Bound(IntEnum):
    """What limits a kernel on the GPU."""

    NONE = 0
    PRODUCT = 1
    ATTENTION = 2
    MEMORY = 3


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch and the kernel or memory operation that it starts.

    Attributes:
        base_ns: duration on a healthy GPU; a collective's comes from its link instead.
        stream: name of the stream; ``after``: streams whose present end it waits for on the GPU.
        blocks: stream that waits for its end (empty: none does yet); ``records``: event that marks its end.
        phase: None takes the phase of its segment.
        messages: what a point-to-point kernel sends and receives.
        lost: the profiler's buffers lost its launch row.
        bound: what limits it, where a fault may act on that alone.
        by_tokens: whether the duration follows the tokens that the router sent to this rank.
        sizes: of the tensors that it reads, which the operator around it states as its inputs.
    """

    name: str
    kind: Kind
    base_ns: int = 0
    stream: str = "compute"
    after: tuple[str, ...] = ()
    blocks: str = ""
    records: str = ""
    call: str = "cudaLaunchKernel"
    collective: Collective | None = None
    phase: Phase | None = None
    messages: tuple[Message, ...] = ()
    by_tokens: bool = False
    lost: bool = False
    bound: Bound = Bound.NONE
    nbytes: int = 0
    grid: int = 132
    block: int = 128
    registers: int = 32
    shared_memory: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """A stream waits on the GPU for an event (``cudaStreamWaitEvent``)."""

    event: str
    stream: str = "compute"


@dataclass(frozen=True, slots=True)
class Row:
    """One host row with what happens inside it.

    Attributes:
        cost_ns: host time before its first child.
        sequence: index of the autograd node that it makes or, in the engine, runs; -1 none.
        backward: whether it runs the node; nested: whether the node was made in this same segment (recompute).
        facts: the communication that the row describes (``record_param_comms``).
    """

    kind: RowKind
    name: str
    children: tuple[Node, ...] = ()
    cost_ns: int = 0
    sequence: int = -1
    backward: bool = False
    nested: bool = False
    facts: Collective | None = None


@dataclass(frozen=True, slots=True)
class Synchronise:
    """The host waits for a stream, or for the whole device (empty stream)."""

    stream: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """The host loses exactly this time in the row around."""

    nanoseconds: int


Node = Row | Kernel | Wait | Synchronise | Pause


def kernels_of(nodes: Iterable[Node]) -> Iterator[Kernel]:
    """All kernels of some nodes and of what they hold, in order."""
    for node in nodes:
        if isinstance(node, Kernel):
            yield node
        elif isinstance(node, Row):
            yield from kernels_of(node.children)


def without_kernels(row: Row, left_out: Callable[[Kernel], bool]) -> Row:
    """A row without some of the kernels that it holds."""
    children = (without_kernels(node, left_out) if isinstance(node, Row) else node for node in row.children)
    return replace(row, children=tuple(node for node in children if not (isinstance(node, Kernel) and left_out(node))))


COMPUTE_STREAMS = ("compute", "communication")
"""Streams on which a program computes; on every other one an event marks the end of each kernel."""


def py(file: str, function: str, *children: Node) -> Row:
    """A Python function; its line number follows from the job's seed and era."""
    return Row(RowKind.PYTHON, f"{file}(@): {function}", children)


def builtin(name: str, *children: Node) -> Row:
    """A built-in function: ``<built-in ...>``; ``0x`` in the name represents an address."""
    return Row(RowKind.PYTHON, f"<built-in {name}>", children)


def module(name: str, *children: Node) -> Row:
    """An ``nn.Module`` call with the frame beneath it; the trace adds its instance number."""
    return Row(RowKind.MODULE, name, (py("torch/nn/modules/module.py", "_call_impl", *children),))


def op(name: str, *children: Node, sequence: int = -1) -> Row:
    """A CPU operator."""
    return Row(RowKind.OPERATOR, name, children, sequence=sequence)


def annotation(name: str, *children: Node) -> Row:
    """A user annotation."""
    return Row(RowKind.ANNOTATION, name, children)


def call(name: str, cost_ns: int = 900) -> Row:
    """A runtime call that starts no kernel."""
    return Row(RowKind.RUNTIME, name, (), cost_ns=cost_ns)


def synchronise(stream: str = "") -> Row:
    """The runtime call in which the host waits for a stream, or for the device."""
    name = "cudaStreamSynchronize" if stream else "cudaDeviceSynchronize"
    return Row(RowKind.RUNTIME, name, (Synchronise(stream),), cost_ns=700)


def pause(name: str, nanoseconds: int) -> Row:
    """A Python frame in which the host loses exactly this time."""
    return Row(RowKind.PYTHON, name, (Pause(nanoseconds),))


def without_graph(row: Row) -> Row:
    """The same tree under ``no_grad``: its operators make no autograd nodes."""
    children = tuple(without_graph(child) if isinstance(child, Row) else child for child in row.children)
    return replace(row, children=children, sequence=-1)


def in_phase(row: Row, phase: Phase) -> Row:
    """The same tree with its GPU work marked with a phase of its own."""

    def marked(node: Node) -> Node:
        if isinstance(node, Row):
            return in_phase(node, phase)
        return replace(node, phase=phase) if isinstance(node, Kernel) else node

    return replace(row, children=tuple(marked(child) for child in row.children))


def on_stream(row: Row, stream: str) -> Row:
    """The same tree with its compute-stream work on another stream."""
    if stream == "compute":
        return row

    def moved(node: Node) -> Node:
        if isinstance(node, Row):
            return on_stream(node, stream)
        return replace(node, stream=stream) if isinstance(node, Kernel) and node.stream == "compute" else node

    return replace(row, children=tuple(moved(child) for child in row.children))


def recording(row: Row, event: str) -> Row:
    """The same tree whose last kernel marks an event with its end."""
    children = list(row.children)
    for index in reversed(range(len(children))):
        child = children[index]
        if isinstance(child, Kernel):
            children[index] = replace(child, records=event)
            break
        if isinstance(child, Row):
            changed = recording(child, event)
            if changed is not child:
                children[index] = changed
                break
    else:
        return row
    return replace(row, children=tuple(children))


def nested(row: Row) -> Row:
    """Engine rows that run nodes made in their own segment."""
    children = tuple(nested(child) if isinstance(child, Row) else child for child in row.children)
    return replace(row, children=children, nested=row.backward)


class Nodes:
    """The autograd nodes that a forward segment makes, by role, so that the backward segment can name them."""

    def __init__(self) -> None:
        self.roles: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.roles)

    def new(self, role: str) -> int:
        """The index of a new node."""
        return self.roles.setdefault(role, len(self.roles))

    def __getitem__(self, role: str) -> int:
        return self.roles[role]


def evaluate(name: str, sequence: int, *children: Node, after: Iterable[Node] = ()) -> Row:
    """The autograd engine runs one backward node; ``after`` follows it inside the engine's frame."""
    inner = Row(RowKind.OPERATOR, name, children, sequence=sequence, backward=True)
    title = f"autograd::engine::evaluate_function: {name}"
    return Row(RowKind.OPERATOR, title, (inner, *after), sequence=sequence, backward=True)
