"""One fan-out step from trace files to per-rank tables: ranks run side by side, each recorded as it finishes."""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from assets import groups
from assets.automation import RANKS_NEEDED
from assets.conventions import (
    CODE_VERSION,
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_VERSION_TAG,
    INVARIANTS,
    ONLY_STALE_TAG,
    RULES_TAG,
    table_spec,
    written_metadata,
)
from assets.lineage.provenance import input_tags
from assets.lineage.recorded_files import file_tags
from assets.partitions import rank_trace_key, rank_trace_partitions, ranks_by_iteration, ranks_of_iteration
from assets.raw_traces import classification_rules, raw_traces
from assets.recorded_together import log_together
from assets.resources import TracevizHome
from assets.row_previews import MOST_RANKS, preview_of_file
from assets.staleness import LAST_RECORDED, RankState, mark_aggregates, mark_of, rank_states, stale_ranks
from assets.step_faults import RANKS_TOLD, refresh_catalogue, told_in_a_line
from traceviz_dag.classify.rules import Rules
from traceviz_dag.lake.inputs import IterationInputs, registered
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.partition_keys import parse_iteration_key, parse_rank_key, rank_key
from traceviz_dag.pipeline.completeness import ranks_in_words
from traceviz_dag.pipeline.formats.trace_format import EXTRA_TABLES
from traceviz_dag.pipeline.iteration import rank_traces, stored_topology
from traceviz_dag.pipeline.ranks import RANK_TABLES
from traceviz_dag.pipeline.workers import IterationTask, RankOutcome, analyse_ranks
from traceviz_dag.tables import TOPOLOGY_TABLES
from traceviz_dag.vocabulary import StaleCause, StaleStage

COVERAGE = "coverage"
NO_ROWS = "none"
"""Data version of a table that traces of the rank's format do not have; there is no file of it."""
NONE_TOLD = "Traces of this format have no such rows."

UNCLASSIFIED_LIMIT = 0.01
"""Share of kernel time without a category from which the coverage check warns."""


@dg.multi_asset(
    name="rank_tables",
    specs=[
        table_spec(
            name,
            group=groups.RANKS,
            deps=[
                raw_traces,
                *(dg.AssetDep(table, partition_mapping=ranks_of_iteration) for table in TOPOLOGY_TABLES),
                classification_rules,
            ],
            condition=RANKS_NEEDED,
            skippable=True,
        )
        for name in (*RANK_TABLES, *EXTRA_TABLES)
    ],
    partitions_def=rank_trace_partitions,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool="rank_workers",
    check_specs=[
        dg.AssetCheckSpec(INVARIANTS, asset="overlap", description="hidden, exposed, busy and idle add up."),
        dg.AssetCheckSpec(INVARIANTS, asset="microbatches", description="hidden, exposed, busy and idle add up."),
        dg.AssetCheckSpec(COVERAGE, asset="kernels", description="Under 1 % of kernel time has no category."),
    ],
)
@told_in_a_line
def rank_tables(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.AssetCheckResult]:
    """Analyse every rank of the run's partitions that has a file.

    A rank without a file is left unmaterialised. No output is yielded: each rank is recorded by an event of its own, so
    that it keeps its own data version, and what was done before a crash stays done. Of a table that a trace of its
    format does not have (NVTX ranges of a PyTorch trace), the event says so: a backfill of the rank is then complete.
    """
    lake, rules = traceviz.lake(), traceviz.load_rules()
    outcomes: list[RankOutcome] = []
    for key, ranks in ranks_by_iteration(context.partition_keys).items():
        outcomes += _analyse_iteration(context, lake, traceviz.workers, rules, key, ranks)
    refresh_catalogue(context, lake)
    yield from _check_results(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    if failed:
        raise dg.Failure(
            description=f"{len(failed)} of {len(outcomes)} ranks failed; the others are recorded. {failed[0].fault}",
            metadata={RANKS_TOLD: dg.MetadataValue.json({str(outcome.rank): outcome.fault for outcome in failed})},
            allow_retries=False,
        )


def _analyse_iteration(
    context: dg.AssetExecutionContext, lake: Lake, workers: int, rules: Rules, key: str, ranks: Sequence[str]
) -> list[RankOutcome]:
    run, iteration = parse_iteration_key(key)
    inputs = registered(lake.home, key)
    wanted = {parse_rank_key(rank) for rank in ranks}
    topology, topology_version = stored_topology(lake, run, iteration)
    states = rank_states(context.instance, lake, inputs, topology_version, rules.digest)
    if _only_stale(context):
        wanted &= {entry.rank for entry in stale_ranks(states)}
    before = {state.entry.rank: state for state in states if state.entry.rank in wanted}
    # What is gone cannot be made anew: its tables stay, whatever of them is still current.
    outcomes = [_kept(state) for state in before.values() if state.is_whole and state.is_gone]
    traces = rank_traces(inputs, wanted - {outcome.rank for outcome in outcomes})
    task = IterationTask(lake.home, run, iteration, topology, rules)
    read = {"topology": topology_version, "classification_rules": rules.digest}
    made_of = input_tags(context.instance, rank_tables, LAST_RECORDED, read)
    for outcome in analyse_ranks(task, traces, workers or None):
        outcomes.append(outcome)
        _record(
            context,
            lake,
            inputs,
            outcome,
            {
                **made_of,
                RULES_TAG: rules.digest,
            },
        )
        context.log.info(
            "%s rank %d: %s in %.1f s (%d of %d)",
            key,
            outcome.rank,
            outcome.fault or "read",
            outcome.seconds,
            len(outcomes),
            len(before),
        )
    _mark(context, lake, inputs, outcomes, before)
    return outcomes


def _kept(state: RankState) -> RankOutcome:
    fault = f"{state.entry.path}: the trace is gone; its earlier tables are kept"
    return RankOutcome(state.entry.rank, {}, {}, fault, failed=True, kept=True)


def _mark(
    context: dg.AssetExecutionContext,
    lake: Lake,
    inputs: IterationInputs,
    outcomes: Sequence[RankOutcome],
    before: Mapping[int, RankState],
) -> None:
    """Mark what is kept of ranks that failed, and what was made of the tables that are others now."""
    run, iteration = inputs.run, inputs.iteration
    unmark(lake, run, iteration, StaleStage.RANKS, {outcome.rank for outcome in outcomes if not outcome.kept})
    kept = [mark_of(before[outcome.rank], outcome.fault or "") for outcome in outcomes if outcome.kept]
    mark_stale(lake, run, iteration, kept)
    made, failed = ([one.rank for one in outcomes if one.failed is failed] for failed in (False, True))
    told = [f"{ranks_in_words(made)} made anew since"] if made else []
    told += [f"{ranks_in_words(failed)} could not be made anew"] if failed else []
    mark_aggregates(context.instance, lake, inputs, StaleCause.OUTDATED, "; ".join(told))


def _only_stale(context: dg.AssetExecutionContext) -> bool:
    """Automation asks for what is stale; another try, of the step or the run, goes on where the first one ended."""
    return context.run.tags.get(ONLY_STALE_TAG) == "true" or bool(context.run.parent_run_id) or context.retry_number > 0


def _record(
    context: dg.AssetExecutionContext,
    lake: Lake,
    inputs: IterationInputs,
    outcome: RankOutcome,
    versions: dict[str, str],
) -> None:
    """One materialization a table: its own data version, and the versions of what it was made from.

    The rank is done with the last of them.
    """
    if not outcome.tables:
        return
    partition = rank_trace_key(inputs.key, rank_key(outcome.rank))
    source = inputs.rank(outcome.rank)
    version = source.version if source else ""
    if source and source.digest:
        # What was read is recorded, not what was registered: the file may have changed in between.
        version = str(outcome.facts.get("digest") or version)
    digests = {name: table.digest for name, table in outcome.tables.items()}
    files = file_tags(lake, digests, inputs.run, inputs.iteration, outcome.rank)
    made = []
    for name in EXTRA_TABLES:
        if name not in outcome.tables:
            tags = {DATA_VERSION_TAG: NO_ROWS, CODE_VERSION_TAG: CODE_VERSION, **versions}
            told = {"dagster/row_count": dg.MetadataValue.int(0), "none": dg.MetadataValue.text(NONE_TOLD)}
            made.append(dg.AssetMaterialization(name, partition=str(partition), metadata=told, tags=tags))
    for name, table in sorted(outcome.tables.items(), key=lambda item: item[0] == LAST_RECORDED):
        path = lake.path(name, run=inputs.run, iteration=inputs.iteration, rank=outcome.rank)
        metadata = written_metadata(table.rows, table.bytes, path.as_uri())
        if len(context.partition_keys) <= MOST_RANKS:
            metadata |= preview_of_file(path)
        if name == "traces":
            metadata |= {
                column: value for column, value in outcome.facts.items() if isinstance(value, int | str | bool)
            }
        made.append(
            dg.AssetMaterialization(
                asset_key=name,
                partition=str(partition),
                metadata=metadata,
                tags={
                    DATA_VERSION_TAG: table.digest,
                    CODE_VERSION_TAG: CODE_VERSION,
                    **versions,
                    f"{INPUT_VERSION_TAG}raw_traces": version,
                    **files,
                },
            )
        )
    log_together(context, made)


def _check_results(outcomes: Sequence[RankOutcome]) -> Iterator[dg.AssetCheckResult]:
    for asset in ("overlap", "microbatches"):
        broken = {str(outcome.rank): outcome.violations[asset] for outcome in outcomes if outcome.violations.get(asset)}
        yield dg.AssetCheckResult(
            passed=not broken,
            check_name=INVARIANTS,
            asset_key=asset,
            metadata={"violations_by_rank": dg.MetadataValue.json(broken), "ranks": len(outcomes)},
        )
    total = sum(_nanoseconds(outcome, "kernel_ns") for outcome in outcomes)
    classified = sum(_nanoseconds(outcome, "classified_ns") for outcome in outcomes)
    unclassified = 1 - classified / total if total else 0.0
    yield dg.AssetCheckResult(
        passed=unclassified < UNCLASSIFIED_LIMIT,
        check_name=COVERAGE,
        asset_key="kernels",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"unclassified_share": dg.MetadataValue.float(unclassified)},
    )


def _nanoseconds(outcome: RankOutcome, column: str) -> int:
    value = outcome.facts.get(column)
    return value if isinstance(value, int) else 0
