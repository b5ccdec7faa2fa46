"""A step's graph with fewer nodes and edges, whose replay ends as before for any times that edits can give it.

Two things are taken out, neither of which any time can make count:

- the border between two segments of a stream that the same section of the host launches, where nothing but the stream
  leads in or out: a segment ends at the larger of two sums over its kernels, and those of both are those of one;
- a wait for work that other waits imply: what is waited for has ended before them, along streams and events on which
  no kernel has a time or lag below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.rank_work import EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, step_work
from traceviz_dag.arrays import Bool, Int64

_NEVER = -1


def contracted(step: StepWork) -> StepWork:
    """The same step with a smaller graph; its kernels, sections and meetings keep their places.

    Kernels' times may be any that edits give: not below zero where the measured ones are not.
    """
    unmet = [np.flatnonzero(work.kernels.communicates & ~step.is_met(place)) for place, work in enumerate(step.works)]
    works = [_joined_segments(work, apart) for work, apart in zip(step.works, unmet, strict=True)]
    durations = [mine.duration_ns for mine in step.times()]
    implied = _implied(
        works, [_grows(work, mine) for work, mine in zip(works, _guarded(works, durations), strict=True)]
    )
    return step_work(step.ranks, [_without(*each) for each in zip(works, implied, strict=True)], step.members)


def _guarded(works: Sequence[RankWork], durations: Sequence[Int64]) -> list[Int64]:
    """Durations of kernels; of transfers the shortest of all, since a fixed link takes that of others."""
    shortest = min(
        (int(mine[work.joined].min(initial=0)) for work, mine in zip(works, durations, strict=True)), default=0
    )
    result = []
    for work, mine in zip(works, durations, strict=True):
        guarded = mine.copy()
        guarded[work.joined] = shortest
        result.append(guarded)
    return result


def _grows(work: RankWork, durations: Int64) -> Bool:
    """Per segment, whether no kernel of it can end before it starts, nor start before all that it waits for."""
    fine = (durations >= 0) & (work.lag_ns >= 0)
    if not work.segments:
        return np.zeros(0, dtype=bool)
    return np.asarray(np.logical_and.reduceat(fine, work.first))


def _joined_segments(work: RankWork, apart: Int64) -> RankWork:
    """The rank's work with neighbouring segments in one where nothing shows them apart.

    Args:
        apart: kernels whose segments stay as they are: a replay may hold their ends.
    """
    count = work.segments
    joined = np.zeros(count, dtype=bool)
    joined[work.segment[work.joined]] = joined[work.segment[apart]] = True
    own = (work.kind == EdgeKind.STREAM) | ((work.kind == EdgeKind.LAUNCH) & (work.waited_for >= work.sections))
    follows = np.zeros(count, dtype=bool)
    stream = (work.kind == EdgeKind.STREAM) & (work.waiting < count)
    follows[work.waiting[stream]] = True
    entered = np.zeros(count, dtype=bool)
    waits = work.waiting[~own & (work.waiting < count)]
    entered[waits] = True
    left = np.zeros(count, dtype=bool)
    out = (work.waited_for < count) & (work.kind != EdgeKind.STREAM)
    left[work.waited_for[out]] = True
    merged = np.zeros(count, dtype=bool)
    merged[1:] = (
        follows[1:] & ~entered[1:] & ~left[:-1] & ~joined[1:] & ~joined[:-1] & (work.section[1:] == work.section[:-1])
    )
    if not merged.any():
        return work
    number = np.cumsum(~merged) - 1
    fewer = int(merged.sum())
    place = np.concatenate([number, np.arange(count, work.nodes) - fewer])
    kept = np.ones(len(work.waiting), dtype=bool)
    inner = np.flatnonzero(work.waiting < count)
    kept[inner] = ~merged[work.waiting[inner]]
    return replace(
        work, first=work.first[~merged], segment=number[work.segment], section=work.section[~merged],
        waiting=place[work.waiting[kept]], waited_for=place[work.waited_for[kept]], kind=work.kind[kept],
        evidence=work.evidence[kept], lag=work.lag[kept],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Waits:
    """Waits between segments of all ranks, by stream and event.

    Attributes:
        waiting, waited_for: segments, numbered through over the ranks. rank, edge: where each is from; ``edge`` in the
            rank's edges. event: whether it is an event.
    """

    waiting: Int64
    waited_for: Int64
    rank: Int64
    edge: Int64
    event: Bool


def _implied(works: Sequence[RankWork], grows: Sequence[Bool]) -> list[Bool]:
    """Per rank and edge, whether other waits imply it.

    Per segment and stream of its rank the last segment is known that has ended before it starts (its *reach*): of what
    a segment waits for, and of what that waited for, as far as everything in between takes no time below zero.
    """
    base = np.concatenate([[0], np.cumsum([work.segments for work in works])]).astype(np.int64)
    waits = _waits(works, base)
    result = [np.zeros(len(work.waiting), dtype=bool) for work in works]
    if not waits.event.any():
        return result
    stream = np.concatenate([_stream_places(work) for work in works])
    spot = np.arange(base[-1])
    grow = np.concatenate(list(grows))
    # Since which segment of its stream each one has nothing below zero up to itself.
    starts = np.flatnonzero(~grow | (np.diff(stream, prepend=-1) != 0) | np.isin(spot, base[:-1]))
    since = starts[np.searchsorted(starts, spot, side="right") - 1]
    graph = graph_of(int(base[-1]), waits.waiting, waits.waited_for)
    reach = np.full((len(spot), int(stream.max(initial=0)) + 1), _NEVER)
    waiting, waited_for = graph.waiting, graph.waited_for
    for (low, first_low, _), (high, first_high, _) in pairwise(graph.levels.tolist()):
        source = waited_for[low:high]
        behind = np.where(grow[source][:, None], reach[source], _NEVER)
        told = behind.copy()
        told[np.arange(len(source)), stream[source]] = source
        first = graph.first[first_low:first_high]
        best = np.maximum.reduceat(told, first - low, axis=0)
        number = graph.number[low:high]
        # A wait is implied where another one of the same segment is for later work of its stream, or has it behind it.
        of = np.repeat(np.arange(len(first)), np.diff(np.append(first, high)))
        later = best[of, stream[source]]
        other = np.maximum.reduceat(behind, first - low, axis=0)[of, stream[source]]
        implied = ((later > source) & (since[later] <= source)) | ((other >= source) & (since[other] <= source))
        drop = number[implied & waits.event[number]]
        for place in np.unique(waits.rank[drop]).tolist():
            result[place][waits.edge[drop[waits.rank[drop] == place]]] = True
        reach[waiting[first]] = best
    return result


def _waits(works: Sequence[RankWork], base: Int64) -> _Waits:
    parts = []
    for place, work in enumerate(works):
        entry = np.concatenate([np.arange(work.segments), work.segment[work.joined]])
        edge = np.flatnonzero(
            ((work.kind == EdgeKind.STREAM) | (work.kind == EdgeKind.EVENT)) & (work.waiting < work.sections)
        )
        waiting, waited_for = entry[work.waiting[edge]] + base[place], work.waited_for[edge] + base[place]
        event = work.kind[edge] == EdgeKind.EVENT
        parts.append((waiting, waited_for, np.full(len(edge), place), edge, event))
    return _Waits(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _stream_places(work: RankWork) -> Int64:
    """Per segment, the place of its stream among those of its rank."""
    return np.asarray(np.unique(work.kernels.stream[work.first], return_inverse=True)[1], dtype=np.int64)


def _without(work: RankWork, dropped: Bool) -> RankWork:
    kept = ~dropped
    return replace(
        work, waiting=work.waiting[kept], waited_for=work.waited_for[kept], kind=work.kind[kept],
        evidence=work.evidence[kept], lag=work.lag[kept],
    )  # fmt: skip
