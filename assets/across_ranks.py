"""Tables across the ranks of one iteration: communications, clocks, pipelines, periods; and the gate on them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets import groups
from assets.automation import ITERATION_NEEDED
from assets.conventions import INVARIANTS, PAIRS_VARIABLE, served_page, table_spec, written_metadata
from assets.figure_metadata import pictures_of
from assets.lineage.columns import columns_made_of
from assets.lineage.recorded_files import file_tags
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.plotted import plotted
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.staleness import MADE_OF_TAG, made_of, unmark_where_current
from assets.step_faults import refresh_catalogue, told_in_a_line
from assets.steps import READS, lead_of
from traceviz_dag.analyze.across_invariants import collectives_violations, periods_violations, pipelines_violations
from traceviz_dag.analyze.invariants import INVARIANT
from traceviz_dag.analyze.pipelines.period_summary import PairVerdict, judge_pairs, period_summary
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import registered
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.across_ranks import ACROSS_RANKS_TABLES, StoredIteration, analyse_across_ranks, named_periods
from traceviz_dag.pipeline.findings import iteration_findings
from traceviz_dag.pipeline.memory import mark_mismatched, set_aside_unreadable
from traceviz_dag.read.pairs_file import read_pairs_file
from traceviz_dag.tables import FINDINGS, PERIOD_PERCENTILES

MATCHED, SOLVED, GATE = "communications_matched", "clocks_solved", "overlap_score_gate"

MATCHED_LIMIT = 0.99
"""Share of communication kernels below which the check on matching warns."""

_DEPS = [table_of_iteration(name) for name in READS["late_ranks"]]

_CHECKS = (
    ("collectives", INVARIANTS, "Waits, transfers and their parts add up."),
    ("collectives", MATCHED, "Nearly all communication kernels are matched with those of their peers."),
    ("rank_clocks", SOLVED, "Every rank's clock could be solved."),
    ("pipelines", INVARIANTS, "The parts of each bubble and of each idle time add up."),
    ("periods", INVARIANTS, "Periods, busy times and derived overlap agree."),
    ("periods", GATE, "Each pair that the pairs file names has its OverlapScore."),
)


class PairsConfig(dg.Config):
    """Which pairs the gate judges, and over which ranks.

    Attributes:
        pairs: TOML file that names them; empty takes TRACEVIZ_PAIRS, else there are none.
        with_partial: count ranks that were read in part; by default they are left out.
    """

    pairs: str = ""
    with_partial: bool = False

    @property
    def file(self) -> Path | None:
        """The file, if any."""
        path = self.pairs or os.environ.get(PAIRS_VARIABLE, "")
        return Path(path) if path else None


@dataclass(frozen=True, slots=True)
class _Judged:
    """The named pairs of an iteration.

    Attributes:
        periods: their rows, without any where ``fault`` says what is wrong with the files that name them.
    """

    periods: pa.Table
    verdicts: list[PairVerdict]
    fault: str = ""


_MEMORY_DEPS = [*_DEPS, dg.AssetDep(lead_of("memory_peaks"))]
"""Findings ask the tables of snapshots, where there are any; the lead waits for them."""


@dg.multi_asset(
    name="across_ranks",
    specs=[
        table_spec(
            name,
            group=groups.ACROSS_RANKS,
            deps=_MEMORY_DEPS if name in (FINDINGS.name, lead_of(FINDINGS.name)) else _DEPS,
            condition=ITERATION_NEEDED,
        )
        for name in ACROSS_RANKS_TABLES
    ],
    partitions_def=iteration_partitions,
    check_specs=[dg.AssetCheckSpec(check, asset=asset, description=text) for asset, check, text in _CHECKS],
)
@told_in_a_line
def across_ranks_assets(
    context: dg.AssetExecutionContext, config: PairsConfig, traceviz: TracevizHome
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """Match, align, charge, replay and pair the ranks of the iteration that were read whole.

    A rank that is missing is a missing member of its communications, and its pipeline has no bubble: both are counted
    and said in the rows, so no rank is waited for.
    """
    run, iteration = one_iteration(context)
    lake = traceviz.lake()
    version = made_of(context.instance, lake, run, iteration, FINDINGS.name)
    inputs = registered(traceviz.folder, context.partition_key)
    unreadable = set_aside_unreadable(lake, inputs)
    if unreadable:
        context.log.warning(
            "tables of memory of ranks %s cannot be read, and their snapshots are gone: set aside in the lake",
            unreadable,
        )
    for rank, why in mark_mismatched(lake, inputs).items():
        context.log.warning("the snapshot of rank %d is not taken: %s", rank, why)
    stored = StoredIteration(lake, run, iteration, inputs, config.with_partial)
    if not lake.partitions("kernels", run, iteration):
        raise dg.Failure(description=f"no rank of {context.partition_key} has tables", allow_retries=False)
    tables = dict(analyse_across_ranks(stored))
    judged = _named_pairs(config, stored, tables["periods"])
    tables["periods"] = pa.concat_tables([tables["periods"], judged.periods])
    tables["period_percentiles"] = PERIOD_PERCENTILES.from_rows(period_summary(tables["periods"]))
    for name, table in tables.items():
        yield _written(lake, name, table, (run, iteration), version)
    # Rules ask the tables as they are in the lake, as anybody can.
    yield _written(lake, FINDINGS.name, iteration_findings(lake, run, iteration), (run, iteration), version)
    unmark_where_current(context.instance, lake, inputs)
    refresh_catalogue(context, lake)
    yield from _invariants(tables)
    yield _matched(tables["collectives"])
    yield _solved(tables["rank_clocks"])
    yield _gate(judged)


def _written(lake: Lake, name: str, table: pa.Table, place: tuple[str, int], version: str) -> dg.MaterializeResult:
    run, iteration = place
    written = lake.write(name, table, run=run, iteration=iteration)
    return dg.MaterializeResult(
        asset_key=name,
        metadata={
            **written_metadata(written.rows, written.bytes, Path(written.path).as_uri()),
            **plotted(name, table),
            **columns_made_of(name),
            **preview(table),
            **pictures_of(name, run, iteration),
            **served_page(run, iteration),
        },
        data_version=dg.DataVersion(written.digest),
        tags={
            MADE_OF_TAG: version,
            **file_tags(lake, {name: written.digest}, run, iteration),
        },
    )


def _named_pairs(config: PairsConfig, stored: StoredIteration, periods: pa.Table) -> _Judged:
    """A fault of the files that name pairs is the gate's, and costs no other table."""
    try:
        pairs = read_pairs_file(config.file) if config.file is not None else ()
        named = named_periods(stored, pairs, periods)
    except BadInputError as error:
        return _Judged(periods.slice(0, 0), [], str(error))
    return _Judged(named, judge_pairs(pairs, named))


def _invariants(tables: Mapping[str, pa.Table]) -> Iterator[dg.AssetCheckResult]:
    rules = {"collectives": collectives_violations, "pipelines": pipelines_violations, "periods": periods_violations}
    for asset, violations in rules.items():
        broken = violations(tables[asset])
        yield dg.AssetCheckResult(
            passed=broken.num_rows == 0,
            check_name=INVARIANTS,
            asset_key=asset,
            metadata={
                "violations": broken.num_rows,
                "rules": dg.MetadataValue.json(sorted(set(broken[INVARIANT].to_pylist()))),
            },
        )


def _matched(collectives: pa.Table) -> dg.AssetCheckResult:
    faults = collectives["fault"].cast(pa.string())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(faults.drop_null()).to_pylist()}
    share = 1 - sum(counts.values()) / collectives.num_rows if collectives.num_rows else 1.0
    return dg.AssetCheckResult(
        passed=share >= MATCHED_LIMIT,
        check_name=MATCHED,
        asset_key="collectives",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"matched_share": dg.MetadataValue.float(share), "faults": dg.MetadataValue.json(counts)},
    )


def _solved(rank_clocks: pa.Table) -> dg.AssetCheckResult:
    rows = rank_clocks.select(["rank", "refusal"]).to_pylist()
    refusals = {str(row["rank"]): row["refusal"] for row in rows if row["refusal"] is not None}
    return dg.AssetCheckResult(
        passed=not refusals,
        check_name=SOLVED,
        asset_key="rank_clocks",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"refusals": dg.MetadataValue.json(refusals), "ranks": rank_clocks.num_rows},
    )


def _gate(judged: _Judged) -> dg.AssetCheckResult:
    """Pairs that cannot be judged, or over fewer than all their ranks, do not fail the gate; they are named."""
    failed = [one for one in judged.verdicts if one.passed is False]
    unjudged = [one for one in judged.verdicts if one.passed is None]
    fewer = [one for one in judged.verdicts if one.over_fewer_ranks]
    below = [f"{one.pair}: OverlapScore {one.score:.2f} is below {one.threshold:.2f}" for one in failed]
    told = below or [f"{len(judged.verdicts) - len(unjudged)} named pairs judged, none below its threshold"]
    told += [f"{one.pair} is not judged: {one.refusal}" for one in unjudged]
    told += [f"{one.pair} is judged over fewer than all its ranks: {one.refusal}" for one in fewer]
    return dg.AssetCheckResult(
        passed=not failed and not judged.fault,
        check_name=GATE,
        asset_key="periods",
        description=judged.fault or "; ".join(told),
        metadata={
            "pairs": dg.MetadataValue.json([verdict._asdict() for verdict in judged.verdicts]),
            "not_judged": dg.MetadataValue.json([one.pair for one in unjudged]),
            "over_fewer_ranks": dg.MetadataValue.json([one.pair for one in fewer]),
        },
    )
