"""Rows of a query, from the cell batches in which the trace processor answers, as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_NULL, _INTEGER, _FLOAT, _TEXT, _BYTES = 1, 2, 3, 4, 5


@cache
def messages() -> Any:
    """The protobuf classes of the trace processor's protocol."""
    return ProtoFactory(PlatformDelegate())


def query_arguments(sql: str) -> bytes:
    """The encoded arguments of a query."""
    arguments = messages().QueryArgs()
    arguments.sql_query = sql
    encoded: bytes = arguments.SerializeToString()
    return encoded


def decode_result(encoded: bytes) -> tuple[pa.Table, str]:
    """The rows of an encoded result, and the error that ended it; empty where there is none.

    Integers become int64, floats float64, texts strings; a column that holds several of these becomes strings.
    """
    result = messages().QueryResult()
    result.ParseFromString(encoded)
    names = _distinct(result.column_names)
    if not names:
        return pa.table({}), result.error
    parts: list[list[pa.Array]] = [[] for _ in names]
    for batch in result.batch:
        for column, values in enumerate(_columns(batch, len(names))):
            parts[column].append(values)
    return pa.table({name: _joined(values) for name, values in zip(names, parts, strict=True)}), result.error


def _columns(batch: Any, width: int) -> Sequence[pa.Array]:
    kinds = np.array(batch.cells, np.int8)
    texts = np.array(batch.string_cells.split("\0")[:-1], object)
    held: dict[int, npt.NDArray[Any]] = {
        _INTEGER: np.array(batch.varint_cells, np.int64),
        _FLOAT: np.array(batch.float64_cells, np.float64),
        _TEXT: texts,
        _BYTES: np.array([*batch.blob_cells, None], object)[:-1],
    }
    places = np.zeros(len(kinds), np.int64)
    for kind in held:
        mask = kinds == kind
        places[mask] = np.arange(int(mask.sum()))
    return [_column(kinds[at::width], places[at::width], held) for at in range(width)]


def _column(kinds: npt.NDArray[np.int8], places: npt.NDArray[np.int64], held: dict[int, npt.NDArray[Any]]) -> pa.Array:
    present = set(np.unique(kinds).tolist()) - {_NULL}
    if not present:
        return pa.nulls(len(kinds))
    if len(present) == 1:
        (kind,) = present
        filled = kinds == kind
        if filled.all():
            return pa.array(held[kind][places])
        values = np.zeros(len(kinds), held[kind].dtype)
        values[filled] = held[kind][places[filled]]
        return pa.array(values, mask=~filled)
    if present == {_INTEGER, _FLOAT}:
        numbers = np.zeros(len(kinds), np.float64)
        for kind in present:
            numbers[kinds == kind] = held[kind][places[kinds == kind]]
        return pa.array(numbers, mask=kinds == _NULL)
    cells = zip(kinds.tolist(), places.tolist(), strict=True)
    return pa.array([None if kind == _NULL else str(held[kind][place]) for kind, place in cells], pa.string())


def _joined(parts: list[pa.Array]) -> pa.ChunkedArray:
    types = {part.type for part in parts} - {pa.null()}
    if len(types) > 1:
        numeric = types <= {pa.int64(), pa.float64()}
        types = {pa.float64() if numeric else pa.string()}
    return pa.chunked_array(
        [part.cast(next(iter(types))) for part in parts] if types else parts, next(iter(types), pa.null())
    )


def _distinct(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found
