"""Rows and columns that Dagster's pages show of a table."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa

from assets.lineage.columns import MADE_OF_COLUMNS
from assets.row_previews import PREVIEW, preview
from traceviz_dag.tables import all_tables


def test_a_preview_has_few_rows_and_columns_and_keeps_every_digit():
    stamp = 1_700_000_000_123_456_789
    wide = {f"column_{number}": list(range(9)) for number in range(40)}
    shown = preview(pa.table({"start_ns": [stamp] * 9, "name": ["x" * 500] * 9, "none": [None] * 9, **wide}))[PREVIEW]
    assert isinstance(shown, dg.TableMetadataValue)
    assert (len(shown.records), len(shown.schema.columns)) == (3, 12)
    first = shown.records[0].data
    assert (first["start_ns"], first["none"], len(str(first["name"]))) == (str(stamp), None, 60)
    assert preview(pa.table({"name": []})) == {}


def test_columns_are_said_to_come_from_columns_that_exist():
    def columns(table: str) -> set[str]:
        found = all_tables()[table]
        return {column.name for column in found.columns} | set(found.partitioned_by)

    for table, known in MADE_OF_COLUMNS.items():
        assert set(known) <= columns(table), table
        for source, column in (one.split(".") for of in known.values() for one in of):
            assert column in columns(source), (table, source, column)
