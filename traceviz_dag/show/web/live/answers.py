"""Answers of a live page as JSON: lanes, marks, details, measures, moves, hits, bookmarks.

Times count from the begin of the model's span. Whole numbers beyond 2^53, which scripts do not hold exactly, are texts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes import words
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Mark, Window
from traceviz_dag.show.screens.bookmarks import Bookmark
from traceviz_dag.show.screens.model import ScreenModel, SliceId
from traceviz_dag.show.web.live.questions import LONGEST_PATTERN, MOST_LANES, Question
from traceviz_dag.show.web.live.sources import Walked
from traceviz_dag.system.json_bytes import decoded

MOST_MARKS = 5000
MOST_BOOKMARKS = 500
LONGEST_NOTE = 500
_LARGEST_EXACT = 1 << 53
_MOST_BELOW = 5000


def about(walked: Walked, _: Question) -> Any:
    """What the page begins with; where bookmarks cannot be read, a note says why."""
    model, notes = walked.model, list(walked.model.notes)
    marks = model.marks(model.span)
    try:
        kept = _bookmarks(walked)
    except BadInputError as error:
        kept = []
        notes.append(str(error))
    return {
        "title": model.title,
        "origin": str(model.span.start_ns),
        "length": model.span.length_ns,
        "notes": notes,
        "words": words.WORDS,
        "groupings": {word: [asdict(one) for one in found] for word, found in model.groupings.items()},
        "lanes": _lanes(model, None),
        "marks": [_mark(model, mark) for mark in marks[:MOST_MARKS]],
        "marks_left": max(len(marks) - MOST_MARKS, 0),
        "bookmarks": kept,
    }


def lanes(walked: Walked, question: Question) -> Any:
    """The lanes right below one."""
    return _lanes(walked.model, question.lane())


def detail(walked: Walked, question: Question) -> Any:
    """Everything known of a slice."""
    model = walked.model
    found = model.detail(question.slice_id())
    return {
        **_place(model, found.slice),
        "title": found.title,
        "full_name": found.full_name,
        "facts": [asdict(fact) for fact in found.facts],
        "evidence": [asdict(fact) for fact in found.evidence],
        "peers": [_place(model, peer) for peer in found.peers[:MOST_LANES]],
        "launch": None if found.launch is None else _place(model, found.launch),
        "sql": found.sql,
        "command": found.command,
    }


def measure(walked: Walked, question: Question) -> Any:
    """The exact measures of a window, of the ranks or GPUs of some lanes."""
    model, window = walked.model, question.window(walked.model)
    wanted = question.lanes()
    busy = [lane.key for lane in model.lanes() if lane.kind in (LaneKind.GPU, LaneKind.RANK)]
    if not wanted and len(busy) > MOST_LANES:
        raise UsageError(f"there are {len(busy):,} of them: choose up to {MOST_LANES} to measure")
    found = model.aggregate(window, wanted)
    return {
        **_window(model, found.window),
        "measures": [{**asdict(one), "label": model.lane(one.lane).label} for one in found.measures],
        "top": [asdict(one) for one in found.top],
        "commands": list(found.commands),
    }


def at(walked: Walked, question: Question) -> Any:
    """The slice of a lane at a time; None where none runs."""
    model = walked.model
    return _optional(model, model.at(question.lane(), question.time(model)))


def neighbour(walked: Walked, question: Question) -> Any:
    """The slice after or before one; without one, that of a lane at a time, or what is nearest."""
    model, way, only = walked.model, question.direction(), question.shown()
    if question.values.get("slice") is None:
        return _optional(model, model.nearest(question.lane(), question.time(model), way, only))
    return _optional(model, model.neighbour(question.slice_id(), way, only))


def gap(walked: Walked, question: Question) -> Any:
    """The next or the last gap of a lane; None where there is none."""
    model = walked.model
    found = model.gap(question.lane(), question.time(model), question.direction())
    return None if found is None else _window(model, found)


def iteration(walked: Walked, question: Question) -> Any:
    """The next or the last iteration; None where there is none."""
    model = walked.model
    found = model.iteration(question.time(model), question.direction())
    return None if found is None else _mark(model, found)


def follow(walked: Walked, question: Question) -> Any:
    """From an operation to its launch, and back."""
    return _optional(walked.model, walked.model.follow(question.slice_id()))


def members(walked: Walked, question: Question) -> Any:
    """The same communication on all ranks."""
    model = walked.model
    return [_place(model, one) for one in model.members(question.slice_id())[: 2 * MOST_LANES]]


def search(walked: Walked, question: Question) -> Any:
    """A page of what a regular expression finds."""
    model, pattern = walked.model, question.word("pattern", LONGEST_PATTERN)
    found = model.search(pattern, question.only(), page=question.number("page", 0, 1 << 30, default=0))
    hits = [
        {**_place(model, hit.slice), "name": hit.name[:LONGEST_PATTERN], "kind": hit.kind, "duration": hit.duration_ns}
        for hit in found.hits
    ]
    return {"hits": hits, "total": found.total, "page": found.page, "pages": found.pages, "before": found.before}


def matched(walked: Walked, question: Question) -> Any:
    """Where slices lie that a regular expression finds, per lane: starts, and ends."""
    model, window, pixels = walked.model, question.window(walked.model), question.pixels()
    pattern, only, origin = question.word("pattern", LONGEST_PATTERN), question.shown(), walked.model.span.start_ns
    found = {}
    for lane in question.lanes():
        start, end = model.matched(pattern, lane, window, pixels, only)
        found[lane] = [(start - origin).tolist(), (end - origin).tolist()]
    return found


def perfetto(walked: Walked, question: Question) -> Any:
    """A window on the clock of the exported Perfetto traces, as texts; None where there is no such clock."""
    if walked.in_perfetto is None:
        return None
    start, end = walked.in_perfetto(question.window(walked.model))
    return {"from": str(start), "to": str(end)}


def bookmarks(walked: Walked, _: Question) -> Any:
    """The bookmarks; None where none are kept."""
    return _bookmarks(walked)


class BookmarkChange(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A bookmark that is to be kept or forgotten; its times count from the begin of the span."""

    start: int
    end: int
    lane: str = ""
    note: str = ""
    forget: bool = False


def change_bookmarks(walked: Walked, body: bytes) -> Any:
    """Keep or forget a bookmark, and the bookmarks after that.

    Raises:
        UsageError: it is no bookmark, or there are too many.
    """
    if walked.bookmarks is None:
        raise UsageError("no bookmarks are kept where two sources lie beside each other")
    try:
        change = decoded(body, BookmarkChange)
    except msgspec.DecodeError as error:
        raise UsageError(f"that is no bookmark: {error}") from None
    model = walked.model
    largest = 1 << 62
    if not -largest < change.start < change.end < largest or len(change.note) > LONGEST_NOTE:
        raise UsageError(f"a bookmark ends after it starts, and its note has {LONGEST_NOTE} letters at the most")
    if change.lane:
        model.lane(change.lane)
    origin = model.span.start_ns
    one = Bookmark(Window(origin + change.start, origin + change.end), change.lane, printable(change.note))
    if change.forget:
        walked.bookmarks.remove(model, one)
    elif len(walked.bookmarks.all(model)) >= MOST_BOOKMARKS:
        raise UsageError(f"{MOST_BOOKMARKS} bookmarks are kept at the most: forget one first")
    else:
        walked.bookmarks.add(model, one)
    return _bookmarks(walked)


ANSWERS = {
    one.__name__: one
    for one in (
        *(about, lanes, detail, measure, at, neighbour, gap, iteration, follow, members, search),
        *(matched, perfetto, bookmarks),
    )
}
"""Last part of an address → what answers it."""


def as_json(answer: Any) -> bytes:
    """An answer as JSON that scripts read without loss."""
    return msgspec.json.encode(_exact(answer))


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        return str(value)
    return value


def _lanes(model: ScreenModel, parent: str | None) -> list[dict[str, Any]]:
    return [_lane(lane) for lane in model.lanes(parent)[:_MOST_BELOW]]


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "key": lane.key,
        "label": lane.label,
        "parent": lane.parent,
        "kind": lane.kind.value,
        "rows": lane.rows,
        "holds": lane.holds_lanes,
        "level": lane.level,
        "unit": lane.unit,
        "dimension": lane.dimension,
    }


def _mark(model: ScreenModel, mark: Mark) -> dict[str, Any]:
    return {
        **_window(model, Window(mark.start_ns, mark.end_ns)),
        "kind": mark.kind.value,
        "label": mark.label,
        "lane": mark.lane,
        "statement": mark.statement,
        "number": mark.number,
        "culprit": mark.culprit,
        "sql": mark.sql,
        "places": [{**_window(model, window), "lane": lane} for lane, window in mark.places],
    }


def _bookmarks(walked: Walked) -> list[dict[str, Any]] | None:
    if walked.bookmarks is None:
        return None
    model = walked.model
    found = walked.bookmarks.all(model)
    return [{**_window(model, one.window), "lane": one.lane, "note": one.note} for one in found]


def _optional(model: ScreenModel, slice_id: SliceId | None) -> dict[str, Any] | None:
    return None if slice_id is None else _place(model, slice_id)


def _place(model: ScreenModel, slice_id: SliceId) -> dict[str, Any]:
    """A slice, where it lies, and the lanes around its own, the outermost first."""
    around: list[str] = []
    parent = model.lane(slice_id.lane).parent
    while parent is not None:
        around.insert(0, parent)
        parent = model.lane(parent).parent
    return {
        **_window(model, model.bounds(slice_id)),
        "slice": str(slice_id),
        "lane": slice_id.lane,
        "around": around,
        "label": model.lane(slice_id.lane).label,
    }


def _window(model: ScreenModel, window: Window) -> dict[str, Any]:
    origin = model.span.start_ns
    return {"from": window.start_ns - origin, "to": window.end_ns - origin}
