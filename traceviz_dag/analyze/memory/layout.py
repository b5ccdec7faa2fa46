"""How the reserved memory was laid out: which parts of it were in use, and why the rest served nobody."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import asdict, dataclass, replace

import numpy as np

from traceviz_dag.analyze.memory.replay import Lifetimes, Replay
from traceviz_dag.arrays import Int64
from traceviz_dag.read.memory.snapshot import INACTIVE, UNKNOWN, Action

ROUNDING = 512
"""The allocator rounds what is requested up to a multiple of so many bytes, at least."""

SMALL = 1 << 20
"""Requests up to so many bytes are served from small segments, larger ones from large segments."""

_SMALL_SEGMENT = 2 << 20


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Reserved bytes by what they serve.

    requested + rounding + inactive_split + unused_segments + uncovered = reserved.

    Attributes:
        requested_bytes: what programs asked for and still hold, pending frees included.
        rounding_bytes: what blocks in use are larger.
        inactive_split_bytes: free parts of segments of which other parts are in use; only a request that fits gets one.
        unused_segments_bytes: segments of which nothing is in use; the allocator could return them to the device.
        uncovered_bytes: parts of segments that the snapshot lists no block of; 0 in a whole one.
        largest_free_block_bytes: the largest request that the reserved memory could serve, streams aside.
        pending_bytes: part of the requested ones: given back, but still in use by another stream.
        exact: False where sizes of blocks were taken from what was requested, rounded up: only blocks that are live at
            the end have a size of their own.
    """

    reserved_bytes: int
    requested_bytes: int
    rounding_bytes: int
    inactive_split_bytes: int
    unused_segments_bytes: int
    uncovered_bytes: int
    largest_free_block_bytes: int
    pending_bytes: int
    exact: bool

    @property
    def inactive_bytes(self) -> int:
        """Free parts of all segments."""
        return self.inactive_split_bytes + self.unused_segments_bytes

    def as_row(self) -> dict[str, object]:
        """The fields, and what follows from them."""
        return {**asdict(self), "inactive_bytes": self.inactive_bytes}


@dataclass(frozen=True, slots=True)
class Gap:
    """A free part of a segment."""

    bytes: int
    stream: int
    small: bool
    whole: bool


def fragmentation_at_end(replay: Replay) -> Fragmentation:
    """What the snapshot itself says of its last state, block by block."""
    blocks = replay.snapshot.blocks
    mine = np.isin(blocks["segment"], replay.segments)
    live = mine & (blocks["state"] != INACTIVE)
    size = int(replay.snapshot.segments["bytes"][replay.segments].sum())
    used_segments = np.unique(blocks["segment"][live])
    free = mine & (blocks["state"] == INACTIVE)
    split = free & np.isin(blocks["segment"], used_segments)
    requested = np.where(blocks["requested"] == UNKNOWN, blocks["bytes"], blocks["requested"])
    held = int(requested[live].sum())
    lives = replay.lifetimes
    pending = lives.pending(len(replay.action) - 1)
    return Fragmentation(
        size,
        held,
        int(blocks["bytes"][live].sum()) - held,
        int(blocks["bytes"][split].sum()),
        int(blocks["bytes"][free & ~split].sum()),
        size - int(blocks["bytes"][mine].sum()),
        int(blocks["bytes"][free].max(initial=0)),
        int(lives.requested[pending].sum()),
        True,
    )


def fragmentation_at(replay: Replay, event: int) -> Fragmentation:
    """The layout after an event, replayed; exact but for the sizes of blocks that are gone at the end."""
    reserved, gaps, rounding, requested = _layout(replay, event)
    whole = sum(gap.bytes for gap in gaps if gap.whole)
    free = sum(gap.bytes for gap in gaps)
    lives = replay.lifetimes
    return Fragmentation(
        reserved,
        requested,
        rounding,
        free - whole,
        whole,
        reserved - requested - rounding - free,
        max((gap.bytes for gap in gaps), default=0),
        int(lives.requested[lives.pending(event)].sum()),
        bool((lives.block_bytes[lives.alive(event)] != UNKNOWN).all()),
    )


def block_sizes(lives: Lifetimes) -> Int64:
    """Bytes of each block: those of the end where it is live then, else what was requested, rounded up."""
    rounded = np.maximum((lives.requested + ROUNDING - 1) // ROUNDING * ROUNDING, ROUNDING)
    return np.where(lives.block_bytes == UNKNOWN, rounded, lives.block_bytes)


def gaps_at(replay: Replay, event: int) -> list[Gap]:
    """The free parts of segments after an event."""
    return _layout(replay, event)[1]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Reserved addresses from ``begin`` to below ``end``."""

    begin: int
    end: int
    stream: int
    small: bool
    expandable: bool


def ranges_at(replay: Replay, event: int) -> list[Range]:
    """The reserved ranges after an event, by address; parts of an expandable segment may touch.

    Goes backwards from the segments at the end: one that was allocated or mapped later goes, one that was freed or
    unmapped later comes back. An expandable segment grows and shrinks within its range of addresses.
    """
    ranges = _ranges_at_end(replay)
    later = np.flatnonzero(np.isin(replay.action, (*_COMES, *_GOES)))
    for place in later[later > event][::-1].tolist():
        begin, size = int(replay.address[place]), int(replay.bytes[place])
        if replay.action[place] in _COMES:
            _take_off(ranges, begin, begin + size)
        else:
            expandable = bool(replay.action[place] == Action.SEGMENT_UNMAP)
            small = size <= _SMALL_SEGMENT and not expandable
            insort(ranges, Range(begin, begin + size, int(replay.stream[place]), small, expandable))
    return ranges


_COMES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GOES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def _ranges_at_end(replay: Replay) -> list[Range]:
    segments = {name: column[replay.segments].tolist() for name, column in replay.snapshot.segments.items()}
    columns = zip(*(segments[name] for name in ("address", "bytes", "stream", "small", "expandable")), strict=True)
    return sorted(
        Range(
            address,
            address + size,
            stream,
            small == 1 or (small == UNKNOWN and size <= _SMALL_SEGMENT),
            expandable == 1,
        )
        for address, size, stream, small, expandable in columns
    )


def _take_off(ranges: list[Range], begin: int, end: int) -> None:
    first = max(bisect_left(ranges, begin, key=lambda one: one.begin) - 1, 0)
    last = bisect_left(ranges, end, key=lambda one: one.begin)
    left = []
    for one in ranges[first:last]:
        if one.begin < begin:
            left.append(replace(one, end=min(one.end, begin)))
        if one.end > end:
            left.append(replace(one, begin=max(one.begin, end)))
    ranges[first:last] = left


def _layout(replay: Replay, event: int) -> tuple[int, list[Gap], int, int]:
    """Reserved bytes, gaps, rounding and requested bytes of blocks, after an event."""
    ranges = ranges_at(replay, event)
    lives = replay.lifetimes
    alive = lives.alive(event)
    sizes = block_sizes(lives)[alive]
    order = np.argsort(lives.address[alive], kind="stable")
    begins, ends = lives.address[alive][order].tolist(), (lives.address[alive] + sizes)[order].tolist()
    gaps: list[Gap] = []
    for one in _joined(ranges):
        first, last = bisect_left(begins, one.begin), bisect_right(begins, one.end - 1)
        at, whole = one.begin, first == last
        for place in range(first, last):
            if begins[place] > at:
                gaps.append(Gap(begins[place] - at, one.stream, one.small, whole))
            at = max(at, ends[place])
        if at < one.end:
            gaps.append(Gap(one.end - at, one.stream, one.small, whole))
    requested = int(lives.requested[alive].sum())
    return sum(one.end - one.begin for one in ranges), gaps, int(sizes.sum()) - requested, requested


def _joined(ranges: list[Range]) -> list[Range]:
    """Parts of an expandable segment were mapped one by one, and are one range: a block may reach over several."""
    found: list[Range] = []
    for one in ranges:
        last = found[-1] if found else None
        if last and last.expandable and one.expandable and (last.end, last.stream) == (one.begin, one.stream):
            found[-1] = replace(last, end=one.end)
        else:
            found.append(one)
    return found
