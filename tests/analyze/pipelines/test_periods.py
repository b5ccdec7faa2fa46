"""Periods and OverlapScore: 1.0 on every perfect pipeline, 0 where stages take turns, NULL where nothing is known."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.across_ranks import EPOCH_NS, analysed
from tests.analyze.naive_measures import kernel, kernel_table
from tests.analyze.schedules import (
    as_kernels,
    as_microbatches,
    interleaved,
    one_forward_one_backward,
    one_pipeline,
    perfect,
)
from tests.sets import fast
from traceviz_dag.analyze.across_invariants import periods_violations
from traceviz_dag.analyze.pipelines.period_summary import judge_pairs, period_summary, two_modes
from traceviz_dag.analyze.pipelines.periods import BUSY_COLUMNS, period_rows, periods_table, refused, scored_rows
from traceviz_dag.read.pairs_file import NamedPair
from traceviz_dag.tables import PERIODS


def periods_of(orders, chunks, duration, extra=None, latency=0) -> pa.Table:
    times = perfect(orders, chunks, duration, latency)
    kernels = [as_kernels(each) for each in times]
    for rank, rows in (extra or {}).items():
        kernels[rank] = pa.concat_tables([kernels[rank], kernel_table(rows)])
    table = periods_table(as_microbatches(orders, times), one_pipeline(len(orders)), kernels.__getitem__)
    assert table.schema == PERIODS.schema
    assert periods_violations(table).num_rows == 0
    return table


def stage_pairs(table: pa.Table) -> list[dict]:
    return [row for row in table.to_pylist() if row["kind"] == "stages"]


def plain(stages: int, count: int) -> list:
    return [one_forward_one_backward(stages, stage, count) for stage in range(stages)]


def test_a_perfect_1f1b_scores_one_on_every_pair_in_every_steady_unit():
    rows = stage_pairs(periods_of(plain(4, 8), 1, lambda _, step: 10 if step[0] == "F" else 20))
    assert {row["overlap_score"] for row in rows} == {1.0}
    assert {row["period_ns"] for row in rows} == {30}
    # From the first backward step to the last forward one, the units of stage s are m - (p - s).
    assert [sum(row["stage"] == stage for row in rows) for stage in range(3)] == [4, 5, 6]
    assert [row["unit"] for row in rows if row["stage"] == 0] == [0, 1, 2, 3]


@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 100), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_any_perfect_1f1b_of_equal_stages_scores_one(stages, more, forward, backward):
    table = periods_of(plain(stages, stages + more), 1, lambda _, step: forward if step[0] == "F" else backward)
    scores = [row["overlap_score"] for row in stage_pairs(table) if row["refusal"] is None]
    assert set(scores) <= {1.0} and (scores or more < 2)


def test_a_perfect_interleaved_schedule_scores_one_in_its_usual_unit():
    orders = [interleaved(4, stage, 16, 2) for stage in range(4)]
    table = periods_of(orders, 2, lambda _, step: 10 if step[0] == "F" else 20)
    summary = [row for row in period_summary(table).to_pylist() if row["kind"] == "stages"]
    assert [row["stage"] for row in summary] == [0, 1, 2]
    assert {(row["score_p50"], row["period_p50_ns"]) for row in summary} == {(1.0, 30)}
    assert all(row["score_p90"] == 1.0 for row in summary)


def test_the_longest_stage_sets_the_period_and_the_score_stays_one():
    t = (10, 10, 30, 10)
    rows = stage_pairs(periods_of(plain(4, 16), 1, lambda stage, _: t[stage]))
    late = [row for row in rows if row["stage"] == 2 and row["unit"] > 4]
    assert {(row["period_ns"], row["stage0_ns"], row["stage1_ns"], row["overlap_score"]) for row in late} == {
        (60, 60, 20, 1.0)
    }


def test_stages_that_take_turns_score_nothing():
    # Two stages, one unit in flight: each works only while the other waits.
    columns = scored_rows(np.array([50]), np.array([20]), np.array([30]))
    assert columns["derived_hidden_ns"].tolist() == [0] and columns["overlap_score"].tolist() == [0.0]
    nothing = scored_rows(np.array([50]), np.array([0]), np.array([30]))
    assert period_rows([({}, 1, nothing)])["overlap_score"].to_pylist() == [None]


def test_scores_outside_zero_to_one_are_reported_and_gaps_count_against_the_pair():
    columns = scored_rows(np.array([100, 10]), np.array([20, 20]), np.array([30, 20]))
    assert columns["overlap_score"].tolist() == [-2.5, 1.5]


def test_pairs_with_fewer_than_two_steady_units_have_no_figure_but_a_reason():
    rows = stage_pairs(periods_of(plain(4, 4), 1, lambda *_: 10))
    told = {row["stage"]: row["refusal"] for row in rows}
    assert told == {0: "0 steady units, 2 are needed", 1: "1 steady unit, 2 are needed", 2: None}
    assert all(row["overlap_score"] is None and row["unit"] is None for row in rows if row["refusal"])


def test_computation_is_paired_with_each_dimension_that_a_rank_communicates_in():
    # Stage 1 of two computes 20 in each unit of 20; a communication of 8 runs beside it in every unit.
    beside = [kernel(EPOCH_NS + 10 * at, 4, "communication", "tp") for at in range(1, 17)]
    table = periods_of(plain(2, 8), 1, lambda *_: 10, extra={1: beside})
    rows = [row for row in table.to_pylist() if row["kind"] == "dimension"]
    assert {(row["pair"], row["rank"], row["dimension"]) for row in rows} == {("computation + tp", 1, "tp")}
    assert {(row["period_ns"], row["stage0_ns"], row["stage1_ns"]) for row in rows} == {(20, 20, 8)}
    assert {row["overlap_score"] for row in rows} == {1.0}


def test_pipeline_and_gradient_communication_is_no_busy_time_of_a_stage():
    waiting = [kernel(EPOCH_NS, 400, "communication", dimension) for dimension in ("pp", "dp")]
    rows = stage_pairs(periods_of(plain(2, 8), 1, lambda *_: 10, extra={0: waiting}, latency=5))
    assert {row["stage0_ns"] for row in rows} == {20}
    assert min(row["overlap_score"] for row in rows) < 1


def test_without_pipelines_a_unit_is_a_micro_batch():
    order = [[step for index in range(5) for step in (("F", 0, index), ("B", 0, index))]]
    times = perfect(order, 1, lambda *_: 10)
    kernels = pa.concat_tables([as_kernels(times[0]), kernel_table([kernel(EPOCH_NS, 100, "communication", "dp")])])
    table = periods_table(as_microbatches(order, times), one_pipeline(1), lambda _: kernels)
    assert [(row["pair"], row["unit"], row["overlap_score"]) for row in table.to_pylist()] == [
        ("computation + dp", unit, 1.0) for unit in range(4)
    ]


UNITS = {
    "pp4_1f1b": {0: 0, 1: 0, 2: 2},
    "pp2_dp2_distopt_overlap": {0: 4},
    "pp2_ep2_moe": {0: 4},
    "tp2_pp2_vpp2_full": {0: 6},
}
"""m = 4 throughout: pipeline stages s of p have m - (p - s) steady units, of an interleaved one as observed."""


@pytest.mark.parametrize(
    ("source", "run"),
    fast(
        product(("megatron_gpu", "megatron_cpu"), UNITS),
        *(("megatron_gpu", "pp4_1f1b"), ("megatron_gpu", "tp2_pp2_vpp2_full")),
    ),
)
def test_megatron_s_own_runs_have_the_units_that_their_schedules_allow(shared_data, source, run):
    units = UNITS[run]
    iteration = analysed(shared_data / source / run)
    kernels = partial(iteration.kernels, columns=BUSY_COLUMNS)
    table = periods_table(iteration.microbatches, iteration.topology, kernels, iteration.ranks)
    table = table.select(PERIODS.schema.names)
    assert periods_violations(table).num_rows == 0
    rows = stage_pairs(table)
    assert {stage: sum(row["stage"] == stage and row["unit"] is not None for row in rows) for stage in units} == units
    for row in rows:
        assert (row["refusal"] is None) == (row["period_ns"] is not None)


def test_percentiles_are_over_a_stated_window_and_name_the_worst_rank():
    table = periods_of(plain(4, 12), 1, lambda stage, step: 10 if (stage, step[2]) != (1, 7) else 25)
    summary = period_summary(table).to_pylist()
    first = next(row for row in summary if row["pair"] == "stages 0 and 1")
    rows = [row for row in stage_pairs(table) if row["stage"] == 0]
    assert (first["units"], first["first_unit"], first["last_unit"]) == (len(rows), 0, len(rows) - 1)
    assert first["period_p50_ns"] == np.percentile([row["period_ns"] for row in rows], 50)
    assert first["period_p99_ns"] == round(np.percentile([row["period_ns"] for row in rows], 99))
    assert first["worst_rank"] == 0 and first["statement"].endswith(f"N={len(rows)}")


def test_each_refusal_names_its_ranks_and_steps_and_what_is_judged_over_fewer_ranks_is_known():
    few, nothing = "1 steady unit, 2 are needed", "no dp communication in its 4 steady units"

    def rows(step: int, refusals: dict[int, str | None]) -> pa.Table:
        pair = {"pair": "computation + dp", "kind": "dimension", "dimension": "dp", "step": step}
        scored = scored_rows(np.full(2, 30), np.full(2, 20), np.full(2, 20)) | {"unit": np.arange(2)}
        of_rank = {rank: pair | {"rank": rank, "rank1": rank} for rank in refusals}
        return period_rows(
            [refused(of_rank[rank], why) if why else (of_rank[rank], 2, scored) for rank, why in refusals.items()]
        )

    named = NamedPair("computation + dp", dimension="dp")
    table = pa.concat_tables([rows(7, {0: few, 1: few, 2: nothing, 3: None}), rows(8, {0: few, 2: nothing, 3: None})])
    (verdict,) = judge_pairs((named,), table)
    assert verdict.over_fewer_ranks and (verdict.ranks, verdict.ranks_without) == (1, 3)
    assert verdict.refusal == f"ranks 0–1 in step 7, rank 0 in step 8: {few}; rank 2: {nothing}"
    first, second = period_summary(table).to_pylist()
    assert first["without"] == f"ranks 0–1: {few}; rank 2: {nothing}"
    assert second["without"] == f"rank 0: {few}; rank 2: {nothing}"
    answered = rows(7, {2: nothing, 3: None})
    assert not judge_pairs((named,), answered)[0].over_fewer_ranks, "that nothing is to overlap is an answer"
    (whole,) = period_summary(rows(7, {0: few, 1: few})).to_pylist()
    assert (whole["refusal"], whole["without"]) == (few, None)


def test_two_modes_are_noted_and_one_mode_with_a_tail_is_not():
    random = np.random.default_rng(5)
    fast, slow = np.linspace(11.0e6, 11.6e6, 70), np.linspace(35.4e6, 37.4e6, 30)
    note = two_modes(random.permutation(np.concatenate((fast, slow))))
    assert note == "two modes: 70 % of the units near 11.300 ms, 30 % near 36.400 ms"
    assert two_modes(random.normal(20e6, 2e6, 200)) is None
    assert two_modes(random.lognormal(16, 0.3, 200)) is None
    assert two_modes(np.array([10.0, 50.0] * 3)) is None, "six values are too few"
