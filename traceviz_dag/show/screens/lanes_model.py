"""What both sources have in common: lanes by bundle, boxes, counters, the strip, moving, searching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.errors import UsageError
from traceviz_dag.printable import printable, without_surrogates
from traceviz_dag.read.limits import LAST_INSTANT_NS
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.bundle import EXPOSED_KINDS, Bundle, Content
from traceviz_dag.show.lanes.grouping import RankGroup
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Mark, Window
from traceviz_dag.show.lanes.names import NO_NAME, ShownNames
from traceviz_dag.show.lanes.rows import LaneRows
from traceviz_dag.show.screens.counters import DrawnCounter, draw_counter
from traceviz_dag.show.screens.drawing import Drawn, draw, time_by_kind
from traceviz_dag.show.screens.kept import keep_bundle, read_bundle
from traceviz_dag.show.screens.model import (
    ALL,
    HITS_A_PAGE,
    Counter,
    Direction,
    Filter,
    Hit,
    Hits,
    Overview,
    SliceId,
    Slices,
)
from traceviz_dag.show.screens.tiled import Tiled

_SCANNED = 4096

MOST_PIXELS = 1 << 14
"""More are not drawn: no screen has them."""


class LanesModel(ABC):
    """Lanes by bundle: the outermost bundle holds lanes alone, each further one those of a GPU, process or rank.

    Args:
        kept: where the bundle of a lane of the root is kept, "" being the root; None where it is not kept.
    """

    def __init__(self, kept: Callable[[str], Path | None]) -> None:
        self._lock = RLock()
        self._kept_at = kept
        self._bundles: dict[str, Tiled] = {}
        self._names: dict[tuple[str, str], ShownNames] = {}
        self._matched: tuple[str, dict[tuple[str, str], Bool]] = ("", {})

    @abstractmethod
    def _make_root(self) -> Bundle:
        """The outermost lanes, and those whose slices are in bundles of their own."""

    @abstractmethod
    def _make(self, group: str) -> Bundle:
        """The bundle that a lane of the root names."""

    @abstractmethod
    def _words(self, group: str, words: str) -> Sequence[str | None]:
        """A list of names as the source gives them."""

    @abstractmethod
    def _shorten(self, words: str) -> Callable[[str], str]:
        """What makes a name of that list ready to be shown."""

    def _shift(self, group: str) -> int:
        """What is added to a time of the axis to make it the own clock of a bundle."""
        del group
        return 0

    @property
    def groupings(self) -> Mapping[str, Sequence[RankGroup]]:
        """As ``ScreenModel`` says."""
        return {}

    def lanes(self, parent: str | None = None) -> Sequence[Lane]:
        """As ``ScreenModel`` says."""
        root = self._root
        if parent is None:
            return [lane for lane in root.lanes if lane.parent is None]
        own = self.lane(parent)
        below = [lane for lane in self._bundle(_group(parent)).lanes if lane.parent == parent]
        return [*below, *(lane for lane in root.lanes if lane.parent == own.key)]

    def lane(self, key: str) -> Lane:
        """As ``ScreenModel`` says."""
        group = _group(key)
        found = self._root.lane(key)
        if found is None and self._root.lane(group) is not None:
            found = self._bundle(group).lane(key)
        if found is not None:
            return found
        raise UsageError(f"there is no lane {printable(key)}")

    def own_time(self, lane: str, time_ns: int) -> int:
        """As ``ScreenModel`` says."""
        if self._root.lane(_group(lane)) is None:
            raise UsageError(f"there is no lane {printable(lane)}")
        return time_ns + self._shift(_group(lane))

    def slices(self, lane: str, window: Window, pixels: int, only: Filter = ALL) -> Slices:
        """As ``ScreenModel`` says."""
        with self._lock:
            drawn = self._drawn(lane)
            if drawn is None:
                empty = np.empty(0, np.int64)
                codes = empty.astype(np.int8), empty.astype(np.int32)
                return Slices(lane, empty, empty, empty, empty, *codes, empty, 0, (), ShownNames((), printable))
            shift = self._shift(_group(lane))
            found = draw(drawn, _moved(_bounded(window), shift), min(pixels, MOST_PIXELS), only)
            return replace(found, start_ns=found.start_ns - shift, end_ns=found.end_ns - shift) if shift else found

    def counter(self, lane: str, window: Window, pixels: int) -> Counter:
        """As ``ScreenModel`` says."""
        with self._lock:
            known = self.lane(lane)
            if known.kind is not LaneKind.COUNTER:
                raise UsageError(f"lane {printable(lane)} is no counter")
            tiled = self._tiled(_group(lane))
            changes, levels = tiled.bundle.counters[lane], tiled.counter_levels[lane]
            shift = self._shift(_group(lane))
            own, pixels = _moved(_bounded(window), shift), min(pixels, MOST_PIXELS)
            found = draw_counter(DrawnCounter(lane, changes, levels, known.unit), own, pixels)
            return replace(found, start_ns=found.start_ns - shift, end_ns=found.end_ns - shift)

    def overview(self, window: Window, pixels: int, lanes: Sequence[str] = ()) -> Overview:
        """As ``ScreenModel`` says."""
        with self._lock:
            groups, window, pixels = self._busy_groups(lanes), _bounded(window), min(pixels, MOST_PIXELS)
            exponent = max(max(window.length_ns, 1) // max(pixels, 1), 1).bit_length() - 1
            first = window.start_ns >> exponent
            number = max(-(-window.end_ns >> exponent) - first, 0)
            edges = (first + np.arange(number + 1, dtype=np.int64)) << exponent
            busy, exposed, hidden = (np.zeros(number, np.int64) for _ in range(3))
            for group in groups:
                # Cells of one rank need not lie on those of another, whose clock is moved: each fills its own.
                drawn, shift = self._drawn(group), self._shift(group)
                if drawn is None or not number:
                    continue
                own = Window(int(edges[0]) + shift, int(edges[-1]) + shift)
                start, width, found = time_by_kind(drawn, own, number)
                first_bin = (start - shift - int(edges[0]) + width // 2) >> exponent
                _add_cells(busy, found.sum(axis=1), first_bin)
                for time, kinds in ((exposed, EXPOSED_KINDS), (hidden, (parts.HIDDEN,))):
                    _add_cells(time, found[:, np.isin(drawn.kinds, kinds)].sum(axis=1), first_bin)
            return Overview(
                edges[:-1],
                edges[1:],
                len(groups),
                busy,
                exposed,
                hidden,
                np.maximum((np.diff(edges)) * len(groups) - busy, 0),
            )

    def at(self, lane: str, time_ns: int) -> SliceId | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            rows = self._rows(lane)
            time = self.own_time(lane, _believed(time_ns))
            high = int(np.searchsorted(rows.start_ns, time, side="right"))
            least = int(np.searchsorted(rows.reached, time, side="right"))
            while high > least:
                low = max(high - _SCANNED, least)
                running = np.flatnonzero(rows.end_ns[low:high] > time)
                if len(running):
                    return SliceId(lane, low + int(running[-1]))
                high = low
            return None

    def neighbour(self, slice_id: SliceId, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            place = slice_id.row + (1 if direction is Direction.NEXT else -1)
            return self._shown_from(slice_id.lane, place, direction, only)

    def nearest(self, lane: str, time_ns: int, direction: Direction, only: Filter = ALL) -> SliceId | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            running = self.at(lane, time_ns)
            if running is not None and self._shown_from(lane, running.row, direction, only) == running:
                return running
            time = self.own_time(lane, _believed(time_ns))
            first = int(np.searchsorted(self._rows(lane).start_ns, time, side="left"))
            return self._shown_from(lane, first if direction is Direction.NEXT else first - 1, direction, only)

    def _shown_from(self, lane: str, place: int, direction: Direction, only: Filter) -> SliceId | None:
        """The first slice that a filter shows, from a row on."""
        known, content = self.lane(lane), self._content(lane)
        while content is not None and 0 <= place < len(content.rows):
            low, high = (place, place + _SCANNED) if direction is Direction.NEXT else (place - _SCANNED + 1, place + 1)
            rows = np.arange(max(low, 0), min(high, len(content.rows)))
            kept = rows[self._kept(known, content, rows, only)]
            if len(kept):
                return SliceId(lane, int(kept[0 if direction is Direction.NEXT else -1]))
            place = high if direction is Direction.NEXT else low - 1
        return None

    def bounds(self, slice_id: SliceId) -> Window:
        """As ``ScreenModel`` says."""
        rows = self._rows(slice_id.lane)
        if not 0 <= slice_id.row < len(rows):
            raise UsageError(f"there is no slice {printable(str(slice_id))}")
        shift = self._shift(_group(slice_id.lane))
        return Window(int(rows.start_ns[slice_id.row]) - shift, int(rows.end_ns[slice_id.row]) - shift)

    def gap(self, lane: str, time_ns: int, direction: Direction) -> Window | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            rows, shift = self._rows(lane), self._shift(_group(lane))
            time = _believed(time_ns) + shift
            found = _gap_after(rows, time) if direction is Direction.NEXT else _gap_before(rows, time)
            return None if found is None else _moved(found, -shift)

    def iteration(self, time_ns: int, direction: Direction) -> Mark | None:
        """As ``ScreenModel`` says."""
        found = sorted(self._iterations(), key=lambda mark: mark.start_ns)
        if direction is Direction.NEXT:
            return next((mark for mark in found if mark.start_ns > time_ns), None)
        return next((mark for mark in reversed(found) if mark.start_ns < time_ns), None)

    def search(self, pattern: str, only: Filter = ALL, window: Window | None = None, page: int = 0) -> Hits:
        """As ``ScreenModel`` says."""
        _matching(("",), pattern)
        with self._lock:
            return self._searched(lambda words: _matching(words, pattern), only, window, max(page, 0))

    def _searched(
        self, matches: Callable[[Sequence[str | None]], Bool], only: Filter, window: Window | None, page: int
    ) -> Hits:
        keys: list[str] = []
        found: list[Int64] = []
        starts: list[Int64] = []
        wanted: dict[tuple[str, str], Bool] = {}
        for lane in self._searchable(only):
            group, content = _group(lane.key), self._content(lane.key)
            if content is None or not content.words:
                continue
            names = (group if self._own_words(content.words) else "", content.words)
            if names not in wanted:
                wanted[names] = np.append(matches(self._words(group, content.words)), (False, False))
            shift, rows = self._shift(group), content.rows
            low, high = (0, len(rows)) if window is None else rows.reaching(*_moved(_bounded(window), shift))
            # A place beyond the words, and that of no name, are at the end and match nothing.
            place = low + np.flatnonzero(wanted[names][rows.name[low:high]])
            place = place[self._kept(lane, content, place, only)]
            if window is not None:
                own = _moved(_bounded(window), shift)
                touches = (rows.end_ns[place] > own.start_ns) | (rows.start_ns[place] >= own.start_ns)
                place = place[touches]
            if len(place):
                keys.append(lane.key)
                found.append(place)
                starts.append(rows.start_ns[place] - shift)
        return self._page(keys, found, starts, page)

    def matched(self, pattern: str, lane: str, window: Window, pixels: int, only: Filter = ALL) -> tuple[Int64, Int64]:
        """As ``ScreenModel`` says."""
        _matching(("",), pattern)
        with self._lock:
            known, content, group = self.lane(lane), self._content(lane), _group(lane)
            none = np.empty(0, np.int64)
            if content is None or not content.words:
                return none, none
            shift, rows = self._shift(group), content.rows
            own = _moved(_bounded(window), shift)
            low, high = rows.reaching(*own)
            wanted = np.append(self._matching_words(group, content.words, pattern), (False, False))
            place = low + np.flatnonzero(wanted[rows.name[low:high]])
            place = place[self._kept(known, content, place, only)]
            start, end = rows.start_ns[place], np.maximum.accumulate(rows.end_ns[place])
            if not len(place):
                return none, none
            apart = max(own.length_ns // max(min(pixels, MOST_PIXELS), 1), 1)
            first = np.flatnonzero(np.append(True, start[1:] - end[:-1] >= apart))
            start, end = start[first], end[np.append(first[1:], len(end)) - 1]
            inside = (end > own.start_ns) | (start >= own.start_ns)
            return start[inside] - shift, end[inside] - shift

    def _matching_words(self, group: str, words: str, pattern: str) -> Bool:
        """Which names of a list an expression matches; the last expression's are kept."""
        key = (group if self._own_words(words) else "", words)
        if self._matched[0] != pattern:
            self._matched = (pattern, {})
        found = self._matched[1]
        if key not in found:
            found[key] = _matching(self._words(group, words), pattern)
        return found[key]

    def _page(self, keys: list[str], found: list[Int64], starts: list[Int64], page: int) -> Hits:
        total = sum(map(len, found))
        pages = max(-(-total // HITS_A_PAGE), 1)
        page = min(page, pages - 1)
        if not total:
            return Hits((), 0, 0, 1)
        which = np.repeat(np.arange(len(keys)), [len(rows) for rows in found])
        row, start = np.concatenate(found), np.concatenate(starts)
        first, last = page * HITS_A_PAGE, min((page + 1) * HITS_A_PAGE, total)
        # Only what the page shows is put into order.
        order = np.argpartition(start, last - 1)[:last] if last < total else np.arange(total)
        order = order[np.lexsort((row[order], which[order], start[order]))][first:last]
        chosen = [SliceId(keys[which[place]], int(row[place])) for place in order.tolist()]
        return Hits(tuple(self._hit(one) for one in chosen), total, page, pages, first)

    def _hit(self, slice_id: SliceId) -> Hit:
        content = self._content(slice_id.lane)
        assert content is not None
        window = self.bounds(slice_id)
        kind = content.kinds[content.rows.kind[slice_id.row]] if content.kinds else ""
        return Hit(slice_id, self._name(slice_id), kind, window.start_ns, window.length_ns)

    def _kept(self, lane: Lane, content: Content, place: Int64, only: Filter) -> Bool:
        """Which of some rows a filter keeps."""
        del lane
        rows = content.rows
        kept = np.ones(len(place), dtype=bool)
        if only.least_ns:
            kept &= rows.end_ns[place] - rows.start_ns[place] >= only.least_ns
        if only.kinds or only.without:
            kept &= np.array([only.keeps(word) for word in content.kinds], dtype=bool)[rows.kind[place]]
        return kept

    def _searchable(self, only: Filter) -> list[Lane]:
        """Lanes of a filter and those below them; no lane repeats slices of another one."""
        found = []
        pending = list(only.lanes) or [lane.key for lane in self._root.lanes if lane.parent is None]
        seen = set()
        while pending:
            key = pending.pop(0)
            if key in seen:
                continue
            seen.add(key)
            lane = self.lane(key)
            # Lanes of dimensions repeat slices of streams, so they are searched instead of those.
            wanted = lane.dimension in only.dimensions if only.dimensions else lane.kind is not LaneKind.DIMENSION
            if wanted or key in only.lanes:
                found.append(lane)
            if lane.holds_lanes:
                pending += [below.key for below in self.lanes(key)]
        return found

    def _own_words(self, words: str) -> bool:
        """Whether each bundle has a list of names of its own of that name."""
        del words
        return False

    def _name(self, slice_id: SliceId) -> str:
        content = self._content(slice_id.lane)
        if content is None or not content.words:
            return NO_NAME
        return self._shown(_group(slice_id.lane), content.words)[int(content.rows.name[slice_id.row])]

    def _full_name(self, slice_id: SliceId) -> str:
        content = self._content(slice_id.lane)
        if content is None or not content.words:
            return ""
        words, place = self._words(_group(slice_id.lane), content.words), int(content.rows.name[slice_id.row])
        return printable((words[place] if 0 <= place < len(words) else None) or NO_NAME)

    def _busy_groups(self, lanes: Sequence[str]) -> list[str]:
        """The ranks or GPUs that some lanes belong to, in the order of the lanes of the root; all for none."""
        wanted = {self._busy_group(lane) for lane in lanes}
        kinds = (LaneKind.GPU, LaneKind.RANK)
        return [lane.key for lane in self._root.lanes if lane.kind in kinds and (not lanes or lane.key in wanted)]

    def _busy_group(self, lane: str) -> str:
        group = _group(lane)
        found = self.lane(group)
        return group if found.parent is None else found.parent

    def _iterations(self) -> Sequence[Mark]:
        """The iterations of the first rank or GPU."""
        groups = self._busy_groups(())
        return [_moved_mark(mark, -self._shift(groups[0])) for mark in self._bundle(groups[0]).marks] if groups else []

    @property
    def _root(self) -> Bundle:
        return self._bundle("")

    def _bundle(self, group: str) -> Bundle:
        return self._tiled(group).bundle

    def _tiled(self, group: str) -> Tiled:
        with self._lock:
            if group not in self._bundles:
                path = self._kept_at(group)
                found = read_bundle(path) if path is not None else None
                if found is None:
                    found = Tiled.of(self._make(group) if group else self._make_root())
                    if path is not None:
                        keep_bundle(path, found)
                        # What is mapped can leave memory again.
                        found = read_bundle(path) or found
                self._bundles[group] = found
            return self._bundles[group]

    def _content(self, lane: str) -> Content | None:
        self.lane(lane)
        return self._bundle(_group(lane)).contents.get(lane)

    def _rows(self, lane: str) -> LaneRows:
        content = self._content(lane)
        return content.rows if content is not None else LaneRows.of(*([np.empty(0, np.int64)] * 2))

    def _drawn(self, lane: str) -> Drawn | None:
        content = self._content(lane)
        if content is None:
            return None
        names = self._shown(_group(lane), content.words)
        return Drawn(lane, content.rows, self._tiled(_group(lane)).levels[lane], content.kinds, names)

    def _shown(self, group: str, words: str) -> ShownNames:
        key = (group if self._own_words(words) else "", words)
        if key not in self._names:
            self._names[key] = ShownNames(self._words(group, words) if words else (), self._shorten(words))
        return self._names[key]


def _group(lane: str) -> str:
    """The bundle of a lane."""
    return lane.partition("/")[0]


def _matching(words: Sequence[str | None], pattern: str) -> Bool:
    """Which words a regular expression matches somewhere, whatever their case; in time that grows with their length.

    Raises:
        UsageError: it is no regular expression of RE2, which goes back over nothing.
    """
    texts = pa.array([None if word is None else without_surrogates(word) for word in words], pa.string())
    try:
        found = pc.match_substring_regex(texts, without_surrogates(pattern), ignore_case=True)
    except pa.ArrowInvalid as error:
        fault = printable(str(error)).removeprefix("Invalid regular expression: ")
        raise UsageError(f"{printable(pattern)!r} is no regular expression of RE2: {fault}") from None
    return np.asarray(pc.fill_null(found, fill_value=False), dtype=bool)


def _bounded(window: Window) -> Window:
    """The part of a window in which times are believed."""
    start = _believed(window.start_ns)
    return Window(start, max(_believed(window.end_ns), start))


def _believed(time_ns: int) -> int:
    return min(max(time_ns, -LAST_INSTANT_NS), LAST_INSTANT_NS)


def _moved(window: Window, shift: int) -> Window:
    return Window(window.start_ns + shift, window.end_ns + shift)


def _moved_mark(mark: Mark, shift: int) -> Mark:
    return replace(mark, start_ns=mark.start_ns + shift, end_ns=mark.end_ns + shift) if shift else mark


def _add_cells(time: Int64, found: Int64, first: int) -> None:
    """Add the times of cells to bins of the same length, the first cell to bin ``first``."""
    low, high = max(first, 0), min(first + len(found), len(time))
    time[low:high] += found[low - first : high - first]


def _gap_after(rows: LaneRows, time: int) -> Window | None:
    """The first time without a slice that starts after a time, between two slices."""
    low = max(int(np.searchsorted(rows.reached, time, side="right")), 0)
    while low < len(rows) - 1:
        high = min(low + _SCANNED, len(rows) - 1)
        ends, starts = rows.reached[low:high], rows.start_ns[low + 1 : high + 1]
        place = np.flatnonzero((starts > ends) & (ends > time))
        if len(place):
            return Window(int(ends[place[0]]), int(starts[place[0]]))
        low = high
    return None


def _gap_before(rows: LaneRows, time: int) -> Window | None:
    """The last time without a slice that ends at a time or before it, between two slices."""
    high = int(np.searchsorted(rows.start_ns, time, side="right")) - 1
    while high > 0:
        low = max(high - _SCANNED, 0)
        ends, starts = rows.reached[low:high], rows.start_ns[low + 1 : high + 1]
        place = np.flatnonzero(starts > ends)
        if len(place):
            return Window(int(ends[place[-1]]), int(starts[place[-1]]))
        high = low
    return None
