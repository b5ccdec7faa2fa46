"""An iteration as one Perfetto trace: tracks by stage, rank and stream, micro-batches, arrows and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import judge_arrivals
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import UsageError
from traceviz_dag.show.page.activity import NO_CHUNK, Steps, read_steps, trace_status
from traceviz_dag.show.page.members import Group, Member, pipelines, read_members, replicas
from traceviz_dag.show.perfetto.clocks import TraceClocks, shifted_past_zero, trace_clocks
from traceviz_dag.show.perfetto.flows import Flows, RankFlows, flows_of, no_flows
from traceviz_dag.show.perfetto.path_tracks import add_path_of_rank, add_whole_path, trace_path
from traceviz_dag.show.perfetto.trace import PerfettoTrace, Slices, Track, perfetto_trace
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category, Kind, TraceStatus

IN_FLIGHT = "micro-batches in flight"
EXPOSED = "exposed communication"
ALLOCATED = "allocated memory"

ARGUMENTS = (
    *("kernel_id", "phase", "phase_evidence", "dimension", "dimension_evidence", "role", "step", "chunk", "microbatch"),
    *("module", "layer", "operator", "correlation", "collective", "group_name", "group_description", "dtype"),
    *("in_elements", "bytes"),
)
"""Columns of the table ``kernels`` that each slice carries."""

_COLUMNS = (*ARGUMENTS, "name", "start_ns", "duration_ns", "device", "stream", "kind", "category")
_FIRST_STREAM = 2


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
    backward = flows.backward
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
                time = _add_rank(trace, source, member, track, clocks, flows)
                if time is None:
                    missing.append(member.rank)
                elif memory is not None:
                    _add_memory(trace, track, memory(member.rank), member.rank, time, clocks)
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
    """The track of a rank, which holds its micro-batches and is the parent of its streams and counters."""
    stage = "" if member.stage is None else f"stage {member.stage} · "
    return trace.add_track(f"{stage}rank {member.rank}", root, order=place)


def _add_rank(
    trace: PerfettoTrace, source: TableSource, member: Member, track: Track, clocks: TraceClocks, flows: Flows
) -> Intervals | None:
    """Add a rank; its kernels' times in the trace, None where it has no kernels, which its track then says."""
    kernels = source.table("kernels", _COLUMNS, member.rank).combine_chunks()
    if not kernels.num_rows:
        status = trace_status(source, member.rank)
        word = "its trace could not be read" if status == TraceStatus.FAILED.value else "no kernels"
        trace.add_track(f"no kernels: {word}", track)
        return None
    if trace_status(source, member.rank) == TraceStatus.PARTIAL.value:
        trace.add_track("PARTIAL: a part of this rank's trace could not be read", track)
    starts = np.asarray(kernels["start_ns"], np.int64)
    ends = starts + np.asarray(kernels["duration_ns"], np.int64)
    time = Intervals(clocks.of_trace(member.rank, starts), clocks.of_trace(member.rank, ends))
    _add_steps(trace, track, read_steps(source, member.rank), member.rank, clocks)
    kernel_ids = np.asarray(kernels["kernel_id"], np.int64)
    _add_streams(trace, track, member, kernels, time, flows.of_rank(member.rank, kernel_ids))
    _add_exposed(trace, track, kernels, time)
    return time


def _add_steps(trace: PerfettoTrace, track: Track, steps: Steps, rank: int, clocks: TraceClocks) -> None:
    """Micro-batches on the rank's own track, and how many of them are in flight."""
    if not len(steps):
        return
    starts, ends = clocks.of_trace(rank, steps.time.starts), clocks.of_trace(rank, steps.time.ends)
    several = len(np.unique(steps.chunk)) > 1
    names = [
        f"{'B' if backward else 'F'}{microbatch}" + (f" c{chunk}" if several and chunk != NO_CHUNK else "")
        for backward, microbatch, chunk in zip(
            steps.backward.tolist(), steps.microbatch.tolist(), steps.chunk.tolist(), strict=True
        )
    ]
    phase = np.where(steps.backward, "backward", "forward")
    category = np.where(steps.backward, Category.BWD_COMPUTATION.value, Category.FWD_COMPUTATION.value)
    arguments = {"phase": phase, "microbatch": steps.microbatch, "chunk": steps.chunk}
    trace.add_slices(track, Slices(starts, ends - starts, pa.array(names), category, arguments))
    if steps.backward.any():
        counter = trace.add_counter(IN_FLIGHT, track, order=0, description="Forward begun, backward not ended.")
        trace.add_counts(counter, *_in_flight(starts[~steps.backward], ends[steps.backward]))


def _in_flight(begun: Int64, ended: Int64) -> tuple[Int64, Int64]:
    """Instants at which the number of micro-batches in flight changes, and the number from then on."""
    times = np.concatenate((begun, ended))
    steps = np.concatenate((np.ones(len(begun), np.int64), np.full(len(ended), -1)))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(steps[order])
    last = np.append(times[1:] != times[:-1], True)
    return times[last], depth[last]


def _add_streams(
    trace: PerfettoTrace, track: Track, member: Member, kernels: pa.Table, time: Intervals, flows: RankFlows
) -> None:
    """A track a stream of a device, those with the most computation first."""
    device_codes, devices = codes(kernels, "device")
    stream_numbers = np.asarray(kernels["stream"].fill_null(-1), np.int64)
    computes = _is_kind(kernels, Kind.COMPUTATION)
    keys = np.unique(np.stack((device_codes, stream_numbers)), axis=1).T.tolist()
    rows = {(d, s): np.flatnonzero((device_codes == d) & (stream_numbers == s)) for d, s in keys}
    durations = time.ends - time.starts
    busiest = sorted(rows, key=lambda key: (-int(durations[rows[key]][computes[rows[key]]].sum()), key))
    for order, key in enumerate(busiest, _FIRST_STREAM):
        own = rows[key]
        part = kernels.take(pa.array(own))
        name = _stream_name(key[1], devices[key[0]] if len(devices) > 1 else "", part, bool(computes[own].any()))
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
        trace.add_slices(trace.add_track(name, track, order=order), slices)


def _stream_name(stream: int, device: str, kernels: pa.Table, computes: bool) -> str:
    place = " ".join(part for part in (device, f"stream {stream}" if stream >= 0 else "no stream") if part)
    dimensions = sorted(set(pc.unique(kernels["dimension"].cast(pa.string())).to_pylist()) - {None})
    words = "computation" if computes else ", ".join(dimensions[:3]) + (" …" if len(dimensions) > 3 else "")
    return f"{place} · {words}" if words else place


def _add_exposed(trace: PerfettoTrace, rank: Track, kernels: pa.Table, time: Intervals) -> None:
    """1 while a device communicates and does not compute, 0 otherwise."""
    communicates = _is_kind(kernels, Kind.COMMUNICATION)
    if not communicates.any():
        return
    computes = _is_kind(kernels, Kind.COMPUTATION)
    device = np.asarray(kernels["device"].cast(pa.string()).to_numpy(zero_copy_only=False), str)
    names = np.unique(device[communicates]).tolist()
    for name in names:
        own = device == name
        exposed = subtract(
            union(time.starts[own & communicates], time.ends[own & communicates]),
            union(time.starts[own & computes], time.ends[own & computes]),
        )
        times = np.stack((exposed.starts, exposed.ends), axis=1).reshape(-1)
        values = np.tile(np.array([1, 0]), len(exposed.starts))
        title = EXPOSED if len(names) == 1 else f"{EXPOSED} {name}"
        counter = trace.add_counter(title, rank, order=1, description="1 while communication runs without computation.")
        trace.add_counts(counter, times, values)


def _add_memory(
    trace: PerfettoTrace, rank: Track, memory: pa.Table, number: int, time: Intervals, clocks: TraceClocks
) -> None:
    """What each device has allocated while the iteration runs; a file may hold other iterations, too."""
    times = clocks.of_trace(number, np.asarray(memory["time_ns"], np.int64))
    within = memory.append_column("at", pa.array(times)).filter(
        pa.array((times >= time.starts.min()) & (times <= time.ends.max()))
    )
    names = pc.unique(within["device"]).to_pylist()
    for name in sorted(names):
        own = within.filter(pc.equal(within["device"], name))
        counter = trace.add_counter(f"{ALLOCATED} {name}", rank, unit="bytes", order=1)
        trace.add_counts(counter, np.asarray(own["at"], np.int64), np.asarray(own["allocated_bytes"], np.int64))


def _is_kind(kernels: pa.Table, kind: Kind) -> npt.NDArray[np.bool_]:
    equal = pc.equal(kernels["kind"].cast(pa.string()), kind.value)
    return np.asarray(equal.to_numpy(zero_copy_only=False), np.bool_)


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
