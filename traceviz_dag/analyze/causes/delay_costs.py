"""Delay costs: every wait for another rank, charged to what made that rank late, through chains to the first cause.

After Böhme et al., *Identifying the Root Causes of Wait States in Large-Scale Parallel Applications*, ICPP 2010
(Scalasca). A rank that waits in a communication waits for the last to arrive. Since the two last met, that one took
longer: what it did longer than the one that waits is its excess, kind by kind, and the wait is shared over the excess
in proportion. What of the excess was itself waiting is passed on to whom that wait was for. So the costs of a step add
up to its waits, to the nanosecond.

A rank's time is that which its own arrival rests on: from the arrival back along the latest of all that each piece
waited for, on the rank itself. A communication on another stream, for which nothing waits, delays nobody.

A cost is rank time that is lost by waiting. It is no saving: where others would have waited anyway, fixing the cause
gains less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.causes.graph import NO_EDGE
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times, latest_launch, suffixes
from traceviz_dag.analyze.matching.communications import nullable
from traceviz_dag.arrays import NONE, Bool, Int64, ranges
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import DELAY_COSTS

_ORDER = EVIDENCES.index("order")


class Delay(StrEnum):
    """What a late rank did longer than the one that waited for it."""

    COMPUTATION = "computation"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    HOST = "host"
    """Its host launched late, waited, or began its step late."""
    UNEXPLAINED = "unexplained"
    """Its kernels started later than all that they are known to wait for."""
    UNKNOWN = "unknown"
    """Nothing shows who was waited for: the communication lacks members."""


DELAYS = tuple(Delay)
_COMPUTATION, _COMMUNICATION, _MEMORY, _HOST, _UNEXPLAINED, _UNKNOWN = range(len(DELAYS))
_WAIT = _UNKNOWN
"""In sums of a rank's time, the column of its waits."""


@dataclass(frozen=True, slots=True)
class DelayCosts:
    """The costs of a step.

    Attributes:
        direct_ns, passed_on_ns: places of ranks × ``DELAYS``: costs of waits for the rank, and of waits for others that
            it made wait. The last place is for nobody known.
        waited_ns: per place of a rank, how long it waited for others.
        waits: per place, how many waits were for the rank.
    """

    direct_ns: Int64
    passed_on_ns: Int64
    waited_ns: Int64
    waits: Int64


def delay_costs(step: StepWork, times: Sequence[Times]) -> DelayCosts:
    """Charge the waits of a step, as it was measured or with other times."""
    return charged(_stations(step, times), len(step.ranks))


def charged(stations: Stations, ranks: int) -> DelayCosts:
    """Charge the waits at all stations of a number of ranks."""
    excess, held = _excess(stations)
    known = stations.late != NONE
    own = np.where(known, stations.wait_ns, 0)
    passed = np.zeros(len(own), np.int64)
    charge = _Charge(np.cumsum(excess, axis=1, out=excess), held)
    charge.hand_on(np.flatnonzero(known), own, passed)
    # What a station passes on is complete once all above it have been looked at.
    order = np.argsort(-stations.level, kind="stable")
    bounds = np.flatnonzero(np.diff(stations.level[order], prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        here = order[low:high]
        charge.hand_on(here[known[here] & (passed[here] > 0)], passed, passed)
    direct, passed_on = np.zeros((2, ranks + 1, len(DELAYS)), np.int64)
    for target, amount in ((direct, own), (passed_on, passed)):
        np.add.at(target, stations.late_rank[known], charge.shares(np.flatnonzero(known), amount))
    passed_on[-1, _UNKNOWN] = passed[~known].sum()
    waited, waits = np.zeros(ranks, np.int64), np.zeros(ranks + 1, np.int64)
    np.add.at(waited, stations.rank, own)
    np.add.at(waits, stations.late_rank[known], own[known] > 0)
    return DelayCosts(direct, passed_on, waited, waits)


@dataclass(frozen=True, slots=True)
class _Held:
    """What late ranks themselves waited for since they last met who waits for them; sorted by ``of``.

    Attributes:
        of: place of the station at which a rank is waited for. station: where that rank waited. length_ns: how long.
    """

    of: Int64
    station: Int64
    length_ns: Int64


@dataclass(frozen=True, slots=True)
class _Charge:
    """How waits are shared over an excess.

    Attributes:
        until: per station and kind, the excess of all kinds up to it.
        held: what of it was waiting.
    """

    until: Int64
    held: _Held

    def shares(self, stations: Int64, amount: Int64) -> Int64:
        """Per given station and kind, what is charged of its amount; nothing for waits, which are handed on."""
        until = self.until[stations]
        reached = _part(amount[stations, None], until, until[:, -1:])
        shares = np.diff(reached, axis=1, prepend=0)
        shares[:, _WAIT] = 0
        return shares

    def hand_on(self, stations: Int64, amount: Int64, passed: Int64) -> None:
        """Add what of the amounts of some stations was itself waiting to the stations where that was."""
        total = self.until[stations, -1]
        waited = np.where(
            total > 0, amount[stations] - _part(amount[stations], self.until[stations, _WAIT - 1], total), 0
        )
        stations, waited = stations[waited > 0], waited[waited > 0]
        low, high = (np.searchsorted(self.held.of, stations, side=side) for side in ("left", "right"))
        pairs, count = ranges(low, high), high - low
        until = np.cumsum(self.held.length_ns[pairs])
        ends = np.cumsum(count)
        before = np.repeat(np.append(0, until)[ends - count], count)
        whole = np.repeat(np.append(0, until)[ends], count) - before
        reached = _part(np.repeat(waited, count), until - before, whole)
        first = np.zeros(len(pairs), dtype=bool)
        first[(ends - count)[count > 0]] = True
        share = np.where(first, reached, np.diff(reached, prepend=0))
        np.add.at(passed, self.held.station[pairs], share)


_WHOLE = 1 << 31
"""Below it the product of two numbers is exact."""


def _part(amount: Int64, part: Int64, total: Int64) -> Int64:
    """``amount * part // total``, exact for parts of a total of any size; 0 of no total."""
    total = np.maximum(total, 1)
    times, rest = np.divmod(amount, total)
    exact = rest if total.max(initial=0) < _WHOLE else rest.astype(object)
    return np.asarray(times * part + (exact * part // total).astype(np.int64), dtype=np.int64)


def _excess(stations: Stations) -> tuple[Int64, _Held]:
    """What each late rank did longer since it and who waits for it last met, by kind; and its waits since."""
    mine, theirs = stations.before.copy(), stations.late_before.copy()
    held: list[tuple[Int64, Int64, Int64]] = []

    def hold(waiting: Int64, until: Int64 | int = 0) -> None:
        """Note the waits of late ranks at the stations that they have been followed back to."""
        length = stations.wait_ns[theirs[waiting]] - until
        there = length > 0
        held.append((waiting[there], theirs[waiting][there], length[there]))

    met = np.zeros(len(mine), dtype=bool)
    open_ = np.flatnonzero(stations.late != NONE)
    while len(open_ := open_[(mine[open_] != NONE) & (theirs[open_] != NONE)]):
        same = stations.last_met(mine[open_], theirs[open_]) != MISSING
        met[open_[same]] = True
        open_ = open_[~same]
        later = stations.level[mine[open_]] >= stations.level[theirs[open_]]
        mine[open_[later]] = stations.before[mine[open_[later]]]
        hold(open_[~later])
        theirs[open_[~later]] = stations.before[theirs[open_[~later]]]
    sums = stations.late_sums - stations.own_sums
    since = stations.last_met(mine[met], theirs[met])
    sums[met] += stations.own_sums[mine[met]] - stations.own_sums[theirs[met]]
    # At the meeting each had waited since it arrived.
    sums[met, _WAIT] += stations.arrival_ns[theirs[met]] - stations.arrival_ns[mine[met]]
    hold(np.flatnonzero(met), since - stations.arrival_ns[theirs[met]])
    open_ = np.flatnonzero((stations.late != NONE) & ~met)
    while len(open_ := open_[theirs[open_] != NONE]):
        hold(open_)
        theirs[open_] = stations.before[theirs[open_]]
    of, station, length = (np.concatenate(each) for each in zip(*held, strict=True))
    order = np.argsort(of, kind="stable")
    return np.maximum(sums, 0, out=sums), _Held(of[order], station[order], length[order])


@dataclass(frozen=True, slots=True)
class Stations:
    """Kernels that wait for other ranks; one entry each.

    Attributes:
        rank: place of its rank. level: of its latest meeting in the graph, which all that it rests on is below.
        arrival_ns, wait_ns: when its rank arrives, and until the last one has.
        before: the station before it that its arrival rests on; ``NONE`` for none.
        meetings: numbers of its meetings, a column for each, ``NONE`` where it has fewer. ready_ns: per meeting, when
            the last has arrived.
        late: node of the arrival that it waits for; ``NONE`` where its last meeting lacks members.
        late_rank: place of the rank of that. late_before: the station that this arrival rests on.
        late_sums, own_sums: of the time by kind of that rank until then, and of the own rank until it arrives.
    """

    rank: Int64
    level: Int64
    arrival_ns: Int64
    wait_ns: Int64
    before: Int64
    meetings: Int64
    ready_ns: Int64
    late: Int64
    late_rank: Int64
    late_before: Int64
    late_sums: Int64
    own_sums: Int64

    def last_met(self, one: Int64, other: Int64) -> Int64:
        """When the last came to the last meeting of which both of two stations are part; ``MISSING`` for none."""
        result = np.full(len(one), MISSING)
        for mine in self.meetings.T:
            for theirs in self.meetings.T:
                same = (mine[one] == theirs[other]) & (mine[one] != NONE)
                ready = self.ready_ns[mine[one[same]]]
                result[same] = np.where(result[same] == MISSING, ready, np.maximum(result[same], ready))
        return result


def _stations(step: StepWork, times: Sequence[Times]) -> Stations:
    durations, lags = step.weights(times)
    ends = step.graph.ends(durations, lags)
    binding = step.graph.binding(ends, lags)
    # Of thousands of ranks they are large, and what follows is largest.
    del durations, lags
    parent = parents(step.waited_for, binding)
    return stations_of(
        Replayed(step.graph.level, ends, step.waited_for, binding, parent),
        lambda nodes: np.asarray(np.searchsorted(step.base, nodes, side="right") - 1, dtype=np.int64),
        *_joined(step),
        _pieces(step, times, ends, binding, parent),
        int(step.base[-1]),
        step.members.partial,
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """A graph that was replayed; per node, but ``waited_for``, which is per edge as given.

    Attributes:
        level, ends, waited_for, binding: as of ``Graph``. parent: what it rests on; ``NONE`` for nothing.
    """

    level: Int64
    ends: Int64
    waited_for: Int64
    binding: Int64
    parent: Int64


def parents(waited_for: Int64, binding: Int64) -> Int64:
    """Per node, the one that it started by; ``NONE`` for nothing."""
    return np.where(binding == NO_EDGE, NONE, waited_for[np.where(binding == NO_EDGE, 0, binding)])


def stations_of(
    replayed: Replayed,
    place_of: Callable[[Int64], Int64],
    kernel: Int64,
    arrival: Int64,
    meetings: Int64,
    pieces: Int64,
    first_meeting: int,
    partial: Bool | None = None,
) -> Stations:
    """The stations of a graph.

    Args:
        place_of: nodes → places of their ranks. kernel, arrival: nodes of what meets others, and of its arrival.
        meetings: as of ``Stations``; the node of the first is ``first_meeting``. partial: as of ``Members``.
        pieces: per node, what its rank did since what it rests on, by kind; filled up here.
    """
    ends = replayed.ends
    meeting_of = replayed.waited_for[replayed.binding[kernel]]
    ready = ends[meeting_of]
    replayed.parent[kernel] = arrival
    pieces[kernel, _COMMUNICATION] = ends[kernel] - ready
    pieces[kernel, _WAIT] = ready - ends[arrival]
    last = np.full(len(ends), NONE)
    last[kernel] = np.arange(len(kernel))
    _sum_up(replayed.parent, replayed.level, pieces, last)
    late = replayed.waited_for[replayed.binding[meeting_of]]
    if partial is not None:
        late = np.where(partial[meeting_of - first_meeting], NONE, late)
    return Stations(
        place_of(kernel),
        replayed.level[meeting_of],
        ends[arrival],
        ready - ends[arrival],
        last[arrival],
        meetings,
        ends[first_meeting:],
        late,
        place_of(late),
        last[late],
        pieces[late],
        pieces[arrival],
    )


def _joined(step: StepWork) -> tuple[Int64, Int64, Int64]:
    """Nodes of the kernels that meet others and of their arrivals, and the numbers of their meetings."""
    kernels, arrivals, entries = [], [], []
    joined = 0
    for place, work in enumerate(step.works):
        kernels.append(step.base[place] + work.segment[work.joined])
        arrivals.append(step.base[place] + work.arrivals + np.arange(len(work.joined)))
        mine = step.members.of(place)
        of = joined + np.searchsorted(work.joined, step.members.kernel[mine])
        entries.append(np.stack([of, step.members.meeting[mine]]))
        joined += len(work.joined)
    of, meeting = np.concatenate([np.empty((2, 0), np.int64), *entries], axis=1)
    order = np.argsort(of, kind="stable")
    of, meeting = of[order], meeting[order]
    nth = np.arange(len(of)) - np.searchsorted(of, of)
    numbers = np.full((joined, int(nth.max(initial=0)) + 1), NONE)
    numbers[of, nth] = meeting
    return np.concatenate(kernels), np.concatenate(arrivals), numbers


def _sum_up(parent: Int64, level: Int64, sums: Int64, last: Int64) -> None:
    """Add to each node's piece and station those up to it on its rank: sums of pieces, and the last station there."""
    order = np.argsort(level, kind="stable")
    bounds = np.flatnonzero(np.diff(level[order], prepend=-1, append=level.max(initial=0) + 1))
    for low, high in pairwise(bounds.tolist()):
        nodes = order[low:high]
        nodes = nodes[parent[nodes] != NONE]
        sums[nodes] += sums[parent[nodes]]
        last[nodes] = np.where(last[nodes] == NONE, last[parent[nodes]], last[nodes])


def _pieces(step: StepWork, times: Sequence[Times], ends: Int64, binding: Int64, parent: Int64) -> Int64:
    """Per node of a rank, its time since what it waited for, by kind; of kernels that meet others, nothing."""
    result = np.zeros((step.graph.nodes, len(DELAYS)), np.int64)
    edge = np.where(binding == NO_EDGE, 0, binding)
    launched = (binding != NO_EDGE) & (step.kind[edge] == EdgeKind.LAUNCH) & (step.evidence[edge] == _ORDER)
    whole = ends - np.where(parent == NONE, 0, ends[parent])
    for place, (work, mine) in enumerate(zip(step.works, times, strict=True)):
        low = int(step.base[place])
        segments, arrivals = slice(low, low + work.arrivals), slice(low + work.arrivals, low + work.sections)
        runs = _runs(work, mine, launched[segments])
        result[segments, : _MEMORY + 1] = runs
        for nodes, left in ((segments, whole[segments] - runs.sum(axis=1)), (arrivals, whole[arrivals])):
            result[nodes, _HOST] = np.where(launched[nodes], left, 0)
            result[nodes, _UNEXPLAINED] = np.where(launched[nodes], 0, left)
        hosts = slice(low + work.sections, int(step.base[place + 1]))
        result[hosts, _HOST] = whole[hosts]
        result[low + work.segment[work.joined]] = 0
    return result


def _runs(work: RankWork, times: Times, launched: Bool) -> Int64:
    """Per segment, how long its kernels ran since what it waited for: computation, communication, memory.

    A segment that its host held up waited for the launch of one of its kernels; those before do not count.
    """
    kernels = work.kernels
    first = work.first.copy()
    if launched.any():
        behind = suffixes(work, times)
        reach = np.where(times.launch_ns == MISSING, MISSING, times.launch_ns + behind)
        at = np.flatnonzero(reach == latest_launch(work, times, behind)[work.segment])[::-1]
        latest = first.copy()
        latest[work.segment[at]] = at
        first = np.where(launched, latest, first)
    counted = np.where(np.arange(len(kernels)) >= first[work.segment], times.duration_ns, 0)
    result = np.zeros((work.segments, _MEMORY + 1), np.int64)
    kind = np.where(kernels.computes, _COMPUTATION, np.where(kernels.communicates, _COMMUNICATION, _MEMORY))
    np.add.at(result, (work.segment, kind), counted)
    return result


def delay_costs_table(step: StepWork, times: Sequence[Times], stages: Sequence[int], number: int) -> pa.Table:
    """The costs of a step: the table ``delay_costs``.

    Args:
        stages: stage of each rank, ``MISSING`` where unknown. number: of the ProfilerStep; ``MISSING`` for none.
    """
    return costs_table(delay_costs(step, times), step.ranks, stages, number)


def costs_table(costs: DelayCosts, ranks: Sequence[int], stages: Sequence[int], number: int) -> pa.Table:
    """Costs as the table ``delay_costs``.

    Args:
        ranks: their numbers. stages, number: as ``delay_costs_table`` takes them.
    """
    place, cause = np.nonzero(costs.direct_ns + costs.passed_on_ns)
    direct, passed_on = costs.direct_ns[place, cause], costs.passed_on_ns[place, cause]
    return DELAY_COSTS.from_columns(
        {
            "step": nullable(np.full(len(place), number)),
            "rank": nullable(np.array([*ranks, MISSING], np.int64)[place]),
            "stage": nullable(np.array([*stages, MISSING], np.int64)[place]),
            "cause": [DELAYS[code].value for code in cause.tolist()],
            "cost_ns": direct + passed_on,
            "direct_ns": direct,
            "passed_on_ns": passed_on,
        }
    )
