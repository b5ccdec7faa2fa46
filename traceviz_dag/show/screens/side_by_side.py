"""Two sources on one axis, laid so that an iteration of both begins at one instant; itself a ``ScreenModel``.

Keys of lanes begin with ``A/`` or ``B/``. Times are those of the first source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traceviz_dag.arrays import Int64
from traceviz_dag.errors import UsageError
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.grouping import RankGroup
from traceviz_dag.show.lanes.lane import Lane, Mark, MarkKind, Window
from traceviz_dag.show.screens.model import (
    ALL,
    Aggregate,
    Counter,
    Detail,
    Direction,
    Filter,
    Hit,
    Hits,
    Overview,
    ScreenModel,
    SliceId,
    Slices,
)


@dataclass(frozen=True, slots=True)
class _Side:
    """One source: what its keys begin with, and what is added to a time of the axis to make it the source's."""

    prefix: str
    model: ScreenModel
    shift: int

    def window(self, window: Window) -> Window:
        return Window(window.start_ns + self.shift, window.end_ns + self.shift)

    def shown(self, window: Window) -> Window:
        return Window(window.start_ns - self.shift, window.end_ns - self.shift)

    def key(self, key: str) -> str:
        return f"{self.prefix}/{key}"

    def slice_id(self, slice_id: SliceId) -> SliceId:
        return SliceId(self.key(slice_id.lane), slice_id.row)

    def optional(self, slice_id: SliceId | None) -> SliceId | None:
        return None if slice_id is None else self.slice_id(slice_id)

    def lane(self, lane: Lane) -> Lane:
        if lane.parent is None:
            return replace(lane, key=self.key(lane.key), label=f"{self.prefix} {lane.label}")
        return replace(lane, key=self.key(lane.key), parent=self.key(lane.parent))

    def mark(self, mark: Mark) -> Mark:
        start, end = self.shown(Window(mark.start_ns, mark.end_ns))
        lane = None if mark.lane is None else self.key(mark.lane)
        places = tuple((self.key(key), self.shown(window)) for key, window in mark.places)
        label = f"{self.prefix} {mark.label}"
        return replace(mark, start_ns=start, end_ns=end, lane=lane, label=label, places=places)


def iterations_of(model: ScreenModel) -> list[Mark]:
    """The iterations of a source, by start."""
    everything = Window(model.span.start_ns - model.span.length_ns, model.span.end_ns + model.span.length_ns)
    return [mark for mark in model.marks(everything) if mark.kind is MarkKind.ITERATION]


class SideBySide:
    """Two sources on one axis.

    Args:
        number: the iteration that begins at one instant; None takes the first one that both have, else the first of
            each.

    Raises:
        UsageError: one of them has no iteration of that number, or none at all.
    """

    def __init__(self, first: ScreenModel, second: ScreenModel, number: int | None = None) -> None:
        one, other = _pair(first, second, number)
        self._sides = (_Side("A", first, 0), _Side("B", second, other.start_ns - one.start_ns))
        self._note = f"{one.label} of A and {other.label} of B start at the same instant"

    @property
    def title(self) -> str:
        """As ``ScreenModel`` says."""
        return " beside ".join(f"{side.prefix} {side.model.title}" for side in self._sides)

    @property
    def span(self) -> Window:
        """As ``ScreenModel`` says."""
        spans = [side.shown(side.model.span) for side in self._sides]
        return Window(min(span.start_ns for span in spans), max(span.end_ns for span in spans))

    @property
    def notes(self) -> Sequence[str]:
        """As ``ScreenModel`` says."""
        return [self._note, *(f"{side.prefix}: {note}" for side in self._sides for note in side.model.notes)]

    @property
    def groupings(self) -> Mapping[str, Sequence[RankGroup]]:
        """As ``ScreenModel`` says."""
        return {}

    def lanes(self, parent: str | None = None) -> Sequence[Lane]:
        """As ``ScreenModel`` says: A's lanes, then B's."""
        if parent is None:
            return [side.lane(lane) for side in self._sides for lane in side.model.lanes(None)]
        side, key = self._of(parent)
        return [side.lane(lane) for lane in side.model.lanes(key)]

    def lane(self, key: str) -> Lane:
        """As ``ScreenModel`` says."""
        side, own = self._of(key)
        return side.lane(side.model.lane(own))

    def own_time(self, lane: str, time_ns: int) -> int:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        return side.model.own_time(key, time_ns + side.shift)

    def slices(self, lane: str, window: Window, pixels: int, only: Filter = ALL) -> Slices:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        found = side.model.slices(key, side.window(window), pixels, self._filter(side, only))
        return replace(found, lane=lane, start_ns=found.start_ns - side.shift, end_ns=found.end_ns - side.shift)

    def counter(self, lane: str, window: Window, pixels: int) -> Counter:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        found = side.model.counter(key, side.window(window), pixels)
        return replace(found, lane=lane, start_ns=found.start_ns - side.shift, end_ns=found.end_ns - side.shift)

    def overview(self, window: Window, pixels: int, lanes: Sequence[str] = ()) -> Overview:
        """As ``ScreenModel`` says: of one side, that of the first lane; of A for none."""
        side, keys = self._side_of(lanes)
        found = side.model.overview(side.window(window), pixels, keys)
        return replace(found, start_ns=found.start_ns - side.shift, end_ns=found.end_ns - side.shift)

    def marks(self, window: Window) -> Sequence[Mark]:
        """As ``ScreenModel`` says."""
        found = [side.mark(mark) for side in self._sides for mark in side.model.marks(side.window(window))]
        return sorted(found, key=lambda mark: mark.start_ns)

    def iteration(self, time_ns: int, direction: Direction) -> Mark | None:
        """As ``ScreenModel`` says: of A."""
        side = self._sides[0]
        found = side.model.iteration(time_ns + side.shift, direction)
        return None if found is None else side.mark(found)

    def at(self, lane: str, time_ns: int) -> SliceId | None:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        return side.optional(side.model.at(key, time_ns + side.shift))

    def neighbour(self, slice_id: SliceId, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """As ``ScreenModel`` says."""
        side, key = self._of(slice_id.lane)
        return side.optional(side.model.neighbour(SliceId(key, slice_id.row), direction, self._filter(side, only)))

    def nearest(self, lane: str, time_ns: int, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        return side.optional(side.model.nearest(key, time_ns + side.shift, direction, self._filter(side, only)))

    def bounds(self, slice_id: SliceId) -> Window:
        """As ``ScreenModel`` says."""
        side, key = self._of(slice_id.lane)
        return side.shown(side.model.bounds(SliceId(key, slice_id.row)))

    def gap(self, lane: str, time_ns: int, direction: Direction) -> Window | None:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        found = side.model.gap(key, time_ns + side.shift, direction)
        return None if found is None else side.shown(found)

    def follow(self, slice_id: SliceId) -> SliceId | None:
        """As ``ScreenModel`` says."""
        side, key = self._of(slice_id.lane)
        return side.optional(side.model.follow(SliceId(key, slice_id.row)))

    def members(self, slice_id: SliceId) -> Sequence[SliceId]:
        """As ``ScreenModel`` says."""
        side, key = self._of(slice_id.lane)
        return [side.slice_id(one) for one in side.model.members(SliceId(key, slice_id.row))]

    def detail(self, slice_id: SliceId) -> Detail:
        """As ``ScreenModel`` says; times in its facts are the source's own."""
        side, key = self._of(slice_id.lane)
        found = side.model.detail(SliceId(key, slice_id.row))
        return replace(
            found,
            slice=slice_id,
            window=side.shown(found.window),
            peers=tuple(side.slice_id(one) for one in found.peers),
            launch=side.optional(found.launch),
        )

    def aggregate(self, window: Window, lanes: Sequence[str] = ()) -> Aggregate:
        """As ``ScreenModel`` says, of both sides; times of measures are the sources' own.

        A side that has ended, or has not begun, has none of them.
        """
        chosen = [side for side in self._sides if not lanes or any(self._of(lane)[0] is side for lane in lanes)]
        reached = [side for side in chosen if _touch(side.shown(side.model.span), window)]
        # Where no side reaches the window, the first one says so.
        chosen = reached or chosen[:1]
        found = []
        for side in chosen:
            own = [key for one, key in map(self._of, lanes) if one is side]
            found.append((side, side.model.aggregate(side.window(window), own)))
        return Aggregate(
            window,
            tuple(replace(one, lane=side.key(one.lane)) for side, each in found for one in each.measures),
            tuple(replace(one, lane=side.key(one.lane)) for side, each in found for one in each.top),
            tuple(command for _, each in found for command in each.commands),
        )

    def search(self, pattern: str, only: Filter = ALL, window: Window | None = None, page: int = 0) -> Hits:
        """As ``ScreenModel`` says: A's pages, then B's."""
        pages, total, before, shown = 0, 0, 0, None
        for side in self._sides:
            if only.lanes and not any(self._of(lane)[0] is side for lane in only.lanes):
                continue
            own = side.window(window) if window is not None else None
            found = side.model.search(pattern, self._filter(side, only), own, max(page - pages, 0))
            if shown is None and found.total and page - pages < found.pages:
                shown, before = tuple(self._hit(side, hit) for hit in found.hits), total + found.before
            total += found.total
            pages += found.pages if found.total else 0
        return Hits(shown or (), total, min(max(page, 0), max(pages - 1, 0)), max(pages, 1), before)

    def matched(self, pattern: str, lane: str, window: Window, pixels: int, only: Filter = ALL) -> tuple[Int64, Int64]:
        """As ``ScreenModel`` says."""
        side, key = self._of(lane)
        start, end = side.model.matched(pattern, key, side.window(window), pixels, self._filter(side, only))
        return start - side.shift, end - side.shift

    def _hit(self, side: _Side, hit: Hit) -> Hit:
        return replace(hit, slice=side.slice_id(hit.slice), start_ns=hit.start_ns - side.shift)

    def _of(self, key: str) -> tuple[_Side, str]:
        prefix, sign, own = key.partition("/")
        for side in self._sides:
            if sign and side.prefix == prefix:
                return side, own
        raise UsageError(f"there is no lane {printable(key)}")

    def _side_of(self, lanes: Sequence[str]) -> tuple[_Side, list[str]]:
        if not lanes:
            return self._sides[0], []
        side = self._of(lanes[0])[0]
        return side, [key for one, key in map(self._of, lanes) if one is side]

    def _filter(self, side: _Side, only: Filter) -> Filter:
        return replace(only, lanes=tuple(key for one, key in map(self._of, only.lanes) if one is side))


def _touch(one: Window, other: Window) -> bool:
    return one.start_ns < other.end_ns and one.end_ns > other.start_ns


def _pair(first: ScreenModel, second: ScreenModel, number: int | None) -> tuple[Mark, Mark]:
    """The iterations that begin at one instant."""
    both = iterations_of(first), iterations_of(second)
    for model, found in zip((first, second), both, strict=True):
        if not found:
            raise UsageError(f"{model.title} has no iterations to lay the two on one another by")
    numbers = [{mark.number: mark for mark in reversed(found) if mark.number is not None} for found in both]
    if number is not None:
        for model, known in zip((first, second), numbers, strict=True):
            if number not in known:
                raise UsageError(f"{model.title} has no iteration {number}; it has {_listed(known)}")
        return numbers[0][number], numbers[1][number]
    common = sorted(set(numbers[0]) & set(numbers[1]))
    return (numbers[0][common[0]], numbers[1][common[0]]) if common else (both[0][0], both[1][0])


def _listed(known: Mapping[int, Mark]) -> str:
    numbers = sorted(known)
    return ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "") or "none with a number"
