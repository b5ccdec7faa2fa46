"""The graph of one step over all ranks: their work, tied together where they communicate.

A *meeting* is a collective communication or a message: it begins when its last member has arrived, and each member's
kernel ends its own transfer time later. So waiting follows from arrivals, and only transfers belong to a communication.
With the lags that were measured the replay gives every kernel's end back to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from traceviz_dag.analyze.causes.graph import NEVER_LATE, CircleError, Graph, graph_of
from traceviz_dag.analyze.causes.rank_offsets import rank_offsets
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.matching.operations import ENDS_TOGETHER, OPERATIONS, Operation
from traceviz_dag.arrays import Bool, Int8, Int64, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING

_ORDER = EVIDENCES.index("order")
_LOWEST = np.iinfo(np.int64).min // 4
_TOGETHER = 1 << 17
"""Kernels of which ranks are taken together: thousands of small ones, but no more in memory at once."""
_END_TOGETHER = [OPERATIONS.index(each) for each in (*ENDS_TOGETHER, Operation.SEND, Operation.RECEIVE)]


@dataclass(frozen=True)
class Members:
    """Who takes part in meetings; one entry a member of a meeting. A kernel may carry several messages.

    Attributes:
        rank: place of its rank in ``StepWork.ranks``; kernel: place of its kernel in that rank's ``RankKernels``.
        meeting: number of the meeting, from 0.
        partial: per meeting, whether it lacks members; None where none does.
        ahead: whether the member does not wait for the meeting, but ends by itself: a send that is buffered. Such a
            kernel has a meeting of its own, too, unless it also waits for another one; None where none does.
        role: 1 for who sends a message, 2 for who receives it, 0 in a collective; None where all are collectives.
    """

    rank: Int64
    kernel: Int64
    meeting: Int64
    partial: Bool | None = None
    ahead: Bool | None = None
    role: Int64 | None = None

    @cached_property
    def roles(self) -> Int64:
        """Per entry, the roles of its kernel in all its meetings, added up: what only sends may go into a buffer."""
        if self.role is None:
            return np.zeros(len(self.rank), np.int64)
        first, _ = number_groups(self.rank, self.kernel, self.role)
        _, own = number_groups(self.rank, self.kernel)
        return np.bincount(own[first], weights=self.role[first]).astype(np.int64)[own]

    @cached_property
    def waiting(self) -> Int64:
        """Places of the entries whose kernels wait for the meeting."""
        return np.arange(len(self.rank)) if self.ahead is None else np.flatnonzero(~self.ahead)

    def of(self, place: int) -> Int64:
        """Places of the entries of one rank, ascending."""
        order, bounds = self._by_rank
        return order[bounds[place] : bounds[place + 1]] if place + 1 < len(bounds) else order[:0]

    @cached_property
    def _by_rank(self) -> tuple[Int64, Int64]:
        order = np.argsort(self.rank, kind="stable")
        return order, np.searchsorted(self.rank[order], np.arange(int(self.rank.max(initial=-1)) + 2))


@dataclass(frozen=True, slots=True)
class Times:
    """What the work of a step takes: per rank, what its kernels take, and what passes before each.

    Attributes:
        duration_ns: per kernel; of a kernel that is part of a meeting, the transfer.
        lag_ns: per kernel, as ``RankWork.lag_ns``. launch_ns: per kernel, as ``RankWork.launch_ns``.
        section_ns: per section of the host, from the begin of the one before to the call that ends it; of the first,
            how long after the first rank's begin the rank begins.
        section_lag_ns: as ``RankWork.section_lag_ns``.
        waits: per section, whether the call that ends before it waits for the GPU.
        host_end_ns: from the begin of the last section to the end of the step on the host.
    """

    duration_ns: Int64
    lag_ns: Int64
    launch_ns: Int64
    section_ns: Int64
    section_lag_ns: Int64
    waits: Bool
    host_end_ns: int


@dataclass(frozen=True)
class StepWork:
    """All ranks of a step and their graph.

    Attributes:
        ranks: their numbers. works: their work.
        offset_ns: per rank, what to subtract from its clock; together: per rank, place of the lowest rank that it can
            be compared with.
        base: node at which each rank's nodes begin, and the number of the first meeting.
        members: of the meetings.
        graph: of all nodes; kind, evidence: per edge, as given to the graph.
        begin_ns: when the first rank begins its step, per set of ranks that can be compared, on the common clock.
    """

    ranks: tuple[int, ...]
    works: tuple[RankWork, ...]
    offset_ns: Int64
    together: Int64
    base: Int64
    members: Members
    graph: Graph
    kind: Int8
    evidence: Int8
    begin_ns: Int64

    @property
    def waiting(self) -> Int64:
        """Per edge, as given to the graph, the node that waits."""
        return self._as_given(self.graph.waiting)

    @property
    def waited_for(self) -> Int64:
        """Per edge, as given to the graph, the node that it waits for."""
        return self._as_given(self.graph.waited_for)

    def _as_given(self, values: Int64) -> Int64:
        result = np.empty_like(values)
        result[self.graph.number] = values
        return result

    def times(self) -> tuple[Times, ...]:
        """The times as measured, rank by rank."""
        transfers = self._transfers()
        result = []
        for place, work in enumerate(self.works):
            duration = work.kernels.duration_ns.copy()
            mine = self.members.of(place)
            duration[self.members.kernel[mine]] = transfers[mine]
            own = np.zeros(len(work.section_ns), np.int64)
            own[0] = self._measured_begins[place]
            host = np.flatnonzero(work.kind == EdgeKind.HOST)
            own[work.waiting[host] - work.sections] = work.lag[host]
            host_end = work.lag[(work.kind == EdgeKind.END) & (work.waited_for >= work.sections)]
            waits = np.ones(len(own), dtype=bool)
            lags = work.section_lag_ns
            result.append(Times(duration, work.lag_ns, work.launch_ns, own, lags, waits, int(host_end[0])))
        return tuple(result)

    def is_met(self, place: int) -> Bool:
        """Mark the kernels of a rank that are part of a matched communication of which every member is known."""
        members = self.members
        mine = members.of(place)
        if members.partial is not None:
            mine = mine[~members.partial[members.meeting[mine]]]
        marked = np.zeros(len(self.works[place].kernels), dtype=bool)
        marked[members.kernel[mine]] = True
        return marked

    def _transfers(self) -> Int64:
        """Per member, from the last arrival at any of its kernel's meetings to the kernel's end."""
        members = self.members
        start, end = np.empty(len(members.rank), np.int64), np.empty(len(members.rank), np.int64)
        for place, work in enumerate(self.works):
            mine = members.of(place)
            start[mine] = work.kernels.start_ns[members.kernel[mine]] - self.offset_ns[place]
            end[mine] = work.kernels.end_ns[members.kernel[mine]] - self.offset_ns[place]
        ready = np.full(int(members.meeting.max(initial=-1)) + 1, _LOWEST)
        np.maximum.at(ready, members.meeting, start)
        # A kernel with several messages ends with the last of them.
        kernel = _kernel_numbers(self.works, members)
        of_kernel = np.full(int(kernel.max(initial=-1)) + 1, _LOWEST)
        np.maximum.at(of_kernel, kernel[members.waiting], ready[members.meeting[members.waiting]])
        return np.asarray(end - of_kernel[kernel], dtype=np.int64)

    def replay(self, times: Sequence[Times], earliest: Int64 | None = None) -> Int64:
        """The end of every node, from the begin of the first rank's step.

        Args:
            times: as ``times`` gives them, edited or not.
            earliest: per node, before when it does not end, whatever it waits for.
        """
        durations, lags = self.weights(times)
        return self.graph.ends(durations, lags, earliest)

    def unmet_ends(self, ends: Int64, before: Sequence[Times], after: Sequence[Times]) -> Int64:
        """Per node, when it ends at the earliest if its communications that are not matched with all their members end
        as they did, for they may have waited for somebody of whom nothing is known.

        Args:
            ends: the replay with the times ``before``. after: those of the replay that is asked about.
        """
        result = np.full(self.graph.nodes, _LOWEST)
        for place, (work, old, new) in enumerate(zip(self.works, before, after, strict=True)):
            unmet = np.flatnonzero(work.kernels.communicates & ~self.is_met(place))
            node = self.base[place] + work.segment[unmet]
            behind = [(suffixes(work, each) - each.lag_ns - each.duration_ns)[unmet] for each in (new, old)]
            # What is joined is alone in its segment, whose node has no duration of its own.
            np.maximum.at(result, node, ends[node] + behind[0] - behind[1])
        return result

    def weights(self, times: Sequence[Times]) -> tuple[Int64, Int64]:
        """What the nodes take, and what passes on the edges, with the given times."""
        durations = np.zeros(self.graph.nodes, np.int64)
        lags = np.zeros(len(self.kind), np.int64)
        for places, several in self._several:
            several.fill(durations, lags, times[places])
        members, waiting = self.members, self.members.waiting
        edge = sum(len(work.waiting) for work in self.works) + len(members.rank)
        begins = np.cumsum([0, *(len(mine.duration_ns) for mine in times)])
        of_kernel = np.concatenate([np.empty(0, np.int64), *(mine.duration_ns for mine in times)])
        lags[edge : edge + len(waiting)] = of_kernel[begins[members.rank[waiting]] + members.kernel[waiting]]
        return durations, lags

    @cached_property
    def _several(self) -> list[tuple[slice, _Several]]:
        """The work of ranks that follow one another, taken together; with which places they have."""
        kernels = np.cumsum([0, *(len(work.kernels) for work in self.works)])
        edges = np.cumsum([0, *(len(work.waiting) for work in self.works)])
        lows = np.unique(kernels[:-1] // _TOGETHER, return_index=True)[1].tolist()
        parts = [slice(low, high) for low, high in pairwise([*lows, len(self.works)])]
        return [(each, _several(self.works[each], self.base[each], edges[each])) for each in parts]

    def lengths(self, ends: Int64) -> Int64:
        """How long the step of each rank takes, from its own begin to its end."""
        return np.asarray(ends[self._ends] - ends[self._begins], dtype=np.int64)

    def step_ns(self, ends: Int64) -> int:
        """How long the step takes: the longest of any rank."""
        return int(self.lengths(ends).max())

    def edited_ns(self, ends: Int64) -> int:
        """The same after an edit: a rank that it lets begin earlier, to wait for others, has no longer step by that."""
        earlier = np.maximum(self._measured_begins - ends[self._begins], 0)
        return int((self.lengths(ends) - earlier).max())

    def longest(self, ends: Int64) -> int:
        """Place of the rank whose step is the longest."""
        return int(self.lengths(ends).argmax())

    @cached_property
    def _measured_begins(self) -> Int64:
        """Per rank, when it begins its step, from the begin of the first one."""
        return np.array([work.start_ns for work in self.works], np.int64) - self.offset_ns - self.begin_ns

    @cached_property
    def _ends(self) -> Int64:
        return self.base[:-1] + np.array([work.end for work in self.works])

    @cached_property
    def _begins(self) -> Int64:
        return self.base[:-1] + np.array([work.sections for work in self.works])


def _kernel_numbers(works: Sequence[RankWork], members: Members) -> Int64:
    """Per member, a number of its kernel among those of all ranks."""
    widest = max((len(work.kernels) for work in works), default=1)
    return members.rank * widest + members.kernel


class Segments(Protocol):
    """Kernels that follow one another in segments; see ``RankWork``."""

    @property
    def first(self) -> Int64:
        """Place of each segment's first kernel."""

    @property
    def segment(self) -> Int64:
        """Per kernel, its segment."""


def suffixes(work: Segments, times: Times) -> Int64:
    """Per kernel, its own time and that of all behind it in its segment, lags included."""
    total = np.cumsum(times.lag_ns + times.duration_ns)
    last = np.append(work.first[1:], len(total)) - 1
    return np.asarray(total[last][work.segment] - total + times.lag_ns + times.duration_ns, dtype=np.int64)


def latest_launch(work: Segments, times: Times, behind: Int64) -> Int64:
    """Per segment, from the begin of its host section to its end if nothing but launches held it up.

    Args:
        behind: ``suffixes``.
    """
    if not len(work.first):
        return np.empty(0, np.int64)
    launched = np.where(times.launch_ns == MISSING, _LOWEST, times.launch_ns + behind)
    return np.asarray(np.maximum.reduceat(launched, work.first), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Several:
    """The work of several ranks as that of one: their kernels, segments and sections follow one another.

    Attributes:
        first, segment, joined: as of ``RankWork``. begins: place of each rank's first section.
        segments, arrivals, sections: nodes of the graph.
        launch, host, held, end: edges of the graph by what passes on them, as ``RankWork.by_kind`` has them.
        launched: node that each launch holds up; called, returned: section that the host comes to over each edge, that
            each wait holds up; ended: place of the rank of each end.
    """

    first: Int64
    segment: Int64
    joined: Int64
    begins: Int64
    segments: Int64
    arrivals: Int64
    sections: Int64
    launch: Int64
    host: Int64
    held: Int64
    end: Int64
    launched: Int64
    called: Int64
    returned: Int64
    ended: Int64

    def fill(self, durations: Int64, lags: Int64, times: Sequence[Times]) -> None:
        """Put what the nodes take, and what passes on the edges, into zeros."""
        duration, lag, launch, section, section_lag, waits = (
            np.concatenate([getattr(mine, name) for mine in times])
            for name in ("duration_ns", "lag_ns", "launch_ns", "section_ns", "section_lag_ns", "waits")
        )
        joint = Times(duration, lag, launch, section, section_lag, waits, 0)
        behind = suffixes(self, joint)
        durations[self.segments] = behind[self.first]
        durations[self.segments[self.segment[self.joined]]] = 0
        durations[self.arrivals] = lag[self.joined]
        durations[self.sections] = section_lag
        durations[self.sections[self.begins]] = section[self.begins]
        through = np.zeros(len(durations), np.int64)
        through[self.segments] = latest_launch(self, joint, behind) - behind[self.first]
        through[self.arrivals] = launch[self.joined]
        lags[self.launch] = through[self.launched]
        lags[self.host] = section[self.called]
        lags[self.held] = np.where(waits[self.returned], 0, NEVER_LATE)
        lags[self.end] = np.array([mine.host_end_ns for mine in times], np.int64)[self.ended]


def _several(works: Sequence[RankWork], base: Int64, edges: Int64) -> _Several:
    """Take the work of several ranks together.

    Args:
        base: node at which those of each rank begin. edges: the edge at which they do.
    """
    kernels, segments, sections = (
        np.cumsum([0, *counts])[:-1]
        for counts in zip(*((len(one.kernels), one.segments, len(one.section_ns)) for one in works), strict=True)
    )

    def behind(begins: Int64, each: Callable[[RankWork], Int64]) -> Int64:
        return np.concatenate([low + each(work) for low, work in zip(begins, works, strict=True)])

    launch, host, held, end = (
        behind(edges, lambda work, kind=kind: work.by_kind[kind])  # type: ignore[misc]
        for kind in (EdgeKind.LAUNCH, EdgeKind.HOST, EdgeKind.SYNCHRONISATION, EdgeKind.END)
    )
    return _Several(
        first=behind(kernels, lambda work: work.first),
        segment=behind(segments, lambda work: work.segment),
        joined=behind(kernels, lambda work: work.joined),
        begins=sections,
        segments=behind(base, lambda work: np.arange(work.arrivals)),
        arrivals=behind(base, lambda work: np.arange(work.arrivals, work.sections)),
        sections=behind(base, lambda work: np.arange(work.sections, work.end)),
        launch=launch,
        host=host,
        held=held,
        end=end,
        launched=behind(base, lambda work: work.waiting[work.by_kind[EdgeKind.LAUNCH]]),
        called=behind(sections, lambda work: work.waiting[work.by_kind[EdgeKind.HOST]] - work.sections),
        returned=behind(sections, lambda work: work.waiting[work.by_kind[EdgeKind.SYNCHRONISATION]] - work.sections),
        ended=behind(np.arange(len(works)), lambda work: np.zeros(len(work.by_kind[EdgeKind.END]), np.int64)),
    )


def step_work(
    ranks: Sequence[int],
    works: Sequence[RankWork],
    members: Members,
    further: tuple[Int64, Int64, Int64] | None = None,
) -> StepWork:
    """Tie the work of all ranks together.

    Args:
        ranks: their numbers, ascending; works: the work of each, whose ``joined`` are the kernels of ``members``.
        further: kind, waiting and waited_for of edges between nodes of different places.

    Raises:
        NoEvidenceError: some work waits for itself; its kernels are named.
    """
    count = len(ranks)
    base = np.concatenate([[0], np.cumsum([work.nodes for work in works])]).astype(np.int64)
    end = np.empty(len(members.rank), np.int64)
    for place, work in enumerate(works):
        mine = members.of(place)
        end[mine] = work.kernels.end_ns[members.kernel[mine]]
    kernel = _kernel_numbers(works, members)
    loose = np.ones(len(end), dtype=bool)
    for place, work in enumerate(works):
        mine = members.of(place)
        loose[mine] = ~np.isin(work.kernels.operation[members.kernel[mine]], _END_TOGETHER)
    if members.ahead is not None:
        loose |= members.ahead
    offset, together = rank_offsets(count, members.rank, members.meeting, end, kernel, loose)
    waiting = [work.waiting + base[place] for place, work in enumerate(works)]
    waited_for = [work.waited_for + base[place] for place, work in enumerate(works)]
    kernel_node, arrival_node = np.empty(len(end), np.int64), np.empty(len(end), np.int64)
    for place, work in enumerate(works):
        mine = members.of(place)
        kernel_node[mine] = base[place] + work.segment[members.kernel[mine]]
        arrival_node[mine] = base[place] + work.arrivals + np.searchsorted(work.joined, members.kernel[mine])
    meeting = base[-1] + members.meeting
    nodes = int(base[-1] + members.meeting.max(initial=-1) + 1)
    more_kinds, more_waiting, more_waited_for = further or (np.empty(0, np.int64),) * 3
    held = members.waiting
    all_waiting = np.concatenate([*waiting, meeting, kernel_node[held], more_waiting])
    all_waited_for = np.concatenate([*waited_for, arrival_node, meeting[held], more_waited_for])
    kinds = [np.full(len(end), EdgeKind.ARRIVAL, np.int8), np.full(len(held), EdgeKind.TRANSFER, np.int8)]
    kind = np.concatenate([*(work.kind for work in works), *kinds, more_kinds.astype(np.int8)])
    by_order = np.full(len(end) + len(held) + len(more_kinds), _ORDER, np.int8)
    evidence = np.concatenate([*(work.evidence for work in works), by_order])
    begin = np.array([work.start_ns for work in works], np.int64) - offset
    earliest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(earliest, together, begin)
    try:
        graph = graph_of(nodes, all_waiting, all_waited_for)
    except CircleError as error:
        raise NoEvidenceError(_circle_in_words(error, ranks, works, base)) from error
    return StepWork(
        tuple(ranks), tuple(works), offset, together, base, members, graph, kind, evidence, earliest[together]
    )


_CIRCLE_SHOWN = 6


def _circle_in_words(error: CircleError, ranks: Sequence[int], works: Sequence[RankWork], base: Int64) -> str:
    """Which kernels wait for one another."""
    named = []
    for node in error.members.tolist():
        place = int(np.searchsorted(base, node, side="right")) - 1
        if place >= len(works):
            continue
        work, local = works[place], node - int(base[place])
        if local < work.segments:
            kernel = int(work.first[local])
        elif local < work.sections:
            kernel = int(work.joined[local - work.arrivals])
        else:
            continue
        named.append(f"kernel {work.kernels.kernel_id[kernel]} of rank {ranks[place]}")
    distinct = list(dict.fromkeys(named))
    more = f" and {len(distinct) - _CIRCLE_SHOWN} more" if len(distinct) > _CIRCLE_SHOWN else ""
    return f"work waits for itself in a circle: {', '.join(distinct[:_CIRCLE_SHOWN])}{more}"


@lru_cache(maxsize=1 << 10)  # Ranks of a stage have as many kernels.
def _repeated(value: int, length: int) -> Int64:
    """One number in the place of as many."""
    return np.broadcast_to(np.int64(value), length)


def without_lags(times: Sequence[Times]) -> tuple[Times, ...]:
    """The times without launches, and without any lag that the graph does not explain."""
    return tuple(
        replace(
            each,
            duration_ns=each.duration_ns if (each.duration_ns >= 0).all() else np.maximum(each.duration_ns, 0),
            lag_ns=_repeated(0, len(each.lag_ns)),
            launch_ns=_repeated(MISSING, len(each.launch_ns)),
            section_lag_ns=_repeated(0, len(each.section_lag_ns)),
        )
        for each in times
    )


def without_hosts(times: Sequence[Times]) -> tuple[Times, ...]:
    """The same, and without the host's own time: all ranks begin at once, and each step ends with its GPU."""
    return tuple(
        replace(each, section_ns=np.zeros_like(each.section_ns), host_end_ns=0) for each in without_lags(times)
    )
