"""One pass over the bytes of a piece of events, compiled by numba.

What lies between two values of events, the *gap* (brackets, comma, key, colon, blanks), is nearly always one of few
texts. So is every name, category and list of inputs. Each of these *tokens* is understood once, kept, and from then on
compared, eight bytes at a time, with what stands there: a gap with the one that followed last time behind the gaps
before it, a value with the one that began with the same bytes.

The pass knows plain JSON alone. Whatever else it meets, it gives up the piece: msgspec then says what holds, and what
is to be repaired. It accepts nothing that msgspec would refuse or understand differently. Bytes behind the text are
zero, which ends every loop, as no JSON contains it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
"""Eight bytes from each place on."""

START, END, SEEN, ODD, PID, TID, TIME, DURATION, CATEGORY, NAME, SIZES, TYPES, STRIDES, VALUES = range(14)
FIRST_ARGUMENT = 14
"""Columns of rows: place of the event, keys that are read and those with values of odd types, a bit each, ids, ns, and
tokens; other arguments follow."""

SKIPPED, INTEGER, MICROSECONDS, TEXT, ANY, VALUED_INPUTS, TRIPLE, ARGUMENTS = range(8)
"""What is done with the value of a key."""

ACTION, INNER_ACTION, COLUMN = range(3)
"""Columns of keys: what is done with one of an event and with one of its arguments, and where the value goes."""

UNCLEAN, FULL, _ENDED = -1, -2, -3
"""No number of rows: the piece is not plain, or the memory of tokens has no room."""

VALUE_TOKEN = 0
_IN_EVENT, _IN_ARGUMENTS, _IN_ARRAY = 1, 2, 3
"""Where a token stands; a gap means different things inside arguments and outside."""

_KEY, _GAP_ACTION, _STATE, _OPENS, _EVENT_END, _EVENT_START = range(6)
"""Columns of gaps: key and action of the value behind it, where that value is, whether arguments open, and how far
behind the start of the gap an event ends and one starts (-1: none does)."""

PADDING = 64
_DEEPEST = 60
_MOST_DIGITS, _MOST_DECIMALS = 18, 32
_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT, _ZERO, _N, _SMALL_E, _LARGE_E = b'"\\,:-+.0neE'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
_TO_OBJECT = _CLOSE - _CLOSE_LIST
_ESCAPED = np.isin(np.arange(256), [*b'"\\/bfnrt'])
_VALUE_WORDS = tuple(np.frombuffer(word, np.uint8) for word in (b"true", b"null", b"false"))
_U = np.uint64
_ONE, _THREE, _SEVEN, _EIGHT, _TEN, _TOP_BYTE = _U(1), _U(3), _U(7), _U(8), _U(10), _U(56)
_LOW_HALF, _HALF, _WORD = _U(16), _U(32), _U(64)
_ONES, _HIGH_BITS = _U(0x0101010101010101), _U(0x8080808080808080)
_QUOTES, _BACKSLASHES, _BLANKS = _U(0x2222222222222222), _U(0x5C5C5C5C5C5C5C5C), _U(0x2020202020202020)
_ZEROS, _ABOVE_NINE = _U(0x3030303030303030), _U(0x7676767676767676)
_BYTE_NUMBERS = _U(0x0001020304050607)
_PAIRS, _HUNDREDS, _UNITS = _U(0x000000FF000000FF), _U(0x000F424000000064), _U(0x0000271000000001)
_MIXER, _FOLD = _U(0x9E3779B97F4A7C15), _U(29)
_TENS = np.array([10**power for power in range(9)], np.int64)


class Memory(NamedTuple):
    """Tokens met so far, and what to expect where.

    Attributes:
        counts: the number of the next token, and the place for its text.
        text, words: the texts of all tokens, behind each the state it stands in.
        places: token → where its text begins; at the next place it ends.
        table: hash → token, 0 for none; a power of two long.
        guesses: context → the token that came last time, of gaps also the last but one; a power of two long.
        gaps: token of a gap → its meaning.
    """

    counts: Int64
    text: Bytes
    words: Words
    places: Int64
    table: npt.NDArray[np.int32]
    guesses: npt.NDArray[np.int32]
    gaps: npt.NDArray[np.int32]


@njit(forceinline=True)
def _first_marked(marks: np.uint64) -> int:
    """The lowest byte of which the high bit is set."""
    return np.int64((((marks & (~marks + _ONE)) >> _SEVEN) * _BYTE_NUMBERS) >> _TOP_BYTE)  # type: ignore[return-value]


@njit(forceinline=True)
def _blanks_end(text: Bytes, at: int) -> int:
    while text[_U(at)] == 32 or text[_U(at)] == 10 or text[_U(at)] == 13 or text[_U(at)] == 9:
        at += 1
    return at


@njit(cache=False)
def _string_end(text: Bytes, words: Words, at: int) -> int:
    """Behind the string that starts at a place; UNCLEAN where it has escapes other than of one letter."""
    at += 1
    while True:
        while True:
            word = words[_U(at)]
            quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
            marks = (quotes - _ONES) & ~quotes | (backslashes - _ONES) & ~backslashes | (word - _BLANKS) & ~word
            marks &= _HIGH_BITS
            if marks:
                break
            at += 8
        at += _first_marked(marks)
        byte = text[_U(at)]
        if byte == _QUOTE:
            return at + 1
        if byte != _BACKSLASH:
            return UNCLEAN
        byte = text[_U(at + 1)]
        if not _ESCAPED[byte]:
            return UNCLEAN
        at += 2


@njit(cache=False)
def _digits_end(text: Bytes, at: int) -> int:
    while 48 <= text[_U(at)] <= 57:
        at += 1
    return at


@njit(cache=False)
def _number_end(text: Bytes, at: int) -> int:
    """Behind a number that any double holds."""
    if text[_U(at)] == _MINUS:
        at += 1
    end = _digits_end(text, at)
    if end == at or end - at > _MOST_DIGITS or (text[_U(at)] == _ZERO and end > at + 1):
        return UNCLEAN
    if text[_U(end)] == _POINT:
        at = end + 1
        end = _digits_end(text, at)
        if end == at or end - at > _MOST_DECIMALS:
            return UNCLEAN
    if text[_U(end)] == _SMALL_E or text[_U(end)] == _LARGE_E:
        at = end + 1
        if text[_U(at)] == _MINUS or text[_U(at)] == _PLUS:
            at += 1
        end = _digits_end(text, at)
        if end == at or end - at > 2:
            return UNCLEAN
    return end


@njit(cache=False)
def _word_end(text: Bytes, at: int) -> int:
    """Behind true, false or null."""
    for word in _VALUE_WORDS:
        length = len(word)
        same = 0
        while same < length and text[at + same] == word[same]:
            same += 1
        if same == length:
            return at + length
    return UNCLEAN


@njit(cache=False)
def _value_end(text: Bytes, words: Words, at: int) -> int:
    """Behind the value at a place; UNCLEAN where it is none that is plain."""
    depth = kinds = 0  # A bit for each open bracket: 1 for an object.
    while True:
        byte = text[_U(at)]
        whole = True
        if byte in (_OPEN_LIST, _OPEN):
            depth += 1
            if depth > _DEEPEST:
                return UNCLEAN
            kinds = (kinds << 1) | (byte == _OPEN)
            at = _blanks_end(text, at + 1)
            whole = text[_U(at)] == _CLOSE_LIST + _TO_OBJECT * (kinds & 1)
        elif byte == _QUOTE:
            at = _string_end(text, words, at)
        elif byte == _MINUS or 48 <= byte <= 57:
            at = _number_end(text, at)
        else:
            at = _word_end(text, at)
        if at < 0 or depth == 0:
            return at
        if whole:
            while True:
                at = _blanks_end(text, at)
                byte = text[_U(at)]
                at += 1
                if byte == _COMMA:
                    break
                if byte != _CLOSE_LIST + _TO_OBJECT * (kinds & 1):
                    return UNCLEAN
                depth -= 1
                kinds >>= 1
                if depth == 0:
                    return at
            at = _blanks_end(text, at)
        if kinds & 1:
            if text[_U(at)] != _QUOTE:
                return UNCLEAN
            at = _string_end(text, words, at)
            if at < 0:
                return UNCLEAN
            at = _blanks_end(text, at)
            if text[_U(at)] != _COLON:
                return UNCLEAN
            at = _blanks_end(text, at + 1)


@njit(forceinline=True)
def _integer(words: Words, at: int) -> tuple[int, int]:
    """The number of up to eight digits at a place, and their end."""
    word = words[_U(at)] ^ _ZEROS
    marks = ((word + _ABOVE_NINE) | word) & _HIGH_BITS
    count = 8
    if marks:
        count = _first_marked(marks)
        word = word << ((_EIGHT - _U(count)) << _THREE) if count else _U(0)
    word = word * _TEN + (word >> _EIGHT)
    value = ((word & _PAIRS) * _HUNDREDS + ((word >> _LOW_HALF) & _PAIRS) * _UNITS) >> _HALF
    return np.int64(value), at + count  # type: ignore[return-value]


@njit(forceinline=True)
def _long_integer(words: Words, at: int) -> tuple[int, int]:
    """The number of up to sixteen digits at a place, and their end; a digit behind it makes a gap that is none."""
    value, end = _integer(words, at)
    if end == at + 8:
        low, end = _integer(words, end)
        value = value * _TENS[end - at - 8] + low
    return value, end


@njit(forceinline=True)
def _matches(
    text: Bytes, words: Words, at: int, kept: Bytes, kept_words: Words, places: Int64, token: int, state: int
) -> int:
    """Behind the token if it stands at a place, else UNCLEAN."""
    start = places[token]
    length = places[token + 1] - start - 1
    if kept[_U(start + length)] != state:
        return UNCLEAN
    last = length - 8
    if last < 0:
        same = ((words[_U(at)] ^ kept_words[_U(start)]) << (_WORD - (_U(length) << _THREE))) == _U(0)
    else:
        offset = 0
        # What is behind the text is zero and no token contains that: this never gets far behind it.
        while offset < last and words[_U(at + offset)] == kept_words[_U(start + offset)]:
            offset += 8
        same = offset >= last and words[_U(at + last)] == kept_words[_U(start + last)]
    return at + length if same else UNCLEAN


@njit(cache=False)
def token_of(text: Bytes, words: Words, at: int, end: int, state: int, memory: Memory) -> int:
    """The token of some bytes, a new one if need be; FULL where there is no room."""
    length = end - at
    mixed = _U(length * 8 + state)
    if length < 8:
        for place in range(at, end):
            mixed = (mixed << _EIGHT) ^ _U(text[_U(place)])
    else:
        for place in range(at, end - 8, 8):
            mixed = (mixed ^ words[_U(place)]) * _MIXER
            mixed ^= mixed >> _FOLD
        mixed ^= words[_U(end - 8)]
    slots = len(memory.table)
    slot = np.int64(((mixed * _MIXER) >> _HALF) & _U(slots - 1))
    while memory.table[slot]:
        token = memory.table[slot]
        if _matches(text, words, at, memory.text, memory.words, memory.places, token, state) == end:
            return token
        slot = (slot + 1) & (slots - 1)
    token, start = memory.counts[0], memory.counts[1]
    if 2 * token >= slots or start + length + PADDING > len(memory.text):
        return FULL
    for place in range(length):
        memory.text[start + place] = text[at + place]
    memory.text[start + length] = state
    memory.counts[0] = token + 1
    memory.counts[1] = memory.places[token + 1] = start + length + 1
    memory.table[slot] = token
    return token


@njit(forceinline=True)
def _context_of_value(words: Words, at: int, contexts: int) -> int:
    """The guess at a value, by its first bytes; few names are so short that a time is among these."""
    mixed = words[_U(at)]
    for place in range(at + 8, at + 40, 8):
        mixed = (mixed ^ (mixed >> _FOLD)) * _MIXER ^ words[_U(place)]
    return np.int64(((mixed ^ (mixed >> _FOLD)) * _MIXER) >> _HALF) & contexts  # type: ignore[return-value]


@njit(forceinline=True)
def _learn_value(text: Bytes, words: Words, at: int, guess: int, memory: Memory) -> tuple[int, int]:
    """The token of the value at a place, and its end; UNCLEAN or FULL instead of a token."""
    end = _value_end(text, words, at)
    if end < 0:
        return UNCLEAN, end
    token = token_of(text, words, at, end, VALUE_TOKEN, memory)
    memory.guesses[guess] = max(token, 0)
    return token, end


@njit(cache=False)
def _learn_gap(
    text: Bytes, words: Words, first: int, state: int, guess: int, memory: Memory, keys: Int64
) -> tuple[int, int]:
    """The token of the gap at a place, and its end; UNCLEAN, FULL or _ENDED and the end of the last event."""
    before = state
    event_end = event_start = -1
    opens = 0
    at = first
    fresh = False  # Behind the bracket of an object that holds nothing yet.
    if state == _IN_ARRAY:
        at = _blanks_end(text, at + 1)
        if text[first] != _OPEN_LIST or text[at] != _OPEN:
            return UNCLEAN, at
        event_start = at - first
        at += 1
        state = _IN_EVENT
        fresh = True
    while True:
        at = _blanks_end(text, at)
        if text[at] == _CLOSE:
            if fresh:
                return UNCLEAN, at
            at += 1
            if state == _IN_ARGUMENTS:
                state = _IN_EVENT
                continue
            if event_end >= 0:
                return UNCLEAN, at
            event_end = at - first
            at = _blanks_end(text, at)
            if text[at] == _CLOSE_LIST:
                return (_ENDED if _blanks_end(text, at + 1) == len(text) - PADDING else UNCLEAN), first + event_end
            if text[at] != _COMMA:
                return UNCLEAN, at
            at = _blanks_end(text, at + 1)
            if text[at] != _OPEN:
                return UNCLEAN, at
            event_start = at - first
            at += 1
            fresh = True
            continue
        if not fresh:
            if text[at] != _COMMA:
                return UNCLEAN, at
            at = _blanks_end(text, at + 1)
        if text[at] != _QUOTE:
            return UNCLEAN, at
        end = _string_end(text, words, at)
        if end < 0:
            return UNCLEAN, at
        key = token_of(text, words, at, end, VALUE_TOKEN, memory)
        if key < 0:
            return key, at
        at = _blanks_end(text, end)
        if text[at] != _COLON:
            return UNCLEAN, at
        at = _blanks_end(text, at + 1)
        action = SKIPPED
        if key < len(keys):
            action = keys[key, INNER_ACTION if state == _IN_ARGUMENTS else ACTION]
        if action == ARGUMENTS and text[at] == _OPEN and text[_blanks_end(text, at + 1)] != _CLOSE:
            state = _IN_ARGUMENTS
            opens += 1
            fresh = True
            at += 1
            continue
        if opens > 1:
            return UNCLEAN, at
        token = token_of(text, words, first, at, before, memory)
        if token >= 0:
            memory.guesses[guess] = token
            for column, value in enumerate((key, action, state, opens, event_end, event_start)):
                memory.gaps[token, column] = value
        return token, at


@njit(cache=False)
def scan(text: Bytes, words: Words, rows: Int64, memory: Memory, keys: Int64, arguments_key: int, empty: int) -> int:
    """Read a JSON array of events.

    Args:
        text, words: the array, and PADDING zeros.
        rows: gets what is read of each event; MISSING where it has none.
        memory: grows.
        keys: token of a key → what becomes of its value.
        arguments_key: the token of the key of arguments.
        empty: the token of an absent name or category. Tokens between the last key and this one are names of operators
            of which values of inputs are kept.

    Returns:
        The number of events; UNCLEAN or FULL where they are not read.
    """
    kept, kept_words, places, guesses, gaps = memory.text, memory.words, memory.places, memory.guesses, memory.gaps
    contexts = len(guesses) - 1
    at, row, state = 0, -1, _IN_ARRAY
    gap = before = category = seen = 0
    while True:
        guess = (gap * 31 + before * 1021 + category * 7 + state) & contexts & ~1
        before, start = gap, at
        gap = guesses[guess]
        at = _matches(text, words, start, kept, kept_words, places, gap, state)
        if at < 0:
            # Many alternate.
            guesses[guess], guesses[guess + 1] = guesses[guess + 1], gap
            gap = guesses[guess]
            at = _matches(text, words, start, kept, kept_words, places, gap, state)
        # Before empty arguments the same gap ends where other arguments open.
        if at < 0 or (gaps[gap, _GAP_ACTION] == ARGUMENTS and text[_U(at)] == _OPEN):
            gap, at = _learn_gap(text, words, start, state, guess, memory, keys)
            if gap == _ENDED:
                rows[row, END], rows[row, SEEN] = at, seen
                return row + 1
            if gap < 0:
                return gap
        state = gaps[gap, _STATE]
        if gaps[gap, _EVENT_START] >= 0:
            if row >= 0:
                rows[row, END], rows[row, SEEN] = start + gaps[gap, _EVENT_END], seen
            row += 1
            if row == len(rows):
                return UNCLEAN
            for column in range(rows.shape[1]):
                rows[row, column] = MISSING
            rows[row, ODD] = 0
            rows[row, CATEGORY] = rows[row, NAME] = empty
            rows[row, START] = start + gaps[gap, _EVENT_START]
            seen = 0
        if gaps[gap, _OPENS]:
            if seen & (1 << arguments_key):
                return UNCLEAN
            seen |= 1 << arguments_key
        action = gaps[gap, _GAP_ACTION]
        end = -1
        if action == SKIPPED:
            # Most are ids.
            if 49 <= text[_U(at)] <= 57:
                value, end = _long_integer(words, at)
                byte = text[_U(end)]
                if 48 <= byte <= 57 or byte in (_POINT, _SMALL_E, _LARGE_E):
                    end = -1
        else:
            key = gaps[gap, _KEY]
            if seen & (1 << key):
                return UNCLEAN
            seen |= 1 << key
            column = keys[key, COLUMN]
            byte = text[_U(at)]
            if action == INTEGER:
                first = at + (byte == _MINUS)
                value, end = _long_integer(words, first)
                if end == first or (text[_U(first)] == _ZERO and (end > first + 1 or first > at)):
                    end = -1
                    # An argument may be null, an id of a process may not.
                    if byte != _N or state != _IN_ARGUMENTS:
                        rows[row, ODD] |= 1 << key
                else:
                    rows[row, column] = -value if first > at else value
            elif action == MICROSECONDS:
                value, end = _long_integer(words, at)
                if end == at or (byte == _ZERO and end > at + 1) or value >= 1 << 52:
                    return UNCLEAN
                value *= 1000
                if text[_U(end)] == _POINT:
                    first = end + 1
                    decimals, end = _integer(words, first)
                    if not 1 <= end - first <= 3:
                        return UNCLEAN
                    value += decimals * _TENS[3 - (end - first)]
                rows[row, column] = value
            elif action == TRIPLE:
                end = at
                for axis in range(3):
                    if text[_U(end)] != (_COMMA if axis else _OPEN_LIST):
                        return UNCLEAN
                    first = _blanks_end(text, end + 1)
                    value, end = _long_integer(words, first)
                    if end == first or (text[_U(first)] == _ZERO and end > first + 1):
                        return UNCLEAN
                    rows[row, column + axis] = value
                    end = _blanks_end(text, end)
                if text[_U(end)] != _CLOSE_LIST:
                    return UNCLEAN
                end += 1
            elif action == ARGUMENTS:
                if byte != _OPEN:
                    rows[row, ODD] |= 1 << key
            else:
                if action == TEXT and byte != _QUOTE:
                    return UNCLEAN
                if action == VALUED_INPUTS and rows[row, NAME] == empty:
                    return UNCLEAN
                if action != VALUED_INPUTS or len(keys) <= rows[row, NAME] < empty:
                    guess = _context_of_value(words, at, contexts)
                    token = guesses[guess]
                    end = _matches(text, words, at, kept, kept_words, places, token, VALUE_TOKEN)
                    if end < 0:
                        token, end = _learn_value(text, words, at, guess, memory)
                        if token < 0:
                            return token
                    rows[row, column] = token
                    if column == CATEGORY:
                        category = token
        if end < 0:
            end = _value_end(text, words, at)
            if end < 0:
                return UNCLEAN
        at = end
