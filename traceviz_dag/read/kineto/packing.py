"""Lists of Python numbers → numpy arrays, and pieces of columns → whole columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto.schema import as_integer, as_triple

Columns = dict[str, npt.NDArray[Any]]
"""Column name → values, equally long."""

_DTYPES: dict[str, type[np.generic]] = {
    "name": np.int32,
    "input_sizes": np.int32,
    "inputs": np.int32,
    "thread": np.int32,
    "process": np.int32,
    "category": np.int8,
    "kind": np.int8,
}


def floats(values: list[float]) -> npt.NDArray[np.float64]:
    """Doubles of ``values``, read-only; ``struct`` takes half the time of numpy's own conversion."""
    return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)


def codes(values: Iterable[int], count: int) -> Int32:
    """Small integers, read-only; ``count`` is their number."""
    return np.frombuffer(struct.pack(f"{count}i", *values), np.int32)


def integers(values: Sequence[Any]) -> Int64:
    """Integers of ``values``, MISSING for what is none; read-only."""
    layout = f"{len(values)}q"
    try:
        return np.frombuffer(struct.pack(layout, *values), np.int64)
    except struct.error:
        values = [MISSING if value is None else value for value in values]
    try:
        return np.frombuffer(struct.pack(layout, *values), np.int64)
    except struct.error:
        return np.array([as_integer(value) for value in values], np.int64)


def triples(values: list[Any]) -> Int64:
    """Three integers a row, shape (len(values), 3); MISSING for what is no list of three; read-only."""
    try:
        return np.frombuffer(struct.pack(f"{3 * len(values)}q", *chain.from_iterable(values)), np.int64).reshape(-1, 3)
    except (struct.error, TypeError):
        return np.array([as_triple(value) for value in values], np.int64)


class GrowingTable:
    """The columns of a table that grows by pieces, each of which is copied and let go at once.

    Attributes:
        rows: how many it has.
    """

    def __init__(self, table: type[Any], *, without: tuple[str, ...] = ()) -> None:
        names = (part.name for part in fields(table) if part.name not in without)
        self.rows = 0
        self._columns: Columns = {name: np.empty(0, _DTYPES.get(name, np.int64)) for name in names}

    def append(self, columns: Columns) -> None:
        """Add rows, of columns that the table does not have nothing."""
        before, self.rows = self.rows, self.rows + len(next(iter(columns.values())))
        for name, kept in self._columns.items():
            if self.rows > len(kept):
                # Memory that nothing was written to is none: room for twice as many costs nothing yet.
                self._columns[name] = np.empty(2 * self.rows, kept.dtype)
                self._columns[name][:before] = kept[:before]
            np.copyto(self._columns[name][before : self.rows], columns[name], casting="same_kind")

    def whole(self) -> Columns:
        """The columns; the table is spent."""
        return {name: kept[: self.rows] for name, kept in self._columns.items()}
