"""Tables for the tests of the lake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.tables import TABLES

SampleTable = Callable[..., pa.Table]


def sample_table(name: str, rows: int = 1, /, **columns: object) -> pa.Table:
    """A table of the lake with the given columns (a list, or one value for all rows), the others NULL."""
    definition = TABLES[name]
    data = {column.name: [None] * rows for column in definition.columns}
    for column, values in columns.items():
        assert column in data, f"table {name} has no column {column}"
        data[column] = values if isinstance(values, list) and len(values) == rows else [values] * rows
    return definition.from_columns(data)


@pytest.fixture(scope="session")
def sample() -> SampleTable:
    """The builder of sample tables."""
    return sample_table


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return open_lake(tmp_path / "home")
