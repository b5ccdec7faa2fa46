"""Call stacks whose memory grows from step to step and is never given back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.memory.replay import Replay
from traceviz_dag.analyze.memory.steps import Steps, step_names
from traceviz_dag.arrays import Int64
from traceviz_dag.read.memory.snapshot import UNKNOWN

LEAST_STEPS = 3
"""Ends of steps, behind the first step, at which a stack must hold more than at the one before."""

_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class Leak:
    """One stack that holds more at the end of every step than at the end of the one before.

    Attributes:
        bytes_per_step: mean growth from one end to the next.
        blocks, bytes: what it holds at the last end.
    """

    stack: int
    bytes_per_step: int
    blocks: int
    bytes: int
    at_ends: tuple[int, ...]


def step_ends(replay: Replay, steps: Steps) -> Int64:
    """The event after which each training step has ended: profiler steps where the recording names four, else steps
    of the optimizer; at most the last 64."""
    named = [last for _, _, last in step_names(replay)]
    enough = len(named) > LEAST_STEPS or len(named) >= len(steps)
    ends = np.array(named, np.int64) if enough else steps.boundaries
    return np.unique(ends[ends >= 0])[-_MOST_STEPS:]


def leaks(replay: Replay, ends: Int64) -> list[Leak] | None:
    """Stacks whose requested bytes rise at each end of a step behind the first, the fastest first.

    What the first step allocates is left out: it warms caches up. A stack counts that still grows at the last end.

    Args:
        ends: of :func:`step_ends`.

    Returns:
        None where the recording holds fewer than four ends of steps.
    """
    if len(ends) <= LEAST_STEPS:
        return None
    lives = replay.lifetimes
    known = lives.stack != UNKNOWN
    stacks = int(lives.stack.max(initial=-1)) + 1
    held = np.zeros((len(ends), stacks), np.int64)
    counts = np.zeros(stacks, np.int64)
    for place, end in enumerate(ends.tolist()):
        alive = lives.alive(end) & known
        np.add.at(held[place], lives.stack[alive], lives.requested[alive])
        if place == len(ends) - 1:
            counts = np.bincount(lives.stack[alive], minlength=stacks)
    rising = (np.diff(held[1:], axis=0) > 0).all(axis=0)
    found = [
        Leak(
            int(stack),
            int(held[-1, stack] - held[1, stack]) // (len(ends) - 2),
            int(counts[stack]),
            int(held[-1, stack]),
            tuple(held[:, stack].tolist()),
        )
        for stack in np.flatnonzero(rising)
    ]
    return sorted(found, key=lambda one: (-one.bytes_per_step, one.stack))
