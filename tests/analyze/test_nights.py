"""A step taken apart adds up to the nanosecond, and a verdict names the part that moved."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.analyze.nights.verdicts import Coverage, Measures, Tolerances, common_ranks, judge_nights
from traceviz_dag.analyze.step_parts import IDLE, step_parts
from traceviz_dag.vocabulary import Category, Kind

MS = 1_000_000
TOLERANCES = Tolerances(step=0.05, exposed=0.10, overlap_score=0.05, floor_ns=MS)


def kernels(*rows: tuple[str, str, int, int]) -> pa.Table:
    return pa.table(
        {
            "kind": pa.array([kind for kind, _, _, _ in rows], pa.string()),
            "category": pa.array([category for _, category, _, _ in rows], pa.string()),
            "start_ns": pa.array([start for _, _, start, _ in rows], pa.int64()),
            "duration_ns": pa.array([end - start for _, _, start, end in rows], pa.int64()),
        }
    )


def test_an_instant_belongs_to_computation_before_communication_before_memory():
    parts = step_parts(
        kernels(
            ("computation", "fwd_computation", 10, 30),
            ("computation", "bwd_computation", 25, 50),
            ("communication", "dp_communication", 40, 70),
            ("memory", "memory", 60, 80),
            ("computation", "optimizer_computation", 90, 130),
        ),
        0,
        100,
    )
    assert parts == {
        "fwd_computation": 20,
        "bwd_computation": 20,
        "optimizer_computation": 10,
        "dp_communication": 20,
        "memory": 10,
        IDLE: 20,
    }


def test_a_window_without_kernels_is_idle():
    assert step_parts(kernels(), 5, 25) == {IDLE: 20}


spans = st.tuples(
    st.sampled_from([kind.value for kind in Kind]),
    st.sampled_from([category.value for category in Category]),
    st.integers(0, 100),
    st.integers(0, 100),
).map(lambda row: (row[0], row[1], min(row[2:]), max(row[2:])))


@given(st.lists(spans, max_size=12), st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_parts_are_not_negative_and_add_up_to_the_window(rows, start, length):
    parts = step_parts(kernels(*rows), start, start + length)
    assert sum(parts.values()) == length and min(parts.values()) >= 0


def measures(name: str, exposed: int = 0, scores: dict[str, float] | None = None, **parts: int) -> Measures:
    return Measures(name, sum(parts.values()), exposed, parts, scores or {})


def test_the_first_of_a_series_is_accepted():
    verdict = judge_nights(measures("job@1", fwd_computation=5 * MS), None, [], TOLERANCES)
    assert verdict.accepted and verdict.moved is None and "first of its series" in verdict.statement


def test_a_slower_step_is_rejected_and_the_part_that_grew_is_named():
    before = measures("job@1", fwd_computation=60 * MS, idle=40 * MS)
    now = measures("job@2", fwd_computation=75 * MS, idle=38 * MS)
    verdict = judge_nights(now, before, [before.step_ns], TOLERANCES)
    assert (verdict.accepted, verdict.worse) == (False, ("step time",))
    assert verdict.moved is not None and (verdict.moved.part, verdict.moved.delta_ns) == ("fwd_computation", 15 * MS)
    assert sum(delta.delta_ns for delta in verdict.deltas) == now.step_ns - before.step_ns
    assert (
        "job@2: step 113 ms, +13.0 ms (+13.0 %) against job@1; forward computation grew most, +15.0 ms;"
        in verdict.statement
    )


def test_a_faster_step_is_accepted_and_the_part_that_shrank_is_named():
    before = measures("job@1", fwd_computation=60 * MS, idle=40 * MS)
    verdict = judge_nights(measures("job@2", fwd_computation=30 * MS, idle=45 * MS), before, [], TOLERANCES)
    assert verdict.accepted and verdict.moved is not None and verdict.moved.part == "fwd_computation"


@pytest.mark.parametrize(("slower_ns", "accepted"), [(4 * MS, True), (5 * MS, True), (5 * MS + 1, False)])
def test_a_step_may_be_slower_by_the_tolerance_and_no_more(slower_ns, accepted):
    before = measures("job@1", idle=100 * MS)
    assert judge_nights(measures("job@2", idle=100 * MS + slower_ns), before, [], TOLERANCES).accepted is accepted


def test_less_than_the_floor_is_noise_whatever_its_share():
    before = measures("job@1", idle=1000)
    assert judge_nights(measures("job@2", idle=900_000), before, [], TOLERANCES).accepted


def test_exposed_communication_and_scores_are_judged_beside_the_step():
    before = measures("job@1", 10 * MS, {"S0-S1": 0.9, "gone": 0.5}, idle=100 * MS)
    now = measures("job@2", 12 * MS, {"S0-S1": 0.8, "new": 0.1}, idle=100 * MS)
    verdict = judge_nights(now, before, [], TOLERANCES)
    assert verdict.worse == ("exposed communication", "OverlapScore of S0-S1")
    assert verdict.statement == (
        "job@2: step 100 ms, as long as that of job@1; "
        "worse: exposed communication 12.0 ms against 10.0 ms, OverlapScore of S0-S1"
    )


def test_many_small_steps_up_are_stopped_by_the_median_of_the_accepted():
    history = [100 * MS, 100 * MS, 103 * MS, 104 * MS]
    before = measures("job@4", idle=104 * MS)
    now = measures("job@5", idle=108 * MS)
    assert judge_nights(now, before, history[-1:], TOLERANCES).accepted
    verdict = judge_nights(now, before, history, TOLERANCES)
    assert verdict.worse == ("step time against the median of 4 accepted",)


def test_parts_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="add up to 1 ns, not to 2"):
        judge_nights(Measures("job@1", 2, 0, {"idle": 1}), None, [], TOLERANCES)


FEWER, NO_STAGE = "less than 90 %", "no rank of stage 1 is in both"
LAYOUT = "the parallel layout is another"


def coverage(ranks, mode: str = "PyTorch profiler, no call stacks", world: int | None = 20, tp: int = 2) -> Coverage:
    """Ranks of a job of two stages of ten ranks."""
    places = {rank: {"tp": rank % tp, "stage": rank // 10} for rank in ranks}
    return Coverage("job@2", places, world, mode)


def test_a_night_begins_anew_only_with_more_than_twice_the_ranks():
    few = {ranks: common_ranks(coverage(range(8), world=8), coverage(range(ranks), world=8)) for ranks in (3, 4, 7)}
    assert [one.outgrown for one in few.values()] == [True, False, False]
    assert all(one.refusal for one in few.values())


@pytest.mark.parametrize(
    ("night", "reference", "ranks", "refusal"),
    [
        (coverage(range(20)), coverage(range(20)), 20, ""),
        (coverage(range(2, 20)), coverage(range(20)), 18, ""),
        (coverage(range(3, 20)), coverage(range(20)), 17, f"they share 17 of 20 ranks, {FEWER}"),
        (
            coverage([0]),
            coverage(range(20)),
            1,
            f"they share 1 of 20 ranks, {FEWER}; {NO_STAGE}",
        ),
        (coverage(range(11)), coverage(range(10)), 10, NO_STAGE),
        (coverage([0]), coverage([0]), 1, ""),
        (
            coverage(range(20), "PyTorch profiler, call stacks"),
            coverage(range(20)),
            20,
            "the capture mode was PyTorch profiler, no call stacks, and is PyTorch profiler, call stacks",
        ),
        (
            coverage(range(20), tp=4),
            coverage(range(20)),
            20,
            f"{LAYOUT}: rank 2 has another place",
        ),
        (coverage(range(20)), coverage(range(20), world=40), 20, "the job had 40 ranks, and has 20"),
        (coverage(range(20)), coverage(range(20), world=None), 20, ""),
    ],
)
def test_nights_are_compared_over_what_both_cover_if_that_is_nearly_all_and_alike(night, reference, ranks, refusal):
    found = common_ranks(night, reference)
    assert (len(found.ranks), found.refusal) == (ranks, refusal)
