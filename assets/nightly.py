"""The nightly gate: every iteration that was not judged yet, against the last accepted one of its series."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from assets import groups
from assets.conventions import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    ONLY_STALE_TAG,
    table_spec,
    written_metadata,
)
from assets.partitions import iteration_partitions
from assets.resources import TracevizHome
from assets.row_previews import preview
from assets.step_faults import told_in_a_line
from traceviz_dag.analyze.nights import (
    NOT_COMPARED,
    OTHER_RANKS,
    Common,
    Coverage,
    Measures,
    NightVerdict,
    Place,
    begins_anew,
    common_ranks,
    inconclusive,
    judge_nights,
)
from traceviz_dag.analyze.step_parts import step_parts
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.queries import RankMeasures, rank_measures, trace_files
from traceviz_dag.lake.stale import hidden_ranks
from traceviz_dag.pipeline.completeness import ranks_in_words
from traceviz_dag.pipeline.findings import capture_mode
from traceviz_dag.pipeline.home_settings import NightlySettings
from traceviz_dag.pipeline.staleness import code_version_of
from traceviz_dag.tables import NIGHT_DELTAS, NIGHTS, TRACES

GATE = "gate"

_STEPS, _WARM_UP = "", "warm-up"
"""Kinds of iterations; those that nothing numbers are of the kind of what counts them."""

NIGHT_TABLES = ("nights", "night_deltas")

_COORDINATES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp", "stage", "stages")

SCORES_SQL = """
SELECT pair, median(overlap_score) AS score
FROM periods
WHERE run = $run AND iteration = $iteration AND kind = 'named' AND overlap_score IS NOT NULL
GROUP BY pair
"""
"""On named pairs only: what nobody expects to overlap cannot get worse."""


class NightlyConfig(dg.Config):
    """What somebody decides by hand.

    Attributes:
        accept: keys of iterations, as job-7@120, that are accepted whatever they are: a slower step is wanted.
    """

    accept: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A row that ``nights`` has already, as far as later verdicts need it.

    Attributes:
        begins_anew: somebody accepted it although it was worse: what came before is no measure any more.
    """

    accepted: bool | None
    begins_anew: bool
    figures_digest: str


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
            description="No judged iteration is slower, or more exposed, than tolerated. A failure fails the run.",
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
    wanted = {*context.partition_keys, *config.accept}
    verdicts: dict[str, NightVerdict] = {}
    for (series, kind), members in _series(lake, settings).items():
        verdicts |= _judge_series(lake, series, kind, members, settings, wanted, config.accept)
    if verdicts:
        lake.refresh_catalogue()
    for key, verdict in verdicts.items():
        context.log.info("%s: %s", key, verdict.statement)
    recorded = verdicts if context.run.tags.get(ONLY_STALE_TAG) == "true" else wanted
    for key in sorted(recorded):
        for event in _events(lake, key):
            context.log_event(event)
    rejected = {key: verdict.statement for key, verdict in verdicts.items() if verdict.accepted is False}
    undecided = {key: verdict.statement for key, verdict in verdicts.items() if verdict.accepted is None}
    yield dg.AssetCheckResult(
        passed=not rejected,
        check_name=GATE,
        asset_key="nights",
        metadata={
            "judged": len(verdicts),
            "rejected": dg.MetadataValue.json(rejected),
            "inconclusive": dg.MetadataValue.json(undecided),
        },
        description="; ".join([*rejected.values(), *undecided.values()]) or f"{len(verdicts)} judged, none worse",
    )


def _events(lake: Lake, key: str) -> Iterator[dg.AssetMaterialization]:
    """What an iteration's verdict is and rests on; nothing where it has none."""
    run, iteration = parse_iteration_key(key)
    if not lake.exists(NIGHTS.name, run=run, iteration=iteration):
        return
    [night] = lake.table(NIGHTS.name, run, iteration).arrow(["accepted", "statement"]).to_pylist()
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
                "statement": night["statement"],
            },
            tags={
                DATA_VERSION_TAG: digest,
                CODE_VERSION_TAG: code_version_of(name),
            },
        )


def unjudged(lake: Lake) -> list[Partition]:
    """Iterations that have measures and no verdict, or were computed again since."""
    judged = _judged(lake)
    return [
        partition for partition in lake.partitions("iterations") if _needs_verdict(lake, partition, judged, accept=())
    ]


def references(lake: Lake, settings: NightlySettings) -> set[str]:
    """Keys of the iterations that the next ones are compared with: the last accepted one of each series."""
    judged = _judged(lake)
    last = {
        series: partition
        for series, members in _series(lake, settings).items()
        for partition in members
        if partition in judged and judged[partition].accepted
    }
    return {iteration_key(partition.run, partition.iteration) for partition in last.values()}


@dataclass(frozen=True, slots=True)
class _Night:
    """What of an iteration can be compared.

    Attributes:
        ranks: rank → its measures.
    """

    partition: Partition
    ranks: Mapping[int, RankMeasures]
    coverage: Coverage

    @property
    def name(self) -> str:
        return iteration_key(self.partition.run, self.partition.iteration)

    def step_ns(self, ranks: Collection[int]) -> int:
        """The longest step of some of its ranks."""
        return max(self.ranks[rank]["step_ns"] for rank in ranks)


def _night(lake: Lake, partition: Partition) -> _Night | None:
    """What an iteration measures, of the ranks that its row of ``iterations`` covers; None where no step is."""
    run, iteration = partition.run, partition.iteration
    rows = lake.table("iterations", run, iteration).arrow(["covered_ranks", "step_ns"]).to_pylist()
    if not rows or rows[0]["step_ns"] is None:
        return None
    covered = set(rows[0]["covered_ranks"])
    ranks = {one["rank"]: one for one in rank_measures(lake, run, iteration) if one["rank"] in covered}
    if not ranks:
        return None
    layout: dict[int, Place] = {}
    if lake.exists("topology", run=run, iteration=iteration):
        rows = lake.table("topology", run, iteration).arrow(["rank", *_COORDINATES]).to_pylist()
        layout = {row["rank"]: {name: row[name] for name in _COORDINATES if row[name] is not None} for row in rows}
    mode, name = capture_mode(lake, run, iteration), iteration_key(run, iteration)
    places = {rank: layout.get(rank, {}) for rank in ranks}
    return _Night(partition, ranks, Coverage(name, places, trace_files(lake, run, iteration).expected, mode))


def _measures(lake: Lake, night: _Night, ranks: Collection[int], rank: int) -> Measures:
    """What of a night is judged, over some of its ranks, its step taken apart on one of them."""
    partition, step_ns = night.partition, night.step_ns(ranks)
    exposed_ns = round(sum(night.ranks[one]["exposed_ns"] for one in ranks) / len(ranks))
    parts = _rank_parts(lake, partition, rank)
    parts[OTHER_RANKS] = step_ns - sum(parts.values())
    scores: Mapping[str, float] = {}
    if lake.exists("periods", run=partition.run, iteration=partition.iteration):
        found = lake.query_iteration(SCORES_SQL, run=partition.run, iteration=partition.iteration).to_pylist()
        scores = {score["pair"]: score["score"] for score in found}
    return Measures(night.name, step_ns, exposed_ns, parts, scores)


def _rank_parts(lake: Lake, partition: Partition, rank: int) -> dict[str, int]:
    """The longest window of a rank by category; empty where it has none."""
    reader = lake.table("overlap", partition.run, partition.iteration, rank)
    windows = reader.arrow(["device", "window_name", "dimension", "window_start_ns", "window_end_ns"]).to_pylist()
    whole = [row for row in windows if row["dimension"] == "all"]
    steps = [row for row in whole if row["window_name"] == "step"] or whole
    if not steps:
        return {}
    longest = max(steps, key=lambda row: (row["window_end_ns"] - row["window_start_ns"], row["device"]))
    columns = ["device", "start_ns", "duration_ns", "kind", "category"]
    kernels = lake.table("kernels", partition.run, partition.iteration, rank).arrow(columns)
    of_device = pc.equal(kernels["device"].cast(pa.string()), longest["device"])
    return step_parts(kernels.filter(of_device), longest["window_start_ns"], longest["window_end_ns"])


def _judge_series(
    lake: Lake,
    series: str,
    kind: str,
    members: Sequence[Partition],
    settings: NightlySettings,
    wanted: Collection[str],
    accept: Sequence[str],
) -> dict[str, NightVerdict]:
    judged = _judged(lake)
    accepted: list[_Night] = []
    # The last accepted one, where some of its ranks are not counted any more, and why: nothing is held against it.
    lost: tuple[str, str] | None = None
    verdicts: dict[str, NightVerdict] = {}
    for partition in members:
        key = iteration_key(partition.run, partition.iteration)
        night = _night(lake, partition)
        if night is not None and key in wanted and _needs_verdict(lake, partition, judged, accept):
            verdict = _judge(lake, series, kind, night, accepted, settings, lost, by_hand=key in accept)
            verdicts[key] = verdict
            is_accepted, is_first = verdict.accepted, bool(verdict.accepted and verdict.worse)
        elif partition in judged:
            is_accepted, is_first = judged[partition].accepted, judged[partition].begins_anew
        else:
            continue
        if is_first:
            accepted.clear()
        if is_accepted:
            stale = sorted(hidden_ranks(TRACES, lake.stale(partition.run, partition.iteration)))
            lost = (key, f"its tables of {ranks_in_words(stale)} are stale") if stale else None
            accepted += [night] if night is not None else []
    return verdicts


def _judge(
    lake: Lake,
    series: str,
    kind: str,
    night: _Night,
    accepted: Sequence[_Night],
    settings: NightlySettings,
    lost: tuple[str, str] | None,
    *,
    by_hand: bool,
) -> NightVerdict:
    reference = accepted[-1] if accepted else None
    common = common_ranks(night.coverage, reference.coverage) if reference else Common(tuple(sorted(night.ranks)))
    ranks = tuple(sorted(night.ranks)) if common.refusal else common.ranks
    # Of equals the lowest.
    rank = min(ranks, key=lambda one: (-night.ranks[one]["compute_ns"], one))
    measures = _measures(lake, night, ranks, rank)
    before = None
    if lost is not None:
        verdict = inconclusive(measures, *lost)
    elif reference is not None and common.outgrown:
        verdict = begins_anew(measures, len(ranks), reference.name, len(reference.ranks))
    elif reference is not None and common.refusal:
        verdict = inconclusive(measures, reference.name, common.refusal)
    else:
        before = _measures(lake, reference, ranks, rank) if reference else None
        history = [one.step_ns(ranks) for one in accepted[-settings.history :] if one.ranks.keys() >= set(ranks)]
        verdict = judge_nights(measures, before, history, settings.tolerances)
    if by_hand and not verdict.accepted:
        statement = verdict.statement.rpartition("; ")[0] + "; accepted by hand"
        verdict = NightVerdict(True, verdict.worse or (NOT_COMPARED,), verdict.deltas, statement)
    if kind not in (_STEPS, _WARM_UP):
        told = f"{verdict.statement}; nothing numbers its steps, so it is compared with its like alone: {kind}"
        verdict = replace(verdict, statement=told)
    compared = reference.partition if before and reference else None
    _write(lake, series, night.partition, compared, measures, before, rank, verdict)
    return verdict


def _write(
    lake: Lake,
    series: str,
    partition: Partition,
    reference: Partition | None,
    measures: Measures,
    before: Measures | None,
    rank: int,
    verdict: NightVerdict,
) -> None:
    values: dict[str, object] = {
        "series": series,
        "accepted": verdict.accepted,
        "worse": list(verdict.worse),
        "reference_run": reference.run if reference else None,
        "reference_iteration": reference.iteration if reference else None,
        "compared_rank": rank,
        "step_ns": measures.step_ns,
        "reference_step_ns": before.step_ns if before else None,
        "exposed_ns": measures.exposed_ns,
        "reference_exposed_ns": before.exposed_ns if before else None,
        "moved": verdict.moved.part if verdict.moved else None,
        "moved_ns": verdict.moved.delta_ns if verdict.moved else None,
        "statement": verdict.statement,
        "figures_digest": _figures_digest(lake, partition),
    }
    deltas = {
        "part": [delta.part for delta in verdict.deltas],
        "reference_ns": [delta.reference_ns for delta in verdict.deltas],
        "duration_ns": [delta.duration_ns for delta in verdict.deltas],
        "delta_ns": [delta.delta_ns for delta in verdict.deltas],
    }
    row = NIGHTS.from_columns({name: [value] for name, value in values.items()})
    lake.write("night_deltas", NIGHT_DELTAS.from_columns(deltas), run=partition.run, iteration=partition.iteration)
    lake.write("nights", row, run=partition.run, iteration=partition.iteration)


def _series(lake: Lake, settings: NightlySettings) -> dict[tuple[str, str], list[Partition]]:
    """(Series, kind of its iterations) → these, in the order in which they were captured.

    Runs come in the order of their oldest trace, as it was registered; the iterations of a run by number. Warm-up steps
    are a kind. So are iterations that nothing numbers, by what counts them: the first of a capture is no step 0, and a
    whole capture no single step.
    """
    partitions = lake.partitions("iterations")
    began: dict[str, int] = {}
    counted_by: dict[Partition, str] = {}
    for partition in partitions:
        inputs = registered_if_any(lake.home, iteration_key(partition.run, partition.iteration))
        ranks = inputs.ranks if inputs is not None else ()
        oldest = min((entry.changed_ns for entry in ranks), default=0)
        counted_by[partition] = ", ".join(sorted({entry.counted_by for entry in ranks} - {""}))
        began[partition.run] = min(began.get(partition.run, oldest), oldest)
    series: dict[tuple[str, str], list[Partition]] = {}
    for partition in sorted(partitions, key=lambda one: (began[one.run], one.run, one.iteration)):
        name = next((glob for glob in settings.series if fnmatchcase(partition.run, glob)), partition.run)
        kind = counted_by[partition] or (_WARM_UP if partition.iteration < settings.warmup_steps else _STEPS)
        series.setdefault((name, kind), []).append(partition)
    return series


def _judged(lake: Lake) -> dict[Partition, _Judged]:
    if not lake.partitions("nights"):
        return {}
    rows = lake.table("nights").arrow(["run", "iteration", "accepted", "worse", "figures_digest"]).to_pylist()
    return {
        Partition(row["run"], row["iteration"]): _Judged(
            row["accepted"], bool(row["accepted"] and row["worse"]), row["figures_digest"]
        )
        for row in rows
    }


def _needs_verdict(
    lake: Lake, partition: Partition, judged: Mapping[Partition, _Judged], accept: Sequence[str]
) -> bool:
    if lake.has_stale_measures(partition.run, partition.iteration):
        return False
    known = judged.get(partition)
    if known is None or known.figures_digest != _figures_digest(lake, partition):
        return True
    return not known.accepted and iteration_key(partition.run, partition.iteration) in accept


def _figures_digest(lake: Lake, partition: Partition) -> str:
    """Of all that a verdict rests on, the scores of pairs included where there are any."""
    paths = [lake.path(name, run=partition.run, iteration=partition.iteration) for name in ("iterations", "periods")]
    return "-".join(digest_of(path) for path in paths if path.is_file())
