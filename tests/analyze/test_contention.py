"""What communication costs the computation beside it: the factor of simulated jobs, and what overlap really saves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.analyze.across_ranks import simulated, truth_kernels
from traceviz_dag.analyze.contention import LEAST_JUDGED, NEVER_ALONE, NEVER_BESIDE, NO_SIZES, contention_tables
from traceviz_dag.arrays import NONE
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.covering import uncovered
from traceviz_dag.simulate.settings import Precision

MODEL = {"layers": 8, "hidden": 4096, "heads": 32, "sequence": 4096, "vocabulary": 8192}


@pytest.mark.parametrize(
    ("factor", "layout"),
    [
        *((1.0, {"dp": 2}), (1.15, {"dp": 2}), (1.3, {"dp": 2, "pp": 2}), (1.6, {"tp": 2, "dp": 2})),
        (1.2, {"dp": 2, "tp": 2, "precision": Precision.FP8}),
    ],
)
def test_the_factor_of_a_job_is_found_and_so_is_what_it_costs(factor, layout):
    job = JobSettings(**MODEL, **layout, microbatches=4, shapes=True, contention=factor)
    iteration, truth = simulated(job)
    rows = iteration.lake.table("contention", iteration.run, iteration.iteration).arrow().to_pylist()
    known = [row for row in rows if row["slowdown"] is not None]
    assert known and {row["reason"] for row in rows} <= {None, NEVER_ALONE, NEVER_BESIDE}
    # Kernels of the same work differ by 2 %; what is long or ran often shows the factor.
    weights = np.array([row["beside"] * row["alone_ns"] for row in known], dtype=float)
    slowdowns = np.array([row["slowdown"] for row in known])
    assert np.average(slowdowns, weights=weights) == pytest.approx(factor, rel=0.02)
    assert slowdowns == pytest.approx(factor, rel=0.07)
    savings = iteration.lake.table("overlap_savings", iteration.run, iteration.iteration).arrow().to_pylist()
    whole = [row for row in savings if row["dimension"] == "all" and row["window_name"] == "kernels"]
    assert [row["rank"] for row in whole] == [*range(job.world)]
    if job.tp > 1:
        # The gradients of weights always run beside their all-gather, so nothing shows what it costs them.
        assert all(row["net_ns"] is None and row["judged_share"] < LEAST_JUDGED for row in whole)
        assert {row["verdict"] for row in savings if row["dimension"] == "dp"} == {"saves"}
        return
    extra = _true_extra(truth, factor)
    for row in whole:
        assert row["net_low_ns"] <= row["hidden_ns"] - extra[row["rank"]] <= row["net_high_ns"]
        assert row["net_ns"] == row["hidden_ns"] - row["extra_ns"] and row["verdict"] == "saves"


def _true_extra(truth, factor):
    """Rank → how much longer its computation takes for contention, by the shares that communication covers."""
    frame, found = truth_kernels(truth), {}
    for rank, rows in frame.groupby("rank"):
        starts, durations = rows["true_ts_ns"].to_numpy(), rows["dur_ns"].to_numpy()
        kind = rows["kind"].astype(str).to_numpy()
        free = uncovered(starts, starts + durations, kind == "communication")
        share = np.where(durations > 0, 1 - free / np.maximum(durations, 1), 0.0)
        slower = 1 + (factor - 1) * share
        found[rank] = float(((1 - 1 / slower) * durations)[kind == "computation"].sum())
    return found


def _tables(computation, communication, sizes="[[8,8]]", hidden=0, calls=None):
    """One operation's kernels and communications, each (start, duration), and what of these is hidden."""
    rows = [
        {
            "name": name,
            "kind": kind,
            "dimension": dimension,
            "operation_id": number,
            "start_ns": at,
            "duration_ns": ns,
        }
        for name, kind, dimension, number, times in (
            ("gemm", "computation", None, 0, computation),
            ("nccl", "communication", "dp", 1, communication),
        )
        for at, ns in times
    ]
    told = {"device": "gpu:0", "step": None, "grid_x": 1, "grid_y": 1, "grid_z": 1}
    text = {name: pa.string() for name in ("name", "kind", "dimension", "device")}
    integers = ("operation_id", "step", "start_ns", "duration_ns", "grid_x", "grid_y", "grid_z")
    schema = pa.schema([*text.items(), *((name, pa.int64()) for name in integers)])
    kernels = pa.Table.from_pylist([row | told for row in rows], schema)
    operations = pa.table({"shapes": pa.array([sizes, None]), "forward_shapes": pa.nulls(2, pa.string())})
    overlap = pa.Table.from_pylist(
        [
            {"device": "gpu:0", "window_name": "kernels", "step": None, "dimension": dimension, "hidden_ns": hidden}
            for dimension in ("all", "dp")
        ],
        pa.schema(
            [(name, pa.string()) for name in ("device", "window_name", "dimension")]
            + [(name, pa.int64()) for name in ("step", "hidden_ns")]
        ),
    )
    launched_by = np.full(len(rows), NONE) if calls is None else np.array([*calls, *[NONE] * len(communication)])
    contention, savings = contention_tables(kernels, operations, overlap, launched_by)
    return contention.to_pylist(), savings.to_pylist()


ALONE = [(number * 1_000, 100) for number in range(5)]


def test_hidden_communication_that_costs_more_than_it_saves_is_called_so():
    """Five kernels of 100 ns alone take 300 ns each beside a communication that covers 500 ns of them."""
    beside = [(10_000 + number * 300, 300) for number in range(5)]
    ((row,), savings) = _tables([*ALONE, *beside], [(10_000, 1_500)], hidden=500)
    assert (row["alone"], row["alone_ns"], row["beside"], row["beside_ns"]) == (5, 100, 5, 300)
    assert (row["slowdown"], row["extra_ns"]) == (3.0, 1_000)
    for saving in savings:
        told = [saving[name] for name in ("hidden_ns", "extra_ns", "net_ns", "net_low_ns", "net_high_ns", "verdict")]
        assert told == [500, 1_000, -500, -500, -500, "costs"]


@pytest.mark.parametrize(
    ("computation", "sizes", "reason"),
    [
        ([*ALONE, *((10_000 + 300 * number, 300) for number in range(5))], None, NO_SIZES),
        ([*ALONE[:2], *((10_000 + 300 * number, 300) for number in range(5))], "[[8,8]]", NEVER_ALONE),
        ([*ALONE, (10_000, 300)], "[[8,8]]", NEVER_BESIDE),
    ],
)
def test_what_does_not_show_a_slow_down_is_said(computation, sizes, reason):
    rows, savings = _tables(computation, [(10_000, 1_500)], sizes, hidden=300)
    # Without sizes nothing says that it is one operation.
    assert [row["reason"] for row in rows] == ([] if reason == NO_SIZES else [reason])
    assert all(row["slowdown"] is None and row["extra_ns"] is None for row in rows)
    if reason != NEVER_BESIDE:
        assert {saving["net_ns"] for saving in savings} == {None} and all(
            reason in saving["reason"] for saving in savings
        )


def test_a_kernel_that_a_call_launches_twice_with_other_work_is_told_apart():
    """Five calls cast an activation (100 ns) alone; three, beside communication, cast their weight (300 ns), too."""
    both = [(10_000 + number * 500 + at, ns) for number in range(3) for at, ns in ((0, 120), (150, 360))]
    calls = [*range(5), 5, 5, 6, 6, 7, 7]
    rows, savings = _tables([*ALONE, *both], [(10_000, 1_500)], hidden=1_000, calls=calls)
    assert [(row["beside"], row["beside_ns"], row["reason"]) for row in rows] == [
        (3, 120, NEVER_ALONE),
        (3, 360, NEVER_ALONE),
    ]
    assert {saving["net_ns"] for saving in savings} == {None}
    # Where each call casts both, each is compared with its own kind.
    alone = [(number * 1_000 + at, ns) for number in range(3) for at, ns in ((0, 100), (150, 300))]
    rows, _ = _tables([*alone, *both], [(10_000, 1_500)], hidden=1_000, calls=np.repeat(np.arange(6), 2))
    assert [(row["alone_ns"], row["slowdown"]) for row in rows] == [(100, 1.2), (300, 1.2)]


def test_without_communication_or_hidden_time_nothing_is_said():
    assert _tables(ALONE, []) == ([], [])
    assert _tables(ALONE, [(20_000, 500)]) == ([], [])
