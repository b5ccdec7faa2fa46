"""Columns of slices as Perfetto takes them: texts interned, each once in the trace, and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.show.perfetto.colours import colour_text
from traceviz_dag.show.perfetto.protobuf_rows import Messages, encode_field


@dataclass(slots=True)
class InternedTexts:
    """The texts of one kind and their numbers, from 1.

    Attributes:
        field_number: where ``InternedData`` holds texts of this kind.
        spelled: how a text is spelled in the trace.
    """

    field_number: int
    spelled: Callable[[str], str] = str
    _numbers: dict[str, int] = field(default_factory=dict)
    _written: int = 0

    def number(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def fresh(self) -> bytes:
        """Fields of ``InternedData`` with the texts that were not written yet."""
        added = list(self._numbers.items())[self._written :]
        self._written = len(self._numbers)
        entries = [encode_field(1, number) + encode_field(2, self.spelled(text)) for text, number in added]
        return encode_field(self.field_number, entries)


@dataclass(slots=True)
class Interning:
    """All interned texts of a trace."""

    categories: InternedTexts = field(default_factory=lambda: InternedTexts(1))
    names: InternedTexts = field(default_factory=lambda: InternedTexts(2))
    argument_names: InternedTexts = field(default_factory=lambda: InternedTexts(3))
    argument_texts: InternedTexts = field(default_factory=lambda: InternedTexts(29))
    colours: InternedTexts = field(default_factory=lambda: InternedTexts(43, colour_text))

    def fresh(self) -> bytes:
        """An encoded ``InternedData`` of what was not written yet; empty where nothing is new."""
        kinds = (self.categories, self.names, self.argument_names, self.argument_texts, self.colours)
        return b"".join(kind.fresh() for kind in kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A text a slice, by its interned number; 0 and absent where a slice has none."""

    numbers: Int64
    present: Bool

    def annotation(self, name: int, rows: Int64) -> Messages:
        """Debug annotations of chosen slices."""
        messages = Messages(len(rows))
        messages.varint(1, name)
        messages.varint(17, self.numbers[rows])
        return messages


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """A number a slice: int64, float64 or bool."""

    values: npt.NDArray[np.int64] | npt.NDArray[np.float64] | npt.NDArray[np.bool_]
    present: Bool

    def annotation(self, name: int, rows: Int64) -> Messages:
        """Debug annotations of chosen slices."""
        messages = Messages(len(rows))
        messages.varint(1, name)
        if self.values.dtype == np.float64:
            messages.double(5, self.values[rows].astype(np.float64))
        else:
            messages.varint(2 if self.values.dtype == np.bool_ else 4, self.values[rows].astype(np.int64))
        return messages


def texts(column: object, count: int, interned: InternedTexts) -> Texts:
    """A column of texts with their interned numbers.

    Raises:
        ValueError: it holds another number of values.
    """
    if isinstance(column, str):
        return Texts(np.full(count, interned.number(column)), np.ones(count, np.bool_))
    array = _array(column, count)
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.string()).dictionary_encode()
    present = array.is_valid().to_numpy(zero_copy_only=False)
    codes = np.asarray(array.indices.fill_null(0), np.int64)
    used = np.unique(codes[present])
    table = np.zeros(len(array.dictionary), np.int64)
    table[used] = [interned.number(text) for text in array.dictionary.take(pa.array(used)).to_pylist()]
    return Texts(table[codes] if len(table) else np.zeros(count, np.int64), present)


def numbers(column: object, count: int) -> Numbers | None:
    """A column of numbers; None for texts.

    Raises:
        ValueError: it holds another number of values.
    """
    if isinstance(column, str):
        return None
    array = _array(column, count)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(array.type):
        return Numbers(np.asarray(array.fill_null(False)), present)
    if pa.types.is_integer(array.type):
        return Numbers(np.asarray(array.cast(pa.int64()).fill_null(0), np.int64), present)
    if pa.types.is_floating(array.type):
        return Numbers(np.asarray(array.cast(pa.float64()).fill_null(0.0), np.float64), present)
    return None


def _array(column: object, count: int) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    array = column if isinstance(column, pa.Array) else pa.array(column)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if len(array) != count:
        raise ValueError(f"a column has {len(array)} values for {count} slices")
    return array
