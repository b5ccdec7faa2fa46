"""Tables across the ranks of one iteration: communications, clocks, pipelines, periods; and the gate on them."""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets import groups
from assets.automation import ITERATION_NEEDED
from assets.conventions import INVARIANTS, only_stale, table_spec
from assets.events import written_table
from assets.iteration_tables import PartialConfig
from assets.partitions import iteration_partitions, one_iteration, table_of_iteration
from assets.resources import TracevizHome
from assets.step_faults import refresh_catalogue, told_in_a_line
from traceviz_dag.analyze.across_invariants import collectives_violations, periods_violations, pipelines_violations
from traceviz_dag.analyze.invariants import INVARIANT
from traceviz_dag.analyze.pipelines.period_summary import PairVerdict
from traceviz_dag.lake.inputs import registered
from traceviz_dag.pipeline.making import make_across_ranks, pairs_file
from traceviz_dag.pipeline.steps import READS, lead_of
from traceviz_dag.tables import ACROSS_RANKS_TABLES, FINDINGS

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


class PairsConfig(PartialConfig):
    """Which pairs the gate judges, and over which ranks.

    Attributes:
        pairs: TOML file that names them; empty takes TRACEVIZ_PAIRS, else there are none.
    """

    pairs: str = ""


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

    A rank that never was read is a missing member of its communications, and its pipeline has no bubble: both are
    counted and said in the rows. Without ``allow_partial`` it fails while tables of a rank are stale: the tables across
    ranks that are there show more.
    """
    run, iteration = one_iteration(context)
    lake, inputs = traceviz.lake(), registered(traceviz.folder, context.partition_key)
    with traceviz.engine(context.log.info) as engine:
        found = make_across_ranks(
            lake,
            inputs,
            pairs=pairs_file(config.pairs),
            allow_partial=config.allow_partial,
            with_partial=config.with_partial,
            only_stale=only_stale(context),
            workers=traceviz.workers or None,
            engine=engine,
        )
    for line in found.warnings:
        context.log.warning("%s", line)
    for name, made in found.tables.items():
        yield written_table(name, made, run, iteration)
    refresh_catalogue(context, lake)
    yield from checks_across_ranks({name: made.rows for name, made in found.tables.items()})
    yield gate(found.verdicts, found.pairs_fault)


def checks_across_ranks(tables: Mapping[str, pa.Table]) -> Iterator[dg.AssetCheckResult]:
    """The checks that the tables themselves answer."""
    yield from _invariants(tables)
    yield _matched(tables["collectives"])
    yield _solved(tables["rank_clocks"])


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


def gate(verdicts: Sequence[PairVerdict], fault: str = "") -> dg.AssetCheckResult:
    """Pairs that cannot be judged, or over fewer than all their ranks, do not fail the gate; they are named."""
    failed = [one for one in verdicts if one.passed is False]
    unjudged = [one for one in verdicts if one.passed is None]
    fewer = [one for one in verdicts if one.over_fewer_ranks]
    below = [f"{one.pair}: OverlapScore {one.score:.2f} is below {one.threshold:.2f}" for one in failed]
    told = below or [f"{len(verdicts) - len(unjudged)} named pairs judged, none below its threshold"]
    told += [f"{one.pair} is not judged: {one.refusal}" for one in unjudged]
    told += [f"{one.pair} is judged over fewer than all its ranks: {one.refusal}" for one in fewer]
    return dg.AssetCheckResult(
        passed=not failed and not fault,
        check_name=GATE,
        asset_key="periods",
        description=fault or "; ".join(told),
        metadata={
            "pairs": dg.MetadataValue.json([verdict._asdict() for verdict in verdicts]),
            "not_judged": dg.MetadataValue.json([one.pair for one in unjudged]),
            "over_fewer_ranks": dg.MetadataValue.json([one.pair for one in fewer]),
        },
    )
