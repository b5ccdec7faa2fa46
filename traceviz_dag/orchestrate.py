"""The main job from the command line: the same assets, partitions and events as from Dagster's UI, run in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import dagster as dg

from assets.conventions import CODE_VERSION, CODE_VERSION_TAG, DATA_VERSION_TAG, INPUT_VERSION_TAG, RULES_TAG
from assets.iteration_tables import iteration_assets
from assets.partitions import rank_trace_key, register_partitions
from assets.rank_tables import rank_tables
from assets.raw_traces import raw_traces
from assets.resources import TracevizHome
from assets.topology import INPUTS_TAG, inputs_version, topology_assets
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.definitions import ASSETS
from traceviz_dag.iteration_pipeline import stored_topology
from traceviz_dag.lake.inputs import IterationInputs, RankInput, register
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.rank_pipeline import RANK_TABLES

INSTANCE_FOLDER = "dagster"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"

_PAGE = 1000
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """How to run the main job.

    Attributes:
        home: the folder that holds everything written.
        workers: processes that ranks fan out over; 0 takes one a core.
        rules: a TOML file with rules that come before the built-in ones.
        allow_partial: aggregate an iteration although ranks of it cannot be read.
        force: compute again what is there and unchanged.
    """

    home: Path
    workers: int = 0
    rules: Path | None = None
    allow_partial: bool = False
    force: bool = False


@dataclass(slots=True)
class IterationResult:
    """What became of one iteration.

    Attributes:
        computed, skipped: ranks that were analysed now, and that stood already, unchanged.
        faults: rank → one line, for ranks that failed or were read in part.
        failed: ranks of which nothing could be used.
        aggregated: whether the iteration's tables stand.
    """

    key: str
    run: str
    iteration: int
    computed: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    aggregated: bool = False


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of a home; its records stand in HOME/dagster, where ``traceviz dev`` finds them."""
    folder = prepare_instance(home)
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        yield instance


def prepare_instance(home: Path) -> Path:
    """Create HOME/dagster with its settings, if it is not there; returns the folder."""
    folder = home / INSTANCE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "dagster.yaml"
    if not settings.exists():
        settings.write_text(resources.files("traceviz_dag").joinpath("dagster.yaml").read_text(encoding="utf-8"))
    return folder


def analyse(
    settings: AnalysisSettings,
    inputs: Sequence[IterationInputs],
    started: Callable[[IterationInputs, Sequence[int]], None] | None = None,
) -> list[IterationResult]:
    """Take every iteration the whole way: topology, ranks, aggregates; what is there and unchanged is skipped.

    Args:
        started: called before the ranks of an iteration are computed, with those that will be.
    """
    with open_instance(settings.home) as instance:
        register_partitions(instance, inputs)
        return [_analyse_iteration(settings, instance, entry, started) for entry in inputs]


def _analyse_iteration(
    settings: AnalysisSettings,
    instance: dg.DagsterInstance,
    inputs: IterationInputs,
    started: Callable[[IterationInputs, Sequence[int]], None] | None,
) -> IterationResult:
    register(settings.home, inputs)
    lake = open_lake(settings.home)
    _observe(instance, inputs)
    result = IterationResult(inputs.key, inputs.run, inputs.iteration)
    rules_digest = load_rules(settings.rules).digest
    if settings.force or not _topology_is_current(instance, lake, inputs):
        _materialise(settings, instance, [topology_assets], partition_key=inputs.key)
    _, topology_version = stored_topology(lake, inputs.run, inputs.iteration)
    stale = _stale_ranks(settings, instance, lake, inputs, topology_version, rules_digest)
    result.computed = [entry.rank for entry in stale]
    result.skipped = [entry.rank for entry in inputs.ranks if entry not in stale]
    if started is not None:
        started(inputs, result.computed)
    for first, last in _contiguous([entry.rank for entry in stale]):
        ends = {
            RANGE_START_TAG: str(rank_trace_key(inputs.key, rank_key(first))),
            RANGE_END_TAG: str(rank_trace_key(inputs.key, rank_key(last))),
        }
        _materialise(settings, instance, [rank_tables], tags=ends)
    _collect_faults(lake, inputs, result)
    missing = not lake.exists("iterations", run=inputs.run, iteration=inputs.iteration)
    waiting = bool(result.failed) and not settings.allow_partial
    if (stale or missing) and not waiting:
        config = {"ops": {"iteration_tables": {"config": {"allow_partial": settings.allow_partial}}}}
        _materialise(settings, instance, [iteration_assets], partition_key=inputs.key, config=config)
    result.aggregated = not waiting
    return result


def _observe(instance: dg.DagsterInstance, inputs: IterationInputs) -> None:
    """Report a raw trace whose version is new."""
    keys = {str(rank_trace_key(inputs.key, rank_key(entry.rank))): entry for entry in inputs.ranks}
    known = instance.event_log_storage.get_latest_tags_by_partition(
        raw_traces.key, dg.DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG], list(keys)
    )
    for key, entry in keys.items():
        if known.get(key, {}).get(DATA_VERSION_TAG) != entry.version:
            observation = dg.AssetObservation(raw_traces.key, partition=key, tags={DATA_VERSION_TAG: entry.version})
            instance.report_runless_asset_event(observation)


def _topology_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    if not lake.exists("topology", run=inputs.run, iteration=inputs.iteration):
        return False
    tags = _tags(instance, "topology", [inputs.key]).get(inputs.key, {})
    return tags.get(INPUTS_TAG) == inputs_version(inputs) and tags.get(CODE_VERSION_TAG) == CODE_VERSION


def _stale_ranks(
    settings: AnalysisSettings,
    instance: dg.DagsterInstance,
    lake: Lake,
    inputs: IterationInputs,
    topology_version: str,
    rules_digest: str,
) -> list[RankInput]:
    """Ranks whose file, topology, rules or code is not what their tables were made from, or whose tables are gone."""
    partitions = {str(rank_trace_key(inputs.key, rank_key(entry.rank))): entry for entry in inputs.ranks}
    wanted_tags = [f"{INPUT_VERSION_TAG}raw_traces", f"{INPUT_VERSION_TAG}topology", RULES_TAG, CODE_VERSION_TAG]
    recorded = _tags(instance, "kernels", list(partitions))
    stale = []
    for key, entry in partitions.items():
        versions = dict(zip(wanted_tags, (entry.version, topology_version, rules_digest, CODE_VERSION), strict=True))
        stands = all(
            lake.exists(name, run=inputs.run, iteration=inputs.iteration, rank=entry.rank) for name in RANK_TABLES
        )
        tags = recorded.get(key, {})
        if settings.force or not stands or any(tags.get(tag) != version for tag, version in versions.items()):
            stale.append(entry)
    return stale


def _tags(instance: dg.DagsterInstance, asset: str, partitions: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Tags of the latest materialization of each partition; partitions without one are absent."""
    wanted = set(partitions)
    found: dict[str, Mapping[str, str]] = {}
    cursor = None
    while True:
        records_filter = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=list(wanted - set(found)))
        page = instance.fetch_materializations(records_filter, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(event.partition, event.tags or {})
        if not page.has_more or len(found) == len(wanted):
            return found
        cursor = page.cursor


def _materialise(
    settings: AnalysisSettings,
    instance: dg.DagsterInstance,
    selection: list[dg.AssetsDefinition],
    partition_key: str | None = None,
    tags: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
) -> dg.ExecuteInProcessResult:
    home = TracevizHome(home=str(settings.home), workers=settings.workers, rules=str(settings.rules or ""))
    return dg.materialize(
        ASSETS,
        selection=selection,
        instance=instance,
        resources={"traceviz": home},
        partition_key=partition_key,
        tags=dict(tags or {}),
        run_config={**_QUIET, **(config or {})},
        raise_on_error=False,
    )


def _collect_faults(lake: Lake, inputs: IterationInputs, result: IterationResult) -> None:
    if not lake.partitions("traces", inputs.run, inputs.iteration):
        return
    rows = lake.table("traces", inputs.run, inputs.iteration).arrow(["rank", "status", "fault"]).to_pylist()
    for row in rows:
        if row["fault"]:
            result.faults[row["rank"]] = row["fault"]
        if row["status"] == "failed":
            result.failed.append(row["rank"])


def _contiguous(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; one Dagster run covers one of them."""
    groups: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if groups and rank == groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], rank)
        else:
            groups.append((rank, rank))
    return groups
