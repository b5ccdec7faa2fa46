"""One device of a rank's snapshot as the tables hold it: what all pictures of GPU memory are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.memory.roles import Role
from traceviz_dag.arrays import Int64
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import MemoryCategory

CATEGORIES = tuple(str(category) for category in MemoryCategory)

_EVENTS = ("device", "action", "stack_id", "time_ns", "requested_bytes", "reserved_bytes")
_BLOCKS = (
    *("device", "address", "stack_id", "requested_bytes", "block_bytes", "alloc_event_id", "free_completed_event_id"),
    *("category", "live_at_peak"),
)
_SEGMENTS = ("device", "address", "bytes", "inactive_bytes", "largest_free_block_bytes")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Recording:
    """The device of a snapshot on which most is reserved.

    Attributes:
        place: what it is of, in a few words: the file, or run and iteration, with the GPU.
        subject: whose memory it is: the GPU of a file, else the rank.
        events, blocks, segments: rows of the tables, of that device, in their order.
        roles, sites: of each call stack, by its number.
        warnings: what a reader must know before believing a picture.
    """

    place: str
    subject: str
    device: int
    events: pa.Table
    blocks: pa.Table
    segments: pa.Table
    roles: Mapping[int, str]
    sites: Mapping[int, str]
    warnings: Sequence[str] = ()

    @cached_property
    def requested(self) -> Int64:
        """Bytes requested after each event."""
        return _numbers(self.events, "requested_bytes")

    @cached_property
    def reserved(self) -> Int64:
        """Bytes reserved after each event."""
        return _numbers(self.events, "reserved_bytes")

    @cached_property
    def times_ns(self) -> Int64 | None:
        """The time of each event, never falling; None where one has none."""
        if self.events["time_ns"].null_count or not self.events.num_rows:
            return None
        return np.maximum.accumulate(_numbers(self.events, "time_ns"))

    @cached_property
    def category_bytes(self) -> dict[str, Int64]:
        """Bytes requested of each category that occurs, after each event."""
        begin, end = self.lives
        size, category = _numbers(self.blocks, "requested_bytes"), _texts(self.blocks, "category")
        count = self.events.num_rows
        found = {}
        for name in CATEGORIES:
            which = category == name
            if not which.any():
                continue
            changes = np.zeros(count + 1, np.int64)
            np.add.at(changes, np.maximum(begin[which], 0), size[which])
            ended = which & (end < count)
            np.add.at(changes, end[ended], -size[ended])
            found[name] = np.cumsum(changes)[:count]
        return found

    @cached_property
    def lives(self) -> tuple[Int64, Int64]:
        """The event that allocated each block (-1: before the first), and from which others can use it."""
        return _numbers(self.blocks, "alloc_event_id", -1), _numbers(self.blocks, "free_completed_event_id", _NEVER)

    @cached_property
    def allocations(self) -> list[tuple[int, str]]:
        """Each event that allocates, with the role of its code."""
        # Where others have frames, those without any are of the backward pass, as for the categories.
        frameless = Role.BACKWARD if self.roles else Role.FRAMELESS
        stacks = self.events["stack_id"].to_pylist()
        kept = np.flatnonzero(_texts(self.events, "action") == "alloc").tolist()
        return [(place, frameless if stacks[place] is None else self.roles[stacks[place]]) for place in kept]

    def holders_at_peak(self) -> list[tuple[str, str, int]]:
        """Category, site and bytes of what is live when most is requested, the largest first."""
        rows = self.blocks.filter(self.blocks["live_at_peak"]).select(["category", "stack_id", "requested_bytes"])
        held: dict[tuple[str, str], int] = {}
        for row in rows.to_pylist():
            site = "" if row["stack_id"] is None else self.sites[row["stack_id"]]
            key = (str(row["category"]), site)
            held[key] = held.get(key, 0) + row["requested_bytes"]
        found = [(category, site, size) for (category, site), size in held.items() if size]
        return sorted(found, key=lambda row: (-row[2], row[0], row[1]))


def recording_of(
    source: TableSource, rank: int | None = None, *, place: str = "", warnings: Sequence[str] = ()
) -> Recording | None:
    """What the tables hold of a rank's snapshot; None where it has none: traces alone do not show who holds what.

    Args:
        rank: None for the tables of one file.
        place: what it is of; by default run, iteration and GPU.
    """
    events = source.table("memory_events", (*_EVENTS, "event_id"), rank)
    segments = source.table("memory_segments", _SEGMENTS, rank)
    events = events.filter(pc.is_valid(events["requested_bytes"]))
    reserved: dict[int, int] = {}
    for table, column in ((events, "reserved_bytes"), (segments, "bytes")):
        sums = table.group_by("device").aggregate([(column, "max" if table is events else "sum")]).to_pylist()
        for row in sums:
            size = row[f"{column}_max"] if table is events else row[f"{column}_sum"]
            reserved[row["device"]] = max(reserved.get(row["device"], 0), size or 0)
    if not reserved:
        return None
    device = max(reserved, key=lambda number: (reserved[number], -number))
    stacks = source.table("memory_stacks", ("stack_id", "role", "site"), rank).to_pylist()

    def mine(table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(table["device"], device))

    return Recording(
        place or f"{source.run} · iteration {source.iteration} · GPU {device} of the rank",
        f"GPU {device}" if rank is None else f"Rank {rank}",
        device,
        mine(events).sort_by("event_id"),
        mine(source.table("memory_blocks", _BLOCKS, rank)),
        mine(segments),
        {row["stack_id"]: str(row["role"]) for row in stacks},
        {row["stack_id"]: str(row["site"]) for row in stacks},
        warnings,
    )


def _numbers(table: pa.Table, name: str, absent: int = 0) -> Int64:
    return np.asarray(pc.fill_null(table[name], absent).to_numpy(), np.int64)


def _texts(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].cast(pa.string()).to_numpy(zero_copy_only=False))
