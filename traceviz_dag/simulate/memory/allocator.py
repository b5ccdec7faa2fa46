"""A caching allocator like PyTorch's for CUDA, which writes the snapshots that PyTorch's does; no GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Frames = Sequence[dict[str, Any]]
"""A call stack as snapshots have it: dictionaries with name, filename and line, innermost first."""

_KIB, _MIB = 1 << 10, 1 << 20
_SMALL = _MIB
_FIRST_ADDRESS = 0x7F00_0000_0000
_EXPANDABLE_ROOM = 1 << 40


class OutOfMemoryError(Exception):
    """A request that the simulated device cannot serve."""


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment."""

    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: Frames = ()


@dataclass(eq=False, slots=True)
class Segment:
    """Memory taken from the driver; its blocks cover it without a gap."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    frames: Frames
    blocks: list[Block] = field(default_factory=list)


class Allocator:
    """Serves requests, and records them as PyTorch does: what is requested in events, rounded sizes in segments.

    Args:
        device_bytes: memory of the device.
        expandable: one growing segment per stream and pool instead of many of a fixed size.
        most_events: the ring of events keeps so many; None: all.
        tells_overflow: whether snapshots say if the ring overflowed, as those of 2026 do.
        device: number of the GPU in its process.
    """

    def __init__(
        self,
        device_bytes: int = 80 << 30,
        *,
        expandable: bool = False,
        most_events: int | None = None,
        tells_overflow: bool = False,
        device: int = 0,
    ) -> None:
        self.device_bytes = device_bytes
        self.now_us = 1_780_000_000_000_000
        self.recording = True
        self.annotations: list[dict[str, Any]] = []
        self._expandable, self._most, self._tells = expandable, most_events, tells_overflow
        self._segments: list[Segment] = []
        self._events: list[dict[str, Any]] = []
        self._next = _FIRST_ADDRESS
        self._where: dict[int, tuple[Segment, Block]] = {}
        self._overflowed = False
        self._device = device

    def reserved(self) -> int:
        """Bytes taken from the driver."""
        return sum(segment.size for segment in self._segments)

    def allocate(self, requested: int, frames: Frames, stream: int = 0) -> int:
        """Serve a request; its address.

        Raises:
            OutOfMemoryError: nothing fits, and the device has too little; the event is recorded.
        """
        size = max(-(-requested // 512) * 512, 512)
        small = size <= _SMALL
        found = self._best(size, small, stream) or self._grown(size, small, stream, frames)
        if found is None:
            free = self.device_bytes - self.reserved()
            self._record("oom", 0, size, stream, frames, device_free=free)
            raise OutOfMemoryError(f"{size} bytes asked for, {free} free")
        segment, block = found
        rest = block.size - size
        if rest >= (512 if small else _MIB + 1):
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(block.address + size, rest))
            block.size = size
        block.requested, block.state = requested, "active_allocated"
        block.frames = frames if self.recording else ()
        self._where[block.address] = (segment, block)
        self._record("alloc", block.address, requested, stream, frames)
        return block.address

    def free(self, address: int, frames: Frames, *, pending: bool = False) -> None:
        """Give a block back; a pending one serves nobody until :meth:`complete`."""
        segment, block = self._where[address]
        self._record("free_requested", address, block.requested, segment.stream, frames)
        block.state = "active_pending_free"
        if not pending:
            self.complete(address, frames)

    def complete(self, address: int, frames: Frames) -> None:
        """Let others use a block that was given back."""
        segment, block = self._where.pop(address)
        self._record("free_completed", address, block.requested, segment.stream, frames)
        block.state, block.requested, block.frames = "inactive", 0, ()
        place = segment.blocks.index(block)
        for other in (place + 1, place - 1):
            if 0 <= other < len(segment.blocks) and segment.blocks[other].state == "inactive":
                neighbour = segment.blocks[other]
                block.address = min(block.address, neighbour.address)
                block.size += neighbour.size
                segment.blocks.remove(neighbour)

    def annotate(self, name: str, stage: str) -> None:
        """Record the START or END of a named interval."""
        self.annotations.append({"name": name, "stage": stage, "device": self._device, "time_us": self.now_us})

    def snapshot(self) -> dict[str, Any]:
        """The state and the events, as ``torch.cuda.memory._snapshot`` returns them."""
        settings: dict[str, Any] = {"expandable_segments": self._expandable, "max_split_size": -1}
        if self._tells:
            settings |= {"trace_alloc_overflowed": self._overflowed, "trace_alloc_max_entries": self._most or 1 << 20}
        return {
            "segments": [self._as_dictionary(one) for one in sorted(self._segments, key=lambda each: each.address)],
            "device_traces": [*([] for _ in range(self._device)), list(self._events)],
            "allocator_settings": settings,
            "external_annotations": list(self.annotations),
        }

    def _best(self, size: int, small: bool, stream: int) -> tuple[Segment, Block] | None:
        fitting = [
            (segment, block)
            for segment in self._segments
            if segment.small == small and segment.stream == stream
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        return min(fitting, key=lambda pair: (pair[1].size, pair[1].address), default=None)

    def _grown(self, size: int, small: bool, stream: int, frames: Frames) -> tuple[Segment, Block] | None:
        """Take memory from the driver; where it has too little, unused segments are given back first."""
        wanted = 2 * _MIB if small else 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        if self.reserved() + wanted > self.device_bytes:
            self._release_unused(frames)
        if self._expandable:
            return self._mapped(size, small, stream, frames)
        if self.reserved() + wanted > self.device_bytes:
            return None
        segment = Segment(self._next, wanted, stream, small, False, frames if self.recording else ())
        self._next += wanted + 2 * _MIB
        segment.blocks.append(Block(segment.address, wanted))
        self._segments.append(segment)
        self._record("segment_alloc", segment.address, wanted, stream, frames)
        return segment, segment.blocks[0]

    def _mapped(self, size: int, small: bool, stream: int, frames: Frames) -> tuple[Segment, Block] | None:
        """Map pages at the end of the growing segment until its last block is large enough."""
        mine = [one for one in self._segments if one.stream == stream and one.small == small]
        page = 2 * _MIB if small else 20 * _MIB
        last = mine[0].blocks[-1] if mine else None
        there = last.size if last is not None and last.state == "inactive" else 0
        grow = -(-(size - there) // page) * page
        if self.reserved() + grow > self.device_bytes:
            return None
        if not mine:
            mine = [Segment(self._next, 0, stream, small, True, frames if self.recording else ())]
            self._next += _EXPANDABLE_ROOM
            self._segments.append(mine[0])
        segment = mine[0]
        for _ in range(grow // page):
            self._record("segment_map", segment.address + segment.size, page, stream, frames)
            segment.size += page
        if there:
            segment.blocks[-1].size += grow
        else:
            segment.blocks.append(Block(segment.address + segment.size - grow, grow))
        return segment, segment.blocks[-1]

    def _release_unused(self, frames: Frames) -> None:
        for segment in list(self._segments):
            if all(block.state == "inactive" for block in segment.blocks):
                action = "segment_unmap" if segment.expandable else "segment_free"
                self._record(action, segment.address, segment.size, segment.stream, frames)
                self._segments.remove(segment)

    def _record(self, action: str, address: int, size: int, stream: int, frames: Frames, **facts: int) -> None:
        self.now_us += 1
        if not self.recording:
            return
        place = {"device_free": facts["device_free"]} if facts else {"addr": address}
        event = {"action": action, **place, "size": size, "stream": stream, "time_us": self.now_us}
        self._events.append({**event, "compile_context": "N/A", "user_metadata": "", "frames": list(frames)})
        if self._most is not None and len(self._events) > self._most:
            del self._events[: len(self._events) - self._most]
            self._overflowed = True

    def _as_dictionary(self, segment: Segment) -> dict[str, Any]:
        live = [block for block in segment.blocks if block.state != "inactive"]
        return {
            "device": self._device,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(block.size for block in live if block.state == "active_allocated"),
            "active_size": sum(block.size for block in live),
            "requested_size": sum(block.requested for block in live),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": list(segment.frames),
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": block.state,
                    "frames": list(block.frames),
                }
                for block in segment.blocks
            ],
        }
