"""What is reported to Dagster of a table that was written: the same whether an asset wrote it, or a command did."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa

from assets.conventions import served_page, written_metadata
from assets.figure_metadata import pictures_of
from assets.lineage.columns import columns_made_of
from assets.plotted import plotted
from assets.row_previews import preview
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.pipeline.making import Made


def table_metadata(name: str, rows: pa.Table, size_bytes: int, uri: str, run: str, iteration: int) -> dict[str, Any]:
    """Metadata of an iteration's own table: how much was written, the numbers that are plotted, where it is shown."""
    measures = rows.slice(0, 1).to_pylist()[0] if name in AGGREGATED_TABLES and rows.num_rows else {}
    return {
        **written_metadata(rows.num_rows, size_bytes, uri),
        **{column: value for column, value in measures.items() if isinstance(value, int | float)},
        **plotted(name, rows),
        **columns_made_of(name),
        **preview(rows),
        **pictures_of(name, run, iteration),
        **served_page(run, iteration),
    }


def written_table(name: str, made: Made, run: str, iteration: int) -> dg.MaterializeResult:
    """The result of a step for one of its tables."""
    written = made.written
    return dg.MaterializeResult(
        asset_key=name,
        metadata=table_metadata(name, made.rows, written.bytes, written.path.as_uri(), run, iteration),
        data_version=dg.DataVersion(written.digest),
    )
