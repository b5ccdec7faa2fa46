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
from traceviz_dag.vocabulary import SynchronizationKind

_SLACK_NS = 1_000


def recorded_edges(kernels: RankKernels, synchronizations: pa.Table) -> tuple[Int64, Int64]:
    """Kernels of this step that waited for others by a recorded event: places of both in ``kernels``.

    A record that the times contradict (the kernel started before what it is said to have waited for had ended) is none.
    """
    rows = synchronizations.filter(
        pc.equal(synchronizations["kind"].cast(pa.string()), SynchronizationKind.STREAM_WAIT)
    )
    waiting, waited_for = (
        kernels.places(optional_integers(rows, f"{name}_kernel_id")) for name in ("waiting", "waited_for")
    )
    there = (waiting >= 0) & (waited_for >= 0)
    there[there] &= kernels.stream[waiting[there]] != kernels.stream[waited_for[there]]
    there[there] &= kernels.start_ns[waiting[there]] >= kernels.end_ns[waited_for[there]] - _SLACK_NS
    return waiting[there], waited_for[there]


def host_waits(kernels: RankKernels, synchronizations: pa.Table) -> HostWaits:
    """The calls in which the host waited for work of this step.

    A call that waits for a device waits for the last work of every stream. One that does not say for what it waits
    waited for the work that ended last before it returned, if that ended during the call.
    """
    kind = synchronizations["kind"].cast(pa.string())
    rows = synchronizations.filter(pc.not_equal(kind, SynchronizationKind.STREAM_WAIT))
    start, duration = optional_integers(rows, "start_ns"), optional_integers(rows, "duration_ns")
    known = np.flatnonzero((start != MISSING) & (duration != MISSING))
    known = known[np.lexsort((start[known], start[known] + duration[known]))]
    start, end = start[known], start[known] + duration[known]
    whole = pc.equal(rows["kind"].cast(pa.string()), SynchronizationKind.DEVICE_SYNCHRONIZE).to_numpy(
        zero_copy_only=False
    )[known]
    kernel = kernels.places(optional_integers(rows, "waited_for_kernel_id")[known])
    kernel = np.where(kernel >= 0, kernel, _last_ended(kernels, start, end))
    one = np.flatnonzero(kernel >= 0)
    calls, waited = _on_every_stream(kernels, np.flatnonzero(whole), start[whole])
    call, waited_for = np.concatenate([one, calls]), np.concatenate([kernel[one], waited])
    call, waited_for = np.unique(np.stack([call, waited_for]), axis=1)
    held = kernels.end_ns[waited_for] <= end[call] + _SLACK_NS
    return HostWaits(start, end, call[held], waited_for[held])


def _on_every_stream(kernels: RankKernels, calls: Int64, start: Int64) -> tuple[Int64, Int64]:
    """For each call, the last kernel that was launched before it on each stream."""
    numbers, places = [calls[:0]], [calls[:0]]
    for stream in np.unique(kernels.stream).tolist():
        queue = np.flatnonzero((kernels.stream == stream) & (kernels.launch_ns != MISSING))
        queue = queue[np.argsort(kernels.launch_ns[queue], kind="stable")]
        last = np.searchsorted(kernels.launch_ns[queue], start) - 1
        numbers.append(calls[last >= 0])
        places.append(queue[last[last >= 0]])
    return np.concatenate(numbers), np.concatenate(places)


def _last_ended(kernels: RankKernels, start: Int64, end: Int64) -> Int64:
    order = np.argsort(kernels.end_ns, kind="stable")
    if not len(order):
        return np.full(len(start), NONE)
    last = np.searchsorted(kernels.end_ns[order], end, side="right") - 1
    found = np.where(last >= 0, order[last], NONE)
    launched_before = (kernels.launch_ns[found] != MISSING) & (kernels.launch_ns[found] < start)
    return np.where((found >= 0) & (kernels.end_ns[found] >= start) & launched_before, found, NONE)
