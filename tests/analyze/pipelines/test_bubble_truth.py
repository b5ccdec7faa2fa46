"""The bubble's parts of simulated jobs against the simulator's own truth, which shares no code with the analysis."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.analyze.across_ranks import TINY, simulated
from tests.analyze.schedules import interleaved, one_forward_one_backward, perfect
from tests.sets import fast
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.schedules import Backward, Forward
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.bubbles import BubbleParts, bubble_parts
from traceviz_dag.simulate.settings import Edges, Faults, Recompute

KEY = ["step", "rank", "stage"]
COLUMNS = ["span_ns", "ideal_ns", "fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns"]
PARTS = COLUMNS[2:]
EXPERTS = {"pp": 2, "vpp": 2, "ep": 2, "dp": 2, "microbatches": 4, "overlap_expert": True, **TINY}

JOBS = {
    "1f1b": JobSettings(tp=2, pp=3, microbatches=6, **{**TINY, "layers": 6}),
    "1f1b, bad split": JobSettings(pp=4, microbatches=6, faults=Faults(bad_stage_split=3), **{**TINY, "layers": 8}),
    "1f1b, slow GPU": JobSettings(pp=2, dp=2, microbatches=4, faults=Faults(slow_gpu=1), **TINY),
    "interleaved": JobSettings(tp=2, pp=2, vpp=2, microbatches=4, recompute=Recompute.FULL, **TINY),
    "interleaved, bad split, slow GPU": JobSettings(
        pp=3, vpp=2, microbatches=6, faults=Faults(bad_stage_split=1, slow_gpu=1), **{**TINY, "layers": 12}
    ),
    "interleaved, overlapped messages": JobSettings(pp=2, vpp=2, tp=2, microbatches=4, overlap_p2p=True, **TINY),
    "combined": JobSettings(**EXPERTS),
    "combined, bad split": JobSettings(faults=Faults(bad_stage_split=3), **{**EXPERTS, "layers": 8}),
    "combined, overlapped messages": JobSettings(overlap_p2p=True, **EXPERTS),
}
SKEWED = {
    "1f1b": JobSettings(
        pp=4,
        microbatches=6,
        clock_skew_ms=5.0,
        clock_drift_ppm=20.0,
        node_size=1,
        faults=Faults(slow_gpu=2),
        **TINY,
    ),
    "combined": JobSettings(clock_skew_ms=5.0, clock_drift_ppm=20.0, node_size=1, **EXPERTS),
}


def both(settings: JobSettings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measured and true rows, in the same order."""
    iteration, truth = simulated(settings)
    measured_here = pipelines_table(iteration.microbatches, iteration.topology)
    tables = measured_here.to_pandas(), pd.read_parquet(truth / "pipelines.parquet")
    measured, true = (each.astype(dict.fromkeys(KEY, "int64")).set_index(KEY).sort_index() for each in tables)
    return measured, true


@pytest.mark.parametrize("name", fast(JOBS, "1f1b", "interleaved, bad split, slow GPU"))
def test_the_parts_are_the_truth_to_the_nanosecond(name: str):
    settings = JOBS[name]
    measured, true = both(settings)
    assert len(true) == settings.world
    pd.testing.assert_frame_equal(measured[COLUMNS], true[COLUMNS], check_dtype=False)
    assert (true["fill_drain_ns"] != 0).any() and (true["jitter_ns"] != 0).any()
    assert (true["stall_ns"] > 0).all(), "no job is faster than a replay without latency"
    assert (measured["bubble_ns"] == true["span_ns"] - true["ideal_ns"]).all()
    if settings.faults.bad_stage_split:
        assert true.groupby("stage")["imbalance_ns"].max()[0] > 0.1 * true["span_ns"].max()


@pytest.mark.parametrize("name", fast(SKEWED, "1f1b"))
def test_skewed_clocks_change_the_parts_by_less_than_a_hundredth(name: str):
    measured, true = both(SKEWED[name])
    assert len(measured) == len(true) == SKEWED[name].world
    off = (measured[COLUMNS] - true[COLUMNS]).abs()
    assert (off <= (true[COLUMNS].abs() / 100).clip(lower=10_000)).all(axis=None)
    assert (off > 0).any(axis=None), "the clocks have no drift"


def test_without_pipelining_nothing_but_stall_is_left_and_the_table_has_no_rows():
    measured, true = both(JobSettings(tp=2, microbatches=4, **TINY))
    assert len(measured) == 0 and len(true) == 2
    assert (true[PARTS[:3]] == 0).all(axis=None)
    assert (true["stall_ns"] == true["span_ns"] - true["ideal_ns"]).all()


def test_a_pipeline_without_a_stage_s_file_has_no_true_parts():
    settings = JobSettings(pp=2, dp=2, microbatches=4, edges=Edges(missing_rank=3), **TINY)
    measured, true = both(settings)
    for rows in (measured, true):
        assert rows.reset_index().set_index("rank")["stall_ns"].isna().to_dict() == {0: False, 1: True, 2: False}
    known = true["stall_ns"].notna()
    pd.testing.assert_frame_equal(measured.loc[known, PARTS], true.loc[known, PARTS], check_dtype=False)


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (4, 1), (4, 2)])
def test_the_truth_itself_knows_the_closed_forms(stages: int, chunks: int):
    """Equal stages fill and drain (stages - 1 - stage) micro-batches long, over the chunks; no other part is left."""
    count = 8
    orders = [
        one_forward_one_backward(stages, stage, count) if chunks == 1 else interleaved(stages, stage, count, chunks)
        for stage in range(stages)
    ]
    times = perfect(orders, chunks, lambda _, step: 10 if step[0] == "F" else 20)
    spans = [
        {(Forward if kind == "F" else Backward)(chunk, index): span for (kind, chunk, index), span in of_stage.items()}
        for of_stage in times
    ]
    settings = JobSettings(pp=stages, vpp=chunks, microbatches=count)
    for stage, parts in enumerate(bubble_parts(settings, spans)):
        fill, work = (stages - 1 - stage) * 30, count * chunks * 30
        assert parts == BubbleParts(work + fill, work, fill, 0, 0, 0)


def test_the_truth_itself_takes_51_where_the_first_of_four_stages_is_twice_as_slow():
    orders = [one_forward_one_backward(4, stage, 8) for stage in range(4)]
    t = (6, 3, 3, 3)
    times = perfect(orders, 1, lambda stage, step: t[stage] // 3 * (1 if step[0] == "F" else 2))
    spans = [{(Forward if key[0] == "F" else Backward)(*key[1:]): span for key, span in one.items()} for one in times]
    parts = bubble_parts(JobSettings(pp=4, microbatches=8), spans)
    assert parts[0] == BubbleParts(51, 30, 11, 10, 0, 0)
    assert [each.fill_drain_ns + each.imbalance_ns for each in parts] == [21, 12, 9, 6]
