"""The invariants hold on whatever kernels there are, and each one finds the row that breaks it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.analyze.naive_measures import EPOCH_NS, kernel, kernel_table, random_kernels
from traceviz_dag.analyze.invariants import INVARIANTS, microbatch_violations, overlap_violations
from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table


@given(random_kernels)
@settings(max_examples=100, deadline=None)
def test_no_kernels_break_an_invariant(kernels):
    table = kernel_table(kernels)
    overlap = overlap_table(table, [(7, EPOCH_NS, EPOCH_NS + 20), (8, EPOCH_NS + 15, EPOCH_NS + 45)])
    assert overlap_violations(overlap).to_pylist() == []
    assert microbatch_violations(microbatches_table(table)).to_pylist() == []


def _kernels() -> pa.Table:
    inside = {"phase": "backward", "step": 7, "stage": 0, "chunk": 0, "microbatch": 0}
    return kernel_table(
        [
            kernel(0, 100, "computation", **inside),
            kernel(100, 20, "computation", **{**inside, "phase": "recompute"}),
            kernel(80, 60, "communication", "tp", **inside),
            kernel(130, 30, "communication", "dp", **inside),
            kernel(170, 10, "memory", **inside),
            kernel(190, 10, "computation", **inside),
        ]
    )


def _changed(table: pa.Table, dimension: str, changes: dict[str, object]) -> pa.Table:
    """The table with other values in its first row of a dimension."""
    rows = table.to_pylist()
    row = next(row for row in rows if row["dimension"] == dimension)
    row.update(changes)
    return pa.Table.from_pylist(rows, schema=table.schema)


_BROKEN_OVERLAP = [
    ("all", {"compute_ns": None}, "times_given"),
    ("tp", {"idle_ns": -1}, "nothing_negative"),
    ("tp", {"hidden_ns": 61}, "hidden_at_most_compute_and_communication"),
    ("all", {"exposed_ns": 39}, "exposed_is_communication_minus_hidden"),
    ("all", {"busy_ns": 100, "idle_ns": 100}, "busy_at_least_compute_and_communication"),
    ("dp", {"memory_ns": 190}, "busy_at_least_memory"),
    ("all", {"busy_ns": 210}, "busy_at_most_window"),
    ("all", {"idle_ns": 21}, "busy_plus_idle_is_window"),
    ("all", {"hidden_share": 0.6}, "hidden_share_is_the_ratio"),
    ("all", {"hidden_share": None}, "hidden_share_is_the_ratio"),
    ("tp", {"hidden_over_min": 0.1}, "hidden_over_min_is_the_ratio"),
    ("all", {"dimension": "ep"}, "one_row_for_all"),
    ("dp", {"memory_ns": 11}, "same_window_under_each_dimension"),
    ("tp", {"communication_ns": 90, "exposed_ns": 50}, "all_between_largest_and_sum_of_dimensions"),
    ("dp", {"communication_ns": 10, "exposed_ns": 10}, "all_between_largest_and_sum_of_dimensions"),
    ("all", {"busy_ns": 199, "idle_ns": 1}, "busy_at_most_sum_of_parts"),
]

_BROKEN_MICROBATCHES = [
    ({"span_end_ns": 100, "idle_ns": 0, "busy_ns": 100}, "recompute_within_backward"),
    ({"busy_ns": 150}, "busy_plus_idle_is_window"),
    ({"span_start_ns": None}, "times_given"),
]


@pytest.mark.parametrize(("dimension", "changes", "broken"), _BROKEN_OVERLAP)
def test_a_broken_overlap_row_is_named(dimension, changes, broken):
    overlap = overlap_table(_kernels())
    found = overlap_violations(_changed(overlap, dimension, changes))
    assert broken in found.column("invariant").to_pylist()
    assert found.schema.names == ["invariant", *overlap.schema.names]


@pytest.mark.parametrize(("changes", "broken"), _BROKEN_MICROBATCHES)
def test_a_broken_microbatch_row_is_named(changes, broken):
    table = microbatches_table(_kernels())
    assert table.to_pylist()[0]["phase"] == "backward"
    assert broken in microbatch_violations(_changed(table, "all", changes)).column("invariant").to_pylist()


def test_rows_of_different_ranks_are_not_taken_for_one_window():
    overlap = overlap_table(_kernels())
    ranks = [overlap.append_column("rank", pa.array([rank] * overlap.num_rows)) for rank in (0, 1)]
    assert overlap_violations(pa.concat_tables(ranks)).num_rows == 0
    assert set(overlap_violations(pa.concat_tables([overlap, overlap])).column("invariant").to_pylist()) == {
        "one_row_for_all"
    }


def test_every_invariant_has_been_seen_to_fail():
    assert {broken for *_, broken in _BROKEN_OVERLAP + _BROKEN_MICROBATCHES} == set(INVARIANTS)
