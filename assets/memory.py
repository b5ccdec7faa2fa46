"""Tables of the snapshots of GPU memory that lie beside the traces of an iteration."""

from collections.abc import Iterator, Mapping

import dagster as dg
import xxhash

from assets import groups
from assets.automation import SNAPSHOTS_NEEDED
from assets.conventions import CODE_VERSION, CODE_VERSION_TAG, table_spec, written_metadata
from assets.partitions import iteration_partitions, one_iteration
from assets.raw_traces import memory_snapshots
from assets.resources import TracevizHome
from assets.staleness import SNAPSHOTS_TAG, latest_tags
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.pipeline.steps import lead_of
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.memory import SnapshotOutcome, memory_sources, sources_version, store_memory
from traceviz_dag.pipeline.workers import default_workers
from traceviz_dag.tables import MEMORY_TABLES

UNREAD = "unread_snapshots"
"""Metadata: rank → what is wrong with its snapshot."""

_LEAD = lead_of(MEMORY_TABLES[0])


@dg.multi_asset(
    name="memory_tables",
    specs=[
        table_spec(name, group=groups.MEMORY, deps=[memory_snapshots], condition=SNAPSHOTS_NEEDED)
        for name in MEMORY_TABLES
    ],
    partitions_def=iteration_partitions,
    pool="rank_workers",
    check_specs=[
        dg.AssetCheckSpec("snapshots_read", asset=_LEAD, description="Every snapshot of the iteration was read whole.")
    ],
)
@told_in_a_line
def memory_tables(
    context: dg.AssetExecutionContext, traceviz: TracevizHome
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Read every snapshot of the iteration, and traces in which memory was recorded of ranks that have none.

    What cannot be read costs its rank alone, and the check says why. Automation asks for it where there are snapshots.
    """
    run, iteration = one_iteration(context)
    lake, inputs = traceviz.lake(), registered(traceviz.folder, context.partition_key)
    sources = memory_sources(lake, inputs)
    outcomes: list[SnapshotOutcome] = []
    for outcome in store_memory(lake, run, iteration, sources, traceviz.workers or default_workers()):
        outcomes.append(outcome)
        context.log.info(
            "%s rank %d: %s (%d of %d)",
            *(inputs.key, outcome.rank, outcome.fault or "read", len(outcomes), len(sources)),
        )
    outcomes.sort(key=lambda outcome: outcome.rank)
    refresh_catalogue(context, lake)
    faults = {str(outcome.rank): outcome.fault for outcome in outcomes if outcome.fault}
    for name in MEMORY_TABLES:
        written = [outcome.tables[name] for outcome in outcomes if outcome.tables]
        rows, size = sum(one.rows for one in written), sum(one.bytes for one in written)
        digests = " ".join(one.digest for one in written)
        yield dg.MaterializeResult(
            asset_key=name,
            metadata={
                **written_metadata(rows, size, (lake.home / "lake" / name).as_uri()),
                "ranks": len(written),
                UNREAD: dg.MetadataValue.json(faults),
            },
            data_version=dg.DataVersion(xxhash.xxh3_64_hexdigest(digests.encode())),
            tags={SNAPSHOTS_TAG: sources_version(sources)},
        )
    yield dg.AssetCheckResult(
        passed=not faults,
        check_name="snapshots_read",
        asset_key=_LEAD,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={UNREAD: dg.MetadataValue.json(faults), "snapshots": len(outcomes)},
    )


def memory_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the tables were made of what tells of memory as it is now, by this code; true without any."""
    sources = memory_sources(lake, inputs)
    if not sources:
        return True
    tags = latest_tags(instance, _LEAD, [inputs.key]).get(inputs.key, {})
    if (tags.get(SNAPSHOTS_TAG), tags.get(CODE_VERSION_TAG)) != (sources_version(sources), CODE_VERSION):
        return False
    unread = unread_snapshots(instance, inputs)
    stored = {
        name: {part.rank for part in lake.partitions(name, inputs.run, inputs.iteration)} for name in MEMORY_TABLES
    }
    return all(
        str(one.rank) in unread
        or (one.rank in ranks and lake.is_as_written(name, run=inputs.run, iteration=inputs.iteration, rank=one.rank))
        for one in sources
        for name, ranks in stored.items()
    )


def unread_snapshots(instance: dg.DagsterInstance, inputs: IterationInputs) -> Mapping[str, str]:
    """Rank → what is wrong with its snapshot, as it was found when the tables were made."""
    records_filter = dg.AssetRecordsFilter(dg.AssetKey(_LEAD), asset_partitions=[inputs.key])
    for record in instance.fetch_materializations(records_filter, limit=1).records:
        told = record.asset_materialization.metadata.get(UNREAD) if record.asset_materialization else None
        if isinstance(told, dg.JsonMetadataValue) and isinstance(told.value, Mapping):
            return {str(rank): str(line) for rank, line in told.value.items()}
    return {}
