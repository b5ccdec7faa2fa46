"""Typed rows of tables say what the tables' schemas say."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pyarrow as pa
import pytest

from traceviz_dag.tables import PARTITION_COLUMNS, TABLES
from traceviz_dag.tables.rows import (
    IterationRow,
    OverlapRow,
    PartedPipelineRow,
    PipelineRow,
    ProcessGroupRow,
    RankClockRow,
    TopologyRow,
    TraceStatusRow,
    columns_of,
    rows_of,
)

ROWS = {
    "iterations": IterationRow,
    "overlap": OverlapRow,
    "pipelines": PipelineRow,
    "process_groups": ProcessGroupRow,
    "rank_clocks": RankClockRow,
    "topology": TopologyRow,
    "traces": TraceStatusRow,
}
KINDS = {int: pa.types.is_integer, float: pa.types.is_floating, bool: pa.types.is_boolean}


def is_of(kind: object, column: pa.DataType) -> bool:
    if pa.types.is_list(column):
        return kind == list[int] and pa.types.is_integer(column.value_type)
    text = column.value_type if pa.types.is_dictionary(column) else column
    return pa.types.is_string(text) if kind is str else kind in KINDS and KINDS[kind](column)


@pytest.mark.parametrize("name", ROWS)
def test_each_column_is_in_the_table_and_of_its_type(name):
    types = {column.name: column.type for column in (*PARTITION_COLUMNS.values(), *TABLES[name].columns)}
    for column, hint in get_type_hints(ROWS[name]).items():
        (kind,) = {one for one in get_args(hint) or (hint,) if one is not type(None)} if hint != list[int] else {hint}
        assert is_of(kind, types[column]), f"{column} is {types[column]} in the table, {hint} in the row"


def test_a_row_with_known_parts_has_the_columns_of_its_table():
    assert columns_of(PartedPipelineRow) == columns_of(PipelineRow)


def test_rows_have_their_own_columns_alone_and_a_missing_one_is_named():
    table = pa.table({"rank": [1], "file": ["a"], "status": ["read"], "fault": [None], "digest": ["x"]})
    assert rows_of(table, TraceStatusRow) == [{"rank": 1, "file": "a", "status": "read", "fault": None}]
    with pytest.raises(KeyError, match="fault"):
        rows_of(table.drop_columns("fault"), TraceStatusRow)
