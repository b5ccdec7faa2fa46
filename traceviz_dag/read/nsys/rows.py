"""Rows of a profile's tables as arrays, and where each process or GPU begins in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64, distinct
from traceviz_dag.read.host_tree import nesting_order

Array: TypeAlias = npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Words: TypeAlias = tuple[str | None, ...]

_TYPES = {pa.int64(): np.int64, pa.int32(): np.int32, pa.int8(): np.int8}


@dataclass(frozen=True, slots=True)
class Runs:
    """Which rows of a table belong to which key (a process, or a GPU); each key's rows are together.

    Attributes:
        keys: ascending.
        first, count: the first row of each key, and how many it has.
    """

    keys: Int64
    first: Int64
    count: Int64

    @classmethod
    def of(cls, ordered: Int64) -> Runs:
        """The runs of a column of keys that ascends."""
        first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
        return cls(ordered[first], first.astype(np.int64), np.diff(first, append=len(ordered)).astype(np.int64))

    @classmethod
    def of_counts(cls, keys: Sequence[int], counts: Sequence[int]) -> Runs:
        """The runs of keys that follow one another."""
        count = np.array(counts, dtype=np.int64)
        return cls(np.array(keys, dtype=np.int64), np.cumsum(count) - count, count)

    def take(self, keys: Iterable[int] | None) -> Runs:
        """The runs of some keys, those that occur, in ascending order; None takes all."""
        if keys is None:
            return self
        chosen = np.isin(self.keys, np.fromiter(keys, dtype=np.int64))
        return Runs(self.keys[chosen], self.first[chosen], self.count[chosen])

    def rows(self) -> Int64:
        """The rows of all runs, run after run."""
        if not len(self.first):
            return np.empty(0, dtype=np.int64)
        return np.concatenate(
            [
                np.arange(first, first + count)
                for first, count in zip(self.first.tolist(), self.count.tolist(), strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Some columns of some rows of a table; a text is its place in the column's words, NULL comes after the last.

    Attributes:
        runs: the rows of the table that these are, run after run.
    """

    values: Mapping[str, Array]
    runs: Runs

    def __getitem__(self, column: str) -> Array:
        return self.values[column]

    def __len__(self) -> int:
        return int(self.runs.count.sum())

    def integers(self, column: str) -> Int64:
        """A column as int64."""
        return self.values[column].astype(np.int64, copy=False)

    def place(self, rows: Int64) -> Int64:
        """Where rows of the whole table are here; NONE for those that are not here, and for NONE."""
        first, count = self.runs.first, self.runs.count
        if not len(first):
            return np.full(len(rows), NONE, dtype=np.int64)
        if len(first) == 1:
            place = rows - first[0]
            return np.where((place < 0) | (place >= count[0]), NONE, place)
        run = np.maximum(np.searchsorted(first, rows, side="right") - 1, 0)
        within = rows - first[run]
        here = (within >= 0) & (within < count[run])
        return np.where(here, within + (np.cumsum(count) - count)[run], NONE)


def order_by_key(keys: Int64, start_ns: Int64, length_ns: Int64 | None = None) -> Int64:
    """The order by key, then start, then the longer first; the former order among equals.

    Exports hold the rows of a process nearly in order, so each key is sorted by itself.
    """
    values = distinct(keys)
    code = np.searchsorted(values, keys)
    # Stable sorts of 16-bit integers are radix sorts.
    order = np.argsort(code.astype(np.uint16) if len(values) < 2**16 else code, kind="stable")
    bounds = np.cumsum([0, *np.bincount(code, minlength=len(values)).tolist()])
    for first, end in pairwise(bounds.tolist()):
        rows = order[first:end]
        start = start_ns[rows]
        if length_ns is None:
            order[first:end] = rows[np.argsort(start, kind="stable")]
        else:
            order[first:end] = rows[nesting_order(np.zeros(len(rows), dtype=np.int32), start, length_ns[rows])]
    return order


def array_of(column: pa.ChunkedArray | pa.Array) -> Array:
    """A column of integers or booleans without NULLs as an array.

    Its memory is looked at directly: pyarrow's own way imports pandas first, which takes longer than most columns.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_array_of(chunk) for chunk in chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    kind = bool if pa.types.is_boolean(column.type) else _TYPES[column.type]
    return np.concatenate([np.empty(0, dtype=kind), *parts])


def integers_of(column: pa.ChunkedArray | pa.Array) -> Int64:
    """``array_of`` as int64."""
    return array_of(column).astype(np.int64, copy=False)


def numbers(table: pa.Table, name: str) -> Int64:
    """A column of integers without NULLs as int64."""
    return integers_of(table[name])


def _array_of(chunk: pa.Array) -> Array:
    data = chunk.buffers()[1]
    if pa.types.is_boolean(chunk.type):
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        return bits[chunk.offset : chunk.offset + len(chunk)].astype(bool)
    values = np.frombuffer(data, dtype=_TYPES[chunk.type])
    return values[chunk.offset : chunk.offset + len(chunk)]
