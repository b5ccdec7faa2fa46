"""Short kernels, gaps and spread of simulated jobs: what was made shorter, later or slower shows, and nothing else."""

from __future__ import annotations

import bisect
from functools import cache

import pytest

from tests.analyze.across_ranks import simulated
from traceviz_dag.lake.kernel_lengths import EDGES_NS, gap_causes, kernel_lengths, kernel_spread
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Faults

MODEL = {"layers": 4, "hidden": 2048, "dp": 4, "microbatches": 8, "shapes": True}


@cache
def answers(rank: int | None = None, **faults):
    """The three answers of a job, and its rows of tables ``kernels`` and ``gpu_gaps``."""
    iteration, _ = simulated(JobSettings(**MODEL, faults=Faults(**faults)))
    place = (iteration.lake, iteration.run, iteration.iteration)
    found = [ask(*place, rank).to_pylist() for ask in (kernel_lengths, gap_causes, kernel_spread)]
    tables = [iteration.lake.table(name, *place[1:]).arrow().to_pylist() for name in ("kernels", "gpu_gaps")]
    return *found, *tables


def test_every_computation_kernel_counts_in_its_class_of_lengths_and_every_gap_at_its_cause():
    lengths, gaps, _, kernels, pieces = answers(tiny_kernels=1)
    computed = [row for row in kernels if row["kind"] == "computation"]
    assert sum(row["kernels"] for row in lengths) == len(computed)
    starved = {(row["rank"], row["kernel_id"]) for row in pieces if row["starved_ns"] > 0}
    edges = [0, *EDGES_NS]
    for row in lengths:
        here = [each for each in computed if edges[bisect.bisect(edges, each["duration_ns"]) - 1] == row["from_ns"]]
        waited = [each for each in here if (each["rank"], each["kernel_id"]) in starved]
        assert (row["kernels"], row["kernel_ns"]) == (len(here), sum(each["duration_ns"] for each in here))
        assert row["launch_bound"] == len(waited)
        assert row["launch_bound_ns"] == sum(each["duration_ns"] for each in waited)
    by_cause = {"other work of the GPU": "blocked_ns", "the host": "starved_ns", "unexplained": "unexplained_ns"}
    for cause, column in by_cause.items():
        assert sum(row["gap_ns"] for row in gaps if row["cause"] == cause) == sum(piece[column] for piece in pieces)


def test_the_rank_that_launches_tiny_kernels_has_the_short_ones_and_those_that_wait_for_their_launch():
    tiny, healthy = (answers(rank, tiny_kernels=1)[0] for rank in (1, 2))
    short = [[row for row in lengths if row["from_ns"] < 5_000] for lengths in (tiny, healthy)]
    many, few = (sum(row["kernels"] for row in rows) for rows in short)
    assert many > 3 * few
    bound, free = (sum(row["launch_bound"] for row in rows) for rows in short)
    assert bound > 100 > free


@pytest.mark.parametrize(
    ("faults", "over_microbatches", "over_ranks"),
    [({}, False, False), ({"slow_gpu": 2}, False, True), ({"throttle": 2, "throttle_from_ms": 0.0}, True, False)],
)
def test_a_slow_gpu_spreads_equal_work_over_ranks_and_throttling_over_micro_batches(
    faults, over_microbatches, over_ranks
):
    rank = 2 if over_microbatches else None
    rows = answers(rank, **faults, **({"throttle_to_ms": 30.0} if over_microbatches else {}))[2]
    assert {row["work_class"] for row in rows} == {"products", "attention", "memory-bound"}
    for row in rows:
        assert (row["over_microbatches"] > 1.15) == over_microbatches, row
        if rank is None:
            assert (row["over_ranks"] > 1.15) == over_ranks, row
        else:
            assert row["over_ranks"] is None, "one rank has no others"
