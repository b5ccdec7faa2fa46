"""What each rank's items took in one step: micro-batches' forward and backward steps, and the exchanges between them.

An *item* is the work of one forward or backward step on the rank's main stream; where steps of both kinds run into each
other, both together are one. It takes what passes from the end of what came before it (another item, an exchange, the
begin of the step) to its own end, so that launches and collectives inside it count and waiting for a message does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.expert_exchanges import exchanged_in
from traceviz_dag.analyze.causes.graph import NEVER_LATE
from traceviz_dag.analyze.causes.rank_kernels import PHASES
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.causes.weight_gradients import weight_gradients
from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension

Key = frozenset[tuple[int, int, int]]
"""The steps that are an item: (kind, chunk, micro-batch) of each; the kind is 0 for forward and 1 for backward; of an
order with gradients of weights apart 2 for backward without these, and 3 for these."""

_REPLICAS = (Dimension.DP, Dimension.EDP)
_ORDER = EVIDENCES.index("order")
_EARLY_NS = 100_000
"""An item may seem to start so much before the end of a message that it waited for: clocks of streams differ."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a rank.

    Attributes:
        start_ns, end_ns: in the replay. own_ns: what it takes once nothing holds it up.
        beside: whether gradients or parameters were exchanged beside it or right before, which holds it up.
        rest: share of it that layers do not run: embedding, output layer, loss. again: share that is recomputed.
        weights: share that gives gradients of weights; rest_weights: that of it which layers do not run.
        experts: share in which its computation waits for communication of experts. alone: share of its computation
            outside layers with experts: after the last such wait of forward steps, before the first of backward ones.
        lead_ns: of it, what passes before its first kernel starts.
    """

    parts: Key
    start_ns: int
    end_ns: int
    own_ns: int
    beside: bool = False
    rest: float = 0.0
    again: float = 0.0
    weights: float = 0.0
    rest_weights: float = 0.0
    experts: float = 0.0
    alone: float = 0.0
    lead_ns: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """One rank's items, in the order in which it ran them.

    Attributes:
        begin_ns: when its step begins in the replay.
        exchange_lag_ns: what usually passes from an item's end to the exchange that follows; transfer_ns: how long the
            exchange then takes on average, once both ends are there; transfers: the same with the neighbour at each
            place.
        slack_ns: by how much the last item may be later without a longer step; messages to other stages left aside.
        last: nodes of the last item.
    """

    items: tuple[Item, ...]
    begin_ns: int
    exchange_lag_ns: int
    transfer_ns: int
    slack_ns: int
    last: tuple[int, ...] = ()
    transfers: Mapping[int, int] = field(default_factory=dict)


def direction(work: RankWork) -> Int64:
    """Per kernel, 1 for backward (recompute included), 0 for forward, ``MISSING`` for everything else."""
    table = np.array([{"forward": 0, "backward": 1, "recompute": 1}.get(phase, MISSING) for phase in PHASES])
    return np.asarray(table[work.kernels.phase], dtype=np.int64)


def measured_ranks(
    step: StepWork, times: Sequence[Times], by_layers: Sequence[Float64] | None = None
) -> list[MeasuredRank]:
    """Measure the items of all ranks; a rank without any has none.

    Args:
        by_layers: per rank and kernel, the share of it that layers run; None where that is not known.
    """
    ends = step.replay(times)
    slack = latest_ends(step, times, ends) - ends
    shares = by_layers or [np.ones(len(work.kernels)) for work in step.works]
    transfers = _transfers(step, times)
    return [
        replace(_rank(step, place, mine, ends, slack, shares[place]), transfers=transfers[place])
        for place, mine in enumerate(times)
    ]


def _transfers(step: StepWork, times: Sequence[Times]) -> list[dict[int, int]]:
    """Per rank, ``MeasuredRank.transfers``."""
    members, message = step.members, message_members(step)
    both = np.zeros(int(members.meeting.max(initial=-1)) + 1, np.int64)
    np.add.at(both, members.meeting[message], members.rank[message])
    result = []
    for place, mine in enumerate(times):
        of_rank = members.of(place)
        of_rank = of_rank[message[of_rank]]
        peers, number = np.unique(both[members.meeting[of_rank]] - place, return_inverse=True)
        total = np.bincount(number, weights=mine.duration_ns[members.kernel[of_rank]], minlength=len(peers))
        means = np.rint(total / np.maximum(np.bincount(number, minlength=len(peers)), 1)).astype(np.int64)
        result.append(dict(zip(peers.tolist(), means.tolist(), strict=True)))
    return result


def message_members(step: StepWork) -> Bool:
    """Mark the members of meetings that are messages between stages."""
    found = np.zeros(len(step.members.rank), dtype=bool)
    for place, work in enumerate(step.works):
        mine = step.members.of(place)
        found[mine] = _between_stages(work)[step.members.kernel[mine]]
    return found & (np.bincount(step.members.meeting, minlength=1)[step.members.meeting] == 2)


def messages_beside_work(work: RankWork) -> bool:
    """Whether forward or backward steps' computation started while a message to or from another stage ran.

    Where exchanges do not overlap, the stream waits for sends and receives alike.
    """
    kernels, messages = work.kernels, _between_stages(work)
    started = np.sort(kernels.start_ns[_main_stream(work, direction(work))])
    low, high = (np.searchsorted(started, each[messages]) for each in (kernels.start_ns, kernels.end_ns))
    return bool((high > low).any())


def _between_stages(work: RankWork) -> Bool:
    kernels = work.kernels
    if Dimension.PP.value not in kernels.dimensions:
        return np.zeros(len(kernels), dtype=bool)
    return np.asarray(kernels.dimension == kernels.dimensions.index(Dimension.PP.value))


def latest_ends(step: StepWork, times: Sequence[Times], ends: Int64) -> Int64:
    """Per node, when it may end at the latest without a longer step, if no message to another stage held any up.

    Args:
        times: of what follows it. ends: of the step as it is.
    """
    durations, lags = step.weights(times)
    lags[np.isin(step.waiting, step.base[-1] + step.members.meeting[message_members(step)])] = NEVER_LATE
    latest = np.full(step.graph.nodes, np.iinfo(np.int64).max // 4)
    for place, work in enumerate(step.works):
        latest[step.base[place] + work.end] = ends[step.base[place] + work.sections] + step.step_ns(ends)
    return step.graph.latest(latest, durations, lags)


def _rank(step: StepWork, place: int, times: Times, ends: Int64, slack: Int64, by_layers: Float64) -> MeasuredRank:
    work, low = step.works[place], int(step.base[place])
    begin = int(ends[low + work.sections])
    messages = np.flatnonzero(_between_stages(work)[work.joined])
    kernel = work.joined[messages]
    arrived, carried = ends[low + work.arrivals + messages], ends[low + work.segment[kernel]]
    parts, start, end, beside, segments = _items(work, times, ends[low : low + work.nodes], begin)
    exchanges = Exchanges(arrived, carried, times.duration_ns[kernel])
    of_last = int(slack[low + segments].min(initial=np.iinfo(np.int64).max))
    found = measured_rank(parts, start, end, beside, exchanges, begin, of_last)
    shares = _shares(work, parts, by_layers)
    items = (
        replace(one, **share, lead_ns=max(one.own_ns - running, 0))
        for one, (share, running) in zip(found.items, shares, strict=True)
    )
    return replace(found, items=tuple(items), last=tuple((low + segments).tolist()))


def _shares(work: RankWork, parts: Sequence[Key], by_layers: Float64) -> list[tuple[dict[str, Any], int]]:
    """Of each item the shares that ``Item`` has, and how long its kernels run, ns.

    A kernel takes what passes on the main stream from the end of the kernel before it in its step to its own end, so
    that communication which it waits for counts as its own.
    """
    if not parts:
        return []
    kernels, steps = work.kernels, direction(work)
    mine = np.flatnonzero(_main_stream(work, steps))
    mine = mine[np.argsort(kernels.start_ns[mine], kind="stable")]
    first, number = number_groups(kernels.chunk[mine], kernels.microbatch[mine], steps[mine])
    passed = np.diff(kernels.end_ns[mine], prepend=0)
    begins = np.diff(number, prepend=-1) != 0
    passed = np.where(begins, kernels.duration_ns[mine], np.maximum(passed, 0))
    before = kernels.start_ns[mine] - np.maximum(passed - kernels.duration_ns[mine], 0)
    experts = exchanged_in(kernels, before, kernels.start_ns[mine]) / np.maximum(passed, 1)
    recomputed = kernels.phase[mine] == PHASES.index("recompute")
    rest, weights = 1 - by_layers[mine], weight_gradients(kernels)[mine]
    shares = {"rest": rest, "again": recomputed, "weights": weights, "rest_weights": rest * weights, "experts": experts}
    shares["alone"] = (1 - experts) * _outside(experts > 0, number, steps[mine])
    totals = np.stack(
        [
            np.bincount(number, weights=passed * share, minlength=len(first))
            for share in (np.ones(len(mine)), *shares.values())
        ]
    )
    of_keys = (steps, kernels.chunk, kernels.microbatch)
    keys = zip(*(each[mine[first]].tolist() for each in of_keys), strict=True)
    place = {(step, max(chunk, 0), batch): at for at, (step, chunk, batch) in enumerate(keys)}
    at = [place[step] for each in parts for step in each]
    begins = np.cumsum([0, *map(len, parts)])[:-1]
    whole, *sums = np.add.reduceat(totals[:, at], begins, axis=1)
    whole = np.maximum(whole, 1.0)
    of_items = (dict(zip(shares, each, strict=True)) for each in (np.stack(sums) / whole).T.tolist())
    return list(zip(of_items, np.rint(whole).astype(np.int64).tolist(), strict=True))


def _outside(waits: Bool, number: Int64, steps: Int64) -> Bool:
    """Mark kernels of forward steps from the last one that waits on, and those of backward steps before the first.

    Args:
        number: of each kernel's step. steps: as ``direction``.
    """
    place = np.arange(len(number))
    last, first = np.full(number.max(initial=0) + 1, -1), np.full(number.max(initial=0) + 1, len(number))
    np.maximum.at(last, number[waits], place[waits])
    np.minimum.at(first, number[waits], place[waits])
    return np.asarray(np.where(steps == 0, place >= last[number], place < first[number]))


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Messages between stages at one rank: when it was ready for each, when each ended, and what each took."""

    arrived_ns: Int64
    ended_ns: Int64
    transfer_ns: Int64


def measured_rank(
    parts: Sequence[Key], start: Int64, end: Int64, beside: Bool, exchanges: Exchanges, begin: int, slack: int
) -> MeasuredRank:
    """One rank's items from their steps, starts and ends, in the order of their starts.

    Args:
        beside: as ``Item.beside``, of each. begin: when its step begins. slack: as ``MeasuredRank.slack_ns``.
    """
    if not len(parts):
        return MeasuredRank((), begin, 0, 0, slack)
    arrived, carried = exchanges.arrived_ns, exchanges.ended_ns
    before = np.maximum.accumulate(np.concatenate([[begin], end]))[:-1]
    own = end - np.maximum(before, np.minimum(start, _latest(carried, start + _EARLY_NS, begin)))
    last = np.searchsorted(start, arrived, side="right") - 1
    previous = np.where(last >= 0, end[np.maximum(last, 0)], begin)
    lag = np.maximum(arrived - np.maximum(previous, _latest(carried, arrived, begin)), 0)
    return MeasuredRank(
        tuple(map(Item, parts, start.tolist(), end.tolist(), own.tolist(), beside.tolist())),
        begin,
        int(lower_medians(np.zeros(len(lag), np.int64), lag, 1)[0]) if len(lag) else 0,
        round(float(exchanges.transfer_ns.mean())) if len(lag) else 0,
        slack,
    )


def _latest(ends: Int64, by: Int64, absent: int) -> Int64:
    """The last of some ends that is not after each time; ``absent`` where none is."""
    ordered = np.concatenate([[absent], np.sort(ends)])
    return np.asarray(ordered[np.searchsorted(ordered[1:], by, side="right")], dtype=np.int64)


def _items(work: RankWork, times: Times, ends: Int64, begin: int) -> tuple[list[Key], Int64, Int64, Bool, Int64]:
    """The items of one rank: their steps, starts and ends, ``Item.beside``, and the segments of the last one."""
    kernels = work.kernels
    steps = direction(work)
    on_main = _main_stream(work, steps)
    nothing = np.empty(0, np.int64)
    if not on_main.any():
        return [], nothing, nothing, on_main[:0], nothing
    segment = np.unique(work.segment[on_main])
    first = work.first[segment]
    start = _starts(work, times, ends, begin)[segment]
    keys = (kernels.chunk[first], kernels.microbatch[first], steps[first])
    one, number = number_groups(*keys)
    low, high = np.full(len(one), np.iinfo(np.int64).max), np.full(len(one), np.iinfo(np.int64).min)
    np.minimum.at(low, number, start)
    np.maximum.at(high, number, ends[segment])
    order = np.argsort(low, kind="stable")
    # Steps of both directions that overlap on one stream run into each other.
    reached = np.maximum.accumulate(high[order])
    group = np.cumsum(np.concatenate([[0], (low[order][1:] >= reached[:-1]).astype(np.int64)]))
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    parts: list[set[tuple[bool, int, int]]] = [set() for _ in begins]
    for where, item in zip(order.tolist(), group.tolist(), strict=True):
        chunk, microbatch, step = (int(key[one[where]]) for key in keys)
        parts[item].add((bool(step), max(chunk, 0), microbatch))
    of_last = np.isin(number, order[group == group[-1]])
    return (
        [frozenset(each) for each in parts],
        np.minimum.reduceat(low[order], begins),
        np.maximum.reduceat(high[order], begins),
        _beside_replicas(work, segment, number, order, begins),
        segment[of_last],
    )


def _main_stream(work: RankWork, steps: Int64) -> Bool:
    """Mark the computation of micro-batches' steps on the stream that runs most of it."""
    kernels = work.kernels
    computes = kernels.computes & (steps != MISSING) & (kernels.microbatch != MISSING)
    busy = np.bincount(kernels.stream[computes], weights=kernels.duration_ns[computes], minlength=1)
    return np.asarray(computes & (kernels.stream == int(busy.argmax())))


def _beside_replicas(work: RankWork, segment: Int64, number: Int64, order: Int64, begins: Int64) -> Bool:
    """Mark items beside which, or right before which, data-parallel replicas exchanged gradients or parameters.

    Before, since a host that waits for the whole GPU with its messages also waits for that exchange.

    Args:
        segment: of all items; number: per segment, the step that it is of; order, begins: which steps are which item.
    """
    kernels = work.kernels
    codes = [place for place, word in enumerate(kernels.dimensions) if word in _REPLICAS]
    exchange = kernels.communicates & np.isin(kernels.dimension, codes)
    starts, ends = np.sort(kernels.start_ns[exchange]), np.sort(kernels.end_ns[exchange])
    last = np.append(work.first[1:], len(kernels)) - 1
    ended = np.full(len(order), np.iinfo(np.int64).min)
    np.maximum.at(ended, number, kernels.end_ns[last[segment]])
    ended = np.maximum.accumulate(np.maximum.reduceat(ended[order], begins))
    before = np.concatenate([[work.start_ns], ended[:-1]])
    return np.asarray(np.searchsorted(starts, ended) > np.searchsorted(ends, before, side="right"))


def _starts(work: RankWork, times: Times, ends: Int64, begin: int) -> Int64:
    """When the first kernel of each segment starts; of kernels that wait for other ranks, no later than that."""
    result = np.full(work.segments, begin)
    mine = np.flatnonzero(work.waiting < work.segments)
    waiting = work.waiting[mine]
    launched = (work.kind[mine] == EdgeKind.LAUNCH) & (work.evidence[mine] == _ORDER)
    launch = times.launch_ns[work.first[waiting]]
    lag = np.where(launched & (launch != MISSING), launch, 0)
    held = ~launched | (launch != MISSING)
    np.maximum.at(result, waiting[held], ends[work.waited_for[mine[held]]] + lag[held])
    return np.asarray(result + times.lag_ns[work.first], dtype=np.int64)
