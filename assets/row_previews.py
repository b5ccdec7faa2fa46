"""The first rows of a partition, as its page in Dagster shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

PREVIEW = "preview"
MOST_RANKS = 64
"""Ranks of a run of Dagster from which their tables get no previews: each is kept in Dagster's records for good."""

_ROWS, _COLUMNS, _LETTERS = 3, 12, 60
_LARGEST_IN_A_BROWSER = 2**53
"""Beyond it a browser rounds whole numbers."""


def preview(rows: pa.Table) -> dict[str, Any]:
    """Metadata: the first rows and columns of a partition; nothing of an empty one."""
    if not rows.num_rows:
        return {}
    few = rows.select(rows.column_names[:_COLUMNS]).slice(0, _ROWS)
    schema = dg.TableSchema([dg.TableColumn(field.name, _words(field.type)) for field in few.schema])
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in few.to_pylist()]
    return {PREVIEW: dg.MetadataValue.table(records, schema)}


def preview_of_file(path: Path) -> dict[str, Any]:
    """The same of a file of the lake, of which no more is read than that."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names[:_COLUMNS]
        first = next(file.iter_batches(batch_size=_ROWS, columns=names), None)
        return {} if first is None else preview(pa.Table.from_batches([first]))


def _words(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _cell(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) <= _LARGEST_IN_A_BROWSER:
        return value
    text = str(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
