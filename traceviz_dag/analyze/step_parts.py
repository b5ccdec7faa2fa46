"""A training step taken apart without overlap: each instant belongs to one part, so the parts add up to the step."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals, clip, measure, merge, subtract, union
from traceviz_dag.analyze.kernel_intervals import codes, integers
from traceviz_dag.vocabulary import Category, Kind

IDLE = "idle"
"""The part in which nothing runs."""


def step_parts(kernels: pa.Table, start_ns: int, end_ns: int) -> dict[str, int]:
    """Split a window of one device over the categories of its kernels, ns; the values add up to the window.

    Computation comes first, then communication, then memory operations: a communication gets the time in which no
    computation runs (its exposed part), a memory operation the time in which neither does. Within a kind, categories
    come in the vocabulary's order, so an instant that two of them cover goes to the first. What is left is ``idle``.

    Args:
        kernels: one device's kernels; needs start_ns, duration_ns, kind and category.
        start_ns: first instant of the window.
        end_ns: its end, not before its start.

    Raises:
        ValueError: a kernel without a start or a duration.
    """
    starts = integers(kernels, "start_ns")
    time = Intervals(starts, starts + integers(kernels, "duration_ns"))
    kind, kind_names = codes(kernels, "kind")
    category, category_names = codes(kernels, "category")
    nothing = np.empty(0, dtype=np.int64)
    taken = Intervals(nothing, nothing)
    parts: dict[str, int] = {}
    for wanted_kind in (Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY):
        for wanted in Category:
            if wanted_kind not in kind_names or wanted not in category_names:
                continue
            rows = (kind == kind_names.index(wanted_kind)) & (category == category_names.index(wanted))
            if not rows.any():
                continue
            covered = union(*clip(Intervals(time.starts[rows], time.ends[rows]), start_ns, end_ns))
            parts[wanted] = parts.get(wanted, 0) + measure(subtract(covered, taken))
            taken = merge(taken, covered)
    parts[IDLE] = max(0, end_ns - start_ns) - measure(taken)
    return {str(part): duration for part, duration in parts.items()}
