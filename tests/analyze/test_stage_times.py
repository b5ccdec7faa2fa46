"""The slowest stage, by its one definition: one slow rank is not its stage, and steps are not added up."""

from __future__ import annotations

import pyarrow as pa
import pytest

from traceviz_dag.analyze.stage_times import (
    STAGE_COLUMNS,
    slowest_statement,
    stage_times,
)

MS = 1_000_000


def microbatches(
    compute_ms: dict[int, tuple[int, float]], steps: int = 1, count: int = 4, lost: tuple = ()
) -> pa.Table:
    """Rank → (stage, computation of a micro-batch, ms), a third of it forward.

    Args:
        lost: ranks whose last backward step is missing, as in a trace that broke off.
    """
    rows = [
        {
            "rank": rank,
            "step": step,
            "stage": stage,
            "chunk": 0,
            "microbatch": microbatch,
            "phase": phase,
            "dimension": dimension,
            "compute_ns": round(part * compute * MS),
        }
        for rank, (stage, compute) in compute_ms.items()
        for step in range(10, 10 + steps)
        for microbatch in range(count)
        for phase, part in (("forward", 1 / 3), ("backward", 2 / 3), ("recompute", 1 / 3))
        for dimension in ("all", "tp")
        if not (rank in lost and microbatch == count - 1 and phase != "forward")
    ]
    return pa.Table.from_pylist(rows).select(STAGE_COLUMNS)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_one_slow_rank_does_not_make_its_stage_the_slowest(replicas):
    job = {stage * replicas + place: (stage, 3.0) for stage in range(4) for place in range(replicas)}
    slow = 2 * replicas
    times = stage_times(microbatches(job | {slow: (2, 4.2)}))
    assert times.slowest is None
    assert "no stage is an outlier" in slowest_statement(times)


def test_a_stage_whose_ranks_are_all_slow_is_the_slowest_against_the_mean_of_all():
    job = {rank: (rank // 2, 4.0 if rank // 2 == 3 else 3.0) for rank in range(8)}
    times = stage_times(microbatches(job | {0: (0, 4.5)}))
    assert (times.slowest.stage, times.slowest.ranks, times.slowest.compute_ns) == (3, 2, 4 * MS)
    assert times.slowest.excess == pytest.approx(4 / 3.25 - 1)
    assert "slowest stage 3: 4.000 ms of computation per micro-batch" in slowest_statement(times)


def test_a_stage_of_one_rank_is_not_distinguished_from_its_gpu():
    times = stage_times(microbatches({0: (0, 3.0), 1: (1, 4.5)}))
    assert times.slowest.rank == 1
    assert "rank 1 is the only one of that stage with known micro-batches" in slowest_statement(times)
    assert "do not show whether its GPU is slow" in slowest_statement(times)


def test_steps_are_not_added_up_and_broken_off_micro_batches_do_not_count():
    job = {0: (0, 3.0), 1: (0, 3.0), 2: (1, 4.5), 3: (1, 4.5)}
    one, two = (stage_times(microbatches(job, steps=steps)) for steps in (1, 2))
    assert one == two
    assert stage_times(microbatches(job, lost=(2, 3))) == one


def test_nothing_is_said_of_one_stage_or_of_none():
    assert slowest_statement(stage_times(microbatches({0: (0, 3.0), 1: (0, 9.0)}))) is None
    nothing = stage_times(microbatches({0: (0, 3.0)}).slice(0, 0))
    assert nothing.stages == () and slowest_statement(nothing) is None
