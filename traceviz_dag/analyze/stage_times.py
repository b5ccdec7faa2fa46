"""The slowest stage of a pipeline, by one definition: computation inside a micro-batch.

A rank's time is the mean of what it computes in the forward and backward steps of a micro-batch, all model chunks
together. Communication is left out: in it a rank waits for its peers, so one slow rank would make all of them slow. A
stage's time is the lower median of its ranks', which one slow rank in two or more cannot move. The slowest stage is the
one with the longest time, and its excess is held against the mean of all stages, which perfect balance would give each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.kernel_intervals import numbers
from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Phase

STAGE_COLUMNS = ("rank", "step", "stage", "chunk", "microbatch", "phase", "dimension", "compute_ns")
"""Columns of ``microbatches`` that show the times of stages and ranks."""

NOTABLE_EXCESS = 0.05
"""Excess from which a stage is called slow: computation of equal work jitters by less."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """What a stage computes for a micro-batch.

    Attributes:
        ranks: ranks with complete micro-batches; rank is the one where there is no other.
        compute_ns: lower median of the ranks' times, ns.
        excess: compute / mean of all stages - 1.
    """

    stage: int
    ranks: int
    rank: int | None
    compute_ns: int
    excess: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """All stages, the slowest first."""

    stages: tuple[StageTime, ...]

    @property
    def slowest(self) -> StageTime | None:
        """The slowest stage, where there are two or more and it is notably above their mean."""
        if len(self.stages) < 2 or self.stages[0].excess < NOTABLE_EXCESS:
            return None
        return self.stages[0]


def stage_times(microbatches: pa.Table) -> StageTimes:
    """Measure the stages of a job.

    Args:
        microbatches: the table ``microbatches`` of all ranks, columns ``STAGE_COLUMNS``. Ranks without a stage are left
            out, and so are micro-batches of which a stage has a step less than of its others: they broke off.
    """
    rank, stage, compute = _by_rank(microbatches)
    if not len(rank):
        return StageTimes(())
    times: dict[int, list[tuple[int, int]]] = {}
    for number, of_stage, mean in zip(rank.tolist(), stage.tolist(), compute.tolist(), strict=True):
        times.setdefault(of_stage, []).append((mean, number))
    medians = {number: lower_median(each)[0] for number, each in times.items()}
    mean_stage = sum(medians.values()) / len(medians)
    stages = [
        StageTime(
            stage=number,
            ranks=len(each),
            rank=each[0][1] if len(each) == 1 else None,
            compute_ns=medians[number],
            excess=medians[number] / mean_stage - 1 if mean_stage else 0.0,
        )
        for number, each in times.items()
    ]
    return StageTimes(tuple(sorted(stages, key=lambda each: (-each.compute_ns, each.stage))))


def slowest_statement(times: StageTimes) -> str | None:
    """The slowest stage in one sentence; None where there is one stage or none.

    A stage with a single rank is not distinguished from that rank: a slow GPU and too much work look the same.
    """
    if len(times.stages) < 2:
        return None
    slowest = times.slowest
    if slowest is None:
        longest = times.stages[0]
        return (
            f"no stage is an outlier: stage {longest.stage} computes longest, {_milliseconds(longest.compute_ns)} ms "
            f"per micro-batch, {wording.percent(longest.excess)} above the mean of the {len(times.stages)} stages"
        )
    beside = f"{wording.percent(slowest.excess)} above the mean of the {len(times.stages)} stages"
    computes = f"{_milliseconds(slowest.compute_ns)} ms of computation per micro-batch"
    if slowest.rank is not None:
        return (
            f"slowest stage {slowest.stage}, or its GPU: rank {slowest.rank} is the only one of that stage with known "
            f"micro-batches, so these do not show whether its GPU is slow or has too much work; {computes}, {beside}"
        )
    return f"slowest stage {slowest.stage}: {computes} (lower median of its {slowest.ranks} ranks), {beside}"


def _by_rank(microbatches: pa.Table) -> tuple[Int64, Int64, Int64]:
    """Rank, stage and mean computation of a complete micro-batch, ns, of each rank that has any."""
    phases = pa.array([Phase.FORWARD.value, Phase.BACKWARD.value])
    wanted = pc.and_(
        pc.equal(microbatches["dimension"].cast(pa.string()), ALL_DIMENSIONS),
        pc.is_in(microbatches["phase"].cast(pa.string()), value_set=phases),
    )
    table = microbatches.filter(pc.and_(wanted, pc.is_valid(microbatches["stage"])))
    names = ("rank", "stage", "step", "microbatch", "compute_ns")
    rank, stage, step, microbatch, compute = (numbers(table[name]) for name in names)
    if not len(rank):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    first, unit = number_groups(rank, step, microbatch)
    steps, time = np.bincount(unit), np.zeros(len(first), np.int64)
    np.add.at(time, unit, compute)
    complete = np.flatnonzero(steps == _most_of(stage[first], steps))
    chosen = first[complete]
    of_rank, number = number_groups(rank[chosen], stage[chosen])
    total = np.zeros(len(of_rank), np.int64)
    np.add.at(total, number, time[complete])
    mean = np.rint(total / np.bincount(number)).astype(np.int64)
    rows = chosen[of_rank]
    return rank[rows], stage[rows], mean


def _most_of(stage: Int64, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each micro-batch the most steps that any of its stage has."""
    _, group = number_groups(stage)
    most = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(most, group, steps)
    return most[group]


def _milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:,.3f}"
