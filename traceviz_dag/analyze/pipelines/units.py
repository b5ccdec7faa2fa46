"""The steady units of a rank's work: from one backward start to the next, with one forward step between.

In the steady part of 1F1B a stage alternates backward and forward steps; a unit is one of each. Warm-up has no backward
step and cool-down no forward step, so neither makes a unit. Combined steps are units by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.pipelines.work_items import BACKWARD, FORWARD, WorkItems
from traceviz_dag.arrays import Int64


@dataclass(frozen=True, slots=True)
class Units:
    """Steady units of all ranks; one entry per unit.

    Attributes:
        rank, step: whose unit it is; ordinal: its place among the rank's units of the ProfilerStep, from 0.
        chunk, microbatch: of the backward step that begins it.
        start_ns, end_ns: its start and the next backward start, on the rank's own clock.
    """

    rank: Int64
    step: Int64
    ordinal: Int64
    chunk: Int64
    microbatch: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, places: Int64) -> Units:
        """The units at those places."""
        return Units(*(getattr(self, name)[places] for name in self.__slots__))


def steady_units(items: WorkItems) -> Units:
    """Find the steady units of every rank."""
    backward = np.flatnonzero(items.kind != FORWARD)
    if len(backward) < 2:
        return Units(*(np.empty(0, np.int64) for _ in Units.__slots__))
    this, following = backward[:-1], backward[1:]
    forwards = np.cumsum(items.kind != BACKWARD)
    # Forward steps from this backward item, itself included where it is combined, to the next one, that one excluded.
    between = forwards[following - 1] - forwards[this] + (items.kind[this] != BACKWARD)
    steady = np.flatnonzero((items.queue[this] == items.queue[following]) & (between == 1))
    this, following = this[steady], following[steady]
    queue = items.queue[this]
    first = np.searchsorted(queue, queue)
    return Units(
        rank=items.rank[this],
        step=items.step[this],
        ordinal=np.arange(len(this)) - first,
        chunk=items.backward_chunk[this],
        microbatch=items.backward_microbatch[this],
        start_ns=items.start_ns[this],
        end_ns=items.start_ns[following],
    )
