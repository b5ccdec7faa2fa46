"""Hypotheses on which kernel waited for which on another stream, each held against a class of communications.

A class is what the same operation, dimension, group and phase do on one thread. A hypothesis holds for a class, or is
dropped: in at least 99.5 % of the class no kernel may have started before what it is said to have waited for had ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.causes.rank_kernels import PHASES, RankKernels
from traceviz_dag.analyze.causes.side_streams import SideStreams
from traceviz_dag.analyze.matching.operations import OPERATIONS, Operation
from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup, number_groups, places_of_each, ranges
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Phase

HOLDS_IN = 0.995
"""Share of a class in which an inferred edge must hold."""

SLACK_NS = 1_000
"""By how much a kernel may seem to start before what it waited for has ended."""

AT_ONCE_NS = 5_000
"""A kernel that starts so soon after another one's end, having waited for nothing else, waited for it."""

LATE_NS = 20_000
"""A kernel that starts so long after all that it is known to wait for waited for something else, too."""

MESSAGES = np.array([OPERATIONS.index(one) for one in (Operation.SEND, Operation.RECEIVE, Operation.SEND_RECEIVE)])
"""Operations of pipeline neighbours; a kernel may be several of them."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits between streams; one entry a wait.

    Attributes:
        waiting, waited_for: places in ``RankKernels``.
        since_ns: from when on the stream of the kernel that waits was to wait.
    """

    waiting: Int64
    waited_for: Int64
    since_ns: Int64

    def only(self, which: Int64 | Bool) -> Waits:
        """Some of them."""
        return Waits(self.waiting[which], self.waited_for[which], self.since_ns[which])


def together(*parts: Waits) -> Waits:
    """All waits of several parts."""
    columns = zip(*((part.waiting, part.waited_for, part.since_ns) for part in parts), strict=True)
    return Waits(*map(np.concatenate, columns))


NO_WAITS = Waits(*(np.empty(0, np.int64) for _ in range(3)))


def held(kernels: RankKernels, waiting: Int64, source: Int64) -> Bool:
    """Whether each kernel started only after what it is said to have waited for had ended."""
    return np.asarray(kernels.start_ns[waiting] >= kernels.end_ns[source] - SLACK_NS)


def held_in_class(kernels: RankKernels, waits: Waits, *keys: Int64) -> Waits:
    """The waits that held, of the classes that do.

    Args:
        keys: columns that show the class of each wait.
    """
    if not len(waits.waiting):
        return waits
    number = number_groups(*keys)[1]
    holds = held(kernels, waits.waiting, waits.waited_for)
    share = np.bincount(number, weights=holds) / np.bincount(number)
    return waits.only(holds & (share >= HOLDS_IN)[number])


def neighbours(kernels: RankKernels, sides: SideStreams, members: Int64, of_item: bool) -> tuple[Int64, Int64]:
    """The work that was launched last before each communication, and first after it; ``NONE`` where none.

    Args:
        of_item: of the same micro-batch's step; combined forward and backward steps run side by side.
    """
    order = sides.order
    item = np.zeros(len(order), np.int64)
    if of_item:
        keys = (kernels.phase[order], kernels.chunk[order], kernels.microbatch[order])
        item = number_groups(*keys)[1]
    by_item = np.argsort(item, kind="stable")
    order, item = order[by_item], item[by_item]
    place = np.full(len(kernels), NONE, np.int64)
    place[order] = np.arange(len(order))
    works, index = ~sides.apart[order], np.arange(len(order))
    last = np.maximum.accumulate(np.where(works, index, NONE))
    following = np.minimum.accumulate(np.where(works, index, len(order))[::-1])[::-1]
    last, following = last[place[members]], following[place[members]]
    following = np.where(following == len(order), NONE, following)
    mine = item[place[members]]
    return (
        lookup(order, np.where(lookup(item, last) == mine, last, NONE)),
        lookup(order, np.where(lookup(item, following) == mine, following, NONE)),
    )


def launched_last(kernels: RankKernels, sides: SideStreams, stream: Int64, before_ns: Int64) -> Int64:
    """The work that was launched last on a stream before an instant, per stream and instant; ``NONE`` where none."""
    result = np.full(len(stream), NONE, np.int64)
    for one in distinct(stream).tolist():
        mine, own = np.flatnonzero(stream == one), sides.work[kernels.stream[sides.work] == one]
        result[mine] = lookup(own, np.searchsorted(kernels.launch_ns[own], before_ns[mine]) - 1)
    return result


def across(kernels: RankKernels, waiting: Int64, source: Int64, since_ns: Int64) -> Waits:
    """Waits of kernels for others, where both are there and on different streams."""
    there = (waiting >= 0) & (source >= 0)
    there &= lookup(kernels.stream, waiting) != lookup(kernels.stream, source)
    return Waits(waiting[there], source[there], since_ns[there])


def within_items(kernels: RankKernels, apart: Bool) -> Waits:
    """Waits between streams that compute: a micro-batch's step is a chain, whatever streams its pieces run on.

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
    kind = np.where(kernels.communicates, kernels.what, kernels.signature)
    waits = Waits(waiting, source, kernels.launch_ns[source])
    return held_in_class(kernels, waits, kind[source], kind[waiting], kernels.communicates[source].astype(np.int64))


def within_visits(kernels: RankKernels, sides: SideStreams) -> Waits:
    """Waits of communications between two kernels of a visit to another stream: from it, and back to it."""
    order = sides.order[np.argsort(kernels.thread[sides.order], kind="stable")]
    at = np.flatnonzero(sides.inside[order])
    parts = [
        across(kernels, order[at], order[at - 1], kernels.launch_ns[order[at]]),
        across(kernels, order[at + 1], order[at], kernels.launch_ns[order[at]]),
    ]
    return together(*(held_in_class(kernels, each, kernels.what[order[at]]) for each in parts))


def brought_back(kernels: RankKernels, sides: SideStreams) -> Waits:
    """Copies from the host wait for the copies to it that they bring back.

    A backward pass needs first what was saved last, so the visits of a micro-batch's backward step take the copies of
    its forward step from the last to the first. That counts if all are taken, and if the sizes agree where known.
    """
    keys = (kernels.chunk, kernels.microbatch)
    moves = (kernels.to_host | kernels.from_host) & (sides.visit != MISSING) & (kernels.microbatch != MISSING)
    mine = sides.order[moves[sides.order]]
    waiting: list[Int64] = []
    source: list[Int64] = []
    item = number_groups(*(key[mine] for key in keys))[1]
    for copies in (mine[places] for places in places_of_each(item)):
        down, up = copies[kernels.to_host[copies]], copies[kernels.from_host[copies]]
        if not len(up) or len(up) != len(down):
            continue
        begins = np.flatnonzero(np.diff(sides.visit[up], prepend=MISSING))
        lengths = np.diff(np.append(begins, len(up)))
        # A visit takes the last copies that are left, in their own order.
        left = len(up) - begins
        visit = np.repeat(np.arange(len(begins)), lengths)
        sizes_up = kernels.sizes[up][np.lexsort((kernels.sizes[up], visit))]
        sizes_down = kernels.sizes[down][::-1][np.lexsort((kernels.sizes[down][::-1], visit))]
        if np.array_equal(sizes_up, sizes_down):
            waiting.append(up[begins])
            source.append(down[left - 1])
    parts = [Waits(*pair, kernels.launch_ns[pair[0]]) for pair in zip(waiting, source, strict=True)]
    waits = together(NO_WAITS, *parts)
    return held_in_class(kernels, waits, kernels.stream[waits.waiting])


def in_communicator_order(kernels: RankKernels) -> Waits:
    """Waits of each communication for the one before of the same process group, where they run on different streams.

    NCCL runs the operations of a communicator in the order of the calls, whatever their streams. Messages of a group
    may each have a communicator of their own, so nothing is said of them.
    """
    collective = kernels.communicates & ~among(kernels.operation, MESSAGES)
    mine = np.flatnonzero(collective & (kernels.group >= 0) & (kernels.launch_ns != MISSING))
    order = mine[np.lexsort((kernels.start_ns[mine], kernels.launch_ns[mine], kernels.group[mine]))]
    source, waiting = order[:-1], order[1:]
    changes = (kernels.group[source] == kernels.group[waiting]) & (kernels.stream[source] != kernels.stream[waiting])
    waits = Waits(waiting[changes], source[changes], kernels.launch_ns[source[changes]])
    return held_in_class(kernels, waits, kernels.group[waits.waiting])


def in_graphs(kernels: RankKernels, apart: Bool, members: Int64) -> Waits:
    """Waits of communications inside CUDA graphs, where no call shows it: for the work at whose end they start.

    It counts where a class starts at once after work of one kind, always.
    """
    queue = np.flatnonzero(~apart & kernels.in_graph)
    queue = queue[np.argsort(kernels.end_ns[queue], kind="stable")]
    if not len(queue) or not len(members):
        return NO_WAITS
    last = np.searchsorted(kernels.end_ns[queue], kernels.start_ns[members] + SLACK_NS, side="right") - 1
    source = lookup(queue, last)
    waits = across(kernels, members, source, kernels.launch_ns[members])
    soon = kernels.start_ns[waits.waiting] - kernels.end_ns[waits.waited_for] <= AT_ONCE_NS
    number = number_groups(kernels.what[waits.waiting], kernels.signature[waits.waited_for])[1]
    if not len(number):
        return NO_WAITS
    share = np.bincount(number, weights=soon) / np.bincount(number)
    return waits.only((share >= HOLDS_IN)[number])


def lacks_launches(kernels: RankKernels, sides: SideStreams) -> bool:
    """Whether of most communications on a stream of their own no launch is known, so no wait.

    Each stream counts: where the calls that launch are not on record, the operators around them stand for the launches
    of collectives, and nothing does for those of messages.
    """
    apart = kernels.communicates & sides.apart
    lost = np.bincount(kernels.stream[apart], weights=kernels.launch_ns[apart] == MISSING)
    return bool((2 * lost > np.bincount(kernels.stream[apart])).any())


def done_before(kernels: RankKernels) -> Int64:
    """Per kernel and stream, how many kernels of the stream had ended when it started."""
    streams = range(int(kernels.stream.max(initial=-1)) + 1)
    ends = (kernels.end_ns[kernels.stream == stream] for stream in streams)
    counts = [np.searchsorted(end, kernels.start_ns + SLACK_NS, side="right") for end in ends]
    return np.stack(counts, axis=1).astype(np.int64) if counts else np.empty((0, 0), np.int64)


def start_late(kernels: RankKernels, known: Waits) -> Bool:
    """Mark kernels that start long after they were launched, their stream was free and what they wait for had ended."""
    ready = np.maximum(_free(kernels), kernels.launch_ns)
    np.maximum.at(ready, known.waiting, kernels.end_ns[known.waited_for])
    return np.asarray((kernels.launch_ns != MISSING) & (kernels.start_ns - ready > LATE_NS))


def _free(kernels: RankKernels) -> Int64:
    """Per kernel, when the one before it on its stream ended."""
    ended = np.append(0, kernels.end_ns[:-1])[: len(kernels)]
    return np.where(np.diff(kernels.stream, prepend=-1) == 0, ended, np.iinfo(np.int64).min)


def by_starts(kernels: RankKernels, apart: Bool, which: Bool, done: Int64 | None = None) -> Waits:
    """Waits between communications and work that no launch or call shows, known from when they start.

    What starts at once after what ended last before it on another stream, and whose own stream was free before, waited
    for it.

    Args:
        which: the kernels whose waits are wanted.
        done: ``done_before``, the least of all ranks that run the same: then all waits that may be, seen or not.
    """
    start, end = kernels.start_ns, kernels.end_ns
    free, launch = _free(kernels), kernels.launch_ns
    before, parts = done_before(kernels) if done is None else done, [NO_WAITS]
    for stream in distinct(kernels.stream[kernels.communicates | kernels.computes]).tolist():
        own = np.flatnonzero(kernels.stream == stream)
        # Communications wait for work and work for them: two streams that compute hand nothing over here. What a stream
        # that computes waits for may pass on to the next communication, which its launch shows to be later.
        passes_on = apart & (launch != MISSING)
        waiting = np.flatnonzero(which & ((apart != apart[own[0]]) | passes_on))
        waits = across(kernels, waiting, lookup(own, before[waiting, stream] - 1), start[waiting])
        waits = waits.only(start[waits.waited_for] < start[waits.waiting])
        # An event can be waited for once it is recorded.
        later = (launch[waits.waiting] != MISSING) & (launch[waits.waited_for] > launch[waits.waiting])
        waits = waits.only(~later)
        ended = end[waits.waited_for]
        seen = (start[waits.waiting] - ended <= AT_ONCE_NS) & (ended > free[waits.waiting])
        parts.append(waits.only(seen) if done is None else waits)
    return together(*parts)


def before_the_optimizer(kernels: RankKernels, sides: SideStreams, members: Int64, klass: Int64) -> Waits:
    """The optimizer's first kernel waits for the data-parallel collectives of the backward pass, those of gradients.

    Args:
        members: communications of which nothing else shows what waited for them.
        klass: of each kernel.
    """
    if Dimension.DP.value not in kernels.dimensions:
        return NO_WAITS
    optimizes = kernels.computes & (kernels.phase == PHASES.index(Phase.OPTIMIZER))
    queue = sides.order[optimizes[sides.order]]
    of_gradients = kernels.phase[members] == PHASES.index(Phase.BACKWARD)
    of_gradients &= kernels.dimension[members] == kernels.dimensions.index(Dimension.DP.value)
    mine = members[of_gradients]
    place = np.searchsorted(kernels.launch_ns[queue], kernels.launch_ns[mine], side="right")
    first = lookup(queue, np.where(place < len(queue), place, NONE))
    waits = across(kernels, first, mine, lookup(kernels.launch_ns, first))
    return held_in_class(kernels, waits, klass[waits.waited_for])


def passed_on(kernels: RankKernels, entries: Waits, others: Waits) -> Waits:
    """Waits that are passed on: an event that is recorded on a stream covers what the stream's next work waits for.

    Args:
        entries: waits of communications for work; the event is recorded on the stream of this work when they begin.
        others: waits of work.
    """
    if not len(entries.waiting) or not len(others.waiting):
        return NO_WAITS
    stream = kernels.stream[entries.waited_for]
    order = np.lexsort((others.since_ns, kernels.stream[others.waiting]))
    others = others.only(order)
    of_stream = kernels.stream[others.waiting]
    parts = [NO_WAITS]
    for name in distinct(stream).tolist():
        mine, open_ = entries.only(stream == name), others.only(of_stream == name)
        # The waits that are open at the record: called before it, and what waits is launched after it.
        high = np.searchsorted(open_.since_ns, mine.since_ns)
        launch = np.maximum.accumulate(kernels.launch_ns[open_.waiting])
        low = np.minimum(np.searchsorted(launch, mine.since_ns), high)
        which = np.repeat(np.arange(len(low)), high - low)
        source = open_.waited_for[ranges(low, high)]
        parts.append(across(kernels, mine.waiting[which], source, mine.since_ns[which]))
    found = together(*parts)
    return held_in_class(kernels, found, kernels.what[found.waiting], kernels.what[found.waited_for])
