"""Parallel efficiency and its factors: how much of a step the mean rank computes, and where the rest goes.

After the POP Centre of Excellence, *POP Standard Metrics for Parallel Performance Analysis*, with the host as a
separate factor. With the useful time u of each rank (the union of its computation kernels), the step T_i replayed
without transfers, lags and hosts, T_d with transfers, and T as measured:

    mean u / T  =  mean u / max u  ×  max u / T_i  ×  T_i / T_d  ×  T_d / T
                   load balance       serialisation   transfer      host

Load balance is that between stages (mean u over the largest mean of a stage) × that within them. Transfer is a product
over the dimensions, whose transfers are restored one after the other, in the order of ``vocabulary.Dimension``: what
two dimensions hide from each other counts for the later one. Each factor is a time without a loss over the time with
it, in whole nanoseconds, and each begins where the one before ends: so the product is exact, and losses add up to
T - mean u. A factor may be above 1, where what the graph leaves open let the step be faster than its replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.causes.factors import DIMENSIONS, Factor, factor_row, factor_tree
from traceviz_dag.analyze.causes.gains import LEAST_GAIN
from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times, without_hosts
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.analyze.intervals import measure, union
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import EFFICIENCIES
from traceviz_dag.vocabulary import Dimension

_IDEAL = "ideal"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step with more and more of what holds it up; one entry a rank in each array.

    Attributes:
        stage, replica: ``MISSING`` where unknown. useful_ns: its useful time.
        ideal_ns: its step without transfers, lags and hosts.
        restored: dimension → the same with its transfers and those of the dimensions before it.
        measured_ns: its step as it was.
    """

    stage: Int64
    replica: Int64
    useful_ns: Int64
    ideal_ns: Int64
    restored: Mapping[str, Int64]
    measured_ns: Int64


def factor_rows(step: Replayed) -> list[dict[str, Any]]:
    """The factors of all ranks (``replica`` None), and of each model replica where there are several.

    Returns:
        Rows of table ``efficiencies`` without its step and reason; see ``factor_tree`` for their order.

    Raises:
        NoEvidenceError: no rank computes.
    """
    if not step.useful_ns.any():
        raise NoEvidenceError("no rank computes in this step")
    replicas = np.unique(step.replica).tolist()
    sets: list[tuple[int | None, Bool]] = [(None, np.ones(len(step.useful_ns), dtype=bool))]
    if len(replicas) > 1 and MISSING not in replicas:
        sets += [(number, step.replica == number) for number in replicas]
    return [
        {"replica": number, "ranks": int(chosen.sum()), **row}
        for number, chosen in sets
        if step.useful_ns[chosen].any()
        for row in factor_tree(*_losses(step, chosen))
    ]


def _losses(step: Replayed, chosen: Bool) -> tuple[int, dict[tuple[Factor, str | None], int]]:
    """The mean useful time of some ranks, and what each factor loses; the split of load balance where stages are known.

    Means are rounded to the nanosecond.
    """
    useful, stage = step.useful_ns[chosen], step.stage[chosen]
    mean, most = _mean(useful), int(useful.max())
    losses: dict[tuple[Factor, str | None], int] = {(Factor.LOAD_BALANCE, None): most - mean}
    if MISSING not in stage:
        largest = max(_mean(useful[stage == one]) for one in np.unique(stage))
        losses[Factor.BETWEEN_STAGES, None] = largest - mean
        losses[Factor.WITHIN_STAGES, None] = most - largest
    now = int(step.ideal_ns[chosen].max())
    losses[Factor.SERIALISATION, None] = now - most
    for dimension, lengths in step.restored.items():
        losses[Factor.TRANSFER, dimension] = int(lengths[chosen].max()) - now
        now += losses[Factor.TRANSFER, dimension]
    losses[Factor.HOST, None] = int(step.measured_ns[chosen].max()) - now
    return mean, losses


def _mean(values: Int64) -> int:
    total, count = int(values.sum()), len(values)
    return (2 * total + count) // (2 * count)


def replayed(what_if: WhatIf, replicas: Sequence[int], world: int | None) -> Replayed:
    """Replay a step for its factors.

    Args:
        replicas: model replica of each rank; ``MISSING`` where unknown. world: how many ranks the job has; None where
            unknown.

    Raises:
        NoEvidenceError: the replay cannot tell them apart, with the reason.
    """
    step = what_if.step
    if world is not None and len(step.ranks) < world:
        raise NoEvidenceError(
            f"{len(step.ranks)} of {world} ranks were read in this step, so who waited for whom is not known; "
            "analyse the traces of all ranks"
        )
    apart = [rank for rank, other in zip(step.ranks, step.together.tolist(), strict=True) if other != step.together[0]]
    if apart:
        raise NoEvidenceError(f"no matched communication ties {numbered('rank', apart)} to rank {step.ranks[0]}")
    free = without_hosts(what_if.times)
    lengths = dict(_restored(step, free))
    _check(what_if, lengths)
    return Replayed(
        np.array(what_if.edits.stages, np.int64),
        np.array(replicas, np.int64),
        np.array([useful_ns(work) for work in step.works], np.int64),
        lengths.pop(_IDEAL),
        lengths,
        step.lengths(step.replay(what_if.times)),
    )


def useful_ns(work: RankWork) -> int:
    """The time in which a rank computes: what the step's computation kernels cover, those after its mark as well."""
    kernels = work.kernels
    return measure(union(kernels.start_ns[kernels.computes], kernels.end_ns[kernels.computes]))


def _restored(step: StepWork, free: Sequence[Times]) -> Iterator[tuple[str, Int64]]:
    """Per rank, its step without transfers (``_IDEAL``) and with those of one dimension after the other."""
    places = [_order_of(work) for work in step.works]
    there = sorted({place for mine in places for place in np.unique(mine[mine >= 0]).tolist()})
    for last, name in ((NONE, _IDEAL), *((place, DIMENSIONS[place]) for place in there)):
        times = [
            replace(each, duration_ns=np.where(mine > last, 0, each.duration_ns))
            for mine, each in zip(places, free, strict=True)
        ]
        yield name, step.lengths(step.replay(times))


def _order_of(work: RankWork) -> Int64:
    """Per kernel, the place in ``DIMENSIONS`` of its transfer; ``NONE`` for what is no matched communication."""
    table = np.array([DIMENSIONS.index(word) for word in (*work.kernels.dimensions, Dimension.UNKNOWN)], np.int64)
    return np.where(work.is_joined(), table[work.kernels.dimension], NONE)


def _check(what_if: WhatIf, lengths: Mapping[str, Int64]) -> None:
    """Hold the replays against those with what is open decided otherwise.

    Raises:
        NoEvidenceError: they differ by ``LEAST_GAIN`` of the step or more.
    """
    edits = what_if.edits
    most = LEAST_GAIN * what_if.step_ns
    ends = [int(each.max()) for each in (lengths[_IDEAL], list(lengths.values())[-1])]

    def differs(other: WhatIf, free: Sequence[Times]) -> bool:
        found = list(dict(_restored(other.step, free)).values())
        return any(abs(int(one.max()) - end) >= most for one, end in zip((found[0], found[-1]), ends, strict=True))

    unmet, every = edits.unmet
    if unmet.any() and differs(what_if, edits.without_unmet(without_hosts(what_if.times))):
        raise NoEvidenceError(
            f"{unmet.sum()} of {every.sum()} communication kernels are not matched with all their members, so what of "
            "them is transfer is not known"
        )
    for other in (what_if.tight, what_if.loose):
        if other is not None and differs(other, without_hosts(other.times)):
            raise NoEvidenceError(str(what_if.open_question))


def efficiencies_table(what_if: WhatIf, replicas: Sequence[int], world: int | None, number: int) -> pa.Table:
    """The factors of a step, or why they are not known: the table ``efficiencies``.

    Args:
        replicas, world: as ``replayed`` takes them. number: of the ProfilerStep; ``MISSING`` for none.
    """
    try:
        rows = factor_rows(replayed(what_if, replicas, world))
    except NoEvidenceError as error:
        return refused_efficiencies(str(error), number)
    return _table(rows, number)


def refused_efficiencies(reason: str, number: int) -> pa.Table:
    """The table ``efficiencies`` of a step of which nothing is known."""
    return _table([factor_row(Factor.PARALLEL_EFFICIENCY, None, None, None, reason)], number)


def _table(rows: Sequence[Mapping[str, Any]], number: int) -> pa.Table:
    step = None if number == MISSING else number
    names = [column.name for column in EFFICIENCIES.columns]
    whole = [{name: row.get(name) for name in names} | {"step": step} for row in rows]
    return pa.Table.from_pylist(whole, schema=EFFICIENCIES.schema)
