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

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.causes.graph import NO_EDGE
from traceviz_dag.analyze.causes.rank_work import EVIDENCES, EdgeKind, RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times, latest_launch, suffixes
from traceviz_dag.analyze.matching.communications import nullable
from traceviz_dag.arrays import NONE, Bool, Int64
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
    stations = _stations(step, times)
    ranks = len(step.ranks)
    # Numbers of Python: entry by entry they are several times faster than those of an array.
    direct, passed_on = ([[0] * len(DELAYS) for _ in range(ranks + 1)] for _ in range(2))
    waited, waits = [0] * ranks, [0] * (ranks + 1)
    passed = [0] * len(stations.rank)
    for one in np.argsort(-np.array(stations.level), kind="stable").tolist():
        own = stations.wait_ns[one] if stations.late[one] != NONE else 0
        if own + passed[one] <= 0:
            continue
        if stations.late[one] == NONE:
            passed_on[-1][_UNKNOWN] += passed[one]
            continue
        late = stations.late_rank[one]
        waited[stations.rank[one]] += own
        waits[late] += own > 0
        excess, held = stations.excess(one)
        total, lengths = sum(excess), list(held.values())
        for amount, target in ((own, direct[late]), (passed[one], passed_on[late])):
            if not amount:
                continue
            shares = _split(amount, excess, total)
            for cause, share in enumerate(shares[:_WAIT]):
                target[cause] += share
            for station, share in zip(held, _split(shares[_WAIT], lengths, sum(lengths)), strict=True):
                passed[station] += share
    return DelayCosts(*(np.array(each, np.int64) for each in (direct, passed_on, waited, waits)))


def _split(amount: int, parts: Sequence[int], total: int) -> list[int]:
    """An amount in proportion to some parts; whole numbers that add up to it."""
    result, before, taken = [], 0, 0
    for part in parts:
        before += part
        reached = amount * before // total if total else 0
        result.append(reached - taken)
        taken = reached
    return result


@dataclass(frozen=True, slots=True)
class _Stations:
    """Kernels that wait for other ranks; one entry each.

    Attributes:
        rank: place of its rank. level: of its latest meeting in the graph, which all that it rests on is below.
        arrival_ns, wait_ns: when its rank arrives, and until the last one has.
        before: the station before it that its arrival rests on; ``NONE`` for none.
        meetings: numbers of its meetings. ready_ns: per meeting, when the last has arrived.
        late: node of the arrival that it waits for; ``NONE`` where its last meeting lacks members.
        late_rank: place of the rank of that. late_before: the station that this arrival rests on.
        late_sums, own_sums: of the time by kind of that rank until then, and of the own rank until it arrives.
    """

    rank: Sequence[int]
    level: Sequence[int]
    arrival_ns: Sequence[int]
    wait_ns: Sequence[int]
    before: Sequence[int]
    meetings: Sequence[frozenset[int]]
    ready_ns: Int64
    late: Sequence[int]
    late_rank: Sequence[int]
    late_before: Sequence[int]
    late_sums: Int64
    own_sums: Int64

    def excess(self, one: int) -> tuple[list[int], dict[int, int]]:
        """What the late rank did longer since the two last met, by kind; and its waits since, by station."""
        mine, theirs = self.before[one], self.late_before[one]
        held: dict[int, int] = {}
        while NONE not in (mine, theirs) and not self.meetings[mine] & self.meetings[theirs]:
            if self.level[mine] >= self.level[theirs]:
                mine = self.before[mine]
            else:
                held[theirs] = self.wait_ns[theirs]
                theirs = self.before[theirs]
        sums = [late - own for late, own in zip(self.late_sums[one].tolist(), self.own_sums[one].tolist(), strict=True)]
        if NONE not in (mine, theirs):
            met = max(int(self.ready_ns[meeting]) for meeting in self.meetings[mine] & self.meetings[theirs])
            both = zip(sums, self.own_sums[theirs].tolist(), self.own_sums[mine].tolist(), strict=True)
            sums = [each - late + own for each, late, own in both]
            # At the meeting each had waited since it arrived.
            sums[_WAIT] += self.arrival_ns[theirs] - self.arrival_ns[mine]
            held[theirs] = self.arrival_ns[theirs] + self.wait_ns[theirs] - met
        else:
            while theirs != NONE:
                held[theirs] = self.wait_ns[theirs]
                theirs = self.before[theirs]
        return [max(each, 0) for each in sums], {station: length for station, length in held.items() if length > 0}


def _stations(step: StepWork, times: Sequence[Times]) -> _Stations:
    durations, lags = step.weights(times)
    ends = step.graph.ends(durations, lags)
    binding = step.graph.binding(ends, lags)
    level = step.graph.level
    kernel, arrival, meetings = _joined(step)
    meeting_of = step.waited_for[binding[kernel]]
    ready = ends[meeting_of]
    parent = np.where(binding == NO_EDGE, NONE, step.waited_for[np.where(binding == NO_EDGE, 0, binding)])
    parent[kernel] = arrival
    pieces = _pieces(step, times, ends, binding, parent)
    pieces[kernel, _COMMUNICATION] = ends[kernel] - ready
    pieces[kernel, _WAIT] = ready - ends[arrival]
    station = np.full(step.graph.nodes, NONE)
    station[kernel] = np.arange(len(kernel))
    sums, last = _along(parent, level, pieces, station)
    late = step.waited_for[binding[meeting_of]]
    if step.members.partial is not None:
        late = np.where(step.members.partial[meeting_of - step.base[-1]], NONE, late)
    return _Stations(
        (np.searchsorted(step.base, kernel, side="right") - 1).tolist(),
        level[meeting_of].tolist(),
        ends[arrival].tolist(),
        (ready - ends[arrival]).tolist(),
        last[arrival].tolist(),
        meetings,
        ends[step.base[-1] :],
        late.tolist(),
        (np.searchsorted(step.base, late, side="right") - 1).tolist(),
        last[late].tolist(),
        sums[late],
        sums[arrival],
    )


def _joined(step: StepWork) -> tuple[Int64, Int64, list[frozenset[int]]]:
    """Nodes of the kernels that meet others and of their arrivals, and the numbers of their meetings."""
    kernels, arrivals = [], []
    numbers: list[frozenset[int]] = []
    for place, work in enumerate(step.works):
        kernels.append(step.base[place] + work.segment[work.joined])
        arrivals.append(step.base[place] + work.arrivals + np.arange(len(work.joined)))
        mine = step.members.of(place)
        of = np.searchsorted(work.joined, step.members.kernel[mine])
        found: list[list[int]] = [[] for _ in work.joined]
        for number, meeting in zip(of.tolist(), step.members.meeting[mine].tolist(), strict=True):
            found[number].append(meeting)
        numbers += map(frozenset, found)
    return np.concatenate(kernels), np.concatenate(arrivals), numbers


def _along(parent: Int64, level: Int64, pieces: Int64, station: Int64) -> tuple[Int64, Int64]:
    """Per node, the sums of the pieces up to it on its rank, and the last station there, itself included."""
    sums, last = pieces.copy(), station.copy()
    order = np.argsort(level, kind="stable")
    bounds = np.flatnonzero(np.diff(level[order], prepend=-1, append=level.max(initial=0) + 1))
    for low, high in pairwise(bounds.tolist()):
        nodes = order[low:high]
        nodes = nodes[parent[nodes] != NONE]
        sums[nodes] += sums[parent[nodes]]
        last[nodes] = np.where(last[nodes] == NONE, last[parent[nodes]], last[nodes])
    return sums, last


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
    costs = delay_costs(step, times)
    place, cause = np.nonzero(costs.direct_ns + costs.passed_on_ns)
    direct, passed_on = costs.direct_ns[place, cause], costs.passed_on_ns[place, cause]
    return DELAY_COSTS.from_columns(
        {
            "step": nullable(np.full(len(place), number)),
            "rank": nullable(np.array([*step.ranks, MISSING], np.int64)[place]),
            "stage": nullable(np.array([*stages, MISSING], np.int64)[place]),
            "cause": [DELAYS[code].value for code in cause.tolist()],
            "cost_ns": direct + passed_on,
            "direct_ns": direct,
            "passed_on_ns": passed_on,
        }
    )
