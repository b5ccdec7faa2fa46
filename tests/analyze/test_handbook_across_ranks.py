"""Every figure across ranks in the metrics handbook is what the product computes."""

from __future__ import annotations

from tests.analyze.across_ranks import EPOCH_NS, match_rows, part, topology
from tests.analyze.clocks.test_clocks import TP_DP, US, job
from tests.analyze.naive_measures import kernel
from tests.analyze.schedules import as_kernels, as_microbatches, one_forward_one_backward, one_pipeline, perfect
from tests.analyze.test_metrics_handbook import _as_written, _tables
from tests.analyze.waits.test_collectives import DLRM_WAITS_US
from tests.analyze.waits.test_waits import charged
from traceviz_dag.analyze.across_invariants import ACROSS_INVARIANTS
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.collective_matching import MatchedBy
from traceviz_dag.analyze.pipelines.periods import periods_table
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.vocabulary import Fault


def test_the_worked_example_of_waits():
    rows, expected = _tables("Worked example: waits")
    facts = ("collective", "dtype", "in_elements")
    parts = [part(row["rank"], row["start_ns"], row["end_ns"], **{name: row[name] for name in facts}) for row in rows]
    matches = match_rows(parts, topology({"1": (0, 1, 2)}))
    assert _as_written(collectives_table(matches, solve_clocks(matches)), expected) == expected


def test_the_waits_of_the_public_job_are_those_that_the_tests_compute():
    (rows,) = _tables("Waits of a public job")
    assert {row["rank"]: row["wait_us"] for row in rows} == DLRM_WAITS_US


def test_the_worked_example_of_clocks():
    (rows,) = _tables("Worked example: clocks")
    clocks = solve_clocks(job(TP_DP, {row["rank"]: row["true_us"] * US for row in rows}))
    solved = {row["rank"]: round(row["offset_ns"] / US) for row in clocks.to_pylist()}
    assert solved == {row["rank"]: row["solved_us"] for row in rows}


def test_the_worked_example_of_blame():
    parts, beside, expected = _tables("Worked example: blame")
    own: dict[int, list[dict]] = {}
    for row in beside:
        more = kernel(EPOCH_NS + row["start_ns"], row["duration_ns"], row["kind"], category="fwd_computation")
        own.setdefault(row["rank"], []).append(more)
    rows = charged(
        [
            part(row["rank"], row["start_ns"], row["end_ns"], launch_start_ns=EPOCH_NS + row["launch_ns"])
            for row in parts
        ],
        own,
    )
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def test_the_worked_example_of_the_pipeline_bubble():
    (expected,) = _tables("Worked example: pipeline bubble")
    orders = [one_forward_one_backward(4, stage, 8) for stage in range(4)]
    t = (6, 3, 3, 3)
    times = perfect(orders, 1, lambda stage, step: t[stage] // 3 * (1 if step[0] == "F" else 2))
    assert _as_written(pipelines_table(as_microbatches(orders, times), one_pipeline(4)), expected) == expected


def test_the_worked_example_of_periods():
    (expected,) = _tables("Worked example: periods")
    orders = [one_forward_one_backward(2, stage, 6) for stage in range(2)]
    times = perfect(orders, 1, lambda stage, step: (10 if step[0] == "F" else 20) * (1 + stage))
    kernels = [as_kernels(each) for each in times]
    table = periods_table(as_microbatches(orders, times), one_pipeline(2), kernels.__getitem__)
    assert _as_written(table, expected) == expected


def test_rules_and_faults_of_matching_are_all_explained():
    rules, faults, *_ = _tables("Communications across ranks")
    assert [row["`matched_by`"] for row in rules] == [rule.value for rule in MatchedBy]
    assert {row["`fault`"] for row in faults} == {fault.value for fault in Fault} - {"none"}


def test_the_invariants_across_ranks_are_those_that_are_checked():
    (rows,) = _tables("Invariants across ranks")
    assert {row["rule"]: row["statement"] for row in rows} == ACROSS_INVARIANTS
