"""What computation of other training steps runs beside a step's communication, where the host runs ahead."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.kernel_intervals import kernel_intervals
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.tables import KERNELS


def with_beside(kernels: pa.Table) -> pa.Table:
    """The table ``kernels`` of a whole file, by start, with its column ``beside_ns`` filled."""
    step = optional_integers(kernels, "step")
    if not len(step) or step.min() == step.max():
        return kernels
    intervals = kernel_intervals(kernels)
    start, end = intervals.time.starts, intervals.time.ends
    computes, communicates, latest = intervals.computes(), intervals.communicates(), np.maximum.accumulate(end)
    found: list[list[int] | None] = [None] * len(step)
    for number in np.unique(step[communicates]).tolist():
        mine = np.flatnonzero(communicates & (step == number))
        # Of what ends before these communications, or starts after them, nothing runs beside them.
        first, last = np.searchsorted(latest, start[mine[0]], "right"), np.searchsorted(start, end[mine].max())
        other = first + np.flatnonzero(computes[first:last] & (step[first:last] != number))
        busy = union(start[other], end[other])
        for row in mine[measure_within(busy, start[mine], end[mine]) > 0].tolist():
            begin, stop = np.searchsorted(busy.ends, start[row], "right"), np.searchsorted(busy.starts, end[row])
            bounds = np.stack([busy.starts[begin:stop], busy.ends[begin:stop]], axis=1)
            found[row] = np.clip(bounds, start[row], end[row]).ravel().tolist()
    place, field = kernels.schema.get_field_index("beside_ns"), KERNELS.schema.field("beside_ns")
    return kernels.set_column(place, field, pa.array(found, field.type))
