"""One rank in the model: its host's clock and program, and what it puts into its GPU's streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from traceviz_dag.simulate.durations import Routes
from traceviz_dag.simulate.items import Close, Context, Item, Open, Segment
from traceviz_dag.simulate.program.program import step_items
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.rank_grids import ProcessGroup
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.templates import LAUNCH, PAUSE, RECORD, SYNCHRONISE, WAIT, Template
from traceviz_dag.simulate.timing.dependencies import Dependencies
from traceviz_dag.simulate.timing.draws import Draws
from traceviz_dag.simulate.timing.streams import (
    UNKNOWN,
    Dependency,
    DependencyKind,
    Event,
    StepRecord,
    Stream,
    Work,
)
from traceviz_dag.simulate.tree import Kernel
from traceviz_dag.simulate.work.collectives import GROUP_OF
from traceviz_dag.simulate.work.faults import speed_factor

LAUNCH_LATENCY_NS = 3_500
FRAME_NS = 700
"""What the host spends on entering or leaving the frames of one Open or Close."""


class Host:
    """The state of one rank between and within steps.

    Attributes:
        clock: the host's time, true ns. record: what happened in the present step.
    """

    def __init__(
        self,
        settings: JobSettings,
        rank: int,
        program: StageProgram,
        undisturbed: StageProgram | None,
        groups: dict[str, ProcessGroup],
        routes: Routes,
        advance: Callable[[Stream], None],
    ) -> None:
        self.settings, self.rank, self.program, self._undisturbed = settings, rank, program, undisturbed
        self.groups, self.routes, self.advance = groups, routes, advance
        self.record = StepRecord(rank)
        self.clock = 1_000_000 + 137 * rank
        self.number = 0
        self._draws: Draws | None = None
        self._dependencies = Dependencies(self.record)
        self._factor = speed_factor(settings, rank)
        self._streams: dict[str, Stream] = {}
        self._events: dict[tuple[str, int, int], Event] = {}
        self._calls: dict[str, int] = {}
        self._last_of_group: dict[str, Event] = {}

    def run(self, number: int, synchronised: bool, slower: Sequence[float] = ()) -> Iterator[None]:
        """Run one step; yields where the host must wait for times that are not known yet.

        Args:
            synchronised: the profiler ends after the step and waits for the GPU.
            slower: as ``StepRecord.begin`` takes it.
        """
        self.number = number
        self.record.begin(self.clock, slower)
        self._draws = Draws(self.settings, self.rank, number, self._undisturbed)
        for item in step_items(self.program, self.rank, number):
            yield from self._run(item)
        if synchronised:
            yield from self._synchronise(list(self._streams))
            self._dependencies.begin_file()

    def _run(self, item: Item) -> Iterator[None]:
        if isinstance(item, Segment):
            yield from self._run_segment(item.template, item.context)
        else:
            assert isinstance(item, Open | Close)
            self.clock += FRAME_NS
            self.record.marks.append(self.clock)

    def _run_segment(self, template: Template, context: Context) -> Iterator[None]:
        assert self._draws is not None
        total = template.total_ns
        stretch, noise = self._draws.of(template, context)
        length = int(total * stretch)
        begin = self.clock
        self.record.marks += (begin, length)
        launches = (begin + template.launch_ends * length // total).tolist()
        durations = (template.base_ns * (self._factor * noise)).astype(np.int64).tolist()
        held = 0
        for code, argument, text in template.actions:
            if code == LAUNCH:
                times = launches[argument] + held, durations[argument]
                self._launch(template.kernels[argument], times, context, template.ghost)
            elif code == WAIT:
                self._wait(text, context, template.ghost)
            elif code == SYNCHRONISE:
                now = self.clock = begin + argument * length // total + held
                names = [text] if text else list(self._streams)
                yield from self._synchronise(names)
                self._dependencies.synchronised([self._stream(name) for name in names])
                self.record.stalls.append(self.clock - now)
                held += self.clock - now
            elif code == PAUSE:
                self.record.stalls.append(int(text))
                held += int(text)
            else:
                self._tell(code, text, context)
        self.clock = begin + length + held

    def _tell(self, code: int, text: str, context: Context) -> None:
        """What a row of synchronisation says; it changes nothing."""
        stream, _, event = text.partition("|")
        if code == RECORD:
            key = _event_key(event, context) if event else None
            self._dependencies.recorded(stream, self._stream(stream), key)
        elif event.startswith("stream:"):
            self._dependencies.waited(stream, self._dependencies.last(event.removeprefix("stream:")))
        else:
            self._dependencies.waited(stream, self._dependencies.named(_event_key(event, context)))

    def _synchronise(self, names: list[str]) -> Iterator[None]:
        events = [self._stream(name).last for name in names]
        while any(event.time == UNKNOWN for event in events):
            yield
        self.clock = max([self.clock, *(event.time for event in events)])

    def _stream(self, name: str) -> Stream:
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Stream(self.record)
        return found

    def _wait(self, text: str, context: Context, ghost: bool) -> None:
        stream_name, _, event = text.partition("|")
        if event.startswith("stream:"):
            target = self._streams.get(event.removeprefix("stream:"))
            found = _reached(target, ghost) if target else []
        else:
            marked = self._events.get(_event_key(event, context))
            found = [Dependency(marked, _kind(ghost))] if marked else []
        self._stream(stream_name).pending += found

    def _launch(self, kernel: Kernel, times: tuple[int, int], context: Context, ghost: bool) -> None:
        """Put a kernel into its stream.

        Args:
            times: when the host has launched it, and how long it lasts. ghost: it is part of a CUDA graph.
        """
        stream, (launched, duration) = self._stream(kernel.stream), times
        waits, stream.pending = stream.pending, []
        for name in kernel.after:
            # An event covers what its stream had waited for, be it that nothing ran there since.
            waits += _reached(self._stream(name), ghost)
        done = self._dependencies.kernel(kernel.stream)
        if kernel.by_tokens:
            duration = int(duration * self._token_share(context))
        work = Work(launched + LAUNCH_LATENCY_NS, duration, self.record.new_kernel(), [], done, kernel, context)
        if kernel.messages:
            self._address(work)
        elif kernel.collective is not None:
            waits += self._join(work)
        work.after = [wait.event for wait in waits]
        self._dependencies.started(done, waits, self.settings.cuda_sync)
        stream.last = done
        stream.queue.append(work)
        marks = _event_key(kernel.records, context) if kernel.records else None
        if marks:
            self._events[marks] = done
        if ghost:
            self._dependencies.forget(kernel.stream, marks)
        if kernel.blocks:
            self._stream(kernel.blocks).pending.append(Dependency(done, _kind(ghost)))
        if not stream.held and len(stream.queue) == 1:
            self.advance(stream)

    def _join(self, work: Work) -> list[Dependency]:
        """Number a collective within its group, in the order of the calls; a communicator runs them in that order.

        Returns:
            The end of the collective before, which it waits for.
        """
        assert work.kernel.collective is not None
        name = self.groups[GROUP_OF[work.kernel.collective.group]].name
        self._calls[name] = self._calls.get(name, 0) + 1
        work.meeting = name, self._calls[name]
        previous = self._last_of_group.get(name)
        self._last_of_group[name] = work.done
        return [Dependency(previous, DependencyKind.COMMUNICATOR_ORDER)] if previous is not None else []

    def _address(self, work: Work) -> None:
        """Number a kernel's messages within their channel and direction, in the order of the calls."""
        assert work.kernel.collective is not None
        group = self.groups[GROUP_OF[work.kernel.collective.group]]
        place, letters = group.ranks.index(self.rank), []
        for message in work.kernel.messages:
            peer = group.ranks[(place + message.peer) % len(group.ranks)]
            ends = (self.rank, peer) if message.sends else (peer, self.rank)
            channel = f"p2p:{group.name}:{ends[0]}:{ends[1]}:{message.channel}"
            counter = f"{channel}:{message.sends}"
            self._calls[counter] = self._calls.get(counter, 0) + 1
            letters.append((f"{channel}:{self._calls[counter]}", message.nbytes, ends))
        work.letters = tuple(letters)

    def _token_share(self, context: Context) -> float:
        """Tokens that this rank's experts received in a layer, over the balanced number."""
        group = self.groups[GROUP_OF["ep"]].ranks
        return self.routes.received_share(self.number, context.microbatch, context.layer, group, self.rank)


def _reached(stream: Stream, ghost: bool) -> list[Dependency]:
    """What an event recorded on a stream now represents: its last work, and what its next work will wait for."""
    passed_on = DependencyKind.CUDA_GRAPH if ghost else DependencyKind.PASSED_ON_WAIT
    return [Dependency(stream.last, _kind(ghost)), *(Dependency(wait.event, passed_on) for wait in stream.pending)]


def _kind(ghost: bool) -> DependencyKind:
    return DependencyKind.CUDA_GRAPH if ghost else DependencyKind.EVENT_WAIT


def _event_key(event: str, context: Context) -> tuple[str, int, int]:
    """Events of parameters and tensor-parallel calls belong to a layer, those of a schedule plan to a chunk."""
    if event.startswith("plan:"):
        return event, context.chunk, 0
    if event.endswith(":next"):
        return event.removesuffix(":next"), context.chunk, context.position + 1
    if event.endswith(":previous"):
        return event.removesuffix(":previous"), context.chunk, context.position - 1
    return event, context.chunk, context.position
