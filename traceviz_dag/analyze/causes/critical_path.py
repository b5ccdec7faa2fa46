"""The critical path of a step: back from its end, always to what came last.

Every nanosecond of the step belongs to one segment of the path: a kernel's run, a communication's transfer, the host,
or a lag that the graph does not explain. Waiting is never on it: where ranks join, the path goes to the last to arrive.
Each node of the graph has one binding edge, and the path follows these. (A longest path over edges weighted by gaps
would be arbitrary: all complete chains are equally long.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from traceviz_dag.analyze.causes.graph import NO_EDGE
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times, suffixes
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import PathCause

_ORDER = EVIDENCES.index("order")


CAUSES = tuple(PathCause)

RUN_CAUSES = (PathCause.WORK, PathCause.TRANSFER, PathCause.UNMATCHED)
"""Causes of time in which a kernel runs."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Segments in the order of time, without gaps; one entry a segment.

    Attributes:
        rank: place of the rank in ``StepWork.ranks``. kernel: place of the kernel there; ``NONE`` for the host.
        cause: place in ``CAUSES``.
        start_ns: on the rank's own clock. duration_ns: above zero.
        entered_by: kind of the edge over which the path came to the segment's node (``EdgeKind``).
    """

    rank: Int64
    kernel: Int64
    cause: Int64
    start_ns: Int64
    duration_ns: Int64
    entered_by: Int64

    def only(self, which: Bool, less: int) -> CriticalPath:
        """Some segments, their ranks' places lower by ``less``."""
        rank, *others = (getattr(self, field.name)[which] for field in fields(self))
        return CriticalPath(rank - less, *others)


def critical_path(
    step: StepWork, times: Sequence[Times], node: int | None = None, begin: int | None = None
) -> CriticalPath:
    """Follow the path from the end of the longest rank's step back to its begin.

    Args:
        node: from whose end instead. begin: until when instead, from the begin of the first rank's step.
    """
    durations, lags = step.weights(times)
    ends = step.graph.ends(durations, lags)
    binding, waited_for = step.graph.binding(ends, lags), step.waited_for
    longest = step.longest(ends)
    if begin is None:
        begin = int(ends[step.base[longest] + step.works[longest].sections])
    if node is None:
        node = int(step.base[longest] + step.works[longest].end)
    now = int(ends[node])
    rows: list[tuple[int, int, int, int, int, int]] = []
    while True:
        edge = int(binding[node])
        place = int(np.searchsorted(step.base, node, side="right")) - 1
        if edge == NO_EDGE:
            if now > begin:
                rows.append((place, NONE, CAUSES.index(PathCause.LATE_BEGIN), begin, now - begin, NONE))
            break
        source, kind = int(waited_for[edge]), int(step.kind[edge])
        if place < len(step.works):
            local = node - int(step.base[place])
            evidence = int(step.evidence[edge])
            work, mine, source_end = step.works[place], times[place], int(ends[source])
            for piece, kernel, cause in _pieces(work, mine, local, kind, evidence, source_end, now):
                low = max(piece, begin)
                if low < now:
                    rows.append((place, kernel, CAUSES.index(cause), low, now - low, kind))
                    now = low
        node = source
        if now <= begin:
            break
    columns = np.array(rows[::-1], np.int64).reshape(-1, 6).T
    start = columns[3] + step.begin_ns[columns[0]] + step.offset_ns[columns[0]]
    return CriticalPath(columns[0], columns[1], columns[2], start, columns[4], columns[5])


def _pieces(
    work: RankWork, times: Times, node: int, kind: int, evidence: int, source_end: int, end: int
) -> Iterator[tuple[int, int, PathCause]]:
    """The begin of each piece of a node's time, its kernel and its cause; the last piece first."""
    launched = kind == EdgeKind.LAUNCH and evidence == _ORDER
    if node >= work.sections:
        if kind == EdgeKind.HOST:
            yield source_end + int(times.section_ns[node - work.sections]), NONE, PathCause.SYNCHRONISATION
            yield source_end, NONE, PathCause.HOST
        elif kind == EdgeKind.SYNCHRONISATION:
            yield source_end, NONE, PathCause.SYNCHRONISATION
        else:
            yield source_end, NONE, PathCause.HOST
        return
    if node >= work.arrivals:
        kernel = int(work.joined[node - work.arrivals])
        if launched:
            yield source_end + int(times.launch_ns[kernel]), kernel, PathCause.LAUNCH
            yield source_end, NONE, PathCause.HOST
        else:
            yield source_end, kernel, PathCause.UNEXPLAINED
        return
    first = int(work.first[node])
    if kind == EdgeKind.TRANSFER:
        yield source_end, first, PathCause.TRANSFER
        return
    last = int(work.first[node + 1]) if node + 1 < work.segments else len(work.kernels)
    lag_cause = PathCause.UNEXPLAINED
    if launched:
        behind = suffixes(work, times)[first:last]
        launches = times.launch_ns[first:last]
        known = np.flatnonzero(launches != MISSING)
        first += int(known[np.argmax((launches + behind)[known])])
        lag_cause = PathCause.LAUNCH
    low = end
    for kernel in range(last - 1, first - 1, -1):
        runs = PathCause.UNMATCHED if work.kernels.communicates[kernel] else PathCause.WORK
        low -= int(times.duration_ns[kernel])
        yield low, kernel, runs
        low -= int(times.lag_ns[kernel])
        yield low, kernel, lag_cause if kernel == first else PathCause.UNEXPLAINED
    if launched:
        yield source_end, NONE, PathCause.HOST


def slacks(step: StepWork, times: Sequence[Times]) -> list[Int64]:
    """Per rank and kernel, by how much its segment may end later without making the step longer.

    Of a kernel that is part of a meeting, also by how much it may arrive later, where that is less.
    """
    durations, lags = step.weights(times)
    ends = step.graph.ends(durations, lags)
    total = step.step_ns(ends)
    latest = np.full(step.graph.nodes, np.iinfo(np.int64).max // 2)
    for place, work in enumerate(step.works):
        latest[step.base[place] + work.end] = ends[step.base[place] + work.sections] + total
    slack = step.graph.latest(latest, durations, lags) - ends
    result = []
    for place, work in enumerate(step.works):
        low = int(step.base[place])
        of_kernel = slack[low : low + work.segments][work.segment]
        arrival = slack[low + work.arrivals : low + work.sections]
        of_kernel[work.joined] = np.minimum(of_kernel[work.joined], arrival)
        result.append(of_kernel)
    return result
