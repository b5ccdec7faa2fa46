"""Kineto traces (torch.profiler's JSON, plain or gzip) → typed columns, in bounded memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.events import ReadReport, TraceEvents
from traceviz_dag.read.kineto.boundaries import NotATraceError
from traceviz_dag.read.kineto.chunks import EventArray
from traceviz_dag.read.kineto.columns import ColumnBuilder
from traceviz_dag.read.kineto.event_decoder import EventDecoder
from traceviz_dag.read.kineto.header import decode_header
from traceviz_dag.read.kineto.lost_kernels import lost_kernels
from traceviz_dag.read.kineto.rows import Piece
from traceviz_dag.read.kineto.scanning import new_scanner, scanner_for
from traceviz_dag.read.limits import MOST_ROWS
from traceviz_dag.read.other_files import not_a_trace
from traceviz_dag.read.repeats import REPEATED, without_repeats
from traceviz_dag.read.sources import ByteSource

CHUNK_BYTES = 1 << 20
"""Bytes decoded at a time. The objects of a piece of 1 to 2 MiB stay in a core's caches; 8 MiB take a fifth longer."""

_SCANNED_BYTES = 4 << 20
"""Bytes scanned at a time: compiled code makes no objects, and each piece of a file takes a hundred calls of numpy."""

EXPORT_AGAIN = "export it again"
"""What to do about a trace of which a part cannot be read."""

CAPTURE_AGAIN = "capture fewer training steps, or less of each, at a time"
"""What to do about a trace that lost rows."""


def read_kineto(path: Path, *, chunk_bytes: int | None = None, scan: bool | None = None) -> TraceEvents:
    """Read a Kineto trace.

    A file that breaks off, or that holds events that cannot be decoded, gives what can be read; ``report`` says what
    is missing. Begin and end events are paired to durations.

    Args:
        path: the file; gzip is known from its first bytes.
        chunk_bytes: bytes decoded at a time; None: what is fastest. The result does not depend on it.
        scan: whether compiled code scans what is plain; None: where it repays its start. The result does not depend on
            it.

    Raises:
        BadInputError: the file is missing, empty, no trace, breaks off before its first event, or none of its events
            can be used.
    """
    builder = ColumnBuilder()
    with ByteSource(path) as source, _without_garbage_collection():
        if scan is None:
            scanner = scanner_for(source.size, compressed=source.compressed)
        else:
            scanner = new_scanner() if scan else None
        decoder = EventDecoder(scanner)
        fastest = CHUNK_BYTES if scanner is None else _SCANNED_BYTES
        array: EventArray[Piece] = EventArray(source, decoder.decode, chunk_bytes or fastest)

        def keep(piece: Piece) -> None:
            builder.add(piece)
            if builder.rows_kept > MOST_ROWS and not array.complete:
                array.give_up(f"it holds more than {MOST_ROWS:,} events (traceviz --most-rows N … reads more)")

        try:
            array.feed(keep)
        except NotATraceError as error:
            raise not_a_trace(path, str(error)) from None
        header, header_fault = decode_header(array.before, array.after)
        fault = _fault(array, source, header_fault)
        if not array.complete and not header.base_time_ns:
            fault = f"{fault}, its base time may be lost with them"
        if fault is not None and not builder.rows_read:
            raise BadInputError(path, f"{fault}, and no event can be read", EXPORT_AGAIN)
        dropped = dict(builder.dropped + array.dropped + decoder.unpaired)
        if dropped and not builder.rows_kept:
            raise BadInputError(
                path, f"none of its {builder.rows_read:,} events can be used: {told(dropped)}", EXPORT_AGAIN
            )
        events = builder.finish(header)
        device, repeats = without_repeats(events.device)
        if repeats:
            dropped[REPEATED] = repeats
    lost = lost_kernels(events.strings, events.launches, device)
    return replace(
        events,
        device=device,
        report=ReadReport(
            rows_read=builder.rows_read,
            dropped=dropped,
            fault=f"{fault}, {builder.rows_read} events were read; {EXPORT_AGAIN}"
            if fault is not None
            else None
            if lost is None
            else f"{lost}: the trace lost them; {CAPTURE_AGAIN}",
            breaks_off=not array.complete,
            digest=source.digest,
        ),
    )


def told(dropped: Mapping[str, int]) -> str:
    """What was dropped and why, in words, the most frequent reason first."""
    ordered = sorted(dropped.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count:,} × {reason}" for reason, count in ordered)


def _fault(array: EventArray[Piece], source: ByteSource, header_fault: str | None) -> str | None:
    """What keeps the file from being read as a whole; None where nothing does."""
    if source.fault is not None:
        return source.fault
    if array.gave_up is not None:
        return array.gave_up
    return header_fault if array.complete else "the JSON ends inside its events"


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of decoded objects without a cycle among them would be searched for cycles again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
