"""What one rank did in one iteration, as sets of intervals and micro-batch steps, read from its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import NOTHING, Intervals, clip, intersect, measure, merge, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.arrays import Int64
from traceviz_dag.show.page.facts import RankMeasures, rank_measures
from traceviz_dag.show.source import TableSource, rows
from traceviz_dag.tables.rows import TraceStatusRow
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Category, Dimension, Kind, Phase, TraceStatus

KERNEL_COLUMNS = ("start_ns", "duration_ns", "kind", "dimension", "category", "microbatch")
STEP_COLUMNS = ("step", "phase", "chunk", "microbatch", "span_start_ns", "span_end_ns", "order_in_rank")
NO_CHUNK = -1


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Forward and backward steps of micro-batches, in the order of their first kernels; one entry per step.

    Attributes:
        time: first start to last end of each step's kernels, ns.
        backward: whether it is a backward step (its recompute included), else a forward step.
        chunk: model chunk, ``NO_CHUNK`` where unknown.
        microbatch: index within the chunk.
        training_step: ProfilerStep, ``NO_CHUNK`` where the trace marks none.
    """

    time: Intervals
    backward: npt.NDArray[np.bool_]
    chunk: Int64
    microbatch: Int64
    training_step: Int64

    def __len__(self) -> int:
        return len(self.microbatch)

    def take(self, chosen: npt.NDArray[np.bool_]) -> Steps:
        """The steps that a mask names."""
        time = Intervals(self.time.starts[chosen], self.time.ends[chosen])
        return Steps(
            time, self.backward[chosen], self.chunk[chosen], self.microbatch[chosen], self.training_step[chosen]
        )

    def by_training_step(self) -> list[Steps]:
        """The steps of each training step, in order."""
        return [self.take(self.training_step == number) for number in np.unique(self.training_step).tolist()]

    def overlap(self) -> bool:
        """Whether forward and backward steps run side by side for over 2 % of their time, as combined schedules do."""
        if not len(self):
            return False
        both = intersect(*(Intervals(*self.take(side).time) for side in (self.backward, ~self.backward)))
        return measure(both) > 0.02 * measure(self.time)


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """One rank's iteration.

    Attributes:
        computation: category → union of its computation kernels.
        communication: (dimension, category) → union of its communication kernels.
        memory: union of the memory operations.
        outside_steps: category → union of the computation kernels that belong to no micro-batch.
        steps: the micro-batches; none where the trace does not show them.
        status: read, partial or failed (no kernels then); unknown where the table ``traces`` does not say.
        kernels: kernels and memory operations.
        measures: the rank's row of the table ``overlap``; None where there is none.
    """

    rank: int
    computation: Mapping[str, Intervals]
    communication: Mapping[tuple[str, str], Intervals]
    memory: Intervals
    outside_steps: Mapping[str, Intervals]
    steps: Steps
    status: str
    kernels: int
    measures: RankMeasures | None

    @property
    def window(self) -> tuple[int, int]:
        """Start and end in ns of what figures speak of: the training step where there is one, else all kernels."""
        if self.measures is not None:
            return self.measures.window_start_ns, self.measures.window_end_ns
        return self.span() or (0, 0)

    @property
    def measured_steps(self) -> Steps:
        """The micro-batches that figures speak of: of several training steps those of the first, as the window is."""
        if self.measures is None or self.measures.steps < 2:
            return self.steps
        return self.steps.take(self.steps.training_step == self.measures.step)

    def time_of(self, intervals: Intervals) -> int:
        """Time that intervals cover in the window, ns."""
        return measure(clip(intervals, *self.window))

    def everything(self) -> Intervals:
        """Union of all that ran."""
        return merge(*self.computation.values(), *self.communication.values(), self.memory)

    def span(self) -> tuple[int, int] | None:
        """Start of the first and end of the last kernel, ns; None without kernels."""
        busy = self.everything()
        return (int(busy.starts[0]), int(busy.ends[-1])) if len(busy.starts) else None

    def all_computation(self) -> Intervals:
        """Union of all computation kernels."""
        return merge(*self.computation.values())

    def all_communication(self) -> Intervals:
        """Union of all communication kernels."""
        return merge(*self.communication.values())

    def exposed(self) -> Intervals:
        """Where communication runs and no computation."""
        return subtract(self.all_communication(), self.all_computation())

    def communication_by_category(self) -> dict[str, Intervals]:
        """Category → union of its communication kernels, over all dimensions."""
        merged: dict[str, Intervals] = {}
        for (_, category), intervals in self.communication.items():
            merged[category] = merge(merged.get(category, NOTHING), intervals)
        return merged

    def recompute(self) -> Intervals:
        """Union of what is computed and communicated again in backward steps."""
        again = [each for (_, name), each in self.communication.items() if name == Category.BWD_COMMUNICATION_RECOMPUTE]
        return merge(self.computation.get(Category.BWD_COMPUTATION_RECOMPUTE, NOTHING), *again)

    def pipeline_spans(self) -> list[tuple[int, int]]:
        """First start to last end of the micro-batch steps of each training step, ns; none without micro-batches.

        What runs between two training steps, such as the optimizer, is in no span.
        """
        return [(int(steps.time.starts.min()), int(steps.time.ends.max())) for steps in self.steps.by_training_step()]

    def stage_idle(self) -> Intervals:
        """Time from first to last micro-batch of each training step in which no micro-batch runs."""
        spans = self.pipeline_spans()
        if not spans:
            return NOTHING
        starts, ends = np.array(spans, dtype=np.int64).T
        return subtract(union(starts, ends), self.steps.time)


@dataclass(frozen=True, slots=True, eq=False)
class WallClock:
    """A window parted into what fills it; the parts are disjoint and add up to the window."""

    computation_only: Intervals
    hidden: Intervals
    exposed: Intervals
    memory_only: Intervals
    idle: Intervals


def read_activity(source: TableSource, rank: int) -> Activity:
    """Read one rank; a rank without kernels has no intervals and keeps its status."""
    kernels = source.table("kernels", KERNEL_COLUMNS, rank)
    starts = np.asarray(kernels["start_ns"].to_numpy(), dtype=np.int64)
    ends = starts + np.maximum(np.asarray(kernels["duration_ns"].to_numpy(), dtype=np.int64), 1)
    category, categories = codes(kernels, "category")
    dimension, dimensions = codes(kernels, "dimension")
    kind, kinds = codes(kernels, "kind")

    def is_kind(wanted: Kind) -> npt.NDArray[np.bool_]:
        return np.array([*(name == wanted for name in kinds), False], dtype=bool)[kind]

    def unions(mask: npt.NDArray[np.bool_]) -> dict[str, Intervals]:
        parts = {name: mask & (category == code) for code, name in enumerate(categories)}
        return {name: union(starts[part], ends[part]) for name, part in parts.items() if part.any()}

    computes, communicates, moves = (is_kind(kind) for kind in (Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY))
    in_no_step = pc.is_null(kernels["microbatch"]).to_numpy(zero_copy_only=False)
    named = dict(enumerate(dimensions)) | {-1: Dimension.UNKNOWN.value}
    communication: dict[tuple[str, str], Intervals] = {}
    for code in np.unique(dimension[communicates]).tolist():
        for name, intervals in unions(communicates & (dimension == code)).items():
            key = (named[code], name)
            communication[key] = merge(communication.get(key, NOTHING), intervals)
    return Activity(
        rank=rank,
        computation=unions(computes),
        communication=communication,
        memory=union(starts[moves], ends[moves]),
        outside_steps=unions(computes & in_no_step),
        steps=read_steps(source, rank),
        status=trace_status(source, rank),
        kernels=kernels.num_rows,
        measures=rank_measures(source, rank),
    )


def read_steps(source: TableSource, rank: int) -> Steps:
    """The rank's forward and backward steps, by start."""
    table = source.table("microbatches", (*STEP_COLUMNS, "dimension"), rank)
    table = table.filter(pc.equal(table["dimension"], ALL_DIMENSIONS))
    table = table.filter(pc.not_equal(table["phase"], Phase.RECOMPUTE.value))
    table = table.sort_by([("span_start_ns", "ascending"), ("order_in_rank", "ascending")])
    return Steps(
        Intervals(_integers(table, "span_start_ns"), _integers(table, "span_end_ns")),
        pc.equal(table["phase"], Phase.BACKWARD.value).to_numpy(zero_copy_only=False).astype(bool),
        _integers(table, "chunk"),
        _integers(table, "microbatch"),
        _integers(table, "step"),
    )


def part_wall_clock(activity: Activity, start_ns: int, end_ns: int) -> WallClock:
    """Part the window into computation alone, hidden and exposed communication, memory operations alone, and idle."""
    computation = union(*clip(activity.all_computation(), start_ns, end_ns))
    communication = union(*clip(activity.all_communication(), start_ns, end_ns))
    memory = union(*clip(activity.memory, start_ns, end_ns))
    window = Intervals(np.array([start_ns]), np.array([end_ns]))
    busy = merge(computation, communication)
    return WallClock(
        computation_only=subtract(computation, communication),
        hidden=intersect(communication, computation),
        exposed=subtract(communication, computation),
        memory_only=subtract(memory, busy),
        idle=subtract(window, merge(busy, memory)),
    )


def trace_status(source: TableSource, rank: int) -> str:
    """How the reading of the rank's trace ended; unknown where nothing says."""
    found = rows(source, "traces", TraceStatusRow, rank)
    return found[0]["status"] if found else "unknown"


def is_partial(status: str) -> bool:
    """Whether a trace's status says that a part of it is missing."""
    return status in (TraceStatus.PARTIAL.value, TraceStatus.FAILED.value)


def _integers(table: pa.Table, column: str) -> Int64:
    return np.asarray(table[column].cast(pa.int64()).fill_null(NO_CHUNK).to_numpy(), dtype=np.int64)
