"""Call trees flattened to arrays: offsets of rows and launches on the host's time line, once per kind of segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from zlib import crc32

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.settings import Era, JobSettings
from traceviz_dag.simulate.tree import (
    COMPUTE_STREAMS,
    Collective,
    Kernel,
    Node,
    Nodes,
    Pause,
    Row,
    RowKind,
    Synchronise,
    Wait,
)

LAUNCH, WAIT, SYNCHRONISE, PAUSE, RECORD, TELL = range(6)

_COST = {
    RowKind.PYTHON: (900, 350),
    RowKind.MODULE: (1_100, 400),
    RowKind.OPERATOR: (1_300, 600),
    RowKind.ANNOTATION: (800, 300),
    RowKind.RUNTIME: (500, 200),
}
_LAUNCH_COST = {"cudaLaunchKernel": 3_400, "cudaMemcpyAsync": 4_200, "cudaGraphLaunch": 9_000}
_UNTRACED_PYTHON = 0.22
_TINY_NS = 2_600
_NO_GRAD = ": decorate_context"
_FACTORIES = ("aten::zeros", "aten::ones", "aten::ones_like", "aten::empty")
_ODD_NAME = "<built-in method \x01 of Tensor object at 0x>"
_FILLERS = (
    "<built-in function isinstance>",
    "<built-in function getattr>",
    "<built-in function len>",
    "<built-in method size of Tensor object at 0x>",
    "<built-in method get of dict object at 0x>",
    "torch/nn/modules/module.py(@): __getattr__",
    "megatron/core/utils.py(@): nvtx_range_push",
    "megatron/core/parallel_state.py(@): is_initialized",
    "torch/distributed/distributed_c10d.py(@): get_rank",
)


@dataclass(slots=True)
class FlatRow:
    """A host row of a template: where it lies on the segment's time line and what it refers to.

    ``reads`` is the autograd node that would be made next, for an operator that makes none but runs where nodes are
    made: the profiler writes the counter's value all the same (-1 elsewhere).
    """

    kind: RowKind
    name: str
    begin: int
    end: int
    parent: int
    owner: int
    sequence: int = -1
    backward: bool = False
    nested: bool = False
    facts: Collective | None = None
    kernel: int = -1
    reads: int = -1


@dataclass(slots=True)
class Template:
    """One kind of segment.

    Attributes:
        rows: host rows, parents before children; ``parent`` is the row of the Python frame around, ``owner`` that of
            the operator around (-1: outside the segment).
        kernels: launches in order; ``launch_ends``: when the host has issued each; ``base_ns``: their durations.
        actions: what the model must do in order: (LAUNCH, kernel), (WAIT, stream, event), (SYNCHRONISE, stream),
            (PAUSE, nanoseconds). With rows of synchronisation also what they show, which changes no time: (RECORD,
            stream, event), (TELL, stream, event).
        synchronisations: offsets at which the host may be held up.
        key: by which the library keeps it; what is before the first colon says what kind of work it is.
        recording, waiting, holding: rows that record an event, let a stream wait for one, or hold the host until a
            stream ends, each with its stream (empty: the device); only with rows of synchronisation.
        nodes: autograd nodes that the segment makes.
        ghost: kernels of a CUDA graph, launched by an earlier segment's ``cudaGraphLaunch``; without rows.
    """

    total_ns: int
    rows: list[FlatRow]
    kernels: list[Kernel]
    launch_ends: Int64
    base_ns: Int64
    actions: list[tuple[int, int, str]]
    synchronisations: Int64
    autograd: bool
    nodes: int
    ghost: bool = False
    key: str = ""
    recording: list[tuple[int, str]] = field(default_factory=list)
    waiting: list[tuple[int, str]] = field(default_factory=list)
    holding: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class _Flattener:
    settings: JobSettings
    generator: np.random.Generator
    makes_nodes: bool
    made: int = 0
    clock: int = 0
    rows: list[FlatRow] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    launch_ends: list[int] = field(default_factory=list)
    actions: list[tuple[int, int, str]] = field(default_factory=list)
    synchronisations: list[int] = field(default_factory=list)
    recording: list[tuple[int, str]] = field(default_factory=list)
    waiting: list[tuple[int, str]] = field(default_factory=list)
    holding: list[tuple[int, str]] = field(default_factory=list)

    def spend(self, cost_ns: float) -> None:
        self.clock += max(60, int(cost_ns * self.generator.uniform(0.6, 1.7)))

    def add(self, node: Node, parent: int, owner: int) -> None:
        if isinstance(node, Row):
            self.add_row(node, parent, owner)
        elif isinstance(node, Kernel):
            self.add_launch(node, owner)
        elif isinstance(node, Wait):
            self.add_wait(node, parent, owner)
        elif isinstance(node, Synchronise):
            self.synchronisations.append(self.clock)
            self.actions.append((SYNCHRONISE, self.clock, node.stream))
            if self.settings.cuda_sync:
                self.holding.append((len(self.rows) - 1, node.stream))
        else:
            self.synchronisations.append(self.clock)
            self.actions.append((PAUSE, self.clock, str(node.nanoseconds)))

    def add_wait(self, wait: Wait, parent: int, owner: int) -> None:
        told = self.settings.cuda_sync
        recorded = wait.event.removeprefix("stream:")
        free = self.clock
        self.spend(150)
        if told and recorded != wait.event and recorded in COMPUTE_STREAMS:
            self.add_record(recorded, "", owner, (free, self.clock))
        index = len(self.rows)
        self.rows.append(FlatRow(RowKind.RUNTIME, "cudaStreamWaitEvent", self.clock, 0, parent, owner))
        self.actions.append((WAIT, 0, f"{wait.stream}|{wait.event}"))
        self.finish(index)
        if told:
            self.tell_wait(index, wait.stream, wait.event)

    def add_record(self, stream: str, event: str, owner: int, span: tuple[int, int]) -> None:
        """An event is recorded on a stream, under a name or none."""
        index = len(self.rows) - 1
        if not self._calls_record(index, owner):
            newest = self.settings.era is Era.TORCH_2_7
            index = self.add_call("cudaEventRecordWithFlags" if newest else "cudaEventRecord", owner, span)
        self.recording.append((index, stream))
        self.actions.append((RECORD, 0, f"{stream}|{event}"))

    def _calls_record(self, index: int, owner: int) -> bool:
        """Whether a row is the record's call already: the tree has one where a collective begins."""
        if index < 0 or (self.recording and self.recording[-1][0] == index):
            return False
        return self.rows[index].name == "cudaEventRecord" and self.rows[index].owner == owner

    def tell_wait(self, index: int, stream: str, event: str) -> None:
        self.waiting.append((index, stream))
        self.actions.append((TELL, 0, f"{stream}|{event}"))

    def add_call(self, name: str, owner: int, span: tuple[int, int]) -> int:
        """A call that only rows of synchronisation show, within a span of host time that passes in any case."""
        begin, end = span
        margin = (end - begin) // 8
        self.rows.append(FlatRow(RowKind.RUNTIME, name, begin + margin, end - margin, -1, owner))
        return len(self.rows) - 1

    def begin(self, row: FlatRow) -> int:
        self.spend(150)
        row.begin = self.clock
        self.rows.append(row)
        return len(self.rows) - 1

    def finish(self, index: int) -> None:
        self.spend(120)
        self.rows[index].end = self.clock

    def add_row(self, row: Row, parent: int, owner: int) -> None:
        flat = FlatRow(row.kind, row.name, 0, 0, parent, owner, row.sequence, row.backward, row.nested)
        flat.facts = row.facts
        makes_nodes = self._count_nodes(row, flat)
        index = self.begin(flat)
        is_python = row.kind in (RowKind.PYTHON, RowKind.MODULE)
        before, after = _COST[row.kind]
        traced = self.settings.stacks or not is_python
        self.spend((row.cost_ns or before) * (1.0 if traced else _UNTRACED_PYTHON))
        parent = index if is_python else parent
        # A collective's facts belong to record_param_comms, not to the annotation that its launch is in.
        inside_facts = owner >= 0 and self.rows[owner].facts is not None
        if row.kind is RowKind.OPERATOR or (row.kind is RowKind.ANNOTATION and not inside_facts):
            owner = index
        for child in row.children:
            # A pause is a fault's, which leaves all else as it is.
            if is_python and not isinstance(child, Pause) and self.generator.random() < self.settings.filler_frames:
                self.add_filler(parent, owner)
            self.add(child, parent, owner)
        self.makes_nodes = makes_nodes
        self.spend(after * (1.0 if traced else _UNTRACED_PYTHON))
        self.finish(index)

    def _count_nodes(self, row: Row, flat: FlatRow) -> bool:
        """Follow the counter of autograd nodes; returns whether nodes are made where the row is, and sets whether they
        are inside it: neither under ``no_grad`` nor inside an operator."""
        makes_nodes = self.makes_nodes
        if row.sequence >= 0 and not row.backward:
            self.made = max(self.made, row.sequence + 1)
        elif makes_nodes and row.kind is RowKind.OPERATOR and row.name not in _FACTORIES:
            flat.reads = self.made
        self.makes_nodes = makes_nodes and row.kind is not RowKind.OPERATOR and not row.name.endswith(_NO_GRAD)
        return makes_nodes

    def add_filler(self, parent: int, owner: int) -> None:
        name = _FILLERS[int(self.generator.integers(len(_FILLERS)))]
        if self.settings.edges.control_characters and self.generator.random() < 0.02:
            name = _ODD_NAME
        index = self.begin(FlatRow(RowKind.PYTHON, name, 0, 0, parent, owner))
        self.spend(250 if self.settings.stacks else 60)
        self.finish(index)

    def add_launch(self, kernel: Kernel, owner: int) -> None:
        edges = self.settings.edges
        if edges.missing_launches and self.generator.random() < edges.missing_launches:
            kernel = replace(kernel, lost=True)
        if edges.zero_durations and kernel.base_ns and kernel.base_ns < _TINY_NS and self.generator.random() < 0.3:
            kernel = replace(kernel, base_ns=0)
        self.spend(150)
        begin = self.clock
        self.spend(_LAUNCH_COST.get(kernel.call, 4_600))
        self.spend(120)
        # What lets streams wait takes a part of the launch's time, so that the job is the same with and without.
        third = (self.clock - begin) // 3 if self.settings.cuda_sync else 0
        if third:
            self.take_over(kernel, owner, (begin, begin + third))
        call = FlatRow(RowKind.RUNTIME, kernel.call, begin + third, self.clock - third, -1, owner)
        call.kernel = len(self.kernels)
        self.rows.append(call)
        self.actions.append((LAUNCH, len(self.kernels), ""))
        self.kernels.append(kernel)
        self.launch_ends.append(self.clock)
        if third:
            self.hand_on(kernel, owner, (self.clock - third, self.clock))

    def take_over(self, kernel: Kernel, owner: int, span: tuple[int, int]) -> None:
        """The calls that let a kernel's stream wait for others."""
        streams = [stream for stream in kernel.after if stream != kernel.stream]
        parts = iter(_parts(span, 2 * len(streams)))
        for stream in streams:
            self.add_record(stream, "", owner, next(parts))
            wait = self.add_call("cudaStreamWaitEvent", owner, next(parts))
            self.tell_wait(wait, kernel.stream, f"stream:{stream}")

    def hand_on(self, kernel: Kernel, owner: int, span: tuple[int, int]) -> None:
        """The calls that let others wait for a kernel; for messages the handles' own waits follow in the tree."""
        first, second = _parts(span, 2)
        if kernel.records or kernel.blocks or kernel.stream not in COMPUTE_STREAMS:
            self.add_record(kernel.stream, kernel.records, owner, first)
        if kernel.blocks and not kernel.messages:
            wait = self.add_call("cudaStreamWaitEvent", owner, second)
            self.tell_wait(wait, kernel.blocks, f"stream:{kernel.stream}")


def _parts(span: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """A span in equal parts."""
    begin, end = span
    edges = [begin + (end - begin) * part // max(count, 1) for part in range(count + 1)]
    return list(pairwise(edges))


def flatten(
    settings: JobSettings, key: str, rows: tuple[Row, ...], nodes: int, autograd: bool, like: str = ""
) -> Template:
    """Lay a segment's rows out on the host's time line; ``like``, or else ``key``, decides its random costs."""
    seed = settings.seed, crc32((like or key).encode())
    flattener = _Flattener(settings, np.random.default_rng(seed), makes_nodes=not autograd, made=_first_node(rows))
    for row in rows:
        flattener.add(row, -1, -1)
    flattener.spend(300)
    return Template(
        flattener.clock,
        flattener.rows,
        flattener.kernels,
        np.array(flattener.launch_ends, np.int64),
        np.array([kernel.base_ns for kernel in flattener.kernels], np.int64),
        flattener.actions,
        np.array(flattener.synchronisations, np.int64),
        autograd,
        nodes,
        key=key,
        recording=flattener.recording,
        waiting=flattener.waiting,
        holding=flattener.holding,
    )


def _first_node(rows: tuple[Row, ...]) -> int:
    """The first autograd node that the rows make; parts of one layer share its numbers."""
    made = [row.sequence for row in _rows_within(rows) if row.sequence >= 0 and not row.backward]
    return min(made, default=0)


def _rows_within(rows: Iterable[Node]) -> Iterator[Row]:
    for row in rows:
        if isinstance(row, Row):
            yield row
            yield from _rows_within(row.children)


def as_ghost(template: Template) -> Template:
    """A template's kernels without its host rows, as a CUDA graph runs them."""
    actions = [action for action in template.actions if action[0] in (LAUNCH, WAIT)]
    empty = np.zeros(0, np.int64)
    launches = np.zeros(len(template.kernels), np.int64)
    return replace(
        template,
        total_ns=60,
        rows=[],
        launch_ends=launches,
        actions=actions,
        synchronisations=empty,
        nodes=0,
        ghost=True,
        recording=[],
        waiting=[],
        holding=[],
    )


Builder = Callable[[], tuple[tuple[Row, ...], Nodes]]


class Library:
    """Templates by key, built when first asked for."""

    def __init__(self, settings: JobSettings) -> None:
        self.settings = settings
        self._templates: dict[str, Template] = {}
        self._nodes: dict[str, Nodes] = {}
        self._changed: dict[tuple[int, str], Template] = {}

    def get(self, key: str, builder: Builder, autograd: bool = False, ghost: bool = False, like: str = "") -> Template:
        """The template of a key; ``builder`` makes its tree and nodes, ``like`` is whose random costs it has."""
        template = self._templates.get(key)
        if template is None:
            rows, nodes = builder()
            self._nodes[key] = nodes
            template = flatten(self.settings, key, rows, len(nodes), autograd, like)
            if ghost:
                template = as_ghost(template)
            self._templates[key] = template
        return template

    def ghost(self, template: Template) -> Template:
        """The same work inside a CUDA graph."""
        return self._templates.setdefault(f"ghost:{id(template)}", as_ghost(template))

    def changed(self, template: Template, how: str, change: Callable[[Template], Template]) -> Template:
        """A template as a fault changes it; ``how`` names the change among all those of the library's job."""
        key = id(template), how
        if key not in self._changed:
            self._changed[key] = change(template)
        return self._changed[key]

    def unlaunched(self, key: str, builder: Builder) -> Template:
        """A template of kernels alone, whose launch rows no file has."""
        template = self.get(key, builder)
        kernels = [replace(kernel, lost=True) for kernel in template.kernels]
        return self._templates.setdefault(f"unlaunched:{key}", replace(template, rows=[], kernels=kernels))

    def nodes(self, key: str) -> Nodes:
        """The autograd nodes that a built segment makes."""
        return self._nodes[key]


def line_number(settings: JobSettings, location: str) -> int:
    """The line of a function in this job's sources: another seed or era is another version of the code."""
    return 12 + crc32(f"{location}|{settings.era}|{settings.seed}".encode()) % 1900


def spelled(settings: JobSettings, name: str) -> str:
    """A row's name with the line number and the addresses of this job put in."""
    if "(@)" in name:
        name = name.replace("(@)", f"({line_number(settings, name)})", 1)
    if "0x" in name:
        name = name.replace("0x", f"0x7f{crc32(f'{name}{settings.seed}'.encode()):08x}40", 1)
    return name
