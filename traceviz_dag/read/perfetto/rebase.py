"""Time stamps of a Chrome JSON trace moved towards zero in the text itself, before a reader turns them into doubles.

A double of epoch microseconds (about 2**50.7) resolves 0.25 us: neighbouring slices then overlap by some nanoseconds,
and Perfetto drops them. Perfetto also multiplies by 1000 as a double: from 2**42 us on that can miss by one nanosecond.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64

Places = npt.NDArray[np.intp]

EXACT_BELOW_US = 2**41
"""Microseconds below which Perfetto gets every nanosecond: below 2**42 the errors of the double and of its product with
1000, at most 0.25 ns each, cannot add up to more than half of one. A trace may go on past its first event.
"""

_HEADROOM_US = 4_000_000_000
_ROUND_US = 1_000_000_000
_KEY_BYTES = 4
_MOST_DIGITS = 18
_MOST_GAP = 16
_ZERO, _NINE, _SPACE = ord("0"), ord("9"), ord(" ")
_FIRST_TIME = re.compile(rb'(?<!\\)"ts"\s*:\s*(\d{1,18})')
_WHITESPACE = np.array([ord(character) in b" \t\r\n" for character in map(chr, range(256))])


class UnfitTimesError(Exception):
    """A time stamp lies before the base.

    Attributes:
        smallest_us: the smallest one.
    """

    def __init__(self, smallest_us: int) -> None:
        super().__init__(f"a time stamp of {smallest_us} us lies before the base")
        self.smallest_us = smallest_us


def base_for(text: bytes | bytearray | memoryview) -> int:
    """What to subtract from every time stamp of a trace, us, seen from its first part; 0 where nothing is needed.

    It leaves room of an hour for events that come later in the file and began earlier.
    """
    first = _FIRST_TIME.search(text)
    if first is None or int(first[1]) < EXACT_BELOW_US:
        return 0
    return (int(first[1]) - _HEADROOM_US) // _ROUND_US * _ROUND_US


def rebase(text: bytearray, base_us: int) -> int:
    """Subtract ``base_us`` from each value of a key ``"ts"``, in place; freed digits become spaces.

    Time stamps of metadata events, which mean nothing and are often 0, may lie before the base and stay.

    Args:
        text: a part of a trace that begins and ends between two values.

    Returns:
        How many time stamps were moved.

    Raises:
        UnfitTimesError: an event lies before the base.
    """
    view = np.frombuffer(text, np.uint8)
    starts = _values(view)
    whole, ends = _whole_numbers(view, starts)
    numeric = ends > starts
    starts, ends, whole = starts[numeric], ends[numeric], whole[numeric]
    early = np.flatnonzero(whole < base_us)
    unfit = [int(whole[place]) for place in early.tolist() if not _is_metadata(text, int(starts[place]))]
    if unfit:
        raise UnfitTimesError(min(unfit))
    keep = whole >= base_us
    _write(view, starts[keep], ends[keep], whole[keep] - base_us)
    return int(keep.sum())


def _values(view: npt.NDArray[np.uint8]) -> Places:
    """Where the value of each key ``"ts"`` begins."""
    if len(view) < _KEY_BYTES + 2:
        return np.empty(0, np.intp)
    found = np.flatnonzero((view[1:-2] == ord("t")) & (view[2:-1] == ord("s")))
    found = found[(view[found] == ord('"')) & (view[found + 3] == ord('"'))]
    found = found[(found == 0) | (view[found - 1] != ord("\\"))]
    at = _skip_whitespace(view, found + _KEY_BYTES)
    at = at[view[at] == ord(":")]
    return _skip_whitespace(view, np.minimum(at + 1, len(view) - 1))


def _skip_whitespace(view: npt.NDArray[np.uint8], at: Places) -> Places:
    at = np.minimum(at, len(view) - 1)
    for _ in range(_MOST_GAP):
        blank = _WHITESPACE[view[at]] & (at < len(view) - 1)
        if not blank.any():
            break
        at = at + blank
    return at


def _whole_numbers(view: npt.NDArray[np.uint8], starts: Places) -> tuple[Int64, Places]:
    """The digits before the point, as numbers, and where they end."""
    whole, ends = np.zeros(len(starts), np.int64), starts.copy()
    going = np.ones(len(starts), np.bool_)
    for _ in range(_MOST_DIGITS):
        byte = view[np.minimum(ends, len(view) - 1)]
        going &= (byte >= _ZERO) & (byte <= _NINE) & (ends < len(view))
        if not going.any():
            break
        whole = np.where(going, whole * 10 + (byte.astype(np.int64) - _ZERO), whole)
        ends = ends + going
    return whole, ends


def _write(view: npt.NDArray[np.uint8], starts: Places, ends: Places, whole: Int64) -> None:
    """Write numbers over longer ones, right-aligned, spaces before them."""
    at, rest = ends - 1, whole.copy()
    places = np.arange(len(at))
    for turn in range(_MOST_DIGITS):
        places = places[at[places] >= starts[places]]
        if not len(places):
            break
        digit = (rest[places] % 10 + _ZERO).astype(np.uint8)
        blank = (rest[places] == 0) & (turn > 0)
        view[at[places]] = np.where(blank, _SPACE, digit)
        rest[places] //= 10
        at[places] -= 1


def _is_metadata(text: bytearray, place: int) -> bool:
    """Whether the event around a place is one of metadata; such events nest no further than their arguments."""
    begin = text.rfind(b"{", 0, place)
    end = text.find(b"}", place)
    return re.search(rb'"ph"\s*:\s*"M"', text[max(begin, 0) : end if end >= 0 else len(text)]) is not None
