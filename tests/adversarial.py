"""Small jobs that tempt an analysis to say too much: traces of several ranks, a few kernels each, written by rule.

A ``Job`` is a list of meetings. Every rank computes, comes to the meeting, and leaves it together with the others; what
it waits follows from that and is known (``Job.waits``). What the traces say of it is then spoiled: clocks shifted,
ends scattered, groups not named. A new case is a function that returns a ``Job``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from tests.kineto_file import KinetoFile
from tests.small_run import GEMM, REDUCE

MS, US = 1_000_000, 1_000
BASE_NS = 200 * MS
"""Where the step begins on the true clock, so that no clock is shifted below 0."""

DATA, TENSOR, WORLD = "DATA_PARALLEL_GROUP_WITH_CP", "TENSOR_MODEL_PARALLEL_GROUP", "default_pg"


@dataclass(frozen=True)
class Meeting:
    """One collective and the computation before it.

    Attributes:
        ranks: its members; group, description: the process group.
        compute_ns: what every member computes before, in ``kernels`` kernels; more_ns: rank → what it computes more.
        stall_ns: rank → how long its host launches nothing before.
        transfer_ns: from the last arrival to the end; late_end_ns: rank → how much later than the others it ends.
    """

    ranks: tuple[int, ...]
    group: str = "1"
    description: str = DATA
    compute_ns: int = 100 * MS
    kernels: int = 10
    more_ns: Mapping[int, int] = field(default_factory=dict)
    stall_ns: Mapping[int, int] = field(default_factory=dict)
    transfer_ns: int = MS
    late_end_ns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One training step of a few ranks.

    Attributes:
        clock_ns: rank → what its clock is ahead.
        groups: whether headers and kernels name the process groups; sizes: whether kernels record their group's size.
        tail_ns: from the last meeting to the end of the step.
    """

    world: int
    meetings: tuple[Meeting, ...]
    clock_ns: Mapping[int, int] = field(default_factory=dict)
    groups: bool = True
    sizes: bool = True
    tail_ns: int = 4 * MS

    def waits(self) -> dict[int, list[int]]:
        """Rank → its true wait in each of its meetings, ns."""
        found: dict[int, list[int]] = {rank: [] for rank in range(self.world)}
        for meeting, arrivals, _, _ in self._timeline():
            for rank in meeting.ranks:
                found[rank].append(max(arrivals.values()) - arrivals[rank])
        return found

    def write(self, folder: Path, step: int = 7) -> Path:
        """Write the traces of all ranks in the iteration layout."""
        timeline = list(self._timeline())
        for rank in range(self.world):
            name = f"iteration_{step}/rank_{rank:04d}_iter_{step}.pt.trace.json"
            self._rank_file(rank, step, timeline).write(folder / name)
        return folder

    def _timeline(self) -> Iterator[tuple[Meeting, dict[int, int], dict[int, int], dict[int, int]]]:
        """Each meeting with its members' beginnings of computation, arrivals and ends, on the true clock."""
        free = dict.fromkeys(range(self.world), BASE_NS + 10 * US)
        for meeting in self.meetings:
            begins = {rank: free[rank] + meeting.stall_ns.get(rank, 0) for rank in meeting.ranks}
            arrivals = {
                rank: begin + meeting.compute_ns + meeting.more_ns.get(rank, 0) for rank, begin in begins.items()
            }
            end = max(arrivals.values()) + meeting.transfer_ns
            ends = {rank: end + meeting.late_end_ns.get(rank, 0) for rank in meeting.ranks}
            free |= ends
            yield meeting, arrivals, ends, begins

    def _rank_file(self, rank: int, step: int, timeline: list) -> KinetoFile:
        file = KinetoFile(rank=rank, world_size=self.world, groups=self._groups(rank) if self.groups else None)
        shift = self.clock_ns.get(rank, 0)
        last = max(max(ends.values()) for _, _, ends, _ in timeline)
        file.annotation(f"ProfilerStep#{step}", BASE_NS + shift, last + self.tail_ns + shift)
        for meeting, arrivals, ends, begins in timeline:
            if rank not in meeting.ranks:
                continue
            begin, arrival, end = (times[rank] + shift for times in (begins, arrivals, ends))
            edges = [begin + (arrival - begin) * place // meeting.kernels for place in range(meeting.kernels + 1)]
            for start, stop in pairwise(edges):
                file.kernel(GEMM, start, stop, launched=start - 5 * US)
            file.kernel(REDUCE, arrival, end, launched=arrival - 4 * US, stream=32, **self._facts(meeting))
        return file

    def _groups(self, rank: int) -> list[dict[str, object]]:
        everyone = {"pg_name": "0", "pg_desc": WORLD, "pg_size": self.world, "ranks": list(range(self.world))}
        mine = {
            meeting.group: {
                "pg_name": meeting.group,
                "pg_desc": meeting.description,
                "pg_size": len(meeting.ranks),
                "ranks": list(meeting.ranks),
            }
            for meeting in self.meetings
            if rank in meeting.ranks and meeting.group != "0"
        }
        return [everyone, *mine.values()]

    def _facts(self, meeting: Meeting) -> dict[str, object]:
        facts: dict[str, object] = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1 << 20}
        facts["Out msg nelems"] = facts["In msg nelems"]
        if self.sizes:
            facts["Group size"] = len(meeting.ranks)
        if self.groups:
            facts |= {
                "Process Group Name": meeting.group,
                "Process Group Description": meeting.description,
                "Process Group Ranks": str(list(meeting.ranks)),
            }
        return facts


def healthy(world: int = 8, meetings: int = 1, jitter_ns: int = 165 * US, **more: object) -> Job:
    """Data-parallel ranks with a few all-reduces a step; what they compute differs by no more than the jitter."""
    everyone = tuple(range(world))
    parts = [
        Meeting(
            everyone,
            compute_ns=100 * MS // meetings,
            # A different rank is the last each time.
            more_ns={rank: jitter_ns * ((rank * 5 + number * 3) % world) // max(world - 1, 1) for rank in everyone},
        )
        for number in range(meetings)
    ]
    return Job(world, tuple(parts), **more)  # type: ignore[arg-type]


def one_clock_ahead(ahead_ns: int = 50 * MS, rank: int = 3, meetings: int = 1) -> Job:
    """A healthy job in which one rank's clock is ahead."""
    return healthy(meetings=meetings, clock_ns={rank: ahead_ns})


def too_few_matches(meetings: int = 2) -> Job:
    """A healthy job with fewer meetings than clocks need, each clock somewhere else."""
    return healthy(meetings=meetings, clock_ns={rank: (rank * 37 % 100) * MS for rank in range(8)})


def unsolvable_clocks(scatter_ns: int = 3 * MS) -> Job:
    """A healthy job whose members end at different times, as over gloo: nothing ties their clocks together."""
    job = healthy(meetings=6, clock_ns={rank: rank * 7 * MS for rank in range(8)})
    scattered = [
        replace(meeting, late_end_ns={rank: scatter_ns * ((rank * 3 + number * 5) % 8) // 8 for rank in meeting.ranks})
        for number, meeting in enumerate(job.meetings)
    ]
    return replace(job, meetings=tuple(scattered))


def disconnected_groups(meetings: int = 5) -> Job:
    """Two tensor-parallel groups that never meet each other, their clocks 30 ms apart."""
    parts = [
        Meeting(ranks, f"{1 + number}", TENSOR, compute_ns=20 * MS, more_ns={ranks[turn % 4]: 100 * US})
        for turn in range(meetings)
        for number, ranks in enumerate(((0, 1, 2, 3), (4, 5, 6, 7)))
    ]
    return Job(8, tuple(parts), clock_ns=dict.fromkeys(range(4, 8), 30 * MS))


def no_process_groups(meetings: int = 1, sizes: bool = False) -> Job:
    """A healthy job that names no process group."""
    return healthy(meetings=meetings, groups=False, sizes=sizes, clock_ns={3: 50 * MS})


def slow_rank(rank: int = 5, factor: float = 1.3, meetings: int = 1, **more: object) -> Job:
    """A job in which one rank's kernels take longer, whatever its clock says."""
    job = healthy(meetings=meetings, clock_ns={(rank + 2) % 8: 50 * MS}, **more)
    slowed = [
        replace(meeting, more_ns={**meeting.more_ns, rank: round((factor - 1) * meeting.compute_ns)})
        for meeting in job.meetings
    ]
    return replace(job, meetings=tuple(slowed))


def stalled_host(rank: int = 2, stall_ns: int = 20 * MS) -> Job:
    """A job in which one rank's host launches nothing for a while, its clock 50 ms behind the others'."""
    job = healthy(clock_ns={each: 50 * MS for each in range(8) if each != rank})
    first = replace(job.meetings[0], stall_ns={rank: stall_ns})
    return replace(job, meetings=(first, *job.meetings[1:]))


HEALTHY = {
    "one all-reduce": healthy(),
    "one all-reduce, one clock 50 ms ahead": one_clock_ahead(),
    "one all-reduce, one clock .5 ms ahead": one_clock_ahead(500 * US),
    "ten all-reduces, one clock 50 ms ahead": one_clock_ahead(meetings=10),
    "two all-reduces, every clock elsewhere": too_few_matches(),
    "ends scattered, clocks cannot be solved": unsolvable_clocks(),
    "groups that never meet, 30 ms apart": disconnected_groups(),
    "no process groups": no_process_groups(),
    "no process groups, ten all-reduces": no_process_groups(10),
    "no process groups, sizes recorded": no_process_groups(sizes=True),
}
"""Jobs in which nobody is to blame."""
