"""Each step of the way: makes the tables of one iteration, and records of what. Commands and Dagster's assets call it.

A step raises what a user can act on, and leaves the tables that were there; what it wrote is in the lake. Each takes
``only_stale``: tables that are current are then handed on as they are, whatever Dagster knows of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import current_process
from pathlib import Path

import pyarrow as pa

from traceviz_dag.analyze.pipelines.period_summary import PairVerdict, judge_pairs, period_summary
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.known_ranks import drop_unlisted_ranks
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.lake.stale import hidden_ranks
from traceviz_dag.lake.write import Written
from traceviz_dag.pipeline.across_ranks import analyse_across_ranks
from traceviz_dag.pipeline.aggregates import aggregate
from traceviz_dag.pipeline.completeness import ranks_in_words
from traceviz_dag.pipeline.derived import derive
from traceviz_dag.pipeline.engines import Engine, default_workers
from traceviz_dag.pipeline.findings import iteration_findings
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.pipeline.iteration import (
    rank_traces,
    ranks_that_break_invariants,
    topology_to_store,
    unread_ranks,
)
from traceviz_dag.pipeline.memory import mark_mismatched, set_aside_unreadable
from traceviz_dag.pipeline.named_periods import named_periods
from traceviz_dag.pipeline.shards import sharding_of
from traceviz_dag.pipeline.staleness import (
    PAIRS_VARIABLE,
    RankState,
    are_current,
    iteration_word,
    mark_aggregates,
    mark_of,
    outdated_marks,
    rank_states,
    stale_ranks,
    topology_is_current,
    topology_word,
    unmark_where_current,
)
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.pipeline.stored_topology import stored_topology
from traceviz_dag.pipeline.workers import IterationTask, RankOutcome, analyse_ranks
from traceviz_dag.read.pairs_file import read_pairs_file
from traceviz_dag.tables import (
    ACROSS_RANKS_TABLES,
    FINDINGS,
    PERIOD_PERCENTILES,
    TOPOLOGY_TABLES,
    TRACES,
    DerivedTable,
    all_tables,
)
from traceviz_dag.vocabulary import StaleCause, StaleStage


@dataclass(frozen=True, slots=True)
class Made:
    """A table that was made, or is current.

    Attributes:
        rows: as they were written.
    """

    written: Written
    rows: pa.Table


def _stored(lake: Lake, run: str, iteration: int, names: Iterable[str]) -> dict[str, Made]:
    found = {}
    for name in names:
        rows = lake.table(name, run, iteration).arrow(all_tables()[name].schema.names)
        found[name] = Made(lake.written(name, run=run, iteration=iteration), rows)
    return found


def make_topology(
    lake: Lake, inputs: IterationInputs, *, only_stale: bool = False
) -> tuple[Topology, dict[str, Written]]:
    """Read all headers of the iteration and its text file, unite them, and write both tables."""
    run, iteration = inputs.run, inputs.iteration
    made = topology_word(lake, inputs)
    is_current = topology_is_current(lake, inputs, made)
    if only_stale and is_current:
        topology, _ = stored_topology(lake, run, iteration)
        return topology, {name: lake.written(name, run=run, iteration=iteration) for name in TOPOLOGY_TABLES}
    topology, tables = topology_to_store(lake, inputs, is_current=is_current)
    write = partial(lake.write, run=run, iteration=iteration, made=made)
    return topology, {name: write(name, rows) for name, rows in zip(TOPOLOGY_TABLES, tables, strict=True)}


def make_ranks(
    lake: Lake,
    inputs: IterationInputs,
    rules: Rules,
    workers: int,
    wanted: Collection[int],
    only_stale: bool,
    started: Callable[[Sequence[int]], None] | None = None,
    beside: Iterable[IterationInputs] = (),
    engine: Engine | None = None,
) -> Iterator[RankOutcome]:
    """Analyse ranks side by side, and mark what is kept of those that failed, and what was made of the others before.

    Args:
        wanted: ranks. only_stale: leave out those whose tables are current. started: called before ranks are read, with
            those that will be. beside: iterations that are made next; ranks of theirs that lie in the same files are
            written, too, if their topology is the same, so that each file is read once. engine: as ``analyse_ranks``.

    Yields:
        An outcome for each rank, as it is finished; a rank whose trace is gone and whose tables are whole keeps them.

    Raises:
        BadInputError: there is no topology yet.
    """
    run, iteration = inputs.run, inputs.iteration
    topology, version = stored_topology(lake, run, iteration)
    states = [one for one in rank_states(lake, inputs, version, rules.digest) if one.entry.rank in wanted]
    asked = {one.entry.rank: one for one in states if not (only_stale and one.is_current)}
    marked = outdated_marks(lake, inputs)
    # What changed may have been changed back.
    current = {one.entry.rank for one in states if one.is_current and (not one.is_gone or one.entry.rank in marked)}
    unmark(lake, run, iteration, StaleStage.RANKS, current)
    # What is gone cannot be made anew: its tables stay, whatever of them is still current.
    kept = [_kept(one) for one in asked.values() if one.stays]
    traces = rank_traces(inputs, asked.keys() - {outcome.rank for outcome in kept})
    if started is not None:
        started([trace.rank for trace in traces])
    task = IterationTask(lake.home, run, iteration, topology, rules, version, home_peaks(lake.home))
    others = list(_beside(lake, task, traces, beside))
    outcomes: list[RankOutcome] = []
    for outcome in chain(kept, analyse_ranks(task, traces, workers or None, others, engine)):
        outcomes.append(outcome)
        yield outcome
    _mark(lake, inputs, outcomes, asked)


def _beside(
    lake: Lake, task: IterationTask, traces: Sequence[RankTrace], inputs: Iterable[IterationInputs]
) -> Iterator[tuple[IterationTask, dict[int, RankTrace]]]:
    """The iterations of which ranks are to be made as well, and these, in the files that are read."""
    read = {(trace.rank, trace.path, trace.part) for trace in traces}
    for other in inputs:
        if not topology_is_current(lake, other):
            continue
        topology, version = stored_topology(lake, other.run, other.iteration)
        states = rank_states(lake, other, version, task.rules.digest)
        asked = {entry.rank for entry in stale_ranks(states)}
        found = [one for one in rank_traces(other, asked) if (one.rank, one.path, one.part) in read]
        if found and topology == task.topology:
            same = replace(task, run=other.run, iteration=other.iteration, topology_version=version)
            yield same, {one.rank: one for one in found}


def _kept(state: RankState) -> RankOutcome:
    fault = f"{state.entry.path}: the trace is gone; its earlier tables are kept"
    return RankOutcome(state.entry.rank, {}, {}, fault, failed=True, kept=True)


def _mark(
    lake: Lake, inputs: IterationInputs, outcomes: Sequence[RankOutcome], before: Mapping[int, RankState]
) -> None:
    run, iteration = inputs.run, inputs.iteration
    unmark(lake, run, iteration, StaleStage.RANKS, {outcome.rank for outcome in outcomes if not outcome.kept})
    kept = [mark_of(before[outcome.rank], outcome.fault or "") for outcome in outcomes if outcome.kept]
    mark_stale(lake, run, iteration, kept)
    if not outcomes:
        return
    unmade = hidden_ranks(TRACES, lake.stale(run, iteration)) | {
        one.rank for one in outcomes if one.failed and not one.kept
    }
    if unmade:
        mark_aggregates(lake, inputs, StaleCause.WAITING, waits_for(sorted(unmade)))
    else:
        made = ranks_in_words([one.rank for one in outcomes])
        mark_aggregates(lake, inputs, StaleCause.OUTDATED, f"{made} made anew since")


def waits_for(ranks: Sequence[int]) -> str:
    """Which ranks the iteration's own tables wait for, and what to do."""
    return f"{ranks_in_words(ranks)} cannot be made anew: fix what is wrong there; --allow-partial goes on without them"


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The tables of an iteration.

    Attributes:
        unread: registered ranks that are not counted, as nothing of them could be read.
        dropped: ranks that are not of the job any more, whose tables were removed.
    """

    tables: Mapping[str, Made]
    unread: list[int]
    dropped: list[int]


def make_iteration_tables(
    lake: Lake,
    inputs: IterationInputs,
    *,
    allow_partial: bool = False,
    with_partial: bool = False,
    only_stale: bool = False,
) -> Aggregated:
    """Aggregate an iteration over its ranks.

    Args:
        allow_partial: go on without ranks of which nothing could be read.
        with_partial: count those that were read in part; by default measures across ranks leave them out.

    Raises:
        BadInputError: a rank is unread, or the measures of one break an invariant: an average with them would mislead.
    """
    run, iteration = inputs.run, inputs.iteration
    unread = unread_ranks(lake, inputs)
    dropped = [] if unread else drop_unlisted_ranks(lake, inputs)
    made = iteration_word(lake, run, iteration, "runs")
    if unread and not allow_partial:
        fault = f"{ranks_in_words(unread)} of {inputs.key} have no tables of their trace as it is"
        raise BadInputError(inputs.folder, fault, "fix their files, or set allow_partial")
    broken = ranks_that_break_invariants(lake, run, iteration)
    if broken:
        fault = f"measures of {ranks_in_words(broken)} of {inputs.key} break invariants"
        raise BadInputError(inputs.folder, fault, "report it, with the trace")
    if only_stale and are_current(lake, run, iteration, AGGREGATED_TABLES):
        return Aggregated(_stored(lake, run, iteration, AGGREGATED_TABLES), unread, dropped)
    tables = aggregate(lake, run, iteration, with_partial=with_partial)
    write = partial(lake.write, run=run, iteration=iteration, made=made)
    written = {name: Made(write(name, rows), rows) for name, rows in tables.items()}
    unmark_where_current(lake, inputs)
    return Aggregated(written, unread, dropped)


@dataclass(frozen=True, slots=True)
class AcrossRanks:
    """The tables across the ranks of an iteration.

    Attributes:
        verdicts: on the pairs that the file of pairs names. pairs_fault: what is wrong with that file; empty where
            nothing is: it costs no other table.
        warnings: one line for each snapshot that is not taken, or whose tables cannot be read.
    """

    tables: Mapping[str, Made]
    verdicts: Sequence[PairVerdict]
    pairs_fault: str
    warnings: Sequence[str]


def pairs_file(named: str = "") -> Path | None:
    """The file that names pairs: this one, else that of TRACEVIZ_PAIRS, if any."""
    path = named or os.environ.get(PAIRS_VARIABLE, "")
    return Path(path) if path else None


def make_across_ranks(
    lake: Lake,
    inputs: IterationInputs,
    *,
    pairs: Path | None = None,
    allow_partial: bool = False,
    with_partial: bool = False,
    only_stale: bool = False,
    workers: int | None = None,
    engine: Engine | None = None,
) -> AcrossRanks:
    """Match, align, charge, replay and pair the ranks of an iteration that were read whole, and judge what they say.

    A rank that never was read is a missing member of its communications, and its pipeline has no bubble: both are
    counted and said in the rows, so it is not waited for.

    Args:
        pairs: the file that names pairs. allow_partial: go on without ranks whose tables are stale.
        workers: processes for many ranks, or for shards of them; None: as many as fit. engine: as ``analyse_ranks``.

    Raises:
        BadInputError: no rank has tables; or those of one are stale, and without it these would show less than before.
    """
    run, iteration = inputs.run, inputs.iteration
    stale = [row.rank for row in lake.stale(run, iteration) if row.stage == StaleStage.RANKS and not row.is_counted]
    waiting = [rank for rank in stale if rank is not None and inputs.rank(rank) is not None]
    if waiting and not allow_partial:
        fault = f"tables of {ranks_in_words(waiting)} of {inputs.key} are stale"
        raise BadInputError(inputs.folder, fault, "fix their files, or set allow_partial")
    warnings = [
        f"tables of memory of rank {rank} cannot be read, and its snapshot is gone: set aside"
        for rank in set_aside_unreadable(lake, inputs)
    ]
    mismatched = mark_mismatched(lake, inputs).items()
    warnings += [f"the snapshot of rank {rank} is not taken: {why}" for rank, why in mismatched]
    if only_stale and are_current(lake, run, iteration, ACROSS_RANKS_TABLES):
        made = _stored(lake, run, iteration, ACROSS_RANKS_TABLES)
        verdicts, fault = judged_pairs(pairs, made["periods"].rows)
        return AcrossRanks(made, verdicts, fault, warnings)
    word = iteration_word(lake, run, iteration, FINDINGS.name)
    write = partial(lake.write, run=run, iteration=iteration, made=word)
    if not lake.partitions("kernels", run, iteration):
        raise BadInputError(inputs.folder, f"no rank of {inputs.key} has tables", "fix its traces")
    with lake.session(run=run, iteration=iteration) as session:
        stored = StoredIteration(session.within(), run, iteration, inputs, with_partial)
        sharding = sharding_of(len(stored.ranks), lake.home, workers, engine)
        # Where ranks are analysed elsewhere, this machine may be anybody's; and daemons may start no processes.
        here = 1 if engine is not None or current_process().daemon else workers or default_workers()
        tables = dict(analyse_across_ranks(stored, sharding, here))
        named, verdicts, fault = _named_pairs(pairs, stored, tables["periods"])
        if named.num_rows:
            tables["periods"] = pa.concat_tables([tables["periods"], named])
            tables["period_percentiles"] = PERIOD_PERCENTILES.from_rows(period_summary(tables["periods"]))
        made = {name: Made(write(name, rows), rows) for name, rows in tables.items()}
        # Rules ask the tables as they are in the lake, as anybody can.
        found = iteration_findings(stored.lake, run, iteration, stored.what_ifs)
        made[FINDINGS.name] = Made(write(FINDINGS.name, found), found)
    unmark_where_current(lake, inputs)
    return AcrossRanks(made, verdicts, fault, warnings)


def _named_pairs(
    file: Path | None, stored: StoredIteration, periods: pa.Table
) -> tuple[pa.Table, list[PairVerdict], str]:
    """Rows of the named pairs, the verdicts on them, and what is wrong with the file that names them."""
    try:
        pairs = read_pairs_file(file) if file is not None else ()
        named = named_periods(stored, pairs, periods)
    except BadInputError as error:
        return periods.slice(0, 0), [], str(error)
    return named, judge_pairs(pairs, named), ""


def judged_pairs(file: Path | None, periods: pa.Table) -> tuple[Sequence[PairVerdict], str]:
    """The verdicts on the pairs that a file names, by table ``periods``, and what is wrong with the file."""
    try:
        return judge_pairs(read_pairs_file(file) if file is not None else (), periods), ""
    except BadInputError as error:
        return (), str(error)


def make_derived(lake: Lake, table: DerivedTable, run: str, iteration: int, *, only_stale: bool = False) -> Made:
    """Ask the query of another package's table of an iteration, and keep what it says."""
    if only_stale and are_current(lake, run, iteration, [table.name]):
        return _stored(lake, run, iteration, [table.name])[table.name]
    made = iteration_word(lake, run, iteration, table.name)
    rows = derive(lake, table, run, iteration)
    written = lake.write(table.name, rows, run=run, iteration=iteration, made=made)
    unmark(lake, run, iteration, table.name)
    return Made(written, rows)
