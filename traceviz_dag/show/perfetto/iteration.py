"""An iteration as one Perfetto trace: tracks by stage, rank and stream, micro-batches, arrows and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import judge_arrivals
from traceviz_dag.errors import UsageError
from traceviz_dag.show.lanes.bundle import Bundle
from traceviz_dag.show.lanes.iteration import (
    LAUNCH_COLUMNS,
    STREAM_COLUMNS,
    OfAllRanks,
    add_allocated,
    add_exposed,
    add_gaps,
    add_host,
    add_in_flight,
    add_microbatches,
    by_start,
    stream_lanes,
)
from traceviz_dag.show.lanes.lane import LaneKind
from traceviz_dag.show.lanes.words import EXPOSED_TIME, IN_FLIGHT, rank_label
from traceviz_dag.show.page.activity import read_steps, trace_status
from traceviz_dag.show.page.members import Group, Member, pipelines, read_members, replicas
from traceviz_dag.show.perfetto.clocks import TraceClocks, shifted_past_zero, trace_clocks
from traceviz_dag.show.perfetto.flows import Flows, RankFlows, flows_of, no_flows
from traceviz_dag.show.perfetto.path_tracks import add_path_of_rank, add_whole_path, trace_path
from traceviz_dag.show.perfetto.trace import PerfettoTrace, Slices, Track, perfetto_trace
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category, Phase, TraceStatus

ARGUMENTS = (
    *("kernel_id", "phase", "phase_evidence", "dimension", "dimension_evidence", "role", "step", "chunk", "microbatch"),
    *("module", "layer", "operator", "correlation", "collective", "group_name", "group_description", "dtype"),
    *("in_elements", "bytes"),
)
"""Columns of the table ``kernels`` that each slice carries."""

_COLUMNS = tuple(dict.fromkeys((*ARGUMENTS, *STREAM_COLUMNS, *LAUNCH_COLUMNS)))

GAP = "gap"
"""Category of times without computation, and of no other slices: sums over kernels leave it out."""


class Scope(StrEnum):
    """What a trace holds: one pipeline group, one complete model, or all ranks of an iteration."""

    PIPELINE = "pipeline"
    REPLICA = "replica"
    ITERATION = "iteration"


@dataclass(frozen=True, slots=True)
class Matched:
    """What is known across ranks: their communications, matched, and the table ``rank_clocks`` of the same matches."""

    matches: Matches
    rank_clocks: pa.Table


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """A trace as it was written.

    Attributes:
        clock: the sentence on its clocks.
        arrows: flows between kernels and along the critical path; ``backward`` ones, against time, were left out.
        missing: ranks without kernels.
    """

    path: Path
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    slices: int
    arrows: int
    backward: int
    clock: str
    bytes: int


def chosen_groups(source: TableSource, scope: Scope, number: int | None) -> list[Group]:
    """The groups of ranks of a scope: all pipelines of a replica or an iteration, ranks without one in a last group.

    Raises:
        UsageError: the topology knows no such pipeline or replica.
    """
    members: Sequence[Member] = read_members(source)
    if scope is Scope.REPLICA:
        members = _group(replicas(members), "replica", number).members
    if scope is Scope.PIPELINE:
        return [_group(pipelines(members), "pipeline", number)]
    rest = [member for member in members if member.pipeline is None]
    return [*pipelines(members), *([Group(None, rest)] if rest else [])]


def write_iteration_trace(
    source: TableSource,
    path: Path,
    scope: Scope = Scope.ITERATION,
    number: int | None = None,
    matched: Matched | None = None,
    recorded_clocks: bool = False,
    memory: Callable[[int], pa.Table] | None = None,
) -> WrittenTrace:
    """Write one Perfetto trace of an iteration, from its tables.

    Args:
        number: ordinal of the pipeline or the replica.
        matched: the communications of all ranks, matched; without them there are no arrows and no solved clocks.
        recorded_clocks: leave the clocks as recorded even where they are solved.
        memory: rank → what its devices have allocated over time (``read.kineto_memory.MEMORY``).

    Raises:
        UsageError: the topology knows no such pipeline or replica, or the iteration has no rank.
        BadInputError: the file cannot be written.
    """
    groups = chosen_groups(source, scope, number)
    ranks = sorted(rank for group in groups for rank in group.ranks)
    if not ranks:
        raise UsageError(f"{source.run}, iteration {source.iteration} has no rank")
    clocks = trace_clocks(None if matched is None or recorded_clocks else matched.rank_clocks, ranks)
    critical = trace_path(source, ranks, clocks)
    clocks = shifted_past_zero(clocks, source, ranks, 0 if critical is None else critical.first_ns)
    flows = no_flows()
    if matched is not None:
        judged = judge_arrivals(matched.matches, matched.rank_clocks)
        flows = flows_of(matched.matches, judged.best(), ranks, clocks)
    missing: list[int] = []
    every, backward = OfAllRanks(source), flows.backward
    about = {"run": source.run, "iteration": str(source.iteration), "scope": _scope_text(scope, number)}
    if critical is not None:
        critical = critical.moved(clocks.shift_ns)
        about["critical path"] = critical.statement
        backward += critical.backward
    if backward:
        about["arrows left out"] = f"{backward}, which would run against time on these clocks"
    with perfetto_trace(path, clocks.statement, about) as trace:
        if critical is not None:
            add_whole_path(trace, critical)
        for order, group in enumerate(groups):
            root = trace.add_track(_title(group, len(groups)), order=order, description=clocks.statement)
            for place, member in enumerate(group.members):
                track = trace_track(trace, root, member, place)
                if critical is not None:
                    add_path_of_rank(trace, track, critical, member.rank)
                of_rank = None if memory is None else memory(member.rank)
                if not _add_rank(trace, every, member, track, clocks, flows, of_rank):
                    missing.append(member.rank)
        if missing:
            about["ranks without kernels"] = ", ".join(map(str, missing))
        written = trace.slices
    return WrittenTrace(
        path=path,
        ranks=tuple(ranks),
        missing=tuple(missing),
        slices=written,
        arrows=flows.arrows + (0 if critical is None else critical.arrows),
        backward=backward,
        clock=clocks.statement,
        bytes=path.stat().st_size,
    )


def trace_track(trace: PerfettoTrace, root: Track, member: Member, place: int) -> Track:
    """The track of a rank, which is the parent of its lanes."""
    return trace.add_track(rank_label(member.rank, member.stage), root, order=place)


def _add_rank(
    trace: PerfettoTrace,
    every: OfAllRanks,
    member: Member,
    track: Track,
    clocks: TraceClocks,
    flows: Flows,
    memory: pa.Table | None,
) -> bool:
    """Add a rank; False where it has no kernels, which its track then says."""
    source = every.source
    kernels = by_start(source.table("kernels", _COLUMNS, member.rank)).combine_chunks()
    if not kernels.num_rows:
        status = trace_status(source, member.rank)
        word = "its trace could not be read" if status == TraceStatus.FAILED.value else "no kernels"
        trace.add_track(f"no kernels: {word}", track)
        return False
    if trace_status(source, member.rank) == TraceStatus.PARTIAL.value:
        trace.add_track("PARTIAL: a part of this rank's trace could not be read", track)
    starts, lengths = (np.asarray(kernels[name], np.int64) for name in ("start_ns", "duration_ns"))
    time = Intervals(*(clocks.of_trace(member.rank, each) for each in (starts, starts + lengths)))
    bundle = Bundle()
    steps = read_steps(source, member.rank)
    add_microbatches(bundle, steps, member.rank)
    add_gaps(bundle, source, member.rank)
    add_host(bundle, source, kernels, member.rank)
    for order, lane in enumerate(bundle.lanes, _GAPS):
        if lane.kind is LaneKind.COUNTER:
            continue
        content = bundle.contents[lane.key]
        rows = content.rows
        begun, ended = (clocks.of_trace(member.rank, each) for each in (rows.start_ns, rows.end_ns))
        keys = content.keys(rows)
        if lane.kind is LaneKind.GAPS:
            slices = Slices(begun, ended - begun, content.labels(rows), GAP, coloured_as=keys)
            trace.add_slices(trace.add_track(lane.label, track, order=order), slices)
            continue
        names = pa.array(bundle.words[content.words], pa.string()).take(pa.array(rows.name))
        if lane.kind is not LaneKind.MICROBATCHES:
            trace.add_slices(
                trace.add_track(lane.label, track, order=order), Slices(begun, ended - begun, names, keys), nested=True
            )
            continue
        # On the rank's track itself: it shows them while it is folded.
        category = np.where(steps.backward, Category.BWD_COMPUTATION.value, Category.FWD_COMPUTATION.value)
        phase = np.where(steps.backward, Phase.BACKWARD.value, Phase.FORWARD.value)
        facts = {"phase": phase, "microbatch": steps.microbatch, "chunk": steps.chunk}
        trace.add_slices(track, Slices(begun, ended - begun, names, category, facts, coloured_as=keys))
    of_rank = flows.of_rank(member.rank, np.asarray(kernels["kernel_id"], np.int64))
    _add_streams(trace, track, member, kernels, time, of_rank)
    add_in_flight(bundle, steps, member.rank)
    add_exposed(bundle, kernels, member.rank)
    if memory is not None:
        add_allocated(bundle, memory, member.rank)
    for lane in bundle.lanes:
        if lane.kind is LaneKind.COUNTER:
            changes = bundle.counters[lane.key]
            # A recording of memory may hold other iterations, too.
            within = slice(*np.searchsorted(changes.time_ns, (starts.min(), (starts + lengths).max() + 1)).tolist())
            told = next((words for name, words in _DESCRIPTIONS.items() if lane.label.startswith(name)), "")
            counter = trace.add_counter(lane.label, track, unit=lane.unit, order=_COUNTERS, description=told)
            trace.add_counts(counter, clocks.of_trace(member.rank, changes.time_ns[within]), changes.value[within])
    return True


_COUNTERS, _GAPS = 1, 1000
"""Places of counters, and of gaps and the host's lanes, below a rank; its streams are between them."""

_DESCRIPTIONS = {
    IN_FLIGHT: "Forward begun, backward not ended.",
    EXPOSED_TIME: "1 while communication runs without computation.",
}


def _add_streams(
    trace: PerfettoTrace, track: Track, member: Member, kernels: pa.Table, time: Intervals, flows: RankFlows
) -> None:
    """A track a stream of a device."""
    durations = time.ends - time.starts
    for order, lane in enumerate(stream_lanes(kernels, member.rank), _COUNTERS + 1):
        own = lane.rows
        part = kernels.take(pa.array(own))
        arguments: dict[str, pa.ChunkedArray | pa.Array] = {column: part[column] for column in ARGUMENTS}
        arguments |= {"rank": pa.repeat(pa.scalar(member.rank, pa.int64()), len(own))}
        arguments |= {"wait_ns": flows.wait_ns.take(pa.array(own)), "last_rank": flows.last_rank.take(pa.array(own))}
        slices = Slices(
            time.starts[own],
            durations[own],
            part["name"],
            part["category"],
            {column: values for column, values in arguments.items() if values.null_count < len(values)},
            flows_out=[layer[own] for layer in flows.leaving],
            flows_in=[layer[own] for layer in flows.arriving],
        )
        trace.add_slices(trace.add_track(lane.lane.label, track, order=order), slices)


def _group(groups: Sequence[Group], word: str, number: int | None) -> Group:
    known = {group.number: group for group in groups}
    if number not in known:
        names = ", ".join(str(each) for each in known if each is not None) or "none"
        raise UsageError(f"no {word} {number}; known are {names}")
    return known[number]


def _title(group: Group, groups: int) -> str:
    if group.number is not None:
        return f"pipeline {group.number}"
    return "all ranks" if groups == 1 else "no known pipeline"


def _scope_text(scope: Scope, number: int | None) -> str:
    return "all ranks" if scope is Scope.ITERATION else f"{scope} {number}"
