"""Replay of a pipeline's work in its observed order with zero latency: when would each item end with other durations?

An item starts when the one before it on its stage has ended and its input is there: a forward step that of the virtual
stage before, a backward step that of the virtual stage after, the last one its own forward step. Pipelines of equal
structure are replayed together, and so are several sets of durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.causes.graph import AnyTimes, CircleError, Graph, graph_of
from traceviz_dag.analyze.pipelines.work_items import BACKWARD, FORWARD, WorkItems
from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING


@dataclass(frozen=True, slots=True)
class Structure:
    """The items of one pipeline and what each waits for; items are numbered stage by stage in the order of work.

    Attributes:
        graph: an item waits for the one before it on its stage, and for its inputs.
        stage: per item.
    """

    graph: Graph
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
    of_stage = np.repeat(np.arange(count), [len(items) for items in stages])
    follows = np.flatnonzero(of_stage[1:] == of_stage[:-1])
    edges = list(zip((follows + 1).tolist(), follows.tolist(), strict=True))
    for (direction, virtual, microbatch), item in makers.items():
        source = _source(direction, virtual, last)
        if source is None:
            continue
        maker = makers.get((*source, microbatch))
        if maker is None:
            return None
        if maker != item:
            edges.append((item, maker))
    waiting, waited_for = np.array(edges, np.int64).reshape(-1, 2).T
    try:
        return Structure(graph_of(offset, waiting, waited_for), of_stage)
    except CircleError:
        return None


def replay(structure: Structure, durations: AnyTimes) -> tuple[AnyTimes, AnyTimes]:
    """Start and end of every item, from 0.

    Args:
        durations: items × cases; cases are pipelines and sets of durations.
    """
    ends = structure.graph.ends(durations)
    return ends - durations, ends


def stage_spans(structure: Structure, starts: AnyTimes, ends: AnyTimes) -> AnyTimes:
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
