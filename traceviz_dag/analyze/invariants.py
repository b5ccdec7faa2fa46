"""What must hold in the tables overlap and microbatches whatever the trace; each breach is a row with its reason.

The rules follow from measures of sets (``docs/metrics.md``, "Invariants"). A row that breaks two rules appears twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, holds
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.tables import BY_RANK
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Phase

INVARIANT = "invariant"
"""Name of the column that the violations have before all others."""

INVARIANTS = {
    "times_given": "no edge of a window and no duration is NULL",
    "nothing_negative": "no duration is below 0, and no window ends before it starts",
    "hidden_at_most_compute_and_communication": "hidden <= min(compute, communication)",
    "exposed_is_communication_minus_hidden": "exposed = communication - hidden",
    "busy_at_least_compute_and_communication": "compute + communication - hidden <= busy",
    "busy_at_least_memory": "memory <= busy",
    "busy_at_most_window": "busy <= window",
    "busy_plus_idle_is_window": "busy + idle = window",
    "busy_at_most_sum_of_parts": "busy <= compute + exposed + memory, where dimension is all",
    "hidden_share_is_the_ratio": "hidden_share = hidden / communication, NULL where communication is 0",
    "hidden_over_min_is_the_ratio": "hidden_over_min = hidden / min(compute, communication), NULL where that is 0",
    "one_row_for_all": "each window has one row with dimension all",
    "same_window_under_each_dimension": "compute, memory, busy and idle are the same under each dimension of a window",
    "all_between_largest_and_sum_of_dimensions": (
        "communication, hidden and exposed of all lie between the largest of the dimensions and their sum"
    ),
    "recompute_within_backward": "a recompute has a backward step that contains it, in span and in every duration",
}
"""Every rule by name, as a statement; the shares are of overlap alone, the recompute of microbatches alone."""

_Breaches = dict[str, npt.NDArray[np.bool_]]
_Measures = dict[str, Int64]

_OF_DIMENSION = ("communication_ns", "hidden_ns", "exposed_ns")
_OF_WINDOW = ("compute_ns", "memory_ns", "busy_ns", "idle_ns")
_WINDOW_KEYS = (*BY_RANK, "device", "window_name", "step", "window_start_ns", "window_end_ns")
_STEP_KEYS = (*BY_RANK, "device", "step", "chunk", "microbatch")
_SHARE_TOLERANCE = 1e-12


def overlap_violations(overlap: pa.Table) -> pa.Table:
    """Return the rows of a table ``overlap`` that break a rule.

    Args:
        overlap: the table, with or without its partition columns.

    Returns:
        The column ``invariant``, the name of the broken rule, then the table's columns; no rows where all is well.
    """
    complete, breached = _split_incomplete(overlap, ("window_start_ns", "window_end_ns"))
    measures = _measures(complete, "window_start_ns", "window_end_ns")
    breaches = _row_breaches(measures) | _share_breaches(complete, measures)
    breaches |= _sum_breaches(complete, measures, _WINDOW_KEYS)
    return _rows_of(complete, breaches, breached)


def microbatch_violations(microbatches: pa.Table) -> pa.Table:
    """Return the rows of a table ``microbatches`` that break a rule, as ``overlap_violations`` does."""
    complete, breached = _split_incomplete(microbatches, ("span_start_ns", "span_end_ns"))
    measures = _measures(complete, "span_start_ns", "span_end_ns")
    breaches = _row_breaches(measures) | _sum_breaches(complete, measures, (*_STEP_KEYS, "phase"))
    breaches |= {"recompute_within_backward": _recompute_outside_backward(complete, measures)}
    return _rows_of(complete, breaches, breached)


def _row_breaches(measures: _Measures) -> _Breaches:
    """Test the rules that one row can break alone."""
    compute, communication, hidden = measures["compute_ns"], measures["communication_ns"], measures["hidden_ns"]
    exposed, busy, idle, window = (measures[name] for name in ("exposed_ns", "busy_ns", "idle_ns", "window_ns"))
    return {
        "nothing_negative": np.any([values < 0 for values in measures.values()], axis=0),
        "hidden_at_most_compute_and_communication": hidden > np.minimum(compute, communication),
        "exposed_is_communication_minus_hidden": exposed != communication - hidden,
        "busy_at_least_compute_and_communication": compute + communication - hidden > busy,
        "busy_at_least_memory": measures["memory_ns"] > busy,
        "busy_at_most_window": busy > window,
        "busy_plus_idle_is_window": busy + idle != window,
    }


def _share_breaches(overlap: pa.Table, measures: _Measures) -> _Breaches:
    """Test the two shares of an overlap table against the measures that they are made of."""
    smaller = np.minimum(measures["compute_ns"], measures["communication_ns"])
    wholes = {"hidden_share": measures["communication_ns"], "hidden_over_min": smaller}
    breaches = {}
    for name, whole in wholes.items():
        share = overlap.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy()
        expected = np.where(whole == 0, np.nan, measures["hidden_ns"] / np.where(whole == 0, 1, whole))
        agrees = (np.abs(share - expected) <= _SHARE_TOLERANCE) | (np.isnan(share) & np.isnan(expected))
        breaches[f"{name}_is_the_ratio"] = ~agrees
    return breaches


def _sum_breaches(table: pa.Table, measures: _Measures, keys: Sequence[str]) -> _Breaches:
    """Test each window's row of all communication against the rows of its dimensions."""
    first, window = _groups(table, keys)
    is_all = holds(table, "dimension", ALL_DIMENSIONS)
    whole_rows = np.bincount(window[is_all], minlength=len(first))
    breaches: _Breaches = {"one_row_for_all": (whole_rows != 1)[window]}

    whole_row = np.zeros(len(first), dtype=np.intp)
    whole_row[window[is_all]] = np.flatnonzero(is_all)
    comparable = ~breaches["one_row_for_all"]
    same = [measures[name] == measures[name][whole_row][window] for name in _OF_WINDOW]
    breaches["same_window_under_each_dimension"] = comparable & ~np.all(same, axis=0)

    part = ~is_all
    within = np.ones(table.num_rows, dtype=bool)
    for name in _OF_DIMENSION:
        total, largest = np.zeros(len(first), dtype=np.int64), np.zeros(len(first), dtype=np.int64)
        np.add.at(total, window[part], measures[name][part])
        np.maximum.at(largest, window[part], measures[name][part])
        within &= (largest[window] <= measures[name]) & (measures[name] <= total[window])
    breaches["all_between_largest_and_sum_of_dimensions"] = comparable & is_all & ~within
    above = measures["busy_ns"] > measures["compute_ns"] + measures["exposed_ns"] + measures["memory_ns"]
    breaches["busy_at_most_sum_of_parts"] = is_all & above
    return breaches


def _recompute_outside_backward(microbatches: pa.Table, measures: _Measures) -> npt.NDArray[np.bool_]:
    """Mark rows of phase recompute that their backward step's row of the same dimension does not contain."""
    first, unit = _groups(microbatches, (*_STEP_KEYS, "dimension"))
    is_backward = holds(microbatches, "phase", Phase.BACKWARD)
    backward_row = np.full(len(first), -1, dtype=np.intp)
    backward_row[unit[is_backward]] = np.flatnonzero(is_backward)
    around = backward_row[unit]
    inside = around >= 0
    if len(around):
        starts, ends = (optional_integers(microbatches, name) for name in ("span_start_ns", "span_end_ns"))
        inside &= (starts[around] <= starts) & (ends <= ends[around])
        for name in ("compute_ns", "communication_ns", "hidden_ns", "memory_ns", "busy_ns"):
            inside &= measures[name] <= measures[name][around]
    return holds(microbatches, "phase", Phase.RECOMPUTE) & ~inside


def _split_incomplete(table: pa.Table, edges: tuple[str, str]) -> tuple[pa.Table, pa.Table]:
    """Part rows that lack a measure, which break a rule by themselves, from those that the other rules can test."""
    names = (*edges, *_OF_WINDOW, *_OF_DIMENSION)
    if not any(table.column(name).null_count for name in names):
        return table, _named("times_given", table.slice(0, 0))
    lacking = np.any([table.column(name).is_null().to_numpy() for name in names], axis=0)
    return table.filter(pa.array(~lacking)), _named("times_given", table.filter(pa.array(lacking)))


def _measures(table: pa.Table, start: str, end: str) -> _Measures:
    measures = {name: optional_integers(table, name) for name in (*_OF_WINDOW, *_OF_DIMENSION)}
    return measures | {"window_ns": optional_integers(table, end) - optional_integers(table, start)}


def _rows_of(table: pa.Table, breaches: _Breaches, *before: pa.Table) -> pa.Table:
    rows = [_named(name, table.filter(pa.array(broken))) for name, broken in breaches.items() if broken.any()]
    return pa.concat_tables([*before, *rows])


def _named(invariant: str, rows: pa.Table) -> pa.Table:
    return rows.add_column(0, INVARIANT, pa.array([invariant] * rows.num_rows, type=pa.string()))


def _groups(table: pa.Table, keys: Sequence[str]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Number the distinct rows of those key columns that the table has; NULL is a value like any other."""
    columns, there = [], table.column_names
    for key in (key for key in keys if key in there):
        is_integer = pa.types.is_integer(table.schema.field(key).type)
        columns.append(optional_integers(table, key) if is_integer else codes(table, key)[0])
    return number_groups(*columns)
