"""One rank's step as a piece of the graph: segments of kernels, the host that launches them, and what each waits for.

Kernels that follow one another on a stream, with nothing in or out between them, are one *segment*: it ends when the
last has run. The host is a chain of *sections*, each from one synchronisation with the GPU to the next; what it
launches within a section keeps its distance from the section's begin. A segment therefore ends at

    max(what its first kernel waits for + all its kernels,
        begin of its section + launch of kernel i + the kernels from i)

for the kernel i that makes it latest, which is exact for any durations of the kernels. Each kernel and each return of a
synchronisation also has a *lag*: what passed between the latest of all it waited for and its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from traceviz_dag.analyze.causes.kernel_edges import INFERRED, KernelEdges
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.arrays import NONE, Bool, Int8, Int64
from traceviz_dag.read.events import MISSING


class EdgeKind(IntEnum):
    """Why a node of the graph waits for another."""

    STREAM = 0
    """The kernel before it on its stream."""
    EVENT = 1
    """A kernel on another stream, by an event."""
    LAUNCH = 2
    """The host that launches it."""
    HOST = 3
    """The host's own work since the last synchronisation."""
    SYNCHRONISATION = 4
    """The GPU work that the host waits for."""
    ARRIVAL = 5
    """A member of a communication that has arrived."""
    TRANSFER = 6
    """The communication's own time once all have arrived."""
    END = 7
    """The end of the rank's step."""


EDGE_KINDS = tuple(kind.name.lower() for kind in EdgeKind)
"""The word for each code of an edge."""

EVIDENCES = ("recorded", "inferred", "order")
"""How an edge is known; "order" is what queues and threads are by definition."""
_ORDER = EVIDENCES.index("order")


@dataclass(frozen=True, slots=True)
class HostWaits:
    """Calls in which a rank's host waited for its GPU, in the order of their ends.

    Attributes:
        start_ns, end_ns: of each call, on the rank's clock. number: its ``synchronization_id``; ``MISSING`` of one that
            no row shows.
        call: per piece of work that a call waited for, the number of the call; kernel: its place in ``RankKernels``.
    """

    start_ns: Int64
    end_ns: Int64
    number: Int64
    call: Int64
    kernel: Int64


@dataclass(frozen=True)
class RankWork:
    """Nodes and edges of one rank in one step.

    Nodes are, in this order: segments; an arrival for each kernel that is part of a matched communication; sections of
    the host; the end of the step.

    Attributes:
        kernels: the rank's kernels. lag_ns: per kernel, between the latest of what it waited for and its start.
        launch_ns: per kernel, its earliest start by its launch, from the begin of its section; ``MISSING`` without one.
        first: place of each segment's first kernel; segment: per kernel, its segment.
        joined: places of kernels that are part of a matched communication, in the order of the arrivals.
        section: per segment, its host section; ``NONE`` without a launch.
        section_ns: per section, its begin on the rank's clock; section_lag_ns: the lag of the call that ends before it;
            paused_ns: per kernel, how long its host is known to have paused before its launch.
            section_hidden: whether that call is a hidden wait.
        start_ns, end_ns: the rank's step, on its clock.
        unknown: places of communications of which nothing shows what waited for them.
        untold: places of kernels that waited, by a call, for something that nothing shows.
        waiting, waited_for, kind, evidence, lag: edges between the rank's nodes; lag: of HOST and END edges, ns.
    """

    kernels: RankKernels
    lag_ns: Int64
    launch_ns: Int64
    first: Int64
    segment: Int64
    joined: Int64
    section: Int64
    section_ns: Int64
    section_lag_ns: Int64
    section_hidden: Bool
    paused_ns: Int64
    start_ns: int
    end_ns: int
    unknown: Int64
    untold: Int64
    waiting: Int64
    waited_for: Int64
    kind: Int8
    evidence: Int8
    lag: Int64

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self.first)

    @property
    def arrivals(self) -> int:
        """Node of the first arrival."""
        return len(self.first)

    @property
    def sections(self) -> int:
        """Node of the first section of the host."""
        return len(self.first) + len(self.joined)

    @property
    def end(self) -> int:
        """Node of the step's end."""
        return self.sections + len(self.section_ns)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.end + 1

    @cached_property
    def by_kind(self) -> Mapping[EdgeKind, Int64]:
        """Places of the edges on which the host's time passes: launches that are known, calls and what they waited for,
        and from the last section to the step's end."""
        chosen = {kind: self.kind == kind for kind in (EdgeKind.HOST, EdgeKind.SYNCHRONISATION)}
        chosen[EdgeKind.LAUNCH] = (self.kind == EdgeKind.LAUNCH) & (self.evidence == _ORDER)
        chosen[EdgeKind.END] = (self.kind == EdgeKind.END) & (self.waited_for >= self.sections)
        return {kind: np.flatnonzero(mask) for kind, mask in chosen.items()}

    def is_joined(self) -> Bool:
        """Mark the kernels that are part of a matched communication."""
        marked = np.zeros(len(self.kernels), dtype=bool)
        marked[self.joined] = True
        return marked


def rank_work(
    kernels: RankKernels,
    edges: KernelEdges,
    joined: Int64,
    waits: HostWaits,
    window: tuple[int, int],
    pauses: Mapping[int, int] | None = None,
    hidden: Sequence[int] = (),
) -> RankWork:
    """Lay one rank's step out.

    Args:
        edges: between its streams. joined: places of the kernels whose communication is matched, ascending.
        waits: calls in which its host waited. window: begin and end of the step on the host. One that ends with
            the last kernel was cut there, so of the host no more is known than its last wait for the GPU.
        pauses: ``kernel_id`` → how long the host is known to have paused before its launch, ns.
        hidden: ``synchronization_id`` of those that neither Megatron nor its data loader makes.
    """
    is_joined = np.zeros(len(kernels), dtype=bool)
    is_joined[joined] = True
    waits = _within(waits, window, kernels)
    section_ns = np.concatenate([[window[0]], waits.end_ns]).astype(np.int64)
    launched = (kernels.launch_ns != MISSING) & (kernels.launch_ns >= window[0])
    section = np.where(launched, np.searchsorted(section_ns, kernels.launch_ns, side="right") - 1, NONE)
    ready = kernels.launch_ns + np.minimum(kernels.latency_ns, np.maximum(kernels.start_ns - kernels.launch_ns, 0))
    launch = np.where(launched, ready - section_ns[section], MISSING)
    first = _first_kernels(kernels, edges, is_joined, section, waits)
    segment = np.zeros(len(kernels), np.int64)
    segment[first[1:]] = 1
    segment = np.cumsum(segment)
    paused = np.zeros(len(kernels), np.int64)
    for kernel_id, length in (pauses or {}).items():
        paused[kernels.kernel_id == kernel_id] = length
    gpu_end = int(kernels.end_ns.max(initial=window[0]))
    host_end = window[1] if window[1] != gpu_end else int(section_ns[-1])
    end, none = max(window[1], gpu_end), np.empty(0, np.int64)
    work = RankWork(
        kernels, _lags(kernels, edges, np.where(launched, ready, MISSING), window[0]), launch, first, segment,
        joined, section[first], section_ns, _section_lags(kernels, waits, section_ns),
        np.append(False, np.isin(waits.number, np.array(hidden, np.int64))), paused, window[0], end,
        edges.unknown, edges.untold, none, none, none.astype(np.int8), none.astype(np.int8), none,
    )  # fmt: skip
    return _with_edges(work, edges, waits, host_end)


def _within(waits: HostWaits, window: tuple[int, int], kernels: RankKernels) -> HostWaits:
    """The calls inside the step that held only their own thread's launches back."""
    launch = np.sort(kernels.launch_ns[kernels.launch_ns != MISSING])
    during = np.searchsorted(launch, waits.end_ns) - np.searchsorted(launch, waits.start_ns, side="right")
    kept = np.flatnonzero((waits.start_ns >= window[0]) & (waits.end_ns <= window[1]) & (during == 0))
    number = np.full(len(waits.start_ns), NONE)
    number[kept] = np.arange(len(kept))
    mine = number[waits.call] >= 0
    call, kernel = number[waits.call[mine]], waits.kernel[mine]
    return HostWaits(waits.start_ns[kept], waits.end_ns[kept], waits.number[kept], call, kernel)


def _first_kernels(
    kernels: RankKernels, edges: KernelEdges, is_joined: Bool, section: Int64, waits: HostWaits
) -> Int64:
    """Places at which a segment begins."""
    begins = np.zeros(len(kernels), dtype=bool)
    begins[:1] = True
    for key in (kernels.stream, kernels.phase, kernels.chunk, kernels.microbatch, section, kernels.communicates):
        begins[1:] |= key[1:] != key[:-1]
    begins |= is_joined
    begins[edges.waiting] = True
    last = np.concatenate([edges.waited_for, waits.kernel, np.flatnonzero(is_joined)])
    begins[last[last + 1 < len(kernels)] + 1] = True
    return np.flatnonzero(begins)


def _lags(kernels: RankKernels, edges: KernelEdges, ready: Int64, begin: int) -> Int64:
    """Per kernel, its start less the latest of what it waited for."""
    lowest = np.iinfo(np.int64).min
    arrival = np.where(ready == MISSING, lowest, ready)
    follows = kernels.stream[1:] == kernels.stream[:-1]
    arrival[1:] = np.where(follows, np.maximum(arrival[1:], kernels.end_ns[:-1]), arrival[1:])
    np.maximum.at(arrival, edges.waiting, kernels.end_ns[edges.waited_for])
    return kernels.start_ns - np.where(arrival == lowest, begin, arrival)


def _section_lags(kernels: RankKernels, waits: HostWaits, section_ns: Int64) -> Int64:
    arrival = waits.start_ns.copy()
    np.maximum.at(arrival, waits.call, kernels.end_ns[waits.kernel])
    return np.concatenate([[0], section_ns[1:] - arrival]).astype(np.int64)


def _with_edges(work: RankWork, edges: KernelEdges, waits: HostWaits, host_end: int) -> RankWork:
    kernels, first, segment = work.kernels, work.first, work.segment
    # A communication that is matched starts at its arrival; everything else in its segment.
    entry = np.arange(work.segments)
    entry[segment[work.joined]] = work.arrivals + np.arange(len(work.joined))
    follows = np.flatnonzero(kernels.stream[first[1:]] == kernels.stream[first[1:] - 1]) + 1
    launched = np.flatnonzero(work.section >= 0)
    # A kernel that nothing on the GPU precedes cannot start before the step does, whatever its host does.
    bare = np.ones(work.segments, dtype=bool)
    bare[follows] = bare[segment[edges.waiting]] = False
    alone = np.flatnonzero(bare)
    calls = np.arange(1, len(work.section_ns))
    last = np.append(first[1:], len(kernels)) - 1
    ends_stream = np.append(kernels.stream[last[:-1]] != kernels.stream[last[1:]], True)
    final = np.flatnonzero(ends_stream[: len(last)])
    own = waits.start_ns - work.section_ns[:-1]
    parts: list[tuple[Int64, Int64, EdgeKind, int]] = [
        (entry[follows], follows - 1, EdgeKind.STREAM, _ORDER),
        (entry[segment[edges.waiting]], segment[edges.waited_for], EdgeKind.EVENT, _ORDER),
        (entry[launched], work.sections + work.section[launched], EdgeKind.LAUNCH, _ORDER),
        (entry[alone], np.full(len(alone), work.sections), EdgeKind.LAUNCH, INFERRED),
        (work.sections + calls, work.sections + calls - 1, EdgeKind.HOST, _ORDER),
        (work.sections + 1 + waits.call, segment[waits.kernel], EdgeKind.SYNCHRONISATION, _ORDER),
        (np.full(len(final) + 1, work.end), np.append(work.end - 1, final), EdgeKind.END, _ORDER),
    ]  # fmt: skip
    waiting, waited_for, kinds, evidences = zip(*parts, strict=True)
    lengths = [len(one) for one in waiting]
    kind, evidence = (np.repeat(np.array(each, np.int8), lengths) for each in (kinds, evidences))
    evidence[kind == EdgeKind.EVENT] = edges.evidence
    lag = np.zeros(len(kind), np.int64)
    lag[kind == EdgeKind.HOST] = own
    lag[len(kind) - lengths[-1]] = host_end - work.section_ns[-1]
    return replace(
        work, waiting=np.concatenate(waiting), waited_for=np.concatenate(waited_for), kind=kind, evidence=evidence,
        lag=lag,
    )  # fmt: skip
