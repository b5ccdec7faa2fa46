"""Aggregates of one iteration over its ranks, as named queries over the lake."""

from collections.abc import Iterator, Sequence

import dagster as dg
import pyarrow as pa

from assets import groups
from assets.automation import ITERATION_NEEDED
from assets.conventions import only_stale, table_spec
from assets.events import written_table
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.resources import TracevizHome
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.lake.known_ranks import twin_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.pipeline.making import make_iteration_tables
from traceviz_dag.pipeline.steps import READS

OWN_TRACES = "own_traces"


class PartialConfig(dg.Config):
    """What to do about ranks whose trace could not be read, or not wholly.

    Attributes:
        allow_partial: go on without those of which nothing could be read, or whose tables are stale.
        with_partial: count those that were read in part; by default measures across ranks leave them out.
    """

    allow_partial: bool = False
    with_partial: bool = False


@dg.multi_asset(
    name="iteration_tables",
    specs=[
        table_spec(
            name,
            group=groups.ITERATIONS,
            deps=[table_of_iteration(one) for one in READS["runs"]],
            condition=ITERATION_NEEDED,
        )
        for name in AGGREGATED_TABLES
    ],
    partitions_def=iteration_partitions,
    check_specs=[
        dg.AssetCheckSpec("complete_ranks", asset="runs", description="Every rank of the world was read whole."),
        dg.AssetCheckSpec(
            OWN_TRACES, asset="runs", description="No other iteration of the run has, or had, the same traces."
        ),
    ],
)
@told_in_a_line
def iteration_assets(
    context: dg.AssetExecutionContext, config: PartialConfig, traceviz: TracevizHome
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Aggregate the iteration; without ``allow_partial`` it fails while a registered rank is unread.

    It fails in any case while the measures of a rank break an invariant: an average with them in it would mislead.
    """
    run, iteration = one_iteration(context)
    lake = traceviz.lake()
    inputs = registered(traceviz.folder, context.partition_key)
    result = make_iteration_tables(
        lake,
        inputs,
        allow_partial=config.allow_partial,
        with_partial=config.with_partial,
        only_stale=only_stale(context),
    )
    if result.dropped:
        context.log.info("ranks %s are not of the job any more: removed", result.dropped)
    for name, made in result.tables.items():
        yield written_table(name, made, run, iteration)
    refresh_catalogue(context, lake)
    yield complete_ranks(result.tables["runs"].rows, result.tables["iterations"].rows, result.unread)
    yield own_traces(lake, inputs)


def complete_ranks(runs: pa.Table, iterations: pa.Table, unread: Sequence[int]) -> dg.AssetCheckResult:
    """Whether every rank of the world was read whole."""
    complete: bool | None = None
    not_whole: dict[str, list[int]] = {}
    for table in (iterations, runs):
        measures = table.to_pylist()[0] if table.num_rows else {}
        complete = measures.get("complete", complete)
        not_whole |= {word: measures[word] or [] for word in ("partial_ranks", "missing_ranks") if word in measures}
    ranks = {"unread_ranks": list(unread), **not_whole}
    return dg.AssetCheckResult(
        passed=complete is not False and not unread,
        check_name="complete_ranks",
        asset_key="runs",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={name: dg.MetadataValue.json(found) for name, found in ranks.items()},
    )


def own_traces(lake: Lake, inputs: IterationInputs) -> dg.AssetCheckResult:
    """A renamed folder is a second iteration: its run counts the same step twice."""
    twin = twin_of(lake.home, inputs)
    return dg.AssetCheckResult(
        passed=twin is None,
        check_name=OWN_TRACES,
        asset_key="runs",
        severity=dg.AssetCheckSeverity.WARN,
        description=twin.line if twin is not None else None,
        metadata={"same_traces_as": twin.key, "renamed": twin.is_renamed} if twin is not None else {},
    )
