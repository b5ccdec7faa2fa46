"""What the periods of a pair say: overlapped, in turns, or neither; and over which iterations."""

from __future__ import annotations

import pyarrow as pa
import pytest

from traceviz_dag.analyze.pipelines.pair_verdicts import in_words, pair_verdicts, steady_window, verdict
from traceviz_dag.tables import PERIODS


def units(*rows: tuple[int, int, int], pair: str = "stages 0 and 1") -> pa.Table:
    """Units of one pair, (period, stage0, stage1) in ms."""
    names = [column.name for column in PERIODS.columns]
    made = [
        dict.fromkeys(names)
        | {"pair": pair, "kind": "stages", "rank": 0, "stage": 0, "unit": number}
        | {"period_ns": period * 10**6, "stage0_ns": first * 10**6, "stage1_ns": second * 10**6}
        | {"overlap_score": (first + second - period) / min(first, second)}
        for number, (period, first, second) in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=PERIODS.schema)


@pytest.mark.parametrize(
    ("period", "said"),
    [(10, "overlapped"), (11, "overlapped"), (14, "between"), (18, "serialized"), (25, "beyond the sum"), (7, "below")],
)
def test_a_period_is_held_against_the_longer_stage_and_against_both(period, said):
    assert verdict(period, 10, 8).startswith(said)


def test_iterations_count_together_without_those_in_which_the_profiler_starts_and_ends():
    periods = {number: units((31, 30, 18), (32, 30, 18)) for number in (10, 11, 12)}
    periods[9] = periods[13] = units((400, 30, 18), (400, 30, 18))
    # As a home gives it, beside others that were computed just now.
    periods[12] = periods[12].add_column(0, "iteration", pa.array([12, 12]))
    assert steady_window([9, 10, 11, 12, 13]) == (10, 11, 12)
    assert steady_window([9, 10, 11]) == (9, 10, 11)
    (one,) = pair_verdicts(periods)
    assert (one.units, one.iterations, one.period_ns[0], one.verdict) == (6, (10, 11, 12), 31_500_000, "overlapped")
    assert in_words(one) == (
        "stages 0 and 1, stage 0: period 31.500 ≈ max(stage 0 30.000, stage 1 18.000), OverlapScore 0.92 "
        "(p50; period p90 and p99 32.000 and 32.000; N=6)"
    )


def test_units_without_measures_say_nothing():
    assert pair_verdicts({1: units().slice(0, 0)}) == []
    assert pair_verdicts({}) == []


def test_nothing_is_claimed_of_a_stage_too_short_to_show_in_the_period():
    assert verdict(27_273, 27_078, 102) == "not distinguished"


def test_the_sides_of_computation_and_a_dimension_are_no_stages():
    table = units((18, 10, 8), pair="computation + tp").to_pylist()
    (one,) = pair_verdicts({7: pa.Table.from_pylist([{**table[0], "kind": "dimension"}], schema=PERIODS.schema)})
    assert "period 18.000 ≈ computation 10.000 + tp 8.000, " in in_words(one)
