"""Which kernel waited for which on another stream of the same rank: as recorded, else inferred class by class.

A communication runs on a stream of its own. It waits for the work that was launched before it, and work waits for it:
at once where the caller waits (a synchronous collective), later where it is asynchronous. What no event shows follows
from the calls that let a stream wait, where the trace has them (``wait_calls``), and from hypotheses that hold for a
whole class of communications (``inferred_waits``). What neither shows is unknown, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.causes.inferred_waits import (
    AT_ONCE_NS,
    NO_WAITS,
    Waits,
    across,
    before_the_optimizer,
    brought_back,
    by_starts,
    held,
    held_in_class,
    in_communicator_order,
    in_graphs,
    lacks_launches,
    neighbours,
    passed_on,
    start_late,
    together,
    within_items,
    within_visits,
)
from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.causes.side_streams import SideStreams, at_ends_of_steps, side_streams
from traceviz_dag.analyze.causes.wait_calls import (
    StreamWaits,
    WaitCalls,
    awaited_at_once,
    awaited_in_turn,
    awaited_later,
    first_behind,
    handed_over,
    moved_entries,
    on_their_own_streams,
    right_behind,
    tell_entries,
    wait_calls,
)
from traceviz_dag.arrays import NONE, Bool, Int64, distinct, lookup, number_groups
from traceviz_dag.read.events import MISSING

RECORDED, INFERRED = range(2)
"""Evidence of an edge between streams."""


@dataclass(frozen=True, slots=True)
class KernelEdges:
    """Edges between streams of one rank; one entry an edge.

    Attributes:
        waiting, waited_for: places in ``RankKernels``.
        evidence: RECORDED or INFERRED.
        unknown: places of communications of which nothing shows what waited for them.
        untold: places of kernels that waited, by a call, for something that nothing shows; one entry per call.
    """

    waiting: Int64
    waited_for: Int64
    evidence: Int64
    unknown: Int64
    untold: Int64


def kernel_edges(
    kernels: RankKernels, sides: SideStreams, waits: StreamWaits, done: Int64 | None = None
) -> KernelEdges:
    """All edges between streams of a rank.

    Args:
        sides: what of them runs beside the chain of steps.
        waits: what is recorded of them, and the calls of which nothing shows for what a stream waits.
        done: see ``by_starts``.
    """
    apart, beside = sides.apart, _launched(sides, sides.apart)
    klass = _classes(kernels, beside, sides)
    calls = wait_calls(kernels, sides, waits)
    beside = beside[~kernels.in_graph[beside]]
    opening, launched = beside[sides.opens[beside]], beside[sides.closes[beside]]
    recorded = Waits(waits.waiting, waits.waited_for, kernels.launch_ns[waits.waited_for])
    left = kernels.marked(recorded.waited_for)[launched]
    # Where the trace has every call, what has none did not wait.
    communications = opening[kernels.communicates[opening]]
    complete = waits.records > 0 or tell_entries(kernels, calls, communications if len(communications) else opening)
    if not complete:
        calls = replace(calls, entry=np.zeros_like(calls.entry))
    called = opening[kernels.marked(calls.after[calls.entry])[opening]] if complete else opening
    entries = _entries(kernels, sides, called[~kernels.marked(recorded.waiting)[called]], klass)
    entries = together(entries, moved_entries(kernels, sides, calls, entries))
    back, inside = brought_back(kernels, sides), within_visits(kernels, sides)
    calls = calls.only(~_explained(kernels, calls, back, inside))
    back = across(kernels, back.waiting, back.waited_for, back.since_ns)
    between = within_items(kernels, apart)
    if complete:
        between = between.only(kernels.marked(calls.waiter)[between.waiting] | kernels.in_graph[between.waiting])
    between, all_calls = _since_calls(kernels, between, calls), calls
    handed, used = handed_over(kernels, sides, calls, together(recorded, entries))
    handed = handed.only(~kernels.marked(between.waiting)[handed.waiting])
    calls = calls.only(~used)
    calls = _without(kernels, sides, calls, between.waiting[~kernels.marked(handed.waiting)[between.waiting]])
    between = together(between, handed)
    calls = on_their_own_streams(kernels, sides, calls)
    at_once, rest = _exits_by_calls(kernels, sides, calls, all_calls, launched[~left], klass)
    if not complete:
        others = launched[~left & ~kernels.marked(at_once.waited_for)[launched]]
        at_once = together(at_once, _exits(kernels, sides, others, klass))
    known = together(recorded, entries, back, inside, between, at_once)
    open_ = launched[~left & ~kernels.marked(at_once.waited_for)[launched]]
    # Nothing on the chain needs copies to the host, or reduced gradients: no place of a call shows that it is for them.
    needed = open_[~(kernels.to_host | sides.computes)[open_]]
    later, explained = awaited_later(kernels, rest, needed, klass, known)
    if not complete:
        open_ = open_[~kernels.marked(later.waited_for)[open_]]
        later = together(later, before_the_optimizer(kernels, sides, open_, klass))
    replayed = _launched(sides, apart & kernels.in_graph & sides.closes)
    graphs = _in_graphs(kernels, sides, replayed, klass)
    further = passed_on(kernels, together(entries, handed, _of(recorded, apart)), together(between, at_once, later))
    inferred = together(
        *(entries, back, inside, between, at_once, later, graphs, further, in_communicator_order(kernels))
    )
    inferred = _with_starts(kernels, sides, recorded, inferred, done)
    untold = _untold(kernels, apart, rest, explained, together(recorded, inferred))
    return _edges(kernels, sides, recorded, inferred, untold)


def of_all_replays(ranks: Sequence[RankKernels], edges: Sequence[KernelEdges]) -> list[KernelEdges]:
    """The edges of several ranks, with what any of them shows of a CUDA graph: all that run a program replay one graph.

    Who comes first hides what its communications wait for, and who comes last shows it. What did not hold on each of
    the ranks is no edge of the graph.
    """
    result = list(edges)
    programs = [each.program + each.in_graph.tobytes() if each.in_graph.any() else b"" for each in ranks]
    for program in {program for program in programs if program and programs.count(program) > 1}:
        places = [place for place, each in enumerate(programs) if each == program]
        inside = ranks[places[0]].in_graph
        parts = [np.stack([result[place].waiting, result[place].waited_for]) for place in places]
        seen = np.unique(np.concatenate([part[:, inside[part[0]]] for part in parts], axis=1), axis=1)
        holds = np.logical_and.reduce([held(ranks[place], *seen) for place in places])
        for place in places:
            mine, kernels = result[place], ranks[place]
            recorded = mine.evidence == RECORDED
            stays = ~recorded & ~inside[mine.waiting]
            waiting, source = (
                np.concatenate([own[stays], theirs[holds]])
                for own, theirs in zip((mine.waiting, mine.waited_for), seen, strict=True)
            )
            result[place] = _edges(
                kernels,
                side_streams(kernels),
                Waits(mine.waiting[recorded], mine.waited_for[recorded], kernels.launch_ns[mine.waited_for[recorded]]),
                Waits(waiting, source, kernels.launch_ns[source]),
                mine.untold,
            )
    return result


def as_launched(kernels: RankKernels, edges: KernelEdges) -> RankKernels:
    """The same, where what nothing on the GPU held up was launched when it started: so late may its host have been."""
    ready = np.full(len(kernels), np.iinfo(np.int64).min)
    ready[1:] = np.where(np.diff(kernels.stream) == 0, kernels.end_ns[:-1], ready[1:])
    np.maximum.at(ready, edges.waiting, kernels.end_ns[edges.waited_for])
    late = (kernels.launch_ns == MISSING) & (ready < kernels.start_ns - AT_ONCE_NS)
    return replace(kernels, launch_ns=np.where(late, kernels.start_ns, kernels.launch_ns))


def _classes(kernels: RankKernels, beside: Int64, sides: SideStreams) -> Int64:
    """Per kernel the number of its class; ``NONE`` where it is on a stream of the chain.

    What the autograd engine and the main thread both launch is a separate class on each.
    """
    klass = np.full(len(kernels), NONE, np.int64)
    name = np.where(kernels.communicates, 0, kernels.name)
    role = sides.closes.astype(np.int64) + at_ends_of_steps(kernels, sides)
    columns: tuple[Int64, ...] = (kernels.what, name, role, kernels.thread, kernels.stream)
    klass[beside] = number_groups(*(column[beside] for column in columns))[1]
    return klass


def _with_starts(
    kernels: RankKernels, sides: SideStreams, recorded: Waits, inferred: Waits, done: Int64 | None
) -> Waits:
    """The inferred waits that held, and those that starts of kernels show where launches or waits are not known."""
    apart = sides.apart
    if lacks_launches(kernels, sides):
        unseen = kernels.launch_ns == MISSING
        ways = [None] if done is None else [None, done]
        inferred = together(inferred, *(by_starts(kernels, apart, unseen, each) for each in ways))
    inferred = inferred.only(held(kernels, inferred.waiting, inferred.waited_for))
    return together(inferred, by_starts(kernels, apart, start_late(kernels, together(recorded, inferred))))


def _exits_by_calls(
    kernels: RankKernels, sides: SideStreams, calls: WaitCalls, all_calls: WaitCalls, closing: Int64, klass: Int64
) -> tuple[Waits, WaitCalls]:
    """Waits for what runs beside the chain that the order of calls shows, and the calls that it does not explain."""
    at_once, used = awaited_at_once(kernels, sides, calls, klass)
    if sides.several:
        of_item = kernels.microbatch[at_once.waited_for] != MISSING
        # Calls hand the chain over between its streams, too, so how many there are shows nothing.
        at_once = together(at_once.only(~of_item), _since_calls(kernels, at_once.only(of_item), all_calls))
        return at_once, calls.only(~used)
    calls, open_ = calls.only(~used), closing[~kernels.marked(at_once.waited_for)[closing]]
    # Inside a step nothing needs its reduced gradients.
    useless = sides.computes & ~at_ends_of_steps(kernels, sides)
    in_turn, used = awaited_in_turn(kernels, sides, calls, open_, at_once.waited_for, useless)
    return together(at_once, in_turn), calls.only(~used)


def _explained(kernels: RankKernels, calls: WaitCalls, back: Waits, inside: Waits) -> Bool:
    """Mark the calls ahead of copies from the host that wait for those to it, and those within visits."""
    found = ~calls.entry & kernels.marked(inside.waited_for)[calls.before] & kernels.marked(inside.waiting)[calls.after]
    ahead = np.flatnonzero(~calls.entry & kernels.marked(back.waiting)[calls.after])
    # Of several the last: those before it are of the stream that was current.
    ahead = ahead[np.lexsort((-ahead, calls.after[ahead]))]
    _, first = np.unique(calls.after[ahead], return_index=True)
    found[ahead[first]] = True
    return found


def _entries(kernels: RankKernels, sides: SideStreams, members: Int64, klass: Int64) -> Waits:
    """Communications wait for the work that was launched before them, or for that of their micro-batch's step."""
    parts = [NO_WAITS]
    for some, of_item in _by_neighbourhood(kernels, sides, members):
        mine = some[~kernels.marked(klass[together(*parts).waiting])[klass[some]]]
        before, _ = neighbours(kernels, sides, mine, of_item)
        waits = across(kernels, mine, before, kernels.launch_ns[mine])
        parts.append(held_in_class(kernels, waits, klass[waits.waiting]))
    return together(*parts)


def _exits(kernels: RankKernels, sides: SideStreams, members: Int64, klass: Int64) -> Waits:
    """The work that is launched after communications waits for them, or that of their micro-batch's step."""
    parts = [NO_WAITS]
    for some, of_item in _by_neighbourhood(kernels, sides, members):
        mine = some[~kernels.marked(klass[together(*parts).waited_for])[klass[some]]]
        _, after = neighbours(kernels, sides, mine, of_item)
        waits = across(kernels, after, mine, kernels.launch_ns[mine])
        if of_item:
            # Its step is handed over when its next work is launched; until then the stream is another step's.
            waits = replace(waits, since_ns=kernels.launch_ns[waits.waiting])
        parts.append(held_in_class(kernels, waits, klass[waits.waited_for]))
    return together(*parts)


def _by_neighbourhood(kernels: RankKernels, sides: SideStreams, members: Int64) -> list[tuple[Int64, bool]]:
    """Which communications to try, and whether with the work of their micro-batch's step, in turn.

    Where steps run into each other, what is launched next to a step's communication is most likely another step's.
    """
    inside = kernels.microbatch[members] != MISSING
    if not sides.several:
        return [(members, False), (members[inside], True)]
    return [(members[inside], True), (members, False), (members[~inside], True)]


def _in_graphs(kernels: RankKernels, sides: SideStreams, members: Int64, klass: Int64) -> Waits:
    """Waits inside CUDA graphs, which make no calls."""
    if not len(members):
        return NO_WAITS
    entries, exits = _entries(kernels, sides, members, klass), _exits(kernels, sides, members, klass)
    others = members[~kernels.marked(entries.waiting)[members]]
    return together(entries, exits, in_graphs(kernels, sides.apart, others))


def _since_calls(kernels: RankKernels, waits: Waits, calls: WaitCalls) -> Waits:
    """The same waits, each since the last call of its thread before its launch, if there is one since the source's."""
    since = waits.since_ns.copy()
    for thread in distinct(kernels.thread[waits.waiting]).tolist():
        mine = np.flatnonzero(kernels.thread[waits.waiting] == thread)
        called = calls.start_ns[(calls.thread == thread) & ~calls.entry]
        last = lookup(called, np.searchsorted(called, kernels.launch_ns[waits.waiting[mine]]) - 1)
        since[mine] = np.maximum(since[mine], last)
    return replace(waits, since_ns=since)


def _without(kernels: RankKernels, sides: SideStreams, calls: WaitCalls, explained: Int64) -> WaitCalls:
    """The calls that are not explained by a wait between streams that compute: one of each kernel that so waited.

    That is the last one that is not the first behind a communication, if there is one.
    """
    behind = np.zeros(len(calls.waiter), dtype=bool)
    behind[first_behind(calls, right_behind(sides, calls))] = True
    mine = np.flatnonzero(kernels.marked(explained)[calls.waiter] & ~calls.entry)
    mine = mine[np.lexsort((-mine, behind[mine]))]
    _, chosen = np.unique(calls.waiter[mine], return_index=True)
    kept = np.ones(len(calls.waiter), dtype=bool)
    kept[mine[chosen]] = False
    return calls.only(kept)


def _of(waits: Waits, apart: Bool) -> Waits:
    """The waits of communications."""
    return waits.only(apart[waits.waiting] & ~apart[waits.waited_for])


def _untold(kernels: RankKernels, apart: Bool, rest: WaitCalls, explained: Int64, known: Waits) -> Int64:
    """The kernels that waited by the calls that are left, of which it is not known for which communication.

    A kernel of several messages has a call for each.
    """
    left = np.ones(len(rest.waiter), dtype=bool)
    left[explained] = False
    left &= ~rest.entry & (rest.waiter >= 0)
    left &= ~kernels.marked(known.waiting[apart[known.waited_for]])[rest.waiter]
    return rest.waiter[left]


def _launched(sides: SideStreams, which: Bool) -> Int64:
    """Some kernels in the order of launch."""
    return sides.order[which[sides.order]]


def _edges(kernels: RankKernels, sides: SideStreams, recorded: Waits, inferred: Waits, untold: Int64) -> KernelEdges:
    evidence = np.repeat([RECORDED, INFERRED], [len(recorded.waiting), len(inferred.waiting)])
    both = together(recorded, inferred)
    order = np.lexsort((evidence, both.waited_for, both.waiting))
    waiting, waited_for, evidence = both.waiting[order], both.waited_for[order], evidence[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(waiting) != 0) | (np.diff(waited_for) != 0)
    waiting, waited_for, evidence = waiting[new], waited_for[new], evidence[new]
    closing = _launched(sides, sides.closes)
    unknown = closing[~kernels.marked(waited_for)[closing]]
    return KernelEdges(waiting, waited_for, evidence.astype(np.int64), unknown, untold)
