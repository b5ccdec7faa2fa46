"""In which order operations were put on a stream, seen from a host call: what came before it, and what after.

Calls of one thread follow each other. Calls of two threads do only where the one has returned before the other begins;
in between, nobody knows. A stream runs its operations one after the other, in the order in which they were put on
it, so an operation that ran before one that came before a call came before the call, too. Where the row of a launch was
lost, the operation's correlation id still shows its place, since a process counts its calls: between two calls of one
thread, it counts as a call of this thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, distinct, lookup
from traceviz_dag.classify.launches import Launches
from traceviz_dag.read.events import MISSING, DeviceRows, LaunchRows

_ANY_TIME = -(2**62)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Host calls in their order.

    Attributes:
        rank: place of each by start; of calls that start at once, as in traces with times in microseconds, by their
            correlation ids, which a process counts up.
        end_ns: by when each had certainly returned.
        counted: the correlation ids of each thread's calls ascend.
        by_correlation: the calls by correlation id.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    rank: Int64
    correlation: Int64
    counted: bool
    by_correlation: Int64

    @classmethod
    def of(cls, launches: LaunchRows) -> HostCalls:
        """The calls of a trace."""
        order = np.lexsort((launches.correlation, launches.start_ns))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        end = launches.start_ns + launches.duration_ns + _lost_in_rounding(launches)
        thread = launches.thread.astype(np.int64)
        by_thread = np.lexsort((rank, thread))
        steps = np.diff(launches.correlation[by_thread])
        counted = bool((steps[np.diff(thread[by_thread]) == 0] >= 0).all())
        by_correlation = np.argsort(launches.correlation, kind="stable")
        return cls(launches.start_ns, end, thread, rank, launches.correlation, counted, by_correlation)

    def thread_around(self, correlation: Int64) -> Int64:
        """The thread of the calls right before and after each correlation id; NONE where it is not one thread."""
        if not self.counted or not len(self.rank):
            return np.full(len(correlation), NONE, np.int64)
        after = np.searchsorted(self.correlation[self.by_correlation], correlation)
        last = len(self.by_correlation) - 1
        neighbours = [self.thread[self.by_correlation[np.clip(at, 0, last)]] for at in (after - 1, after)]
        return np.where((neighbours[0] == neighbours[1]) & (correlation > 0), neighbours[0], NONE)

    def precede(self, one: Int64, other: Int64) -> Bool:
        """Whether calls certainly took effect before others; not where one is NONE."""
        same = lookup(self.thread, one) == lookup(self.thread, other)
        ranked = lookup(self.rank, one) < lookup(self.rank, other)
        apart = lookup(self.end_ns, one) < lookup(self.start_ns, other)
        return np.where(same, ranked, apart) & (one != NONE) & (other != NONE)


def _lost_in_rounding(launches: LaunchRows) -> int:
    """By how much calls may end later than their rows say: in whole microseconds, start and duration are cut off."""
    times = np.concatenate([launches.start_ns - launches.start_ns[:1], launches.duration_ns])
    return 0 if (times % 1000).any() else 2000


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """The operations of one stream in the order in which they were put on it.

    Attributes:
        row: row of ``DeviceRows``.
        rank: of the call that launched each, or NONE. A CUDA graph's operations have one call.
        thread, correlation: of this call, also where its row was lost; the thread is NONE where nothing shows it.
        earliest_ns, latest_ns: between which times it was put on the stream.
    """

    row: Int64
    rank: Int64
    thread: Int64
    correlation: Int64
    earliest_ns: Int64
    latest_ns: Int64

    @classmethod
    def of(cls, device: DeviceRows, launches: Launches, calls: HostCalls, row: Int64) -> StreamOrder:
        """The order of some operations, all those of a stream."""
        call = launches.row[row]
        rank, thread = lookup(calls.rank, call), lookup(calls.thread, call)
        start = device.start_ns[row]
        end = start + device.duration_ns[row]
        known = call != NONE
        # One thread's launches are in order; else the stream's own order shows, which clocks may blur by microseconds:
        # of two that start at once the first is the one that ends at once.
        one_thread = bool(known.all()) and len(distinct(thread)) <= 1
        order = np.lexsort((end, start, rank) if one_thread else (rank, end, start))
        # What has no call was launched by an operator that began then, or at some time; in any case before it ran.
        time_ns = launches.time_ns[row]
        earliest = np.where(known, lookup(calls.start_ns, call, 0), np.where(time_ns == MISSING, _ANY_TIME, time_ns))
        latest = np.where(known, lookup(calls.end_ns, call, 0), np.maximum(start, earliest))
        correlation = device.correlation[row]
        thread = np.where(known, thread, calls.thread_around(correlation))
        return cls(row[order], rank[order], thread[order], correlation[order], earliest[order], latest[order])

    def around(self, calls: HostCalls, moment: Int64) -> tuple[Int64, Int64]:
        """Which operations are certainly before and after some calls; what a call itself launched is before it.

        Args:
            moment: rows of ``calls``.

        Returns:
            Per call the place of the last operation before it (-1 for none), and of the first after it (the number of
            operations for none). They are neighbours where the order is certain.
        """
        last = np.full(len(moment), -1, np.int64)
        first = np.full(len(moment), len(self.row), np.int64)
        called_by = calls.thread[moment]
        for thread in distinct(self.thread).tolist():
            place = (self.thread == thread).nonzero()[0]
            same = (called_by == thread) & (thread != NONE)
            one, others = same.nonzero()[0], (~same).nonzero()[0]
            for whose, own, of_calls in (
                (place[self.rank[place] != NONE], self.rank, calls.rank),
                (place[self.rank[place] == NONE], self.correlation, calls.correlation),
            ):
                if len(one) and len(whose):
                    bound = of_calls[moment[one]]
                    last[one] = np.maximum(last[one], _last_below(whose, own[whose], bound + 1))
                    first[one] = np.minimum(first[one], _first_above(whose, own[whose], bound, len(self.row)))
            start, end = calls.start_ns[moment[others]], calls.end_ns[moment[others]]
            last[others] = np.maximum(last[others], _last_below(place, self.latest_ns[place], start))
            first[others] = np.minimum(first[others], _first_above(place, self.earliest_ns[place], end, len(self.row)))
        return last, first


def _last_below(place: Int64, values: Int64, bounds: Int64) -> Int64:
    """The largest of some places whose value is below each bound; -1 for none."""
    order = np.argsort(values, kind="stable")
    largest = np.concatenate([[-1], np.maximum.accumulate(place[order])])
    return largest[np.searchsorted(values[order], bounds, side="left")]


def _first_above(place: Int64, values: Int64, bounds: Int64, none: int) -> Int64:
    """The smallest of some places whose value is above each bound; ``none`` for none."""
    order = np.argsort(values, kind="stable")
    smallest = np.concatenate([np.minimum.accumulate(place[order][::-1])[::-1], [none]])
    return smallest[np.searchsorted(values[order], bounds, side="right")]
