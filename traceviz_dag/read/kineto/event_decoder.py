"""Bytes of a JSON array of Kineto events → typed events with exact start times."""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.kineto.duration_pairs import BEGIN_WITHOUT_END, DurationPairs
from traceviz_dag.read.kineto.packing import floats
from traceviz_dag.read.kineto.rows import Codes, Piece, StructRows
from traceviz_dag.read.kineto.schema import (
    GROUP_OF_CODE,
    METADATA_CODE,
    REST_GROUP,
    Arguments,
    Event,
    TaggedEvent,
    as_integer,
    as_text,
    category_code,
)
from traceviz_dag.read.kineto.timestamps import (
    EXACT_BELOW,
    ShortenedTimes,
    exact_times,
    restore_times,
    shorten_times,
    to_nanoseconds,
)

if TYPE_CHECKING:
    from traceviz_dag.read.kineto.scanned_rows import PieceScanner

NOT_AN_OBJECT = "not an object"
NO_NUMBER = "a number out of range"
"""Reasons in ``Piece.dropped``."""

_TAGGED = msgspec.json.Decoder(list[TaggedEvent])
_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_METADATA = (b'"ph": "M"', b'"ph":"M"')
_METADATA_WITHIN = 1 << 15
"""Kineto ends its events with those of metadata: in so many bytes, those of hundreds of threads."""

_FRUITLESS_TRIES = 3


class EventDecoder:
    """Decodes the pieces of a file.

    A scanner, where there is one, takes what is plain, until three pieces in a row are not.

    What it leaves is decoded by a narrow struct for each category first, up to the metadata at the end of a piece,
    which fails for one with metadata elsewhere or with anything unforeseen; then by a wide lenient one; where even that
    fails, one by one. Begin and end events are set apart only where an event lacks its duration: they are decoded a
    second time then.
    """

    def __init__(self, scanner: PieceScanner | None = None) -> None:
        self._scanner, self._scans_left = scanner, _FRUITLESS_TRIES
        self._tries_left = _FRUITLESS_TRIES
        self._code_of_category = _CategoryCodes()
        self._pairs = DurationPairs()

    @property
    def unpaired(self) -> Counter[str]:
        """Reason → begin and end events that were left without the other; final once the file is read."""
        open_begins = self._pairs.open_begins
        return self._pairs.dropped + Counter({BEGIN_WITHOUT_END: open_begins} if open_begins else {})

    @property
    def lost_ends(self) -> Counter[str]:
        """Reason → end events whose begin did not come before them, so far."""
        return Counter(self._pairs.dropped)

    def decode(self, text: memoryview) -> Piece:
        """Decode a JSON array of events.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError: ``text`` is no JSON array; positions in messages refer to ``text``.
        """
        if self._scanner is not None and self._scans_left and not self._pairs.pending:
            piece = self._scanner.piece(text, lambda few: self._decode_rows(few)[0])
            if piece is not None:
                self._scans_left = _FRUITLESS_TRIES
                return piece
            self._scans_left -= 1
        shortened = shorten_times(text)
        try:
            rows, codes = self._decode_rows(text if shortened is None else shortened.text)
        except msgspec.ValidationError:
            return self._decode_one_by_one(text)
        except msgspec.DecodeError:
            if shortened is not None:
                _RAW.decode(text)
            raise
        has_table = GROUP_OF_CODE[codes] < REST_GROUP
        kept = rows if has_table.all() else list(compress(rows, has_table.tobytes()))
        start_ns = _start_ns(floats([row.ts for row in kept]), shortened)
        if start_ns is None:
            start_ns = _exact_start_ns(text)[has_table]
        return self._piece(text, rows, codes, kept, start_ns, Counter())

    def _decode_rows(self, text: memoryview | bytearray | bytes) -> tuple[list[Any], Codes]:
        code_of = self._code_of_category
        if self._tries_left:
            before, behind = _around_metadata(text)
            try:
                rows, others = _TAGGED.decode(before), _EVENTS.decode(behind)
            except msgspec.ValidationError:
                self._tries_left -= 1
            except msgspec.DecodeError:
                if before is text:
                    raise
            else:
                self._tries_left = _FRUITLESS_TRIES
                codes = bytes([row.code for row in rows]) + bytes([code_of[row.cat] for row in others])
                return rows + others, np.frombuffer(codes, np.uint8)
        rows = _EVENTS.decode(text)
        return rows, np.frombuffer(bytes([code_of[row.cat] for row in rows]), np.uint8)

    def _decode_one_by_one(self, text: memoryview) -> Piece:
        """Decode events of which some have odd types: what an event can do without is repaired, the rest dropped."""
        rows: list[Event] = []
        raw_rows: list[msgspec.Raw] = []
        dropped: Counter[str] = Counter()
        for raw in _RAW.decode(text):
            if not bytes(raw).startswith(b"{"):
                dropped[NOT_AN_OBJECT] += 1
                continue
            try:
                row = _lenient_event(raw)
            except (msgspec.ValidationError, UnicodeEncodeError):
                dropped[NO_NUMBER] += 1
                continue
            rows.append(row)
            raw_rows.append(raw)
        codes = np.array([self._code_of_category[row.cat] for row in rows], np.uint8)
        has_table = GROUP_OF_CODE[codes] < REST_GROUP
        whole = b"[" + b",".join(raw_rows) + b"]"
        start_ns = _exact_start_ns(whole)[has_table]
        piece = self._piece(whole, rows, codes, list(compress(rows, has_table.tobytes())), start_ns, dropped)
        return piece._replace(decoded=len(rows) + sum(dropped.values()))

    def _piece(
        self,
        text: bytes | memoryview,
        rows: list[Any],
        codes: Codes,
        kept: list[Any],
        start_ns: Int64,
        dropped: Counter[str],
    ) -> Piece:
        duration_us = floats([row.dur for row in kept])
        every_code, has_table = codes, GROUP_OF_CODE[codes] < REST_GROUP
        thread_names: list[tuple[int | str, int | str, str]] = []
        if len(kept) < len(rows):
            is_metadata = codes == METADATA_CODE
            if is_metadata.any():
                named = (row for row in compress(rows, is_metadata.tobytes()) if row.name == "thread_name")
                thread_names = [(row.pid, row.tid, as_text(row.args.name)) for row in named]
            codes = codes[has_table]
        piece = Piece(len(rows), StructRows(kept), codes, start_ns, duration_us, thread_names, dropped)
        if self._pairs.pending or np.isnan(duration_us).any():
            return self._with_pairs(text, rows, every_code, kept, piece)
        return piece

    def _with_pairs(
        self, text: bytes | memoryview, rows: list[Any], codes: Codes, kept: list[Any], piece: Piece
    ) -> Piece:
        """The piece with its begin and end events replaced by the durations that they make."""
        has_table = GROUP_OF_CODE[codes] < REST_GROUP
        tabled = [row if has else None for row, has in zip(rows, has_table.tolist(), strict=True)]
        pairs, places = self._pairs.feed(text, tabled, codes.tolist(), _exact_start_ns(text))
        if not places:
            return piece
        alone = np.ones(len(rows), bool)
        alone[places] = False
        alone = alone[has_table]
        return piece._replace(
            rows=StructRows([*compress(kept, alone.tobytes()), *(pair.row for pair in pairs)]),
            codes=np.concatenate([piece.codes[alone], np.array([pair.code for pair in pairs], np.uint8)]),
            start_ns=np.concatenate([piece.start_ns[alone], np.array([pair.start_ns for pair in pairs], np.int64)]),
            duration_us=np.concatenate([piece.duration_us[alone], [pair.duration_ns / 1000 for pair in pairs]]),
        )


def _around_metadata(
    text: memoryview | bytearray | bytes,
) -> tuple[memoryview | bytearray | bytes, memoryview | bytearray | bytes]:
    """The events of a JSON array before the metadata near its end, and the rest, as two arrays; where these do not
    decode, the text was cut inside an event."""
    start = max(0, len(text) - _METADATA_WITHIN)
    last = bytes(text[start:])
    found = next((place for key in _METADATA if (place := last.find(key)) >= 0), -1)
    brace = last.rfind(b"{", 0, found) if found >= 0 else -1
    before = last[:brace].rstrip()
    # Without a comma the text is no JSON, wherever it is cut.
    if brace < 0 or not before.endswith(b","):
        return text, b"[]"
    events = bytearray(memoryview(text)[: start + len(before)])
    events[-1:] = b"]"
    return events, b"[" + last[brace:]


class _CategoryCodes(dict[str, int]):
    """Category text → code, found once for each text."""

    def __missing__(self, text: str) -> int:
        self[text] = category_code(text)
        return self[text]


def _start_ns(times: npt.NDArray[np.float64], shortened: ShortenedTimes | None) -> Int64 | None:
    """Nanoseconds of decoded times, MISSING for NaN; None where doubles do not hold them exactly."""
    absent = np.isnan(times)
    some_absent = bool(absent.any())
    if some_absent:
        times = np.where(absent, 0.0, times)
    start_ns: Int64 | None = None
    if shortened is not None:
        start_ns = restore_times(times, shortened)
    elif np.abs(times).max(initial=0.0) < EXACT_BELOW:
        start_ns = to_nanoseconds(times)
    if some_absent and start_ns is not None:
        start_ns[absent] = MISSING
    return start_ns


def _exact_start_ns(text: bytes | memoryview) -> Int64:
    return np.array([MISSING if time is None else time for time in exact_times(text)], np.int64)


def _lenient_event(raw: msgspec.Raw) -> Event:
    """An event from fields of any type; NaN for a time that is no number.

    Raises:
        msgspec.ValidationError: a number that no double holds.
    """
    try:
        return _EVENT.decode(raw)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(raw)
    arguments = fields.get("args")
    return Event(
        cat=as_text(fields.get("cat")),
        name=as_text(fields.get("name")),
        pid=_identifier(fields.get("pid")),
        tid=_identifier(fields.get("tid")),
        ts=_time(fields.get("ts")),
        dur=_time(fields.get("dur")),
        args=msgspec.convert(arguments if isinstance(arguments, dict) else {}, Arguments),
    )


def _time(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        raise msgspec.ValidationError(NO_NUMBER) from None


def _identifier(value: object) -> int | str:
    number = as_integer(value)
    return value if number == MISSING and isinstance(value, str) else number
