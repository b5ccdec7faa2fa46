"""Pieces of events that compiled code scans; those that it does not understand are left to msgspec."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int32, Int64
from traceviz_dag.read.events import CPU_OP, MISSING
from traceviz_dag.read.kineto import scanner as to
from traceviz_dag.read.kineto.communication_facts import Facts, FactValues
from traceviz_dag.read.kineto.packing import Columns
from traceviz_dag.read.kineto.rows import Codes, Piece
from traceviz_dag.read.kineto.schema import (
    ARGUMENTS_OF_CODE,
    COMMUNICATION_KEYS,
    FACT_TEXTS,
    GROUP_OF_CODE,
    INPUT_KEYS,
    INTEGER_KEYS,
    METADATA_CODE,
    REST_GROUP,
    SIZE_KEYS,
    Event,
    as_text,
    category_code,
)
from traceviz_dag.read.kineto.stated_inputs import (
    COMMUNICATION_OPERATOR,
    VALUED,
    InputsOnce,
    annotated_communication,
    input_key,
    may_state_communication,
    stated_communication,
)
from traceviz_dag.read.kineto.threads import Identifiers

_MOST_TOKENS = 1 << 16
"""Four of them fit 64 bits."""

_TEXT_BYTES = 1 << 24
_GUESSES = 1 << 16
_LONGEST_PIECE = 1 << 24
_SHORTEST_EVENT = 32
_EVENTS = msgspec.json.Decoder(list[Event])
_STRING = msgspec.json.Decoder(str)
_NOT_LOOKED_UP = -1

_FACTS = (*FACT_TEXTS, *(attribute for attribute in COMMUNICATION_KEYS if attribute not in FACT_TEXTS))
_COLUMN_OF = {"pid": to.PID, "tid": to.TID} | {
    attribute: to.FIRST_ARGUMENT + place for place, attribute in enumerate(INTEGER_KEYS)
}
_COLUMN_OF |= {
    attribute: to.FIRST_ARGUMENT + len(INTEGER_KEYS) + 3 * place for place, attribute in enumerate(SIZE_KEYS)
}
_FIRST_FACT = to.FIRST_ARGUMENT + len(INTEGER_KEYS) + 3 * len(SIZE_KEYS)
_FIRST_FACT_NUMBER = _FIRST_FACT + len(FACT_TEXTS)
_COLUMN_OF |= {attribute: _FIRST_FACT + place for place, attribute in enumerate(_FACTS)}
_WIDTH = _FIRST_FACT + len(_FACTS)

_OUTER = {
    "cat": (to.TEXT, to.CATEGORY),
    "name": (to.TEXT, to.NAME),
    "pid": (to.INTEGER, to.PID),
    "tid": (to.INTEGER, to.TID),
    "ts": (to.MICROSECONDS, to.TIME),
    "dur": (to.MICROSECONDS, to.DURATION),
    "args": (to.ARGUMENTS, 0),
}
_INNER = {
    **{key: (to.INTEGER, _COLUMN_OF[attribute]) for attribute, key in INTEGER_KEYS.items()},
    **{key: (to.TRIPLE, _COLUMN_OF[attribute]) for attribute, key in SIZE_KEYS.items()},
    **{
        key: (to.ANY if attribute in FACT_TEXTS else to.INTEGER, _COLUMN_OF[attribute])
        for attribute, key in COMMUNICATION_KEYS.items()
    },
    INPUT_KEYS["input_sizes"]: (to.ANY, to.SIZES),
    INPUT_KEYS["input_types"]: (to.ANY, to.TYPES),
    INPUT_KEYS["input_strides"]: (to.ANY, to.STRIDES),
    INPUT_KEYS["concrete_inputs"]: (to.VALUED_INPUTS, to.VALUES),
}
_KEYS = np.zeros((1 + len(_OUTER) + len(_INNER), 3), np.int64)
for _token, (_action, _column) in enumerate(_OUTER.values(), 1):
    _KEYS[_token] = _action, to.SKIPPED, _column
for _token, (_action, _column) in enumerate(_INNER.values(), 1 + len(_OUTER)):
    _KEYS[_token] = to.SKIPPED, _action, _column


def _bits_of(*keys: str) -> int:
    """A bit for each key, as in columns ``SEEN`` and ``ODD``."""
    return sum(1 << token for token, key in enumerate((*_OUTER, *_INNER), 1) if key in keys)


_READ_OF_CODE = np.zeros(len(GROUP_OF_CODE), np.int64)
for _code, _arguments in ARGUMENTS_OF_CODE.items():
    _READ_OF_CODE[_code] = _bits_of("pid", "tid", "args", *_arguments.__struct_encode_fields__)
"""Category code → keys of which the values are read, a bit each."""

_TEXTS_SEEN = _bits_of(*(COMMUNICATION_KEYS[attribute] for attribute in FACT_TEXTS))
_NAMES_SEEN = _bits_of(COMMUNICATION_KEYS["collective"], COMMUNICATION_KEYS["group_name"])
_ARGUMENTS_TOKEN = 1 + [*_OUTER].index("args")
_EMPTY = len(_KEYS) + len(VALUED)
_OPERATOR = _EMPTY + 1
_FIRST_TOKENS = (*_OUTER, *_INNER, *sorted(VALUED), "", COMMUNICATION_OPERATOR)
"""Texts of the tokens from 1 on; of names that are listed there is no other spelling that the pass takes."""


class PieceScanner:
    """Scans the pieces of a file, whose columns go to one builder."""

    def __init__(self) -> None:
        self._text = np.zeros(to.PADDING, np.uint8)
        self._forget()

    def piece(self, text: memoryview, decode: Callable[[bytes], list[Any]]) -> Piece | None:
        """The events of a JSON array, good until the next piece; None where msgspec must see it.

        Args:
            decode: decodes an array of the few events of which more is told than columns.
        """
        events = self._scan(text)
        if events is None:
            return None
        try:
            codes = self._codes(events[:, to.CATEGORY])
            at = np.flatnonzero(GROUP_OF_CODE.take(codes) < REST_GROUP)
            names = events[at, to.NAME]
            duration_ns = events[at, to.DURATION]
            # Without a duration an event may be the begin or the end of one.
            if (events[at, to.ODD] & _READ_OF_CODE.take(codes[at])).any() or (duration_ns == MISSING).any():
                return None
            seen = events[at, to.SEEN]
            self._know(names)
            self._know(events[at[(seen & _TEXTS_SEEN) != 0], _FIRST_FACT:_FIRST_FACT_NUMBER].astype(np.uint16))
            stating = at[(names == _OPERATOR) & (codes[at] == CPU_OP) & ((seen & _NAMES_SEEN) == 0)]
            structs = dict(zip(stating.tolist(), decode(self._text_of(events[stating])), strict=True))
            metadata: list[Any] = _EVENTS.decode(self._text_of(events[codes == METADATA_CODE]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        thread_names = [(row.pid, row.tid, as_text(row.args.name)) for row in metadata if row.name == "thread_name"]
        rows = ScannedRows(self, events, at, structs)
        start_ns = events[at, to.TIME]
        return Piece(len(events), rows, codes[at], start_ns, duration_ns / 1000, thread_names, Counter())

    def string_codes(self, tokens: Int64, strings: defaultdict[str, int]) -> Int32:
        """Codes of names in ``strings``, which grows in the order in which they come."""
        return _looked_up(self._string_codes, tokens, lambda token: strings[self._decoded[token]])

    def named(self, events: Int64, values: FactValues) -> Columns:
        """Facts of communications that name a collective or a group."""
        facts = events[:, _FIRST_FACT:]
        texts = facts[:, : len(FACT_TEXTS)].astype(np.uint16)
        facts[:, : len(FACT_TEXTS)] = _looked_up(
            self._fact_numbers, texts, lambda token: values.numbers([self._decoded[token]])[0]
        )
        return dict(zip(_FACTS, facts.T, strict=True))

    def annotated(self, tokens: Int64, values: FactValues) -> Facts:
        """Facts of annotations, by tokens of name, sizes, types and strides."""
        telling = np.flatnonzero(self._tells[tokens[:, 0]])
        # Strides say nothing: annotations that have the other three in common are alike.
        together = tokens[telling].astype(np.uint16).view(np.int64)[:, 0] & (1 << 48) - 1
        alike, which = np.unique(together, return_inverse=True)
        stated = [
            annotated_communication(self._decoded[name], self._raw(sizes), self._raw(types))
            for name, sizes, types in zip(*(alike >> 16 * place & 0xFFFF for place in range(3)), strict=True)
        ]
        return values.repeated(telling, which, stated)

    def inputs(self, tokens: Int64, known: InputsOnce) -> Int64:
        """The numbers of what operators state of their inputs, by tokens of sizes, types, strides and values."""
        # The token of nothing is 0, as are the last bits of MISSING.
        together = tokens.astype(np.uint16).view(np.uint64)[:, 0]
        alike, first, which = np.unique(together, return_index=True, return_inverse=True)
        numbers = self._input_numbers
        new = [each for each in alike[np.argsort(first)].tolist() if each not in numbers]
        numbers.update(zip(new, known.numbers([self._input_key(each) for each in new]), strict=True))
        return np.array([numbers[each] for each in alike.tolist()], np.int64)[which]

    def _input_key(self, together: int) -> bytes:
        return input_key(*(self._raw(together >> 16 * place & 0xFFFF) for place in range(4)))

    def _forget(self) -> None:
        """Start with the tokens alone that are there from the start."""
        text = np.zeros(_TEXT_BYTES, np.uint8)
        text[0] = 0xFF
        places = np.zeros(_MOST_TOKENS + 2, np.int64)
        places[1] = 1
        table, guesses = np.zeros(2 * _MOST_TOKENS, np.int32), np.zeros(_GUESSES, np.int32)
        gaps = np.zeros((_MOST_TOKENS, 6), np.int32)
        self._memory = to.Memory(np.ones(2, np.int64), text, _words(text), places, table, guesses, gaps)
        for known in _FIRST_TOKENS:
            quoted = np.frombuffer(msgspec.json.encode(known) + bytes(to.PADDING), np.uint8)
            to.token_of(quoted, _words(quoted), 0, len(quoted) - to.PADDING, to.VALUE_TOKEN, self._memory)
        self._decoded: dict[int, Any] = {0: MISSING}
        self._string_codes = np.full(_MOST_TOKENS, _NOT_LOOKED_UP, np.int32)
        self._fact_numbers = np.full(_MOST_TOKENS, _NOT_LOOKED_UP, np.int32)
        self._category_codes = np.full(_MOST_TOKENS, _NOT_LOOKED_UP, np.int16)
        self._known = np.zeros(_MOST_TOKENS, bool)
        self._known[0] = True
        self._tells = np.zeros(_MOST_TOKENS, bool)
        self._input_numbers: dict[int, int] = {}

    def _scan(self, text: memoryview) -> Int64 | None:
        end = len(text) + to.PADDING
        if end > _LONGEST_PIECE:
            return None
        if len(self._text) < end:
            self._text = np.empty(2 * end, np.uint8)
            self._rows = np.empty((2 * end // _SHORTEST_EVENT, _WIDTH), np.int64)
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._text[len(text) : end] = 0
        padded = self._text[:end]
        count = to.FULL
        for _ in range(2):
            count = to.scan(padded, _words(padded), self._rows, self._memory, _KEYS, _ARGUMENTS_TOKEN, _EMPTY)
            if count != to.FULL:
                break
            self._forget()
        return self._rows[:count] if count > 0 else None

    def _codes(self, tokens: Int64) -> Codes:
        codes = _looked_up(self._category_codes, tokens, lambda token: category_code(_STRING.decode(self._raw(token))))
        return codes.astype(np.uint8)

    def _know(self, tokens: npt.NDArray[Any]) -> None:
        """Decode values that are new."""
        for token in set(tokens[~self._known[tokens]].tolist()):
            value = self._decoded[token] = msgspec.json.decode(self._raw(token))
            self._tells[token] = isinstance(value, str) and may_state_communication(value)
            self._known[token] = True

    def _raw(self, token: int) -> bytes:
        start, end = self._memory.places[token : token + 2].tolist()
        return self._memory.text[start : end - 1].tobytes()

    def _text_of(self, events: Int64) -> bytes:
        """The JSON array of some events."""
        text = self._text.data
        spans = events[:, to.START : to.END + 1].tolist()
        return b"[" + b",".join([text[start:end] for start, end in spans]) + b"]"


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Events that were scanned: see ``Rows``.

    Attributes:
        scanner: knows the tokens.
        events: all events of the piece, in the columns of ``scanner``.
        at: which of them these are.
        structs: place in ``events`` → the event as msgspec decodes it, of operators that name no collective or group.
    """

    scanner: PieceScanner
    events: Int64
    at: Int64
    structs: dict[int, Any]

    def __len__(self) -> int:
        return len(self.at)

    def take(self, places: Int64) -> ScannedRows:
        return replace(self, at=self.at[places])

    def names(self, strings: defaultdict[str, int]) -> Int32:
        return self.scanner.string_codes(self.events[self.at, to.NAME], strings)

    def identifiers(self, key: str, _: Identifiers) -> Int64:
        return self.integers(key)

    def integers(self, attribute: str) -> Int64:
        return self.events[self.at, _COLUMN_OF[attribute]]

    def triples(self, attribute: str) -> Int64:
        first = _COLUMN_OF[attribute]
        return self.events[self.at, first : first + 3]

    def inputs(self, known: InputsOnce) -> Int64:
        return self.scanner.inputs(self.events[self.at, to.SIZES : to.VALUES + 1], known)

    def named(self, values: FactValues) -> Facts:
        places = np.flatnonzero(self.events[self.at, to.SEEN] & _NAMES_SEEN)
        return places, self.scanner.named(self.events[self.at[places]], values)

    def stated(self, values: FactValues) -> Facts:
        structs = ((place, self.structs.get(at)) for place, at in enumerate(self.at.tolist()))
        return values.facts(
            {place: stated for place, row in structs if row is not None and (stated := stated_communication(row.args))}
        )

    def annotated(self, values: FactValues) -> Facts:
        return self.scanner.annotated(self.events[self.at, to.NAME : to.STRIDES + 1], values)


def _looked_up(known: npt.NDArray[Any], tokens: npt.NDArray[Any], number_of: Callable[[int], int]) -> npt.NDArray[Any]:
    """Numbers of tokens, found once for each, in the order in which they come."""
    numbers = known[tokens]
    if (new := numbers == _NOT_LOOKED_UP).any():
        for token in dict.fromkeys(tokens[new].tolist()):
            known[token] = number_of(token)
        numbers = known[tokens]
    return numbers


def _words(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The eight bytes from each place on as an integer, as processors with the lowest byte first read it."""
    return np.ndarray((len(text) - 7,), np.dtype("<u8"), text.data, strides=(1,))
