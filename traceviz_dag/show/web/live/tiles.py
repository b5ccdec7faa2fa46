"""Tiles as bytes: a head in JSON, and behind it the columns of each lane one after the other, little-endian.

First 8 bytes: length of the head. The head is filled with spaces to a multiple of 8 bytes. Times count from the begin
of the model's span. Columns: of the overview start, end, busy, exposed, hidden, idle (float64); of a lane of slices
start, end, busy (float64), then row, count, name, kind (int32); of a counter start, end, least, most, last (float64).
Whole numbers up to 2^53 are exact in float64, which is a hundred days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes.lane import LaneKind, Window
from traceviz_dag.show.screens.model import Counter, Filter, Overview, ScreenModel, Slices

MOST_BYTES = 8 << 20
"""Of the columns of an answer. Once they are more, no further lane is answered: the page asks for the rest again."""

MOST_SUMMED = 128
"""Ranks or GPUs that the strip above the lanes is the mean of: the first ones. Each has to be opened for it."""

MOST_NAMES = 300
"""Names that a lane's answer holds: those of its longest boxes. The others are known from their detail."""

_LONGEST_NAME = 160
_UNNAMED = -1


def tiles(
    model: ScreenModel, lanes: Sequence[str], window: Window, pixels: int, only: Filter, overview: bool, digest: str
) -> bytes:
    """What some lanes show in a window.

    Args:
        overview: whether the strip above the lanes is asked for, too: of all time.
        digest: of the source, for the head.

    Raises:
        UsageError: there is no such lane.
    """
    origin = model.span.start_ns
    head: dict[str, Any] = {"digest": digest, "lanes": [], "left": [], "overview": 0}
    columns: list[bytes] = []
    if overview:
        busy = [lane.key for lane in model.lanes() if lane.kind in (LaneKind.GPU, LaneKind.RANK)]
        strip = model.overview(model.span, pixels, busy[:MOST_SUMMED] if len(busy) > MOST_SUMMED else ())
        head |= {"overview": len(strip.start_ns), "overview_lanes": strip.lanes, "overview_of": len(busy)}
        columns += _overview(strip, origin)
    for place, key in enumerate(lanes):
        if sum(map(len, columns)) > MOST_BYTES:
            head["left"] = list(lanes[place:])
            break
        if model.lane(key).kind is LaneKind.COUNTER:
            counter = model.counter(key, window, pixels)
            head["lanes"].append({"lane": key, "counter": len(counter.start_ns), "unit": counter.unit})
            columns += _counter(counter, origin)
        else:
            found = model.slices(key, window, pixels, only)
            codes, names = _names(found)
            told = {"lane": key, "slices": len(found), "cell": found.cell_ns, "left_out": found.left_out}
            head["lanes"].append({**told, "kinds": list(found.kinds), "names": names})
            columns += _slices(found, codes, origin)
    text = msgspec.json.encode(head)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *columns])


def _overview(strip: Overview, origin: int) -> Iterable[bytes]:
    times = (strip.start_ns - origin, strip.end_ns - origin)
    return (_wide(column) for column in (*times, strip.busy_ns, strip.exposed_ns, strip.hidden_ns, strip.idle_ns))


def _counter(found: Counter, origin: int) -> Iterable[bytes]:
    columns = (found.start_ns - origin, found.end_ns - origin, found.least, found.most, found.last)
    return (_wide(column) for column in columns)


def _slices(found: Slices, codes: npt.NDArray[np.int32], origin: int) -> Iterable[bytes]:
    for time in (found.start_ns - origin, found.end_ns - origin, found.busy_ns):
        yield _wide(time)
    for code in (found.row, found.count, codes, found.kind):
        yield _narrow(code)


def _names(found: Slices) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Per box the place of its name in a list, -1 for none; and the list, the names of the longest boxes first."""
    longest: dict[int, int] = {}
    for place in np.argsort(found.start_ns - found.end_ns, kind="stable")[: 4 * MOST_NAMES].tolist():
        code = int(found.name[place])
        if code >= 0 and len(longest) < MOST_NAMES:
            longest.setdefault(code, len(longest))
    if not longest:
        return np.full(len(found), _UNNAMED, np.int32), []
    known = np.array(sorted(longest), np.int64)
    places = np.array([longest[int(code)] for code in known], np.int32)
    at = np.minimum(np.searchsorted(known, found.name), len(known) - 1)
    codes = np.where(known[at] == found.name, places[at], _UNNAMED).astype(np.int32)
    return codes, [found.names[code][:_LONGEST_NAME] for code in longest]


def _wide(column: Int64) -> bytes:
    return column.astype("<f8").tobytes()


def _narrow(column: npt.NDArray[Any]) -> bytes:
    return np.clip(column, -(1 << 31), (1 << 31) - 1).astype("<i4").tobytes()
