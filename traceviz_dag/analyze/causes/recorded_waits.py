"""What the table ``synchronizations`` says of a rank's step: which kernels waited, and which calls held its host."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.rank_work import HostWaits
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.read.events import MISSING

STREAM_WAIT = "stream_wait"
_SLACK_NS = 1_000


def recorded_edges(kernels: RankKernels, synchronizations: pa.Table) -> tuple[Int64, Int64]:
    """Kernels of this step that waited for others by a recorded event: places of both in ``kernels``.

    A record that the times contradict (the kernel started before what it is said to have waited for had ended) is none.
    """
    rows = synchronizations.filter(pc.equal(synchronizations["kind"].cast(pa.string()), STREAM_WAIT))
    waiting, waited_for = (
        kernels.places(optional_integers(rows, f"{name}_kernel_id")) for name in ("waiting", "waited_for")
    )
    there = (waiting >= 0) & (waited_for >= 0)
    there[there] &= kernels.stream[waiting[there]] != kernels.stream[waited_for[there]]
    there[there] &= kernels.start_ns[waiting[there]] >= kernels.end_ns[waited_for[there]] - _SLACK_NS
    return waiting[there], waited_for[there]


def host_waits(kernels: RankKernels, synchronizations: pa.Table) -> HostWaits:
    """The calls in which the host waited for work of this step.

    A call that does not say for what waited for the work that ended last before it returned, if that ended during it.
    """
    rows = synchronizations.filter(pc.not_equal(synchronizations["kind"].cast(pa.string()), STREAM_WAIT))
    start, duration = optional_integers(rows, "start_ns"), optional_integers(rows, "duration_ns")
    known = (start != MISSING) & (duration != MISSING)
    start, end = start[known], (start + duration)[known]
    kernel = kernels.places(optional_integers(rows, "waited_for_kernel_id")[known])
    order = np.lexsort((start, end))
    start, end, kernel = start[order], end[order], kernel[order]
    kernel = np.where(kernel >= 0, kernel, _last_ended(kernels, start, end))
    waited = np.flatnonzero(kernel >= 0)
    waited = waited[kernels.end_ns[kernel[waited]] <= end[waited] + _SLACK_NS]
    return HostWaits(start, end, waited, kernel[waited])


def _last_ended(kernels: RankKernels, start: Int64, end: Int64) -> Int64:
    order = np.argsort(kernels.end_ns, kind="stable")
    if not len(order):
        return np.full(len(start), NONE)
    last = np.searchsorted(kernels.end_ns[order], end, side="right") - 1
    found = np.where(last >= 0, order[last], NONE)
    launched_before = (kernels.launch_ns[found] != MISSING) & (kernels.launch_ns[found] < start)
    return np.where((found >= 0) & (kernels.end_ns[found] >= start) & launched_before, found, NONE)
