"""What a rank did, as parts that do not overlap; and the time of each in bins of one length, which a far view draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceviz_dag.analyze.intervals import NOTHING, Intervals, intersect, measure_within, merge, subtract
from traceviz_dag.arrays import Int64
from traceviz_dag.vocabulary import Category

COMPUTATION = (
    Category.BWD_COMPUTATION_RECOMPUTE.value,
    Category.FWD_COMPUTATION.value,
    Category.BWD_COMPUTATION.value,
    Category.OPTIMIZER_COMPUTATION.value,
    Category.OTHER_COMPUTATION.value,
    Category.UNCLASSIFIED.value,
)
"""Categories of computation; where several run at once, the first of them counts."""

EXPOSED_WAIT, EXPOSED_TRANSFER, EXPOSED_UNTOLD = "exposed_wait", "exposed_transfer", "exposed_untold"
HIDDEN, MEMORY_ALONE = "hidden", "memory_alone"
PARTS = (*COMPUTATION, EXPOSED_WAIT, EXPOSED_TRANSFER, EXPOSED_UNTOLD, MEMORY_ALONE, HIDDEN)
"""Parts of a bin. ``hidden`` lies beside computation; all others together with idle time fill the bin."""


def parts_of(
    computation: Mapping[str, Intervals],
    communication: Intervals,
    memory: Intervals,
    waiting: Intervals,
    judged: Intervals,
) -> dict[str, Intervals]:
    """What a rank did, parted.

    Args:
        computation: category → union of its kernels.
        communication: union of the communication kernels.
        waiting: of these, the time before the last member came.
        judged: of these, kernels of which the wait is known.

    Returns:
        An entry for each of ``PARTS``; those but ``hidden`` are disjoint.
    """
    found: dict[str, Intervals] = {}
    computes = NOTHING
    for name in COMPUTATION:
        found[name] = subtract(computation.get(name, NOTHING), computes)
        computes = merge(computes, found[name])
    exposed = subtract(communication, computes)
    found[EXPOSED_WAIT] = intersect(exposed, waiting)
    rest = subtract(exposed, waiting)
    found[EXPOSED_TRANSFER] = intersect(rest, judged)
    found[EXPOSED_UNTOLD] = subtract(rest, judged)
    found[HIDDEN] = intersect(communication, computes)
    found[MEMORY_ALONE] = subtract(memory, merge(computes, communication))
    return found


def binned(
    parts: Mapping[str, Intervals], start_ns: int, width_ns: int, bins: int, names: Sequence[str] = PARTS
) -> Int64:
    """Time of each part in each bin, ns: bins × parts, in the order of their names.

    Args:
        start_ns: start of the first bin.
    """
    edges = start_ns + width_ns * np.arange(bins + 1, dtype=np.int64)
    return np.stack([measure_within(parts[name], edges[:-1], edges[1:]) for name in names], axis=1)
