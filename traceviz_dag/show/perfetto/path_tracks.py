"""The critical path in a trace: one lane with all of it, a track of its segments on each rank, arrows between ranks.

On a rank's track a segment is where its kernel is. The lane is time along the path: its slices follow one another as
the path does, whatever is known of the clocks, and begin where the path is on the clock of the rank with most of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import integers
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.wording import duration
from traceviz_dag.arrays import Bool, Int64, UInt64
from traceviz_dag.show.lanes.iteration import path_kinds
from traceviz_dag.show.lanes.words import PATH, word_of
from traceviz_dag.show.page.facts import ranks_named, step_name
from traceviz_dag.show.perfetto.clocks import TraceClocks
from traceviz_dag.show.perfetto.trace import PerfettoTrace, Slices, Track
from traceviz_dag.show.source import TableSource

CRITICAL_PATH = "critical_path"
"""Category of the slices of the path, and of no others: sums over kernels leave it out."""

PATH_ARGUMENTS = (
    *("step", "segment", "cause", "category", "phase", "dimension", "module", "rank", "stage", "chunk", "microbatch"),
    *("kernel_id", "entered_by"),
)
"""Columns of the table ``path_segments`` that each slice carries."""

_FIRST_FLOW = 1 << 48
"""Numbers of the path's flows begin here, those of communications are below."""


@dataclass(frozen=True, slots=True, eq=False)
class TracePath:
    """The critical path on the clock of a trace; arrays have an entry a segment, step by step in the order of time.

    Attributes:
        rank: of each; shown: whether the trace holds that rank.
        starts, ends: on the rank's track; of ranks that are not shown on no clock of the trace.
        lane_starts: in the lane of the whole path; lane_ends: start and duration.
        leaving, arriving: number of the flow that leaves or reaches each segment, 0 for none.
        arrows: moves from a rank that is shown to another; backward: those left out, against time on these clocks.
        statement: where the lane is, in a sentence.
    """

    segments: pa.Table
    rank: Int64
    shown: Bool
    starts: Int64
    ends: Int64
    lane_starts: Int64
    lane_ends: Int64
    leaving: UInt64
    arriving: UInt64
    arrows: int
    backward: int
    statement: str

    @property
    def first_ns(self) -> int:
        """When the first of what is drawn begins."""
        return int(min(self.lane_starts.min(), self.starts[self.shown].min()))

    def moved(self, by_ns: int) -> TracePath:
        """All later by so much."""
        times = {name: getattr(self, name) + by_ns for name in ("starts", "ends", "lane_starts", "lane_ends")}
        return replace(self, **times)


def trace_path(source: TableSource, ranks: Sequence[int], clocks: TraceClocks) -> TracePath | None:
    """The path of an iteration's steps in a trace of some ranks; None where none of them is on it."""
    columns = (*PATH_ARGUMENTS, "start_ns", "duration_ns")
    table = source.table("path_segments", columns)
    table = table.sort_by([("step", "ascending"), ("segment", "ascending")]).combine_chunks()
    rank, own = integers(table, "rank"), integers(table, "start_ns")
    shown = np.isin(rank, np.asarray(ranks, np.int64))
    if not shown.any():
        return None
    length = integers(table, "duration_ns")
    starts, ends = np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
    for number in np.unique(rank[shown]).tolist():
        mine = rank == number
        starts[mine] = clocks.of_trace(number, own[mine])
        ends[mine] = clocks.of_trace(number, own[mine] + length[mine])
    steps = optional_integers(table, "step")
    lane, said = np.zeros(len(rank), np.int64), []
    for step in np.unique(steps).tolist():
        mine = np.flatnonzero(steps == step)
        if shown[mine].any():
            lane[mine], text = _lane(rank[mine], shown[mine], starts[mine], length[mine])
            said.append(f"{step_name(table['step'][int(mine[0])].as_py())}: {text}")
    kept = np.isin(steps, np.unique(steps[shown]))
    leaving, arriving, backward = _flows(rank, steps, shown, starts, ends)
    return TracePath(
        table.filter(pa.array(kept)), rank[kept], shown[kept], starts[kept], ends[kept], lane[kept],
        lane[kept] + length[kept], leaving[kept], arriving[kept], int((leaving > 0).sum()), backward, "; ".join(said),
    )  # fmt: skip


def _lane(rank: Int64, shown: Bool, starts: Int64, length: Int64) -> tuple[Int64, str]:
    """Where each segment of a step begins in the lane, and in words how far that is from where its rank has it."""
    along = np.cumsum(length) - length
    on_rank = {number: int(length[shown & (rank == number)].sum()) for number in np.unique(rank[shown]).tolist()}
    anchor = max(on_rank, key=lambda number: (on_rank[number], -number))
    first = int(np.flatnonzero(rank == anchor)[0])
    lane: Int64 = starts[first] - along[first] + along
    away = int(np.abs(lane - starts)[shown].max())
    hidden = sorted({*rank.tolist()} - {*on_rank})
    without = f"; {ranks_named(hidden)} of it not in this trace" if hidden else ""
    return lane, (
        f"{duration(int(length.sum()))} along the path, on the clock of rank {anchor}; "
        f"segments are up to {duration(away)} from where their ranks have them{without}"
    )


def _flows(rank: Int64, steps: Int64, shown: Bool, starts: Int64, ends: Int64) -> tuple[UInt64, UInt64, int]:
    """The flow that leaves, and that reaches each segment, where the path moves to another rank; and those left out."""
    moves = np.flatnonzero((rank[1:] != rank[:-1]) & (steps[1:] == steps[:-1]) & shown[1:] & shown[:-1])
    forward = ends[moves + 1] >= starts[moves]
    drawn = moves[forward]
    leaving, arriving = np.zeros(len(rank), np.uint64), np.zeros(len(rank), np.uint64)
    leaving[drawn] = arriving[drawn + 1] = (_FIRST_FLOW + drawn).astype(np.uint64)
    return leaving, arriving, int((~forward).sum())


def add_whole_path(trace: PerfettoTrace, path: TracePath) -> None:
    """Add the lane of the whole path, above all ranks."""
    track = trace.add_track(PATH, order=-1, description=path.statement)
    trace.add_slices(track, _slices(path, np.arange(len(path.rank)), path.lane_starts, path.lane_ends))


def add_path_of_rank(trace: PerfettoTrace, parent: Track, path: TracePath, rank: int) -> None:
    """Add the track of what of the path is on a rank, with arrows from and to other ranks; none where nothing is."""
    mine = np.flatnonzero(path.rank == rank)
    if not len(mine):
        return
    slices = _slices(path, mine, path.starts, path.ends)
    slices = replace(slices, flows_out=[path.leaving[mine]], flows_in=[path.arriving[mine]])
    trace.add_slices(trace.add_track(PATH, parent, order=-1), slices)


def _slices(path: TracePath, chosen: Int64, starts: Int64, ends: Int64) -> Slices:
    """Slices of some segments, named as the lane model names them."""
    part = path.segments.take(pa.array(chosen))
    place, kinds = path_kinds(part)
    keys, names = (
        pa.array(each, pa.string()).take(pa.array(place)) for each in (kinds, [word_of(one).label for one in kinds])
    )
    arguments = {name: part[name] for name in PATH_ARGUMENTS}
    return Slices(
        starts[chosen],
        ends[chosen] - starts[chosen],
        names,
        CRITICAL_PATH,
        coloured_as=keys,
        arguments={name: values for name, values in arguments.items() if values.null_count < len(values)},
    )
