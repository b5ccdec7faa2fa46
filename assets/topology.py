"""The job's topology, known before any kernel is: united from all ranks' headers and the topology text file."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from assets import groups
from assets.automation import TOPOLOGY_NEEDED
from assets.conventions import only_stale, table_spec, written_metadata
from assets.partitions import iteration_partitions, one_iteration, ranks_of_iteration
from assets.raw_traces import raw_traces, topology_files
from assets.resources import TracevizHome
from assets.row_previews import preview_of_file
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.lake.inputs import registered
from traceviz_dag.pipeline.making import make_topology
from traceviz_dag.tables import TOPOLOGY_TABLES


@dg.multi_asset(
    name="topology_tables",
    specs=[
        table_spec(
            name,
            group=groups.TOPOLOGY,
            deps=[dg.AssetDep(raw_traces, partition_mapping=ranks_of_iteration), topology_files],
            condition=TOPOLOGY_NEEDED,
        )
        for name in TOPOLOGY_TABLES
    ],
    partitions_def=iteration_partitions,
    check_specs=[
        dg.AssetCheckSpec("sources_agree", asset="topology", description="Headers and text file say the same.")
    ],
)
@told_in_a_line
def topology_assets(
    context: dg.AssetExecutionContext, traceviz: TracevizHome
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Read all headers of the iteration and the text file, unite them, and write both tables."""
    one_iteration(context)
    inputs = registered(traceviz.folder, context.partition_key)
    lake = traceviz.lake()
    topology, tables = make_topology(lake, inputs, only_stale=only_stale(context))
    for name, written in tables.items():
        yield dg.MaterializeResult(
            asset_key=name,
            metadata={
                **written_metadata(written.rows, written.bytes, Path(written.path).as_uri()),
                **preview_of_file(written.path),
                "pipelines": len(topology.pipelines),
                "disagreements": dg.MetadataValue.json(list(topology.disagreements)),
            },
            data_version=dg.DataVersion(written.digest),
        )
    refresh_catalogue(context, lake)
    yield sources_agree(topology)


def sources_agree(topology: Topology) -> dg.AssetCheckResult:
    """Whether headers and text file say the same."""
    return dg.AssetCheckResult(
        passed=not topology.disagreements,
        check_name="sources_agree",
        asset_key="topology",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"disagreements": dg.MetadataValue.json(list(topology.disagreements))},
    )
