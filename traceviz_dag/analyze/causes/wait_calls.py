"""Calls that let a stream wait (``cudaStreamWaitEvent``) of which a trace shows neither the stream nor the event.

Such a call is the *entry* of a communication if this is what its thread launches next: the communication's stream waits
for the work. Any other call lets the stream of the next work on its thread wait. For which communication follows where
the call comes right behind it (a synchronous one), or from what is seen in other calls of its kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import numpy as np

from traceviz_dag.analyze.causes.inferred_waits import (
    AT_ONCE_NS,
    HOLDS_IN,
    MESSAGES,
    NO_WAITS,
    SLACK_NS,
    Waits,
    across,
    held,
    held_in_class,
    launched_last,
    neighbours,
    together,
)
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.side_streams import SideStreams, following_work, steps
from traceviz_dag.analyze.matching.operations import OPERATIONS, Operation
from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup, number_groups
from traceviz_dag.read.events import MISSING

_LEAST_TOLD = 0.2
"""Share of the calls of a kind that must be known from their place for the others to be of the same class."""

_SEND = OPERATIONS.index(Operation.SEND)

_OF_A_CLASS = 0.9
"""Share of a class behind which a call must come for them to be synchronous."""


@dataclass(frozen=True, slots=True)
class StreamWaits:
    """The calls of a step that let a stream wait for an event.

    Attributes:
        waiting, waited_for: places in ``RankKernels`` of what recorded events show; a wait that another stream passed
            on is one, too.
        records: how many of the calls have a row of the profiler.
        call_ns, thread: of the calls whose event nothing shows, in the order of start.
        waiter: per such call, the kernel that is known to wait; ``NONE`` where the stream is not known either.
    """

    waiting: Int64
    waited_for: Int64
    records: int
    call_ns: Int64
    thread: Int64
    waiter: Int64


@dataclass(frozen=True, slots=True)
class WaitCalls:
    """Calls of which nothing shows for what a stream waits, in the order of start; one entry per call.

    Attributes:
        start_ns: of the call.
        thread: of the call.
        before: the kernel that its thread launched last before it; ``NONE`` where none.
        after: the kernel that its thread launches next.
        waiter: the work that waits by it: the next that any thread launches on a stream that computes.
        stream: on which its thread launched its last work before it; ``NONE`` where none.
        entry: whether it is the last one before such a communication.
    """

    start_ns: Int64
    thread: Int64
    before: Int64
    after: Int64
    waiter: Int64
    stream: Int64
    entry: Bool

    def only(self, which: Int64 | Bool) -> WaitCalls:
        """Some of them."""
        return WaitCalls(
            start_ns=self.start_ns[which],
            thread=self.thread[which],
            before=self.before[which],
            after=self.after[which],
            waiter=self.waiter[which],
            stream=self.stream[which],
            entry=self.entry[which],
        )


def wait_calls(kernels: RankKernels, sides: SideStreams, waits: StreamWaits) -> WaitCalls:
    """Place the calls of which nothing shows for what a stream waits among the launches of their threads."""
    count = len(waits.call_ns)
    before, after, stream = (np.full(count, NONE, np.int64) for _ in range(3))
    launches, apart = sides.order, sides.apart
    work = sides.work[among(kernels.stream[sides.work], sides.chain)]
    at = np.searchsorted(kernels.launch_ns[work], waits.call_ns)
    waiter = lookup(work, np.where(at < len(work), at, NONE))
    for thread in distinct(waits.thread).tolist():
        mine = np.flatnonzero(waits.thread == thread)
        queue = launches[kernels.thread[launches] == thread]
        at = np.searchsorted(kernels.launch_ns[queue], waits.call_ns[mine])
        before[mine] = lookup(queue, at - 1)
        after[mine] = lookup(queue, np.where(at < len(queue), at, NONE))
        own = work[kernels.thread[work] == thread]
        at = np.searchsorted(kernels.launch_ns[own], waits.call_ns[mine])
        stream[mine] = lookup(kernels.stream, lookup(own, at - 1))
    # Only the last call before a launch lets its stream wait; those before it are of the stream that was current.
    last = np.ones(count, dtype=bool)
    by_launch = np.lexsort((waits.call_ns, after))
    last[by_launch[:-1]] = after[by_launch[1:]] != after[by_launch[:-1]]
    entry = last & (after >= 0) & (lookup(apart.astype(np.int64), after) == 1)
    entry &= ~(lookup(kernels.in_graph.astype(np.int64), after) == 1)
    known = waits.waiter >= 0
    waiter = np.where(known, waits.waiter, waiter)
    entry = np.where(known, apart[waits.waiter], entry)
    after = np.where(known & entry, waits.waiter, after)
    stream = np.where(known, kernels.stream[waits.waiter], stream)
    return WaitCalls(waits.call_ns, waits.thread, before, after, waiter, stream, entry)


def tell_entries(kernels: RankKernels, calls: WaitCalls, communications: Int64) -> bool:
    """Whether a call comes before nearly every communication: then all waits have calls, and what has none is none."""
    if not len(communications):
        return False
    return bool(kernels.marked(calls.after[calls.entry])[communications].mean() >= HOLDS_IN)


def handed_over(kernels: RankKernels, sides: SideStreams, calls: WaitCalls, known: Waits) -> tuple[Waits, Bool]:
    """Waits between streams that compute that calls show, and which calls these are.

    A thread that launched its last work on one stream, and lets another one wait for what it launches next, hands the
    work over: this waits for all that is on the first stream. That counts for kernels of a kind, or behind kernels of a
    kind, of which one at least visibly waited for nothing else, if it held for all of them.

    Args:
        known: waits of communications for work.
    """
    used = np.zeros(len(calls.start_ns), dtype=bool)
    streams = lookup(kernels.stream, calls.waiter)
    open_ = ~calls.entry & (calls.waiter >= 0) & (calls.stream >= 0) & (calls.stream != streams)
    open_[first_behind(calls, right_behind(sides, calls))] = False
    open_ = np.flatnonzero(open_)
    # Of each thread the last call before the launch: those before it are of the stream that was current.
    order = open_[np.lexsort((calls.start_ns[open_], calls.thread[open_], calls.waiter[open_]))]
    if not len(order):
        return NO_WAITS, used
    last = np.append((np.diff(calls.waiter[order]) != 0) | (np.diff(calls.thread[order]) != 0), True)
    order = order[last]
    source = launched_last(kernels, sides, calls.stream[order], calls.start_ns[order])
    order, source = order[source >= 0], source[source >= 0]
    waits = Waits(calls.waiter[order], source, calls.start_ns[order])
    ready = _ready(kernels, known)[waits.waiting]
    start, end = kernels.start_ns[waits.waiting], kernels.end_ns[waits.waited_for]
    visible = (start - ready > AT_ONCE_NS) & (start - end <= AT_ONCE_NS) & held(kernels, waits.waiting, source)
    parts = [NO_WAITS]
    for side in (waits.waiting, waits.waited_for):
        number = number_groups(kernels.signature[side])[1]
        seen = np.bincount(number, weights=visible) > 0
        parts.append(held_in_class(kernels, waits.only(seen[number]), number[seen[number]]))
    found = together(*parts)
    used[order] = kernels.marked(found.waiting)[waits.waiting]
    return found, used


def moved_entries(kernels: RankKernels, sides: SideStreams, calls: WaitCalls, entries: Waits) -> Waits:
    """Waits of communications that are called on another stream than their step's last work ran on.

    Two streams compute. A call ahead of the one that lets the communication wait then hands the step over from the
    stream of its work, so the communication is called on the other one and waits for what was launched there last.

    Args:
        entries: waits of communications for the work of their step.
    """
    ahead = ~calls.entry & kernels.marked(entries.waiting)[calls.after]
    ahead[first_behind(calls, right_behind(sides, calls))] = False
    if len(sides.chain) != _TWO or not ahead.any():
        return NO_WAITS
    moved = entries.only(kernels.marked(calls.after[ahead])[entries.waiting])
    moved = moved.only(kernels.microbatch[moved.waiting] != MISSING)
    moved = moved.only(among(kernels.stream[moved.waited_for], sides.chain))
    other = sides.chain.sum() - kernels.stream[moved.waited_for]
    source = launched_last(kernels, sides, other, moved.since_ns)
    waits = across(kernels, moved.waiting, source, moved.since_ns)
    return held_in_class(kernels, waits, kernels.what[waits.waiting])


_TWO = 2
"""Streams that compute: work that is handed over from one goes to the other."""


def on_their_own_streams(kernels: RankKernels, sides: SideStreams, calls: WaitCalls) -> WaitCalls:
    """Let calls before a launch of another thread hold the next work on the stream on which their own launched last."""
    waiter = calls.waiter.copy()
    others = ~calls.entry & (waiter >= 0) & (lookup(kernels.thread, waiter) != calls.thread)
    for stream in distinct(calls.stream[others & (calls.stream >= 0)]).tolist():
        mine = np.flatnonzero(others & (calls.stream == stream))
        own = sides.work[kernels.stream[sides.work] == stream]
        at = np.searchsorted(kernels.launch_ns[own], calls.start_ns[mine])
        waiter[mine] = lookup(own, np.where(at < len(own), at, NONE))
    return replace(calls, waiter=waiter)


def awaited_at_once(kernels: RankKernels, sides: SideStreams, calls: WaitCalls, klass: Int64) -> tuple[Waits, Bool]:
    """Waits for communications that a call right behind them is for, and which calls these are.

    Args:
        klass: number of the class of each kernel that is a communication.
    """
    places = right_behind(sides, calls)
    places = first_behind(calls, places[~_in_a_row(kernels, calls, np.flatnonzero(klass >= 0), places)])
    source = calls.before[places]
    found = np.bincount(klass[source], minlength=int(klass.max(initial=0)) + 1)
    share = found / np.maximum(np.bincount(klass[klass >= 0], minlength=len(found)), 1)
    places = places[share[klass[source]] >= _OF_A_CLASS]
    waiter = calls.waiter[places]
    if sides.several:
        # What runs into each other is launched in turn: the next work of its own step waits for a communication.
        _, following = neighbours(kernels, sides, calls.before[places], of_item=True)
        waiter = np.where((kernels.microbatch[calls.before[places]] != MISSING) & (following >= 0), following, waiter)
    waits = across(kernels, waiter, calls.before[places], calls.start_ns[places])
    kept = held_in_class(kernels, waits, klass[waits.waited_for])
    used = np.zeros(len(calls.start_ns), dtype=bool)
    used[places] = kernels.marked(kept.waited_for)[calls.before[places]]
    return kept, used


def right_behind(sides: SideStreams, calls: WaitCalls) -> Int64:
    """The calls behind a communication of their thread, where the thread launches nothing between them."""
    return np.flatnonzero(~calls.entry & (lookup(sides.apart.astype(np.int64), calls.before) > 0) & (calls.waiter >= 0))


def first_behind(calls: WaitCalls, places: Int64) -> Int64:
    """Of several calls behind one communication, the first."""
    return places[np.unique(calls.before[places], return_index=True)[1]]


def _in_a_row(kernels: RankKernels, calls: WaitCalls, communications: Int64, places: Int64) -> Bool:
    """Which calls follow two or more communications of a stream that were launched without a call between them.

    Where as many calls follow as there are communications, the first call is for the first of them: a call for the last
    one would leave no use to the others.
    """
    order = communications[np.lexsort((kernels.launch_ns[communications], kernels.thread[communications]))]
    exits = np.flatnonzero(~calls.entry)
    result = np.zeros(len(places), dtype=bool)
    for thread in distinct(calls.thread[places]).tolist():
        own = order[kernels.thread[order] == thread]
        mine = exits[calls.thread[exits] == thread]
        reached = np.searchsorted(kernels.launch_ns[own], calls.start_ns[mine])
        begins = np.flatnonzero(np.diff(reached, prepend=-1))
        launched = np.diff(np.append(0, reached[begins]))
        count = np.diff(np.append(begins, len(mine)))
        last = own[reached[begins] - 1]
        before_last = own[np.maximum(reached[begins] - 2, 0)]
        one_stream = kernels.stream[last] == kernels.stream[before_last]
        doubtful = begins[(launched > 1) & (count >= launched) & one_stream]
        result |= np.isin(places, mine[doubtful])
    return result


_Way = Callable[[RankKernels, WaitCalls, Int64, Int64, Int64], Iterator[tuple[Int64, Int64]]]


def awaited_in_turn(
    kernels: RankKernels, sides: SideStreams, calls: WaitCalls, closing: Int64, at_once: Int64, useless: Bool
) -> tuple[Waits, Bool]:
    """Waits for what a stream runs in turn, each by a call of its own, and which calls these are.

    A stream runs what it is given in turn, so a wait for a later one makes waits for those before it useless. Where a
    thread makes as many calls as it launches kernels on a stream, never more so far, the calls are for these in turn:
    nothing else leaves each call a use. Of several streams each has one call at most before a kernel, for the same
    reason. That counts where it always holds: for launches in a row on a stream and the calls that follow in a row;
    else in every micro-batch's step, of all calls or of those before kernels of a kind, for no other streams as well.

    Args:
        closing: what can be waited for, of which no wait is known.
        at_once: what is waited for at once. Further calls right behind messages may be for others of the same kernel.
        useless: kernels of which nothing is known that needs them: what fits these only is not taken to be for them.
    """
    used = np.zeros(len(calls.start_ns), dtype=bool)
    messages = at_once[among(kernels.operation[at_once], MESSAGES)]
    further = kernels.marked(messages)[calls.before]
    closing = closing[kernels.operation[closing] != _SEND]
    following = following_work(kernels, sides, closing)
    closing, following = closing[following >= 0], following[following >= 0]
    parts = [NO_WAITS]
    ways: tuple[_Way, ...] = (_in_bursts, partial(_in_steps, by_kind=False), partial(_in_steps, by_kind=True))
    tried = set[tuple[_Way, int, bool]]()
    # What one way explains may leave to another what it can; where nothing was explained since, it finds the same.
    for without, way in product((np.zeros_like(further), further), ways * 2):
        if (now := (way, len(parts), bool(without.any()))) in tried:
            continue
        tried.add(now)
        left = ~kernels.marked(together(*parts).waited_for)[closing]
        mine = np.flatnonzero(~used & ~without & ~calls.entry & (calls.waiter >= 0))
        for call, source in way(kernels, calls, mine, closing[left], following[left]):
            waits = across(kernels, calls.waiter[call], source, calls.start_ns[call])
            kept = held_in_class(kernels, waits, kernels.signature[waits.waiting])
            if not useless[kept.waited_for].any():
                used[call[kernels.marked(kept.waited_for)[source]]] = True
                parts.append(kept)
    return together(*parts), used


def _in_bursts(
    kernels: RankKernels, calls: WaitCalls, mine: Int64, closing: Int64, following: Int64
) -> Iterator[tuple[Int64, Int64]]:
    """Calls and what each is for: all that a thread launches in a phase on a stream has as many calls right behind.

    What it launches there on other streams is for later calls, unless that has as many calls right behind as well.

    Args:
        mine: the calls. following: of each kernel to be waited for, the work that is launched next.
    """
    time = np.concatenate([calls.start_ns[mine], kernels.launch_ns[closing]])
    thread = np.concatenate([calls.thread[mine], kernels.thread[closing]])
    launch = np.arange(len(time)) >= len(mine)
    order = np.lexsort((time, thread))
    begins = launch[order] & ~np.append(False, launch[order][:-1])
    begins |= np.diff(thread[order], prepend=MISSING) != 0
    burst = np.empty(len(time), np.int64)
    burst[order] = np.cumsum(begins)
    of_call, of_launch = burst[: len(mine)], burst[len(mine) :]
    kind = number_groups(kernels.thread[closing], kernels.stream[closing], kernels.phase[following])[1]
    fits = []
    for one in distinct(kind).tolist():
        there = np.flatnonzero(kind == one)
        behind = np.flatnonzero(np.isin(of_call, of_launch[there]))
        times = calls.start_ns[mine[behind]], kernels.launch_ns[closing[there]]
        pair = _balanced(of_call[behind], times[0], of_launch[there], times[1])
        if pair is not None:
            fits.append((there[pair[1]], behind[pair[0]]))
    for there, behind in _alone(fits, len(mine)):
        yield mine[behind], closing[there]


def _in_steps(
    kernels: RankKernels, calls: WaitCalls, mine: Int64, closing: Int64, following: Int64, by_kind: bool
) -> Iterator[tuple[Int64, Int64]]:
    """The same, of what a micro-batch's step launches on one stream, else on several.

    Args:
        by_kind: whether calls before kernels of a kind are a kind, or all of a phase.
    """
    waiter = calls.waiter[mine]
    threads = np.concatenate([calls.thread[mine], kernels.thread[closing]])
    keys = steps(kernels, np.concatenate([waiter, following]))
    step, phase = (number_groups(threads, *some)[1] for some in (keys, keys[:1]))
    step_of_call, step_of_launch = step[: len(mine)], step[len(mine) :]
    kind = number_groups(phase[: len(mine)], kernels.signature[waiter] if by_kind else phase[: len(mine)])[1]
    found = []
    for one in distinct(kind).tolist():
        own = mine[kind == one]
        of_own = step_of_call[kind == one]
        of_phase = np.isin(phase[len(mine) :], phase[: len(mine)][kind == one])
        streams = distinct(kernels.stream[closing[of_phase]]).tolist()
        for count in range(1, min(len(streams), _MOST_STREAMS) + 1):
            fits = []
            for some in combinations(streams, count):
                there = of_phase & among(kernels.stream[closing], np.array(some))
                called, launched = of_own, step_of_launch[there]
                if count > 1:
                    called, launched = _apart(of_own, calls.waiter[own], launched, kernels.stream[closing[there]])
                pair = _balanced(called, calls.start_ns[own], launched, kernels.launch_ns[closing[there]])
                if pair is not None:
                    fits.append((own[pair[0]], np.flatnonzero(there)[pair[1]]))
            if fits:
                found += fits if len(fits) == 1 else []
                break
    for calls_of_one, launches in _alone(found, len(closing)):
        yield calls_of_one, closing[launches]


def _alone(fits: list[tuple[Int64, Int64]], size: int) -> Iterator[tuple[Int64, Int64]]:
    """Those of some pairs of arrays whose second has no place in common with that of another."""
    taken = np.bincount(np.concatenate([np.empty(0, np.int64), *(places for _, places in fits)]), minlength=size)
    return ((one, places) for one, places in fits if (taken[places] == 1).all())


_MOST_STREAMS = 3
"""Of more streams at once nothing is said: there are too many ways."""


def _apart(call_step: Int64, waiter: Int64, launch_step: Int64, stream: Int64) -> tuple[Int64, Int64]:
    """The steps of calls and launches, numbered anew for each stream of a step: the first has the most launches.

    The first call before a kernel is for this stream, the second for the one with the most after it, and so on.
    """
    nth = _ordinals(number_groups(call_step, waiter)[1])
    first, number = number_groups(launch_step, stream)
    launches = np.bincount(number, minlength=len(first))
    order = np.lexsort((stream[first], -launches, launch_step[first]))
    place = np.empty(len(first), np.int64)
    place[order] = _ordinals(launch_step[first][order])
    return call_step * _MOST_STREAMS + nth, launch_step * _MOST_STREAMS + place[number]


def _balanced(call_step: Int64, called_ns: Int64, launch_step: Int64, launched_ns: Int64) -> tuple[Int64, Int64] | None:
    """Calls and launches in turn, step by step; None unless every step has as many, and never more calls so far."""
    by_call, by_launch = np.lexsort((called_ns, call_step)), np.lexsort((launched_ns, launch_step))
    if not np.array_equal(call_step[by_call], launch_step[by_launch]):
        return None
    return (by_call, by_launch) if (launched_ns[by_launch] < called_ns[by_call]).all() else None


def awaited_later(
    kernels: RankKernels, calls: WaitCalls, communications: Int64, klass: Int64, known: Waits
) -> tuple[Waits, Int64]:
    """Waits for communications that calls further behind are for.

    Calls of a kind (before the same kernel, as the first, second ... one) wait for communications of one class, in the
    order of launch. Which class is known from calls whose kernel started at once when a communication ended, having
    waited for nothing else; without one, by the calls between which no others were launched.

    Args:
        calls: those that are not explained otherwise. communications: those of which no wait is known.
        klass: number of the class of each kernel that is a communication.
        known: waits that are known otherwise.

    Returns:
        The waits, and per wait its call.
    """
    usable = np.flatnonzero((calls.waiter >= 0) & ~calls.entry)
    if not len(usable) or not len(communications):
        return NO_WAITS, usable[:0]
    waiter = calls.waiter[usable]
    nth = _ordinals(waiter)
    kind = number_groups(kernels.signature[waiter], calls.thread[usable], nth)[1]
    seen = _seen(kernels, waiter, calls.start_ns[usable], communications, _ready(kernels, known))
    by_sight = _classes_of_kinds(kind, klass, seen, 0.0)
    taken = _in_turn(kernels, calls, usable, kind, by_sight, seen, communications, klass)
    placed = _told_by_place(kernels, calls, usable, communications, taken)
    by_place = _classes_of_kinds(kind, klass, placed, _LEAST_TOLD)
    told = _in_turn(kernels, calls, usable, kind, by_place | by_sight, placed | taken | seen, communications, klass)
    call, source = (np.array(list(side), np.int64) for side in (told.keys(), told.values()))
    waits = across(kernels, waiter[call], source, calls.start_ns[usable[call]])
    number = kind[call]
    kept = held_in_class(kernels, waits, number, klass[source]) if len(waits.waiting) == len(call) else NO_WAITS
    chosen = kernels.marked(kept.waited_for)[source]
    return kept, usable[call[chosen]]


def _ordinals(waiter: Int64) -> Int64:
    """Of each call, how many are before it with the same kernel."""
    order = np.argsort(waiter, kind="stable")
    begins = np.flatnonzero(np.diff(waiter[order], prepend=-1))
    result = np.empty(len(waiter), np.int64)
    lengths = np.diff(np.append(begins, len(waiter)))
    result[order] = np.arange(len(waiter)) - np.repeat(begins, lengths)
    return result


def _ready(kernels: RankKernels, known: Waits) -> Int64:
    """From when on each kernel could have started, as far as its stream, its launch and known waits show."""
    lowest = np.iinfo(np.int64).min
    launched = np.maximum(kernels.launch_ns + kernels.latency_ns, kernels.launched_ns)
    ready = np.where(kernels.launch_ns == MISSING, kernels.start_ns, launched)
    follows = kernels.stream[1:] == kernels.stream[:-1]
    ready[1:] = np.maximum(ready[1:], np.where(follows, kernels.end_ns[:-1], lowest))
    np.maximum.at(ready, known.waiting, kernels.end_ns[known.waited_for])
    return np.asarray(ready)


def _seen(kernels: RankKernels, waiter: Int64, called: Int64, communications: Int64, ready: Int64) -> dict[int, int]:
    """Calls whose kernel visibly waited → for which communication: the last one that had ended when it started.

    Of several calls before one kernel nobody knows which it is; the last one represents them.
    """
    _, last = np.unique(waiter[::-1], return_index=True)
    late = np.sort(len(waiter) - 1 - last)
    late = late[kernels.start_ns[waiter[late]] - ready[waiter[late]] > AT_ONCE_NS]
    ended = communications[np.argsort(kernels.end_ns[communications], kind="stable")]
    at = np.searchsorted(kernels.end_ns[ended], kernels.start_ns[waiter[late]] + SLACK_NS, side="right") - 1
    late, source = late[at >= 0], ended[at[at >= 0]]
    soon = kernels.start_ns[waiter[late]] - kernels.end_ns[source] <= AT_ONCE_NS
    soon &= kernels.launch_ns[source] < called[late]
    return dict(zip(late[soon].tolist(), source[soon].tolist(), strict=True))


def _told_by_place(
    kernels: RankKernels, calls: WaitCalls, usable: Int64, communications: Int64, seen: dict[int, int]
) -> dict[int, int]:
    """Calls → communications, where as many were launched since the calls before as there are calls, or are open.

    First thread by thread: what a thread launches in a row, the calls that follow in a row are for. Then over all
    threads, kernel by kernel: calls before one kernel are for all that is open, if they are as many.

    A message that is sent holds nothing up that the place of a call could show: only sight shows that one was awaited.

    Args:
        seen: calls → communications that are known; these are not open to others.
    """
    order = communications[kernels.operation[communications] != _SEND]
    order = order[np.argsort(kernels.launch_ns[order], kind="stable")]
    taken, threads = set(seen.values()), calls.thread[usable]
    result: dict[int, int] = {}
    for thread in distinct(threads).tolist():
        mine = np.flatnonzero(threads == thread)
        own = order[kernels.thread[order] == thread]
        for in_a_row, launched in _bursts(kernels, calls, usable, mine, own):
            fresh = [each for each in launched if each not in taken]
            members = [call for call in in_a_row if call not in seen]
            chosen = _for_calls(kernels, calls.waiter[usable[members]], fresh, len(members))
            result |= dict(zip(members, chosen, strict=False))
            taken |= set(chosen)
    left = np.array([call for call in range(len(usable)) if call not in seen and call not in result], np.int64)
    for members, _ in _by_waiter(calls.waiter[usable[left]], left):
        reached = order[kernels.launch_ns[order] < calls.start_ns[usable[members[0]]]]
        open_ = [each for each in reached.tolist() if each not in taken]
        if len(open_) == len(members):
            result |= dict(zip(members, open_, strict=True))
            taken |= set(open_)
    return result


def _for_calls(kernels: RankKernels, waiter: Int64, fresh: list[int], calls: int) -> list[int]:
    """For which communications of some that were launched in a row some calls are, in this order; none if unsure.

    On one stream, or before one kernel, the order of launch is the only one in which each call has a use. Of more calls
    before one kernel, the first are for them: the others came later and are for something that was launched before.
    """
    one_waiter = len(set(waiter.tolist())) == 1
    ordered = one_waiter or len(set(kernels.stream[fresh].tolist())) == 1
    return fresh if ordered and (len(fresh) == calls or (one_waiter and len(fresh) < calls)) else []


def _bursts(
    kernels: RankKernels, calls: WaitCalls, usable: Int64, mine: Int64, own: Int64
) -> Iterator[tuple[list[int], list[int]]]:
    """The calls of a thread that follow in a row, and the communications that it launched in a row before them."""
    reached = np.searchsorted(kernels.launch_ns[own], calls.start_ns[usable[mine]])
    begins = np.flatnonzero(np.diff(reached, prepend=-1))
    before = 0
    for low, high in zip(begins.tolist(), np.append(begins, len(mine))[1:].tolist(), strict=True):
        yield mine[low:high].tolist(), own[before : reached[low]].tolist()
        before = int(reached[low])


def _by_waiter(waiter: Int64, call: Int64) -> Iterator[tuple[list[int], int]]:
    """Calls in a row before one kernel, and this."""
    begins = np.flatnonzero(np.diff(waiter, prepend=-1))
    for low, high in zip(begins.tolist(), np.append(begins, len(waiter))[1:].tolist(), strict=True):
        yield call[low:high].tolist(), int(waiter[low])


def _classes_of_kinds(kind: Int64, klass: Int64, told: dict[int, int], least: float) -> dict[int, int]:
    """Kind of calls → the class of communications that they are for, where those that are known agree.

    Args:
        told: calls → communications. least: share of the calls of a kind that must be told.
    """
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for call, communication in told.items():
        votes[int(kind[call])][int(klass[communication])] += 1
    size, result = np.bincount(kind), {}
    for one, found in votes.items():
        ((usual, count),) = found.most_common(1)
        if count >= HOLDS_IN * found.total() and found.total() >= least * size[one]:
            result[one] = usual
    return result


def _in_turn(
    kernels: RankKernels,
    calls: WaitCalls,
    usable: Int64,
    kind: Int64,
    class_of: dict[int, int],
    told: dict[int, int],
    communications: Int64,
    klass: Int64,
) -> dict[int, int]:
    """Give each call what it is known to be for, and each other one of a known class what its kind is usually for.

    That is the last one launched before, the last but one ..., as the known ones show, if they agree; else the
    oldest that nobody has waited for yet.
    """
    order = communications[np.argsort(kernels.launch_ns[communications], kind="stable")]
    members = {
        one: order[klass[order] == one] for one in set(class_of.values()) | set(klass[list(told.values())].tolist())
    }
    reached = {one: np.searchsorted(kernels.launch_ns[mine], calls.start_ns[usable]) for one, mine in members.items()}
    depths: dict[int, Counter[int]] = defaultdict(Counter)
    for call, communication in told.items():
        one = int(klass[communication])
        place = int(np.flatnonzero(members[one] == communication)[0])
        depths[int(kind[call])][int(reached[one][call]) - place] += 1
    found: dict[int, int] = {}
    taken = set(told.values())
    oldest: dict[int, int] = defaultdict(int)
    for call, of_kind in enumerate(kind.tolist()):
        if call in told:
            found[call] = told[call]
            continue
        one = class_of.get(of_kind, NONE)
        if one == NONE:
            continue
        ((depth, count),) = depths[of_kind].most_common(1) or ((0, 0),)
        place = int(reached[one][call]) - depth
        if not depth or count < HOLDS_IN * depths[of_kind].total():
            place = oldest[one]
            while place < reached[one][call] and int(members[one][place]) in taken:
                place += 1
            oldest[one] = place
        if 0 <= place < reached[one][call] and int(members[one][place]) not in taken:
            found[call] = int(members[one][place])
            taken.add(found[call])
    return found
