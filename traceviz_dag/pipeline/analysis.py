"""The main job: every iteration the whole way, from its files to its tables; what is there and unchanged is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from traceviz_dag.classify.rules import Rules, load_rules
from traceviz_dag.errors import BadInputError, StoppedError, TracevizError, file_system_line
from traceviz_dag.lake import catalogue
from traceviz_dag.lake.inputs import IterationInputs, register, with_digests
from traceviz_dag.lake.known_ranks import Twin, replaced_ranks, set_aside_unlisted_ranks, twin_of, with_vanished_ranks
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.marking import forget_if_damaged
from traceviz_dag.lake.partitions import check_run
from traceviz_dag.lake.under_way import under_way
from traceviz_dag.lake.upgrade import ASIDE
from traceviz_dag.pipeline.completeness import ranks_in_words, stored_completeness
from traceviz_dag.pipeline.engines import Engine, default_workers
from traceviz_dag.pipeline.home_settings import home_rules, set_home_rules
from traceviz_dag.pipeline.making import (
    make_across_ranks,
    make_derived,
    make_iteration_tables,
    make_ranks,
    make_topology,
    pairs_file,
    waits_for,
)
from traceviz_dag.pipeline.memory import (
    mark_mismatched,
    memory_sources,
    read_in_part,
    set_aside_unreadable,
    store_memory,
)
from traceviz_dag.pipeline.staleness import (
    RankState,
    are_current,
    iteration_is_current,
    mark_aggregates,
    memory_is_current,
    outdated_ranks,
    rank_states,
    stale_ranks,
    topology_is_current,
)
from traceviz_dag.pipeline.stored_topology import topology_version
from traceviz_dag.pipeline.workers import LOGS, RankOutcome, keep_traceback
from traceviz_dag.tables import derived_tables
from traceviz_dag.tables.rows import TraceStatusRow, columns_of, rows_of
from traceviz_dag.vocabulary import StaleCause, StaleStage

BUILT_IN_RULES = Path("-")
"""Instead of a file of rules: none but the built-in ones."""


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
        engine: where ranks are analysed; None: in processes of this machine.
    """

    home: Path
    workers: int = 0
    rules: Path | None = None
    allow_partial: bool = False
    force: bool = False
    with_partial: bool = False
    engine: Engine | None = None


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
        lake: that in the session in which they were made, if it is open still and nothing failed.
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
    lake: Lake | None = field(default=None, repr=False, compare=False)

    @property
    def changed_lines(self) -> list[str]:
        """A line for each file with other content than when it was analysed before, one where traces are gone, and one
        where it has the traces of another iteration."""
        lines = [
            f"{self.key}: {ranks_in_words(ranks)}: "
            + (f"{now} has changed" if now == was else f"{now} replaces {was}")
            + " since the last analysis; its tables are computed again"
            for (was, now), ranks in self.replaced.items()
        ]
        if self.vanished:
            lines.append(
                f"{self.key}: the trace of {ranks_in_words(self.vanished)} is gone; its earlier tables are kept"
            )
        return [*lines, self.twin.line] if self.twin is not None else lines


Started = Callable[[IterationInputs, Sequence[int]], None]


def analyse(
    settings: AnalysisSettings,
    inputs: Sequence[IterationInputs],
    started: Started | None = None,
    last: ExitStack | None = None,
) -> list[IterationResult]:
    """Take every iteration the whole way: topology, ranks, aggregates; what is there and unchanged is skipped.

    A step that fails is named in the result of its iteration; the other iterations go on.

    Args:
        started: called before the ranks of an iteration are computed, with those that will be.
        last: keeps the session of the last iteration open, with what it read of the tables.

    Raises:
        StoppedError: the user interrupted it.
        UsageError: no run can have the name of one; nothing is begun.
    """
    for entry in inputs:
        check_run(entry.run)
    results: list[IterationResult] = []
    if settings.rules is not None:
        rules = None if settings.rules == BUILT_IN_RULES else settings.rules
        load_rules(rules)
        set_home_rules(settings.home, rules)
    in_force = load_rules(home_rules(settings.home))
    for group in _in_the_same_files(inputs):
        analyses: list[_Analysis] = []
        for entry in group:
            (now,) = with_digests(settings.home, [entry], read_again=settings.force)
            known = with_vanished_ranks(settings.home, now)
            result = IterationResult(known.key, known.run, known.iteration)
            analyses.append(_Analysis(settings, open_lake(settings.home), known, in_force, result))
        # A file is read once for all iterations in it: what they are made of has to be known by then.
        for place, analysis in enumerate(analyses):
            with _stoppable(analysis, len(results), len(inputs)):
                analysis.begin(after_others=place > 0 and not settings.force)
        for place, analysis in enumerate(analyses):
            with _stoppable(analysis, len(results), len(inputs)), ExitStack() as own:
                beside = () if settings.force else [other.inputs for other in analyses[place + 1 :]]
                is_last = len(results) == len(inputs) - 1
                results.append(analysis.finish(started, beside, last if is_last and last is not None else own))
                if is_last and last is not None and not results[-1].failures:
                    results[-1].lake = analysis.lake
    return results


def _in_the_same_files(inputs: Sequence[IterationInputs]) -> Iterator[list[IterationInputs]]:
    """The iterations in order, those together that follow one another and are steps in the same files."""
    group: list[IterationInputs] = []
    for entry in inputs:
        files = {one.path for one in entry.ranks if one.step is not None}
        if group and not files & {one.path for one in group[-1].ranks if one.step is not None}:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


@contextmanager
def _stoppable(analysis: _Analysis, done: int, of: int) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(_what_is_done(analysis, done, of)) from None


@dataclass
class _Analysis:
    """One iteration on its way.

    Attributes:
        result: what becomes of it. mark: holds it marked as under way. begun: whether its topology is there, once it
            was begun. stale: ranks that were to be made by then, if they may be made beside another iteration.
    """

    settings: AnalysisSettings
    lake: Lake
    inputs: IterationInputs
    rules: Rules
    result: IterationResult
    mark: ExitStack = field(default_factory=ExitStack)
    begun: bool = False
    stale: frozenset[int] = frozenset()

    def begin(self, *, after_others: bool) -> None:
        """Register it and make its topology.

        Args:
            after_others: it is finished after iterations beside which its ranks may be made.
        """
        self.mark.enter_context(under_way(self.settings.home, self.inputs.key))
        with self.counted():
            forget_if_damaged(self.lake, self.inputs.run, self.inputs.iteration)
            set_aside_unlisted_ranks(self.lake, self.inputs)
            self.result.replaced = replaced_ranks(self.settings.home, self.inputs)
            self.result.twin = twin_of(self.settings.home, self.inputs)
            register(self.settings.home, self.inputs)
            self.lake.sweep(self.inputs.run, self.inputs.iteration)
            self.begun = self.make_topology(self.result)
            if self.begun and after_others:
                self.stale = frozenset(entry.rank for entry in stale_ranks(self.rank_states()))

    def finish(
        self, started: Started | None, beside: Sequence[IterationInputs], sessions: ExitStack
    ) -> IterationResult:
        """Make its tables, and those of ranks of the iterations beside it that lie in the same files.

        Args:
            sessions: takes the session in which they are made: what all steps read is read once.
        """
        session = sessions.enter_context(self.lake.session(run=self.inputs.run, iteration=self.inputs.iteration))
        self.lake = session.within()
        with self.mark:
            with self.counted():
                if self.begun:
                    self.make_rank_tables(self.result, started, beside)
                # Made of the traces, too; findings ask them.
                self.make_memory_tables(self.result)
                if self.begun:
                    self.make_iteration_tables(self.result)
                    self.make_derived_tables(self.result)
            self.lake.settle(self.inputs.run, self.inputs.iteration)
        if not catalogue.is_current(self.lake.home):
            # A damaged file of another iteration is no fault of this one; SQL on it names it.
            with suppress(BadInputError):
                self.lake.refresh_catalogue()
        return self.result

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What goes wrong is a failure of this iteration, and of no other."""
        try:
            yield
        except TracevizError as error:
            self.result.failures.append(f"{self.inputs.key}: {error}")

    @contextmanager
    def step(self, what: str, failures: list[str]) -> Iterator[None]:
        """A step that may fail: a line, and the traceback of a fault of this program in a file."""
        try:
            yield
        except TracevizError as error:
            failures.append(f"{self.inputs.key}, {what}: {error}")
        except OSError as error:
            failures.append(f"{self.inputs.key}, {what}: {file_system_line(error)}")
        except Exception as error:  # noqa: BLE001 - one step's fault of this program must not cost the others
            log = self.settings.home / LOGS / f"{self.inputs.key}_{what}.log"
            keep_traceback(log, error)
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            failures.append(f"{self.inputs.key}, {what}: {message}; this is a fault of traceviz: report it with {log}")

    def make_topology(self, result: IterationResult) -> bool:
        """Bring the topology up to date; whether it is."""
        if not self.settings.force and topology_is_current(self.lake, self.inputs):
            return True
        faults: list[str] = []
        with self.step("topology", faults):
            make_topology(self.lake, self.inputs)
        result.failures += faults
        return not faults

    def make_rank_tables(
        self, result: IterationResult, started: Started | None, beside: Sequence[IterationInputs]
    ) -> None:
        """Bring the tables of each rank up to date; what was made beside another iteration since it began is."""
        begun: list[int] = []
        states = self.rank_states() if self.stale else ()
        made = [one.entry.rank for one in states if one.is_current and one.entry.rank in self.stale]

        def begin(ranks: Sequence[int]) -> None:
            begun.extend(ranks)
            if started is not None:
                started(self.inputs, ranks)

        failures: list[str] = []
        outcomes: list[RankOutcome] = []
        with self.step("ranks", failures):
            ranks, only_stale = {entry.rank for entry in self.inputs.ranks}, not self.settings.force
            workers, engine = self.settings.workers, self.settings.engine
            made_now = make_ranks(self.lake, self.inputs, self.rules, workers, ranks, only_stale, begin, beside, engine)
            outcomes.extend(made_now)
        computed = {*begun, *made}
        begun = [entry.rank for entry in self.inputs.ranks if entry.rank in computed]
        result.skipped = [entry.rank for entry in self.inputs.ranks if entry.rank not in computed]
        _collect_faults(self.lake, self.inputs, result)
        after = self.rank_states() if outcomes or failures else []
        left = [entry.rank for entry in stale_ranks(after)]
        result.computed = [rank for rank in begun if rank not in (*left, *result.failed)]
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

        They wait for ranks whose tables are not of their trace as it is: made without them, they would show less than
        the older ones.
        """
        waiting = bool(result.not_computed or (result.failed and not self.settings.allow_partial))
        current = iteration_is_current(self.lake, self.inputs) and not self.covers_others()
        unmade = sorted({*result.failed, *result.not_computed})
        cause, reason = StaleCause.WAITING, waits_for(unmade)
        if not waiting and (self.settings.force or not current):
            faults: list[str] = []
            chosen = {"allow_partial": self.settings.allow_partial, "with_partial": self.settings.with_partial}
            with self.step("aggregates", faults):
                make_iteration_tables(self.lake, self.inputs, **chosen)
                make_across_ranks(
                    self.lake,
                    self.inputs,
                    pairs=pairs_file(),
                    workers=self.settings.workers or None,
                    engine=self.settings.engine,
                    **chosen,
                )
            current = not faults and iteration_is_current(self.lake, self.inputs)
            if not faults and not current:
                faults = [f"{self.inputs.key}: its ranks changed while they were aggregated; run it again"]
            result.failures += faults
            cause, reason = StaleCause.FAILED, "; ".join(faults)
        result.aggregated = current and not waiting
        if not current or self.lake.stale(self.inputs.run, self.inputs.iteration):
            mark_aggregates(self.lake, self.inputs, cause, reason)

    def make_derived_tables(self, result: IterationResult) -> None:
        """Bring the tables of other packages up to date; one that fails costs no other table."""
        place = (self.inputs.run, self.inputs.iteration)
        for table in derived_tables().values() if result.aggregated else ():
            if self.settings.force or not are_current(self.lake, *place, [table.name]):
                faults: list[str] = []
                with self.step("derived", faults):
                    make_derived(self.lake, table, *place)
                result.failures += faults
                if faults:
                    mark_aggregates(self.lake, self.inputs, StaleCause.FAILED, faults[0])

    def make_memory_tables(self, result: IterationResult) -> None:
        """Bring the tables of the snapshots of GPU memory up to date; those of snapshots that are gone stay."""
        dropped = set_aside_unreadable(self.lake, self.inputs)
        sources = memory_sources(self.lake, self.inputs)
        ranks = {one.rank for one in sources}
        if gone := sorted(set(dropped) - ranks):
            result.failures.append(
                f"{self.inputs.key}, memory: tables of {ranks_in_words(gone)} were damaged, or of an earlier version, "
                f"and are set aside in {self.lake.tables_folder / ASIDE}, as the snapshots are gone; put these back, "
                "and analyse again"
            )
        stale = [one for one in sources if self.settings.force or not memory_is_current(self.lake, self.inputs, [one])]
        faults: dict[int, str] = {}
        with self.step("memory", result.failures):
            run, iteration = self.inputs.run, self.inputs.iteration
            workers = self.settings.workers or default_workers()
            for outcome in store_memory(self.lake, run, iteration, stale, workers) if stale else ():
                faults[outcome.rank] = outcome.fault
            faults = {**read_in_part(self.lake, self.inputs), **faults}
            # Once what is damaged is made anew: it is read here.
            for number, why in mark_mismatched(self.lake, self.inputs).items():
                if number not in ranks:
                    fault = f"its snapshot is gone, and its tables are stale: {why}"
                    result.failures.append(f"{self.inputs.key}, memory of rank {number}: {fault}")
        for rank in sorted(ranks & faults.keys()):
            if faults[rank]:
                result.failures.append(f"{self.inputs.key}, memory of rank {rank}: {faults[rank]}")

    def covers_others(self) -> bool:
        """Whether the stored measures count ranks that were read in part though they should not, or the other way."""
        place = (self.inputs.run, self.inputs.iteration)
        in_part = set(stored_completeness(self.lake, *place).in_part)
        rows = self.lake.table("iterations", *place).arrow(["covered_ranks"]).to_pylist()
        covered = {rank for row in rows for rank in row["covered_ranks"] or ()}
        return bool(in_part) and self.settings.with_partial != (in_part <= covered)

    def vanished_ranks(self) -> list[int]:
        """Ranks whose trace is gone."""
        return [entry.rank for entry in self.inputs.ranks if not Path(entry.path).exists()]

    def rank_states(self) -> list[RankState]:
        """What the tables of the ranks are, against what their topology and the rules of now would give."""
        version = topology_version(self.lake, self.inputs.run, self.inputs.iteration)
        return rank_states(self.lake, self.inputs, version, self.rules.digest)


def _what_is_done(analysis: _Analysis, done: int, of: int) -> str:
    inputs = analysis.inputs
    ranks = 0
    with suppress(TracevizError, OSError):
        ranks = len(inputs.ranks) - len(stale_ranks(analysis.rank_states()))
    iterations = f"{done} of {of} iterations are done; " if of > 1 else ""
    return (
        f"stopped: {iterations}{ranks} of {len(inputs.ranks)} ranks of {inputs.key} are done and kept; "
        "run the same command again to go on from there"
    )


def _collect_faults(lake: Lake, inputs: IterationInputs, result: IterationResult) -> None:
    for kept in lake.stale(inputs.run, inputs.iteration):
        if kept.stage == StaleStage.RANKS and kept.rank is not None and inputs.rank(kept.rank) and not kept.is_counted:
            result.faults[kept.rank] = kept.reason
            result.failed.append(kept.rank)
    traces = lake.rows("traces", inputs.run, inputs.iteration, columns_of(TraceStatusRow))
    for row in rows_of(traces, TraceStatusRow):
        if row["fault"]:
            result.faults[row["rank"]] = row["fault"]
        if row["status"] == "failed":
            result.failed.append(row["rank"])
