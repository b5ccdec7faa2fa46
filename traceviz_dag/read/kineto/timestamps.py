"""Time stamps in microseconds, written as decimals, become integer nanoseconds without the loss of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64

EXACT_BELOW = float(2**43)
"""Microseconds below which a double holds three decimals: its spacing is at most 2**-10."""

_MOST_KEPT_DIGITS = 12
_MARK = b"-1"
_FIRST_TIME = re.compile(rb'"ts"\s*:\s*(?=\d)')
_WHOLE_DIGITS = re.compile(rb"\d+")
_SEARCHED_BYTES = 1 << 16
_LARGEST_US = 2**52
_MOST_DIGITS = len(str(_LARGEST_US))


def to_nanoseconds(microseconds: npt.NDArray[np.float64]) -> Int64:
    """Microseconds → nanoseconds, exact to the third decimal below ``EXACT_BELOW``.

    Whole and fraction are scaled apart: their product with 1000 as one double would not fit 53 bits.
    """
    whole = np.floor(microseconds)
    fraction = (microseconds - whole) * 1000.0
    return whole.astype(np.int64) * 1000 + np.rint(fraction).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ShortenedTimes:
    """A text whose long time stamps lost their leading digits, so that doubles hold the rest.

    A time stamp of epoch microseconds has 16 digits before the point. Its first four give way to a minus and a one: the
    sign marks what was shortened, and the twelve digits that stay are far below ``EXACT_BELOW``.

    Attributes:
        text: the shortened JSON text, as long as it was.
        smallest_us: the size of the smallest shortened time; the largest is below twice that.
        offset_ns: what to add to the size of a shortened time.
    """

    text: bytearray
    smallest_us: int
    offset_ns: int


def shorten_times(text: memoryview) -> ShortenedTimes | None:
    """Shorten the time stamps of ``text``; None where its first one is short enough as it is, or beyond all times."""
    first = _FIRST_TIME.search(text, 0, _SEARCHED_BYTES)
    if first is None:
        return None
    digits = _WHOLE_DIGITS.match(text, first.end())
    if digits is None or len(digits.group()) > _MOST_DIGITS or not EXACT_BELOW <= int(digits.group()) < _LARGEST_US:
        return None
    kept = min(_MOST_KEPT_DIGITS, len(digits.group()) - len(_MARK))
    prefix = digits.group()[:-kept]
    key = first.group()
    shortened = _replace(text, key + prefix, key + _MARK.rjust(len(prefix)))
    smallest_us = 10**kept
    return ShortenedTimes(shortened, smallest_us, (int(prefix) - 1) * smallest_us * 1000)


def _replace(text: memoryview, old: bytes, new: bytes) -> bytearray:
    """Replace ``old``, which begins with ``"ts"``, by the equally long ``new``, four times as fast as bytes.replace."""
    changed = bytearray(text)
    view = np.frombuffer(changed, np.uint8)
    last = len(view) - len(old) + 1
    places = np.flatnonzero((view[1:last] == ord("t")) & (view[3 : last + 2] == ord('"')))
    for place, byte in enumerate(old):
        places = places[view[places + place] == byte]
    for place in range(len(new)):
        if new[place] != old[place]:
            view[places + place] = new[place]
    return changed


def restore_times(microseconds: npt.NDArray[np.float64], shortened: ShortenedTimes) -> Int64 | None:
    """Nanoseconds of the times of a shortened text; None where some time cannot be known exactly."""
    marked = microseconds < 0
    size = np.abs(microseconds)
    smallest = shortened.smallest_us
    if (size >= EXACT_BELOW).any() or (size[marked] < smallest).any() or (size[marked] >= 2 * smallest).any():
        return None
    nanoseconds = to_nanoseconds(size)
    nanoseconds[marked] += shortened.offset_ns
    return nanoseconds


class _Time(msgspec.Struct, gc=False):
    ts: Any = None


def _decimal(text: str) -> Decimal | None:
    """The number; None where its exponent is beyond all that decimals have."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


_DECIMALS = msgspec.json.Decoder(list[_Time], float_hook=_decimal)


def exact_times(text: bytes | memoryview) -> list[int | None]:
    """Nanoseconds of each event of a JSON array by decimal arithmetic, slowly; None for what is no number."""
    return [_decimal_nanoseconds(row.ts) for row in _DECIMALS.decode(text)]


def _decimal_nanoseconds(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    microseconds = Decimal(value)
    return round(microseconds * 1000) if -_LARGEST_US < microseconds < _LARGEST_US else None
