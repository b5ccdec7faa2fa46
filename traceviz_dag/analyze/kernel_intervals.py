"""The few columns of a table of kernels that measuring needs, as arrays: time, kind and dimension, device by device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.arrays import NONE, Int32, Int64, among, distinct
from traceviz_dag.vocabulary import Dimension, Kind

KINDS = tuple(kind.value for kind in Kind)
"""The kind behind each code of ``KernelIntervals.kind``."""

DIMENSIONS = tuple(dimension.value for dimension in Dimension)
"""The dimension behind each code of ``KernelIntervals.dimension``."""


@dataclass(frozen=True, slots=True)
class KernelIntervals:
    """What the measures need of kernels, one entry per kernel.

    Attributes:
        time: starts and ends, ns.
        kind: position in ``KINDS``.
        dimension: position in ``DIMENSIONS``; of meaning for communication only.
    """

    time: Intervals
    kind: npt.NDArray[np.int8]
    dimension: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.kind)

    def computes(self) -> npt.NDArray[np.bool_]:
        """Mark the computation kernels."""
        return self.kind == KINDS.index(Kind.COMPUTATION)

    def moves_memory(self) -> npt.NDArray[np.bool_]:
        """Mark the memory operations."""
        return self.kind == KINDS.index(Kind.MEMORY)

    def communicates(self, dimension: str | None = None) -> npt.NDArray[np.bool_]:
        """Mark the communication kernels, or those of one dimension."""
        marked = self.kind == KINDS.index(Kind.COMMUNICATION)
        return marked if dimension is None else marked & (self.dimension == DIMENSIONS.index(dimension))

    def communication_dimensions(self) -> list[str]:
        """Name the dimensions that occur among the communication kernels, in the vocabulary's order."""
        return [DIMENSIONS[code] for code in distinct(self.dimension[self.communicates()])]

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.integer]) -> KernelIntervals:
        """Return the kernels that a mask or an index array names."""
        time = Intervals(self.time.starts[rows], self.time.ends[rows])
        return KernelIntervals(time, self.kind[rows], self.dimension[rows])


def kernel_intervals(kernels: pa.Table) -> KernelIntervals:
    """Take from a table of kernels what the measures need, in the table's order.

    Raises:
        ValueError: a kernel without a start, a duration or a known kind.
    """
    starts, durations = integers(kernels, "start_ns"), integers(kernels, "duration_ns")
    kind = _vocabulary_codes(kernels, "kind", KINDS)
    if (kind < 0).any():
        raise ValueError(f"{int((kind < 0).sum())} kernels have no kind: classify them first")
    dimension = _vocabulary_codes(kernels, "dimension", DIMENSIONS)
    dimension[dimension < 0] = DIMENSIONS.index(Dimension.UNKNOWN)
    return KernelIntervals(Intervals(starts, starts + durations), kind, dimension)


def split_by_device(kernels: pa.Table) -> dict[str, KernelIntervals]:
    """Part a table of kernels by device, devices in the order of their names.

    Raises:
        ValueError: as ``kernel_intervals``, or a kernel without a device.
    """
    everything = kernel_intervals(kernels)
    device, names = codes(kernels, "device")
    if (device < 0).any():
        raise ValueError(f"{int((device < 0).sum())} kernels have no device")
    parts = {name: everything.take(device == code) for code, name in enumerate(names)}
    return {name: part for name, part in parts.items() if len(part)}


def integers(table: pa.Table, column: str) -> Int64:
    """Return an integer column without NULLs as int64.

    Raises:
        ValueError: it has NULLs.
    """
    values = table.column(column)
    if values.null_count:
        raise ValueError(f"column {column} has {values.null_count} NULLs in {table.num_rows} rows")
    return np.asarray(values.to_numpy(), dtype=np.int64)


def numbers(values: pa.Array | pa.ChunkedArray, absent: int = NONE) -> Int64:
    """Integers of Arrow; NULL is ``absent``. Most have none, and to ask for it takes longer than all the rest."""
    if not values.null_count:
        return np.asarray(values.to_numpy(), np.int64)
    array = one_chunk(values)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    # What is behind NULLs, too: Arrow takes twice as long to replace them.
    every = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.where(there, np.asarray(every.to_numpy(zero_copy_only=False), np.int64), absent)


def one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values in one piece, as most columns are."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.unify_dictionaries().combine_chunks()
    return values


def holds(table: pa.Table, column: str, word: str) -> npt.NDArray[np.bool_]:
    """Which rows have a word in a text column, of which no row is spelt out."""
    places, entries = _entries(table, column)
    return among(places, np.array([place for place, entry in enumerate(entries) if entry == word], np.int32))


def codes(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return a text column as codes into its distinct names, which come sorted; a NULL has code -1."""
    places, entries = _entries(table, column)
    # Of rows cut out of more, the dictionary has names of the others, too.
    used = np.zeros(len(entries) + 1, bool)
    used[places] = True
    names = sorted({*compress(entries, used.tolist())} - {None})
    code_of = {name: code for code, name in enumerate(names)}
    # Place -1, a NULL, picks the last entry.
    return np.array([*(code_of.get(entry, NONE) for entry in entries), NONE], np.int32).take(places), names


def _entries(table: pa.Table, column: str) -> tuple[Int32, list[str]]:
    """Of each row of a text column the place of its word, -1 for NULL; and the words, a dictionary's as they come."""
    values = table.column(column)
    if values.null_count == len(values):
        return np.full(len(values), NONE, np.int32), []
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.string()).dictionary_encode()
    array = one_chunk(values)
    return numbers(array.indices).astype(np.int32), array.dictionary.to_pylist()


def _vocabulary_codes(table: pa.Table, column: str, words: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return a text column as positions in a vocabulary; a NULL is -1."""
    code, names = codes(table, column)
    foreign = sorted(set(names) - set(words))
    if foreign:
        raise ValueError(f"column {column} holds {', '.join(foreign)}; it may hold {', '.join(words)} only")
    # Code -1, a NULL, picks the last entry.
    return np.array([*(words.index(name) for name in names), -1], dtype=np.int8)[code]
