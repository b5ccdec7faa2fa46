"""Computation, communication and what of it runs hidden, in many windows at once, as unions of kernels.

The definitions are those of ``docs/metrics.md``: compute, communication and memory are measures of unions, hidden is
the measure of communication ∩ computation, exposed = communication - hidden, idle = window - busy. Kernels are cut at
the edges of a window, so the durations over ``[a, b)`` are those over ``[a, m)`` plus those over ``[m, b)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.intervals import Intervals, intersect, measure_within, merge, union
from traceviz_dag.analyze.kernel_intervals import KernelIntervals
from traceviz_dag.arrays import Int64
from traceviz_dag.vocabulary import ALL_DIMENSIONS


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one dimension in a list of windows, ns; one entry a window in each array."""

    compute_ns: Int64
    communication_ns: Int64
    hidden_ns: Int64
    memory_ns: Int64
    busy_ns: Int64
    window_ns: Int64

    def columns(self) -> dict[str, Int64]:
        """Return the columns that the tables overlap and microbatches share, by name."""
        return {
            "compute_ns": self.compute_ns,
            "communication_ns": self.communication_ns,
            "hidden_ns": self.hidden_ns,
            "exposed_ns": self.communication_ns - self.hidden_ns,
            "memory_ns": self.memory_ns,
            "busy_ns": self.busy_ns,
            "idle_ns": self.window_ns - self.busy_ns,
        }


def measure_windows(kernels: KernelIntervals, starts: Int64, ends: Int64) -> Mapping[str, Measures]:
    """Measure kernels in many windows at once; the cost is linear in kernels and windows after sorting.

    Args:
        kernels: kernels on one time axis, in any order.
        starts: first instant of each window, ns; windows may overlap.
        ends: end of each window, ns, not before its start.

    Returns:
        ``all``, then each dimension that occurs among the communication kernels → its measures. Compute, memory and
        busy speak of the whole window under every dimension.
    """
    computation = _union_of(kernels, kernels.computes())
    by_dimension = {
        dimension: _union_of(kernels, kernels.communicates(dimension))
        for dimension in kernels.communication_dimensions()
    }
    whole = merge(*by_dimension.values())
    memory = _union_of(kernels, kernels.moves_memory())
    of_window = {
        "compute_ns": measure_within(computation, starts, ends),
        "memory_ns": measure_within(memory, starts, ends),
        "busy_ns": measure_within(merge(computation, whole, memory), starts, ends),
        "window_ns": ends - starts,
    }
    return {
        dimension: Measures(
            communication_ns=measure_within(communication, starts, ends),
            hidden_ns=measure_within(intersect(communication, computation), starts, ends),
            **of_window,
        )
        for dimension, communication in {ALL_DIMENSIONS: whole, **by_dimension}.items()
    }


def _union_of(kernels: KernelIntervals, rows: npt.NDArray[np.bool_]) -> Intervals:
    return union(kernels.time.starts[rows], kernels.time.ends[rows])
