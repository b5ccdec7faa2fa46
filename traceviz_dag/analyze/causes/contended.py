"""What waits of communication cost the computation beside them: a kernel that waits for another rank takes processors.

Where a fault is fixed the others wait less, and what ran beside their waits takes no longer than alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.step_work import Times
from traceviz_dag.analyze.causes.usual_times import own_work
from traceviz_dag.analyze.contention import BESIDE, LEAST_KERNELS
from traceviz_dag.analyze.intervals import Intervals, measure_within, union
from traceviz_dag.analyze.medians import medians
from traceviz_dag.arrays import Bool, Float64, number_groups

_MOST_RANKS = 16
"""So many ranks, evenly chosen, show by how much communication slows computation."""

PARTS = 1_000_000
"""Factors are whole millionths, so that the report's page has the same."""

LEAST_SLOWDOWN, _MOST_SLOWDOWN = 1.02, 2.0
"""Less is noise; more is not the communication's doing."""


def factors_without_waits(works: Sequence[RankWork], times: Sequence[Times]) -> list[Float64] | None:
    """Per rank and kernel, what it would take if no communication waited beside it, to what it takes.

    Returns:
        None where computation takes no longer beside communication, or nothing shows that.
    """
    chosen = range(0, len(works), -(-len(works) // _MOST_RANKS) or 1)
    slowdown = _slowdown([works[place] for place in chosen])
    if slowdown < LEAST_SLOWDOWN:
        return None
    result = []
    for work, mine in zip(works, times, strict=True):
        kernels, own = work.kernels, np.flatnonzero(_computes(work))
        share = np.zeros(len(kernels))
        start, end = kernels.start_ns[own], kernels.end_ns[own]
        # Of a joined communication the replay knows the transfer, and the rest is waiting.
        begin = kernels.start_ns[work.joined]
        waits = union(begin, np.maximum(kernels.end_ns[work.joined] - mine.duration_ns[work.joined], begin))
        share[own] = measure_within(waits, start, end) / np.maximum(end - start, 1)
        result.append(np.rint(PARTS / (1 + (slowdown - 1) * share)) / PARTS)
    return result


def _slowdown(works: Sequence[RankWork]) -> float:
    """How many times as long computation takes beside communication as the same kernels take alone."""
    beside_ns = alone_ns = 0.0
    for work in works:
        kernels, own = work.kernels, np.flatnonzero(_computes(work))
        start, end = kernels.start_ns[own], kernels.end_ns[own]
        covered, taken = measure_within(_of(work, kernels.communicates), start, end), end - start
        first, kind = number_groups(kernels.signature[own])
        beside, alone = covered >= BESIDE * taken, covered == 0
        usual = medians(kind[alone].astype(np.int64), taken[alone], len(first))
        counts = [np.bincount(kind[each], minlength=len(first)) for each in (alone, beside)]
        judged = beside & (np.minimum(*counts) >= LEAST_KERNELS)[kind]
        beside_ns += float(taken[judged].sum())
        alone_ns += float(usual[kind[judged]].sum())
    return float(np.clip(beside_ns / alone_ns, 1.0, _MOST_SLOWDOWN)) if alone_ns else 1.0


def _computes(work: RankWork) -> Bool:
    return np.asarray(own_work(work) & work.kernels.computes)


def _of(work: RankWork, chosen: Bool) -> Intervals:
    return union(work.kernels.start_ns[chosen], work.kernels.end_ns[chosen])
