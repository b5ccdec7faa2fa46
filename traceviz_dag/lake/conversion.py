"""Parts that another version of this program computed, as this version has them: missing columns are NULL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.partitions import ANALYSE_AGAIN

DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What reading a damaged Parquet file raises, and one that cannot be read."""


def converted(path: Path, data: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The rows of a part with the columns of this version; behind them those that only another version knows.

    Args:
        path: of the part, for the error.

    Raises:
        BadInputError: a column has values that its type of today does not hold, or texts that are damaged.
    """
    arrays = []
    try:
        data.validate(full=True)
        for field in wanted:
            held = field.name in data.schema.names
            arrays.append(data.column(field.name).cast(field.type) if held else pa.nulls(data.num_rows, field.type))
    except (pa.ArrowException, KeyError) as error:
        fault = f"is of another version, whose columns this one cannot read ({str(error)[:120]})"
        raise BadInputError(path, fault, ANALYSE_AGAIN) from error
    others = [name for name in data.schema.names if name not in wanted.names]
    return pa.Table.from_arrays(
        [*arrays, *(data.column(name) for name in others)],
        schema=pa.schema([*wanted, *(data.schema.field(name) for name in others)]),
    )


def missing_columns(found: pa.Schema, wanted: pa.Schema) -> tuple[str, ...]:
    """The columns of this version that a part does not have."""
    return tuple(name for name in wanted.names if name not in found.names)


def fits(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a part can be read as it is: it has all columns of this version with their types."""
    return all(found.get_all_field_indices(field.name) and found.field(field.name).equals(field) for field in wanted)
