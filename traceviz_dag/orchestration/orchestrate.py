"""The main job from the command line: the same assets, partitions and events as from Dagster's UI, run in process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.across_ranks import across_ranks_assets
from assets.conventions import RANGE_END_TAG, RANGE_START_TAG
from assets.derived_tables import derived_assets
from assets.drawn_by_hand import events_of, tags_of_inputs
from assets.iteration_tables import iteration_assets
from assets.memory import memory_is_current, memory_tables, unread_snapshots
from assets.partitions import rank_trace_key, register_partitions
from assets.rank_tables import rank_tables
from assets.raw_traces import new_observations
from assets.recorded_together import report_together
from assets.resources import TracevizHome
from assets.settings import set_home_rules
from assets.staleness import (
    RankState,
    contiguous,
    derived_is_current,
    iteration_is_current,
    mark_aggregates,
    mark_of,
    outdated_ranks,
    rank_states,
    stale_ranks,
    topology_is_current,
)
from assets.topology import topology_assets
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.definitions import ASSETS
from traceviz_dag.errors import StoppedError, TracevizError
from traceviz_dag.lake.inputs import IterationInputs, RankInput, register, with_digests
from traceviz_dag.lake.known_ranks import Twin, replaced_ranks, set_aside_unlisted_ranks, twin_of, with_vanished_ranks
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.marking import forget_if_damaged, mark_stale, unmark
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.lake.partitions import check_run
from traceviz_dag.lake.under_way import under_way
from traceviz_dag.lake.upgrade import ASIDE
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.orchestration.step_runs import materialise
from traceviz_dag.pipeline.completeness import ranks_in_words, stored_completeness
from traceviz_dag.pipeline.iteration import stored_topology
from traceviz_dag.pipeline.memory import mark_mismatched, memory_sources, set_aside_unreadable
from traceviz_dag.tables.rows import TraceStatusRow, columns_of, rows_of
from traceviz_dag.vocabulary import StaleCause, StaleStage

if TYPE_CHECKING:
    from traceviz_dag.pipeline.figures import DrawnFigure, FigureTask


BUILT_IN_RULES = Path("-")
"""In place of a file of rules: none but the built-in ones."""


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """How to run the main job.

    Attributes:
        home: the folder that holds everything written.
        workers: processes that ranks fan out over; 0 = as many as cores and memory allow.
        rules: a TOML file with rules that come before the built-in ones, from now on in this home; BUILT_IN_RULES goes
            back to these; None leaves those that the home has.
        allow_partial: aggregate an iteration although ranks of it cannot be read.
        with_partial: count ranks that were read in part in measures across ranks, which else leave them out.
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
        computed, skipped: ranks that were analysed now, and whose tables were there already, unchanged.
        faults: rank → one line, for ranks that failed or were read in part.
        failed: ranks of which nothing could be used.
        failures: one line for each step that failed: what of the iteration, why, and what to do.
        not_computed: ranks of which a step that failed left nothing, or nothing new.
        replaced: (file of the former analysis, file now) → ranks whose content differs, whose tables are made anew.
        vanished: ranks whose trace is gone; their tables are those of an earlier analysis.
        twin: another iteration of the run with the same traces.
        aggregated: whether the iteration's tables are there, made of what its ranks are now.
    """

    key: str
    run: str
    iteration: int
    computed: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_computed: list[int] = field(default_factory=list)
    replaced: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    vanished: list[int] = field(default_factory=list)
    twin: Twin | None = None
    aggregated: bool = False


Started = Callable[[IterationInputs, Sequence[int]], None]


def analyse(
    settings: AnalysisSettings, inputs: Sequence[IterationInputs], started: Started | None = None
) -> list[IterationResult]:
    """Take every iteration the whole way: topology, ranks, aggregates; what is there and unchanged is skipped.

    A step that fails is told in the result of its iteration; the other iterations go on.

    Args:
        started: called before the ranks of an iteration are computed, with those that will be.

    Raises:
        StoppedError: the user interrupted it.
        BadInputError: Dagster's records in the home are damaged.
        UsageError: no run can have the name of one; nothing is begun.
    """
    for entry in inputs:
        check_run(entry.run)
    results: list[IterationResult] = []
    if settings.rules is not None:
        rules = None if settings.rules == BUILT_IN_RULES else settings.rules
        load_rules(rules)
        set_home_rules(settings.home, rules)
    rules_digest = TracevizHome(home=str(settings.home)).load_rules().digest
    with open_instance(settings.home, captures_output=False) as instance:
        register_partitions(instance, inputs)
        for entry in inputs:
            (now,) = with_digests(settings.home, [entry])
            now = with_vanished_ranks(settings.home, now)
            analysis = _Analysis(settings, instance, open_lake(settings.home), now, rules_digest)
            try:
                results.append(analysis.run(started))
            except KeyboardInterrupt:
                raise StoppedError(_what_is_done(analysis, len(results), len(inputs))) from None
    return results


def figure_inputs(home: Path) -> dict[str, dict[str, str]]:
    """Which tables there are to draw from, as ``record_figures`` wants it: ask before drawing."""
    with open_instance(home, captures_output=False) as instance:
        return tags_of_inputs(instance)


def record_figures(
    home: Path,
    asked: Sequence[FigureTask],
    drawn: Sequence[DrawnFigure],
    inputs: Mapping[str, Mapping[str, str]],
) -> None:
    """Record figures that a command drew, so that the asset graph shows them.

    Args:
        asked: all that were to be drawn. drawn: those that were; one of which the tables tell nothing is not.
        inputs: what ``figure_inputs`` gave before.
    """
    with open_instance(home, captures_output=False) as instance:
        report_together(instance, events_of(home, asked, drawn, inputs))


@dataclass(frozen=True)
class _Analysis:
    """One iteration on its way."""

    settings: AnalysisSettings
    instance: dg.DagsterInstance
    lake: Lake
    inputs: IterationInputs
    rules_digest: str

    def run(self, started: Started | None) -> IterationResult:
        with under_way(self.settings.home, self.inputs.key):
            result = self._run(started)
            self.lake.settle(self.inputs.run, self.inputs.iteration)
            return result

    def _run(self, started: Started | None) -> IterationResult:
        result = IterationResult(self.inputs.key, self.inputs.run, self.inputs.iteration)
        forget_if_damaged(self.lake, self.inputs.run, self.inputs.iteration)
        set_aside_unlisted_ranks(self.lake, self.inputs)
        result.replaced = replaced_ranks(self.settings.home, self.inputs)
        result.twin = twin_of(self.settings.home, self.inputs)
        register(self.settings.home, self.inputs)
        self.lake.sweep(self.inputs.run, self.inputs.iteration)
        report_together(self.instance, new_observations(self.instance, [self.inputs]))
        try:
            has_topology = self.make_topology(result)
            if has_topology:
                self.make_rank_tables(result, started)
            # Made of the traces, too; findings ask them.
            self.make_memory_tables(result)
            if has_topology:
                self.make_iteration_tables(result)
                self.make_derived_tables(result)
        except TracevizError as error:
            result.failures.append(f"{self.inputs.key}: {error}")
        return result

    def make_topology(self, result: IterationResult) -> bool:
        """Bring the topology up to date; whether it is."""
        # The header of a trace that is gone cannot be read again.
        forced = self.settings.force and not self.vanished_ranks()
        if not forced and topology_is_current(self.instance, self.lake, self.inputs):
            return True
        faults = self.materialise("topology", [topology_assets], partition_key=self.inputs.key)
        result.failures += faults
        return not faults

    def make_rank_tables(self, result: IterationResult, started: Started | None) -> None:
        """Bring the tables of each rank up to date."""
        states = self.rank_states()
        self.mark_ranks(states)
        stale = self.ranks_to_compute(states)
        if started is not None:
            started(self.inputs, [entry.rank for entry in stale])
        failures = []
        for first, last in contiguous([entry.rank for entry in stale]):
            ends = {
                RANGE_START_TAG: str(rank_trace_key(self.inputs.key, rank_key(first))),
                RANGE_END_TAG: str(rank_trace_key(self.inputs.key, rank_key(last))),
            }
            failures += self.materialise("ranks", [rank_tables], tags=ends)
        result.skipped = [entry.rank for entry in self.inputs.ranks if entry not in stale]
        _collect_faults(self.lake, self.inputs, result)
        after = self.rank_states() if stale else states
        left = [entry.rank for entry in stale_ranks(after)]
        result.computed = [entry.rank for entry in stale if entry.rank not in (*left, *result.failed)]
        missing = [rank for rank in left if rank not in result.failed]
        if missing and not failures:
            failures = [f"{self.inputs.key}: ranks {missing} have no tables, or changed meanwhile; run it again"]
        result.failures += failures
        result.not_computed = missing
        result.vanished = self.vanished_ranks()
        outdated = [entry.rank for entry in outdated_ranks(after)] if result.vanished else []
        if outdated:
            result.failures.append(
                f"{self.inputs.key}: {ranks_in_words(outdated)} cannot be made anew, as the trace is gone: the tables "
                "are of an earlier trace, topology, rules or version; put it back, or analyse into another home"
            )

    def make_iteration_tables(self, result: IterationResult) -> None:
        """Bring the iteration's own tables up to date; where that cannot be, older ones stay, marked with the reason.

        They wait for ranks whose tables are not of their trace as it is: made without them, they would tell less than
        the older ones.
        """
        waiting = bool(result.not_computed or (result.failed and not self.settings.allow_partial))
        current = iteration_is_current(self.instance, self.lake, self.inputs) and not self.covers_others()
        cause, reason = StaleCause.WAITING, _waits_for(result)
        if not waiting and (self.settings.force or not current):
            counted = {"with_partial": self.settings.with_partial}
            config = {
                "ops": {
                    "iteration_tables": {"config": {"allow_partial": self.settings.allow_partial, **counted}},
                    "across_ranks": {"config": counted},
                }
            }
            selection = [iteration_assets, across_ranks_assets]
            faults = self.materialise("aggregates", selection, partition_key=self.inputs.key, config=config)
            current = not faults and iteration_is_current(self.instance, self.lake, self.inputs)
            if not faults and not current:
                faults = [f"{self.inputs.key}: its ranks changed while they were aggregated; run it again"]
            result.failures += faults
            cause, reason = StaleCause.FAILED, "; ".join(faults)
        result.aggregated = current and not waiting
        if not current or self.lake.stale(self.inputs.run, self.inputs.iteration):
            mark_aggregates(self.instance, self.lake, self.inputs, cause, reason)

    def make_derived_tables(self, result: IterationResult) -> None:
        """Bring the tables of other packages up to date; one that fails costs no other table."""
        for asset in derived_assets if result.aggregated else ():
            name = asset.key.to_user_string()
            if self.settings.force or not derived_is_current(self.instance, self.lake, self.inputs, name):
                faults = self.materialise("derived", [asset], partition_key=self.inputs.key)
                result.failures += faults
                if faults:
                    mark_aggregates(self.instance, self.lake, self.inputs, StaleCause.FAILED, faults[0])

    def make_memory_tables(self, result: IterationResult) -> None:
        """Bring the tables of the snapshots of GPU memory up to date; those of snapshots that are gone stay."""
        dropped = set_aside_unreadable(self.lake, self.inputs)
        gone = sorted(set(dropped) - {one.rank for one in memory_sources(self.lake, self.inputs)})
        if gone:
            result.failures.append(
                f"{self.inputs.key}, memory: tables of {ranks_in_words(gone)} were damaged, or of an earlier version, "
                f"and are set aside in {self.lake.tables_folder / ASIDE}, as the snapshots are gone; put these back, "
                "and analyse again"
            )
        sources = memory_sources(self.lake, self.inputs)
        for number, why in mark_mismatched(self.lake, self.inputs).items():
            if number not in {one.rank for one in sources}:
                told = f"its snapshot is gone, and its tables are stale: {why}"
                result.failures.append(f"{self.inputs.key}, memory of rank {number}: {told}")
        if not sources:
            return
        if self.settings.force or not memory_is_current(self.instance, self.lake, self.inputs):
            result.failures += self.materialise("memory", [memory_tables], partition_key=self.inputs.key)
        for rank, line in unread_snapshots(self.instance, self.inputs).items():
            result.failures.append(f"{self.inputs.key}, memory of rank {rank}: {line}")

    def covers_others(self) -> bool:
        """Whether the stored measures count ranks that were read in part though they should not, or the other way."""
        place = (self.inputs.run, self.inputs.iteration)
        in_part = set(stored_completeness(self.lake, *place).in_part)
        rows = self.lake.table("iterations", *place).arrow(["covered_ranks"]).to_pylist()
        covered = {rank for row in rows for rank in row["covered_ranks"] or ()}
        return bool(in_part) and self.settings.with_partial != (in_part <= covered)

    def ranks_to_compute(self, states: Sequence[RankState]) -> list[RankInput]:
        """Ranks that have to be computed; all that can be, where that is forced."""
        stale = stale_ranks(states)
        if not self.settings.force:
            return stale
        gone = self.vanished_ranks()
        return [entry for entry in self.inputs.ranks if entry in stale or entry.rank not in gone]

    def vanished_ranks(self) -> list[int]:
        """Ranks whose trace is gone."""
        return [entry.rank for entry in self.inputs.ranks if not Path(entry.path).exists()]

    def stale_ranks(self) -> list[RankInput]:
        """Ranks whose tables are not what they should be."""
        return stale_ranks(self.rank_states())

    def rank_states(self) -> list[RankState]:
        """What the tables of the ranks are, against what their topology and the rules of now would give."""
        _, version = stored_topology(self.lake, self.inputs.run, self.inputs.iteration)
        return rank_states(self.instance, self.lake, self.inputs, version, self.rules_digest)

    def mark_ranks(self, states: Sequence[RankState]) -> None:
        """Mark the tables that cannot be made anew, as their trace is gone; take the marks of current ones away."""
        place = (self.inputs.run, self.inputs.iteration)
        outdated = {entry.rank for entry in outdated_ranks(states)}
        current = {state.entry.rank for state in states if state.is_current and not state.is_gone}
        unmark(self.lake, *place, StaleStage.RANKS, current)
        mark_stale(self.lake, *place, [mark_of(state) for state in states if state.entry.rank in outdated])

    def materialise(self, what: str, selection: list[dg.AssetsDefinition], **settings: Any) -> list[str]:
        """Run some steps; one line for each that failed."""
        home = TracevizHome(home=str(self.settings.home), workers=self.settings.workers)
        faults = materialise(f"analyze_{what}", self.instance, ASSETS, selection, {"traceviz": home}, **settings)
        return [f"{self.inputs.key}, {what}: {fault}" for fault in faults]


def _what_is_done(analysis: _Analysis, done: int, of: int) -> str:
    inputs = analysis.inputs
    ranks = 0
    with suppress(TracevizError):
        ranks = len(inputs.ranks) - len(analysis.stale_ranks())
    iterations = f"{done} of {of} iterations are done; " if of > 1 else ""
    return (
        f"stopped: {iterations}{ranks} of {len(inputs.ranks)} ranks of {inputs.key} are done and kept; "
        "run the same command again to go on from there"
    )


def _waits_for(result: IterationResult) -> str:
    """Which ranks the iteration's own tables wait for, and what to do."""
    ranks = sorted({*result.failed, *result.not_computed})
    return f"{ranks_in_words(ranks)} cannot be made anew: fix what is wrong there; --allow-partial goes on without them"


def _collect_faults(lake: Lake, inputs: IterationInputs, result: IterationResult) -> None:
    for kept in lake.stale(inputs.run, inputs.iteration):
        if kept.stage == StaleStage.RANKS and kept.rank is not None and inputs.rank(kept.rank) and not kept.is_counted:
            result.faults[kept.rank] = kept.reason
            result.failed.append(kept.rank)
    if not lake.partitions("traces", inputs.run, inputs.iteration):
        return
    traces = lake.table("traces", inputs.run, inputs.iteration).arrow(columns_of(TraceStatusRow))
    for row in rows_of(traces, TraceStatusRow):
        if row["fault"]:
            result.faults[row["rank"]] = row["fault"]
        if row["status"] == "failed":
            result.failed.append(row["rank"])
