"""A change taken apart into rows that add up to it, to the nanosecond.

Several steps a side are compared by their means, because medians do not add up. A mean need not be whole: each row of a
side is rounded down or up so that the side's rows add up to its rounded mean step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Key = tuple[Any, ...]

PATH_KEY = ("stage", "phase", "category", "dimension", "module", "operation", "cause")
"""What a row of the change by path is of; category is None where no kernel runs."""

PART_KEY = ("stage", "category", "cause")
"""What a row of its summary is of."""

RESAMPLES = 2_000
"""How often steps are drawn again for an error bar."""

INSIDE = 0.95
"""Share of the resampled changes that lie within an error bar."""

_SEED = 20_240_817
_ROWS_AT_ONCE = 512


class Amount(NamedTuple):
    """What one row has in one step: its time, ns, and the calls that it is of."""

    ns: int
    calls: int


Step = Mapping[Key, Amount]


@dataclass(frozen=True, slots=True)
class Bar:
    """Where a change lies if other steps of the same runs had been recorded: the bootstrap's interval, ns."""

    low_ns: int
    high_ns: int

    @property
    def is_above_or_below_zero(self) -> bool:
        """Whether all of it is of one sign."""
        return self.low_ns > 0 or self.high_ns < 0


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a change.

    Attributes:
        key: what the row is of.
        a_ns, b_ns: mean time per step of each side, rounded so that the rows of a side add up.
        a_calls, b_calls: calls over all steps of a side.
        count_ns: the part of the change that more or fewer calls make, at the time that a call took in A.
        per_call_ns: the part that longer or shorter calls make; the two add up to the change.
        bar: None where a side has one step alone.
    """

    key: Key
    a_ns: int
    b_ns: int
    a_calls: int
    b_calls: int
    count_ns: int
    per_call_ns: int
    bar: Bar | None

    @property
    def change_ns(self) -> int:
        """B less A."""
        return self.b_ns - self.a_ns

    @property
    def is_change(self) -> bool:
        """Whether it differs by more than the steps of a side do among themselves."""
        return self.change_ns != 0 and (self.bar is None or self.bar.is_above_or_below_zero)


def changes(a: Sequence[Step], b: Sequence[Step]) -> list[Change]:
    """Compare the rows of two sides, each of one step or more; the largest change first.

    Returns:
        One row for each key of either side. Their changes add up to ``mean_ns`` of B's step totals less that of A's.
    """
    # In an order of their own, so that what is rounded up does not hang on which side comes first.
    keys = sorted({key for step in (*a, *b) for key in step}, key=str)
    nothing = Amount(0, 0)
    ns = [np.array([[step.get(key, nothing).ns for key in keys] for step in side], np.int64) for side in (a, b)]
    calls = [[sum(step.get(key, nothing).calls for step in side) for key in keys] for side in (a, b)]
    means = [rounded_means(each.sum(axis=0).tolist(), len(each)) for each in ns]
    bars = error_bars(*ns)
    rows = []
    for place, key in enumerate(keys):
        a_ns, b_ns, a_calls, b_calls = (side[place] for side in (*means, *calls))
        count = _by_count(a_ns, b_ns, Fraction(a_calls, len(a)), Fraction(b_calls, len(b)))
        rows.append(Change(key, a_ns, b_ns, a_calls, b_calls, count, b_ns - a_ns - count, bars[place]))
    return sorted(rows, key=lambda row: (-abs(row.change_ns), -max(row.a_ns, row.b_ns), str(row.key)))


def mean_ns(total_ns: int, steps: int) -> int:
    """The mean of a sum over steps, rounded; a half upwards."""
    return (2 * total_ns + steps) // (2 * steps)


def rounded_means(sums_ns: Sequence[int], steps: int, total_ns: int | None = None) -> list[int]:
    """The means of some sums over steps, each rounded down or up so that they add up.

    Args:
        total_ns: what they add up to, less than 1 from the mean of all; by default that mean, rounded.
    """
    means = [each // steps for each in sums_ns]
    left = (mean_ns(sum(sums_ns), steps) if total_ns is None else total_ns) - sum(means)
    by_rest = sorted(range(len(means)), key=lambda place: (-(sums_ns[place] % steps), place))
    for place in by_rest[:left]:
        means[place] += 1
    return means


def error_bars(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> list[Bar | None]:
    """Where the changes of the means lie, from steps drawn again with replacement.

    A side's draws follow from its own steps: they are always the same, and B against A is A against B the other way.

    The bars are widened by √(n / (n - 1)), n the steps of the smaller side: so few steps vary less than all would.

    Args:
        a, b: steps × rows.

    Returns:
        One per row; None where a side has one step alone.
    """
    fewest = min(len(a), len(b))
    if fewest < 2:
        return [None] * a.shape[1]
    generators = [np.random.default_rng([_SEED, *np.abs(side.sum(axis=1)).tolist()]) for side in (a, b)]
    drawn = [
        generator.multinomial(len(side), np.full(len(side), 1 / len(side)), RESAMPLES)
        for generator, side in zip(generators, (a, b), strict=True)
    ]
    wider, bars = (fewest / (fewest - 1)) ** 0.5, list[Bar | None]()
    for low in range(0, a.shape[1], _ROWS_AT_ONCE):
        sides = [side[:, low : low + _ROWS_AT_ONCE].astype(np.float64) for side in (a, b)]
        means = [times @ side / len(side) for times, side in zip(drawn, sides, strict=True)]
        middle = sides[1].mean(axis=0) - sides[0].mean(axis=0)
        ends = np.quantile(means[1] - means[0], [(1 - INSIDE) / 2, (1 + INSIDE) / 2], axis=0)
        spread = np.rint(middle + (ends - middle) * wider).astype(np.int64)
        bars += [Bar(*each) for each in spread.T.tolist()]
    return bars


def summed(rows: Iterable[tuple[Key, int, int]]) -> dict[Key, Amount]:
    """One step's amounts from rows of key, time and calls; rows of one key are added."""
    found: dict[Key, Amount] = {}
    for key, ns, calls in rows:
        before = found.get(key, Amount(0, 0))
        found[key] = Amount(before.ns + ns, before.calls + calls)
    return found


def narrowed(step: Step, whole: Sequence[str], key: Sequence[str]) -> Step:
    """The same amounts by fewer parts of their keys.

    Args:
        whole: the parts of the step's keys. key: some of them.
    """
    places = [whole.index(name) for name in key]
    return summed((tuple(each[place] for place in places), *amount) for each, amount in step.items())


def _by_count(a_ns: int, b_ns: int, a_calls: Fraction, b_calls: Fraction) -> int:
    """What the change in the number of calls makes, at A's time per call."""
    if not a_calls:
        return b_ns - a_ns if b_calls and not a_ns else 0
    exact = (b_calls - a_calls) * a_ns / a_calls
    return int((exact + Fraction(1, 2)).__floor__())
