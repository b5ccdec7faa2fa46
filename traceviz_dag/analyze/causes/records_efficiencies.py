"""Parallel efficiency and its factors of a job's recorded operations, step by step.

The edges are those of ``records_work`` alone. Useful is what a rank does by itself: forward and backward steps, garbage
collection, optimizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.efficiencies import Replayed, factor_rows
from traceviz_dag.analyze.causes.factors import DIMENSIONS
from traceviz_dag.analyze.causes.records_edits import OWN, SERVES
from traceviz_dag.analyze.causes.records_path import replayed_ends, step_bounds
from traceviz_dag.analyze.causes.records_work import RecordsWork
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.records.pipeline_records import OPERATIONS


def records_efficiencies(work: RecordsWork) -> list[dict[str, Any]]:
    """The rows of ``factor_rows`` for every step, with its ``step``; a replica is a data-parallel rank.

    Raises:
        NoEvidenceError: no rank computes in a step.
    """
    order = np.array([DIMENSIONS.index(SERVES[kind]) if kind in SERVES else -1 for kind in OPERATIONS])[work.operation]
    there = np.unique(order[order >= 0]).tolist()
    free = np.zeros_like(work.lag_ns)
    ends = {place: replayed_ends(work, np.where(order > place, 0, work.own_ns), free) for place in (-1, *there)}
    measured = replayed_ends(work, work.own_ns)
    useful = np.where(np.isin(work.operation, [OPERATIONS.index(kind) for kind in OWN]), work.own_ns, 0)
    rows = []
    for low, high in step_bounds(work):
        first, rank = number_groups(work.rank[low:high])

        def last(all_ends: Int64, low: int = low, high: int = high, rank: Int64 = rank) -> Int64:
            found = np.zeros(int(rank.max()) + 1, np.int64)
            np.maximum.at(found, rank, all_ends[low:high])
            return found

        computes = np.zeros(len(first), np.int64)
        np.add.at(computes, rank, useful[low:high])
        step = Replayed(
            work.stage[low:high][first],
            work.data_parallel_rank[low:high][first],
            computes,
            last(ends[-1]),
            {DIMENSIONS[place]: last(ends[place]) for place in there},
            last(measured),
        )
        rows += [{"step": int(work.step[low]), **row} for row in factor_rows(step)]
    return rows
