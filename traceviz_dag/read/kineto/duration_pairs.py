"""Begin and end events (``"ph": "B"`` and ``"E"``), the other legal form of a duration in Chrome's trace format.

They nest per process and thread: an end closes the innermost begin that is open there. The format wants a thread's
begins and ends in the order of their times, so one pass with a stack for each thread pairs them. Where a time goes
back, nobody knows which end belongs to which begin: what is open on the thread is dropped, and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec

from traceviz_dag.arrays import Int64
from traceviz_dag.read.events import MISSING

END_WITHOUT_BEGIN = "an end event without its begin"
BEGIN_WITHOUT_END = "a begin event without its end"
OUT_OF_ORDER = "a begin or end event before an earlier one of its thread"
"""Reasons in ``DurationPairs.dropped`` and of ``DurationPairs.open_begins``."""

_BEGIN, _END = "B", "E"


class _PhasedEvent(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None


_PHASED = msgspec.json.Decoder(list[_PhasedEvent])


@dataclass(frozen=True, slots=True)
class Paired:
    """A begin whose end was found.

    Attributes:
        number: ordinal among all begins, by which pairs of one piece are put in the order of their begins.
        row, code: the begin event and its category.
        start_ns, duration_ns: exact.
    """

    number: int
    row: Any
    code: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class _Begin:
    number: int
    name: str
    row: Any
    code: int
    start_ns: int


class DurationPairs:
    """Pairs the begins and ends of a file, a piece at a time.

    Attributes:
        dropped: reason → ends that have no begin.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._open: defaultdict[tuple[str, str], list[_Begin]] = defaultdict(list)
        self._latest: dict[tuple[str, str], int] = {}
        self._begins = 0

    @property
    def pending(self) -> bool:
        """Whether a begin waits for its end."""
        return bool(self._open)

    @property
    def open_begins(self) -> int:
        """Begins of events that belong in a table, and that no end has closed."""
        return sum(begin.row is not None for stack in self._open.values() for begin in stack)

    def feed(
        self, text: bytes | memoryview, rows: list[Any], codes: list[int], start_ns: Int64
    ) -> tuple[list[Paired], list[int]]:
        """Pair the events of one piece with each other and with begins of earlier ones.

        Args:
            text: the piece, a JSON array of objects.
            rows: what was decoded of each; None for an event that belongs in no table.
            codes, start_ns: of each event.

        Returns:
            What was closed, by begin; and the places of all begins and ends, which are no rows of their own.
        """
        closed: list[Paired] = []
        places: list[int] = []
        for place, event in enumerate(_PHASED.decode(text)):
            if event.ph not in (_BEGIN, _END):
                continue
            time = int(start_ns[place])
            if time == MISSING:
                continue
            places.append(place)
            thread = (str(event.pid), str(event.tid))
            name = event.name if isinstance(event.name, str) else ""
            if time < self._latest.get(thread, time):
                belongs = rows[place] is not None or (event.ph == _END and event.cat is None)
                self.dropped[OUT_OF_ORDER] += belongs + self._forget(thread)
                continue
            self._latest[thread] = time
            if event.ph == _BEGIN:
                self._begins += 1
                self._open[thread].append(_Begin(self._begins, name, rows[place], codes[place], time))
            elif (begin := self._close(thread, name)) is not None:
                if begin.row is not None:
                    closed.append(Paired(begin.number, begin.row, begin.code, begin.start_ns, time - begin.start_ns))
            elif rows[place] is not None or event.cat is None:
                self.dropped[END_WITHOUT_BEGIN] += 1
        return sorted(closed, key=lambda pair: pair.number), places

    def _forget(self, thread: tuple[str, str]) -> int:
        """Drop what is open on a thread; returns how many events of a table that were."""
        return sum(begin.row is not None for begin in self._open.pop(thread, ()))

    def _close(self, thread: tuple[str, str], name: str) -> _Begin | None:
        """Take the innermost open begin of a thread; of an end that bears a name, the innermost one of that name.

        Begins inside that one have lost their ends.
        """
        stack = self._open.get(thread)
        if not stack:
            return None
        place = len(stack) - 1
        while name and place >= 0 and stack[place].name != name:
            place -= 1
        if place < 0:
            return None
        lost = sum(begin.row is not None for begin in stack[place + 1 :])
        if lost:
            self.dropped[BEGIN_WITHOUT_END] += lost
        found = stack[place]
        del stack[place:]
        if not stack:
            del self._open[thread]
        return found
