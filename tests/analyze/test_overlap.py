"""Overlap tables: unions inside windows, for each device and each dimension."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.naive_measures import EPOCH_NS, kernel, kernel_table, measures_of, naive_measures, random_kernels
from traceviz_dag.analyze.overlap import overlap_table, window_overlap
from traceviz_dag.errors import UsageError
from traceviz_dag.tables import OVERLAP

_ADDED = ("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns", "kernels")


def _dimensions(rows: list[dict]) -> set[str]:
    return {"all"} | {row["dimension"] or "unknown" for row in rows if row["kind"] == "communication"}


def _starting(rows: list[dict], start: int, end: int) -> int:
    return sum(start <= row["start_ns"] < end for row in rows)


@given(random_kernels, st.integers(-3, 45), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_every_row_is_what_sets_of_instants_give(kernels, start, length):
    step = (7, EPOCH_NS + start, EPOCH_NS + start + length)
    table = overlap_table(kernel_table(kernels), [step])
    assert table.schema == OVERLAP.schema
    rows = table.to_pylist()
    seen = set()
    for row in rows:
        mine = [each for each in kernels if each["device"] == row["device"]]
        begin, end = row["window_start_ns"], row["window_end_ns"]
        assert measures_of(row) == naive_measures(mine, row["dimension"], begin, end)
        smaller = min(row["compute_ns"], row["communication_ns"])
        assert row["hidden_share"] == (row["hidden_ns"] / row["communication_ns"] if row["communication_ns"] else None)
        assert row["hidden_over_min"] == (row["hidden_ns"] / smaller if smaller else None)
        if row["window_name"] == "step":
            assert (row["step"], begin, end) == step
            assert row["kernels"] == _starting(mine, begin, end)
        else:
            assert row["step"] is None
            assert begin == min(each["start_ns"] for each in mine)
            assert end == max(each["start_ns"] + each["duration_ns"] for each in mine)
            assert row["kernels"] == len(mine)
        seen.add((row["device"], row["window_name"], row["dimension"]))
    expected = {
        (device, window, dimension)
        for device in {each["device"] for each in kernels}
        for window in ("step", "kernels")
        for dimension in _dimensions([each for each in kernels if each["device"] == device])
    }
    assert seen == expected and len(rows) == len(expected)


@given(random_kernels, st.lists(st.integers(-3, 60), min_size=3, max_size=3).map(sorted))
@settings(max_examples=100, deadline=None)
def test_a_window_is_the_sum_of_its_halves(kernels, edges):
    start, middle, end = (EPOCH_NS + edge for edge in edges)
    table = kernel_table(kernels)
    whole, left, right = (
        {(row["device"], row["dimension"]): row for row in window_overlap(table, "clip", *window).to_pylist()}
        for window in ((start, end), (start, middle), (middle, end))
    )
    assert whole.keys() == left.keys() == right.keys()
    for key, row in whole.items():
        assert {name: row[name] for name in _ADDED} == {name: left[key][name] + right[key][name] for name in _ADDED}


def test_a_kernel_that_crosses_an_edge_is_cut_and_counted_where_it_starts():
    table = kernel_table([kernel(0, 10, "computation"), kernel(6, 8, "communication", "tp")])
    left, right = (window_overlap(table, "clip", *edges).to_pylist()[0] for edges in ((0, 8), (8, 14)))
    assert (left["compute_ns"], left["communication_ns"], left["hidden_ns"], left["kernels"]) == (8, 2, 2, 2)
    assert (right["compute_ns"], right["communication_ns"], right["hidden_ns"], right["kernels"]) == (2, 6, 2, 0)


def test_a_step_shows_what_the_step_before_left_running():
    of_file = kernel_table([kernel(0, 30, "communication", "dp", step=1), kernel(22, 5, "computation", step=2)])
    of_iteration = of_file.slice(1)
    step = (2, 20, 40)
    alone = [row for row in overlap_table(of_iteration, [step]).to_pylist() if row["window_name"] == "step"]
    assert [row["dimension"] for row in alone] == ["all"] and alone[0]["communication_ns"] == 0
    rows = {
        (row["window_name"], row["dimension"]): row
        for row in overlap_table(of_iteration, [step], file_kernels=of_file).to_pylist()
    }
    assert rows["step", "dp"]["communication_ns"] == 10
    assert rows["step", "dp"]["hidden_ns"] == 5
    assert rows["step", "all"]["kernels"] == 1
    assert rows["kernels", "all"]["communication_ns"] == 0


def test_communication_of_two_dimensions_at_once_counts_once_in_all():
    table = kernel_table([kernel(0, 10, "communication", "tp"), kernel(5, 10, "communication", "dp")])
    rows = {row["dimension"]: row for row in window_overlap(table).to_pylist()}
    assert list(rows) == ["all", "tp", "dp"]
    assert [rows[name]["communication_ns"] for name in rows] == [15, 10, 10]
    assert {row["busy_ns"] for row in rows.values()} == {15}


def test_a_last_kernel_without_duration_is_counted_in_the_whole():
    table = kernel_table([kernel(0, 10, "computation"), kernel(10, 0, "memory")])
    assert overlap_table(table).to_pylist()[0]["kernels"] == 2
    assert window_overlap(table).to_pylist()[0]["kernels"] == 2


def test_the_file_window_is_one_for_all_devices():
    table = kernel_table([kernel(5, 5, "computation"), kernel(20, 10, "computation", device="gpu:1")])
    rows = window_overlap(table).to_pylist()
    assert [(row["device"], row["window_start_ns"], row["window_end_ns"], row["idle_ns"]) for row in rows] == [
        ("gpu:0", 5, 30, 20),
        ("gpu:1", 5, 30, 15),
    ]


def test_no_kernels_give_no_rows():
    assert overlap_table(kernel_table([]), [(1, 0, 10)]).num_rows == 0
    assert window_overlap(kernel_table([])).schema == OVERLAP.schema


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (kernel(0, 5, None), "have no kind"),
        (kernel(0, 5, "gossip"), "holds gossip"),
        (kernel(0, 5, "communication", "sideways"), "holds sideways"),
        (kernel(0, 5, "computation", device=None), "have no device"),
        (kernel(None, 5, "computation"), "start_ns has 1 NULLs"),
    ],
)
def test_kernels_that_cannot_be_measured_are_refused_with_the_reason(row, reason):
    with pytest.raises(ValueError, match=reason):
        overlap_table(kernel_table([kernel(0, 5, "computation"), row]))


@pytest.mark.parametrize("window", [(None, -1), (6, None)])
def test_a_window_beside_all_kernels_asks_for_its_other_end(window):
    with pytest.raises(UsageError, match=r"name an? --(start|end)-ns, too"):
        window_overlap(kernel_table([kernel(0, 5, "computation")]), "clip", *window)


def test_a_window_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="before its start"):
        window_overlap(kernel_table([kernel(0, 5, "computation")]), "clip", 10, 5)
