"""Where the events array of a trace begins and ends, and where it can be cut: places found by text patterns alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from traceviz_dag.read.kineto.repair import repair
from traceviz_dag.read.limits import LONGEST_TEXT

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?\s*([\[{])")
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIKELY_CUT = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|id|args|dur|s|bp)")')
_ANY_CUT = re.compile(rb"\}\s*(,)\s*(?=\{)")
_LIKELY_END = re.compile(rb'\}\s*(\])(?=\s*(?:,\s*(?:"|\Z)|\}|\Z))')
_BEHIND_ARRAY = re.compile(rb'\s*(?:,\s*(?:"|\Z)|\}|\Z)')
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_DEEPEST = 200
_TAIL_BYTES = 1 << 14
_MOST_CUTS = 24
_MOST_ENDS = 3


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
    except RecursionError:
        return "JSON without traceEvents, nested too deeply"
    except msgspec.DecodeError as error:
        return "the JSON ends before the first event" if "truncated" in str(error) else "not JSON"
    return "JSON without traceEvents"


def likely_ends(buffer: bytearray, start: int, end: int) -> list[int]:
    """Places behind what looks like the closing bracket of the array, near ``end``, the last first."""
    ends = [match.end() for match in _LIKELY_END.finditer(buffer, max(start, end - _TAIL_BYTES), end)]
    return ends[: -_MOST_ENDS - 1 : -1]


def is_behind_array(buffer: bytearray, place: int, end: int) -> bool:
    """Whether what follows at ``place`` can follow the array: a further key, the object's end or nothing."""
    return _BEHIND_ARRAY.match(buffer, place, end) is not None


def cuts(buffer: bytearray, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the array may be cut: place behind a brace and place of the comma, likeliest and last first."""
    tried: set[int] = set()
    for first in (max(start, end - _TAIL_BYTES), start):
        for pattern in (_LIKELY_CUT, _ANY_CUT):
            for match in reversed(list(pattern.finditer(buffer, first, end))):
                if match.start() not in tried and len(tried) < _MOST_CUTS:
                    tried.add(match.start())
                    yield match.start() + 1, match.start(1)


def too_deep(text: bytes | bytearray | memoryview) -> int:
    """Place of the first bracket in a JSON text that is nested more deeply than any event; the last one without such.

    Slow, and without recursion: for what no decoder takes.
    """
    depth = place = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = text[match.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        place = match.start()
        if depth > _DEEPEST:
            break
    return place


def next_event(buffer: bytearray, place: int, end: int) -> int | None:
    """Place of the comma before the next event behind ``place``; None where none is in sight."""
    match = _LIKELY_CUT.search(buffer, place, end)
    return None if match is None else match.start(1)


def last_end(buffer: bytearray, place: int, end: int) -> int | None:
    """Place of what looks like the closing bracket of the array, the last behind ``place``; None without one."""
    ends = list(_LIKELY_END.finditer(buffer, place, end))
    return ends[-1].start(1) if ends else None
