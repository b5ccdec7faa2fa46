"""A change as the replay takes it apart: B's steps with the durations of A, put in class by class.

The rows are what a step of B becomes shorter by with each class, in the order in which they are put in; what hosts and
lags add in B more than in A; and the remainder, which the other order of the work makes. They add up to the change, to
the nanosecond, whatever is matched: what has no counterpart keeps its time, and so counts in the remainder.

A kernel takes the time of its counterpart: the n-th of a kind (name, operator, sizes, grid) in the same micro-batch on
the same rank, or stage, where all such kernels of an operation occur equally often in both. Else it takes the mean
ratio of the operation: first that of the time per call, then, in a class of its own, that of the number of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from traceviz_dag.analyze.causes.step_work import StepWork, Times, without_hosts
from traceviz_dag.analyze.diff.changes import Bar, error_bars, rounded_means
from traceviz_dag.arrays import NONE, Bool, Float64, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Category

MOST_STAGES = 16
"""Computation is put in stage by stage for up to so many stages; each class costs a replay."""

AMOUNT, HOSTS, REMAINDER = "amount of work", "hosts and lags", "remainder"
UNMATCHED, MEMORY = "unmatched communication", "memory"

_CATEGORIES = {category.value: place for place, category in enumerate(Category)}
_DIMENSIONS = {name: place for place, name in enumerate(ALL_DIMENSIONS)}


class WorkClass(NamedTuple):
    """Work that is put in together.

    Attributes:
        what: a category of computation, memory, a dimension of communication, or one of the words of this module.
        is_transfer: whether it is a dimension's transfers.
        stage: of computation, where there are several; None elsewhere.
    """

    what: str
    is_transfer: bool = False
    stage: int | None = None


@dataclass(frozen=True)
class ReplayedStep:
    """One step of a side.

    Attributes:
        step: its graph. stages: of its ranks; ``MISSING`` where unknown.
        operations: per rank and kernel, a number that is equal for kernels of one operation, on both sides.
    """

    step: StepWork
    stages: tuple[int, ...]
    operations: Sequence[Int64]


@dataclass(frozen=True)
class SideKernels:
    """The kernels of steps as columns, those of all ranks one after the other.

    Attributes:
        step: which of the steps. duration_ns: without waits where these are known.
        role: rank or stage. operation, signature, chunk, microbatch, phase: as ``RankKernels`` has them.
        meets: whether it is a communication that is matched with all its members.
    """

    steps: int
    step: Int64
    role: Int64
    operation: Int64
    signature: Int64
    phase: Int64
    chunk: Int64
    microbatch: Int64
    meets: Int64
    duration_ns: Int64

    @classmethod
    def of(cls, steps: Sequence[ReplayedStep], times: Sequence[Sequence[Times]], *, by_rank: bool) -> SideKernels:
        """Take steps with their measured times.

        Args:
            by_rank: a rank's counterpart is the rank of its number; else those of its stage.
        """
        columns: list[list[Int64]] = [[] for _ in range(9)]
        for number, (one, measured) in enumerate(zip(steps, times, strict=True)):
            for place, (work, mine) in enumerate(zip(one.step.works, measured, strict=True)):
                kernels = work.kernels
                role = one.step.ranks[place] if by_rank else one.stages[place]
                meets = one.step.is_met(place).astype(np.int64)
                parts = (
                    *(np.full(len(kernels), number), np.full(len(kernels), role), one.operations[place]),
                    *(kernels.signature, kernels.phase, kernels.chunk, kernels.microbatch, meets, mine.duration_ns),
                )
                for column, part in zip(columns, parts, strict=True):
                    column.append(part)
        return cls(len(steps), *(np.concatenate([np.empty(0, np.int64), *column]) for column in columns))


@dataclass(frozen=True, slots=True)
class Counterparts:
    """What the kernels of one step of B take with A's durations.

    Attributes:
        per_call_ns: with A's time per call. amount_ns: with A's number of calls as well.
        matched_ns: time of B's kernels whose operation A has.
    """

    per_call_ns: Int64
    amount_ns: Int64
    matched_ns: int


def counterparts(a: SideKernels, b: SideKernels) -> Counterparts:
    """What each kernel of a step of B takes with A's durations.

    Args:
        b: of one step.
    """
    count = len(a.duration_ns)
    both = {
        name: np.concatenate([getattr(a, name), getattr(b, name)])
        for name in ("role", "operation", "signature", "phase", "chunk", "microbatch", "meets")
    }
    of_a = np.arange(count + len(b.duration_ns)) < count
    step = np.concatenate([a.step, np.zeros(len(b.duration_ns), np.int64)])
    _, group = number_groups(both["role"], both["phase"], both["operation"], both["meets"])
    _, kind = number_groups(group.astype(np.int64), both["signature"], both["chunk"], both["microbatch"])
    duration = np.concatenate([a.duration_ns, b.duration_ns])
    groups, kinds = (int(each.max(initial=-1)) + 1 for each in (group, kind))
    calls = [np.bincount(group[side], minlength=groups) for side in (of_a, ~of_a)]
    total = [np.bincount(group[side], weights=duration[side], minlength=groups) for side in (of_a, ~of_a)]
    # Where every step of A has as many of each kind as this one, the n-th is the n-th.
    equal = np.ones(kinds, dtype=bool)
    here = np.bincount(kind[~of_a], minlength=kinds)
    for number in range(a.steps):
        equal &= np.bincount(kind[of_a & (step == number)], minlength=kinds) == here
    uneven = np.zeros(groups, dtype=bool)
    uneven[group[~equal[kind]]] = True
    mine = group[~of_a]
    per_call, amount = b.duration_ns.copy(), b.duration_ns.copy()
    instances = ~uneven[mine]
    per_call[instances] = amount[instances] = _instances(a, kind, of_a, step)[instances]
    known = (calls[0] > 0) & (calls[1] > 0) & (total[1] > 0)
    ratio = np.ones((2, groups))
    ratio[0, known] = (total[0][known] / calls[0][known]) / (total[1][known] / calls[1][known])
    ratio[1, known] = calls[0][known] / (a.steps * calls[1][known])
    scaled = uneven[mine] & known[mine]
    per_call[scaled] = _scaled(b.duration_ns[scaled], ratio[0][mine[scaled]])
    amount[scaled] = _scaled(b.duration_ns[scaled], ratio[0][mine[scaled]] * ratio[1][mine[scaled]])
    # A communication that is matched in one side alone is no new one: its times with and without waits are not alike.
    _, bare = number_groups(both["role"], both["phase"], both["operation"])
    there = np.bincount(bare[of_a], minlength=int(bare.max(initial=-1)) + 1) > 0
    new = ~there[bare[~of_a]]
    amount[new] = 0
    return Counterparts(per_call, amount, int(b.duration_ns[~new].sum()))


def _instances(a: SideKernels, kind: Int64, of_a: Bool, step: Int64) -> Int64:
    """The mean time in A of the n-th kernel of each kind; only where all steps have as many of the kind."""
    place = np.arange(len(kind))
    order = np.lexsort((place, step, ~of_a, kind))
    _, of_step = number_groups(kind[order], (~of_a[order]).astype(np.int64), step[order])
    first = np.flatnonzero(np.diff(of_step, prepend=-1))
    nth = np.empty(len(kind), np.int64)
    nth[order] = np.arange(len(kind)) - np.repeat(first, np.diff(first, append=len(kind)))
    _, instance = number_groups(kind, nth)
    total = np.zeros(int(instance.max(initial=-1)) + 1, np.int64)
    np.add.at(total, instance[of_a], a.duration_ns)
    return np.asarray((2 * total[instance[~of_a]] + a.steps) // (2 * max(a.steps, 1)), dtype=np.int64)


def _scaled(duration_ns: Int64, ratio: Float64) -> Int64:
    return np.rint(duration_ns * ratio).astype(np.int64)


def classes_of(step: ReplayedStep) -> tuple[list[WorkClass], list[Int64]]:
    """The classes of a step's kernels in the order in which they are put in, and per rank and kernel the class's place.

    Computation comes first, by category and stage, then memory operations, then communication by dimension, at last
    communication that is not matched with all its members, whose times hold waits.
    """
    known = [stage for stage in step.stages if stage != MISSING]
    by_stage = 1 < len(set(known)) <= MOST_STAGES and len(known) == len(step.stages)
    found: dict[WorkClass, None] = {}
    named: list[list[WorkClass]] = []
    codes = []
    for place, (work, stage) in enumerate(zip(step.step.works, step.stages, strict=True)):
        kernels, met = work.kernels, step.step.is_met(place)
        kind = np.where(kernels.communicates, 1 + met.astype(np.int64), np.where(kernels.computes, 0, 3))
        code = np.where(kind == 0, kernels.category, np.where(kind == 2, kernels.dimension, NONE))
        first, number = number_groups(kind, code)
        mine = []
        for one, of in zip(kind[first].tolist(), code[first].tolist(), strict=True):
            if one == 0:
                what = kernels.categories[of] if of != NONE else Category.UNCLASSIFIED.value
                mine.append(WorkClass(what, stage=stage if by_stage else None))
            elif one == 2:
                mine.append(WorkClass(kernels.dimensions[of] if of != NONE else "unknown", is_transfer=True))
            else:
                mine.append(WorkClass(UNMATCHED if one == 1 else MEMORY))
        named.append(mine)
        codes.append(number)
        found |= dict.fromkeys(mine)
    order = sorted(found, key=_order)
    place_of = {one: place for place, one in enumerate(order)}
    return order, [
        np.array([place_of[one] for one in mine] or [0], np.int64)[number] if len(number) else number
        for mine, number in zip(named, codes, strict=True)
    ]


def _order(one: WorkClass) -> tuple[int, int, str, int]:
    if one.is_transfer:
        return 2, _DIMENSIONS.get(one.what, len(_DIMENSIONS)), one.what, 0
    if one.what in (MEMORY, UNMATCHED):
        return (1 if one.what == MEMORY else 3), 0, "", 0
    return 0, _CATEGORIES.get(one.what, len(_CATEGORIES)), one.what, -1 if one.stage is None else one.stage


@dataclass(frozen=True, slots=True)
class ReplayedChange:
    """How the replay takes the change of one step apart.

    Attributes:
        parts: class → by how much it makes the step of B longer than A's, in the order of putting in.
        matched_ns: as ``Counterparts`` has it; kernels_ns: time of all kernels of B.
    """

    parts: dict[WorkClass, int]
    matched_ns: int
    kernels_ns: int


def replayed_change(
    a: Sequence[ReplayedStep], b: ReplayedStep, a_ns: int, a_free_ns: int, *, by_rank: bool
) -> ReplayedChange:
    """Put the durations of A's steps into a step of B.

    Args:
        a: steps whose mean times are put in.
        a_ns, a_free_ns: the mean length of A's steps, and that without hosts and lags.
        by_rank: see ``SideKernels.of``.
    """
    times = b.step.times()
    side = SideKernels.of(a, [one.step.times() for one in a], by_rank=by_rank)
    own = SideKernels.of([b], [times], by_rank=by_rank)
    found = counterparts(side, own)
    order, codes = classes_of(b)
    splits = np.cumsum([len(each) for each in codes])[:-1]
    per_call, amount = (np.split(each, splits) for each in (found.per_call_ns, found.amount_ns))
    parts, before = dict[WorkClass, int](), step_length(b.step, times)
    for place, one in enumerate(order):
        times = tuple(
            replace(mine, duration_ns=np.where(code == place, new, mine.duration_ns))
            for mine, code, new in zip(times, codes, per_call, strict=True)
        )
        parts[one], before = _next(before, step_length(b.step, times))
    times = tuple(replace(mine, duration_ns=new) for mine, new in zip(times, amount, strict=True))
    parts[WorkClass(AMOUNT)], before = _next(before, step_length(b.step, times))
    free = step_length(b.step, without_hosts(times))
    parts[WorkClass(HOSTS)] = (before - free) - (a_ns - a_free_ns)
    parts[WorkClass(REMAINDER)] = free - a_free_ns
    return ReplayedChange(parts, found.matched_ns, int(own.duration_ns.sum()))


def _next(before: int, now: int) -> tuple[int, int]:
    return before - now, now


def step_length(step: StepWork, times: Sequence[Times]) -> int:
    """How long a step takes with some times, ns."""
    return step.step_ns(step.replay(times))


def lengths(steps: Sequence[ReplayedStep]) -> Iterator[tuple[int, int]]:
    """How long each step takes, and how long without hosts and lags, ns."""
    for one in steps:
        times = one.step.times()
        yield step_length(one.step, times), step_length(one.step, without_hosts(times))


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What one class of work makes of the change of the mean step.

    Attributes:
        order: when it is put in, from 1.
        bar: from the steps of B alone where the sides have unequal numbers of steps; None where one has one step.
    """

    order: int
    work: WorkClass
    change_ns: int
    bar: Bar | None

    @property
    def is_change(self) -> bool:
        """Whether it differs by more than the steps do among themselves."""
        return self.change_ns != 0 and (self.bar is None or self.bar.is_above_or_below_zero)


def replay_rows(replayed: Sequence[ReplayedChange], change_ns: int, least_steps: int) -> list[ReplayRow]:
    """The mean of each class over the steps of B, in the order of putting in.

    Args:
        change_ns: what they add up to: the change of the mean step. least_steps: those of the side that has fewer.
    """
    classes = [list(one.parts) for one in replayed]
    # The last three are the same in every step.
    order = [*sorted({part for each in classes for part in each[:-3]}, key=_order), *classes[0][-3:]]
    each = np.array([[one.parts.get(part, 0) for part in order] for one in replayed], np.int64)
    means = rounded_means(each.sum(axis=0).tolist(), len(each), change_ns)
    bars = error_bars(np.zeros_like(each[:least_steps]), each)
    return [ReplayRow(place, *row) for place, row in enumerate(zip(order, means, bars, strict=True), 1)]
