"""The events array of a trace file, decoded piece by piece in bounded memory.

A piece is cut where ``}`` ``,`` ``{`` stand together and decoded as an array of its own. A cut inside an object or a
string leaves a bracket or a quote open, so a piece that decodes proves its cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from traceviz_dag.read.repair import repair
from traceviz_dag.read.sources import ByteSource

Piece = TypeVar("Piece")

MALFORMED = "malformed JSON"
CUT_OFF = "cut off by the end of the file"
"""Reasons in ``EventArray.dropped``."""

LONGEST_TEXT = 1 << 28
"""Bytes before or behind the events up to which they are read."""

_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?\s*([\[{])")
_LIKELY_CUT = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|id|args|dur|s|bp)")')
_ANY_CUT = re.compile(rb"\}\s*(,)\s*(?=\{)")
_LIKELY_END = re.compile(rb"\}\s*(\])(?=\s*(?:,|\}|\Z))")
_FAULT_POSITION = re.compile(r"\(byte (\d+)\)")
_TAIL_BYTES = 1 << 14
_CUT_TRIES = 24
_END_TRIES = 3
_MOST_EXCISIONS = 1000
_SMALLEST_CHUNK = 16


class NotATraceError(Exception):
    """The bytes are no trace; the message says why."""


def array_start(text: bytes | bytearray, end: int | None = None) -> int | None:
    """Place of the events array's opening bracket in the first ``end`` bytes of a file; None where it is not there.

    Raises:
        NotATraceError: no JSON begins like that.
    """
    end = len(text) if end is None else end
    opening = _OPENING.match(text, 0, end)
    if opening is None:
        if text[:end].strip():
            raise NotATraceError("not JSON")
        return None
    if opening[1] == b"[":
        return opening.start(1)
    match = _ARRAY_START.search(text, 0, end)
    return None if match is None else match.end() - 1


def why_no_array(text: bytes, fault: str | None) -> str:
    """What is wrong with a file without an events array, from its text and what stopped the reading of it."""
    if fault is not None:
        return f"{fault} before the first event"
    if len(text) > LONGEST_TEXT:
        return f"JSON without traceEvents in its first {LONGEST_TEXT >> 20} MiB"
    if not text.strip():
        return "no JSON, only blanks"
    try:
        msgspec.json.decode(repair(text.removeprefix(_BYTE_ORDER_MARK)), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return "the JSON ends before the first event" if "truncated" in str(error) else "not JSON"
    return "JSON without traceEvents"


class _Kind(Enum):
    DECODED = 0
    OPEN = 1
    ENDED = 2
    MALFORMED = 3


class _Outcome(NamedTuple):
    kind: _Kind
    piece: object = None
    position: int = 0


_NEEDS_MORE = _Outcome(_Kind.OPEN)


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
        gave_up: so much is malformed that the rest was not read.
        dropped: reason → number of events that could not be decoded.
    """

    def __init__(self, source: ByteSource, decode: Callable[[memoryview], Piece], chunk_bytes: int) -> None:
        self.before = b""
        self.after = b""
        self.complete = False
        self.gave_up = False
        self.dropped: Counter[str] = Counter()
        self._source = source
        self._decode = decode
        self._chunk_bytes = max(chunk_bytes, _SMALLEST_CHUNK)
        self._buffer = bytearray(self._chunk_bytes + _TAIL_BYTES)
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
        while not self.complete:
            self._fill(wanted)
            outcome = self._next_piece()
            if outcome.kind is _Kind.DECODED:
                wanted = self._chunk_bytes
                consume(outcome.piece)  # type: ignore[arg-type]
                del outcome
            elif self.gave_up:
                return
            elif self._exhausted:
                self.dropped[CUT_OFF] += 1
                return
            else:
                wanted = 2 * max(wanted, self._end - self._start)
        self._read_after()

    def _fill(self, wanted: int) -> None:
        """Read until ``wanted`` bytes are pending or the source ends."""
        pending = self._end - self._start
        if pending >= wanted or self._exhausted:
            return
        if self._start + wanted > len(self._buffer):
            target = self._buffer if wanted <= len(self._buffer) else bytearray(wanted + _TAIL_BYTES)
            target[:pending] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = target, 0, pending
        self._repaired = False
        with memoryview(self._buffer) as view:
            while self._end - self._start < wanted:
                count = self._source.readinto(view[self._end :])
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
        """The next piece; OPEN where more bytes are needed, or nothing that is whole is left."""
        while True:
            outcome = self._try_ends_and_cuts()
            if outcome.kind is _Kind.ENDED:
                end = self._buffer.rfind(b"]", self._start, self._start + outcome.position) + 1
                outcome = self._attempt(end)
                if outcome.kind is _Kind.DECODED:
                    self._finish(end)
            if outcome.kind is not _Kind.MALFORMED or not self._mend(outcome.position):
                return outcome

    def _try_ends_and_cuts(self) -> _Outcome:
        if self._exhausted:
            for end in self._likely_ends():
                outcome = self._attempt(end)
                if outcome.kind is _Kind.DECODED:
                    self._finish(end)
                if outcome.kind is not _Kind.OPEN:
                    return outcome
        for stop, comma in self._cuts():
            outcome = self._attempt_closed(stop)
            if outcome.kind is _Kind.DECODED:
                self._start = comma
            if outcome.kind is not _Kind.OPEN:
                return outcome
        outcome = self._attempt(self._end)
        if outcome.kind is _Kind.DECODED:
            self._finish(self._end)
        if outcome.kind is _Kind.OPEN and self._exhausted:
            return self._attempt_last_event()
        return outcome

    def _attempt_last_event(self) -> _Outcome:
        """The array breaks off; perhaps between two events."""
        stop = self._buffer.rfind(b"}", self._start, self._end) + 1
        if stop == 0:
            return _NEEDS_MORE
        outcome = self._attempt_closed(stop)
        if outcome.kind is _Kind.DECODED:
            self._start = self._end
        return outcome

    def _likely_ends(self) -> list[int]:
        ends = [match.end() for match in _LIKELY_END.finditer(self._buffer, self._tail_start(), self._end)]
        return ends[: -_END_TRIES - 1 : -1]

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Where a piece may end, likeliest and last first: behind the brace, and at the comma."""
        tried: set[int] = set()
        for start in (self._tail_start(), self._start):
            for pattern in (_LIKELY_CUT, _ANY_CUT):
                for match in reversed(list(pattern.finditer(self._buffer, start, self._end))):
                    if match.start() not in tried and len(tried) < _CUT_TRIES:
                        tried.add(match.start())
                        yield match.start() + 1, match.start(1)

    def _tail_start(self) -> int:
        return max(self._start, self._end - _TAIL_BYTES)

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
            return _Outcome(_Kind.MALFORMED)
        except msgspec.DecodeError as error:
            message = str(error)
        place = _FAULT_POSITION.search(message)
        if place is None:
            return _NEEDS_MORE
        kind = _Kind.ENDED if "trailing characters" in message else _Kind.MALFORMED
        return _Outcome(kind, position=int(place[1]))

    def _finish(self, end: int) -> None:
        self.complete = True
        self._start = end

    def _mend(self, position: int) -> bool:
        """Make what is pending decodable: repair it as a whole, else cut out the event at ``position``."""
        if not self._repaired:
            self._repaired = True
            pending = bytes(self._buffer[self._start : self._end])
            mended = repair(pending)
            if mended != pending:
                self._buffer = bytearray(mended + bytes(_TAIL_BYTES))
                self._start, self._end = 0, len(mended)
                return True
        self.gave_up = self.dropped[MALFORMED] >= _MOST_EXCISIONS
        return not self.gave_up and self._excise(self._start + position)

    def _excise(self, place: int) -> bool:
        """Cut out the event at ``place``; False where its end is not in the buffer."""
        first, last = self._start + 1, 0
        for match in _LIKELY_CUT.finditer(self._buffer, self._start, place):
            first = match.start(1)
        following = _LIKELY_CUT.search(self._buffer, place, self._end)
        if following is not None:
            last = following.start(1) + (first == self._start + 1)
        elif self._exhausted:
            ends = list(_LIKELY_END.finditer(self._buffer, place, self._end))
            last = ends[-1].start(1) if ends else 0
        if last <= first:
            return False
        del self._buffer[first:last]
        self._end -= last - first
        self.dropped[MALFORMED] += 1
        return True

    def _read_after(self) -> None:
        while not self._exhausted and self._end - self._start < LONGEST_TEXT:
            self._fill(2 * (self._end - self._start) + self._chunk_bytes)
        self.after = bytes(self._buffer[self._start : self._end])
