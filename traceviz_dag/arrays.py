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
"""Numbers and codes that may be stored in half the space; ``table.take(codes)`` takes half the time of
``table[codes]``."""
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
    found = table.take(codes)
    found[codes < 0] = absent
    return found


def distinct(values: npt.NDArray[_Integer]) -> npt.NDArray[_Integer]:
    """The distinct values, ascending; numpy's own way imports another package first, which takes longer than most."""
    if len(values) and int(values.min()) >= 0 and int(values.max()) < len(values):
        there = np.zeros(len(values), dtype=bool)
        there[values] = True
        return there.nonzero()[0].astype(values.dtype)
    # Equal ones often follow one another, and few are left to sort.
    ordered = np.sort(values[np.append(True, values[1:] != values[:-1])] if len(values) else values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def among(values: Integers, few: Integers) -> Bool:
    """Whether each value is one of a few; ``numpy.isin`` takes ten times as long."""
    found = np.zeros(len(values), dtype=bool)
    for one in few.tolist():
        found |= values == one
    return found


def number_groups(*keys: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Number the distinct rows of some key columns, in the keys' order, first key first.

    Args:
        keys: integer columns of one length, at least one.

    Returns:
        The index of the first row of each group, and each row's group number.
    """
    if len(keys[0]) <= _FEW:
        return _sorted(*keys)
    number, left = np.zeros(len(keys[0]), dtype=np.int64), [*keys]
    while left and (marked := _marked(number, left[0])) is not None:
        number = marked
        left.pop(0)
    if left:
        return _sorted(number, *left)
    first = np.empty(int(number.max()) + 1, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    return first, number


_FEW = 2_000
"""Rows that are sorted sooner than marked."""


def _marked(number: Int64, key: npt.NDArray[np.integer]) -> Int64 | None:
    """The numbers of the distinct pairs, by a mark for each that occurs; None where there may be too many."""
    places = int(key.max()) - int(key.min()) + 1
    every = (int(number.max()) + 1) * places
    if every > 4 * len(number):
        return None
    place = number * places + (key - key.min()).astype(np.int64)
    there = np.zeros(every, dtype=bool)
    there[place] = True
    return (np.cumsum(there) - 1)[place]


def _sorted(*keys: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    order = np.lexsort(keys[::-1])
    new = np.zeros(len(order), dtype=bool)
    new[:1] = True
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return order[new], number


def places_of_each(values: npt.NDArray[np.integer]) -> list[Int64]:
    """The places of each distinct value, ascending, in the order of the values."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(values) else []


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
