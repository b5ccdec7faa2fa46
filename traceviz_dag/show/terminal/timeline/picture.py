"""What is asked of the model for one view, and kept for the next: a query a lane that is in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Window
from traceviz_dag.show.screens.model import Counter, Filter, Overview, ScreenModel, Slices

_MOST_KEPT = 600

Drawn = Slices | Counter | None
Key = tuple[str, Window, int, Filter]


@dataclass(frozen=True, slots=True)
class Request:
    """A view.

    Attributes:
        lanes: those in sight.
        width: columns.
    """

    window: Window
    width: int
    lanes: tuple[Lane, ...]
    only: Filter

    def key(self, lane: Lane) -> Key:
        """What a lane's answer is kept under."""
        return lane.key, self.window, self.width, self.only


@dataclass(slots=True)
class Asked:
    """Answers of a model.

    Attributes:
        kept: answers by lane, window, width and filter; the oldest go first.
        queries: how often the model was asked to draw, for whoever counts.
    """

    model: ScreenModel
    kept: dict[Key, Drawn] = field(default_factory=dict)
    queries: int = 0

    def missing(self, request: Request) -> list[Lane]:
        """Lanes of a view that were not asked for yet."""
        return [lane for lane in request.lanes if request.key(lane) not in self.kept]

    def ask(self, request: Request, lane: Lane) -> None:
        """Ask for one lane of a view."""
        self.queries += 1
        found: Drawn = None
        if lane.kind is LaneKind.COUNTER:
            found = self.model.counter(lane.key, request.window, request.width)
        elif lane.rows or lane.kind in (LaneKind.RANK, LaneKind.GPU):
            found = self.model.slices(lane.key, request.window, request.width, request.only)
        while len(self.kept) >= _MOST_KEPT:
            del self.kept[next(iter(self.kept))]
        self.kept[request.key(lane)] = found


@dataclass(slots=True)
class Strip:
    """The overview over all ranks or GPUs, asked for one by one, so that nothing waits for all of them.

    Attributes:
        found: the sum over those that were asked for; None before the first.
    """

    model: ScreenModel
    width: int
    left: list[str]
    found: Overview | None = None

    def ask(self) -> None:
        """Add the next rank or GPU."""
        one = self.model.overview(self.model.span, self.width, [self.left.pop(0)])
        before = self.found
        if before is None or not len(before.start_ns):
            self.found = one
            return
        # Of two sources side by side, bins of one may lie beside those of the other: each counts where it is nearest.
        width = max(int(before.end_ns[0] - before.start_ns[0]), 1)
        place = (one.start_ns - before.start_ns[0] + width // 2) // width
        inside = (place >= 0) & (place < len(before.start_ns))

        def added(mine: Int64, more: Int64) -> Int64:
            total = mine.copy()
            np.add.at(total, place[inside], more[inside])
            return total

        self.found = Overview(
            before.start_ns,
            before.end_ns,
            before.lanes + one.lanes,
            added(before.busy_ns, one.busy_ns),
            added(before.exposed_ns, one.exposed_ns),
            added(before.hidden_ns, one.hidden_ns),
            added(before.idle_ns, one.idle_ns),
        )


def busy_lanes(lanes: Sequence[Lane]) -> list[str]:
    """The ranks or GPUs among some lanes."""
    return [lane.key for lane in lanes if lane.kind in (LaneKind.RANK, LaneKind.GPU)]
