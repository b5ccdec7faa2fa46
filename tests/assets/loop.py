"""Automation without a daemon: the same sensor, conditions and assets, tick by tick in one process, on an instance in
memory. What a daemon would launch is executed at once. Findings are left empty: no condition asks what they say, and
to ask all rules takes as long as all other tables of an iteration."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import dagster as dg

from assets.automation import ONLY_STALE_TAG, without_pictures
from assets.partitions import rank_trace_key, ranks_by_iteration
from assets.resources import TracevizHome
from sensors.register_traces import register_traces
from sensors.trace_folders import look_once
from traceviz_dag.definitions import ASSETS
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.partition_keys import parse_rank_key, rank_key
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.pipeline import making
from traceviz_dag.pipeline.home_settings import FigureSettings, HomeSettings
from traceviz_dag.pipeline.iteration import unread_ranks
from traceviz_dag.pipeline.staleness import ITERATION_TABLES, contiguous, pending_stage
from traceviz_dag.tables import ACROSS_RANKS_TABLES, FINDINGS

RANK_ASSETS = (
    *("traces", "kernels", "microbatches", "synchronizations", "gpu_gaps", "operations"),
    *("contention", "overlap_savings", "overlap"),
)
TOPOLOGY_ASSETS = ("topology", "process_groups")
ITERATION_ASSETS = ITERATION_TABLES
PROFILE_ASSETS = ("nvtx_ranges",)
COMPUTED = (*TOPOLOGY_ASSETS, *RANK_ASSETS, *ITERATION_ASSETS)
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

PICTURES = ("pipeline_figures", "replica_figures", "across_ranks_figures", "perfetto_trace", "report")
FIGURE_ASSETS = (*PICTURES, "rank_figures")

Partitions = set[tuple[str, str]]


def of_ranks(key: str, *ranks: int) -> Partitions:
    """The rank tables of some ranks of an iteration."""
    return {(asset, f"{key}|{rank:04d}") for asset in RANK_ASSETS for rank in ranks}


def of_topology(*keys: str) -> Partitions:
    """The topology tables of iterations."""
    return {(asset, key) for asset in TOPOLOGY_ASSETS for key in keys}


def of_figures(key: str, *ranks: int) -> Partitions:
    """All pictures of an iteration, and those of some of its ranks."""
    return {(asset, key) for asset in PICTURES} | {("rank_figures", f"{key}|{rank:04d}") for rank in ranks}


def of_iterations(*keys: str) -> Partitions:
    """The aggregates of iterations."""
    return {(asset, key) for asset in ITERATION_ASSETS for key in keys}


def no_findings() -> AbstractContextManager[object]:
    """While it lasts, the table findings of each iteration that is computed is empty."""
    return patch.object(making, "iteration_findings", lambda *_: FINDINGS.schema.empty_table())


class Loop:
    """A home with its sensor and conditions; time passes only when told, pictures are drawn only where asked for."""

    def __init__(self, home: Path, root: Path, settings: str = "", pictures: bool = False) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "traceviz.toml").write_text(f'{settings}\n[[watch]]\npath = "{root}"\n')
        self.instance = dg.DagsterInstance.ephemeral()
        self.computed = (*COMPUTED, *FIGURE_ASSETS) if pictures else COMPUTED
        chosen = HomeSettings(figures=FigureSettings(automatic=pictures))
        self.assets = without_pictures(ASSETS, chosen)
        self.now = 1_000_000_000.0
        self.rules = ""
        self.home, self.root = home, root
        self.failures: list[str] = []
        self._sensor_cursor: str | None = None
        self._automation_cursor: object = None
        self._position = 0

    @property
    def traceviz(self) -> TracevizHome:
        return TracevizHome(home=str(self.home), workers=1, rules=self.rules)

    def tick(self, seconds: float = 30) -> dg.SensorResult:
        """One tick of trace_folders; a registering run that it asks for is executed."""
        self.now += seconds
        context = dg.build_sensor_context(self.instance, cursor=self._sensor_cursor)
        result = look_once(context, self.traceviz, self.now)
        self._sensor_cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.run_requests or ():
            with no_findings():
                register_traces.execute_in_process(
                    run_config={**request.run_config, **QUIET},
                    instance=self.instance,
                    resources={"traceviz": self.traceviz},
                )
        return result

    def settle(self) -> None:
        """As many ticks as a folder needs that arrived whole."""
        self.tick()
        self.tick()

    def automate(self, most: int = 20, by_hand: bool = False) -> list[Partitions]:
        """Evaluate the conditions and execute what they ask for, until two ticks ask for nothing: the first of them
        may only have seen a change. Returns what each of the others asked for.

        Args:
            by_hand: the test wrote a table itself, which command and night would therefore compute.
        """
        asked: list[Partitions] = []
        quiet = 0
        for _ in range(most):
            requested = self.evaluate()
            quiet = 0 if requested else quiet + 1
            if quiet == 2:
                assert by_hand or self.pending() == {}, "command and night would compute something"
                return asked
            if requested:
                asked.append(requested)
                self._execute(requested)
        raise AssertionError(f"no end after {most} ticks: {asked}")

    def pending(self) -> dict[str, tuple[str, list[int]]]:
        """Iteration → the stage that command and night would compute, and its ranks; none of what cannot be read."""
        lake, found = self.traceviz.lake(), {}
        for inputs in all_registered(self.home):
            stage = pending_stage(lake, inputs, self.traceviz.load_rules().digest)
            unread = unread_ranks(lake, inputs)
            if stage is not None and not (unread and set(stage[1]) <= set(unread)):
                found[inputs.key] = stage
        return found

    def compute(self) -> None:
        """Compute what is registered and not current, stage by stage, without asking the conditions: for tests of what
        comes after, since to ask them takes as long as everything else."""
        stages = {"topology": TOPOLOGY_ASSETS, "iterations": ITERATION_ASSETS}
        for inputs in all_registered(self.home):
            for _ in range(1 + len(stages)):
                found = pending_stage(self.traceviz.lake(), inputs, self.traceviz.load_rules().digest)
                if found is None:
                    break
                stage, ranks = found
                if stage == "ranks":
                    self._execute_ranks(str(rank_trace_key(inputs.key, rank_key(rank))) for rank in ranks)
                else:
                    self._materialise(stages[stage], partition_key=inputs.key)

    def draw_ranks(self, key: str, *ranks: int) -> None:
        """What a tick executes that asks for the figures of these ranks."""
        self._execute_ranks([f"{key}|{rank:04d}" for rank in ranks], ("rank_figures",))

    def evaluate(self) -> Partitions:
        """What the conditions ask for at one tick."""
        defs = dg.Definitions(assets=self.assets, resources={"traceviz": self.traceviz})
        # Dagster asks for the keys at every clause; they do not change meanwhile.
        keys = cache(self.instance.get_dynamic_partitions)

        def has_key(partitions_def_name: str, partition_key: str) -> bool:
            return partition_key in keys(partitions_def_name)

        with patch.multiple(self.instance, get_dynamic_partitions=keys, has_dynamic_partition=has_key):
            result = dg.evaluate_automation_conditions(defs, self.instance, cursor=self._automation_cursor)
            self._automation_cursor = result.cursor
        return {
            (asset, partition)
            for asset in self.computed
            for partition in result.get_requested_partitions(dg.AssetKey(asset))
            if partition is not None
        }

    def news(self) -> Partitions:
        """What was materialised since the last call."""
        found: Partitions = set()
        latest = self._position
        for asset in self.computed:
            ids = self.instance.get_latest_storage_id_by_partition(
                dg.AssetKey(asset), dg.DagsterEventType.ASSET_MATERIALIZATION
            )
            found |= {(asset, partition) for partition, position in ids.items() if position > self._position}
            latest = max(latest, *ids.values(), 0)
        self._position = latest
        return found

    def _execute(self, requested: Partitions) -> None:
        for stage in (TOPOLOGY_ASSETS, RANK_ASSETS, AGGREGATED_TABLES, ACROSS_RANKS_TABLES):
            partitions = sorted({partition for asset, partition in requested if asset == stage[0]})
            if stage == RANK_ASSETS:
                self._execute_ranks(partitions)
                continue
            for partition in partitions:
                self._materialise(stage, partition_key=partition)
        for asset, partition in sorted(requested):
            if asset in PICTURES:
                self._materialise((asset,), partition_key=partition)
        of_ranks = [partition for asset, partition in requested if asset == "rank_figures"]
        self._execute_ranks(of_ranks, ("rank_figures",))

    def _execute_ranks(
        self, partitions: Iterable[str], assets: tuple[str, ...] = (*RANK_ASSETS, *PROFILE_ASSETS)
    ) -> None:
        for key, ranks in ranks_by_iteration(partitions).items():
            for first, last in contiguous([parse_rank_key(rank) for rank in ranks]):
                ends = {
                    "dagster/asset_partition_range_start": str(rank_trace_key(key, rank_key(first))),
                    "dagster/asset_partition_range_end": str(rank_trace_key(key, rank_key(last))),
                }
                self._materialise(assets, tags=ends)

    def _materialise(
        self, names: tuple[str, ...], partition_key: str | None = None, tags: dict[str, str] | None = None
    ) -> None:
        with no_findings():
            result = dg.materialize(
                self.assets,
                selection=dg.AssetSelection.assets(*names),
                instance=self.instance,
                resources={"traceviz": self.traceviz},
                partition_key=partition_key,
                tags={ONLY_STALE_TAG: "true", **(tags or {})},
                run_config=QUIET,
                raise_on_error=False,
            )
        if not result.success:
            self.failures.append(f"{names[0]} {partition_key or tags}")
