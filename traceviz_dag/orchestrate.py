"""The main job from the command line: the same assets, partitions and events as from Dagster's UI, run in process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import dagster as dg

from assets.across_ranks import across_ranks_assets
from assets.iteration_tables import iteration_assets
from assets.partitions import rank_trace_key, register_partitions
from assets.rank_tables import rank_tables
from assets.raw_traces import new_observations
from assets.resources import TracevizHome
from assets.staleness import ITERATION_TABLES, contiguous, stale_ranks, topology_is_current
from assets.topology import topology_assets
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.completeness import stored_completeness
from traceviz_dag.definitions import ASSETS
from traceviz_dag.iteration_pipeline import stored_topology
from traceviz_dag.lake.inputs import IterationInputs, register, with_digests
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.run_launcher import HOST_TAG

INSTANCE_FOLDER = "dagster"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """How to run the main job.

    Attributes:
        home: the folder that holds everything written.
        workers: processes that ranks fan out over; 0 takes one a core.
        rules: a TOML file with rules that come before the built-in ones.
        allow_partial: aggregate an iteration although ranks of it cannot be read.
        with_partial: count ranks that were read in part in figures across ranks, which else leave them out.
        force: compute again what is there and unchanged.
    """

    home: Path
    workers: int = 0
    rules: Path | None = None
    allow_partial: bool = False
    force: bool = False
    with_partial: bool = False


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
    (inputs,) = with_digests(settings.home, [inputs])
    register(settings.home, inputs)
    lake = open_lake(settings.home)
    for observation in new_observations(instance, [inputs]):
        instance.report_runless_asset_event(observation)
    result = IterationResult(inputs.key, inputs.run, inputs.iteration)
    rules_digest = load_rules(settings.rules).digest
    if settings.force or not topology_is_current(instance, lake, inputs):
        _materialise(settings, instance, [topology_assets], partition_key=inputs.key)
    _, topology_version = stored_topology(lake, inputs.run, inputs.iteration)
    stale = list(inputs.ranks)
    if not settings.force:
        stale = stale_ranks(instance, lake, inputs, topology_version, rules_digest)
    result.computed = [entry.rank for entry in stale]
    result.skipped = [entry.rank for entry in inputs.ranks if entry not in stale]
    if started is not None:
        started(inputs, result.computed)
    for first, last in contiguous([entry.rank for entry in stale]):
        ends = {
            RANGE_START_TAG: str(rank_trace_key(inputs.key, rank_key(first))),
            RANGE_END_TAG: str(rank_trace_key(inputs.key, rank_key(last))),
        }
        _materialise(settings, instance, [rank_tables], tags=ends)
    _collect_faults(lake, inputs, result)
    stand = (lake.exists(name, run=inputs.run, iteration=inputs.iteration) for name in ITERATION_TABLES)
    missing = not all(stand)
    waiting = bool(result.failed) and not settings.allow_partial
    if (stale or missing or _covers_others(lake, inputs, settings)) and not waiting:
        counted = {"with_partial": settings.with_partial}
        config = {
            "ops": {
                "iteration_tables": {"config": {"allow_partial": settings.allow_partial, **counted}},
                "across_ranks": {"config": counted},
            }
        }
        selection = [iteration_assets, across_ranks_assets]
        _materialise(settings, instance, selection, partition_key=inputs.key, config=config)
    result.aggregated = not waiting
    return result


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
        tags={HOST_TAG: socket.gethostname(), **(tags or {})},
        run_config={**_QUIET, **(config or {})},
        raise_on_error=False,
    )


def _covers_others(lake: Lake, inputs: IterationInputs, settings: AnalysisSettings) -> bool:
    """Whether the stored figures count ranks that were read in part though they should not, or the other way round."""
    if not lake.exists("iterations", run=inputs.run, iteration=inputs.iteration):
        return True
    in_part = set(stored_completeness(lake, inputs.run, inputs.iteration).in_part)
    rows = lake.table("iterations", inputs.run, inputs.iteration).arrow(["covered_ranks"]).to_pylist()
    covered = {rank for row in rows for rank in row["covered_ranks"]}
    return bool(in_part) and settings.with_partial != (in_part <= covered)


def _collect_faults(lake: Lake, inputs: IterationInputs, result: IterationResult) -> None:
    if not lake.partitions("traces", inputs.run, inputs.iteration):
        return
    rows = lake.table("traces", inputs.run, inputs.iteration).arrow(["rank", "status", "fault"]).to_pylist()
    for row in rows:
        if row["fault"]:
            result.faults[row["rank"]] = row["fault"]
        if row["status"] == "failed":
            result.failed.append(row["rank"])
