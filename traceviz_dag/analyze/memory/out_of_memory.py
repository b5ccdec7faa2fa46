"""Why a request failed: the memory was really full, or free in pieces that were all too small."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traceviz_dag.analyze.memory.layout import SMALL, Gap, fragmentation_at, gaps_at
from traceviz_dag.analyze.memory.replay import Replay
from traceviz_dag.read.memory.snapshot import Action

_MIB = 1 << 20


class Verdict(StrEnum):
    """Why a request failed."""

    FRAGMENTATION = "fragmentation"
    """Enough was free, on the device and inside the reserved segments together, but not in one piece."""
    REALLY_FULL = "really_full"
    """All that was free together would not have served it."""
    LIMIT = "limit"
    """The device alone had enough free: a limit of the process or another allocator refused."""
    UNKNOWN = "unknown"
    """The snapshot does not show what the device had free, and what it shows would not have served."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One request that failed.

    Attributes:
        event: its place among the device's events.
        asked_bytes: what was requested, rounded up by the allocator.
        device_free_bytes: what the driver had free; None where the file does not show.
        segment_bytes: what the allocator asks the driver for to serve it.
        largest_free_block_bytes: the largest free piece of the reserved memory that this request could have used.
        inactive_bytes: all free pieces of the reserved memory.
        other_streams_bytes: part of these that belongs to other streams, which it cannot use.
        pending_bytes: requested bytes of blocks that were given back, but still in use by another stream.
        missing_bytes: what was missing even if all that was free had been one piece; 0 for fragmentation.
    """

    device: int
    event: int
    time_ns: int | None
    stream: int
    stack: int
    asked_bytes: int
    device_free_bytes: int | None
    segment_bytes: int
    reserved_bytes: int
    requested_bytes: int
    inactive_bytes: int
    largest_free_block_bytes: int
    other_streams_bytes: int
    pending_bytes: int
    missing_bytes: int
    verdict: Verdict


def out_of_memory(replay: Replay) -> list[OutOfMemory]:
    """Every request of a device that failed, in the order of time."""
    return [_explained(replay, int(event)) for event in np.flatnonzero(replay.action == Action.OOM)]


def segment_bytes_for(asked: int, *, expandable: bool) -> int:
    """What the allocator asks the driver for: 2 MiB for requests up to 1 MiB, 20 MiB for those below 10 MiB, and above
    the request itself, rounded up to a multiple of 2 MiB; expandable segments grow by 20 MiB at a time."""
    if asked <= SMALL:
        return 2 * _MIB
    page = 20 * _MIB if expandable or asked < 10 * _MIB else 2 * _MIB
    return -(-asked // page) * page


def _explained(replay: Replay, event: int) -> OutOfMemory:
    asked, stream = int(replay.bytes[event]), int(replay.stream[event])
    free = replay.snapshot.ooms.get(int(replay.events[event]))
    state = fragmentation_at(replay, event)
    gaps = gaps_at(replay, event)
    usable = [gap.bytes for gap in gaps if _usable(gap, asked, stream)]
    inactive = state.inactive_bytes
    segments = replay.snapshot.segments["expandable"][replay.segments]
    grows = replay.snapshot.settings.get("expandable_segments") is True or bool((segments == 1).any())
    segment = segment_bytes_for(asked, expandable=grows)
    missing = max(asked - inactive - (free or 0), 0)
    if free is not None and free >= segment:
        verdict = Verdict.LIMIT
    elif not missing:
        verdict = Verdict.FRAGMENTATION
    else:
        verdict = Verdict.UNKNOWN if free is None else Verdict.REALLY_FULL
    return OutOfMemory(
        replay.device,
        event,
        replay.time_ns(event),
        stream,
        int(replay.stack[event]),
        asked,
        free,
        segment,
        state.reserved_bytes,
        state.requested_bytes,
        inactive,
        max(usable, default=0),
        sum(gap.bytes for gap in gaps if gap.stream != stream),
        state.pending_bytes,
        missing,
        verdict,
    )


def _usable(gap: Gap, asked: int, stream: int) -> bool:
    return gap.stream == stream and gap.small == (asked <= SMALL)
