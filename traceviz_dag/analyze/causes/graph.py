"""A graph of work in which everything waits for something, replayed with any durations.

A node starts when all that it waits for has ended, each edge's lag included; nodes that wait for nothing start at 0.
Nodes that start together (the members of a collective communication, a send and its receive) are tied to one another by
a *join*, a node of its own without duration: it ends when the last member has arrived, and every member starts then.

The replay goes level by level: a node's level is the longest chain of edges before it, so that all nodes of a level are
computed at once. Time grows with the edges, times the sets of durations that are replayed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int32, Int64, ranges
from traceviz_dag.errors import NoEvidenceError

AnyTimes = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""Durations and ends in one unit; integers stay exact."""

Times = TypeVar("Times", npt.NDArray[np.int64], npt.NDArray[np.float64], AnyTimes)
"""The same, where what comes out is what went in."""

NO_EDGE = -1
"""Instead of a binding edge, for a node that waits for nothing."""

NEVER_LATE = -(1 << 60)
"""The lag of an edge over which nothing is held up, where one asks what else would be."""


class CircleError(NoEvidenceError):
    """Nodes wait for one another in a circle.

    Attributes:
        members: the nodes of one circle, each waiting for the one before it, the first for the last.
    """

    def __init__(self, members: Int64) -> None:
        super().__init__(f"{len(members)} pieces of work wait for one another in a circle")
        self.members = members


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges in the order in which they are replayed; fewer than 2^31.

    Attributes:
        nodes: how many there are.
        order: the nodes by level, then by number; a node's place in it is its *spot*.
        source: per edge, the spot of the node that it waits for; edges are sorted by the spot of the node that waits.
        number: per edge, its place in the edges that were given.
        first: per node above the lowest level, in the order of spots, where its edges begin in ``source``.
        levels: per level but the lowest, where its edges begin in ``source``, its nodes in ``first`` and in ``order``,
            and the ends of the last: levels × 3.
    """

    nodes: int
    order: Int32
    source: Int32
    number: Int32
    first: Int32
    levels: Int64

    @property
    def waiting(self) -> Int64:
        """Per edge, in the order of ``number``, the node that waits."""
        low = self.nodes - len(self.first)
        return np.repeat(self.order[low:].astype(np.int64), np.diff(self.first, append=len(self.source)))

    @property
    def waited_for(self) -> Int64:
        """Per edge, in the order of ``number``, the node that it waits for."""
        return self.order[self.source].astype(np.int64)

    @property
    def level(self) -> Int64:
        """Per node, the length of the longest chain of edges before it."""
        result = np.zeros(self.nodes, np.int64)
        begins = self.levels[:, 2]
        result[self.order[begins[0] :]] = np.repeat(np.arange(1, len(begins)), np.diff(begins))
        return result

    def ends(self, durations: Times, lags: Times | None = None, earliest: Times | None = None) -> Times:
        """When every node ends.

        Args:
            durations: nodes, or nodes × cases: how long each takes once it starts.
            lags: edges as they were given, or edges × cases: what passes between the end of what is waited for and the
                earliest start; none by default.
            earliest: as ``durations``: before when it does not end, whatever it waits for.

        Returns:
            As ``durations``. A node starts at its end less its duration.
        """
        # In the order of levels, what is computed at once lies together, and what it waits for is near. By indices of
        # 32 bits, ``take`` is faster than brackets.
        ended = durations.take(self.order, axis=0)
        least = None if earliest is None else earliest.take(self.order, axis=0)
        shift = None if lags is None else lags.take(self.number, axis=0)
        low, first_low, spot = self.levels[0].tolist()
        if least is not None:
            np.maximum(ended[:spot], least[:spot], out=ended[:spot])
        for high, first_high, above in self.levels[1:].tolist():
            arrivals = ended.take(self.source[low:high], axis=0)
            if shift is not None:
                arrivals += shift[low:high]
            if high - low > above - spot:
                arrivals = np.maximum.reduceat(arrivals, self.first[first_low:first_high] - low, axis=0)
            mine = ended[spot:above]
            mine += arrivals
            if least is not None:
                np.maximum(mine, least[spot:above], out=mine)
            low, first_low, spot = high, first_high, above
        result = np.empty_like(ended)
        result[self.order] = ended
        return result

    def latest(self, latest: Int64, durations: Int64, lags: Int64) -> Int64:
        """When every node may end at the latest without delaying the given ones.

        Args:
            latest: per node, when it may end at the latest by itself; the highest number for most.
            durations, lags: as ``ends`` takes them, of one case.

        Returns:
            Per node; less its end it is the node's slack.
        """
        result, taken, shift = latest[self.order], durations[self.order], lags[self.number]
        each = np.diff(self.first, append=len(self.source))
        for below, here in pairwise(self.levels.tolist()[::-1]):
            (high, first_high, above), (low, first_low, spot) = below, here
            begins = np.repeat(result[spot:above] - taken[spot:above], each[first_low:first_high])
            np.minimum.at(result, self.source[low:high], begins - shift[low:high])
        ordered = np.empty_like(result)
        ordered[self.order] = result
        return ordered

    def binding(self, ends: Times, lags: Times | None = None) -> Int64:
        """Per node, the edge that it started by, as given: the one that arrived last; of several the first given.

        Args:
            ends: of ``Graph.ends``, of one case. lags: as there.

        Returns:
            ``NO_EDGE`` for nodes that wait for nothing.
        """
        arrivals = ends[self.waited_for] if lags is None else ends[self.waited_for] + lags[self.number]
        result = np.full(self.nodes, NO_EDGE, np.int64)
        if len(self.first):
            last = np.maximum.reduceat(arrivals, self.first)
            among = arrivals == np.repeat(last, np.diff(self.first, append=len(self.source)))
            given = np.minimum.reduceat(np.where(among, self.number, len(self.number)), self.first)
            result[self.order[self.nodes - len(self.first) :]] = given
        return result


def graph_of(nodes: int, waiting: Int64, waited_for: Int64) -> Graph:
    """Bring edges into the order of a replay.

    Args:
        nodes: how many; they are numbered from 0. waiting, waited_for: per edge; an edge may be given twice.

    Raises:
        CircleError: some wait for one another.
    """
    level = _levels(nodes, waiting, waited_for)
    order = np.argsort(level, kind="stable").astype(np.int32)
    spot = np.empty(nodes, np.int32)
    spot[order] = np.arange(nodes)
    number = np.argsort(spot[waiting], kind="stable").astype(np.int32)
    reached = spot[waiting[number]]
    first = np.flatnonzero(np.diff(reached, prepend=-1)).astype(np.int32)
    nodes_below = np.searchsorted(level[order], np.arange(1, int(level.max(initial=0)) + 2))
    levels = np.stack([np.searchsorted(reached, nodes_below), nodes_below - (nodes - len(first)), nodes_below], axis=1)
    return Graph(nodes, order, spot[waited_for[number]], number, first, levels)


def tie(nodes: int, waiting: Int64, waited_for: Int64, join: Int64) -> tuple[int, Int64, Int64]:
    """Let the members of each join start together.

    Args:
        nodes, waiting, waited_for: as ``graph_of`` takes them.
        join: per node, the number of its join, from 0; -1 for a node that starts by itself.

    Returns:
        The same with a node for each join behind the others: what a member waited for, the join waits for, and each
        member waits for the join. The edges that were given keep their places.
    """
    member = np.flatnonzero(join >= 0)
    joined = join[waiting]
    return (
        nodes + int(join.max(initial=-1)) + 1,
        np.concatenate([np.where(joined >= 0, nodes + joined, waiting), member]),
        np.concatenate([waited_for, nodes + join[member]]),
    )


def _levels(nodes: int, waiting: Int64, waited_for: Int64) -> Int64:
    """Per node, the length of the longest chain of edges before it."""
    open_edges = np.bincount(waiting, minlength=nodes)
    by_source = np.argsort(waited_for, kind="stable")
    users = waiting[by_source]
    begins = np.searchsorted(waited_for[by_source], np.arange(nodes + 1))
    level = np.full(nodes, -1, np.int64)
    ready, height = np.flatnonzero(open_edges == 0), 0
    while len(ready):
        level[ready] = height
        height += 1
        released = users[ranges(begins[ready], begins[ready + 1])]
        reached, count = np.unique(released, return_counts=True)
        open_edges[reached] -= count
        ready = reached[open_edges[reached] == 0]
    if (level < 0).any():
        raise CircleError(_circle(level, waiting, waited_for))
    return level


def _circle(level: Int64, waiting: Int64, waited_for: Int64) -> Int64:
    """The nodes of one circle among those without a level: each of them waits for another one without."""
    stuck = (level[waiting] < 0) & (level[waited_for] < 0)
    before = dict(zip(waiting[stuck].tolist(), waited_for[stuck].tolist(), strict=True))
    node = next(iter(before))
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(seen)
        node = before[node]
    return np.array(list(seen)[seen[node] :][::-1], np.int64)
