"""How far the host is ahead of a GPU: time from launch to start, and how much waits in the queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.statistics import Durations, by_group
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.nsys.profile import NsysProfile

SOON_NS = 10_000
"""What starts so soon after its call has returned hardly waited: the GPU waited for the host."""


@dataclass(frozen=True, slots=True)
class LaunchMeasures:
    """The launches of one stream, or of a whole GPU, in one window.

    Attributes:
        stream: None for the whole GPU.
        operations: kernels and memory operations that start in the window; launched: of them those whose call is
            recorded. What one call launches, such as a CUDA graph, counts each.
        call: durations of the launching calls, each once.
        queued: from the end of the call to the start on the GPU, 0 where it starts before the call returns.
        soon: how many start within SOON_NS.
        depth_most: most operations that are launched and have not started, at one time.
        depth_mean: their mean over the window. empty_ns: time in which there is none.
        window_ns: length of the window.
    """

    stream: int | None
    operations: int
    launched: int
    call: Durations
    queued: Durations
    soon: int
    depth_most: int
    depth_mean: float
    empty_ns: int
    window_ns: int


def launches(profile: NsysProfile, activity: Activity, window: Clip | None = None) -> list[LaunchMeasures]:
    """The whole GPU first, then its streams, most operations first.

    Args:
        window: None takes the span of the kernels.
    """
    chosen = activity.window(window)
    calls = profile.rows("calls", "start_ns", "duration_ns", of=processes_of([activity]))
    call = calls.place(activity.launch)
    lengths = calls.integers("duration_ns")
    returned = lookup(calls.integers("start_ns") + lengths, call, 0)
    known, counted = call != NONE, activity.started_within(chosen)

    def measured(stream: int | None, rows: Int64) -> LaunchMeasures:
        mine = _those(counted, rows)
        launched = _those(known, mine)
        # A call may launch several operations, and counts once.
        launching = np.zeros(len(calls), dtype=bool)
        launching[call[launched]] = True
        queued = np.maximum(activity.starts[launched] - returned[launched], 0)
        # What is launched before the window and starts in it, or is launched in it and starts later, waits inside it.
        waiting = _those(known, rows)
        depth = _depth(returned[waiting], activity.starts[waiting], chosen)
        return LaunchMeasures(
            stream,
            len(mine),
            len(launched),
            Durations.of(lengths[launching]),
            Durations.of(queued),
            int((queued <= SOON_NS).sum()),
            *depth,
            window_ns=chosen.end_ns - chosen.start_ns,
        )

    everything = np.arange(len(activity))
    streams = [measured(stream, rows) for stream, rows in by_group(activity.stream)]
    streams = [one for one in streams if one.operations]
    return [measured(None, everything), *sorted(streams, key=lambda one: -one.operations)]


def _those(chosen: Bool, rows: Int64) -> Int64:
    """The rows that are chosen; mostly all are, and nothing is copied."""
    here = chosen[rows]
    return rows if here.all() else rows[here]


def queue_depth(launched_ns: Int64, started_ns: Int64) -> tuple[Int64, Int64]:
    """How many operations are launched and have not started: instants, ascending, and the number from each on.

    Several entries may be of one instant, at which what starts goes before what is launched; the last one holds.

    Args:
        launched_ns: end of each launching call. started_ns: start on the GPU; where it is earlier, nothing waited.
    """
    waits: Bool = started_ns > launched_ns
    # Both are nearly in order, of which stable sorts make use; ends come first, also among equal times.
    end, begin = np.sort(started_ns[waits], kind="stable"), np.sort(launched_ns[waits], kind="stable")
    times = np.concatenate([end, begin])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.where(order < len(end), -1, 1))


def _depth(launched_ns: Int64, started_ns: Int64, window: Clip) -> tuple[int, float, int]:
    """Most and mean number of those that wait, and the time in which none does."""
    begin, end = (np.clip(times, window.start_ns, window.end_ns) for times in (launched_ns, started_ns))
    span = window.end_ns - window.start_ns
    times, depth = queue_depth(begin, end)
    if not len(times):
        return 0, 0.0, span
    # The depth returns to 0 at the end of each stretch in which something waits, and grows from 0 at the next.
    empty = int(np.diff(times)[depth[:-1] == 0].sum()) + span - int(times[-1] - times[0])
    mean = int(np.maximum(end - begin, 0).sum()) / span if span else 0.0
    return int(depth.max()), mean, empty
