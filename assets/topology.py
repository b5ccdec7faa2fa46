"""The job's topology, known before any kernel is: united from all ranks' headers and the topology text file."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import xxhash

from assets import groups
from assets.automation import TOPOLOGY_NEEDED
from assets.conventions import table_spec, written_metadata
from assets.lineage.recorded_files import file_tags
from assets.partitions import iteration_partitions, one_iteration, ranks_of_iteration
from assets.raw_traces import raw_traces, topology_files
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.pipeline.iteration import topology_to_store
from traceviz_dag.tables import TOPOLOGY_TABLES

INPUTS_TAG = "traceviz/inputs"


def inputs_version(inputs: IterationInputs) -> str:
    """Changes whenever a trace or the topology file of the iteration looks different."""
    versions = [f"{entry.rank}:{entry.version}" for entry in inputs.ranks]
    text = Path(inputs.topology_file) if inputs.topology_file else None
    if text is not None and text.is_file():
        versions.append(digest_of(text))
    return xxhash.xxh3_64(" ".join(versions).encode()).hexdigest()


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
    run, iteration = one_iteration(context)
    inputs = registered(traceviz.folder, context.partition_key)
    # Before anything is read: what changes meanwhile makes the tables stale.
    version = inputs_version(inputs)
    lake = traceviz.lake()
    topology, tables = topology_to_store(lake, inputs)
    for name, table in zip(TOPOLOGY_TABLES, tables, strict=True):
        written = lake.write(name, table, run=run, iteration=iteration)
        yield dg.MaterializeResult(
            asset_key=name,
            metadata={
                **written_metadata(written.rows, written.bytes, Path(written.path).as_uri()),
                **preview(table),
                "pipelines": len(topology.pipelines),
                "disagreements": dg.MetadataValue.json(list(topology.disagreements)),
            },
            data_version=dg.DataVersion(written.digest),
            tags={
                INPUTS_TAG: version,
                **file_tags(lake, {name: written.digest}, run, iteration),
            },
        )
    refresh_catalogue(context, lake)
    yield dg.AssetCheckResult(
        passed=not topology.disagreements,
        check_name="sources_agree",
        asset_key="topology",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"disagreements": dg.MetadataValue.json(list(topology.disagreements))},
    )
