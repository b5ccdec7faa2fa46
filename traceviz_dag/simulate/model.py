"""The event-driven model: all ranks' hosts and streams on one true clock, before any file is written.

Each rank's host runs its program until it must wait for its GPU. GPU work stands in FIFO streams; a kernel starts at
``max(launch + latency, end of the stream's last kernel, ends it waits for)``. A collective transfers from its last
arrival on; a message when both ends have arrived. Times do not depend on the order in which ranks are visited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceviz_dag.simulate.collectives import GROUP_OF
from traceviz_dag.simulate.durations import Link, routed_tokens, routing
from traceviz_dag.simulate.faults import speed_factor
from traceviz_dag.simulate.items import Close, Context, Item, Open, Segment
from traceviz_dag.simulate.program import StageProgram
from traceviz_dag.simulate.rank_grids import ProcessGroup, RankGrids
from traceviz_dag.simulate.settings import Settings
from traceviz_dag.simulate.templates import LAUNCH, WAIT, Library, Template
from traceviz_dag.simulate.tree import Collective, Kernel

Int64 = npt.NDArray[np.int64]
LAUNCH_LATENCY_NS = 3_500
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
    """

    marks: Int64
    stalls: Int64
    starts: Int64
    ends: Int64
    ready: Int64
    match: list[str]


class _Event:
    """A point on a stream whose time may not be known yet."""

    __slots__ = ("time", "waiters")

    def __init__(self, time: int = UNKNOWN) -> None:
        self.time = time
        self.waiters: list[_Stream] = []


@dataclass(slots=True)
class _Meeting:
    """A communication that waits for its members."""

    name: str
    members: int
    transfer_ns: int
    arrivals: list[tuple[_Stream, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    """One entry of a stream: a kernel, or a mere marker (index -1)."""

    earliest: int
    duration: int
    index: int
    after: list[_Event]
    done: _Event
    kernel: Kernel | None = None
    context: Context | None = None


class _Stream:
    """A FIFO of GPU work of one rank."""

    __slots__ = ("busy_until", "held", "last", "pending", "queue", "rank")

    def __init__(self, rank: _Rank) -> None:
        self.rank = rank
        self.queue: deque[_Work] = deque()
        self.busy_until = 0
        self.held = False
        self.last = _Event(0)
        self.pending: list[_Event] = []


class _Rank:
    """The state of one rank: host clock, streams, events, and what it has recorded of the present step."""

    def __init__(self, model: Model, number: int, program: StageProgram) -> None:
        self.model, self.number, self.program = model, number, program
        self.host = 1_000_000 + 137 * number
        self.streams: dict[str, _Stream] = {}
        self.events: dict[tuple[str, int, int], _Event] = {}
        self.calls: dict[str, int] = {}
        self.factor = speed_factor(model.settings, number)
        self.groups = model.grids.of_rank(number)
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        self.generator = np.random.default_rng((self.model.settings.seed, 5, self.number, step))
        self.step = step
        self.marks: list[int] = []
        self.stalls: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.ready: list[int] = []
        self.match: list[str] = []

    def stream(self, name: str) -> _Stream:
        found = self.streams.get(name)
        if found is None:
            found = self.streams[name] = _Stream(self)
        return found

    def group(self, key: str) -> ProcessGroup:
        return self.groups[GROUP_OF[key]]

    def run(self, items: Iterator[Item], synchronised: bool) -> Iterator[None]:
        """Run the program; yields where the host must wait for events that are not known yet."""
        for item in items:
            if isinstance(item, Segment):
                yield from self.run_segment(item.template, item.context)
            else:
                assert isinstance(item, Open | Close)
                self.host += 700
                self.marks.append(self.host)
        if synchronised:
            yield from self.synchronise(list(self.streams))

    def run_segment(self, template: Template, context: Context) -> Iterator[None]:
        settings = self.model.settings
        scale = 1.0 + abs(float(self.generator.normal(0.0, 2 * settings.jitter)))
        length = int(template.total_ns * scale)
        begin = self.host
        self.marks += (begin, length)
        count = len(template.kernels)
        launches = (begin + template.launch_ends * length // template.total_ns).tolist()
        noise = self.generator.normal(1.0, settings.jitter, count).clip(0.8, 1.4)
        durations = (template.base_ns * (self.factor * noise)).astype(np.int64).tolist()
        held = 0
        for code, argument, text in template.actions:
            if code == LAUNCH:
                kernel = template.kernels[argument]
                self.launch(kernel, launches[argument] + held, durations[argument], context)
            elif code == WAIT:
                self.wait(text, context)
            else:
                now = begin + argument * length // template.total_ns + held
                self.host = now
                yield from self.synchronise([text] if text else list(self.streams))
                self.stalls.append(self.host - now)
                held += self.host - now
        self.host = begin + length + held

    def synchronise(self, names: list[str]) -> Iterator[None]:
        events = [self.stream(name).last for name in names]
        while any(event.time == UNKNOWN for event in events):
            yield
        self.host = max(self.host, *(event.time for event in events), self.host)

    def wait(self, text: str, context: Context) -> None:
        stream_name, _, event = text.partition("|")
        if event.startswith("stream:"):
            target = self.streams.get(event[len("stream:") :])
            found = target.last if target else None
        else:
            found = self.events.get(_event_key(event, context))
        if found is not None:
            self.stream(stream_name).pending.append(found)

    def launch(self, kernel: Kernel, launched: int, duration: int, context: Context) -> None:
        index = len(self.starts)
        self.starts.append(UNKNOWN)
        self.ends.append(UNKNOWN)
        self.ready.append(UNKNOWN)
        self.match.append("")
        stream = self.stream(kernel.stream)
        after = stream.pending
        stream.pending = []
        after += [self.stream(name).last for name in kernel.after]
        done = _Event()
        if kernel.by_tokens:
            duration = int(duration * self.model.token_share(self, context))
        work = _Work(launched + LAUNCH_LATENCY_NS, duration, index, after, done, kernel, context)
        stream.last = done
        stream.queue.append(work)
        if kernel.records:
            self.events[_event_key(kernel.records, context)] = done
        if kernel.blocks:
            self.stream(kernel.blocks).pending.append(done)
        if not stream.held and len(stream.queue) == 1:
            self.model.advance(stream)


def _event_key(event: str, context: Context) -> tuple[str, int, int]:
    if event.startswith("plan:"):
        return event, context.chunk, 0
    if event.endswith(":next"):
        return event[: -len(":next")], context.chunk, context.position + 1
    return event, context.chunk, context.position


class Model:
    """All ranks of a job."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.grids = RankGrids.of(settings)
        library = Library(settings)
        programs = [StageProgram(settings, stage, library) for stage in range(settings.pp)]
        places = [self.grids.coordinates(rank)["pp"] for rank in range(settings.world)]
        self.ranks = [_Rank(self, rank, programs[places[rank]]) for rank in range(settings.world)]
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self._waiting: dict[tuple[str, int, int, int], _Exchange] = {}
        self._posted: dict[tuple[str, bool, int, int], int] = {}
        self._links: dict[tuple[int, ...], Link] = {}
        self._routes: dict[tuple[int, ...], Int64] = {}

    def step(self, number: int, synchronised: bool = True) -> list[StepTimes]:
        """Simulate one training step of all ranks.

        Args:
            number: the step's number, as ProfilerStep and the random choices use it.
            synchronised: whether the profiler ends after it and waits for the GPU.
        """
        running: list[tuple[_Rank, Iterator[None]]] = []
        for rank in self.ranks:
            rank.begin_step(number)
            running.append((rank, rank.run(rank.program.step(rank.number, number), synchronised)))
        while running:
            remaining = [(rank, process) for rank, process in running if _continues(process)]
            if len(remaining) == len(running) and self._is_stuck(running):
                raise RuntimeError(f"the simulated job hangs in step {number}: ranks wait for each other")
            running = remaining
        self._routes.clear()
        return [_times(rank) for rank in self.ranks]

    def _is_stuck(self, running: list[tuple[_Rank, Iterator[None]]]) -> bool:
        state = sum(len(rank.starts) + len(rank.stalls) for rank, _ in running)
        stuck = state == getattr(self, "_last_state", None)
        self._last_state = state
        return stuck

    def token_share(self, rank: _Rank, context: Context) -> float:
        """Tokens that a rank's experts received in a layer, over the balanced number."""
        group = rank.group("ep").ranks
        route = self.route(rank.step, context, group)
        return float(route[:, group.index(rank.number)].sum()) / routed_tokens(self.settings)

    def route(self, step: int, context: Context, group: tuple[int, ...]) -> Int64:
        """Tokens from member to member of an expert-parallel group in one layer."""
        key = (step, context.microbatch, context.layer, group[0])
        if key not in self._routes:
            self._routes[key] = routing(self.settings, key)
        return self._routes[key]

    def link(self, ranks: tuple[int, ...]) -> Link:
        """The slowest link among some ranks."""
        if ranks not in self._links:
            self._links[ranks] = Link.between(ranks, self.settings)
        return self._links[ranks]

    def advance(self, stream: _Stream) -> None:
        """Start whatever can start on a stream, and on the streams that this sets free."""
        agenda = [stream]
        while agenda:
            current = agenda.pop()
            while current.queue and not current.held:
                if not self._start(current, agenda):
                    break

    def _start(self, stream: _Stream, agenda: list[_Stream]) -> bool:
        work = stream.queue[0]
        start = max(work.earliest, stream.busy_until)
        for event in work.after:
            if event.time == UNKNOWN:
                event.waiters.append(stream)
                return False
            start = max(start, event.time)
        rank = stream.rank
        rank.starts[work.index] = start
        kernel = work.kernel
        assert kernel is not None
        if kernel.messages:
            stream.held = True
            self._post(stream, work, start, agenda)
        elif kernel.collective is not None:
            stream.held = True
            self._meet(stream, work, start, agenda)
        else:
            rank.ready[work.index] = start
            self._finish(stream, start + work.duration, agenda)
        return True

    def _finish(self, stream: _Stream, end: int, agenda: list[_Stream]) -> None:
        work = stream.queue.popleft()
        stream.rank.ends[work.index] = end
        stream.busy_until = end
        stream.held = False
        work.done.time = end
        agenda += work.done.waiters
        work.done.waiters = []

    def _meet(self, stream: _Stream, work: _Work, start: int, agenda: list[_Stream]) -> None:
        assert work.kernel is not None and work.kernel.collective is not None and work.context is not None
        what, rank = work.kernel.collective, stream.rank
        group = rank.group(what.group)
        ordinal = rank.calls[group.name] = rank.calls.get(group.name, 0) + 1
        meeting = self._meetings.get((group.name, ordinal))
        if meeting is None:
            transfer = self._transfer_ns(what, group, rank, work.context)
            meeting = _Meeting(f"coll:{group.name}:{what.operation}:{ordinal}", len(group.ranks), transfer)
            self._meetings[group.name, ordinal] = meeting
        meeting.arrivals.append((stream, start))
        if len(meeting.arrivals) < meeting.members:
            return
        del self._meetings[group.name, ordinal]
        last = max(arrival for _, arrival in meeting.arrivals)
        for position, (member, _) in enumerate(meeting.arrivals):
            index = member.queue[0].index
            member.rank.ready[index] = last
            member.rank.match[index] = meeting.name
            # The members' kernels end within a few hundred ns of each other.
            self._finish(member, last + meeting.transfer_ns + 37 * (position * 7 % 11), agenda)
            if member is not stream:
                agenda.append(member)

    def _transfer_ns(self, what: Collective, group: ProcessGroup, rank: _Rank, context: Context) -> int:
        nbytes = float(what.nbytes)
        if what.uneven:
            route = self.route(rank.step, context, group.ranks)
            largest = max(route.sum(axis=0).max(), route.sum(axis=1).max())
            nbytes *= float(largest) / routed_tokens(self.settings)
        return self.link(group.ranks).collective_ns(what.operation, nbytes, len(group.ranks))

    def _post(self, stream: _Stream, work: _Work, start: int, agenda: list[_Stream]) -> None:
        """Post a point-to-point kernel's messages; it ends when all of them have been carried."""
        assert work.kernel is not None and work.kernel.collective is not None
        rank = stream.rank
        group = rank.group(work.kernel.collective.group)
        place = group.ranks.index(rank.number)
        exchange = _Exchange(stream, start, len(work.kernel.messages))
        for message in work.kernel.messages:
            peer = group.ranks[(place + message.peer) % len(group.ranks)]
            ends = (rank.number, peer) if message.sends else (peer, rank.number)
            counter = (f"{group.name}{message.channel}", message.sends, *ends)
            ordinal = self._posted[counter] = self._posted.get(counter, 0) + 1
            key = (counter[0], *ends, ordinal)
            other = self._waiting.pop(key, None)
            if other is None:
                self._waiting[key] = exchange
                continue
            ready = max(exchange.start, other.start)
            end = ready + self.link(ends).message_ns(message.nbytes)
            name = f"p2p:{group.name}:{ends[0]}:{ends[1]}:{message.channel}:{ordinal}"
            for side in (exchange, other):
                side.carry(ready, end, name)
                if side.open == 0:
                    index = side.stream.queue[0].index
                    side.stream.rank.ready[index] = side.ready
                    side.stream.rank.match[index] = "|".join(sorted(side.names))
                    self._finish(side.stream, side.end, agenda)
                    if side is not exchange:
                        agenda.append(side.stream)


@dataclass(slots=True)
class _Exchange:
    """One rank's point-to-point kernel that waits for its peers."""

    stream: _Stream
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


def _continues(process: Iterator[None]) -> bool:
    return next(process, StopIteration) is None


def _times(rank: _Rank) -> StepTimes:
    columns = (rank.marks, rank.stalls, rank.starts, rank.ends, rank.ready)
    return StepTimes(*(np.array(column, np.int64) for column in columns), rank.match)
