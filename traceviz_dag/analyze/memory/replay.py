"""Replays a snapshot backwards: from the blocks at its end to what was allocated at every event before.

Forwards would miss all that was allocated before the recording began, or whose events the ring overwrote.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceviz_dag.analyze.wording import counted
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.memory.snapshot import INACTIVE, UNKNOWN, Action, Snapshot

_GROWS = {Action.SEGMENT_ALLOC: 1, Action.SEGMENT_MAP: 1, Action.SEGMENT_FREE: -1, Action.SEGMENT_UNMAP: -1}

_BEYOND = "bytes of segments were allocated beyond those that there are"
_TOO_FULL = "segments smaller than their blocks together"
_OVERLAPPING = "segments that reach into the next one"
_TWICE = "live blocks at the address of another"
_LOST = "allocations that were neither freed nor are live at the end"
_RESIZED = "blocks freed with another size than they were allocated with"
_STILL_LIVE = "frees of a block that is live after them"
_OF_NOTHING = "frees that were requested of no live block"
_BACKWARDS = "events that are earlier than the one before them"

CONTRADICTIONS = {
    _BEYOND: "byte of segments was allocated beyond those that there are",
    _TOO_FULL: "segment smaller than its blocks together",
    _OVERLAPPING: "segment that reaches into the next one",
    _TWICE: "live block at the address of another",
    _LOST: "allocation that was neither freed nor is live at the end",
    _RESIZED: "block freed with another size than it was allocated with",
    _STILL_LIVE: "free of a block that is live after it",
    _OF_NOTHING: "free that was requested of no live block",
    _BACKWARDS: "event that is earlier than the one before it",
}
"""What can contradict itself in a snapshot, of several → of one."""


@dataclass(frozen=True)
class Lifetimes:
    """A row per block that was live at some time: columns, one place a row.

    Events are places among the events of the device. ``begin`` is ``UNKNOWN`` for a block allocated before the first
    event; ``requested_free`` and ``end`` are ``UNKNOWN`` where the block was not freed by the end. ``block_bytes`` is
    known for blocks that are live at the end alone: events show what was requested.
    """

    address: Int64
    requested: Int64
    block_bytes: Int64
    stream: Int64
    stack: Int64
    free_stack: Int64
    begin: Int64
    requested_free: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.address)

    def alive(self, event: int) -> Bool:
        """Which are live after an event; ``UNKNOWN`` (-1) is the state before the first."""
        return (self.begin <= event) & ((self.end == UNKNOWN) | (self.end > event))

    def pending(self, event: int) -> Bool:
        """Which of the live ones were given back, but are still in use by another stream."""
        return self.alive(event) & (self.requested_free != UNKNOWN) & (self.requested_free <= event)


@dataclass(frozen=True)
class Replay:
    """One device of a snapshot, at every event.

    Attributes:
        events: places of its events in the snapshot.
        action, address, bytes, stream, time_us, stack: columns of these events.
        requested: bytes requested in live blocks, frees that are pending included: before the first event, then after
            each.
        reserved: bytes of segments.
        segments: places of its segments in the snapshot.
        contradictions: what does not fit together, one of ``CONTRADICTIONS`` → how often.
    """

    snapshot: Snapshot
    device: int
    events: Int64
    action: Int64
    address: Int64
    bytes: Int64
    stream: Int64
    time_us: Int64
    stack: Int64
    lifetimes: Lifetimes
    requested: Int64
    reserved: Int64
    segments: Int64
    contradictions: dict[str, int]

    @cached_property
    def peak_event(self) -> int:
        """The event after which most is requested, the earliest of equals; ``UNKNOWN`` where that is before all."""
        return int(np.argmax(self.requested)) - 1

    @property
    def peak_requested(self) -> int:
        """Bytes requested then."""
        return int(self.requested[self.peak_event + 1])

    @cached_property
    def live_blocks(self) -> Int64:
        """Places of the blocks in the snapshot that are not inactive."""
        of_device = np.isin(self.snapshot.blocks["segment"], self.segments)
        return np.flatnonzero(of_device & (self.snapshot.blocks["state"] != INACTIVE))

    @property
    def contradictions_in_words(self) -> list[str]:
        """Each contradiction with its number."""
        return [counted(count, CONTRADICTIONS[what], what) for what, count in self.contradictions.items()]

    def time_ns(self, event: int) -> int | None:
        """The time of an event, nanoseconds of the epoch; None where it is not recorded."""
        time = int(self.time_us[event]) if 0 <= event < len(self.time_us) else UNKNOWN
        return time * 1000 if time > 0 else None

    def events_until(self, time_us: int) -> int:
        """The last event that is not later than a time; ``UNKNOWN`` where all are."""
        return int(np.searchsorted(self._times, time_us, "right")) - 1

    @cached_property
    def _times(self) -> Int64:
        return np.maximum.accumulate(self.time_us) if len(self.time_us) else self.time_us


def replayed(snapshot: Snapshot, device: int) -> Replay:
    """Replay one device of a snapshot.

    An allocation takes its bytes off, going back; a completed free puts them back; so for segments.
    """
    first, following = np.searchsorted(snapshot.events["device"], (device, device + 1)).tolist()
    events = np.arange(first, following)
    columns = {name: column[first:following] for name, column in snapshot.events.items() if name != "device"}
    segments = np.flatnonzero(snapshot.segments["device"] == device)
    contradictions: Counter[str] = Counter()
    lifetimes = _lifetimes(snapshot, segments, columns, contradictions)
    _check_places(snapshot, segments, contradictions)
    contradictions[_BACKWARDS] += int((np.diff(columns["time_us"][columns["time_us"] > 0]) < 0).sum())
    changes = np.zeros(len(events) + 1, np.int64)
    known = lifetimes.begin != UNKNOWN
    np.add.at(changes, lifetimes.begin[known] + 1, lifetimes.requested[known])
    ended = lifetimes.end != UNKNOWN
    np.add.at(changes, lifetimes.end[ended] + 1, -lifetimes.requested[ended])
    changes[0] = int(lifetimes.requested[~known].sum())
    grown = np.zeros(len(events) + 1, np.int64)
    for action, sign in _GROWS.items():
        grown[1:] += np.where(columns["action"] == action, sign * columns["bytes"], 0)
    reserved = int(snapshot.segments["bytes"][segments].sum())
    grown[0] = reserved - int(grown.sum())
    over_time = np.cumsum(grown)
    if over_time.size and over_time.min() < 0:
        contradictions[_BEYOND] += -int(over_time.min())
    return Replay(
        snapshot=snapshot,
        device=device,
        events=events,
        **columns,
        lifetimes=lifetimes,
        requested=np.cumsum(changes),
        reserved=over_time,
        segments=segments,
        contradictions=dict(+contradictions),
    )


def _check_places(snapshot: Snapshot, segments: Int64, contradictions: Counter[str]) -> None:
    """Segments do not overlap, and the blocks of each fit into it."""
    of_segments, blocks = snapshot.segments, snapshot.blocks
    taken = np.zeros(len(of_segments["bytes"]), np.int64)
    np.add.at(taken, blocks["segment"], blocks["bytes"])
    too_full = int((taken > of_segments["bytes"])[segments].sum())
    if too_full:
        contradictions[_TOO_FULL] += too_full
    address, size = of_segments["address"][segments], of_segments["bytes"][segments]
    order = np.argsort(address, kind="stable")
    overlapping = int((np.diff(address[order]) < size[order][:-1]).sum())
    if overlapping:
        contradictions[_OVERLAPPING] += overlapping


def _lifetimes(
    snapshot: Snapshot, segments: Int64, events: dict[str, Int64], contradictions: Counter[str]
) -> Lifetimes:
    """Blocks from the end to the beginning: at its address, a completed free begins one and an allocation ends it."""
    rows = _backwards(snapshot, segments, events, contradictions)
    place, action, address, size, stack = (rows[name] for name in ("place", "action", "address", "bytes", "stack"))
    # Whether an address is taken depends on the allocation or completed free there that comes next in time.
    turns = np.flatnonzero(action != Action.FREE_REQUESTED)
    frees = action[turns] == Action.FREE_COMPLETED
    is_taken = np.zeros(len(turns), bool)
    is_taken[1:] = frees[:-1] & (np.diff(address[turns]) == 0)
    block_of = np.cumsum(frees & ~is_taken) - 1
    opened, closed, of_closed = turns[frees & ~is_taken], turns[~frees & is_taken], block_of[~frees & is_taken]
    begin, requested_free = np.full((2, len(opened)), UNKNOWN)
    requested, end = size[opened], place[opened]
    allocated_by, freed_by = np.where([end == UNKNOWN, end != UNKNOWN], stack[opened], UNKNOWN)
    resized = closed[requested[of_closed] != size[closed]]
    begin[of_closed], requested[of_closed] = place[closed], size[closed]
    allocated_by[of_closed] = np.where(stack[closed] == UNKNOWN, allocated_by[of_closed], stack[closed])
    asked = np.flatnonzero(action == Action.FREE_REQUESTED)
    turn = np.searchsorted(turns, asked) - 1
    is_of_block = np.isin(turn, np.flatnonzero(frees))
    is_of_block[is_of_block] = address[turns[turn[is_of_block]]] == address[asked[is_of_block]]
    of_nothing, asked, of_asked = asked[~is_of_block], asked[is_of_block], block_of[turn[is_of_block]]
    for target, values in ((requested_free, place), (freed_by, stack)):
        known = np.flatnonzero(values[asked] != UNKNOWN)
        earliest = known[np.flatnonzero(np.diff(of_asked[known], append=-1))]
        target[of_asked[earliest]] = values[asked[earliest]]
    found = {_LOST: turns[~frees & ~is_taken], _RESIZED: resized, _STILL_LIVE: turns[frees & is_taken]}
    found[_OF_NOTHING] = of_nothing
    for what, ones in sorted(found.items(), key=lambda one: -place[one[1]].max(initial=UNKNOWN)):
        contradictions[what] += len(ones)
    # In the order in which they were allocated; those from before the recording first, by address.
    order = np.lexsort((address[opened], begin))
    columns = (address[opened], requested, rows["block_bytes"][opened], rows["stream"][opened], allocated_by, freed_by)
    return Lifetimes(*(column[order] for column in (*columns, begin, requested_free, end)))


def _backwards(
    snapshot: Snapshot, segments: Int64, events: dict[str, Int64], contradictions: Counter[str]
) -> dict[str, Int64]:
    """The events of blocks, by address and from the last to the first.

    A block that is live at the end is there as if it were freed after all of them, at the place ``UNKNOWN``.
    """
    blocks, count = snapshot.blocks, len(events["action"])
    left = np.flatnonzero(np.isin(blocks["segment"], segments) & (blocks["state"] != INACTIVE))
    firsts = np.sort(np.unique(blocks["address"][left], return_index=True)[1])
    contradictions[_TWICE] += len(left) - len(firsts)
    at_end = {name: column[left[firsts]] for name, column in blocks.items()}
    before = {
        "place": np.full(len(firsts), UNKNOWN),
        "action": np.full(len(firsts), Action.FREE_COMPLETED),
        "address": at_end["address"],
        "bytes": np.where(at_end["requested"] == UNKNOWN, at_end["bytes"], at_end["requested"]),
        "stream": snapshot.segments["stream"][at_end["segment"]],
        "stack": at_end["stack"],
        "block_bytes": at_end["bytes"],
    }
    after = {"place": np.arange(count), "block_bytes": np.full(count, UNKNOWN), **events}

    def joined(name: str) -> Int64:
        # One at a time: each is large, and the next one gets its memory.
        return np.concatenate([before[name], after[name][::-1]])

    kept = np.flatnonzero(np.isin(joined("action"), (Action.ALLOC, Action.FREE_COMPLETED, Action.FREE_REQUESTED)))
    order = kept[np.argsort(joined("address")[kept], kind="stable")]
    return {name: joined(name)[order] for name in before}
