"""Where the level of a series changed: E-divisive with the energy statistic, and seeded permutations.

Matteson and James, "A nonparametric approach for multiple change point analysis of multivariate data", JASA 109 (2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceviz_dag.analyze.clocks.robust import spread
from traceviz_dag.arrays import Float64

LEAST_NIGHTS = 3
"""Nights on either side of a change: fewer may be outliers."""

LEAST_SHARE = 0.02
"""A smaller change of the level is none: days differ by as much, without anything that lasts."""

LEVEL = 0.01
"""Up to this p a change is confirmed."""

_STANDARD_ERRORS = 5.0
"""How many of its own a change is at least: every night looks at all nights again, so that a p alone is too often
small by chance."""

_PERMUTATIONS = 399
_SEED = 7
_DRAWN_AT_ONCE = 1 << 22
"""Distances of permuted series that are held at a time."""


@dataclass(frozen=True, slots=True)
class Split:
    """The place at which two stretches of a series differ most.

    Attributes:
        at: index of the first value of the later one. end: of the first value behind it.
        statistic: energy distance of the two, times n m / (n + m).
        is_large: whether the medians differ by as much as a change does.
    """

    at: int
    end: int
    statistic: float
    is_large: bool


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A confirmed change of the level.

    Attributes:
        at: index of the first value of the new level.
        begin, end: of the level before it and of the new one: they are ``begin`` to ``at`` and ``at`` to ``end``.
        before, after: medians of the two, in the unit of the series.
        p: share of permuted series that differ at least as much.
    """

    at: int
    begin: int
    end: int
    before: float
    after: float
    p: float

    @property
    def share(self) -> float:
        """The change over the level before it."""
        return self.after / self.before - 1 if self.before else 0.0


def change_points(metrics: Sequence[Float64]) -> list[list[ChangePoint]]:
    """The confirmed changes of each of several series over the same nights, in order.

    A series is split where it differs most. The split is a change if each side has ``LEAST_NIGHTS``, if the two medians
    differ by ``LEAST_SHARE`` and by five standard errors, and if among 399 permutations at most a share of ``LEVEL``
    differ as much: by Holm's rule over the series for the first split of each, and at the level that this leaves for
    splits within. Permutations are seeded: the same series gives the same answer.
    """
    first = [_tested(values) for values in metrics]
    levels = _holm([1.0 if one is None else one[1] for one in first])
    return [
        [] if level is None or found is None else _changes(values, found, level)
        for values, found, level in zip(metrics, first, levels, strict=True)
    ]


def best_split(values: Float64) -> Split | None:
    """The split of a series whose two sides differ most; None for a series that is too short for one."""
    if len(values) < 2 * LEAST_NIGHTS:
        return None
    statistics = _statistics(np.abs(values[:, None] - values[None, :])[None])[0]
    at, end = (int(each) for each in np.unravel_index(np.argmax(statistics), statistics.shape))
    return Split(at, end, float(statistics[at, end]), _differ(values[:at], values[at:end]))


def _differ(before: Float64, after: Float64) -> bool:
    """Whether two levels differ by as much as a change does, chance set aside."""
    levels = float(np.median(before)), float(np.median(after))
    if len(after) - _still_before(after, levels) < LEAST_NIGHTS:
        return False
    noise = spread(np.concatenate([before - levels[0], after - levels[1]]))
    least = max(LEAST_SHARE * levels[0], _STANDARD_ERRORS * noise * (1 / len(before) + 1 / len(after)) ** 0.5)
    return levels[0] > 0 and abs(levels[1] - levels[0]) >= least


def p_value(values: Float64, split: Split) -> float:
    """Share of 399 permutations, and the series itself, whose best split differs as much."""
    count = len(values)
    orders = np.random.default_rng(_SEED).permuted(np.tile(np.arange(count), (_PERMUTATIONS, 1)), axis=1)
    distances = np.abs(values[:, None] - values[None, :])
    as_much = 1
    for some in np.array_split(orders, -(-orders.size * count // _DRAWN_AT_ONCE)):
        drawn = distances[some[:, :, None], some[:, None, :]]
        # A sum in another order differs in its last bits.
        as_much += int((_statistics(drawn).max(axis=(1, 2)) >= split.statistic * (1 - 1e-9)).sum())
    return as_much / (_PERMUTATIONS + 1)


def _statistics(distances: Float64) -> Float64:
    """Of each series, given by the distances of its values: the statistic by place and end of a split; where a side is
    too short, minus infinity."""
    count = distances.shape[-1]
    sums = np.zeros((len(distances), count + 1, count + 1))
    np.cumsum(distances, axis=1, out=sums[:, 1:, 1:])
    np.cumsum(sums[:, 1:, 1:], axis=2, out=sums[:, 1:, 1:])
    at, end = np.arange(count + 1)[:, None], np.arange(count + 1)[None, :]
    n, m = at, end - at
    within = np.diagonal(sums, axis1=1, axis2=2)
    earlier, later = within[:, :, None], within[:, None, :] - 2 * sums + within[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        energy = 2 * (sums - earlier) / (n * m) - earlier / (n * (n - 1)) - later / (m * (m - 1))
        found = energy * (n * m) / (n + m)
    return np.where((n >= LEAST_NIGHTS) & (m >= LEAST_NIGHTS), found, -np.inf)


def _still_before(after: Float64, levels: tuple[float, float]) -> int:
    """How many of the first values of the later side are nearer to the level before: of a large change two nights and
    the one before them differ enough to be split off together."""
    near = np.abs(after - levels[0]) < np.abs(after - levels[1])
    return int(np.argmin(near)) if not near.all() else len(near)


def _tested(values: Float64) -> tuple[Split, float] | None:
    """The best split and its p, where it is large enough to matter."""
    split = best_split(values)
    return None if split is None or not split.is_large else (split, p_value(values, split))


def _holm(p_values: Sequence[float]) -> list[float | None]:
    """By p-value the level at which it is significant; None for those that are not."""
    levels: list[float | None] = [None] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        level = LEVEL / (len(p_values) - rank)
        if p_values[place] > level:
            break
        levels[place] = level
    return levels


def _changes(values: Float64, found: tuple[Split, float], level: float) -> list[ChangePoint]:
    splits = sorted(_splits(values, 0, found, level))
    ends = [0, *(at for at, _ in splits), len(values)]
    levels = [float(np.median(values[begin:end])) for begin, end in pairwise(ends)]
    changes = []
    for place, (at, p) in enumerate(splits):
        before, after = levels[place : place + 2]
        first = at + _still_before(values[at : ends[place + 2]], (before, after))
        changes.append(ChangePoint(first, ends[place], ends[place + 2], before, after, p))
    return [one for one in changes if one.at < one.end and abs(one.share) >= LEAST_SHARE]


def _splits(values: Float64, offset: int, found: tuple[Split, float], level: float) -> Iterator[tuple[int, float]]:
    split, p = found
    yield offset + split.at, p
    for part, begin in ((values[: split.at], offset), (values[split.at :], offset + split.at)):
        within = _tested(part)
        if within is not None and within[1] <= level:
            yield from _splits(part, begin, within, level)
