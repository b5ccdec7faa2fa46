"""Tables of the snapshots of GPU memory that lie beside the traces of an iteration."""

from collections.abc import Iterable, Iterator, Mapping

import dagster as dg
import xxhash

from assets import groups
from assets.automation import SNAPSHOTS_NEEDED
from assets.conventions import only_stale, table_spec, written_metadata
from assets.partitions import iteration_partitions, one_iteration
from assets.raw_traces import memory_snapshots
from assets.resources import TracevizHome
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.lake.inputs import registered
from traceviz_dag.pipeline.engines import default_workers
from traceviz_dag.pipeline.memory import memory_sources, store_memory, stored_memory
from traceviz_dag.pipeline.staleness import memory_is_current
from traceviz_dag.pipeline.steps import lead_of
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
    current = [one for one in sources if only_stale(context) and memory_is_current(lake, inputs, [one])]
    outcomes = stored_memory(lake, inputs, [one.rank for one in current])
    stale = [one for one in sources if one not in current]
    for outcome in store_memory(lake, run, iteration, stale, traceviz.workers or default_workers()):
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
        yield dg.MaterializeResult(
            asset_key=name,
            metadata={
                **written_metadata(rows, size, (lake.home / "lake" / name).as_uri()),
                "ranks": len(written),
                UNREAD: dg.MetadataValue.json(faults),
            },
            data_version=dg.DataVersion(version_of_ranks(one.digest for one in written)),
        )
    yield snapshots_read(faults, len(outcomes))


def version_of_ranks(digests: Iterable[str]) -> str:
    """The data version of a table of GPU memory, which is one partition an iteration: of its ranks' files, in order."""
    return xxhash.xxh3_64_hexdigest(" ".join(digests).encode())


def snapshots_read(faults: Mapping[str, str], snapshots: int) -> dg.AssetCheckResult:
    """Whether every snapshot was read whole."""
    return dg.AssetCheckResult(
        passed=not faults,
        check_name="snapshots_read",
        asset_key=_LEAD,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={UNREAD: dg.MetadataValue.json(faults), "snapshots": snapshots},
    )
