"""Which lanes are shown, in which order: those that are open, those that are pinned to the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from traceviz_dag.show.lanes.lane import Lane
from traceviz_dag.show.screens.model import ScreenModel


@dataclass(frozen=True, slots=True)
class ShownLane:
    """A lane on the screen, and how many lanes are around it."""

    lane: Lane
    depth: int
    pinned: bool = False


@dataclass(slots=True)
class ShownLanes:
    """The lanes of a model as they are folded, pinned and ordered.

    Attributes:
        rows: from the top; pinned ones come first, and again in their place.
        open: keys of lanes whose lanes are shown.
    """

    model: ScreenModel
    rows: list[ShownLane] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    pinned: list[str] = field(default_factory=list)
    _order: dict[str | None, list[str]] = field(default_factory=dict)
    _below: dict[str | None, Sequence[Lane]] = field(default_factory=dict)

    def lay_out(self) -> None:
        """Make the rows anew."""
        rows = [ShownLane(self.model.lane(key), 0, pinned=True) for key in self.pinned]
        self._add(rows, None, 0)
        # A screen that is drawn meanwhile sees the rows before, or all of the new ones.
        self.rows = rows

    def _add(self, rows: list[ShownLane], parent: str | None, depth: int) -> None:
        for lane in self._ordered(parent):
            rows.append(ShownLane(lane, depth))
            if lane.key in self.open:
                self._add(rows, lane.key, depth + 1)

    def _ordered(self, parent: str | None) -> list[Lane]:
        if parent not in self._below:
            self._below[parent] = list(self.model.lanes(parent))
        lanes = list(self._below[parent])
        order = self._order.get(parent)
        return lanes if order is None else sorted(lanes, key=lambda lane: order.index(lane.key))

    def fold(self, key: str) -> None:
        """Show the lanes below a lane, or hide them."""
        if key in self.open:
            self.open.discard(key)
        else:
            self.open.add(key)
        self.lay_out()

    def pin(self, key: str) -> None:
        """Keep a lane at the top, or no longer."""
        if key in self.pinned:
            self.pinned.remove(key)
        else:
            self.pinned.append(key)
        self.lay_out()

    def shift(self, key: str, by: int) -> None:
        """Move a lane up or down among those beside it."""
        parent = self.model.lane(key).parent
        order = [lane.key for lane in self._ordered(parent)]
        place = order.index(key)
        there = min(max(place + by, 0), len(order) - 1)
        order.insert(there, order.pop(place))
        self._order[parent] = order
        self.lay_out()

    def reveal(self, key: str) -> int:
        """Open what is around a lane, and return its row."""
        around, above = [], self.model.lane(key).parent
        while above is not None:
            around.append(above)
            above = self.model.lane(above).parent
        if not set(around) <= self.open:
            self.open |= set(around)
            self.lay_out()
        return self.row_of(key)

    def row_of(self, key: str) -> int:
        """The row of a lane in its place; that of a pinned one where it is hidden there, else the first."""
        places = [place for place, row in enumerate(self.rows) if row.lane.key == key]
        return places[-1] if places else 0
