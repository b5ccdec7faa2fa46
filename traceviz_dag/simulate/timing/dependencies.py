"""What a rank's kernels wait for on other streams, and which of it the rows of one trace file show.

The two are followed apart: the first is what the model does, the second what the file's rows of synchronisation say by
their own meaning (a wait covers what was on the stream when the event was recorded). So a row that says too little or
too much shows.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from traceviz_dag.simulate.timing.streams import Dependency, DependencyKind, Event, StepRecord, Stream

EventKey = tuple[str, int, int]
Key = TypeVar("Key")


@dataclass(slots=True)
class _Record:
    """An event recorded on a stream: its number among the file's records, its id, and the ends that it covers."""

    number: int
    event: int
    covers: tuple[Event, ...]
    holders: int = 0


class Dependencies:
    """The dependencies of one rank's kernels."""

    def __init__(self, record: StepRecord) -> None:
        self.record = record
        self.kernels = self._first = 0
        self._free: list[int] = []
        self._events = 0
        self.begin_file()

    def begin_file(self) -> None:
        """A new file begins: what was before it has ended, and its rows know nothing of it."""
        self._first = self.kernels
        self._records = 0
        self._last: dict[str, _Record] = {}
        self._named: dict[EventKey, _Record] = {}
        self._told: dict[str, set[Event]] = {}
        self._held: list[Event] = []
        self._held_of: dict[str, Event] = {}
        self._passed: dict[str, int] = {}

    def kernel(self, stream: str) -> Event:
        """The end of a new kernel."""
        self.kernels += 1
        return Event(kernel=self.kernels - 1, stream=stream)

    def started(self, done: Event, waits: list[Dependency], told_by_host: bool) -> None:
        """Note what a kernel waits for.

        Args:
            waits: what its stream waits for. told_by_host: whether rows show the synchronisations of the host.
        """
        told: Collection[Event] = self._told.pop(done.stream, ())
        passed = self._passed.get(done.stream, 0)
        if not waits and passed == len(self._held):
            return
        found: dict[Event, tuple[DependencyKind, bool]] = {}
        for event, kind in sorted(waits, key=lambda wait: wait.kind):
            found.setdefault(event, (kind, event in told))
        for event in self._held[passed:]:
            kind, known = found.get(event, (DependencyKind.HOST_SYNCHRONISATION, False))
            found[event] = kind, known or told_by_host
        self._passed[done.stream] = len(self._held)
        for event, (kind, known) in found.items():
            if event.kernel >= self._first and event.stream != done.stream:
                self.record.edges.append((done.kernel - self._first, event.kernel - self._first, kind, known))

    def synchronised(self, streams: list[Stream]) -> None:
        """The host has waited for the ends of these streams: whatever it launches from now on comes after them."""
        for stream in streams:
            event = stream.last
            if self._held_of.get(event.stream) is not event:
                self._held_of[event.stream] = event
                self._held.append(event)

    def recorded(self, name: str, stream: Stream, key: EventKey | None) -> None:
        """A row records an event on a stream."""
        told = self._told.get(name, set())
        passed_on = (wait.event for wait in stream.pending if wait.event in told)
        record = _Record(self._records, self._new_event(), (stream.last, *passed_on))
        self._records += 1
        _replace(self._last, name, record, self._free)
        if key is not None:
            _replace(self._named, key, record, self._free)

    def waited(self, waiting: str, record: _Record | None) -> None:
        """A row lets a stream wait for an event."""
        if record is None:
            # An event of which the file has no record.
            self.record.waits.append((-1, 0))
            return
        self.record.waits.append((record.number, record.event))
        self._told.setdefault(waiting, set()).update(record.covers)

    def last(self, stream: str) -> _Record | None:
        """The last record on a stream."""
        return self._last.get(stream)

    def named(self, key: EventKey) -> _Record | None:
        """The last record of a named event."""
        return self._named.get(key)

    def forget(self, stream: str, key: EventKey | None) -> None:
        """Work without rows went onto a stream: no record covers it."""
        self._last.pop(stream, None)
        if key is not None:
            self._named.pop(key, None)

    def _new_event(self) -> int:
        """An id that no event in use has; CUDA's are used again."""
        if self._free:
            return heapq.heappop(self._free)
        self._events += 1
        return self._events


def _replace(records: dict[Key, _Record], key: Key, record: _Record, free: list[int]) -> None:
    former = records.get(key)
    records[key] = record
    record.holders += 1
    if former is not None:
        former.holders -= 1
        if not former.holders:
            heapq.heappush(free, former.event)
