"""Which chunk and micro-batch each step works on, from the order in which forward and backward steps ran."""

from __future__ import annotations

import numpy as np

from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.read.events import MISSING

FORWARD, BACKWARD = 0, 1
"""Codes of a step's direction."""


def numbers_by_order(step: Int64, direction: Int64, source: Int64) -> tuple[Int64, Int64]:
    """Chunk and micro-batch of each step, training step by training step; MISSING where the order does not show.

    Args:
        step: training step of each forward or backward step, all by start.
        direction: FORWARD or BACKWARD.
        source: for a backward step, the index of its forward step, or NONE.
    """
    chunk = np.full(len(step), MISSING, dtype=np.int64)
    microbatch = chunk.copy()
    for number in np.unique(step).tolist():
        forward = np.flatnonzero((step == number) & (direction == FORWARD))
        backward = np.flatnonzero((step == number) & (direction == BACKWARD))
        place = {value: index for index, value in enumerate(forward.tolist())}
        ran = [place.get(value, NONE) for value in source[backward].tolist()]
        told = None if NONE in ran or len(ran) != len(forward) else schedule_of_order(ran)
        if not told:
            continue
        chunk[forward], microbatch[forward] = zip(*told, strict=True)
        chunk[backward], microbatch[backward] = zip(*(told[index] for index in ran), strict=True)
    return chunk, microbatch


def schedule_of_order(ran: list[int]) -> list[tuple[int, int]] | None:
    """(chunk, micro-batch) of each forward step, from the order in which their backward steps ran.

    Args:
        ran: for each backward step in order, the ordinal of its forward step.

    Returns:
        None where no schedule, or several that number differently, give this order. Megatron's interleaved schedule
        runs groups of p micro-batches through its v chunks, forward from the first and backward from the last.
    """
    count = len(ran)
    if ran == list(range(count)):
        return [(0, index) for index in range(count)]
    fitting = set()
    for chunks in range(2, count + 1):
        for group in range(1, count // chunks + 1):
            if count % (chunks * group):
                continue
            numbers = _interleaved(count, chunks, group, backward=False)
            at = {value: index for index, value in enumerate(numbers)}
            if [at[value] for value in _interleaved(count, chunks, group, backward=True)] == ran:
                fitting.add(tuple(numbers))
    return list(fitting.pop()) if len(fitting) == 1 else None


def _interleaved(count: int, chunks: int, group: int, *, backward: bool) -> list[tuple[int, int]]:
    numbers = []
    for ordinal in range(count):
        round_, within = divmod(ordinal, group * chunks)
        chunk, offset = divmod(within, group)
        numbers.append((chunks - 1 - chunk if backward else chunk, round_ * group + offset))
    return numbers
