"""The tables of other packages: each made by one query over an iteration's tables, as soon as these are there."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from assets.automation import ITERATION_NEEDED, PICTURES_NEEDED
from assets.conventions import table_spec, written_metadata
from assets.lineage.recorded_files import file_tags
from assets.partitions import iteration_partitions, ranks_of_iteration
from assets.resources import TracevizHome
from assets.staleness import MADE_OF_TAG, made_of
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.lake.partition_keys import parse_iteration_key
from traceviz_dag.pipeline.derived import derive
from traceviz_dag.tables import BY_RANK, DerivedTable, all_tables, derived_tables


def _spec(table: DerivedTable) -> dg.AssetSpec:
    by_rank = [name for name in table.made_of if all_tables()[name].partitioned_by == BY_RANK]
    return table_spec(
        table.name,
        group="derived",
        deps=[
            dg.AssetDep(name, partition_mapping=ranks_of_iteration) if name in by_rank else dg.AssetDep(name)
            for name in table.made_of
        ],
        condition=ITERATION_NEEDED if by_rank else PICTURES_NEEDED,
    )


def _derived_asset(table: DerivedTable) -> dg.AssetsDefinition:
    @dg.multi_asset(name=f"{table.name}_query", specs=[_spec(table)], partitions_def=iteration_partitions)
    @told_in_a_line
    def derived(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.MaterializeResult]:
        """Ask the query of the iteration, and keep what it says."""
        run, iteration = parse_iteration_key(context.partition_key)
        lake = traceviz.lake()
        version = made_of(context.instance, lake, run, iteration)
        written = lake.write(table.name, derive(lake, table, run, iteration), run=run, iteration=iteration)
        refresh_catalogue(context, lake)
        yield dg.MaterializeResult(
            asset_key=table.name,
            metadata=written_metadata(written.rows, written.bytes, Path(written.path).as_uri()),
            data_version=dg.DataVersion(written.digest),
            tags={MADE_OF_TAG: version, **file_tags(lake, {table.name: written.digest}, run, iteration)},
        )

    return derived


derived_assets = tuple(_derived_asset(table) for table in derived_tables().values())
