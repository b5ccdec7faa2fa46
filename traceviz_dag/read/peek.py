"""What a trace is about, found by byte searches: its header and its steps, without decoding its events."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.boundaries import NotATraceError, array_start, why_no_array
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.header import decode_header
from traceviz_dag.read.limits import LONGEST_TEXT, MOST_STEPS
from traceviz_dag.read.repair import repair
from traceviz_dag.read.sources import ByteSource

_BLOCK_BYTES = 1 << 20
_FIRST_BLOCK_BYTES = 1 << 16
_TAIL_BLOCKS = 2
_OVERLAP_BYTES = 64
_END_TRIES = 64
_ARRAY_END = re.compile(rb"(?:\}|\A\[)\s*\](?=\s*[,}])")
_STEP = re.compile(rb'"ProfilerStep#(\d{1,18})"')
_MARKS = {
    "has_kernels": re.compile(rb'"cat"\s*:\s*"[kK]ernel"'),
    "has_stacks": re.compile(rb'"cat"\s*:\s*"[pP]ython[_ ]function"'),
    "has_operators": re.compile(rb'"cat"\s*:\s*"(?:cpu_op|Operator)"'),
}


@dataclass(frozen=True, slots=True)
class TracePeek:
    """What byte searches tell of a trace.

    Attributes:
        header: its header, from before and behind the events.
        steps: numbers of its ProfilerSteps, ascending.
        has_kernels: it holds kernels.
        has_stacks: it holds Python functions.
        has_operators: it holds CPU operators.
    """

    header: TraceHeader
    steps: tuple[int, ...]
    has_kernels: bool
    has_stacks: bool
    has_operators: bool


def peek(path: Path) -> TracePeek:
    """Stream a trace once. A file that breaks off tells what its readable part tells.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    steps: set[int] = set()
    found: set[str] = set()
    with ByteSource(path) as source:
        before, rest = _read_before(path, source)
        last: deque[bytes] = deque(maxlen=_TAIL_BLOCKS)
        for block in _blocks(rest, source):
            overlapping = last[-1][-_OVERLAP_BYTES:] + block if last else block
            last.append(block)
            steps.update(int(match[1]) for match in _STEP.finditer(overlapping))
            if len(steps) > MOST_STEPS:
                raise BadInputError(path, f"more than {MOST_STEPS:,} ProfilerSteps", "export fewer steps into a file")
            found.update(mark for mark in _MARKS.keys() - found if _MARKS[mark].search(overlapping))
    return TracePeek(
        header=decode_header(before, _after(b"".join(last)))[0],
        steps=tuple(sorted(steps)),
        has_kernels="has_kernels" in found,
        has_stacks="has_stacks" in found,
        has_operators="has_operators" in found,
    )


def peek_header(path: Path) -> TraceHeader:
    """A trace's header from the text before its events; the rest of the file is read only if no rank stands there.

    Raises:
        BadInputError: the file is missing, empty or no trace.
    """
    with ByteSource(path) as source:
        before, _ = _read_before(path, source)
    header, _ = decode_header(before, b"")
    return header if header.rank is not None else peek(path).header


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
            raise BadInputError(path, str(error), "give a Kineto trace as torch.profiler exports it") from None
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

    Arrays may stand behind the events too, so the first such end is the one of the events.
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
