"""How long a training step of an iteration takes: what shares across ranks refer to."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import numbers

WINDOW_COLUMNS = ("window_name", "step", "dimension", "window_start_ns", "window_end_ns")
"""Columns of ``overlap`` that show it."""

_STEP, _KERNELS, _ALL = "step", "kernels", "all"


def step_time(overlap: pa.Table) -> int | None:
    """The longest training step of any rank, as ``iterations.step_ns``.

    Without a ProfilerStep it is the longest span of a device's kernels.

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
        length = numbers(chosen["window_end_ns"]) - numbers(chosen["window_start_ns"])
        return int(length.max()) or None
    return None
