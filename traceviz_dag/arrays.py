"""Types of arrays that all modules share, looking up codes in a table, and ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Integers = Int32 | Int64
"""Numbers and codes that may be stored in half the space."""
Int8 = npt.NDArray[np.int8]
UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")
_Integer = TypeVar("_Integer", bound=np.integer)

NONE = -1
"""A code, position or number that is not there."""


def lookup(table: Int64, codes: Int64, absent: int = NONE) -> Int64:
    """The table's value of each code; ``absent`` where a code is negative, and of an empty table."""
    if not len(table):
        return np.full(len(codes), absent, dtype=np.int64)
    return np.where(codes >= 0, table[codes], absent)


def distinct(values: npt.NDArray[_Integer]) -> npt.NDArray[_Integer]:
    """The distinct values, ascending; numpy's own way imports another package first, which takes longer than most."""
    if len(values) and int(values.min()) >= 0 and int(values.max()) < len(values):
        there = np.zeros(len(values), dtype=bool)
        there[values] = True
        return np.flatnonzero(there).astype(values.dtype)
    # Equal ones often follow one another, and few are left to sort.
    ordered = np.sort(values[np.append(True, values[1:] != values[:-1])] if len(values) else values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def number_groups(*keys: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Number the distinct rows of some key columns, in the keys' order, first key first.

    Args:
        keys: integer columns of one length, at least one.

    Returns:
        The index of the first row of each group, and each row's group number.
    """
    count = len(keys[0])
    number, groups = np.zeros(count, dtype=np.int64), 1
    if not count:
        return number, number
    for key in keys:
        place, places = _from_zero(key)
        if groups * places > np.iinfo(np.int64).max:
            number, groups = _dense(number, groups)
            place, places = _dense(place, places)
        number, groups = number * places + place, groups * places
        if groups <= _marked(count):
            number, groups = _dense(number, groups)
    number, groups = _dense(number, groups)
    first = np.empty(groups, dtype=np.int64)
    first[number[::-1]] = np.arange(count - 1, -1, -1)
    return first, number


def _from_zero(values: npt.NDArray[np.integer]) -> tuple[Int64, int]:
    """Values less the least one, and how many there may be; where those are too many, the distinct ones numbered."""
    least, most = int(values.min()), int(values.max())
    if max(abs(least), most, most - least) < np.iinfo(np.int64).max:
        return values.astype(np.int64) - least, most - least + 1
    return _sorted_numbers(values)


def _marked(count: int) -> int:
    """Up to so many places, a mark in each place that occurs costs less than a sort of so many values."""
    return 4 * count + 1024


def _dense(values: Int64, places: int) -> tuple[Int64, int]:
    """Number the distinct values, all from 0 and below ``places``, in their order; and how many there are."""
    if places > _marked(len(values)):
        return _sorted_numbers(values)
    there = np.zeros(places, dtype=bool)
    there[values] = True
    number = np.cumsum(there) - 1
    return number[values], int(number[-1]) + 1


def _sorted_numbers(values: npt.NDArray[np.integer]) -> tuple[Int64, int]:
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(np.append(0, ordered[1:] != ordered[:-1]))
    return number, int(number.max()) + 1


def rows_at(places: Int64, keys: Sequence[npt.NDArray[np.integer]]) -> Iterator[tuple[int, ...]]:
    """The rows of some key columns at these places."""
    return zip(*(key[places].tolist() for key in keys), strict=True)


class Shared:
    """Keeps equal arrays once: those of ranks that run the same program are mostly equal."""

    def __init__(self) -> None:
        self._known: dict[int, list[np.ndarray]] = {}

    def of(self, value: _Record) -> _Record:
        """The same record with arrays, read-only, of which an equal one is known replaced by that."""
        arrays = ((field.name, getattr(value, field.name)) for field in fields(value))
        return replace(value, **{name: self._one(array) for name, array in arrays if isinstance(array, np.ndarray)})

    def _one(self, array: np.ndarray) -> np.ndarray:
        alike = self._known.setdefault(hash(array.tobytes()), [])
        for known in alike:
            if known.dtype == array.dtype and np.array_equal(known, array):
                return known
        array.flags.writeable = False
        alike.append(array)
        return array


def ranges(lows: Int64, highs: Int64) -> Int64:
    """All numbers from each low to below its high, one range behind the other."""
    lengths = highs - lows
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(lows - ends + lengths, lengths)
