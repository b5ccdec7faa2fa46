"""The tables of other packages: each made by one query over an iteration's tables, as soon as these are there."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from assets import groups
from assets.automation import ITERATION_NEEDED, PICTURES_NEEDED
from assets.conventions import only_stale, table_spec, written_metadata
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.pipeline.making import make_derived
from traceviz_dag.pipeline.steps import is_by_rank, with_leads
from traceviz_dag.tables import DerivedTable, derived_tables


def _spec(table: DerivedTable) -> dg.AssetSpec:
    return table_spec(
        table.name,
        group=groups.DERIVED,
        deps=[table_of_iteration(name) for name in with_leads(table.made_of)],
        condition=ITERATION_NEEDED if any(map(is_by_rank, table.made_of)) else PICTURES_NEEDED,
    )


def _derived_asset(table: DerivedTable) -> dg.AssetsDefinition:
    @dg.multi_asset(name=f"{table.name}_query", specs=[_spec(table)], partitions_def=iteration_partitions)
    @told_in_a_line
    def derived(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.MaterializeResult]:
        """Ask the query of the iteration, and keep what it says."""
        run, iteration = one_iteration(context)
        lake = traceviz.lake()
        made = make_derived(lake, table, run, iteration, only_stale=only_stale(context))
        written, rows = made.written, made.rows
        refresh_catalogue(context, lake)
        yield dg.MaterializeResult(
            asset_key=table.name,
            metadata={**written_metadata(written.rows, written.bytes, Path(written.path).as_uri()), **preview(rows)},
            data_version=dg.DataVersion(written.digest),
        )

    return derived


derived_assets = tuple(_derived_asset(table) for table in derived_tables().values())
