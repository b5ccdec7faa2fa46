"""Medians that stay integers: a constant added to all values shifts them by exactly as much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from traceviz_dag.arrays import Float64, Int64

Values = TypeVar("Values", Int64, Float64)
Value = TypeVar("Value")


def lower_median(values: Iterable[Value], key: Callable[[Value], Any] | None = None) -> Value:
    """The lower median of some values, which is one of them; there is at least one.

    Args:
        key: what they are ordered by; by default they themselves.
    """
    ordered = sorted(values, key=key)  # type: ignore[type-var, arg-type]
    return ordered[(len(ordered) - 1) // 2]


def lower_medians(group: Int64, values: Int64, groups: int) -> Int64:
    """The lower median of each group, of which none is empty.

    Args:
        group: number of each value's group; groups: how many there are.
    """
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    begin = np.cumsum(count) - count
    return values[order][begin + (count - 1) // 2] if groups else values[:0]


def middles(group: Int64, values: Int64, groups: int) -> Int64:
    """The median of each group, of which none is empty; of two in the middle their mean, rounded down."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    begin = np.cumsum(count) - count
    ordered = values[order]
    return (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2]) // 2 if groups else values[:0]


def medians(group: Int64, values: Int64 | Float64, groups: int) -> Float64:
    """The median of each group; NaN of an empty one."""
    found = np.full(groups, np.nan)
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    begin = np.cumsum(count) - count
    some = np.flatnonzero(count)
    ordered = np.asarray(values, dtype=np.float64)[order]
    found[some] = (ordered[begin[some] + (count[some] - 1) // 2] + ordered[begin[some] + count[some] // 2]) / 2
    return found


def lower_medians_of_others(values: Values) -> Values:
    """Of each row, per column, the lower median of all other rows; there are two rows or more."""
    return _ranked_of_others(values, (len(values) - 2) // 2)


def lowest_of_others(values: Values) -> Values:
    """Of each row, per column, the lowest of all other rows; there are two rows or more."""
    return _ranked_of_others(values, 0)


def _ranked_of_others(values: Values, place: int) -> Values:
    ordered = np.sort(values, axis=0)
    return np.where(values > ordered[place], ordered[place], ordered[place + 1])
