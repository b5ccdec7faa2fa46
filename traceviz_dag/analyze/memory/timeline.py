"""Memory over time, in parts of the recording."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceviz_dag.analyze.memory.examination import Examined
from traceviz_dag.arrays import Int64
from traceviz_dag.read.memory.snapshot import UNKNOWN


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of the recording, and its state when most was requested in it.

    Attributes:
        first, last: its events.
        highest: the event after which most is requested.
        requested_bytes: requested then, pending frees included; the categories add up to it.
        reserved_bytes: the most that was reserved in it, which may be at another event.
    """

    first: int
    last: int
    highest: int
    requested_bytes: int
    pending_bytes: int
    reserved_bytes: int
    categories: dict[str, int]


def intervals(one: Examined, parts: int) -> list[Interval]:
    """Cut the recording into parts of equally many events, as far as possible."""
    count = len(one.replay.action)
    edges = np.linspace(0, count, min(parts, count) + 1).astype(np.int64).tolist() if count else []
    pending = pending_bytes(one)
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
                int(one.replay.reserved[first + 1 : end + 1].max()),
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
