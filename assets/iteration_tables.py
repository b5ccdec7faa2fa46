"""Aggregates of one iteration over its ranks, as named queries over the lake."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from assets import groups
from assets.automation import ITERATION_NEEDED
from assets.conventions import INVARIANTS, served_page, table_spec, written_metadata
from assets.lineage.columns import columns_made_of
from assets.lineage.recorded_files import file_tags
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.plotted import plotted
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.staleness import MADE_OF_TAG, made_of, unmark_where_current
from assets.step_faults import refresh_catalogue, told_in_a_line
from assets.steps import READS
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.lake.known_ranks import drop_unlisted_ranks, twin_of
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.pipeline.aggregates import aggregate
from traceviz_dag.pipeline.iteration import ranks_that_break_invariants, unread_ranks

OWN_TRACES = "own_traces"


class PartialConfig(dg.Config):
    """What to do about ranks whose trace could not be read, or not wholly.

    Attributes:
        allow_partial: go on without those of which nothing could be read.
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
    unread = unread_ranks(lake, inputs)
    if not unread:
        dropped = drop_unlisted_ranks(lake, inputs)
        if dropped:
            context.log.info("ranks %s are not of the job any more: removed", dropped)
    version = made_of(context.instance, lake, run, iteration, "runs")
    if unread and not config.allow_partial:
        raise dg.Failure(
            description=f"ranks {unread} of {context.partition_key} have no tables of their trace as it is; fix their "
            "files, or set allow_partial",
            allow_retries=False,
        )
    broken = ranks_that_break_invariants(lake, run, iteration)
    if broken:
        raise dg.Failure(
            description=f"measures of ranks {broken} of {context.partition_key} break invariants, see check "
            f"{INVARIANTS} of overlap; report it, with the trace",
            allow_retries=False,
        )
    complete: bool | None = None
    not_whole: dict[str, list[int]] = {}
    for name, table in aggregate(lake, run, iteration, with_partial=config.with_partial).items():
        written = lake.write(name, table, run=run, iteration=iteration)
        measures = table.to_pylist()[0] if table.num_rows else {}
        complete = measures.get("complete", complete)
        not_whole |= {word: measures[word] or [] for word in ("partial_ranks", "missing_ranks") if word in measures}
        yield dg.MaterializeResult(
            asset_key=name,
            metadata={
                **written_metadata(written.rows, written.bytes, Path(written.path).as_uri()),
                **{column: value for column, value in measures.items() if isinstance(value, int | float)},
                **plotted(name, table),
                **columns_made_of(name),
                **preview(table),
                **served_page(run, iteration),
            },
            data_version=dg.DataVersion(written.digest),
            tags={
                MADE_OF_TAG: version,
                **file_tags(lake, {name: written.digest}, run, iteration),
            },
        )
    unmark_where_current(context.instance, lake, inputs)
    refresh_catalogue(context, lake)
    yield dg.AssetCheckResult(
        passed=complete is not False and not unread,
        check_name="complete_ranks",
        asset_key="runs",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={name: dg.MetadataValue.json(ranks) for name, ranks in {"unread_ranks": unread, **not_whole}.items()},
    )
    yield _own_traces(traceviz, inputs)


def _own_traces(traceviz: TracevizHome, inputs: IterationInputs) -> dg.AssetCheckResult:
    """A renamed folder is a second iteration: its run counts the same step twice."""
    twin = twin_of(traceviz.folder, inputs)
    return dg.AssetCheckResult(
        passed=twin is None,
        check_name=OWN_TRACES,
        asset_key="runs",
        severity=dg.AssetCheckSeverity.WARN,
        description=twin.line if twin is not None else None,
        metadata={"same_traces_as": twin.key, "renamed": twin.is_gone} if twin is not None else {},
    )
