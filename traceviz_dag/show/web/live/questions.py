"""What a live page asks: names and numbers in an address, each within bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from traceviz_dag.errors import UsageError
from traceviz_dag.show.lanes.lane import Window
from traceviz_dag.show.screens.model import ALL, Direction, Filter, ScreenModel, SliceId

MOST_LANES = 64
"""Lanes of one question."""

MOST_PIXELS = 4096
LONGEST_PATTERN = 500
"""Letters of a regular expression."""

_LONGEST_WORD = 2000
_LAST_NS = 1 << 62
_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Question:
    """The names and values of an address; times in it count from the begin of the model's span.

    Every method raises UsageError for what is missing, no such thing, or beyond the bounds.
    """

    values: QueryParams

    def number(self, name: str, least: int = -_LAST_NS, most: int = _LAST_NS, default: int | None = None) -> int:
        """A whole number."""
        text = self.values.get(name)
        if text is None and default is not None:
            return default
        if text is None or not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise UsageError(f"{name} is a whole number from {least} to {most}")
        return int(text)

    def word(self, name: str, longest: int = _LONGEST_WORD) -> str:
        """A text; empty where it is not there."""
        text = self.values.get(name, "")
        if len(text) > longest:
            raise UsageError(f"{name} is longer than {longest:,} letters")
        return text

    def time(self, model: ScreenModel, name: str = "time") -> int:
        """A time on the axis of the model."""
        return model.span.start_ns + self.number(name)

    def window(self, model: ScreenModel) -> Window:
        """``from`` and ``to`` on the axis of the model."""
        window = Window(self.time(model, "from"), self.time(model, "to"))
        if window.length_ns <= 0:
            raise UsageError("a window ends after it starts")
        return window

    def pixels(self) -> int:
        """How wide it is drawn."""
        return self.number("pixels", 1, MOST_PIXELS)

    def lanes(self) -> tuple[str, ...]:
        """Keys of lanes."""
        keys = tuple(self.values.getlist("lane"))
        if len(keys) > MOST_LANES:
            raise UsageError(f"a question is about {MOST_LANES} lanes at the most")
        return keys

    def lane(self) -> str:
        """The key of one lane."""
        return self.word("lane")

    def slice_id(self, name: str = "slice") -> SliceId:
        """A slice."""
        found = SliceId.parse(self.word(name))
        if found is None or found.row > _LAST_NS:
            raise UsageError(f"{name} names no slice")
        return found

    def only(self) -> Filter:
        """What is shown or searched."""
        return Filter(
            dimensions=frozenset(self.values.getlist("dimension")),
            lanes=self.lanes(),
            least_ns=self.number("least", 0, default=0),
            without=frozenset(self.values.getlist("without")),
        )

    def shown(self) -> Filter:
        """As ``only``, of one lane."""
        only = self.only()
        return Filter(least_ns=only.least_ns, without=only.without) if only.without or only.least_ns else ALL

    def direction(self) -> Direction:
        """Which way."""
        return Direction.PREVIOUS if self.values.get("way") == "previous" else Direction.NEXT
