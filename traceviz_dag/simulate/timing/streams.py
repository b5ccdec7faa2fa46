"""GPU streams of the model: FIFOs of work, events that order them, communications that wait for their members."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.simulate.items import Context
from traceviz_dag.simulate.tree import Kernel

UNKNOWN = -1


@dataclass(slots=True)
class StepTimes:
    """When one rank did what in one step, on the true clock.

    Attributes:
        marks: begin and length of each segment, and the time of each Open and Close, in the program's order.
        stalls: how long the host was held at each synchronisation, in order.
        starts, ends: of each kernel, in launch order; ready: when the last member of its communication had arrived
            (its own start for other kernels); match: name of that communication, several joined by ``|`` for a batch of
            messages, empty for other kernels.
        edges: rows of (waiting, waited for, ``DependencyKind``, told): which kernels wait for which of other streams,
            numbered from the file's first, and whether a row of synchronisation shows it.
        waits: rows of (record, event) for each row in which a stream waits for an event: which record of the file it
            waits for (-1: none) and the event's id.
    """

    marks: Int64
    stalls: Int64
    starts: Int64
    ends: Int64
    ready: Int64
    match: list[str]
    edges: Int64
    waits: Int64


class StepRecord:
    """What one rank records of the present step; its streams fill in when kernels start and end."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.begin(0)

    def begin(self, now_ns: int, slower: Sequence[float] = ()) -> None:
        """Start a new step; its kernels run so long after ``now_ns``, when the host begins it.

        Args:
            slower: of each kernel, how much longer it takes for contention; empty: none does.
        """
        self.begun_ns = now_ns
        self.slower = slower
        self.marks: list[int] = []
        self.stalls: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.ready: list[int] = []
        self.match: list[str] = []
        self.edges: list[tuple[int, int, int, bool]] = []
        self.waits: list[tuple[int, int]] = []

    def new_kernel(self) -> int:
        """The index of a new kernel, of which nothing is known yet."""
        for column in (self.starts, self.ends, self.ready):
            column.append(UNKNOWN)
        self.match.append("")
        return len(self.match) - 1

    def times(self) -> StepTimes:
        """The step as arrays, once everything is known."""
        marks, stalls, starts, ends, ready = (
            np.array(column, np.int64) for column in (self.marks, self.stalls, self.starts, self.ends, self.ready)
        )
        edges = np.array(self.edges, np.int64).reshape(-1, 4)
        waits = np.array(self.waits, np.int64).reshape(-1, 2)
        return StepTimes(marks, stalls, starts, ends, ready, self.match, edges, waits)


class Event:
    """A point on a stream whose time may not be known yet: the end of a kernel (-1: of none)."""

    __slots__ = ("kernel", "stream", "time", "waiters")

    def __init__(self, time: int = UNKNOWN, kernel: int = -1, stream: str = "") -> None:
        self.time = time
        self.kernel, self.stream = kernel, stream
        self.waiters: list[Stream] = []


class DependencyKind(IntEnum):
    """How a kernel comes to wait for one of another stream of its rank.

    Of two kinds for the same two kernels the first in this order counts.
    """

    EVENT_WAIT = 0
    PASSED_ON_WAIT = 1
    CUDA_GRAPH = 2
    COMMUNICATOR_ORDER = 3
    HOST_SYNCHRONISATION = 4


class Dependency(NamedTuple):
    """What a kernel waits for, and how it comes to."""

    event: Event
    kind: DependencyKind


@dataclass(slots=True)
class Meeting:
    """A communication that waits for its members."""

    name: str
    members: int
    transfer_ns: int
    arrivals: dict[int, tuple[Stream, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Work:
    """One kernel in a stream.

    Attributes:
        earliest: launch and latency; index: in the step's record; after: what it waits for; done: its end.
        meeting: key of the communication that it is part of; None for other kernels and for messages.
        letters: keys of its messages, each with its bytes and its two ends.
    """

    earliest: int
    duration: int
    index: int
    after: list[Event]
    done: Event
    kernel: Kernel
    context: Context
    meeting: tuple[str, int] | None = None
    letters: tuple[tuple[str, int, tuple[int, int]], ...] = ()


class Stream:
    """A FIFO of GPU work of one rank.

    Attributes:
        busy_until: end of its last finished kernel; held: its first kernel runs and waits for other ranks.
        last: the end of the work queued last; pending: what the next kernel must wait for.
    """

    __slots__ = ("busy_until", "held", "last", "pending", "queue", "record")

    def __init__(self, record: StepRecord) -> None:
        self.record = record
        self.queue: deque[Work] = deque()
        self.busy_until = 0
        self.held = False
        self.last = Event(0)
        self.pending: list[Dependency] = []


@dataclass(slots=True)
class PendingMessages:
    """One rank's point-to-point kernel that waits for its peers."""

    stream: Stream
    start: int
    open: int
    ready: int = 0
    end: int = 0
    names: list[str] = field(default_factory=list)

    def carry(self, ready: int, end: int, name: str) -> None:
        """One of its messages has been carried."""
        self.open -= 1
        self.ready, self.end = max(self.ready, ready), max(self.end, end)
        self.names.append(name)
