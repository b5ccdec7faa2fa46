"""The table ``periods``: does a repeating pair of stages overlap, unit by unit, known from starts and busy times alone.

period = start of the next unit - start; derived_hidden = stage0 + stage1 - period; OverlapScore = derived_hidden /
min(stage0, stage1). 1 means that the period is that of the longer stage, 0 that the two run one after the other. The
derived value is net of gaps. Both stages' busy times are taken on their own clocks, so none has to be aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.kernel_intervals import KernelIntervals, kernel_intervals
from traceviz_dag.analyze.pipelines.units import Units, steady_units
from traceviz_dag.analyze.pipelines.work_items import WorkItems, work_items
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.arrays import Bool, Int64, number_groups
from traceviz_dag.classify.categories import MICROBATCH_DIMENSIONS
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import PERIODS

STAGES, DIMENSION, NAMED = "stages", "dimension", "named"
"""Kinds of pairs."""

FEWEST_UNITS = 2
_BESIDE = " communication in its "
BUSY_COLUMNS = ("start_ns", "duration_ns", "kind", "dimension")
"""Columns of ``kernels`` that show a rank's busy times."""

Rows = dict[str, object]
Measures = dict[str, npt.NDArray[np.number]]
Part = tuple[Rows, int, Measures]
"""Some rows of the table: what all have in common, how many there are, and what each has, which is nothing or the same
columns in all parts; the rest is NULL."""


def periods_table(
    microbatches: pa.Table, topology: Topology, kernels_of: Callable[[int], pa.Table], ranks: Iterable[int] = ()
) -> pa.Table:
    """Measure neighbouring pipeline stages, and computation against each communication dimension, on every rank.

    Args:
        microbatches: the table ``microbatches`` of all ranks, with a column ``rank``.
        topology: gives the pipelines.
        kernels_of: gives all kernels of a rank, columns ``BUSY_COLUMNS``; called once a rank.
        ranks: all that were read; those without micro-batches beside others that have some get rows with the reason.

    Returns:
        The table ``periods``: a row per pair and steady unit; a pair with fewer than two has one row, with the reason.
    """
    items = work_items(microbatches)
    units = steady_units(items)
    busy = np.zeros(len(units), dtype=np.int64)
    places = {
        rank: (number, stage) for number, ranks in enumerate(topology.pipelines) for stage, rank in enumerate(ranks)
    }
    parts: list[Part] = []
    told = set(np.unique(items.rank).tolist())
    for rank in sorted(told.union(ranks) if told else ()):
        mine = np.flatnonzero(units.rank == rank)
        intervals = kernel_intervals(kernels_of(rank))
        busy[mine] = _busy(intervals, _of_microbatches(intervals), units.take(mine))
        pipeline, stage = places.get(rank, (None, None))
        steps = np.unique(items.step[items.rank == rank] if rank in told else items.step)
        place = _Place(rank, rank, pipeline, stage)
        parts += _dimension_pairs(intervals, units.take(mine) if rank in told else None, steps, place)
    parts += _stage_pairs(units, busy, items, topology)
    return period_rows(parts)


def scored_rows(period: Int64, stage0: Int64, stage1: Int64) -> Measures:
    """The columns period_ns to overlap_score of some units; a score that is not defined is NaN."""
    hidden = stage0 + stage1 - period
    smaller = np.minimum(stage0, stage1)
    return {
        "period_ns": period,
        "stage0_ns": stage0,
        "stage1_ns": stage1,
        "derived_hidden_ns": hidden,
        "overlap_score": np.where(smaller > 0, hidden / np.maximum(smaller, 1), np.nan),
    }


def period_rows(parts: Sequence[Part]) -> pa.Table:
    """Rows of the table, one part behind the other."""
    if not parts:
        return PERIODS.schema.empty_table()
    counts, measured = [count for _, count, _ in parts], [columns for *_, columns in parts if columns]
    of_part = pa.array(np.repeat(np.arange(len(parts)), counts))
    has_measures = np.repeat([bool(columns) for *_, columns in parts], counts)
    of_measure = pa.array(np.cumsum(has_measures) - 1, mask=~has_measures)
    everything: Rows = {}
    for name, kind in ((column.name, column.type) for column in PERIODS.columns):
        if measured and name in measured[0]:
            values = np.concatenate([columns[name] for columns in measured])
            everything[name] = pa.array(values, kind, from_pandas=True).take(of_measure)
        else:
            everything[name] = pa.array([constant.get(name) for constant, *_ in parts], kind).take(of_part)
    return PERIODS.from_columns(everything)


def refused(constant: Rows, reason: str) -> Part:
    """The one row of a pair that has no measures."""
    return {**constant, "refusal": reason}, 1, {}


def too_few(units: int) -> str:
    """Why a pair with so few steady units has no measures."""
    return f"{units} steady unit{'' if units == 1 else 's'}, {FEWEST_UNITS} are needed"


def nothing_beside(dimension: str, units: int) -> str:
    """Why computation has no periods with a dimension that only runs outside the steady units."""
    return f"no {dimension}{_BESIDE}{units} steady units"


def has_nothing_to_overlap(refusal: str) -> bool:
    """Whether a refusal says that nothing is to overlap, not that it is unknown.

    That is an answer: in a job without pipelines gradients meet after the last backward step, and all is well.
    """
    return refusal.startswith("no ") and _BESIDE in refusal


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose pair it is."""

    rank: int
    rank1: int
    pipeline: int | None
    stage: int | None

    def constant(self, pair: str, kind: str, step: int) -> Rows:
        return {
            "pair": pair,
            "kind": kind,
            "step": None if step == MISSING else step,
            "pipeline": self.pipeline,
            "stage": self.stage,
            "rank": self.rank,
            "rank1": self.rank1,
        }


def _of_microbatches(intervals: KernelIntervals) -> Bool:
    """Mark what a stage does for its micro-batches: all but pipeline, gradient and other step-wide traffic."""
    inside = ~intervals.communicates()
    for dimension in MICROBATCH_DIMENSIONS:
        inside |= intervals.communicates(dimension.value)
    return inside


def _busy(intervals: KernelIntervals, chosen: Bool, units: Units) -> Int64:
    """Time in which some kernels run, in each unit."""
    covered = union(intervals.time.starts[chosen], intervals.time.ends[chosen])
    return measure_within(covered, units.start_ns, units.end_ns)


def _dimension_pairs(intervals: KernelIntervals, units: Units | None, steps: Int64, place: _Place) -> list[Part]:
    """Computation against each dimension in which the rank communicates; units None: no micro-batch of it is known."""
    dimensions = intervals.communication_dimensions()
    communication = (
        {}
        if units is None
        else {dimension: _busy(intervals, intervals.communicates(dimension), units) for dimension in dimensions}
    )
    compute = None if units is None else _busy(intervals, intervals.computes(), units)
    parts = []
    for step in steps.tolist():
        mine = np.flatnonzero(units.step == step) if units is not None else np.empty(0, np.intp)
        for dimension in dimensions:
            constant = place.constant(f"computation + {dimension}", DIMENSION, step) | {"dimension": dimension}
            if units is None or compute is None:
                parts.append(refused(constant, "no forward and backward steps are known of it"))
            elif len(mine) < FEWEST_UNITS:
                parts.append(refused(constant, too_few(len(mine))))
            elif not communication[dimension][mine].any():
                parts.append(refused(constant, nothing_beside(dimension, len(mine))))
            else:
                parts.append(_units(constant, units.take(mine), compute[mine], communication[dimension][mine]))
    return parts


def _stage_pairs(units: Units, busy: Int64, items: WorkItems, topology: Topology) -> list[Part]:
    """Each stage against the next of its pipeline; units of both that begin with the same backward step."""
    parts = []
    by_queue = _slices(units)
    told = set(zip(items.rank.tolist(), items.step.tolist(), strict=True))
    for step in np.unique(items.step).tolist():
        for number, ranks in enumerate(topology.pipelines):
            for stage, (rank, rank1) in enumerate(pairwise(ranks)):
                constant = _Place(rank, rank1, number, stage).constant(f"stages {stage} and {stage + 1}", STAGES, step)
                unknown = [stage + place for place, each in enumerate((rank, rank1)) if (each, step) not in told]
                if unknown:
                    of_stages = numbered("stage", unknown)
                    parts.append(refused(constant, f"no forward and backward steps are known of {of_stages}"))
                    continue
                first, second = (by_queue.get((each, step), np.empty(0, np.intp)) for each in (rank, rank1))
                first, second = _same_microbatches(units, first, second)
                if len(first) < FEWEST_UNITS:
                    parts.append(refused(constant, too_few(len(first))))
                else:
                    parts.append(_units(constant, units.take(first), busy[first], busy[second]))
    return parts


def _units(constant: Rows, units: Units, stage0: Int64, stage1: Int64) -> Part:
    columns: Measures = {
        "unit": units.ordinal,
        "chunk": units.chunk,
        "microbatch": units.microbatch,
        "start_ns": units.start_ns,
    }
    return constant, len(units), columns | scored_rows(units.end_ns - units.start_ns, stage0, stage1)


def _slices(units: Units) -> dict[tuple[int, int], npt.NDArray[np.intp]]:
    """Places of the units of each rank and step."""
    if not len(units):
        return {}
    first, queue = number_groups(units.rank, units.step)
    order = np.argsort(queue, kind="stable")
    edges = np.searchsorted(queue[order], np.arange(len(first) + 1))
    return {
        (int(units.rank[row]), int(units.step[row])): order[low:high]
        for row, low, high in zip(first.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    }


def _same_microbatches(
    units: Units, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Those units of two ranks that begin with the backward step of the same chunk and micro-batch, in order."""
    if not len(first) or not len(second):
        return first[:0], second[:0]
    both = np.concatenate((first, second))
    _, key = number_groups(units.chunk[both], units.microbatch[both])
    _, left, right = np.intersect1d(key[: len(first)], key[len(first) :], return_indices=True)
    order = np.argsort(left)
    return first[left[order]], second[right[order]]
