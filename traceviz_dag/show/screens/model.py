"""What every screen asks and gets: lanes, what they show in a window at so many pixels, details, measures, moves.

``ScreenModel`` is the whole interface. ``pipeline/screens.py`` opens one over an iteration of the lake or over a
profile. Every time is an integer of nanoseconds on the axis of the model: of a profile the capture's clock; of an
iteration 0 is its first kernel, with the clocks of its ranks laid on one another. ``own_time`` makes it the clock of a
lane's rank, which tables and commands use.

Texts that a model hands out hold no control characters; a screen may show them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64
from traceviz_dag.show.lanes.grouping import RankGroup
from traceviz_dag.show.lanes.lane import Lane, Mark, Window


class Direction(StrEnum):
    """Which way to move."""

    NEXT = "next"
    PREVIOUS = "previous"


class SliceId(NamedTuple):
    """A slice: its lane, and its row there; rows are by start. It stays the same as long as the source does."""

    lane: str
    row: int

    def __str__(self) -> str:
        return f"{self.lane}#{self.row}"

    @classmethod
    def parse(cls, text: str) -> SliceId | None:
        """The slice that a text names, as ``str`` writes it; None where it names none."""
        lane, sign, row = text.rpartition("#")
        return cls(lane, int(row)) if sign and row.isascii() and row.isdigit() else None


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """What a lane shows in a window: an entry a drawn box, by start.

    Attributes:
        start_ns, end_ns: of a slice its own, which may reach beyond the window; of several those of their cell.
        count: 1 for one slice, more for several of which each is shorter than a cell; one that lies in two cells is
            in both.
        busy_ns: union of the slices inside the box; its share of the box is the share of time in which one ran.
        kind: place in ``kinds``; of several, the kind that ran longest.
        name: place in ``names``; of several, that of the longest slice.
        row: row of the slice in the lane; of several, of the longest.
        cell_ns: length of a cell, at most a pixel; 0 where every slice is drawn separately.
        kinds: words of the kinds, see ``lanes.words``.
        names: short names, made when they are asked for.
        left_out: slices that others cover wholly and that are not drawn, because they are too many.
    """

    lane: str
    start_ns: Int64
    end_ns: Int64
    count: Int64
    busy_ns: Int64
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    row: Int64
    cell_ns: int
    kinds: Sequence[str]
    names: Sequence[str]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    def slice_id(self, place: int) -> SliceId:
        """The slice of a box, the longest one of several."""
        return SliceId(self.lane, int(self.row[place]))


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """What a counter did in a window: an entry a cell in which it changed, by start, and one for its value before.

    Attributes:
        start_ns, end_ns: of the cell.
        least, most, last: its smallest, largest and last value in the cell; the last holds until the next entry.
        unit: as ``Lane.unit``.
    """

    lane: str
    start_ns: Int64
    end_ns: Int64
    least: Int64
    most: Int64
    last: Int64
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """What some ranks or GPUs did together, in bins that fill the window.

    Attributes:
        start_ns, end_ns: of each bin; they are whole cells, so the first may begin before the window. Where the clock
            of a rank is moved, its cells are those that lie nearest: at most half a cell beside.
        lanes: how many ranks or GPUs; times are sums over them, and (end - start) * lanes is their whole.
        busy_ns: something ran. exposed_ns: of it, communication alone. hidden_ns: communication beside computation.
        idle_ns: nothing ran.
    """

    start_ns: Int64
    end_ns: Int64
    lanes: int
    busy_ns: Int64
    exposed_ns: Int64
    hidden_ns: Int64
    idle_ns: Int64


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a detail: what, how much, in which unit (empty for texts and plain numbers)."""

    label: str
    value: str | int | float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Detail:
    """Everything known of a slice, in the order in which people read it; what is not known is not there.

    Attributes:
        title: its short name. full_name: as the source gives it.
        facts: time first, then what it is, how it was launched, its size, whom it talked to.
        evidence: what decided its phase, dimension and micro-batch.
        peers: the same communication on other ranks.
        launch: the call that launched it, or what this call launched.
        sql: a query for ``traceviz sql`` whose one row is it; empty of profiles.
        command: a command that shows its window; empty where there is none.
    """

    slice: SliceId
    window: Window
    title: str
    full_name: str
    facts: tuple[Fact, ...]
    evidence: tuple[Fact, ...] = ()
    peers: tuple[SliceId, ...] = ()
    launch: SliceId | None = None
    sql: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class GroupMeasures:
    """The exact measures of a rank or GPU in one window: those of ``traceviz overlap`` and ``traceviz nsys overlap``.

    Attributes:
        lane: of the rank or GPU. device: ``gpu:N`` or ``cpu``.
        dimension: of the communication measured; ``all`` for the whole.
        window_start_ns, window_end_ns: on the own clock of the rank.
        kernels: as the command counts them; None where it does not count them.
    """

    lane: str
    device: str
    dimension: str
    window_start_ns: int
    window_end_ns: int
    kernels: int | None
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    exposed_ns: int
    memory_ns: int
    busy_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class TopName:
    """All operations of one name in a window: how many start in it, the sum of their time inside, its share."""

    lane: str
    name: str
    kind: str
    count: int
    total_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What ranks or GPUs did in exactly one window.

    Attributes:
        measures: per rank or GPU and dimension, ``all`` first.
        top: their operations by name, longest total first, at most ``MOST_NAMES`` of each.
        commands: commands that print these measures.
    """

    window: Window
    measures: tuple[GroupMeasures, ...]
    top: tuple[TopName, ...]
    commands: tuple[str, ...]


MOST_NAMES = 15


@dataclass(frozen=True, slots=True)
class Filter:
    """Which slices are wanted; what is empty, 0 or None takes all.

    Attributes:
        kinds: words of ``Slices.kinds``. without: such words that are left out.
        dimensions: of communication; for search alone, since every dimension has a lane. Profiles show none.
        lanes: keys; a lane represents all lanes below it, too.
        least_ns: shortest slice. Boxes of several are left out where their longest is shorter.
    """

    kinds: frozenset[str] = frozenset()
    dimensions: frozenset[str] = frozenset()
    lanes: tuple[str, ...] = ()
    least_ns: int = 0
    without: frozenset[str] = frozenset()

    def keeps(self, kind: str) -> bool:
        """Whether slices of a kind are wanted."""
        return (not self.kinds or kind in self.kinds) and kind not in self.without


ALL = Filter()


@dataclass(frozen=True, slots=True)
class Hit:
    """A slice that a search found."""

    slice: SliceId
    name: str
    kind: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Hits:
    """A page of what a search found, by start.

    Attributes:
        total: how many on all pages. page: from 0. pages: at least 1. before: how many on the pages before this one.
    """

    hits: tuple[Hit, ...]
    total: int
    page: int
    pages: int
    before: int = 0


HITS_A_PAGE = 100


class ScreenModel(Protocol):
    """A source that screens walk through. It may be asked from several threads, one at a time."""

    @property
    def title(self) -> str:
        """What it is, for the head of a screen."""

    @property
    def span(self) -> Window:
        """From the first to the last of all that it holds."""

    @property
    def notes(self) -> Sequence[str]:
        """What the source lacks, and how clocks are laid on one another: sentences."""

    @property
    def groupings(self) -> Mapping[str, Sequence[RankGroup]]:
        """The headings below which ranks can lie, by what they are; none of profiles, and of two sources."""

    def lanes(self, parent: str | None = None) -> Sequence[Lane]:
        """The lanes right below a lane, in order; the outermost for None.

        Raises:
            UsageError: there is no such lane.
        """

    def lane(self, key: str) -> Lane:
        """A lane.

        Raises:
            UsageError: there is no such lane.
        """

    def own_time(self, lane: str, time_ns: int) -> int:
        """A time of the axis on the own clock of the lane's rank.

        Raises:
            UsageError: there is no such rank or GPU.
        """

    def slices(self, lane: str, window: Window, pixels: int, only: Filter = ALL) -> Slices:
        """What a lane shows in a window that is so many pixels (or letters) wide; its cost does not grow with the rows.

        Raises:
            UsageError: there is no such lane.
        """

    def counter(self, lane: str, window: Window, pixels: int) -> Counter:
        """What a lane of kind ``counter`` shows.

        Raises:
            UsageError: there is no such counter.
        """

    def overview(self, window: Window, pixels: int, lanes: Sequence[str] = ()) -> Overview:
        """The strip above the lanes, over some ranks or GPUs; over all for none."""

    def marks(self, window: Window) -> Sequence[Mark]:
        """Iterations and findings that touch a window, by start."""

    def iteration(self, time_ns: int, direction: Direction) -> Mark | None:
        """The iteration that starts next after a time, or last before it."""

    def at(self, lane: str, time_ns: int) -> SliceId | None:
        """The slice that runs at a time; of several, the one that began last."""

    def neighbour(self, slice_id: SliceId, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """The next slice after one in its lane, or the last before it, of those that a filter shows."""

    def nearest(self, lane: str, time_ns: int, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """The slice that runs at a time; else the next that starts after it, or the last that started before it."""

    def bounds(self, slice_id: SliceId) -> Window:
        """Where a slice lies.

        Raises:
            UsageError: there is no such slice.
        """

    def gap(self, lane: str, time_ns: int, direction: Direction) -> Window | None:
        """The next time in which a lane shows nothing that starts after a time; the last that ends by then."""

    def follow(self, slice_id: SliceId) -> SliceId | None:
        """From an operation to the call that launched it, from a call to the first operation that it launched."""

    def members(self, slice_id: SliceId) -> Sequence[SliceId]:
        """The same communication on all ranks, this one included; empty where it is not matched, or is none."""

    def detail(self, slice_id: SliceId) -> Detail:
        """Everything known of a slice.

        Raises:
            UsageError: there is no such slice.
        """

    def aggregate(self, window: Window, lanes: Sequence[str] = ()) -> Aggregate:
        """The exact measures of a window, of the ranks or GPUs that some lanes belong to; of all for none."""

    def search(self, pattern: str, only: Filter = ALL, window: Window | None = None, page: int = 0) -> Hits:
        """Slices whose full name matches a regular expression of RE2 somewhere, whatever its case.

        RE2 knows no look-ahead and no back references, so that no expression takes long.

        Raises:
            UsageError: it is no such expression.
        """

    def matched(self, pattern: str, lane: str, window: Window, pixels: int, only: Filter = ALL) -> tuple[Int64, Int64]:
        """Where slices of one lane lie that ``search`` finds: start and end of disjoint stretches of a window.

        Matches that lie less than a pixel apart are one stretch.

        Raises:
            UsageError: there is no such lane, or it is no such expression.
        """
