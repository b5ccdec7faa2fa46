"""Which kernel waited for which on another stream of the same rank: as recorded, else inferred class by class.

A communication runs on a stream of its own. It waits for the work that was launched before it, and work waits for it:
at once where the caller waits (a synchronous collective), later where it is asynchronous. What a trace does not record
is inferred for a *class* of communications (same operation, dimension, group and phase), and only if it holds in at
least 99.5 % of the class: no kernel may have started before what it is said to have waited for had ended. The others
have no such edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.causes.rank_kernels import RankKernels
from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.read.events import MISSING

HOLDS_IN = 0.995
"""Share of a class in which an inferred edge must hold."""

SLACK_NS = 1_000
"""By how much a kernel may seem to start before what it waited for has ended."""

_AT_ONCE_NS = 20_000
"""A kernel that starts so soon after a communication, having waited for nothing else, waited for it."""

_NEXT_FEW = 4
"""So many kernels may run beside an asynchronous communication before the one that waits for it."""

_FEWEST = 4
"""Communications of a class that tell how many kernels run beside each."""

RECORDED, INFERRED = range(2)
"""Evidence of an edge between streams."""


@dataclass(frozen=True, slots=True)
class KernelEdges:
    """Edges between streams of one rank; one entry an edge.

    Attributes:
        waiting, waited_for: places in ``RankKernels``.
        evidence: RECORDED or INFERRED.
        unknown: places of communications of which nothing tells what waited for them.
    """

    waiting: Int64
    waited_for: Int64
    evidence: Int64
    unknown: Int64


def kernel_edges(kernels: RankKernels, waiting: Int64, waited_for: Int64) -> KernelEdges:
    """All edges between streams of a rank.

    Args:
        waiting, waited_for: the recorded ones, as places in ``kernels``.
    """
    parts = [(waiting, waited_for, np.full(len(waiting), RECORDED))]
    entered, left = np.isin(np.arange(len(kernels)), waiting), np.isin(np.arange(len(kernels)), waited_for)
    order = _by_launch(kernels)
    apart = _on_streams_of_their_own(kernels)
    communications = order[apart[order]]
    # What the autograd engine and the main thread launch alike is a class of its own on each.
    number = number_groups(kernels.what[communications], kernels.thread[communications])[1]
    known = left.copy()
    for members in _groups(communications, number):
        before, after = _neighbours(apart, order, members)
        for edges in (_entries(kernels, members, before), _exits(kernels, apart, members, after)):
            waits, source = edges
            new = ~np.where(apart[waits], entered[waits], left[source]) & _held(kernels, waits, source)
            parts.append((waits[new], source[new], np.full(int(new.sum()), INFERRED)))
            known[source] = True
    waits, source = _within_items(kernels, apart)
    new = ~entered[waits] | ~left[source]
    parts.append((waits[new], source[new], np.full(int(new.sum()), INFERRED)))
    known[source] = True
    waiting, waited_for, evidence = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return KernelEdges(waiting, waited_for, evidence, communications[~known[communications]])


def _by_launch(kernels: RankKernels) -> Int64:
    """Kernels whose launch is known, in the order of launch: a thread that launches waits while another does."""
    places = np.flatnonzero(kernels.launch_ns != MISSING)
    return places[np.lexsort((kernels.start_ns[places], kernels.launch_ns[places]))]


def _groups(places: Int64, number: npt.NDArray[np.intp]) -> Iterator[Int64]:
    order = np.argsort(number, kind="stable")
    bounds = np.flatnonzero(np.diff(number[order], prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield places[order[low:high]]


def _within_items(kernels: RankKernels, apart: Bool) -> tuple[Int64, Int64]:
    """Edges between streams that compute: a micro-batch's step is a chain, whatever streams its pieces run on.

    Combined forward and backward steps run on two streams. Where the launches of one micro-batch's step change from one
    to the other, the next kernel waits for the last, if that holds for all such changes between kernels of their kinds.
    """
    inside = np.flatnonzero((kernels.launch_ns != MISSING) & (kernels.microbatch != MISSING) & ~apart)
    keys = (kernels.phase, kernels.chunk, kernels.microbatch)
    order = inside[np.lexsort((kernels.start_ns[inside], kernels.launch_ns[inside], *(key[inside] for key in keys)))]
    source, waiting = order[:-1], order[1:]
    changes = kernels.stream[source] != kernels.stream[waiting]
    for key in keys:
        changes &= key[source] == key[waiting]
    source, waiting = source[changes], waiting[changes]
    if not len(source):
        return waiting, source
    kind = np.where(kernels.communicates, kernels.what, kernels.signature)
    number = number_groups(kind[source], kind[waiting], kernels.communicates[source])[1]
    held = _held(kernels, waiting, source)
    kept = held & (np.bincount(number, weights=held) >= HOLDS_IN * np.bincount(number))[number]
    return waiting[kept], source[kept]


def _on_streams_of_their_own(kernels: RankKernels) -> Bool:
    """Mark communications on streams that compute nothing; others are in their stream's order as all work is."""
    computing = np.zeros(int(kernels.stream.max(initial=-1)) + 1, dtype=bool)
    computing[kernels.stream[kernels.computes]] = True
    return np.asarray(kernels.communicates & ~computing[kernels.stream])


def _neighbours(apart: Bool, order: Int64, members: Int64) -> tuple[Int64, Int64]:
    """The work that was launched last before each communication, and first after it; ``NONE`` where none."""
    place = np.empty(len(apart), np.int64)
    place[order] = np.arange(len(order))
    works = ~apart[order]
    index = np.arange(len(order))
    last = np.maximum.accumulate(np.where(works, index, NONE))[place[members]]
    following = np.minimum.accumulate(np.where(works, index, len(order))[::-1])[::-1][place[members]]
    following = np.where(following == len(order), NONE, following)
    return lookup(order, last), lookup(order, following)


def _entries(kernels: RankKernels, members: Int64, before: Int64) -> tuple[Int64, Int64]:
    """Each communication of a class waits for the work before it, where this holds."""
    waiting, source = _across(kernels, members, before)
    return (waiting, source) if _holds(kernels, waiting, source) else (waiting[:0], source[:0])


def _exits(kernels: RankKernels, apart: Bool, members: Int64, after: Int64) -> tuple[Int64, Int64]:
    """What waits for each communication of a class: the work after it, else what was seen to wait for some of them."""
    source, waiting = _across(kernels, members, after)
    if _holds(kernels, waiting, source):
        return waiting, source
    return _awaited_later(kernels, apart, source, waiting)


def _across(kernels: RankKernels, members: Int64, others: Int64) -> tuple[Int64, Int64]:
    there = (others >= 0) & (kernels.stream[members] != kernels.stream[others])
    return members[there], others[there]


def _holds(kernels: RankKernels, waiting: Int64, source: Int64) -> bool:
    if not len(waiting):
        return True
    return bool(_held(kernels, waiting, source).mean() >= HOLDS_IN)


def _held(kernels: RankKernels, waiting: Int64, source: Int64) -> Bool:
    """Whether each kernel started only after what it is said to have waited for had ended."""
    return np.asarray(kernels.start_ns[waiting] >= kernels.end_ns[source] - SLACK_NS)


def _awaited_later(kernels: RankKernels, apart: Bool, members: Int64, after: Int64) -> tuple[Int64, Int64]:
    """The kernels that waited for communications of a class that nobody waited for at once.

    A stream is a queue: once a kernel has started before the end of a communication, neither it nor any before it
    waited. Where a class is followed by the same kernels each time, the first of them that never started before the end
    is the one that waits, if it was seen to wait for some and is among the next few. Else the kernels that visibly
    waited for some of the class are, and for the others those of the same name.
    """
    waits, sources = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for stream in np.unique(kernels.stream[after]).tolist():
        chosen = kernels.stream[after] == stream
        queue = np.flatnonzero((kernels.stream == stream) & ~apart)
        queue = queue[np.argsort(kernels.start_ns[queue], kind="stable")]
        place = np.full(len(kernels), NONE)
        place[queue] = np.arange(len(queue))
        # Kinds of followers: what runs beside the communication says which of its uses this is.
        _, number = number_groups(kernels.signature[after[chosen]])
        for mine in _groups(np.flatnonzero(chosen), number):
            first = np.searchsorted(kernels.start_ns[queue], kernels.end_ns[members[mine]] - SLACK_NS)
            begin = place[after[mine]]
            steps = int(np.quantile(np.maximum(first - begin, 0), HOLDS_IN, method="higher"))
            target = begin + steps
            there = (target < len(queue)) & (target >= first)
            always = _seen_waiting(kernels, queue, target[there], members[mine][there])
            if steps <= _NEXT_FEW and len(mine) >= _FEWEST and always.any():
                waits.append(queue[target[there]])
                sources.append(members[mine][there])
            else:
                found = _named_alike(kernels, queue, first, members[mine])
                waits.append(found[0])
                sources.append(found[1])
    return np.concatenate(waits), np.concatenate(sources)


def _named_alike(kernels: RankKernels, queue: Int64, first: Int64, members: Int64) -> tuple[Int64, Int64]:
    """Kernels that visibly waited for some communications, and for the others the next of the name of most of these.

    Args:
        queue: kernels of a stream. first: per communication, the first of them that did not start before its end.
    """
    there = first < len(queue)
    members, first = members[there], first[there]
    seen = _seen_waiting(kernels, queue, first, members)
    if not seen.any():
        return members[:0], members[:0]
    names, counts = np.unique(kernels.signature[queue[first[seen]]], return_counts=True)
    usual = np.flatnonzero(kernels.signature[queue] == names[np.argmax(counts)])
    later = np.searchsorted(usual, first)
    known = seen | (later < len(usual))
    chosen = np.where(seen, first, usual[np.minimum(later, len(usual) - 1)])
    return queue[chosen[known]], members[known]


def _seen_waiting(kernels: RankKernels, queue: Int64, first: Int64, members: Int64) -> Bool:
    candidate = queue[first]
    start, end = kernels.start_ns[candidate], kernels.end_ns[members]
    previous = np.where(first > 0, kernels.end_ns[queue[first - 1]], np.iinfo(np.int64).min)
    launch = kernels.launch_ns[candidate]
    ready = np.maximum(previous, np.where(launch == MISSING, start, launch + kernels.latency_ns))
    return (start - end <= _AT_ONCE_NS) & (start - ready > 2 * SLACK_NS)
