"""A rank's forward and backward steps as items of work, one after the other, as the GPU ran them.

Every instant of a stage belongs to one item: where a step begins before the one before has ended (the tail of a
backward step on another stream), it counts from that end. A forward and a backward step of which half or more of the
shorter runs beside the other, as in combined 1F1B, are one item.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Phase

FORWARD, BACKWARD, COMBINED = range(3)
"""Kinds of work items."""


@dataclass(frozen=True, slots=True)
class WorkItems:
    """Items of all ranks, sorted by rank and ProfilerStep, in the order of work; one entry an item.

    Attributes:
        rank, step: whose item it is; queue: number of its rank and step.
        kind: FORWARD, BACKWARD or COMBINED.
        forward_chunk, forward_microbatch: of its forward step; ``MISSING`` for a backward one.
        backward_chunk, backward_microbatch: of its backward step; ``MISSING`` for a forward one.
        start_ns, end_ns: on the rank's own clock, disjoint within a queue.
    """

    rank: Int64
    step: Int64
    queue: Int64
    kind: Int64
    forward_chunk: Int64
    forward_microbatch: Int64
    backward_chunk: Int64
    backward_microbatch: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def duration_ns(self) -> Int64:
        """Time that belongs to each item."""
        return self.end_ns - self.start_ns

    def take(self, places: npt.NDArray[np.integer]) -> WorkItems:
        """The items at those places."""
        return WorkItems(*(getattr(self, name)[places] for name in self.__slots__))

    def edges(self) -> npt.NDArray[np.intp]:
        """Where each queue begins, and the end of the last."""
        return np.flatnonzero(np.diff(self.queue, prepend=-1, append=-1)) if len(self) else np.zeros(1, np.intp)


def work_items(microbatches: pa.Table) -> WorkItems:
    """Lay the steps of all ranks out as items of work.

    Args:
        microbatches: the table ``microbatches`` of all ranks, with a column ``rank``. A rank's devices count together.
    """
    phases = pa.array([Phase.FORWARD.value, Phase.BACKWARD.value])
    table = microbatches.filter(
        pc.and_(pc.equal(microbatches["dimension"], ALL_DIMENSIONS), pc.is_in(microbatches["phase"], value_set=phases))
    )
    names = ("rank", "step", "order_in_rank", "chunk", "microbatch", "span_start_ns", "span_end_ns")
    columns = {name: optional_integers(table, name) for name in names}
    backward = pc.equal(table["phase"], Phase.BACKWARD.value).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(backward):
        return WorkItems(*(np.empty(0, np.int64) for _ in WorkItems.__slots__))
    first, unit = number_groups(columns["rank"], columns["step"], columns["order_in_rank"])
    start, end = columns["span_start_ns"][first].copy(), columns["span_end_ns"][first].copy()
    np.minimum.at(start, unit, columns["span_start_ns"])
    np.maximum.at(end, unit, columns["span_end_ns"])
    rank, step, chunk, microbatch = (columns[name][first] for name in ("rank", "step", "chunk", "microbatch"))
    kind = backward[first]
    queue = number_groups(rank, step)[1]
    reached = _reached_before(queue, end)
    cut = np.maximum(start, reached)
    # Half or more of the shorter of two neighbours of different direction lies beside the other: they ran together.
    previous = np.arange(len(queue)) - 1
    overlap = np.minimum(end, end[previous]) - np.maximum(start, start[previous])
    joins = overlap * 2 >= np.maximum(np.minimum(end - start, (end - start)[previous]), 1)
    joins &= (queue == queue[previous]) & (kind != kind[previous])
    joins[0] = False
    joins &= ~np.roll(joins, 1)
    head = np.flatnonzero(~joins)
    partner = np.where(np.append(joins[1:], False)[head], head + 1, head)
    combined = partner != head
    ahead = np.where(kind[head] == FORWARD, head, partner)
    behind = np.where(kind[head] == BACKWARD, head, partner)
    has_forward, has_backward = combined | (kind[head] == FORWARD), combined | (kind[head] == BACKWARD)
    # The step that the host ran second may have begun first.
    item_start = np.minimum(cut[head], np.maximum(start[partner], reached[head]))
    return WorkItems(
        rank=rank[head],
        step=step[head],
        queue=queue[head],
        kind=np.where(combined, COMBINED, kind[head]),
        forward_chunk=np.where(has_forward, chunk[ahead], MISSING),
        forward_microbatch=np.where(has_forward, microbatch[ahead], MISSING),
        backward_chunk=np.where(has_backward, chunk[behind], MISSING),
        backward_microbatch=np.where(has_backward, microbatch[behind], MISSING),
        start_ns=item_start,
        end_ns=np.maximum(item_start, np.maximum(end[head], end[partner])),
    )


def _reached_before(queue: Int64, end: Int64) -> Int64:
    """The latest end of all items before each one in its queue; the lowest number for the first."""
    lowest = np.iinfo(np.int64).min
    result = np.full(len(queue), lowest)
    for low, high in _runs(queue):
        result[low + 1 : high] = np.maximum.accumulate(end[low : high - 1])
    return result


def _runs(queue: Int64) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(queue, prepend=-1, append=-1)).tolist()
    return list(pairwise(edges))
