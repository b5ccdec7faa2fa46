"""Rows of a change add up to it, to the nanosecond; calls and their lengths are told apart; bars cover what varies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.test_metrics_handbook import tables_of
from traceviz_dag.analyze.diff.changes import Amount, Bar, Change, changes, mean_ns, rounded_means
from traceviz_dag.analyze.diff.words import Outcome, state_of, verdict

_KEYS = st.sampled_from([("a",), ("b",), ("c",), ("d",)])
_STEPS = st.lists(
    st.dictionaries(_KEYS, st.builds(Amount, st.integers(0, 10**12), st.integers(0, 99))), min_size=1, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(_STEPS, _STEPS)
def test_rows_add_up_and_each_is_within_a_nanosecond_of_its_mean(a, b):
    rows = changes(a, b)
    totals = [mean_ns(sum(part.ns for step in side for part in step.values()), len(side)) for side in (a, b)]
    assert [sum(row.a_ns for row in rows), sum(row.b_ns for row in rows)] == totals
    assert sum(row.change_ns for row in rows) == totals[1] - totals[0]
    for row in rows:
        assert row.count_ns + row.per_call_ns == row.change_ns
        for ns, side in ((row.a_ns, a), (row.b_ns, b)):
            assert abs(ns * len(side) - sum(step.get(row.key, (0, 0))[0] for step in side)) < len(side)
    assert [abs(row.change_ns) for row in rows] == sorted((abs(row.change_ns) for row in rows), reverse=True)
    assert {row.key: _other_way(row) for row in rows} == {row.key: (row.change_ns, row.bar) for row in changes(b, a)}


def _other_way(row: Change) -> tuple[int, Bar | None]:
    return -row.change_ns, None if row.bar is None else Bar(-row.bar.high_ns, -row.bar.low_ns)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1), st.integers(1, 9), st.booleans())
def test_means_add_up_to_a_given_total_next_to_their_own(sums, steps, up):
    total = -(-sum(sums) // steps) if up else sum(sums) // steps
    assert sum(rounded_means(sums, steps, total)) == total


def one(a: Amount | None, b: Amount | None) -> Change:
    (row,) = changes([{("x",): a} if a else {}], [{("x",): b} if b else {}])
    return row


def test_fewer_calls_of_equal_length_are_less_work_and_not_faster_code():
    row = one(Amount(68_000, 68), Amount(60_000, 60))
    assert (row.change_ns, row.count_ns, row.per_call_ns) == (-8_000, -8_000, 0)
    row = one(Amount(68_000, 68), Amount(61_200, 68))
    assert (row.count_ns, row.per_call_ns) == (0, -6_800)
    row = one(Amount(68_000, 68), Amount(54_000, 60))
    assert (row.count_ns, row.per_call_ns) == (-8_000, -6_000)


def test_the_worked_example_of_calls_and_their_length():
    (rows,) = tables_of(Path(__file__).parents[3] / "docs" / "diff.md", "Calls and their length")
    for row in rows:
        found = one(*(Amount(row[side], row[f"calls {side}"]) if row[side] else None for side in "AB"))
        assert (found.change_ns, found.count_ns, found.per_call_ns) == (
            *(row["change"], row["by calls"]),
            row["by length"],
        )


def test_what_one_side_alone_has_is_all_calls():
    new, gone = one(None, Amount(500, 5)), one(Amount(500, 5), None)
    assert (new.count_ns, new.per_call_ns, state_of(new)) == (500, 0, "only B")
    assert (gone.count_ns, gone.per_call_ns, state_of(gone)) == (-500, 0, "only A")


def test_calls_count_per_step_where_the_sides_have_unequal_numbers_of_steps():
    (row,) = changes([{("x",): Amount(60, 6)}], [{("x",): Amount(60, 6)}, {("x",): Amount(60, 6)}])
    assert (row.change_ns, row.count_ns, row.b_calls) == (0, 0, 12)


def test_a_change_within_what_steps_differ_anyway_is_none():
    a = [{(): Amount(ns, 1)} for ns in (1_000, 1_100, 900)]
    b = [{(): Amount(ns, 1)} for ns in (1_050, 1_150, 950)]
    (row,) = changes(a, b)
    assert row.change_ns == 50 and not row.is_change
    told = verdict(row, (3, 3))
    assert (told.outcome, "within what the steps differ anyway" in told.headline) == (Outcome.NO_CHANGE, True)
    (row,) = changes(a, [{(): Amount(ns + 900, 1)} for ns in (1_050, 1_150, 950)])
    assert verdict(row, (3, 3)).outcome is Outcome.LONGER
    (row,) = changes([{(): Amount(1_000_000, 1)}], [{(): Amount(1_009_999, 1)}])
    assert verdict(row, (1, 1)).outcome is Outcome.NO_CHANGE and row.bar is None
    assert verdict(row, (1, 1), least=0.005).outcome is Outcome.LONGER
    (row,) = changes([{(): Amount(1_000_000, 1)}], [{(): Amount(900_000, 1)}])
    assert verdict(row, (1, 1)).outcome is Outcome.SHORTER


def test_bars_cover_the_true_change_nine_times_in_ten_and_are_the_same_each_time():
    draw, inside = np.random.default_rng(7), 0
    for _ in range(200):
        a, b = ([{(): Amount(int(each), 1)} for each in draw.normal(1e6, 1e4, 5)] for _ in range(2))
        (row,) = changes(a, b)
        assert row.bar is not None and changes(a, b)[0].bar == row.bar
        inside += row.bar.low_ns <= 0 <= row.bar.high_ns
    assert inside >= 180
