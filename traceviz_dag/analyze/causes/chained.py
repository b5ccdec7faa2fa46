"""Training steps that follow one another in one graph: their steady period, its critical path, and what edits gain.

A step by itself begins with an idle GPU and ends when its last kernel has run and its host is done. In training the
next step's host does not wait for other streams and ranks, and ranks enter a step as they left the one before. So the
graphs of several steps are joined: on each rank the host goes on from one step to the next, and a stream from the last
kernel to the next one. The steady period is the time between the ends of the first and the last step, for each step in
between; the first step only shows how the others begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.critical_path import CriticalPath, critical_path
from traceviz_dag.analyze.causes.edits import AllTimes
from traceviz_dag.analyze.causes.gains import error_bar
from traceviz_dag.analyze.causes.rank_work import EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import Members, StepWork, Times, step_work, without_lags
from traceviz_dag.analyze.causes.what_if import Edit, Prediction, WhatIf
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.errors import NoEvidenceError

MOST_APART = 0.01
"""Share of a step that a host may let pass before the next one; beyond it the steps were not recorded in one go."""


@dataclass(frozen=True)
class ChainedWork(StepWork):
    """Steps of the same ranks in one graph; each rank has a place for each step, step by step.

    Attributes:
        steps: how many. late_ns: per place, how long after the first rank of its step the rank begins it.
        gap_ns: per place of the steps after the first, from the end of the rank's step before on the host to its begin;
            from the step's own end where it ends with its GPU (``by_gpu``).
        sooner: per place, kernels before which less passes once the step before counts, and by how much, ns.
    """

    steps: int
    late_ns: Int64
    gap_ns: Int64
    by_gpu: Bool
    sooner: tuple[tuple[Int64, Int64], ...]

    def weights(self, times: Sequence[Times]) -> tuple[Int64, Int64]:
        """What the nodes take, and what passes on the edges, with the given times."""
        durations, lags = StepWork.weights(self, times)
        count = len(self.gap_ns)
        ranks = len(self.ranks) - count
        begins = self._begins[ranks:]
        # An edit can take a late begin only from what passes between the steps.
        taken = self.late_ns[ranks:] - durations[begins]
        durations[begins] = 0
        ended = np.where(self.by_gpu, 0, [mine.host_end_ns for mine in times[:count]])
        first = len(lags) - count - sum(len(kernels) for kernels, _ in self.sooner)
        lags[first : first + count] = ended + np.maximum(self.gap_ns - taken, np.minimum(self.gap_ns, 0))
        return durations, lags

    def behind_each_other(self, times: AllTimes) -> AllTimes:
        """The times as measured, without what kernels waited for the step before: that follows from the graph."""
        return tuple(_sooner(mine, *of_step) for mine, of_step in zip(times, self.sooner, strict=True))

    def period_ns(self, ends: Int64) -> int:
        """The steady period: from the end of the first step to that of the last, for each step after the first."""
        first, last = self._outer_ends(ends)
        return (last - first) // (self.steps - 1)

    def steady_path(self, times: AllTimes) -> CriticalPath:
        """The critical path from the end of the first step to that of the last."""
        ends = self.replay(times)
        last = self._ends[-(len(self.ranks) // self.steps) :]
        return critical_path(self, times, int(last[ends[last].argmax()]), self._outer_ends(ends)[0])

    def _outer_ends(self, ends: Int64) -> tuple[int, int]:
        each = ends[self._ends].reshape(self.steps, -1).max(axis=1)
        return int(each[0]), int(each[-1])


def _sooner(times: Times, kernels: Int64, by_ns: Int64) -> Times:
    if not by_ns.any():
        return times
    lag = times.lag_ns.copy()
    lag[kernels] -= by_ns
    return replace(times, lag_ns=lag)


def chained(steps: Sequence[StepWork], numbers: Sequence[int]) -> ChainedWork:
    """Join steps that follow one another.

    Args:
        numbers: of each step, for what is said of it.

    Raises:
        NoEvidenceError: there is only one, they are of different ranks or were not recorded in one go, or some work
            waits for itself.
    """
    _check(steps, numbers)
    count, works = len(steps[0].ranks), [work for step in steps for work in step.works]
    offset = np.concatenate([step.offset_ns for step in steps])
    base = np.cumsum([0, *(work.nodes for work in works)])
    begin = np.array([work.start_ns for work in works], np.int64) - offset
    by_gpu = np.array([_ends_with_gpu(work) for work in works[:-count]], dtype=bool)
    ended = np.array([_host_end(work) for work in works[:-count]], np.int64) - offset[:-count]
    gap = begin[count:] - ended
    first = base[count:-1] + np.array([work.sections for work in works[count:]], np.int64)
    last = base[:-1][:-count] + np.array([work.end for work in works[:-count]], np.int64) - ~by_gpu
    streams = [_NO_STREAMS] * count
    streams += [
        _streams(before, work, int(offset[place + count] - offset[place]))
        for place, (before, work) in enumerate(zip(works, works[count:], strict=False))
    ]
    waiting = np.concatenate([first, *(low + each.entry for low, each in zip(base, streams, strict=False))])
    befores = [low + each.before for low, each in zip(base, streams[count:], strict=False)]
    waited_for = np.concatenate([last, *befores])
    kinds = np.append(np.full(len(gap), EdgeKind.END), np.full(len(waiting) - len(gap), EdgeKind.STREAM))
    joined = step_work(steps[0].ranks * len(steps), works, _members(steps), (kinds, waiting, waited_for))
    parts = {field.name: getattr(joined, field.name) for field in fields(joined)}
    late = begin - np.concatenate([step.begin_ns for step in steps])
    return ChainedWork(
        **{**parts, "offset_ns": offset, "begin_ns": np.tile(steps[0].begin_ns, len(steps))},
        steps=len(steps),
        late_ns=late,
        gap_ns=gap,
        by_gpu=by_gpu,
        sooner=tuple((each.kernel, each.sooner_ns) for each in streams),
    )


def _check(steps: Sequence[StepWork], numbers: Sequence[int]) -> None:
    if len(steps) < 2:
        raise NoEvidenceError("a steady period needs two training steps that follow one another, and there is one")
    first = steps[0]
    for (before, step), (one, other) in zip(pairwise(steps), pairwise(numbers), strict=True):
        if lost := set(first.ranks) ^ set(step.ranks):
            raise NoEvidenceError(
                f"rank {min(lost)} was read in one of steps {one} and {other} only, so they cannot be joined"
            )
        if not np.array_equal(first.together, step.together):
            raise NoEvidenceError("not the same ranks communicate in each of the steps, so they cannot be joined")
        for rank, old, new in zip(step.ranks, before.works, step.works, strict=True):
            apart = new.start_ns - _host_end(old)
            if abs(apart) > MOST_APART * (old.end_ns - old.start_ns):
                raise NoEvidenceError(
                    f"on rank {rank} {apart / 1e6:,.1f} ms pass between steps {one} and {other}, so they do not follow "
                    "one another; record them in one go"
                )


def _ends_with_gpu(work: RankWork) -> bool:
    """Whether a rank's step was cut where its last kernel ends, so that its host's end is not known; see
    ``rank_work``."""
    gpu_end = int(work.kernels.end_ns.max(initial=work.start_ns))
    return work.end_ns == gpu_end and int(work.lag[work.by_kind[EdgeKind.END]][0]) == 0


def _host_end(work: RankWork) -> int:
    """When a rank's step ends on its host, on its clock; with its GPU where that is not known."""
    if _ends_with_gpu(work):
        return work.end_ns
    return int(work.section_ns[-1] + work.lag[work.by_kind[EdgeKind.END]][0])


@dataclass(frozen=True, slots=True)
class _Streams:
    """The streams of a rank that go on from one step to the next; one entry each.

    Attributes:
        before: node of its last segment in the step before, among those of the rank; entry: node of the first one.
        kernel: place of that one's first kernel. sooner_ns: as ``ChainedWork.sooner``.
    """

    before: Int64
    entry: Int64
    kernel: Int64
    sooner_ns: Int64


_NO_STREAMS = _Streams(*(np.empty(0, np.int64) for _ in range(4)))


def _streams(before: RankWork, work: RankWork, shift: int) -> _Streams:
    """Tie each stream's first kernel to the last one of the step before.

    Args:
        shift: by how much the rank's clock is further ahead in this step than in the one before.
    """
    old, new = before.kernels, work.kernels
    last = {old.queues[stream]: place for place, stream in enumerate(old.stream.tolist())}
    begins = np.flatnonzero(np.diff(new.stream, prepend=-1))
    kernel = np.array([each for each in begins.tolist() if new.queues[new.stream[each]] in last], np.int64)
    source = np.array([last[new.queues[new.stream[each]]] for each in kernel.tolist()], np.int64)
    entry = work.segment[kernel]
    joins = np.isin(kernel, work.joined)
    entry[joins] = work.arrivals + np.searchsorted(work.joined, kernel[joins])
    # Until now the kernel only waited for what is in its own step.
    arrived = new.start_ns[kernel] - work.lag_ns[kernel]
    sooner = np.maximum(old.end_ns[source] + shift - arrived, 0)
    return _Streams(before.segment[source], entry, kernel, sooner)


def _members(steps: Sequence[StepWork]) -> Members:
    count, meetings, parts = len(steps[0].ranks), 0, []
    for number, step in enumerate(steps):
        mine = step.members
        many = int(mine.meeting.max(initial=-1)) + 1
        lacks = np.zeros(many, dtype=bool) if mine.partial is None else mine.partial
        ahead = np.zeros(len(mine.rank), dtype=bool) if mine.ahead is None else mine.ahead
        role = np.zeros(len(mine.rank), np.int64) if mine.role is None else mine.role
        parts.append((mine.rank + number * count, mine.kernel, mine.meeting + meetings, lacks, ahead, role))
        meetings += many
    return Members(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class Steady:
    """Predictions for the steady period of steps that follow one another."""

    def __init__(self, what_ifs: Sequence[WhatIf], numbers: Sequence[int]) -> None:
        """Take the steps and their numbers.

        Raises:
            NoEvidenceError: as ``chained``.
        """
        self.steps = tuple(what_ifs)
        self.work = chained([one.step for one in what_ifs], numbers)
        self.times = self.work.behind_each_other(tuple(mine for one in what_ifs for mine in one.times))
        self.period_ns = self._period(self.times)
        self._free_ns = self._period(without_lags(self.times))

    def predict(self, edits: Sequence[Sequence[Edit]]) -> Prediction:
        """What some edits together gain in each period. The bar also holds what they gain in each step by itself.

        A step that shows nothing of an edit, such as a pause that is in another one, gains nothing by it.

        Args:
            edits: of each step.

        Raises:
            NoEvidenceError: as ``WhatIf.predict``, in each of the steps; or another order of work is asked for.
        """
        if any(edit.change is not None for edit in edits[0]):
            raise NoEvidenceError("another order of the work is predicted for single steps only")
        alone: list[Prediction] = []
        times: list[Times] = []
        refused: NoEvidenceError | None = None
        count = len(self.steps[0].step.ranks)
        for place, (one, mine) in enumerate(zip(self.steps, edits, strict=True)):
            edited = self.times[place * count : (place + 1) * count]
            try:
                alone.append(one.predict(*mine))
                for edit in mine:
                    edited = edit.apply(edited)
            except NoEvidenceError as why:
                refused = refused or why
            times += edited
        if refused is not None and not alone:
            raise refused
        gain = self.period_ns - self._period(times)
        free = self._free_ns - self._period(without_lags(times))
        error = self._free_ns / self.period_ns - 1 if self.period_ns else 0.0
        low, high = error_bar(gain, free, error)
        low = min(low, *(each.gain_low_ns for each in alone))
        high = max(high, *(each.gain_high_ns for each in alone))
        undecided = next((each.undecided for each in alone if each.undecided is not None), None)
        return Prediction(tuple(edits[0]), self.period_ns, gain, low, high, error, None, undecided)

    def usual(self, rows: Iterable[Mapping[str, Any]]) -> list[list[Edit]]:
        """The edits of rows of table ``what_if``, each once, for each of the steps."""
        keys = dict.fromkeys((row["edit"], row["rank"], row["dimension"], row["ranks"], row["factor"]) for row in rows)
        return [[one.named(*key) for one in self.steps] for key in keys]

    def _period(self, times: Sequence[Times]) -> int:
        return self.work.period_ns(self.work.replay(times))
