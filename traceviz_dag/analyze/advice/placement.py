"""The other order of Megatron-LM in which ranks are laid out on nodes: which dimension crosses nodes.

With ``tp-dp-pp`` neighbours in data parallelism share a node, with ``tp-pp-dp`` those in pipeline parallelism. A
communication that would stay inside a node, or leave it, takes what communications of its dimension, operation, number
of members and size take there, by the links that were measured. Where none was, nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.edits import AllTimes
from traceviz_dag.analyze.causes.gains import LEAST_GAIN, mean_gains
from traceviz_dag.analyze.causes.step_work import StepWork
from traceviz_dag.analyze.causes.what_if import WIDEST, Edit, WhatIf
from traceviz_dag.analyze.wording import capitals
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.errors import NoEvidenceError

DP_FIRST, PP_FIRST = "tp-dp-pp", "tp-pp-dp"

_INSIDE, _ACROSS = 0, 1
_PLACES = ("inside nodes", "across nodes")

_ENDS = (0.5, 0.0, 1.0)
"""Quantiles of like transfers: the usual one, and those that make the bar."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Another order of the ranks of a job.

    Attributes:
        order: ``DP_FIRST`` or ``PP_FIRST``. nodes: rank → its node now and then.
    """

    order: str
    nodes: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Placed:
    """What the other order would make of a job.

    Attributes:
        order: ``DP_FIRST`` or ``PP_FIRST``. gains: as ``search.Predicts`` has them.
    """

    order: str
    gains: tuple[int, int, int, int]


def placed(topology: Topology, nodes: Mapping[int, int], steps: Sequence[WhatIf]) -> Placed | str:
    """What the other order would make of a job's steps, or why that is not predicted.

    Args:
        nodes: rank → its node; none unknown.
    """
    try:
        other = other_placement(topology, nodes)
        return Placed(other.order, mean_gains([placed_row(one, other) for one in steps]))
    except NoEvidenceError as error:
        return str(error)


def other_placement(topology: Topology, nodes: Mapping[int, int]) -> Placement:
    """The order in which a job's ranks are not laid out.

    Args:
        nodes: rank → its node; none unknown.

    Raises:
        NoEvidenceError: there is no other, or nothing shows which ranks share a node.
    """
    places, world = topology.coordinates, topology.world_size
    if not nodes or world is None or len(nodes) != world or len(places) != world:
        raise NoEvidenceError("nothing shows which node each rank of the job runs on")
    if len(set(nodes.values())) == 1:
        raise NoEvidenceError("all ranks run on one node")
    axes = [[getattr(place, axis) for place in places.values()] for axis in ("tp", "cp", "dp", "pp", "ep")]
    if any(index is None for each in axes for index in each):
        raise NoEvidenceError("the coordinates of the ranks are not known")
    tensor, context, data, stages, experts = (1 + max(each) for each in axes)
    if context > 1 or experts > 1:
        raise NoEvidenceError("Megatron-LM changes it without context and expert parallelism only")
    if data == 1 or stages == 1:
        raise NoEvidenceError("Megatron-LM's orders differ with several stages and replicas only")
    by_order = {
        order: {
            rank: place.tp
            + tensor * (place.dp + data * place.pp if order == DP_FIRST else place.pp + stages * place.dp)
            for rank, place in places.items()
        }
        for order in (DP_FIRST, PP_FIRST)
    }
    now = [order for order, ranks in by_order.items() if all(rank == spot for rank, spot in ranks.items())]
    if not now:
        raise NoEvidenceError("the ranks are in neither of Megatron-LM's orders")
    other = PP_FIRST if now == [DP_FIRST] else DP_FIRST
    return Placement(other, {rank: (nodes[rank], nodes[spot]) for rank, spot in by_order[other].items()})


@dataclass(frozen=True)
class _Transfers:
    """Kernels that communicate: of each its rank's place, its own place there, what it is, and where it runs.

    Attributes:
        kind: number of its dimension, operation, number of members and role. dimension: code in ``words``.
        now, then: ``_INSIDE`` or ``_ACROSS``. elements: of its message.
    """

    rank: Int64
    kernel: Int64
    kind: Int64
    dimension: Int64
    words: tuple[str, ...]
    now: Int64
    then: Int64
    elements: Int64
    duration_ns: Int64


def _transfers(step: StepWork, placement: Placement) -> _Transfers:
    members = step.members
    count = int(members.meeting.max(initial=-1)) + 1
    size = np.bincount(members.meeting, minlength=count)[members.meeting]
    keys = np.stack([members.rank, members.kernel])
    (rank, kernel), first, own = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    crosses: list[Int64] = []
    for column in (0, 1):
        node = np.array([placement.nodes[number][column] for number in step.ranks])[members.rank]
        low, high = np.full(count, node.max(initial=0)), np.zeros(count, np.int64)
        np.minimum.at(low, members.meeting, node)
        np.maximum.at(high, members.meeting, node)
        # What carries several messages is as slow as the slowest.
        crosses.append(np.zeros(len(rank), np.int64))
        np.maximum.at(crosses[-1], own.ravel(), (low != high)[members.meeting].astype(np.int64))
    words = tuple(sorted({word for work in step.works for word in work.kernels.dimensions}))
    dimension, operation, elements, duration = (np.zeros(len(rank), np.int64) for _ in range(4))
    for place, (work, mine) in enumerate(zip(step.works, step.times(), strict=True)):
        there = rank == place
        its = kernel[there]
        codes = np.array([*map(words.index, work.kernels.dimensions), -1])
        dimension[there] = codes[work.kernels.dimension[its]]
        operation[there] = work.kernels.operation[its]
        elements[there] = np.maximum(work.kernels.in_elements[its], work.kernels.out_elements[its])
        duration[there] = mine.duration_ns[its]
    kind = number_groups(dimension, operation, size[first], members.roles[first])[1]
    now, then = crosses
    return _Transfers(rank, kernel, kind, dimension, words, now, then, elements, duration)


def _expected(of: _Transfers, changed: Bool, quantile: float) -> Float64:
    """What transfers take at the other place; NaN where none of their kind was measured there, ns.

    Between two sizes that were measured there it is on the line between both. Of any other size a transfer becomes as
    much longer as those of the nearest size that was measured at both places; the bar reaches from what is in
    proportion to the size to what the nearest takes.
    """
    result = np.where(changed, np.nan, of.duration_ns)
    for kind, there in np.unique(np.stack([of.kind, of.then])[:, changed], axis=1).T:
        wanted = np.flatnonzero(changed & (of.kind == kind) & (of.then == there))
        sizes, took = _measured(of, (of.kind == kind) & (of.now == there), quantile)
        here, takes = _measured(of, (of.kind == kind) & (of.now != there), _ENDS[0])
        if not len(sizes):
            continue
        elements = of.elements[wanted]
        nearest = np.clip(elements, sizes[0], sizes[-1])
        inside, share = np.interp(elements, sizes, took), elements / np.maximum(nearest, 1)
        both, one, other = np.intersect1d(sizes, here, return_indices=True)
        if quantile == _ENDS[0] and len(both):
            at = np.abs(both - elements[:, None]).argmin(axis=1)
            beyond = of.duration_ns[wanted] * took[one][at] / np.maximum(takes[other][at], 1.0)
        else:
            beyond = inside * (np.minimum(share, 1.0) if quantile < _ENDS[0] else np.maximum(share, 1.0))
        result[wanted] = np.where(nearest == elements, inside, beyond)
    return result


def _measured(of: _Transfers, mine: Bool, quantile: float) -> tuple[Int64, Float64]:
    """The sizes of some transfers, and what those of each take, ns."""
    sizes, which = np.unique(of.elements[mine], return_inverse=True)
    took = [np.quantile(of.duration_ns[mine][which == one], quantile) for one in range(len(sizes))]
    return sizes, np.array(took)


def placed_row(what_if: WhatIf, placement: Placement) -> dict[str, Any]:
    """What another order of ranks gains in a step, as ``gains.gain_row``.

    Raises:
        NoEvidenceError: no communication changes place, or nothing shows what so much of it takes there that the bar
            would say nothing.
    """
    of = _transfers(what_if.step, placement)
    changed = of.now != of.then
    if not changed.any():
        raise NoEvidenceError("Megatron-LM's other order leaves the same communication inside nodes")
    unknown = np.isnan(_expected(of, changed, _ENDS[0]))
    open_ns = []
    # What moves inside gets no longer by that; what moves out may get far longer.
    for there, most in ((_INSIDE, WIDEST), (_ACROSS, LEAST_GAIN)):
        mine = unknown & (of.then == there)
        open_ns.append(int(np.bincount(of.rank, weights=of.duration_ns * mine).max()))
        if open_ns[-1] > most * what_if.step_ns:
            taken = np.bincount(of.dimension[mine], weights=of.duration_ns[mine])
            moved = capitals(of.words[int(taken.argmax())])
            raise NoEvidenceError(f"it would move {moved} communication, of which none like it ran {_PLACES[there]}")
    rows = [
        what_if.predict(Edit("rank_order", partial(_placed, of=of, changed=changed, quantile=one))).as_row()
        for one in _ENDS
    ]
    low, high = min(row["gain_low_ns"] for row in rows), max(row["gain_high_ns"] for row in rows)
    slower = _slowest(of, changed & ~unknown)
    return {**rows[0], "gain_low_ns": round(low - open_ns[_ACROSS] * slower), "gain_high_ns": high + sum(open_ns)}


def _slowest(of: _Transfers, moved: Bool) -> float:
    """By how many times the present time moved transfers get longer at most."""
    then = _expected(of, moved, _ENDS[0])[moved]
    return float(np.maximum(then / np.maximum(of.duration_ns[moved], 1) - 1, 0).max(initial=0.0))


def _placed(times: AllTimes, of: _Transfers, changed: Bool, quantile: float) -> AllTimes:
    expected = _expected(of, changed, quantile)
    moved = changed & ~np.isnan(expected)
    result = []
    for place, mine in enumerate(times):
        own = moved & (of.rank == place)
        duration = mine.duration_ns.copy()
        duration[of.kernel[own]] = np.rint(expected[own]).astype(np.int64)
        result.append(replace(mine, duration_ns=duration))
    return tuple(result)
