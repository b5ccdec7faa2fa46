"""Memory over time, in parts of the recording."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.analyze.memory.layout import block_sizes
from traceviz_dag.analyze.memory.steps import StepEvidence, annotated_steps
from traceviz_dag.arrays import Int64
from traceviz_dag.read.memory.snapshot import UNKNOWN


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of the recording, and its state when most was requested in it.

    Attributes:
        first, last: its events.
        highest: the event after which most is requested.
        requested_bytes: requested then, pending frees included; the categories add up to it.
        allocated_bytes, active_bytes: blocks in use then, without pending frees and with them; sizes of blocks that are
            gone at the end are as requested, rounded up.
        steps: names of the steps of the optimizer and the profiler that are open then, the first to begin first.
        reserved_bytes: the most that was reserved in it, which may be at another event.
    """

    first: int
    last: int
    highest: int
    requested_bytes: int
    pending_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    steps: tuple[str, ...]
    categories: dict[str, int]


def intervals(one: Examined, parts: int) -> list[Interval]:
    """Cut the recording into parts of equally many events, as far as possible."""
    count = len(one.replay.action)
    edges = np.linspace(0, count, min(parts, count) + 1).astype(np.int64).tolist() if count else []
    pending = pending_bytes(one)
    active = _over_time(one, one.replay.lifetimes.end)
    allocated = _over_time(one, given_back(one))
    steps = _steps(one)
    found = []
    for first, end in pairwise(edges):
        highest = first + int(np.argmax(one.replay.requested[first + 1 : end + 1]))
        found.append(
            Interval(
                first,
                end - 1,
                highest,
                int(one.replay.requested[highest + 1]),
                int(pending[highest + 1]),
                int(allocated[highest + 1]),
                int(active[highest + 1]),
                int(one.replay.reserved[first + 1 : end + 1].max()),
                tuple(name for name, begin, last in steps if begin <= highest <= last),
                {name: int(values[highest + 1]) for name, values in one.category_bytes.items()},
            )
        )
    return found


def pending_bytes(one: Examined) -> Int64:
    """Bytes that were given back but are still in use by another stream: before the first event, then after each."""
    lives = one.replay.lifetimes
    changes = np.zeros(len(one.replay.action) + 1, np.int64)
    asked = lives.requested_free != UNKNOWN
    np.add.at(changes, lives.requested_free[asked] + 1, lives.requested[asked])
    ended = asked & (lives.end != UNKNOWN)
    np.add.at(changes, lives.end[ended] + 1, -lives.requested[ended])
    return np.cumsum(changes)


def given_back(one: Examined) -> Int64:
    """The event at which the program gave each block back, even if a stream still used it; ``UNKNOWN`` without."""
    lives = one.replay.lifetimes
    return np.where(lives.requested_free == UNKNOWN, lives.end, lives.requested_free)


def _over_time(one: Examined, end: Int64) -> Int64:
    """Bytes of blocks, each from its allocation to an event: before the first event, then after each."""
    lives = one.replay.lifetimes
    sizes = block_sizes(lives)
    changes = np.zeros(len(one.replay.action) + 1, np.int64)
    np.add.at(changes, lives.begin + 1, sizes)
    ended = end != UNKNOWN
    np.add.at(changes, end[ended] + 1, -sizes[ended])
    return np.cumsum(changes)


def _steps(one: Examined) -> list[tuple[str, int, int]]:
    """Name, first and last event of each step, the first to begin first."""
    if one.steps.evidence is StepEvidence.FRAMES:
        spans = zip(one.steps.first.tolist(), one.steps.last.tolist(), strict=True)
        return [("optimizer", first, last) for first, last in spans]
    steps = [(name, first, last) for name, _, _, first, last in annotated_steps(one.replay)]
    return sorted(steps, key=lambda step: (step[1], -step[2]))
