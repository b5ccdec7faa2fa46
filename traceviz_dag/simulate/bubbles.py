"""Truth of the bubble's parts: a second implementation, plain and slow on purpose, that shares nothing with analyze/.

The order of work is the schedule's own, the durations are the model's, what feeds what is said by stage and chunk.
Everything is exact: durations are multiplied by a common multiple of all counts, so that means are integers too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from traceviz_dag.schedules import Backward, Combined, Forward
from traceviz_dag.simulate.schedules import schedule_of
from traceviz_dag.simulate.settings import JobSettings

Step = Forward | Backward
Spans = Mapping[Step, tuple[int, int]]
"""Begin and end of each forward and backward step of one rank, ns."""
Work = tuple[Step, ...]
"""What a stage does in one go: one step, or the two of a combined one."""
Place = tuple[int, int]
"""A stage, and the ordinal of its work."""


@dataclass(frozen=True, slots=True)
class BubbleParts:
    """The bubble of one stage, ns; the four parts add up to ``span_ns - ideal_ns``."""

    span_ns: int
    ideal_ns: int
    fill_drain_ns: int
    imbalance_ns: int
    jitter_ns: int
    stall_ns: int


def bubble_parts(settings: JobSettings, spans: Sequence[Spans]) -> list[BubbleParts]:
    """Take the bubble of one pipeline in one training step apart.

    T is a stage's first begin to its last end. The work of all stages is replayed in the schedule's order, each as soon
    as its stage is free and its input is there: with the mean duration of its kind (forward, backward, combined) over
    all stages (T1), with that of its stage and chunks (T2), with its own (T3). T0 is the mean work of a stage. The
    parts are T1 - T0, T2 - T1, T3 - T2 and T - T3, each T rounded to the nearest ns first.

    Args:
        spans: of each stage's rank.
    """
    plan = [work_of(settings, stage) for stage in range(settings.pp)]
    actual = {
        (stage, index): duration
        for stage, work in enumerate(plan)
        for index, duration in enumerate(_durations(work, spans[stage]))
    }
    kinds = {(stage, index): _kind(work) for stage, order in enumerate(plan) for index, work in enumerate(order)}
    owners = {(stage, index): (stage, *_chunks(plan[stage][index])) for stage, index in actual}
    scale = lcm(settings.pp, *_counts(kinds).values(), *_counts(owners).values())

    def replayed(durations: Mapping[Place, int]) -> list[int]:
        return [_rounded(span, scale) for span in _replay(settings, plan, lambda place: durations[place])]

    equal = replayed(_means(actual, kinds, scale))
    own_means = replayed(_means(actual, owners, scale))
    as_it_was = replayed({place: duration * scale for place, duration in actual.items()})
    ideal = _rounded(sum(actual.values()), settings.pp)
    parts = []
    for stage, own in enumerate(spans):
        span = max(end for _, end in own.values()) - min(begin for begin, _ in own.values())
        parts.append(
            BubbleParts(
                span_ns=span,
                ideal_ns=ideal,
                fill_drain_ns=equal[stage] - ideal,
                imbalance_ns=own_means[stage] - equal[stage],
                jitter_ns=as_it_was[stage] - own_means[stage],
                stall_ns=span - as_it_was[stage],
            )
        )
    return parts


def work_of(settings: JobSettings, stage: int) -> list[Work]:
    """What a stage does in one training step, in order; a combined step is one piece of work."""
    order: list[Work] = []
    for action in schedule_of(settings, stage):
        if isinstance(action, Combined):
            order.append(tuple(step for step in (action.forward, action.backward) if step is not None))
        elif isinstance(action, Forward | Backward):
            order.append((action,))
    return order


def _durations(order: Sequence[Work], spans: Spans) -> list[int]:
    """Every instant belongs to one piece of work: what begins before the ones before have ended counts from there."""
    durations = []
    free = min(begin for begin, _ in spans.values())
    for work in order:
        begin = max(free, min(spans[step][0] for step in work))
        free = max(begin, *(spans[step][1] for step in work))
        durations.append(free - begin)
    return durations


def _kind(work: Work) -> Hashable:
    return tuple(type(step) for step in work)


def _chunks(work: Work) -> tuple[Hashable, ...]:
    return tuple((type(step), step.chunk) for step in work)


def _counts(groups: Mapping[Place, Hashable]) -> dict[Hashable, int]:
    counts: dict[Hashable, int] = defaultdict(int)
    for group in groups.values():
        counts[group] += 1
    return counts


def _means(actual: Mapping[Place, int], groups: Mapping[Place, Hashable], scale: int) -> dict[Place, int]:
    """For each piece of work the mean duration of its group, times ``scale``."""
    counts, sums = _counts(groups), dict.fromkeys(groups.values(), 0)
    for place, duration in actual.items():
        sums[groups[place]] += duration
    return {place: sums[group] * (scale // counts[group]) for place, group in groups.items()}


def _replay(settings: JobSettings, plan: Sequence[Sequence[Work]], duration: Callable[[Place], int]) -> list[int]:
    """The span of each stage when its work runs in order, without any latency between stages."""
    ended: dict[tuple[int, Step], int] = {}
    done, free = [0] * len(plan), [0] * len(plan)
    first: list[int | None] = [None] * len(plan)
    while True:
        moved = False
        for stage, order in enumerate(plan):
            while done[stage] < len(order):
                work = order[done[stage]]
                inputs = [source for step in work if (source := _input(settings, stage, step)) is not None]
                if any(source not in ended for source in inputs):
                    break
                begin = max([free[stage], *(ended[source] for source in inputs)])
                if first[stage] is None:
                    first[stage] = begin
                free[stage] = begin + duration((stage, done[stage]))
                ended |= {(stage, step): free[stage] for step in work}
                done[stage] += 1
                moved = True
        if not moved:
            break
    if any(count < len(order) for count, order in zip(done, plan, strict=True)):
        raise RuntimeError("the schedule's stages wait for each other")
    return [end - (begin or 0) for end, begin in zip(free, first, strict=True)]


def _input(settings: JobSettings, stage: int, step: Step) -> tuple[int, Step] | None:
    """The stage and step whose result a step needs; None for a forward step of the model's first layers."""
    if isinstance(step, Forward):
        if stage > 0:
            return stage - 1, step
        return (settings.pp - 1, Forward(step.chunk - 1, step.microbatch)) if step.chunk > 0 else None
    if stage < settings.pp - 1:
        return stage + 1, step
    if step.chunk < settings.vpp - 1:
        return 0, Backward(step.chunk + 1, step.microbatch)
    return stage, Forward(step.chunk, step.microbatch)


def _rounded(total: int, divisor: int) -> int:
    return round(Fraction(total, divisor))
