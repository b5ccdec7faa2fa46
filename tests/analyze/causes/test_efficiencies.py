"""The factors of parallel efficiency: known values, exact products and sums, and where they are refused."""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.analyze.causes.small_steps import small_steps
from tests.analyze.schedules import one_forward_one_backward, perfect
from tests.commands.jobs import home_of
from traceviz_dag.analyze.causes.efficiencies import (
    Replayed,
    efficiencies_table,
    factor_rows,
    replayed,
    useful_ns,
)
from traceviz_dag.analyze.causes.factors import over_steps
from traceviz_dag.analyze.causes.records_efficiencies import records_efficiencies
from traceviz_dag.analyze.causes.records_work import records_work
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation, PipelineRecords, read_pipeline_records

FACTORS = ("load_balance", "serialisation", "transfer", "host")


def of_all_ranks(rows):
    return {(row["factor"], row["dimension"]): row for row in rows if row["replica"] is None}


def holds_together(rows):
    """Factors multiply to their parent and their losses add up to its, level by level."""
    for replica in {row["replica"] for row in rows}:
        mine = [row for row in rows if row["replica"] == replica and row["lost_ns"] is not None]
        for parent in mine:
            parts = [row for row in mine if row["parent"] == parent["factor"] and parent["dimension"] is None]
            if parts:
                assert prod(row["value"] for row in parts) == pytest.approx(parent["value"], rel=1e-9)
                assert sum(row["lost_ns"] for row in parts) == parent["lost_ns"]
                assert [row["ideal_ns"] for row in parts[1:]] == [row["time_ns"] for row in parts[:-1]]


def test_the_published_records_have_the_known_factors(shared_data):
    rows = records_efficiencies(
        records_work(read_pipeline_records(shared_data / "straggler_analysis" / "trace-SE.parquet"))
    )
    summed = over_steps(rows)
    found = of_all_ranks(summed)
    assert [found[factor, None]["value"] for factor in FACTORS] == pytest.approx(
        [0.66087, 0.86331, 0.98136, 0.99490], abs=5e-6
    )
    whole = found["parallel_efficiency", None]
    assert whole["value"] == pytest.approx(0.55705, abs=5e-6)
    assert (whole["steps"], whole["ranks"]) == (43, 64)
    assert len({row["replica"] for row in summed}) == 33
    holds_together(summed)
    holds_together([row for row in rows if row["step"] == rows[0]["step"]])


def perfect_pipeline(stages: int, count: int) -> PipelineRecords:
    """A pipeline that waits for nothing but its order, and whose messages take no time."""
    orders = [one_forward_one_backward(stages, stage, count) for stage in range(stages)]
    times = perfect(orders, 1, lambda _, step: 10 if step[0] == "F" else 20)
    rows = []
    for stage, mine in enumerate(times):
        for (kind, _, index), (start, end) in mine.items():
            forward = kind == "F"
            computes, sends, receives = (
                (Operation.FORWARD, Operation.FORWARD_SEND, Operation.FORWARD_RECEIVE)
                if forward
                else (Operation.BACKWARD, Operation.BACKWARD_SEND, Operation.BACKWARD_RECEIVE)
            )
            rows.append((stage, start, computes, index, end - start))
            target = stage + 1 if forward else stage - 1
            if 0 <= target < stages:
                rows.append((stage, end, sends, index, 0))
                rows.append((target, end, receives, index, 0))
    rows.sort(key=lambda row: (row[0], row[1], row[2] not in (Operation.FORWARD_RECEIVE, Operation.BACKWARD_RECEIVE)))
    stage, start, operation, index, duration = zip(*rows, strict=True)
    zero = [0] * len(rows)
    columns = {"step": zero, "dp_rank": zero, "stage": stage, "rank": stage, "sequence": index, "chunk": zero}
    columns |= {"operation": [OPERATIONS.index(each) for each in operation], "microbatch": index}
    columns |= {"start_ns": start, "duration_ns": duration}
    table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return PipelineRecords(table, 1, stages, 1, ())


def test_a_perfect_pipeline_loses_by_fill_and_drain_alone():
    found = of_all_ranks(records_efficiencies(records_work(perfect_pipeline(4, 8))))
    assert found["serialisation", None]["value"] == found["parallel_efficiency", None]["value"] == 8 / 11
    assert all(
        row["value"] == 1 for (factor, _), row in found.items() if factor in ("load_balance", "transfer", "host")
    )


@settings(max_examples=150, deadline=None)
@given(small_steps())
def test_factors_multiply_and_losses_add_up_on_any_step(step):
    stages = [0] * (len(step.ranks) - 1) + [1]
    try:
        rows = factor_rows(replayed(WhatIf(step, stages), list(range(len(step.ranks))), None))
    except NoEvidenceError:
        return
    holds_together(rows)
    whole = of_all_ranks(rows)["parallel_efficiency", None]
    assert whole["time_ns"] == step.step_ns(step.replay(step.times()))
    assert whole["ideal_ns"] == pytest.approx(np.mean([useful_ns(work) for work in step.works]), abs=0.5)
    assert all(row["lost_ns"] >= 0 for row in rows if row["factor"] in ("load_balance", "transfer", "within_stages"))


def test_each_factor_is_what_its_name_says():
    """Two stages of two ranks: stage 1 computes longer, and its second rank longer still."""
    arrays = {name: np.array(values) for name, values in (("stage", [0, 0, 1, 1]), ("replica", [0, 1, 0, 1]))}
    measures = {"useful_ns": [40, 40, 60, 100], "ideal_ns": [100, 110, 100, 110], "measured_ns": [200, 190, 200, 200]}
    arrays |= {name: np.array(values) for name, values in measures.items()}
    restored = {"tp": np.array([120, 120, 120, 125]), "pp": np.array([125, 130, 150, 160])}
    rows = factor_rows(Replayed(**arrays, restored=restored))
    assert [(row["factor"], row["dimension"], row["ideal_ns"], row["time_ns"]) for row in rows[:9]] == [
        ("parallel_efficiency", None, 60, 200),
        ("load_balance", None, 60, 100),
        ("between_stages", None, 60, 80),
        ("within_stages", None, 80, 100),
        ("serialisation", None, 100, 110),
        ("transfer", None, 110, 160),
        ("transfer", "tp", 110, 125),
        ("transfer", "pp", 125, 160),
        ("host", None, 160, 200),
    ]
    holds_together(rows)
    assert {row["replica"] for row in rows} == {None, 0, 1}
    unknown = factor_rows(Replayed(**arrays | {"stage": np.full(4, MISSING)}, restored=restored))
    assert [row["reason"] for row in unknown[2:4]] == ["the pipeline stages of the ranks are not known"] * 2
    assert [row["value"] for row in unknown[:2]] == [row["value"] for row in rows[:2]]


def test_a_dimension_that_one_step_lacks_takes_no_time_there():
    lengths = np.array([10]), np.array([20])
    common = {"stage": np.array([0]), "replica": np.array([0]), "useful_ns": lengths[0], "ideal_ns": lengths[0]}
    steps = [
        factor_rows(Replayed(**common, restored=restored, measured_ns=np.array([40])))
        for restored in ({"tp": lengths[1]}, {"pp": lengths[1]}, {})
    ]
    summed = over_steps([row for rows in steps for row in rows])
    holds_together(summed)
    found = of_all_ranks(summed)
    assert (found["transfer", "tp"]["ideal_ns"], found["transfer", "tp"]["time_ns"]) == (30, 40)
    assert (found["transfer", "pp"]["ideal_ns"], found["transfer", "pp"]["time_ns"]) == (40, 50)
    assert (found["host", None]["time_ns"], found["host", None]["steps"]) == (120, 3)


def test_useful_time_is_the_compute_time_of_the_overlap_table():
    lake = open_lake(home_of("healthy"))
    (row,) = lake.query(
        "SELECT sum(compute_ns) / count(*) AS mean, max(compute_ns) AS most FROM overlap "
        "WHERE window_name = 'kernels' AND dimension = 'all'"
    ).to_pylist()
    found = of_all_ranks(lake.query("SELECT * FROM efficiencies").to_pylist())
    assert found["parallel_efficiency", None]["ideal_ns"] == pytest.approx(row["mean"], abs=0.5)
    assert found["load_balance", None]["time_ns"] == row["most"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("missing_stage", "3 of 4 ranks were read in this step, so who waited for whom is not known; "),
        ("one_rank", "1 of 4 ranks were read in this step, so who waited for whom is not known; "),
    ],
)
def test_a_job_of_which_ranks_are_missing_has_no_factors_and_a_reason(job, said):
    (row,) = open_lake(home_of(job)).query("SELECT * FROM efficiencies").to_pylist()
    assert row["reason"].startswith(said) and row["factor"] == "parallel_efficiency"
    assert row["value"] is row["ideal_ns"] is row["time_ns"] is row["lost_ns"] is None


@settings(max_examples=30, deadline=None)
@given(small_steps())
def test_ranks_that_no_communication_ties_together_are_refused(step):
    if len(set(step.together.tolist())) == 1:
        return
    (row,) = efficiencies_table(WhatIf(step, [0] * len(step.ranks)), [MISSING] * len(step.ranks), None, 7).to_pylist()
    assert (row["step"], row["value"]) == (7, None) and row["reason"].startswith("no matched communication ties rank")
