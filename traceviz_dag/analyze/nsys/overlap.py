"""Computation, communication, memory and idle time of one GPU of a profile in one window, and its longest gaps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, clip, intersect, measure, subtract, union
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.window_measures import measure_windows
from traceviz_dag.arrays import Bool
from traceviz_dag.classify.nsys.calls import operation_in_name
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Kind

_MEMORY_KINDS = re.compile(r" \((?:\w+ )?\w+(?: -> \w+)?\)$")
""" (Pinned -> Device) and the like in the names of memory operations."""


@dataclass(frozen=True, slots=True)
class GpuOverlap:
    """The measures of one GPU in one window, ns; unions, never sums of durations.

    Attributes:
        kernels: kernels and memory operations that start in the window, as in table ``overlap``.
        hidden_ns: communication beside computation. exposed_ns: the rest of it.
        memory_ns: union of memory copies and sets.
        busy_ns: union of everything, memory operations included. idle_ns: window minus that.
        memory_alone_ns: memory operations beside which nothing else ran.
    """

    device: int
    window_start_ns: int
    window_end_ns: int
    kernels: int
    span_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    memory_ns: int
    busy_ns: int
    idle_ns: int

    @property
    def memory_alone_ns(self) -> int:
        """Memory operations beside which nothing else ran: busy - computation - exposed communication."""
        return self.busy_ns - self.compute_ns - self.exposed_ns

    @property
    def hidden_share(self) -> float | None:
        """Of communication; None without any."""
        return self.hidden_ns / self.communication_ns if self.communication_ns else None

    @property
    def hidden_over_min(self) -> float | None:
        """Hidden over the shorter of communication and computation; None without one of them."""
        shorter_ns = min(self.communication_ns, self.compute_ns)
        return self.hidden_ns / shorter_ns if shorter_ns else None


MEASURES = (
    *(("kernels", "operations"), ("span_ns", "window"), "compute_ns", "communication_ns"),
    *("hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"),
)
"""What tables show of it, with their headers where its columns are called otherwise."""


def gpu_overlap(activity: Activity, window: Clip | None = None) -> GpuOverlap:
    """Measure one GPU.

    Operations are cut at the edges of the window, so that every duration over ``[a, b)`` is the sum of those over
    ``[a, m)`` and ``[m, b)``; kernels are counted where they start. Memory operations make the GPU busy.

    Args:
        window: None takes the span from the first operation's start to the last one's end.
    """
    chosen = activity.window(window)
    edges = np.array([chosen.start_ns]), np.array([chosen.end_ns])
    measures = measure_windows(activity.intervals, *edges)[ALL_DIMENSIONS].columns()
    return GpuOverlap(
        device=activity.device,
        window_start_ns=chosen.start_ns,
        window_end_ns=chosen.end_ns,
        kernels=int(activity.started_within(chosen).sum()),
        span_ns=chosen.end_ns - chosen.start_ns,
        **{name: int(values[0]) for name, values in measures.items()},
    )


@dataclass(frozen=True, slots=True)
class PairOverlap:
    """How long operations of two categories run at the same time on one GPU; of one with itself, how long it runs.

    Attributes:
        first, second: ``computation``, an operation of NCCL, or a memory operation by its direction.
    """

    device: int
    first: str
    second: str
    beside_ns: int


def overlap_matrix(activity: Activity, window: Clip | None = None) -> list[PairOverlap]:
    """Each pair of categories of one GPU, those that run longest first; unions, never sums of durations."""
    chosen = activity.window(window)
    words: dict[str, int] = {}
    category = np.zeros(len(activity), dtype=np.int64)
    computes, moves = activity.intervals.computes(), activity.intervals.moves_memory()
    codes, position = np.unique(activity.name, return_inverse=True)
    names = [activity.names[code] for code in codes.tolist()]
    for members, word_of in (
        (computes, lambda _: Kind.COMPUTATION.value),
        (moves, lambda name: _MEMORY_KINDS.sub("", name)),
        (~computes & ~moves, operation_in_name),
    ):
        number = np.array([words.setdefault(word_of(name), len(words)) for name in names])
        category[members] = number[position[members]]
    times = {word: _inside(activity, category == number, chosen) for word, number in words.items()}
    ran = sorted((word for word in times if measure(times[word])), key=lambda word: (-measure(times[word]), word))
    return [
        PairOverlap(activity.device, first, second, measure(intersect(times[first], times[second])))
        for place, first in enumerate(ran)
        for second in ran[place:]
    ]


def _inside(activity: Activity, members: Bool, window: Clip) -> Intervals:
    time = activity.intervals.time
    return union(*clip(Intervals(time.starts[members], time.ends[members]), window.start_ns, window.end_ns))


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without any operation: after and before which one (index into the activity, -1 at the window's edge)."""

    start_ns: int
    end_ns: int
    after: int
    before: int

    @property
    def duration_ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.start_ns


def gaps(activity: Activity, window: Clip | None = None, least_ns: int = 0) -> list[Gap]:
    """Times in which the GPU did nothing, longest first; together they are the idle time.

    Args:
        least_ns: shorter ones are left out.
    """
    chosen = activity.window(window)
    busy = union(*clip(activity.intervals.time, chosen.start_ns, chosen.end_ns))
    idle = subtract(Intervals(np.array([chosen.start_ns]), np.array([chosen.end_ns])), busy)
    length = idle.ends - idle.starts
    order = np.lexsort((idle.starts, -length))
    order = order[length[order] >= max(least_ns, 1)]
    by_end = np.argsort(activity.ends, kind="stable")
    after = np.searchsorted(activity.ends[by_end], idle.starts[order], side="right") - 1
    before = np.searchsorted(activity.starts, idle.ends[order], side="left")
    found = []
    for place, last, following in zip(order.tolist(), after.tolist(), before.tolist(), strict=True):
        start, end = int(idle.starts[place]), int(idle.ends[place])
        ended = int(by_end[last]) if last >= 0 and start > chosen.start_ns else -1
        begun = following if following < len(activity) and end < chosen.end_ns else -1
        found.append(Gap(start, end, ended, begun))
    return found
