"""The nightly gate: every night that was not judged yet, against those before it in its series."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets import groups
from assets.conventions import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    ONLY_STALE_TAG,
    table_spec,
    written_metadata,
)
from assets.figure_metadata import picture
from assets.partitions import iteration_partitions
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.step_faults import told_in_a_line
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.baselines import Baseline, SetBy
from traceviz_dag.pipeline.nights.decisions import decide
from traceviz_dag.pipeline.nights.judging import judge_series, write_night
from traceviz_dag.pipeline.nights.samples import named_night
from traceviz_dag.pipeline.nights.series import NIGHT_TABLES, series_of
from traceviz_dag.pipeline.nights.trend import SERIES_FIGURE, trends, write_trend
from traceviz_dag.pipeline.staleness import code_version_of
from traceviz_dag.tables import NIGHTS

GATE = "gate"


class NightlyConfig(dg.Config):
    """What somebody decides by hand.

    Attributes:
        accept: keys of iterations, as job-7@120, that are accepted whatever they are: a slower step is wanted.
    """

    accept: list[str] = Field(default_factory=list)


@dg.multi_asset(
    name="nightly_gate",
    specs=[
        table_spec(
            name,
            group=groups.NIGHTLY,
            deps=[dg.AssetDep(one, partition_mapping=dg.AllPartitionMapping()) for one in ("iterations", "periods")],
            skippable=True,
        )
        for name in NIGHT_TABLES
    ],
    partitions_def=iteration_partitions,
    backfill_policy=dg.BackfillPolicy.single_run(),
    check_specs=[
        dg.AssetCheckSpec(
            GATE,
            asset="nights",
            blocking=True,
            description="No judged night is slower, or more exposed, than allowed, and no change for the worse is "
            "confirmed; what an earlier night raised is not raised again. A failure fails the run.",
        )
    ],
)
@told_in_a_line
def nightly_gate(
    context: dg.AssetExecutionContext, config: NightlyConfig, traceviz: TracevizHome
) -> Iterator[dg.AssetCheckResult]:
    """Judge what is new of the run's partitions, in the order of the series; a verdict decides what the next one is
    compared with.

    No output is yielded, as in ``rank_tables``: each verdict is recorded by events of its own, and an iteration without
    measures has none. An iteration that is judged already keeps its verdict; the night does not record it again.
    """
    settings = traceviz.settings().nightly
    lake = traceviz.lake()
    known = {iteration_key(one.run, one.iteration) for one in lake.partitions("iterations")}
    if unknown := sorted(set(config.accept) - known):
        raise UsageError(
            f"accept: this home has no measures of {', '.join(unknown)}; traceviz iterations lists what it has"
        )
    for key in config.accept:
        decide(lake, settings, Baseline(*parse_iteration_key(key), SetBy.ACCEPTED))
    wanted = {*context.partition_keys, *config.accept}
    nights = []
    for series in series_of(lake, settings):
        judged = judge_series(lake, series, settings, wanted)
        for night in judged:
            write_night(lake, night)
        nights += judged
    drawn = set()
    if nights:
        lake.refresh_catalogue()
        names = {night.series.name for night in nights if night.series.is_steady}
        shown = (one for one in trends(lake, settings) if one.series.is_steady and one.series.name in names)
        drawn = {write_trend(lake.home, one) for one in shown}
    by_name = {named_night(night.partitions): night for night in nights}
    for key, night in by_name.items():
        context.log.info("%s: %s", key, "; ".join(night.statements))
    of_nights = {iteration_key(one.run, one.iteration) for night in nights for one in night.partitions}
    for key in sorted(of_nights if context.run.tags.get(ONLY_STALE_TAG) == "true" else wanted | of_nights):
        for event in _events(lake, key, is_drawn=Partition(*parse_iteration_key(key)) in drawn):
            context.log_event(event)
    failed = {key: "; ".join(night.statements) for key, night in by_name.items() if night.fails}
    known_worse = {key: night.verdict.statement for key, night in by_name.items() if night.verdict.known}
    undecided = {key: night.verdict.statement for key, night in by_name.items() if night.verdict.accepted is None}
    changes = [change.statement for night in nights for change in night.changes]
    shorter = [change.statement for night in nights if not night.fails for change in night.changes]
    yield dg.AssetCheckResult(
        passed=not failed,
        check_name=GATE,
        asset_key="nights",
        metadata={
            "judged": len(nights),
            "rejected": dg.MetadataValue.json(failed),
            "worse_as_before": dg.MetadataValue.json(known_worse),
            "inconclusive": dg.MetadataValue.json(undecided),
            "confirmed_changes": dg.MetadataValue.json(changes),
        },
        description="; ".join([*failed.values(), *known_worse.values(), *shorter, *undecided.values()])
        or f"{len(nights)} judged, none worse",
    )


def _events(lake: Lake, key: str, *, is_drawn: bool) -> Iterator[dg.AssetMaterialization]:
    """What an iteration's verdict is and rests on; nothing where it has none.

    Args:
        is_drawn: whether the figure of its series was drawn into its figures.
    """
    run, iteration = parse_iteration_key(key)
    if not lake.exists(NIGHTS.name, run=run, iteration=iteration):
        return
    [night] = lake.table(NIGHTS.name, run, iteration).arrow(["accepted", "verdict", "statement"]).to_pylist()
    for name in NIGHT_TABLES:
        path, rows = lake.path(name, run=run, iteration=iteration), lake.table(name, run, iteration).arrow()
        digest = digest_of(path)
        yield dg.AssetMaterialization(
            name,
            partition=key,
            metadata={
                **written_metadata(rows.num_rows, path.stat().st_size, path.as_uri()),
                **preview(rows),
                "accepted": "inconclusive" if night["accepted"] is None else night["accepted"],
                **({"verdict": night["verdict"]} if night["verdict"] else {}),
                "statement": night["statement"],
                **({SERIES_FIGURE: picture(run, iteration, SERIES_FIGURE)} if is_drawn and name == NIGHTS.name else {}),
            },
            tags={
                DATA_VERSION_TAG: digest,
                CODE_VERSION_TAG: code_version_of(name),
            },
        )
