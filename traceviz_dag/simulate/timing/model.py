"""The event-driven model: all ranks' hosts and streams on one true clock, before any file is written.

Each rank's host runs its program until it must wait for its GPU. GPU work waits in FIFO streams; a kernel starts at
``max(launch + latency, end of the stream's last kernel, ends it waits for)``. A collective transfers from its last
arrival on; a message when both ends have arrived. Times do not depend on the order in which ranks are visited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from traceviz_dag.simulate.durations import Link, Routes, buffering_ns, routed_tokens
from traceviz_dag.simulate.program.stage import StageProgram
from traceviz_dag.simulate.rank_grids import ProcessGroup, RankGrids
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.templates import Library
from traceviz_dag.simulate.timing.clock_faults import transfer_factor, work_factor
from traceviz_dag.simulate.timing.host import Host
from traceviz_dag.simulate.timing.streams import UNKNOWN, Meeting, PendingMessages, StepTimes, Stream, Work
from traceviz_dag.simulate.work.faults import runs_other_work, undisturbed
from traceviz_dag.vocabulary import Kind

_END_SPREAD_NS = 37


class Model:
    """All ranks of a job."""

    def __init__(
        self, settings: JobSettings, slower: Mapping[tuple[int, int], Sequence[float]] = MappingProxyType({})
    ) -> None:
        """Prepare a job.

        Args:
            slower: (step, rank) → how much longer each of its kernels takes for contention.
        """
        self.settings, self._slower = settings, slower
        grids = RankGrids.of(settings)
        library = Library(settings)
        healthy = undisturbed(settings)
        healthy_library = Library(healthy)
        self._groups = {group.name: group for group in grids.groups}
        self._routes = Routes(settings)
        programs = [StageProgram(settings, stage, library) for stage in range(settings.pp)]
        healthy_programs = [StageProgram(healthy, stage, healthy_library) for stage in range(settings.pp)]
        self.hosts = [
            Host(
                settings,
                rank,
                programs[grids.coordinates(rank)["pp"]],
                healthy_programs[grids.coordinates(rank)["pp"]] if runs_other_work(settings, rank) else None,
                grids.of_rank(rank),
                self._routes,
                self._advance,
            )
            for rank in range(settings.world)
        ]
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._waiting: dict[str, PendingMessages] = {}
        self._links: dict[tuple[int, ...], Link] = {}
        self._progress = -1

    def step(self, number: int, synchronised: bool = True) -> list[StepTimes]:
        """Simulate one training step of all ranks.

        Args:
            number: the step's number, as ProfilerStep and the random choices use it.
            synchronised: whether the profiler ends after it and waits for the GPU.

        Raises:
            RuntimeError: the ranks wait for each other, which no valid settings bring about.
        """
        running = [host.run(number, synchronised, self._slower.get((number, host.rank), ())) for host in self.hosts]
        self._progress = -1
        while running:
            remaining = [process for process in running if _continues(process)]
            if len(remaining) == len(running) and self._is_stuck():
                raise RuntimeError(f"the simulated job deadlocks in step {number}: ranks wait for each other")
            running = remaining
        self._routes.forget()
        return [host.record.times() for host in self.hosts]

    def _is_stuck(self) -> bool:
        progress = sum(len(host.record.starts) + len(host.record.stalls) for host in self.hosts)
        stuck, self._progress = progress == self._progress, progress
        return stuck

    def _link(self, ranks: tuple[int, ...]) -> Link:
        if ranks not in self._links:
            self._links[ranks] = Link.between(ranks, self.settings)
        return self._links[ranks]

    def _advance(self, stream: Stream) -> None:
        """Start whatever can start on a stream, and on the streams that this sets free."""
        agenda = [stream]
        while agenda:
            current = agenda.pop()
            while current.queue and not current.held:
                if not self._start(current, agenda):
                    break

    def _start(self, stream: Stream, agenda: list[Stream]) -> bool:
        work = stream.queue[0]
        start = max(work.earliest, stream.busy_until)
        for event in work.after:
            if event.time == UNKNOWN:
                event.waiters.append(stream)
                return False
            start = max(start, event.time)
        stream.record.starts[work.index] = start
        if work.letters:
            stream.held = True
            self._post(stream, work, start, agenda)
        elif work.meeting:
            stream.held = True
            self._meet(stream, work, start, agenda)
        else:
            slower = work_factor(self.settings.faults, stream.record.rank, start - stream.record.begun_ns)
            if stream.record.slower and work.kernel.kind is Kind.COMPUTATION:
                slower *= stream.record.slower[work.index]
            _finish(stream, start, start + int(work.duration * slower), "", agenda)
        return True

    def _meet(self, stream: Stream, work: Work, start: int, agenda: list[Stream]) -> None:
        """Arrive at a collective; the last to arrive sets its end."""
        assert work.meeting is not None
        group = self._groups[work.meeting[0]]
        meeting = self._meetings.get(work.meeting)
        if meeting is None:
            meeting = self._meetings[work.meeting] = self._call_meeting(work, group)
        meeting.arrivals[stream.record.rank] = stream, start
        root = self._buffering_root(work, group)
        if stream.record.rank == root:
            assert work.kernel.collective is not None
            _finish(stream, start, start + buffering_ns(work.kernel.collective.nbytes), meeting.name, agenda)
        if len(meeting.arrivals) < meeting.members:
            return
        del self._meetings[work.meeting]
        last = max(arrival for _, arrival in meeting.arrivals.values())
        transfer_ns = int(meeting.transfer_ns * transfer_factor(self.settings.faults, last))
        for place, rank in enumerate(group.ranks):
            if rank == root:
                continue
            member, _ = meeting.arrivals[rank]
            # The members' kernels end within a few hundred ns of each other.
            end = last + transfer_ns + _END_SPREAD_NS * (place * 7 % 11)
            _finish(member, last, end, meeting.name, agenda)
            if member is not stream:
                agenda.append(member)

    def _buffering_root(self, work: Work, group: ProcessGroup) -> int | None:
        """The rank that sends ahead: of a pipeline the last stage, else the first rank of the group."""
        what = work.kernel.collective
        if not self.settings.buffered_sends or what is None or what.operation != "broadcast" or len(group.ranks) == 1:
            return None
        return group.ranks[-1 if what.group == "pp" else 0]

    def _call_meeting(self, work: Work, group: ProcessGroup) -> Meeting:
        assert work.meeting is not None
        what = work.kernel.collective
        assert what is not None
        nbytes = float(what.nbytes)
        if what.uneven:
            context, members = work.context, group.ranks
            number = self.hosts[members[0]].number
            route = self._routes.route(number, context.microbatch, context.layer, members)
            nbytes *= float(max(route.sum(axis=0).max(), route.sum(axis=1).max())) / routed_tokens(self.settings)
        transfer = self._link(group.ranks).collective_ns(what.operation, nbytes, len(group.ranks))
        return Meeting(f"coll:{group.name}:{what.operation}:{work.meeting[1]}", len(group.ranks), transfer)

    def _post(self, stream: Stream, work: Work, start: int, agenda: list[Stream]) -> None:
        """Post a point-to-point kernel's messages; it ends when all of them have been carried."""
        mine = PendingMessages(stream, start, len(work.letters))
        for name, nbytes, ends in work.letters:
            link = self._link(ends)
            # What is buffered leaves its sender at once, and waits for its receiver.
            ahead = self.settings.buffered_sends and link.crosses_nodes
            if ahead and stream.record.rank == ends[0]:
                _carry(mine, start, start + buffering_ns(nbytes), name, agenda, mine)
            other = self._waiting.pop(name, None)
            if other is None:
                self._waiting[name] = mine
                continue
            ready = max(mine.start, other.start)
            end = ready + int(link.message_ns(nbytes) * transfer_factor(self.settings.faults, ready))
            for side in (mine, other):
                if not ahead or side.stream.record.rank != ends[0]:
                    _carry(side, ready, end, name, agenda, mine)


def _carry(
    side: PendingMessages, ready: int, end: int, name: str, agenda: list[Stream], current: PendingMessages
) -> None:
    """One end of a message is done; with the last one its kernel ends, and its stream goes on."""
    side.carry(ready, end, name)
    if side.open == 0:
        _finish(side.stream, side.ready, side.end, "|".join(sorted(side.names)), agenda)
        if side is not current:
            agenda.append(side.stream)


def _finish(stream: Stream, ready: int, end: int, match: str, agenda: list[Stream]) -> None:
    """The kernel at the head of a stream has ended; whoever waits for it goes onto the agenda."""
    work, record = stream.queue.popleft(), stream.record
    record.ready[work.index], record.ends[work.index], record.match[work.index] = ready, end, match
    stream.busy_until = end
    stream.held = False
    work.done.time = end
    agenda += work.done.waiters
    work.done.waiters = []


def _continues(process: Iterator[None]) -> bool:
    return next(process, StopIteration) is None
