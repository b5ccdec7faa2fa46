"""Rows of a SQLite table from its pages, many at once: https://sqlite.org/fileformat2.html, sections 1.6 and 2.1.

SQLite hands out one value after the other, which takes several times as long. What nsys never writes is left to it:
values that continue on other pages, records or headers of another shape, numbers among texts, other encodings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import Bool, Int64

_LEAF, _INTERIOR = 0x0D, 0x05
_UTF_8 = 1
_DEEPEST = 20
_BYTES_AT_ONCE = 1 << 22
_LONG = 128
"""A byte of a number of variable length is followed by another one from here on."""

_ZERO, _ONE, _FIRST_TEXT = 8, 9, 12
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)
"""Bytes of an integer by the type that its record states; 0 is NULL."""

_NEVER = 1 << 20
_BYTES = np.concatenate([[*_WIDTHS, 8, 0, 0, _NEVER, _NEVER], np.arange(_FIRST_TEXT, _LONG**2) - _FIRST_TEXT >> 1])
_SHIFT = np.array([*(64 - 8 * width for width in (8, *_WIDTHS[1:])), 0, 0, 0], dtype=np.int64)


class UnusualPagesError(Exception):
    """SQLite must read the rest of the table itself."""


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column that is wanted.

    Attributes:
        place: which value of a record it is.
        default: what represents NULL; None keeps NULL. A text makes it a column of texts, else it is one of integers.
    """

    place: int
    default: int | str | None


@dataclass(frozen=True, slots=True)
class _Cells:
    """The records of some pages: the type of each value that is wanted, and where it begins in the bytes."""

    data: npt.NDArray[np.uint8]
    kind: Mapping[str, npt.NDArray[np.integer]]
    start: Mapping[str, Int64]
    backwards: Int64
    """The rows, those of each page from its last one: pages are filled from their end."""


class TablePages:
    """The pages of one table of a SQLite file.

    Args:
        file: open for as long as rows are read.
        root: the table's first page.
        columns: how many it has.

    Raises:
        UnusualPagesError: its texts are not UTF-8, or this is no such file.
    """

    def __init__(self, file: FileIO, root: int, columns: int) -> None:
        self._file = file.fileno()
        head = os.pread(self._file, 100, 0)
        if len(head) < 100 or int.from_bytes(head[56:60], "big") != _UTF_8:
            raise UnusualPagesError
        stated = int.from_bytes(head[16:18], "big")
        # A page size of 65,536 is written as 1.
        self._size = 65_536 if stated == 1 else stated
        self._usable = self._size - head[20]
        self._count = os.fstat(self._file).st_size // max(self._size, 1)
        self._root, self._columns = root, columns

    def batches(
        self, columns: Mapping[str, PageColumn], among: tuple[str, tuple[int, ...]] | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows in their order, piece by piece.

        Args:
            among: a column that is wanted, and the values in it that make a row count; None takes all rows.

        Raises:
            UnusualPagesError: what was not given by then must be read by SQLite.
        """
        leaves, step = self._leaves(), max(_BYTES_AT_ONCE // self._size, 1)
        for first in range(0, len(leaves), step):
            cells = self._cells(leaves[first : first + step], columns)
            rows = None
            if among is not None:
                name, values = among
                chosen = np.isin(_integers(cells, name, None, None), values) & (cells.kind[name] != 0)
                rows = None if chosen.all() else np.flatnonzero(chosen)
            arrays = [
                _texts(cells, name, rows)
                if isinstance(column.default, str)
                else _as_arrow(cells, name, column.default, rows)
                for name, column in columns.items()
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _read(self, pages: Int64) -> npt.NDArray[np.uint8]:
        """The bytes of some pages, one after the other, and eight more."""
        data = np.zeros(len(pages) * self._size + 8, dtype=np.uint8)
        view = memoryview(data.data)
        cuts = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        for low, high in pairwise(cuts):
            place = (int(pages[low]) - 1) * self._size
            if os.preadv(self._file, [view[low * self._size : high * self._size]], place) != (high - low) * self._size:
                raise UnusualPagesError
        return data

    def _leaves(self) -> Int64:
        """The pages that hold the rows, in their order."""
        level = np.array([self._root], dtype=np.int64)
        for _ in range(_DEEPEST):
            if len(level) > self._count or level.min() < 1 or level.max() > self._count:
                break
            if self._read(level[:1])[0] == _LEAF:
                return level
            data, place = self._read(level), np.arange(len(level), dtype=np.int64) * self._size
            if (data[place] != _INTERIOR).any():
                break
            count, pointer = self._pointers(data, place, 12)
            level = np.insert(_number(data, pointer, 4), np.cumsum(count), _number(data, place + 8, 4))
        raise UnusualPagesError

    def _pointers(self, data: npt.NDArray[np.uint8], place: Int64, head: int) -> tuple[Int64, Int64]:
        """How many cells each page has, and where each cell begins.

        Args:
            place: where each page begins.
            head: bytes of the head of such a page.
        """
        count = _number(data, place + 3, 2)
        if (head + 2 * count > self._usable).any():
            raise UnusualPagesError
        base, number = np.repeat(place, count), _within(count)
        pointer = _number(data, base + head + 2 * number, 2)
        if (pointer < head).any() or (pointer >= self._usable).any():
            raise UnusualPagesError
        return count, base + pointer

    def _cells(self, pages: Int64, columns: Mapping[str, PageColumn]) -> _Cells:
        data, place = self._read(pages), np.arange(len(pages), dtype=np.int64) * self._size
        if (data[place] != _LEAF).any():
            raise UnusualPagesError
        count, at = self._pointers(data, place, 8)
        if (count == 0).any() and pages[0] != self._root:
            raise UnusualPagesError
        size, at = _variable(data, at)
        for _ in range(8):  # the row's number, which says nothing
            more = _byte(data, at) >= _LONG
            if not more.any():
                break
            at = at + more
        at = at + 1
        end = at + size
        head = _byte(data, at).astype(np.int64)
        body = at + head
        # Longer records continue on other pages.
        if (size > self._usable - 35).any() or (end > np.repeat(place, count) + self._usable).any():
            raise UnusualPagesError
        if (head >= _LONG).any():
            raise UnusualPagesError
        kinds, starts = {}, {}
        last, at = body, at + 1
        names = {column.place: name for name, column in columns.items()}
        for number in range(self._columns):
            kind, at = _variable(data, at)
            if number in names:
                kinds[names[number]], starts[names[number]] = kind, body
            body = body + _BYTES.take(kind)
        if (at != last).any() or (body != end).any():
            raise UnusualPagesError
        backwards = np.repeat(np.cumsum(count), count) - 1 - _within(count)
        return _Cells(data, kinds, starts, backwards)


def _within(count: Int64) -> Int64:
    """0, 1, … within each page of so many cells."""
    return np.arange(int(count.sum()), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)


def _byte(data: npt.NDArray[np.uint8], at: Int64) -> npt.NDArray[np.uint8]:
    # What a damaged page leads to beyond its end is found by its length.
    return data.take(at, mode="clip")


def _number(data: npt.NDArray[np.uint8], at: Int64, width: int) -> Int64:
    """Numbers of so many bytes, without a sign."""
    found = np.zeros(len(at), dtype=np.int64)
    for place in range(width):
        found = found << 8 | _byte(data, at + place)
    return found


def _variable(data: npt.NDArray[np.uint8], at: Int64) -> tuple[npt.NDArray[np.integer], Int64]:
    """Numbers of one or two bytes, and where they end."""
    found = _byte(data, at)
    at = at + 1
    if not len(found) or found.max() < _LONG:
        return found, at
    more, low = found >= _LONG, _byte(data, at)
    if (more & (low >= _LONG)).any():
        raise UnusualPagesError
    wide = found.astype(np.int64)
    return np.where(more, (wide & _LONG - 1) << 7 | low, wide), at + more


def _integers(cells: _Cells, name: str, default: int | None, rows: Int64 | None) -> Int64:
    kind, start = cells.kind[name], cells.start[name]
    if rows is not None:
        kind, start = kind[rows], start[rows]
    kinds = np.flatnonzero(np.bincount(kind, minlength=_FIRST_TEXT)) if len(kind) else np.empty(0, dtype=np.int64)
    if any(one not in (*range(len(_WIDTHS)), _ZERO, _ONE) for one in kinds.tolist()):
        raise UnusualPagesError
    null = 0 if default is None else default
    if kinds.tolist() == [0]:
        return np.full(len(kind), null, dtype=np.int64)
    # Eight bytes from where a number begins are its own, then others', which are shifted out.
    eight = np.ndarray((len(cells.data) - 7,), dtype="V8", buffer=cells.data, strides=(1,))
    found = eight[start].view(">i8").astype(np.int64) >> _SHIFT.take(kind)
    for one, value in ((0, null), (_ZERO, 0), (_ONE, 1)):
        if one in kinds:
            found[kind == one] = value
    return found


def _as_arrow(cells: _Cells, name: str, default: int | None, rows: Int64 | None) -> pa.Array:
    values = _integers(cells, name, default, rows)
    kind = cells.kind[name] if rows is None else cells.kind[name][rows]
    return pa.array(values, mask=kind == 0 if default is None and not kind.all() else None)


def _texts(cells: _Cells, name: str, rows: Int64 | None) -> pa.StringArray:
    """Texts, NULL as an empty one."""
    kind, start = cells.kind[name], cells.start[name]
    texts: Bool = (kind == 0) | ((kind > _FIRST_TEXT) & (kind & 1 == 1))
    if not texts.all():
        raise UnusualPagesError
    # The ends of texts must ascend; each second slice lies between two texts.
    low = start[cells.backwards]
    edges = np.stack([low, low + _BYTES.take(kind[cells.backwards])], axis=1).reshape(-1)
    if (np.diff(edges) < 0).any():
        raise UnusualPagesError
    edges = np.append(edges, edges[-1:] if len(edges) else 0).astype(np.int32)
    slices = pa.StringArray.from_buffers(2 * len(low), pa.py_buffer(edges), pa.py_buffer(cells.data))
    wanted = 2 * cells.backwards
    return slices.take(pa.array(wanted if rows is None else wanted[rows]))
