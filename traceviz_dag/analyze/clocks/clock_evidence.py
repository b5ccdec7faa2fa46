"""What matched communications say about clocks: kernels that must have ended together, and how sure that is.

No member of an all-reduce can end before the last one has arrived, so all end at about the same instant; so do the two
kernels of an exchange that is between them alone. A kernel that carries messages of several peers ends with the last of
them, and one that only sends may end long before the other one receives (NCCL buffers what it sends over a network):
such ends often agree and often do not, so they count as weak evidence, by their most frequent difference.

Ranks of one host share its clock, whatever their communications show.

Messages that only their order pairs (rings, steps that nothing shows) say nothing of clocks: they repeat so evenly that
a lost kernel looks like a clock that is one turn ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.clocks.robust import grouped_quantile, grouped_spread
from traceviz_dag.analyze.matching.collective_matching import MATCHED_BY, MatchedBy
from traceviz_dag.analyze.matching.matches import Matches, connected
from traceviz_dag.analyze.matching.operations import ENDS_TOGETHER, OPERATIONS
from traceviz_dag.arrays import Float64, Int64, number_groups

FEWEST_MATCHES = 3
"""Matches below which clocks are not joined: one or two cannot contradict each other."""

_SURE, _EXCHANGE, _MIXED = range(3)
_FLOORS_NS = np.array([500.0, 5_000.0, 20_000.0])
_FEW_FLOOR_NS = 10_000.0
_FEW = 5


@dataclass(frozen=True, slots=True)
class MatchedEnds:
    """What matches of some groups say about clocks: all that solving them needs, and far less than the matches.

    Attributes:
        end_ns, node, unit, kind, group: as ``ClockEvidence`` has them.
        sender, sent_ns: of each message, the node of its sender, and when it starts; receiver, received_ns: the node
            of its receiver, and when that ends.
    """

    end_ns: Int64
    node: Int64
    unit: Int64
    kind: Int64
    group: Int64
    sender: Int64
    sent_ns: Int64
    receiver: Int64
    received_ns: Int64


@dataclass(frozen=True, slots=True)
class ClockEvidence:
    """Ends that should agree. A unit is one communication; its entries are its members' ends.

    Attributes:
        end_ns, node: per entry, an end on its rank's own clock, and the number of the rank.
        unit: per entry, number of its unit; kind: per unit, how sure it is; group: per unit, its group of ranks.
        ranks: the rank of each node.
        component: per node, the number of its component, from 0.
        host: per node, the number of its host; nodes of which it is not known have one of their own.
    """

    end_ns: Int64
    node: Int64
    unit: Int64
    kind: Int64
    group: Int64
    ranks: Int64
    component: Int64
    host: Int64

    @property
    def shares_host(self) -> npt.NDArray[np.bool_]:
        """Mark nodes that share their host with others."""
        return np.bincount(self.host)[self.host] > 1

    @property
    def units(self) -> int:
        """Number of communications."""
        return len(self.kind)

    def select(self, entries: npt.NDArray[np.bool_]) -> ClockEvidence:
        """The evidence with those entries alone; units keep their numbers."""
        return replace(self, end_ns=self.end_ns[entries], node=self.node[entries], unit=self.unit[entries])

    def sure_entries(self) -> npt.NDArray[np.bool_]:
        """Mark entries of units whose members must end together."""
        return self.kind[self.unit] != _MIXED

    def best_entries(self) -> npt.NDArray[np.bool_]:
        """Mark, for each rank, its entries of the surest kind of which it has enough; all where it has not."""
        kind = self.kind[self.unit]
        best = np.full(len(self.ranks), _MIXED)
        for each in (_EXCHANGE, _SURE):
            best[np.bincount(self.node[kind <= each], minlength=len(self.ranks)) >= FEWEST_MATCHES] = each
        return kind <= best[self.node]


@dataclass(frozen=True, slots=True)
class GroupViews:
    """What each group says of each of its ranks: by how much it ends after the middle of its members.

    Attributes:
        node, group: which rank, in which group of ranks; view: per entry of the evidence, the number of its view.
        middle: the typical difference, ns; weight: 1 / variance; count: entries behind it.
    """

    node: Int64
    group: Int64
    view: Int64
    middle: Float64
    weight: Float64
    count: Int64


def matched_ends(matches: Matches, ranks: Int64) -> MatchedEnds:
    """Collect the communications whose members end together.

    Args:
        ranks: all ranks of the iteration, ascending.
    """
    together = [OPERATIONS.index(operation) for operation in ENDS_TOGETHER]
    rows = matches.collective_rows
    rows = rows[np.isin(matches.rows.operation[rows], together) & (matches.found[rows] > 1)]
    _, unit = number_groups(matches.communication[rows])
    pairs, exclusive = message_pairs(matches)
    scheduled = (matches.matched_by[pairs] == MATCHED_BY.index(MatchedBy.SCHEDULE)).all(axis=1)
    pairs, exclusive = pairs[scheduled], exclusive[scheduled]
    count = int(unit.max(initial=-1)) + 1
    row = np.concatenate((rows, pairs.ravel()))
    unit = np.concatenate((unit, count + np.repeat(np.arange(len(pairs)), 2))).astype(np.int64)
    kind = np.concatenate((np.full(count, _SURE), np.where(exclusive, _EXCHANGE, _MIXED)))
    node = np.searchsorted(ranks, matches.rows.rank)
    of_pair = np.sort(node[pairs], axis=1)
    first = row[_first_entries(unit[: len(rows)], count)]
    of_unit = matches.grouped.group[first], of_pair[:, 0] * len(ranks) + of_pair[:, 1]
    sender, receiver = matches.messages.sender, matches.messages.receiver
    return MatchedEnds(
        *(matches.rows.end_ns[row], node[row], unit, kind, np.concatenate(of_unit)),
        *(node[sender], matches.rows.start_ns[sender], node[receiver], matches.rows.end_ns[receiver]),
    )


def clock_evidence(ends: MatchedEnds, ranks: Int64, hosts: Mapping[int, int]) -> ClockEvidence:
    """Find the components that communications whose members end together, and hosts, connect.

    Args:
        ends: of all matches of the iteration. ranks: all ranks of it, ascending.
        hosts: rank → number of its host; empty where they are not known.
    """
    node, unit, kind = ends.node, ends.unit, ends.kind
    group = number_groups(kind, ends.group)[1]
    host = number_groups(np.array([hosts.get(rank, -1 - rank) for rank in ranks.tolist()], np.int64))[1]
    component = np.arange(len(ranks))
    evidence = ClockEvidence(ends.end_ns, node, unit, kind, group, ranks, component, host.astype(np.int64))
    while True:
        component = _components(evidence)
        first = _first_entries(evidence.unit, len(kind))
        # A communication between components that too few matches join says nothing, and joins nothing else either.
        spread = np.zeros(len(kind), dtype=bool)
        spread[evidence.unit[component[evidence.node] != component[evidence.node[first[evidence.unit]]]]] = True
        if not spread.any():
            return replace(evidence, component=component)
        evidence = evidence.select(~spread[evidence.unit])


def join_ends(parts: Sequence[MatchedEnds]) -> MatchedEnds:
    """The ends of all parts of an iteration, of which each has whole groups."""
    before = np.cumsum([0, *(len(part.kind) for part in parts)])
    parts = [replace(part, unit=part.unit + shift) for part, shift in zip(parts, before, strict=False)]
    return MatchedEnds(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(MatchedEnds)))


def _first_entries(unit: Int64, units: int) -> Int64:
    """The first entry of each unit."""
    first = np.full(units, -1, dtype=np.int64)
    first[unit[::-1]] = np.arange(len(unit))[::-1]
    return first


def group_views(evidence: ClockEvidence, ends: Float64) -> GroupViews:
    """Compare ends with the middle of their unit, group by group.

    Args:
        ends: per entry, ns on the clocks as known so far.
    """
    middle = grouped_quantile(ends, evidence.unit, evidence.units, 0.5)
    difference = ends - middle[evidence.unit]
    first, view = number_groups(evidence.group[evidence.unit], evidence.node)
    views = len(first)
    count = np.bincount(view, minlength=views)
    kind = evidence.kind[evidence.unit[first]]
    typical = grouped_quantile(difference, view, views, 0.5)
    spread = grouped_spread(difference, view, views)
    by_view = np.lexsort((difference, view))
    edges = np.append(0, np.cumsum(count))
    for mixed in np.flatnonzero(kind == _MIXED).tolist():
        ordered = difference[by_view[edges[mixed] : edges[mixed + 1]]]
        typical[mixed], spread[mixed] = _densest_half(ordered)
    floor = np.maximum(_FLOORS_NS[kind], np.where(count < _FEW, _FEW_FLOOR_NS, 0))
    deviation = np.maximum(spread / np.sqrt(count), floor)
    group = evidence.group[evidence.unit[first]]
    return GroupViews(evidence.node[first], group, view.astype(np.int64), typical, 1 / deviation**2, count)


def _densest_half(ordered: Float64) -> tuple[float, float]:
    """Middle and width of the shortest interval that holds half of some sorted values."""
    half = (len(ordered) + 1) // 2
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    at = int(np.argmin(widths))
    return float(np.median(ordered[at : at + half])), float(widths[at])


def message_pairs(matches: Matches) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Pairs of rows whose kernels share messages, and whether each waits for the other and has no other peer."""
    if not len(matches.end):
        return np.empty((0, 2), np.int64), np.empty(0, bool)
    low, high = np.minimum(matches.end, matches.other), np.maximum(matches.end, matches.other)
    pairs = np.unique(np.stack((low, high), axis=1), axis=0)
    kernels = np.bincount(pairs.ravel(), minlength=len(matches.rows))
    sender, receiver = matches.messages.sender, matches.messages.receiver
    width = len(matches.rows)
    both_ways = np.intersect1d(sender * width + receiver, receiver * width + sender)
    return pairs, (kernels[pairs] == 1).all(axis=1) & np.isin(pairs[:, 0] * width + pairs[:, 1], both_ways)


def _components(evidence: ClockEvidence) -> Int64:
    """Join ranks that groups with enough matches connect, then groups of ranks that enough single matches connect."""
    units_of_group = np.bincount(evidence.group, minlength=1)
    strong = units_of_group[evidence.group] >= FEWEST_MATCHES
    ends, others = _stars(evidence, strong)
    first_of_host = np.unique(evidence.host, return_index=True)[1]
    ends = np.append(ends, np.arange(len(evidence.ranks)))
    label = connected(ends, np.append(others, first_of_host[evidence.host]), len(evidence.ranks))
    ends, others = _stars(evidence, np.ones(evidence.units, dtype=bool))
    joins = np.stack((label[ends], label[others]), axis=1)
    apart = joins[:, 0] != joins[:, 1]
    between, times = np.unique(np.sort(joins[apart], axis=1), axis=0, return_counts=True)
    enough = between[times >= FEWEST_MATCHES]
    label = connected(enough[:, 0], enough[:, 1], len(evidence.ranks))[label]
    return np.unique(label, return_inverse=True)[1]


def _stars(evidence: ClockEvidence, units: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Edges from the first member of each chosen unit to its other members."""
    entries = np.flatnonzero(units[evidence.unit])
    first = np.full(evidence.units, -1, dtype=np.int64)
    first[evidence.unit[entries[::-1]]] = entries[::-1]
    centre = first[evidence.unit[entries]]
    outer = entries != centre
    return evidence.node[centre[outer]], evidence.node[entries[outer]]
