"""How long the training steps of an iteration take: what shares across ranks refer to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.matching.communications import optional_integers

WINDOW_COLUMNS = ("window_name", "step", "dimension", "window_start_ns", "window_end_ns")
"""Columns of ``overlap`` that tell it."""

_STEP, _KERNELS, _ALL = "step", "kernels", "all"


def step_time(overlap: pa.Table) -> int | None:
    """The time of all training steps, each as long as its longest window on any rank.

    Without a ProfilerStep it is the longest span of a device's kernels. For one step it is ``iterations.step_ns``.

    Args:
        overlap: the table of that name of all ranks, columns ``WINDOW_COLUMNS``.

    Returns:
        Nanoseconds; None where no window is known.
    """
    rows = overlap.filter(pc.equal(overlap["dimension"].cast(pa.string()), _ALL))
    for name in (_STEP, _KERNELS):
        chosen = rows.filter(pc.equal(rows["window_name"].cast(pa.string()), name))
        if not chosen.num_rows:
            continue
        length = optional_integers(chosen, "window_end_ns") - optional_integers(chosen, "window_start_ns")
        first, number = number_groups(optional_integers(chosen, "step"))
        longest = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(longest, number, length)
        return int(longest.sum()) or None
    return None
