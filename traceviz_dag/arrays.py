"""Types of arrays that all modules share, looking up codes in a table, and ranges of numbers."""

from __future__ import annotations

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
