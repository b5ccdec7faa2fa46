"""The events array of a trace file, decoded piece by piece in bounded memory.

A piece is cut where ``}`` ``,`` ``{`` are adjacent and decoded as an array of its own. A cut inside an object or a
string leaves a bracket or a quote open, so a piece that decodes proves its cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from traceviz_dag.read.kineto.boundaries import (
    NotATraceError,
    array_start,
    cuts,
    is_behind_array,
    last_end,
    likely_ends,
    next_event,
    too_deep,
    why_no_array,
)
from traceviz_dag.read.kineto.repair import SEEN_BEFORE, is_repairable, repair
from traceviz_dag.read.limits import LONGEST_TEXT
from traceviz_dag.read.sources import ByteSource

Piece = TypeVar("Piece")

MALFORMED = "malformed JSON"
CUT_OFF = "cut off by the end of the file"
"""Reasons in ``EventArray.dropped``."""

_FAULT_POSITION = re.compile(r"\(byte (\d+)\)")
_REMEDY = "traceviz --longest-text-mib N … reads longer ones"
_SLACK_BYTES = 1 << 14
_SMALLEST_CHUNK = 16
_MOST_EXCISIONS = 1000


class _Kind(Enum):
    """What came of decoding: a piece; brackets still open; more behind the array; something that is no JSON."""

    DECODED = 0
    OPEN = 1
    ENDED = 2
    MALFORMED = 3


class _Outcome(NamedTuple):
    kind: _Kind
    piece: object = None
    position: int = 0
    repairable: bool = False


class EventArray(Generic[Piece]):
    """Pieces of a trace's events array.

    Args:
        source: the bytes.
        decode: bytes of a JSON array → whatever is made of it; raises msgspec.DecodeError or UnicodeDecodeError for
            what is no JSON.
        chunk_bytes: bytes of a piece, about.

    Attributes:
        before: the text of the file up to the events array.
        after: the text behind the events array.
        complete: the end of the array was seen.
        gave_up: why the rest was not read; None where all was.
        dropped: reason → number of events that could not be decoded.
    """

    def __init__(self, source: ByteSource, decode: Callable[[memoryview], Piece], chunk_bytes: int) -> None:
        self.before = b""
        self.after = b""
        self.complete = False
        self.gave_up: str | None = None
        self.dropped: Counter[str] = Counter()
        self._source = source
        self._decode = decode
        self._chunk_bytes = max(chunk_bytes, _SMALLEST_CHUNK)
        self._buffer = bytearray(self._chunk_bytes + _SLACK_BYTES)
        self._start = 0
        self._end = 0
        self._exhausted = False
        self._repaired = False

    def feed(self, consume: Callable[[Piece], None]) -> None:
        """Decode the array from its start to its end, or to where the file breaks off.

        Args:
            consume: gets each piece, in file order. Nothing else holds a piece: its memory, warm in the caches, serves
                the next one.

        Raises:
            NotATraceError: there is no events array.
        """
        self._find_array()
        wanted = self._chunk_bytes
        while not self.complete and self.gave_up is None:
            self._fill(wanted)
            outcome = self._next_piece()
            if outcome.kind is _Kind.DECODED:
                wanted = self._chunk_bytes
                consume(outcome.piece)  # type: ignore[arg-type]
                del outcome
            elif self.gave_up is not None:
                return
            elif self._exhausted:
                self.dropped[CUT_OFF] += 1
                return
            elif self._end - self._start > LONGEST_TEXT:
                self.give_up(f"an event in it is longer than {LONGEST_TEXT >> 20} MiB ({_REMEDY})")
            else:
                wanted = 2 * max(wanted, self._end - self._start)
        if self.complete:
            self._read_after()

    def give_up(self, why: str) -> None:
        """Leave the rest of the array unread."""
        self.gave_up = why

    def _fill(self, wanted: int) -> None:
        """Read until ``wanted`` bytes are pending or the source ends."""
        pending = self._end - self._start
        if pending >= wanted or self._exhausted:
            return
        if self._start + wanted > len(self._buffer):
            target = self._buffer if wanted <= len(self._buffer) else bytearray(wanted + _SLACK_BYTES)
            target[:pending] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = target, 0, pending
        self._repaired = False
        with memoryview(self._buffer) as view:
            while self._end - self._start < wanted:
                count = self._source.readinto(view[self._end : self._start + wanted + _SLACK_BYTES])
                if count == 0:
                    self._exhausted = True
                    return
                self._end += count

    def _find_array(self) -> None:
        wanted = self._chunk_bytes
        while True:
            self._fill(wanted)
            start = array_start(self._buffer, self._end)
            if start is not None:
                self.before = bytes(self._buffer[:start])
                self._start = start
                return
            if self._exhausted or self._end > LONGEST_TEXT:
                raise NotATraceError(why_no_array(bytes(self._buffer[: self._end]), self._source.fault))
            wanted *= 2

    def _next_piece(self) -> _Outcome:
        """The next piece; OPEN where more bytes are needed or nothing that is whole is left, else MALFORMED."""
        while True:
            outcome = self._try_ends_and_cuts()
            if outcome.kind is _Kind.ENDED:
                outcome = self._end_near(outcome.position)
            if outcome.kind is not _Kind.MALFORMED:
                return outcome
            if outcome.repairable and self._repair():
                continue
            place = self._start + outcome.position
            whole = self._try_cuts(place)
            if whole.kind is _Kind.DECODED or not self._excise(place):
                return whole

    def _try_ends_and_cuts(self) -> _Outcome:
        if self._exhausted:
            for end in likely_ends(self._buffer, self._start, self._end):
                outcome = self._attempt_whole(end)
                if outcome.kind is not _Kind.OPEN:
                    return outcome
        outcome = self._try_cuts(self._end)
        if outcome.kind is _Kind.OPEN:
            outcome = self._attempt_whole(self._end)
        if outcome.kind is _Kind.OPEN and self._exhausted:
            return self._attempt_last_event()
        return outcome

    def _try_cuts(self, end: int) -> _Outcome:
        """Decode up to the last cut before ``end`` that proves itself."""
        for stop, comma in cuts(self._buffer, self._start, end):
            outcome = self._attempt_closed(stop)
            if outcome.kind is _Kind.DECODED:
                self._start = comma
            if outcome.kind is not _Kind.OPEN:
                return outcome
        return _Outcome(_Kind.OPEN)

    def _attempt_last_event(self) -> _Outcome:
        """The array breaks off; perhaps between two events."""
        stop = self._buffer.rfind(b"}", self._start, self._end) + 1
        outcome = self._attempt_closed(stop) if stop else _Outcome(_Kind.OPEN)
        if outcome.kind is _Kind.DECODED:
            self._start = self._end
        return outcome

    def _end_near(self, position: int) -> _Outcome:
        """Decode to the bracket before ``position``; MALFORMED where that bracket is astray among events."""
        end = self._buffer.rfind(b"]", self._start, self._start + position) + 1
        if not is_behind_array(self._buffer, end, self._end):
            return _Outcome(_Kind.MALFORMED, position=end - self._start)
        return self._attempt_whole(end)

    def _attempt_whole(self, end: int) -> _Outcome:
        outcome = self._attempt(end)
        if outcome.kind is _Kind.DECODED:
            self.complete = True
            self._start = end
        return outcome

    def _attempt_closed(self, stop: int) -> _Outcome:
        """Decode the pending bytes up to ``stop`` as if a closing bracket followed."""
        if stop == len(self._buffer):
            self._buffer.append(0)
        replaced = self._buffer[stop]
        self._buffer[stop] = ord("]")
        outcome = self._attempt(stop + 1)
        self._buffer[stop] = replaced
        return outcome

    def _attempt(self, stop: int) -> _Outcome:
        """Decode the pending bytes up to ``stop``; their first is the array's bracket or the comma of the last cut."""
        self._buffer[self._start] = ord("[")
        try:
            return _Outcome(_Kind.DECODED, self._decode(memoryview(self._buffer)[self._start : stop]))
        except UnicodeDecodeError:
            return _Outcome(_Kind.MALFORMED, repairable=True)
        except RecursionError:
            with memoryview(self._buffer) as view:
                return _Outcome(_Kind.MALFORMED, position=too_deep(view[self._start : stop]))
        except msgspec.DecodeError as error:
            message = str(error)
        place = _FAULT_POSITION.search(message)
        if place is None:
            return _Outcome(_Kind.OPEN)
        position = int(place[1])
        if "trailing characters" in message:
            return _Outcome(_Kind.ENDED, position=position)
        repairable = is_repairable(
            message, self._buffer[self._start + max(0, position - SEEN_BEFORE) : self._start + position + 1]
        )
        return _Outcome(_Kind.MALFORMED, position=position, repairable=repairable)

    def _repair(self) -> bool:
        """Repair what is pending, once; whether that changed anything."""
        if self._repaired:
            return False
        self._repaired = True
        pending = bytes(self._buffer[self._start : self._end])
        fixed = repair(pending)
        self._buffer = bytearray(fixed + bytes(_SLACK_BYTES))
        self._start, self._end = 0, len(fixed)
        return fixed != pending

    def _excise(self, place: int) -> bool:
        """Cut out the first pending event, malformed at ``place``; False where its end is not in sight."""
        if self.dropped[MALFORMED] >= _MOST_EXCISIONS:
            self.give_up("too many of its events are malformed")
        comma = next_event(self._buffer, place, self._end)
        bracket = last_end(self._buffer, place, self._end) if comma is None and self._exhausted else None
        if self.gave_up or (comma is None and bracket is None):
            return False
        first = self._start + 1
        last = comma + 1 if comma is not None else bracket
        del self._buffer[first:last]
        self._end = self._end - (last or first) + first
        self.dropped[MALFORMED] += 1
        return True

    def _read_after(self) -> None:
        while not self._exhausted and self._end - self._start < LONGEST_TEXT:
            self._fill(2 * (self._end - self._start) + self._chunk_bytes)
        self.after = bytes(self._buffer[self._start : self._end])
