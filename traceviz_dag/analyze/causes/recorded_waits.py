"""What the table ``synchronizations`` says of a rank's step: which kernels waited, and which calls held its host."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.causes.inferred_waits import SLACK_NS
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.rank_work import HostWaits
from traceviz_dag.analyze.causes.wait_calls import StreamWaits
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import NONE, Int64, distinct, number_groups, ranges
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import SynchronizationEvidence, SynchronizationKind

CLOCK_NS = 20_000
"""A GPU's time on the host's clock is off by less: of two H100 in one export of Nsight Systems, one is 6 us ahead."""


RIGHT_AFTER_NS = 20_000
"""By so much a host that waited for its GPU ends its step after it at most."""

LEAST_UNSEEN = 0.01
"""Share of the step in which a host launches nothing before its GPU is done, from which it must have waited for it."""


def stream_waits(kernels: RankKernels, synchronizations: pa.Table, step: int) -> StreamWaits:
    """What is recorded of waits between streams in a step.

    A record that the times contradict (the kernel started before what it is said to have waited for had ended) is none.

    Args:
        step: number of the ProfilerStep; ``MISSING`` for none.
    """
    rows = synchronizations.filter(
        pc.equal(synchronizations["kind"].cast(pa.string()), SynchronizationKind.STREAM_WAIT)
    )
    waiting, waited_for = (
        kernels.places(optional_integers(rows, f"{name}_kernel_id")) for name in ("waiting", "waited_for")
    )
    found = _with_those_passed_on(kernels, rows, waiting, waited_for)
    there = kernels.stream[found[0]] != kernels.stream[found[1]]
    there &= kernels.start_ns[found[0]] >= kernels.end_ns[found[1]] - SLACK_NS
    found = found[:, there]
    of_step = optional_integers(rows, "step") == step
    untold = np.flatnonzero(of_step & (optional_integers(rows, "wait_on_stream") == MISSING))
    start, thread = optional_integers(rows, "start_ns"), optional_integers(rows, "thread")
    untold = untold[np.argsort(start[untold], kind="stable")]
    recorded = pc.equal(rows["evidence"].cast(pa.string()), SynchronizationEvidence.RECORDED)
    records = int((recorded.to_numpy(zero_copy_only=False) & of_step).sum())
    return StreamWaits(found[0], found[1], records, start[untold], thread[untold], waiting[untold])


def _with_those_passed_on(kernels: RankKernels, rows: pa.Table, waiting: Int64, waited_for: Int64) -> Int64:
    """Waiting and waited for: what each wait is for, and what the stream of its event had to wait for itself.

    An event also covers the waits that its stream has before it and has run nothing since; then a kernel waits for what
    they are for. (Where the stream has run something, this waits, and the order of streams shows the rest.)

    Args:
        waiting, waited_for: places of the kernels of each row; ``NONE`` where there is none in the step.
    """
    call, record = optional_integers(rows, "start_ns"), optional_integers(rows, "record_start_ns")
    stream, recorded_on = optional_integers(rows, "stream"), optional_integers(rows, "wait_on_stream")
    by_stream = np.lexsort((call, stream))
    order = np.lexsort((record, recorded_on))
    order = order[(record[order] != MISSING) & (recorded_on[order] != MISSING) & (waiting[order] >= 0)]
    passing, passed_on = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name in distinct(recorded_on[order]).tolist():
        later, earlier = order[recorded_on[order] == name], by_stream[stream[by_stream] == name]
        earlier = earlier[waiting[earlier] >= 0]
        # The waits that are open at the record: called before it, and what waits is launched after it.
        high = np.searchsorted(call[earlier], record[later])
        launch = np.maximum.accumulate(kernels.launch_ns[waiting[earlier]])
        low = np.minimum(np.searchsorted(launch, record[later]), high)
        passing.append(np.repeat(later, high - low))
        passed_on.append(earlier[ranges(low, high)])
    source, target = np.concatenate(passed_on), np.concatenate(passing)
    own = np.flatnonzero((waiting >= 0) & (waited_for >= 0))
    known = np.stack([own, waited_for[own]])
    fresh = known
    while fresh.shape[1]:
        # Rows that pass the fresh ones on, in pairs with what these are for.
        by_row = fresh[:, np.argsort(fresh[0], kind="stable")]
        low, high = (np.searchsorted(by_row[0], source, side=side) for side in ("left", "right"))
        further = np.stack([np.repeat(target, high - low), by_row[1][ranges(low, high)]])
        before, both = known.shape[1], np.concatenate([known, further], axis=1)
        first, _ = number_groups(*both)
        known, fresh = both[:, first], both[:, first[first >= before]]
    found = np.stack([waiting[known[0]], known[1]])
    return found[:, number_groups(*found)[0]]


def host_waits(kernels: RankKernels, synchronizations: pa.Table) -> HostWaits:
    """The calls in which the host waited for work of this step.

    A call that waits for a device waits for the last work of every stream. One that does not say for what it waits
    waited for the work that ended last before it returned, if that ended during the call. What ended after the call's
    return, by more than clocks are off, was not waited for.
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
    first, _ = number_groups(call, waited_for)
    call, waited_for = call[first], waited_for[first]
    held = kernels.end_ns[waited_for] <= end[call] + CLOCK_NS
    number = optional_integers(rows, "synchronization_id")[known]
    return HostWaits(start, end, number, call[held], waited_for[held])


def with_wait_at_the_end(kernels: RankKernels, waits: HostWaits, window: tuple[int, int]) -> HostWaits:
    """The same with a last wait for the GPU that no row shows, where only that explains when the host ends the step.

    So it is where the host launches nothing for ``LEAST_UNSEEN`` of the step, or no launch is on record, and it waits
    for nothing on record, and ends the step right after the last kernel.
    """
    begin, end = window
    if not len(kernels):
        return waits
    launched = kernels.launch_ns[(kernels.launch_ns != MISSING) & (kernels.launch_ns < end)]
    idle, last = int(launched.max(initial=begin)), int(kernels.end_ns.argmax())
    done = int(kernels.end_ns[last])
    unseen = done - idle >= LEAST_UNSEEN * (end - begin) and not ((waits.end_ns > idle) & (waits.end_ns <= end)).any()
    if not unseen or not 0 < end - done <= RIGHT_AFTER_NS:
        return waits
    # Later calls are another step's.
    before = int(np.searchsorted(waits.end_ns, end))
    mine = waits.call < before
    return HostWaits(
        np.append(waits.start_ns[:before], idle), np.append(waits.end_ns[:before], end),
        np.append(waits.number[:before], MISSING), np.append(waits.call[mine], before),
        np.append(waits.kernel[mine], last),
    )  # fmt: skip


def _on_every_stream(kernels: RankKernels, calls: Int64, start: Int64) -> tuple[Int64, Int64]:
    """For each call, the last kernel that was launched before it on each stream."""
    numbers, places = [calls[:0]], [calls[:0]]
    for stream in distinct(kernels.stream).tolist():
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
    # Without a launch on record, ``MISSING``, too.
    launched_before = kernels.launch_ns[found] < start
    return np.where((found >= 0) & (kernels.end_ns[found] >= start) & launched_before, found, NONE)
