"""Replay of a pipeline's work in its observed order with zero latency: when would each item end with other durations?

An item starts when the one before it on its stage has ended and its input is there: a forward step that of the virtual
stage before, a backward step that of the virtual stage after, the last one its own forward step. Pipelines of equal
structure are replayed together, and so are several sets of durations; the loop is over the items of one pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.pipelines.work_items import BACKWARD, FORWARD, WorkItems
from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING

Durations = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""In any unit; integers keep what is computed of them exact."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The items of one pipeline and what each waits for; items are numbered stage by stage in the order of work.

    Attributes:
        order: items in an order in which each comes after what it waits for.
        waits_for: per item, up to three items: the one before on its stage, and its inputs; -1 for none.
        stage: per item.
    """

    order: tuple[int, ...]
    waits_for: Int64
    stage: Int64


def structure_of(stages: Sequence[WorkItems], chunks: int) -> Structure | None:
    """The structure of a pipeline.

    Args:
        stages: the items of each stage, in stage order; chunks: model chunks per stage.

    Returns:
        None where the order cannot be replayed: a step lacks the one that feeds it, or they wait for each other.
    """
    count = len(stages)
    last = chunks * count - 1
    makers: dict[tuple[int, int, int], int] = {}
    offset = 0
    for stage, items in enumerate(stages):
        for direction, chunks_of, microbatches in _parts(items):
            for place in np.flatnonzero(chunks_of != MISSING).tolist():
                key = (direction, int(chunks_of[place]) * count + stage, int(microbatches[place]))
                if key in makers:
                    return None
                makers[key] = offset + place
        offset += len(items)
    waits_for = np.full((offset, 3), -1, dtype=np.int64)
    of_stage = np.repeat(np.arange(count), [len(items) for items in stages])
    waits_for[1:, 0] = np.where(of_stage[1:] == of_stage[:-1], np.arange(offset - 1), -1)
    for (direction, virtual, microbatch), item in makers.items():
        source = _source(direction, virtual, last)
        if source is None:
            continue
        maker = makers.get((*source, microbatch))
        if maker is None:
            return None
        waits_for[item, 1 + direction] = -1 if maker == item else maker
    order = _topological(waits_for)
    return None if order is None else Structure(order, waits_for, of_stage)


def replay(structure: Structure, durations: Durations) -> tuple[Durations, Durations]:
    """Start and end of every item, from 0.

    Args:
        durations: items × cases; cases are pipelines and sets of durations.
    """
    starts, ends = np.zeros_like(durations), np.zeros_like(durations)
    waits_for = structure.waits_for.tolist()
    for item in structure.order:
        begin = starts[item]
        for other in waits_for[item]:
            if other >= 0:
                np.maximum(begin, ends[other], out=begin)
        np.add(begin, durations[item], out=ends[item])
    return starts, ends


def stage_spans(structure: Structure, starts: Durations, ends: Durations) -> Durations:
    """First start to last end of each stage: stages × cases."""
    edges = np.flatnonzero(np.diff(structure.stage, prepend=-1))
    return np.maximum.reduceat(ends, edges, axis=0) - np.minimum.reduceat(starts, edges, axis=0)


def _parts(items: WorkItems) -> tuple[tuple[int, Int64, Int64], ...]:
    return (
        (FORWARD, items.forward_chunk, items.forward_microbatch),
        (BACKWARD, items.backward_chunk, items.backward_microbatch),
    )


def _source(direction: int, virtual: int, last: int) -> tuple[int, int] | None:
    """(direction, virtual stage) of the step that feeds another; None for the pipeline's first."""
    if direction == FORWARD:
        return None if virtual == 0 else (FORWARD, virtual - 1)
    return (FORWARD, last) if virtual == last else (BACKWARD, virtual + 1)


def _topological(waits_for: Int64) -> tuple[int, ...] | None:
    """An order in which each item comes after what it waits for; None where there is a circle."""
    users: list[list[int]] = [[] for _ in waits_for]
    missing = (waits_for >= 0).sum(axis=1).tolist()
    for item, others in enumerate(waits_for.tolist()):
        for other in others:
            if other >= 0:
                users[other].append(item)
    ready = [item for item, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        item = ready.pop()
        order.append(item)
        for user in users[item]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return tuple(order) if len(order) == len(waits_for) else None
