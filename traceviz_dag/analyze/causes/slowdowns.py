"""How much slower a job runs than it would if all ranks were the same, and whom that is to be charged to.

The measures are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI
2025). In the *ideal* job every operation takes what its kind takes on average: the mean for computation, the median for
transfers, over all steps, stages and data-parallel ranks. The slowdown is the replayed step over the ideal one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.causes.records_work import MESSAGES, RecordsWork
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation

SLOWEST_SHARE = 0.03
"""The share of ranks that "the slowest ranks" are."""

_MEAN = (Operation.FORWARD, Operation.BACKWARD, Operation.GARBAGE_COLLECTION, Operation.OPTIMIZER)
_LEAST_LOST_NS = 1.0
"""Times are recorded in nanoseconds: less is no loss, but what floating-point sums leave."""

_MOST_CASES = 64
"""Sets of durations that are replayed at once: 50 MB for 100,000 operations."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Means over the steps of one job.

    Attributes:
        step_ns: the step as replayed without the delays between operations.
        ideal_step_ns: the step with ideal durations.
        by_stage, by_data_parallel_rank, by_operation: the step in which only one stage, rank or kind of operation has
            its own durations, over the ideal step: 1 where these cost nothing. Sends and receives count together.
        recovered_by_last_stage: the share of the lost time that ideal durations in the last stage save; None where
            the step is no longer than the ideal one, so that no time is lost.
        slowest_ranks: (data-parallel rank, stage) of the slowest 3 % of the ranks, the slowest first.
        recovered_by_slowest_ranks: the share that ideal durations on these save, or None likewise.
    """

    step_ns: float
    ideal_step_ns: float
    by_stage: Mapping[int, float]
    by_data_parallel_rank: Mapping[int, float]
    by_operation: Mapping[str, float]
    recovered_by_last_stage: float | None
    slowest_ranks: tuple[tuple[int, int], ...]
    recovered_by_slowest_ranks: float | None

    @property
    def slowdown(self) -> float:
        """How many times as long as the ideal step the step takes."""
        return self.step_ns / self.ideal_step_ns


def slowdowns(work: RecordsWork) -> Slowdowns:
    """Replay a job with its own durations, with ideal ones, and with mixtures of both.

    Raises:
        NoEvidenceError: with ideal durations it takes no time, so nothing can be compared with that.
    """
    own, ideal = work.own_ns.astype(np.float64), ideal_durations(work)
    stages, ranks = np.unique(work.stage), np.unique(work.data_parallel_rank)
    kinds = _kinds(work)
    everything = np.ones(len(own), dtype=bool)
    step, nothing, *costs = _mean_steps(
        work,
        own,
        ideal,
        [
            *(everything, ~everything),
            *(work.stage == stage for stage in stages),
            *(work.data_parallel_rank == rank for rank in ranks),
            *kinds.values(),
        ],
    )
    if nothing <= 0:
        raise NoEvidenceError("with ideal durations its steps take no time")
    effects = [cost / nothing for cost in costs]
    by_stage = dict(zip(stages.tolist(), effects, strict=False))
    by_rank = dict(zip(ranks.tolist(), effects[len(stages) :], strict=False))
    slowest = _slowest(by_stage, by_rank)
    chosen = np.zeros(len(own), dtype=bool)
    for rank, stage in slowest:
        chosen |= (work.data_parallel_rank == rank) & (work.stage == stage)
    fixed = _mean_steps(work, own, ideal, [work.stage != stages[-1], ~chosen])
    lost = step - nothing
    recovered = [(step - each) / lost if lost >= _LEAST_LOST_NS else None for each in fixed]
    return Slowdowns(
        step,
        nothing,
        by_stage,
        by_rank,
        dict(zip(kinds, effects[len(stages) + len(ranks) :], strict=True)),
        recovered[0],
        slowest,
        recovered[1],
    )


def ideal_durations(work: RecordsWork) -> npt.NDArray[np.float64]:
    """Per operation, what its kind takes on average, ns."""
    ideal = work.own_ns.astype(np.float64)
    for code in np.unique(work.operation).tolist():
        of_kind = work.operation == code
        average = np.mean if OPERATIONS[code] in _MEAN else np.median
        ideal[of_kind] = average(work.own_ns[of_kind])
    return ideal


def _mean_steps(
    work: RecordsWork,
    own: npt.NDArray[np.float64],
    ideal: npt.NDArray[np.float64],
    as_recorded: Sequence[npt.NDArray[np.bool_]],
) -> list[float]:
    """The mean step, ns, for each choice of operations that take what they took; the others take what is ideal."""
    means: list[float] = []
    for low in range(0, len(as_recorded), _MOST_CASES):
        cases = np.stack(as_recorded[low : low + _MOST_CASES], axis=1)
        durations = np.where(cases, own[:, None], ideal[:, None])
        means += work.step_times(durations).mean(axis=0).tolist()
    return means


def _kinds(work: RecordsWork) -> dict[str, npt.NDArray[np.bool_]]:
    """Kinds of operations that count together, and which operations are of each."""
    kinds: dict[str, npt.NDArray[np.bool_]] = {}
    for code in np.unique(work.operation).tolist():
        operation = OPERATIONS[code]
        name = operation.value
        if operation in MESSAGES:
            name = f"{name.partition('-')[0]}-messages"
        of_kind = work.operation == code
        kinds[name] = kinds[name] | of_kind if name in kinds else of_kind
    return kinds


def _slowest(by_stage: Mapping[int, float], by_rank: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """A rank is as slow as the lesser of its two effects; equal ones come in the order of ranks, stage by stage."""
    effects = [
        (-min(of_rank, of_stage), stage, rank)
        for stage, of_stage in by_stage.items()
        for rank, of_rank in by_rank.items()
    ]
    count = math.ceil(SLOWEST_SHARE * len(effects))
    return tuple((rank, stage) for _, stage, rank in sorted(effects)[:count])
