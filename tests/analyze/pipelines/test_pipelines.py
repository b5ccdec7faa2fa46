"""The bubble's parts: exact on schedules made by hand, and adding up on every real run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.across_ranks import SMALL, TINY, analysed, microbatch_rows, simulated, topology
from tests.analyze.naive_measures import kernel_table
from tests.analyze.schedules import as_microbatches, interleaved, one_forward_one_backward, one_pipeline, perfect
from tests.sets import fast
from traceviz_dag.analyze.across_invariants import periods_violations, pipelines_violations
from traceviz_dag.analyze.pipelines.periods import periods_table
from traceviz_dag.analyze.pipelines.pipeline_views import replica_stages, stage_spread
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.pipeline.stored_iteration import stored_stage_times
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Faults
from traceviz_dag.tables import PIPELINES

RUNS = ("pp4_1f1b", "tp2_pp2_vpp2_full", "pp2_dp2_distopt_overlap", "pp2_ep2_moe")
GOOD = JobSettings(tp=2, pp=2, dp=2, microbatches=4, **TINY)


def measured(orders, chunks, duration, latency=0) -> list[dict]:
    times = perfect(orders, chunks, duration, latency)
    table = pipelines_table(as_microbatches(orders, times), one_pipeline(len(orders)))
    assert table.schema == PIPELINES.schema
    assert pipelines_violations(table).num_rows == 0
    return table.to_pylist()


def pipelines_of(iteration) -> pa.Table:
    return pipelines_table(iteration.microbatches, iteration.topology)


def plain(stages: int, count: int) -> list:
    return [one_forward_one_backward(stages, stage, count) for stage in range(stages)]


def test_a_slow_first_stage_makes_a_perfect_1f1b_take_51_where_the_closed_form_says_57():
    t = (6, 3, 3, 3)
    rows = measured(plain(4, 8), 1, lambda stage, step: t[stage] // 3 * (1 if step[0] == "F" else 2))
    first = rows[0]
    assert (first["span_ns"], first["schedule"], first["microbatches"]) == (51, "1f1b", 8)
    assert first["ideal_ns"] == 8 * (6 + 3 + 3 + 3) // 4
    assert first["stall_ns"] == 0 and first["jitter_ns"] == 0


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8), (4, 2), (8, 16)])
def test_equal_stages_have_nothing_but_the_ideal_fill(stages, count):
    for row in measured(plain(stages, count), 1, lambda _, step: 10 if step[0] == "F" else 20):
        fill = (stages - 1 - row["stage"]) * 30
        if count >= stages:
            assert row["fill_drain_ns"] == fill
            assert row["bubble_share"] == pytest.approx(row["ideal_share"])
        assert (row["imbalance_ns"], row["jitter_ns"], row["stall_ns"]) == (0, 0, 0)
        assert row["bubble_ns"] == row["fill_drain_ns"] and row["forward_ns"] == 10 and row["backward_ns"] == 20


def test_interleaving_divides_the_fill_by_the_chunks():
    orders = [interleaved(4, stage, 8, 2) for stage in range(4)]
    for row in measured(orders, 2, lambda _, step: 10 if step[0] == "F" else 20):
        assert row["schedule"] == "interleaved" and row["chunks"] == 2
        assert row["fill_drain_ns"] == (3 - row["stage"]) * 30
        assert row["ideal_share"] == pytest.approx((3 - row["stage"]) / 2 / (8 + (3 - row["stage"]) / 2))
        assert row["bubble_share"] == pytest.approx(row["ideal_share"])


def test_latency_between_stages_is_stall_and_a_slow_microbatch_is_jitter():
    prompt, late = (measured(plain(2, 4), 1, lambda *_: 10, latency=latency) for latency in (0, 7))
    assert prompt[0]["stall_ns"] == 0 < late[0]["stall_ns"]
    assert late[0]["stall_ns"] == late[0]["span_ns"] - prompt[0]["span_ns"] and late[0]["jitter_ns"] == 0
    slow = measured(plain(2, 4), 1, lambda stage, step: 30 if (stage, step) == (0, ("F", 0, 3)) else 10)
    assert slow[1]["jitter_ns"] > 0 and slow[1]["stall_ns"] == 0


def test_idle_time_lies_where_the_stage_waits():
    rows = measured(plain(4, 8), 1, lambda _, step: 10 if step[0] == "F" else 20)
    first, last = rows[0], rows[3]
    assert (first["idle_ns"], first["warmup_idle_ns"] + first["cooldown_idle_ns"]) == (90, 90)
    assert last["idle_ns"] == 0


durations = st.lists(st.integers(1, 1_000), min_size=48, max_size=48)


@given(durations, st.sampled_from([(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)]), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_the_parts_always_add_up_and_actual_durations_leave_the_latency_alone(lengths, shape, latency):
    stages, chunks = shape
    count = 6
    if chunks == 1:
        orders = plain(stages, count)
    else:
        orders = [interleaved(stages, stage, count, chunks) for stage in range(stages)]
    steps = [(stage, step) for stage, order in enumerate(orders) for step in order]
    length = {step: lengths[index % len(lengths)] for index, step in enumerate(steps)}
    rows = measured(orders, chunks, lambda stage, step: length[stage, step], latency)
    for row in rows:
        assert row["refusal"] is None and row["stall_ns"] >= 0
        assert latency > 0 or row["stall_ns"] == 0


_any_step = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 3),
        "step": st.sampled_from([7, 8, None]),
        "chunk": st.sampled_from([0, 0, 1, None]),
        "microbatch": st.sampled_from([0, 1, 2, None]),
        "phase": st.sampled_from(["forward", "backward", "recompute"]),
        "dimension": st.sampled_from(["all", "all", "tp"]),
        "order_in_rank": st.integers(0, 6),
        "span_start_ns": st.integers(0, 40),
        "span_end_ns": st.integers(40, 60),
    }
)


@given(st.lists(_any_step, max_size=14))
@settings(max_examples=100, deadline=None)
def test_whatever_the_steps_a_stage_adds_up_or_says_why_not(rows):
    known = topology(pipelines=((0, 1), (2, 3)), world=4)
    table = pipelines_table(microbatch_rows(rows), known)
    assert pipelines_violations(table).num_rows == 0
    assert all((row["refusal"] is None) == (row["bubble_ns"] is not None) for row in table.to_pylist())
    nothing = kernel_table([])
    assert periods_violations(periods_table(microbatch_rows(rows), known, lambda _: nothing)).num_rows == 0
    assert stage_spread(table).num_rows <= table.num_rows >= replica_stages(table).num_rows


def test_combined_steps_are_one_item_and_still_add_up():
    # A forward and a backward step run into each other: F1 beside B0 on both stages.
    spans = {
        0: [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 30, 52), ("F", 2, 31, 50), ("B", 1, 60, 80), ("B", 2, 80, 100)],
        1: [("F", 0, 10, 20), ("F", 1, 20, 31), ("B", 0, 20, 30), ("F", 2, 50, 62), ("B", 1, 51, 60), ("B", 2, 62, 80)],
    }
    orders = {stage: [(kind, 0, index) for kind, index, *_ in steps] for stage, steps in spans.items()}
    times = [{(kind, 0, index): (start, end) for kind, index, start, end in spans[stage]} for stage in (0, 1)]
    table = pipelines_table(as_microbatches([orders[0], orders[1]], times), one_pipeline(2))
    assert pipelines_violations(table).num_rows == 0
    first, second = table.to_pylist()
    assert first["schedule"] == second["schedule"] == "combined" and first["refusal"] is None
    assert (first["span_ns"], first["busy_ns"], first["forward_ns"]) == (100, 82, None)


def test_a_pipeline_without_one_of_its_stages_has_no_parts_and_says_why():
    orders = plain(3, 4)
    times = perfect(orders, 1, lambda *_: 10)
    everything = as_microbatches(orders, times)
    partial = everything.filter(pa.array(np.array(everything["rank"].to_pylist()) != 1))
    rows = pipelines_table(partial, one_pipeline(3)).to_pylist()
    assert [row["stage"] for row in rows] == [0, 2]
    assert {row["refusal"] for row in rows} == {"no forward and backward steps are known of stage 1"}
    assert all(row["bubble_ns"] is None and row["span_ns"] > 0 for row in rows)


@pytest.mark.parametrize("source", fast(["megatron_gpu", "megatron_cpu"], "megatron_gpu"))
@pytest.mark.parametrize("run", fast(RUNS, *RUNS[::2]))
def test_the_parts_add_up_on_megatron_s_own_schedules(shared_data, source, run):
    table = pipelines_of(analysed(shared_data / source / run))
    assert table.num_rows == 4
    assert pipelines_violations(table).num_rows == 0
    rows = table.to_pylist()
    assert {row["refusal"] for row in rows} == {None}
    assert {row["schedule"] for row in rows} == {"interleaved" if "vpp2" in run else "1f1b"}
    assert all(row["fill_drain_ns"] > 0 for row in rows if row["stage"] < row["stages"] - 1)
    assert all(row["idle_share"] == row["idle_ns"] / row["span_ns"] for row in rows)


def test_a_bad_split_shows_as_imbalance_of_its_stage_and_a_good_one_does_not():
    good, _ = simulated(GOOD)
    bad, _ = simulated(JobSettings(pp=2, dp=2, microbatches=8, faults=Faults(bad_stage_split=2), **SMALL))
    imbalance = []
    for iteration in (good, bad):
        table = pipelines_of(iteration)
        assert pipelines_violations(table).num_rows == 0
        rows = [row for row in table.to_pylist() if row["stage"] == 0]
        imbalance.append(np.mean([row["imbalance_ns"] / row["span_ns"] for row in rows]))
    assert imbalance[0] < 0.05 < 0.15 < imbalance[1]
    assert stored_stage_times(bad.lake, bad.run, bad.iteration).slowest.stage == 0


def test_the_span_of_the_first_stage_is_that_of_the_truth():
    iteration, truth = simulated(JobSettings(tp=2, pp=4, microbatches=4, **TINY))
    true = pq.read_table(truth / "pipelines.parquet").to_pandas().set_index("rank")
    for row in pipelines_of(iteration).to_pylist():
        if row["stage"] == 0:
            whole = int(true.loc[row["rank"], "end_ns"] - true.loc[row["rank"], "start_ns"])
            assert abs(row["span_ns"] - whole) <= max(10_000, whole // 100)


@pytest.mark.parametrize("overlap_p2p", fast([False, True], True))
def test_combined_1f1b_of_a_simulated_job_is_taken_apart_like_any_other(overlap_p2p):
    settings = JobSettings(
        pp=2, vpp=2, ep=2, dp=2, microbatches=4, overlap_expert=True, overlap_p2p=overlap_p2p, **TINY
    )
    iteration, _ = simulated(settings)
    table = pipelines_of(iteration)
    assert pipelines_violations(table).num_rows == 0
    rows = table.to_pylist()
    assert {(row["schedule"], row["refusal"], row["chunks"]) for row in rows} == {("combined", None, 2)}
    assert all(abs(row["jitter_ns"]) < 0.02 * row["span_ns"] for row in rows)


def test_views_over_replicas_and_the_peers_of_a_stage():
    iteration, _ = simulated(GOOD)
    table = pipelines_of(iteration)
    replicas = replica_stages(table).to_pylist()
    assert [(row["dense_replica"], row["stage"], row["pipelines"]) for row in replicas] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 2),
        (1, 1, 2),
    ]
    rows = table.to_pylist()
    of_first = [row["span_ns"] for row in rows if row["dense_replica"] == 0 and row["stage"] == 0]
    assert replicas[0]["span_ns"] == max(of_first)
    spread = stage_spread(table).to_pylist()
    assert [(row["stage"], row["ranks"]) for row in spread] == [(0, 4), (1, 4)]
    assert all(0 <= row["spread"] < 0.05 for row in spread)
