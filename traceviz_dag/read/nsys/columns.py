"""Columns of an export as the types that readers count on: a SQLite column may hold anything in any row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import LAST_INSTANT_NS, LONGEST_NAME

_EXPORT_AGAIN = "export the report again with a current version of nsys"


def integers(column: pa.ChunkedArray | pa.Array, name: str, path: Path) -> pa.ChunkedArray | pa.Array:
    """The column as int64; whole numbers of any type are.

    Args:
        name: what messages call it.

    Raises:
        BadInputError: it holds something else.
    """
    kind = column.type
    if kind == pa.int64():
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            pass
    raise BadInputError(path, f"{name} holds something else than integers", _EXPORT_AGAIN)


def texts(column: pa.ChunkedArray | pa.Array, name: str, path: Path) -> pa.ChunkedArray | pa.Array:
    """The column as text; bytes that are not UTF-8 become the replacement character.

    Args:
        name: what messages call it.

    Raises:
        BadInputError: it holds something that is no text.
    """
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_string(column.type):
        as_text = _as_text(column)
        try:
            as_text.validate(full=True)
        except pa.ArrowInvalid:
            values = (None if value is None else value.decode("utf-8", "replace") for value in _bytes(as_text))
            return pa.array(values, pa.string())
        return as_text
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadInputError(path, f"{name} holds no text", _EXPORT_AGAIN) from None


def without_long_texts(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array | None:
    """The column with an empty text for each that is longer than any name; None where there is none to replace."""
    long = pc.greater(pc.binary_length(column), LONGEST_NAME)
    return pc.if_else(long, "", column) if pc.any(long).as_py() else None


def usable(
    columns: Mapping[str, pa.ChunkedArray | pa.Array], others: Sequence[pa.ChunkedArray] = ()
) -> npt.NDArray[np.bool_] | None:
    """Which rows have a number that can be a time in each column, and that of a GPU in ``device``, end no earlier than
    they start, and have some number in each other column; None where all do."""
    conditions = [
        pc.and_(pc.greater(column, -LAST_INSTANT_NS), pc.less(column, LAST_INSTANT_NS)) for column in columns.values()
    ]
    conditions += map(pc.is_valid, others)
    if "device" in columns:
        conditions.append(pc.greater_equal(columns["device"], 0))
    if {"start_ns", "end_ns"} <= columns.keys():
        conditions.append(pc.greater_equal(columns["end_ns"], columns["start_ns"]))
    kept = None
    for condition in conditions:
        good = pc.fill_null(condition, fill_value=False)
        if not pc.all(good, min_count=0).as_py():
            mask = np.asarray(good.to_numpy(zero_copy_only=False), dtype=bool)
            kept = mask if kept is None else kept & mask
    return kept


def _as_text(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Bytes or text as text, whatever the bytes are."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_as_text(chunk) for chunk in column.chunks], pa.string())
    plain = column if column.type in (pa.string(), pa.binary()) else column.cast(pa.binary())
    return plain.view(pa.string())


def _bytes(column: pa.ChunkedArray | pa.Array) -> list[bytes | None]:
    return column.cast(pa.binary()).to_pylist()
