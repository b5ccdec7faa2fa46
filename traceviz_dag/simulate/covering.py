"""What intervals cover of others: the simulator's own count, apart from that of the analysis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64


def union(starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """The union of intervals as disjoint intervals in order."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(starts) - 1]))
    return starts[opens], reach[last]


def measure_until(starts: Int64, ends: Int64, points: Int64) -> Int64:
    """How much of a union of disjoint intervals lies before each point."""
    total = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, points, side="right")
    inside = np.where(index > 0, np.maximum(ends[index - 1] - points, 0) if len(ends) else 0, 0)
    return total[index] - inside


def uncovered(starts: Int64, ends: Int64, covering: npt.NDArray[np.bool_]) -> Int64:
    """For each interval, the part that no interval of ``covering`` overlaps."""
    left, right = union(starts[covering], ends[covering])
    if not len(left):
        return ends - starts
    return (ends - starts) - (measure_until(left, right, ends) - measure_until(left, right, starts))
