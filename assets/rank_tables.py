"""One fan-out step from trace files to per-rank tables: ranks run side by side, each recorded as it finishes."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import dagster as dg
import pyarrow.parquet as pq

from assets import groups
from assets.automation import RANKS_NEEDED
from assets.conventions import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_VERSION_TAG,
    INVARIANTS,
    only_stale,
    table_spec,
    written_metadata,
)
from assets.lineage.provenance import input_tags, latest_tags
from assets.partitions import rank_trace_key, rank_trace_partitions, ranks_by_iteration, ranks_of_iteration
from assets.raw_traces import classification_rules, raw_traces
from assets.resources import TracevizHome
from assets.row_previews import MOST_RANKS, preview_of_file
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.lake.inputs import IterationInputs, of_the_same_files, registered
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import parse_rank_key, rank_key
from traceviz_dag.lake.record_lines import GONE
from traceviz_dag.pipeline.engines import Engine
from traceviz_dag.pipeline.iteration import violations_of_ranks
from traceviz_dag.pipeline.making import make_ranks
from traceviz_dag.pipeline.staleness import LAST_WRITTEN, code_version_of
from traceviz_dag.pipeline.stored_topology import stored_topology
from traceviz_dag.pipeline.workers import RankOutcome
from traceviz_dag.tables import EXTRA_TABLES, RANK_TABLES, TOPOLOGY_TABLES

COVERAGE = "coverage"
NO_ROWS = "none"
"""Data version of a table that traces of the rank's format do not have; there is no file of it."""
NONE_TOLD = "Traces of this format have no such rows."

_CHECKED = ("overlap", "microbatches")
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
    with traceviz.engine(context.log.info) as engine:
        outcomes = list(_made(context, traceviz, engine))
    refresh_catalogue(context, traceviz.lake())
    yield from _check_results(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    if failed:
        raise dg.Failure(
            description=f"{len(failed)} of {len(outcomes)} ranks failed; the others are recorded. {failed[0].fault}",
            metadata={"failed": dg.MetadataValue.json({str(outcome.rank): outcome.fault for outcome in failed})},
            allow_retries=False,
        )


def _made(context: dg.AssetExecutionContext, traceviz: TracevizHome, engine: Engine | None) -> Iterator[RankOutcome]:
    """Outcomes of the run's partitions, each recorded when it is there."""
    lake, rules = traceviz.lake(), traceviz.load_rules()
    stale = only_stale(context)
    for key, ranks in ranks_by_iteration(context.partition_keys).items():
        inputs, wanted = registered(lake.home, key), {parse_rank_key(rank) for rank in ranks}
        _, topology_version = stored_topology(lake, inputs.run, inputs.iteration)
        read = {"topology": topology_version, "classification_rules": rules.digest}
        made_of = input_tags(context.instance, rank_tables, LAST_WRITTEN, read)
        # A file that holds several iterations is read once; what was asked for anew is made anew, each for itself.
        beside = of_the_same_files(lake.home, inputs) if stale else ()
        current = {entry.rank for entry in inputs.ranks if entry.rank in wanted} if stale else set()
        outcomes = make_ranks(lake, inputs, rules, traceviz.workers, wanted, stale, beside=beside, engine=engine)
        for outcome in outcomes:
            current.discard(outcome.rank)
            for event in rank_events(lake, inputs, outcome.rank, made_of) if outcome.tables else ():
                context.log_event(event)
            context.log.info("%s rank %d: %s in %.1f s", key, outcome.rank, outcome.fault or "read", outcome.seconds)
            yield outcome
        untold = unknown_ranks(context.instance, lake, inputs, current)
        for rank in untold:
            for event in rank_events(lake, inputs, rank, made_of):
                context.log_event(event)
        yield from _stored(lake, inputs, untold) if untold else ()


def unknown_ranks(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, among: Collection[int]
) -> list[int]:
    """Ranks whose tables in the lake are not those that Dagster knows."""
    keys = {str(rank_trace_key(inputs.key, rank_key(rank))): rank for rank in sorted(among)}
    known = latest_tags(instance, LAST_WRITTEN, list(keys))
    found = []
    for key, rank in keys.items():
        content = lake.content(LAST_WRITTEN, run=inputs.run, iteration=inputs.iteration, rank=rank)
        if content is not None and content.computed not in (GONE, known.get(key, {}).get(DATA_VERSION_TAG)):
            found.append(rank)
    return found


def rank_events(
    lake: Lake, inputs: IterationInputs, rank: int, made_of: Mapping[str, str]
) -> list[dg.AssetMaterialization]:
    """One materialization for each table of a rank: its own data version, and the versions of what it was made from.

    Args:
        made_of: the tags of what they depend on.
    """
    partition = str(rank_trace_key(inputs.key, rank_key(rank)))
    row = lake.table("traces", inputs.run, inputs.iteration, rank).arrow().to_pylist()[0]
    source = inputs.rank(rank)
    version = source.version if source else ""
    if source and source.digest:
        # What was read is recorded, not what was registered: the file may have changed in between.
        version = str(row.get("digest") or version)
    tags = {CODE_VERSION_TAG: code_version_of(LAST_WRITTEN), **made_of, f"{INPUT_VERSION_TAG}raw_traces": version}
    made = []
    for name in (*EXTRA_TABLES, *RANK_TABLES):
        path = lake.path(name, run=inputs.run, iteration=inputs.iteration, rank=rank)
        content = lake.content(name, run=inputs.run, iteration=inputs.iteration, rank=rank)
        if not path.is_file() or content is None:
            # A table that traces of its format do not have.
            told = {"dagster/row_count": dg.MetadataValue.int(0), "none": dg.MetadataValue.text(NONE_TOLD)}
            of_none = {**tags, DATA_VERSION_TAG: NO_ROWS}
            made.append(dg.AssetMaterialization(name, partition=partition, metadata=told, tags=of_none))
            continue
        metadata = written_metadata(pq.read_metadata(path).num_rows, path.stat().st_size, path.as_uri())
        if len(inputs.ranks) <= MOST_RANKS:
            metadata |= preview_of_file(path)
        if name == "traces":
            metadata |= {column: value for column, value in row.items() if isinstance(value, int | str | bool)}
        of_table = {**tags, DATA_VERSION_TAG: content.computed}
        made.append(dg.AssetMaterialization(name, partition=partition, metadata=metadata, tags=of_table))
    # The rank is done with the last of them.
    return sorted(made, key=lambda one: one.asset_key.to_user_string() == LAST_WRITTEN)


def _check_results(outcomes: Sequence[RankOutcome]) -> Iterator[dg.AssetCheckResult]:
    yield from _invariants({outcome.rank: outcome.violations for outcome in outcomes})
    yield _coverage([outcome.facts for outcome in outcomes])


def checks_of_ranks(lake: Lake, inputs: IterationInputs) -> Iterator[dg.AssetCheckResult]:
    """The same of all ranks of an iteration, from their tables."""
    place = (inputs.run, inputs.iteration)
    # Where none is, all that are there are stale, and counted nowhere.
    if lake.partitions("traces", *place):
        ranks = sorted(part.rank for part in lake.partitions(LAST_WRITTEN, *place) if part.rank is not None)
        yield from _check_results(_stored(lake, inputs, ranks))


def _stored(lake: Lake, inputs: IterationInputs, ranks: Sequence[int]) -> list[RankOutcome]:
    """How ranks ended that were made elsewhere, as far as checks ask."""
    place = (inputs.run, inputs.iteration)
    columns = ["rank", "kernel_ns", "classified_ns"]
    facts = {row["rank"]: row for row in lake.table("traces", *place).arrow(columns).to_pylist()}
    broken = {asset: dict(violations_of_ranks(lake, *place, asset)) for asset in _CHECKED}
    return [
        RankOutcome(rank, {}, facts.get(rank, {}), violations={name: broken[name].get(rank, []) for name in _CHECKED})
        for rank in ranks
    ]


def _invariants(violations: Mapping[int, Mapping[str, list[str]]]) -> Iterator[dg.AssetCheckResult]:
    """Args: violations: rank → table → names of the invariants that its rows break."""
    for asset in _CHECKED:
        broken = {str(rank): found[asset] for rank, found in violations.items() if found.get(asset)}
        yield dg.AssetCheckResult(
            passed=not broken,
            check_name=INVARIANTS,
            asset_key=asset,
            metadata={"violations_by_rank": dg.MetadataValue.json(broken), "ranks": len(violations)},
        )


def _coverage(facts: Sequence[Mapping[str, object]]) -> dg.AssetCheckResult:
    total = sum(_nanoseconds(one, "kernel_ns") for one in facts)
    classified = sum(_nanoseconds(one, "classified_ns") for one in facts)
    unclassified = 1 - classified / total if total else 0.0
    return dg.AssetCheckResult(
        passed=unclassified < UNCLASSIFIED_LIMIT,
        check_name=COVERAGE,
        asset_key="kernels",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"unclassified_share": dg.MetadataValue.float(unclassified)},
    )


def _nanoseconds(facts: Mapping[str, object], column: str) -> int:
    value = facts.get(column)
    return value if isinstance(value, int) else 0
