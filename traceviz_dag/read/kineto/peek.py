"""What a trace is about, found by byte searches: its header and its steps, without decoding its events."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import TraceHeader, TracePeek
from traceviz_dag.read.kineto.boundaries import NotATraceError, array_start, why_no_array
from traceviz_dag.read.kineto.header import decode_header
from traceviz_dag.read.kineto.repair import repair
from traceviz_dag.read.limits import LONGEST_TEXT, MOST_STEPS
from traceviz_dag.read.other_files import not_a_trace
from traceviz_dag.read.sources import ByteSource

_BLOCK_BYTES = 1 << 20
_FIRST_BLOCK_BYTES = 1 << 16
_TAIL_BLOCKS = 2
_OVERLAP_BYTES = 64
_END_TRIES = 64
_ARRAY_END = re.compile(rb"(?:\}|\A\[)\s*\](?=\s*[,}])")
_ANY_ARRAY_END = re.compile(rb"\]\s*[,}]")
_TIME = re.compile(rb'"ts"\s*:\s*(\d{1,18})')
_CENTURY_NS = 978_307_200_000_000_000
JSON_ENDS = "the JSON ends inside its events"
_STEP = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_MARKS = {
    "has_kernels": re.compile(rb'"cat"\s*:\s*"[kK]ernel"'),
    "has_stacks": re.compile(rb'"cat"\s*:\s*"[pP]ython[_ ]function"'),
    "has_shapes": re.compile(rb'"Input [dD]ims"'),
    "has_operators": re.compile(rb'"cat"\s*:\s*"(?:cpu_op|Operator)"'),
}


def peek(path: Path) -> TracePeek:
    """Stream a trace once. A file that breaks off shows what its readable part shows.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    steps: set[int] = set()
    found: set[str] = set()
    with ByteSource(path) as source:
        before, rest = _read_before(path, source)
        first = rest[:_FIRST_BLOCK_BYTES]
        last: deque[bytes] = deque(maxlen=_TAIL_BLOCKS)
        for block in _blocks(rest, source):
            overlapping = last[-1][-_OVERLAP_BYTES:] + block if last else block
            last.append(block)
            steps.update(int(match[1]) for match in _STEP.finditer(overlapping))
            if len(steps) > MOST_STEPS:
                raise BadInputError(path, f"more than {MOST_STEPS:,} ProfilerSteps", "export fewer steps into a file")
            found.update(mark for mark in _MARKS.keys() - found if _MARKS[mark].search(overlapping))
        fault = source.fault
    tail = b"".join(last)
    header = decode_header(before, _after(tail))[0]
    return TracePeek(
        header=header,
        steps=tuple(sorted(steps)),
        has_kernels="has_kernels" in found,
        has_stacks="has_stacks" in found,
        has_operators="has_operators" in found,
        has_shapes="has_shapes" in found,
        first_ns=_first_time(header, first),
        fault=fault or (None if _is_closed(tail, before) else JSON_ENDS),
    )


def peek_header(path: Path) -> TraceHeader:
    """A trace's header from the text before its events; the rest of the file is read only if no rank is there.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    return peek_identity(path)[0]


def peek_identity(path: Path) -> tuple[TraceHeader, int | None]:
    """What :func:`peek_header` gives, and the wall clock near the first event, ns since 1970, where the trace shows.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    try:
        status = path.stat()
    except OSError:
        return _identity.__wrapped__(path)  # The reader says what is wrong.
    return _identity(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@lru_cache(maxsize=4096)  # The topology of a job is made of the headers by which its files were just placed.
def _identity(path: Path, *_of_file: int) -> tuple[TraceHeader, int | None]:
    with ByteSource(path) as source:
        before, rest = _read_before(path, source)
    header, _ = decode_header(before, b"")
    if header.rank is not None:
        return header, _first_time(header, rest)
    peeked = peek(path)
    return peeked.header, peeked.first_ns


def is_trace(path: Path) -> bool:
    """Whether a file begins as a Kineto trace does."""
    try:
        with ByteSource(path) as source:
            start = _read(source, _FIRST_BLOCK_BYTES)
    except BadInputError:
        return False
    return any(mark in start for mark in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')) or (
        start.lstrip().startswith(b"[") and b'"ph"' in start
    )


def _first_time(header: TraceHeader, text: bytes) -> int | None:
    """The first time stamp in the first events that is one of this century, ns; None without one."""
    for match in _TIME.finditer(text):
        time_ns = header.base_time_ns + int(match[1]) * 1000
        if _CENTURY_NS <= time_ns < 4 * _CENTURY_NS:
            return time_ns
    return None


def _is_closed(tail: bytes, before: bytes) -> bool:
    """Whether the text ends as the trace's JSON does: with the bracket of its object, or of its bare array."""
    closing = b"}" if b'"traceEvents"' in before else b"]"
    return tail.rstrip().endswith(closing) and (closing == b"]" or bool(_ANY_ARRAY_END.search(tail)))


def _read_before(path: Path, source: ByteSource) -> tuple[bytes, bytes]:
    """The text up to the bracket of the events array, and what else was read."""
    text = b""
    while True:
        block = _read(source, max(_FIRST_BLOCK_BYTES, len(text)))
        text += block
        try:
            start = array_start(text)
            if start is None and (not block or len(text) > LONGEST_TEXT):
                raise NotATraceError(why_no_array(text, source.fault))
        except NotATraceError as error:
            raise not_a_trace(path, str(error)) from None
        if start is not None:
            return text[:start], text[start:]


def _blocks(first: bytes, source: ByteSource) -> Iterator[bytes]:
    while first:
        yield first
        first = _read(source, _BLOCK_BYTES)


def _read(source: ByteSource, count: int) -> bytes:
    """Up to ``count`` bytes; fewer at the end only."""
    buffer = bytearray(count)
    filled = 0
    with memoryview(buffer) as view:
        while filled < count and (read := source.readinto(view[filled:])):
            filled += read
    return bytes(buffer[:filled])


def _after(tail: bytes) -> bytes:
    """The text behind the events array, from the last bytes of a file."""
    return _object_rest(tail) or _object_rest(repair(tail))


def _object_rest(tail: bytes) -> bytes:
    """The longest text behind an array's end that closes an object and nothing else; empty where there is none.

    Arrays may follow the events, too, so the first such end is the one of the events.
    """
    after = b""
    ends = [match.end() for match in _ARRAY_END.finditer(tail)]
    for end in ends[: -_END_TRIES - 1 : -1]:
        try:
            msgspec.json.decode(b"{" + tail[end:].lstrip().removeprefix(b","), type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            continue
        after = tail[end:]
    return after
