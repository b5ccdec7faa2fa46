"""A rank's kernels in the files that TraceViz writes: nine Parquet tables, and two CSV tables of its aggregator.

The meaning of a class follows TraceViz (``docs/from-traceviz.md``): the backward tables hold the recompute as well,
and embedding, gradient norm and control communication counts as data parallel. Memory operations are in none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import PurePath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import Intervals, intersect, lay_end_to_end, measure_within, union
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.vocabulary import Category, Dimension, Kind

COLUMNS = (
    "kernel_id",
    "name",
    "start_ns",
    "duration_ns",
    "kind",
    "dimension",
    "category",
    "stream",
    "correlation",
    "launch_name",
    "step",
    "chunk",
    "microbatch",
)
"""What of the table ``kernels`` is needed."""

FORWARD_STEP, BACKWARD_STEP = "fwdstep_sliceid", "bwdstep_sliceid"
STEP_COLUMN = {
    "fwd_computation": FORWARD_STEP,
    "fwd_communication": FORWARD_STEP,
    "bwd_computation": BACKWARD_STEP,
    "bwd_communication": BACKWARD_STEP,
    "bwd_computation_recompute": BACKWARD_STEP,
    "bwd_communication_recompute": BACKWARD_STEP,
    "pp_communication": "pp_sliceid",
    "dp_communication": "dp_sliceid",
    "optimizer_computation": "opt_sliceid",
}
"""TraceViz's nine tables, and the column by which its aggregator groups each (the optimizer by ``slice_id``)."""

UNKNOWN_STEP = -1
"""Step of a kernel whose micro-batch the trace does not show."""

_CATEGORIES: dict[str, tuple[str, ...]] = {
    name: (name, f"{name}_recompute") if name in ("bwd_computation", "bwd_communication") else (name,)
    for name in STEP_COLUMN
}
_NOT_DATA_PARALLEL = (Dimension.WORLD.value, Dimension.UNKNOWN.value)
_PHASES = {"Forward": ("fwd_communication", "fwd_computation"), "Backward": ("bwd_communication", "bwd_computation")}
_STATISTICS = ("category", "mbs_id", "slice_id", "start_time", "end_time")
_DURATIONS = ("actual_duration", "merged_duration")
_OVERLAP = ("phase", "mbs_id", "slice_id", "start_time")
_MEASURES = ("wall_clock", "actual_comm_time", "actual_comp_time", "comm_comp_overlap_time")
_RANK_IN_NAME = re.compile(r"rank_?\d+[._]")


def folder_name(trace: str, rank: int) -> str:
    """``<trace>_kernel_analysis``; TraceViz finds the rank in it, so it is put before a name that does not show it."""
    stem = PurePath(trace).name.removesuffix(".gz").removesuffix(".json")
    return f"{stem if _RANK_IN_NAME.search(stem) else f'rank{rank}.{stem}'}_kernel_analysis"


def kernel_tables(kernels: pa.Table) -> dict[str, pa.Table]:
    """Part a rank's kernels into TraceViz's tables; a table without kernels is absent, as TraceViz has it.

    Args:
        kernels: one rank of the table ``kernels``, with ``COLUMNS``.

    Returns:
        Table name → id, ts and dur (ns), track_id (the stream), slice_id, name, correlation_id, launch_name and the
        step column; a kernel of the backward recompute is in two tables, any other in one at the most.
    """
    category = kernels["category"].cast(pa.string())
    dimension = kernels["dimension"].cast(pa.string())
    is_other = pc.equal(category, Category.OTHER_COMMUNICATION.value)
    names_group = pc.invert(pc.is_in(dimension, value_set=pa.array(_NOT_DATA_PARALLEL)))
    as_dp = pc.fill_null(pc.and_(is_other, names_group), fill_value=False)
    steps = _step_numbers(kernels)
    tables = {}
    for name, step_column in STEP_COLUMN.items():
        mask = pc.is_in(category, value_set=pa.array(_CATEGORIES[name]))
        if name == Category.DP_COMMUNICATION:
            mask = pc.or_(mask, as_dp)
        chosen = kernels.filter(mask)
        if chosen.num_rows:
            number = steps[mask.to_numpy(zero_copy_only=False).astype(bool)]
            tables[name] = _as_traceviz(chosen, step_column, number)
    return tables


def statistics(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The rows of ``RankN_statistics.csv``: a slice of a class, its span, and the sum of its kernels' durations.

    ``mbs_id`` is the slice's position by start within its class, as TraceViz counts; under interleaving that is no
    micro-batch number.
    """
    parts = []
    for name, table in tables.items():
        is_optimizer = name == Category.OPTIMIZER_COMPUTATION
        slice_id = _int64(table, "slice_id" if is_optimizer else STEP_COLUMN[name])
        first, slices = number_groups(slice_id)
        starts, ends = _span(_time(table), slices, len(first))
        total = np.zeros(len(first), dtype=np.int64)
        np.add.at(total, slices, _int64(table, "dur"))
        order = np.argsort(starts, kind="stable")
        columns: dict[str, object] = {
            "category": pa.array([name] * len(order)),
            "mbs_id": np.arange(len(order)),
            "slice_id": slice_id[first][order],
            "start_time": starts[order],
            "end_time": ends[order],
        }
        values = {"actual_duration": total[order], "merged_duration": (ends - starts)[order]}
        parts.append(pa.table(columns | _durations(values)))
    return pa.concat_tables(parts) if parts else _no_rows(_STATISTICS, _DURATIONS)


def comm_comp_overlap(tables: Mapping[str, pa.Table]) -> pa.Table:
    """The rows of ``RankN_commcompOverlap_analysis.csv``: per step its wall clock, unions, and what they share, ns.

    A phase whose communication or computation table is absent has no rows, as TraceViz has it.
    """
    parts = []
    for phase, (communication, computation) in sorted(_PHASES.items()):
        if communication in tables and computation in tables:
            parts.append(_phase_overlap(phase, tables[communication], tables[computation]))
    return pa.concat_tables(parts) if parts else _no_rows(_OVERLAP, _MEASURES)


def as_csv(table: pa.Table) -> bytes:
    """The table as pandas writes it by default: a header, commas, no quotes around plain words."""
    lines = StringIO()
    lines.write(",".join(table.column_names) + "\n")
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        lines.write(",".join(map(str, row)) + "\n")
    return lines.getvalue().encode()


def format_duration(nanoseconds: int) -> str:
    """A duration as TraceViz's CSV files write it."""
    for factor, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.2f} {unit}"
    return f"{nanoseconds:.2f} ns"


def _phase_overlap(phase: str, communication: pa.Table, computation: pa.Table) -> pa.Table:
    step_column = FORWARD_STEP if phase == "Forward" else BACKWARD_STEP
    times = [_time(communication), _time(computation)]
    steps = [_int64(table, step_column) for table in (communication, computation)]
    everything = Intervals(*(np.concatenate([getattr(time, end) for time in times]) for end in ("starts", "ends")))
    first, numbers = number_groups(np.concatenate(steps))
    starts, ends = _span(everything, numbers, len(first))
    axis = lay_end_to_end(starts, ends)
    split = len(steps[0])
    sides = [
        union(*axis.place(time, part)) for time, part in zip(times, (numbers[:split], numbers[split:]), strict=True)
    ]
    order = np.argsort(starts, kind="stable")

    def measured(intervals: Intervals) -> Int64:
        return measure_within(intervals, axis.segment_starts, axis.segment_ends)[order]

    columns: dict[str, object] = {
        "phase": pa.array([phase] * len(order)),
        "mbs_id": np.arange(len(order)),
        "slice_id": np.concatenate(steps)[first][order],
        "start_time": starts[order],
    }
    values = {
        "wall_clock": (ends - starts)[order],
        "actual_comm_time": measured(sides[0]),
        "actual_comp_time": measured(sides[1]),
        "comm_comp_overlap_time": measured(intersect(*sides)),
    }
    return pa.table(columns | _durations(values))


def _as_traceviz(kernels: pa.Table, step_column: str, steps: Int64) -> pa.Table:
    number = kernels["kernel_id"]
    # Each communication of PP and DP is a slice of its own, and the optimizer is one slice.
    own = {"pp_sliceid": number, "dp_sliceid": number, "opt_sliceid": pa.array(np.zeros(kernels.num_rows, np.int64))}
    return pa.table(
        {
            "id": number,
            "ts": kernels["start_ns"],
            "dur": kernels["duration_ns"],
            "track_id": kernels["stream"],
            "slice_id": number,
            "name": kernels["name"].cast(pa.string()),
            "correlation_id": kernels["correlation"],
            "launch_name": kernels["launch_name"].cast(pa.string()),
            step_column: own.get(step_column, pa.array(steps)),
        }
    )


def _step_numbers(kernels: pa.Table) -> Int64:
    """Number the forward and backward steps by their first kernel, from 0; ``UNKNOWN_STEP`` outside micro-batches."""
    numbers = np.full(kernels.num_rows, UNKNOWN_STEP, dtype=np.int64)
    category = kernels["category"].cast(pa.string())
    forward = pc.is_in(category, value_set=pa.array([Category.FWD_COMPUTATION, Category.FWD_COMMUNICATION]))
    backward = pc.starts_with(category, "bwd_")
    in_step = pc.and_(pc.or_(forward, backward), pc.is_valid(kernels["microbatch"]))
    in_step = pc.and_(in_step, pc.not_equal(kernels["kind"].cast(pa.string()), Kind.MEMORY.value))
    rows = np.flatnonzero(in_step.to_numpy(zero_copy_only=False))
    if not len(rows):
        return numbers
    keys = [_int64(kernels, name)[rows] for name in ("step", "chunk", "microbatch")]
    keys.append(backward.to_numpy(zero_copy_only=False).astype(np.int64)[rows])
    first, group = number_groups(*keys)
    starts = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(starts, group, _int64(kernels, "start_ns")[rows])
    position = np.empty(len(first), dtype=np.int64)
    position[np.argsort(starts, kind="stable")] = np.arange(len(first))
    numbers[rows] = position[group]
    return numbers


def _span(time: Intervals, groups: npt.NDArray[np.intp], count: int) -> tuple[Int64, Int64]:
    starts = np.full(count, np.iinfo(np.int64).max)
    ends = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(starts, groups, time.starts)
    np.maximum.at(ends, groups, time.ends)
    return starts, ends


def _time(table: pa.Table) -> Intervals:
    starts = _int64(table, "ts")
    return Intervals(starts, starts + _int64(table, "dur"))


def _durations(values: Mapping[str, Int64]) -> dict[str, object]:
    """Columns in words, then the same in ns."""
    words: dict[str, object] = {name: pa.array(map(format_duration, each.tolist())) for name, each in values.items()}
    return words | {f"{name}_ns": each for name, each in values.items()}


def _no_rows(plain: Iterable[str], durations: Iterable[str]) -> pa.Table:
    names = [*plain, *durations, *(f"{name}_ns" for name in durations)]
    return pa.table({name: pa.array([], pa.int64()) for name in names})


def _int64(table: pa.Table, column: str) -> Int64:
    values = table.column(column).cast(pa.int64()).fill_null(UNKNOWN_STEP)
    return np.asarray(values.to_numpy(), dtype=np.int64)
