"""The timeline's screen: what it shows, and how it asks the model beside the screen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from traceviz_dag.errors import TracevizError
from traceviz_dag.show.lanes.lane import Lane, LaneKind, Mark
from traceviz_dag.show.screens.bookmarks import Bookmarks
from traceviz_dag.show.screens.model import ALL, Aggregate, Detail, Filter, Hits, ScreenModel, SliceId
from traceviz_dag.show.terminal.app import TerminalApp
from traceviz_dag.show.terminal.glyphs import cut, flat, wrapped
from traceviz_dag.show.terminal.look import Look
from traceviz_dag.show.terminal.timeline.lanes import ShownLanes
from traceviz_dag.show.terminal.timeline.looking import Looking
from traceviz_dag.show.terminal.timeline.picture import Asked, Request, Strip, busy_lanes
from traceviz_dag.show.terminal.timeline.view import Scene, TimelineView
from traceviz_dag.show.terminal.timeline.words import (
    duration,
    fact_text,
    filter_text,
    window_text,
)

_FEW_LANES = 2
_MOST_IN_STRIP = 128
"""Ranks that the overview is made of; of more, the first."""

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Asking(TerminalApp):
    """Lanes over time, drawn; what keys do is in the classes that build on it.

    Args:
        bookmarks: where views are kept; None of two sources side by side, of which none are kept.
    """

    CSS = (
        TerminalApp.CSS
        + """
    #detail { height: 4; }
    """
    )

    def __init__(
        self,
        model: ScreenModel,
        look: Look,
        bookmarks: Bookmarks | None = None,
    ) -> None:
        super().__init__(look)
        self.model = model
        self.lanes = ShownLanes(model)
        self.asked = Asked(model)
        self.only: Filter = ALL
        self.bookmarks = bookmarks
        self.scene = Scene(Looking(model.span), look.colour)
        self.marks: Sequence[Mark] = ()
        self.detail: Detail | None = None
        self.measured: Aggregate | None = None
        self.pattern = ""
        self.hits: Hits | None = None
        self.match = -1
        self.strip: Strip | None = None
        self._jobs: deque[Job] = deque()
        self._request: Request | None = None
        self._lock = Lock()
        self._answering = False

    @property
    def looking(self) -> Looking:
        """What is shown."""
        return self.scene.looking

    @property
    def chosen(self) -> SliceId | None:
        """The slice that was chosen."""
        return self.scene.chosen[0] if self.scene.chosen else None

    def compose(self) -> ComposeResult:
        """Title, timeline, detail, keys."""
        yield Static(id="title", classes="title")
        yield TimelineView(self.scene)
        yield Static(id="of", classes="title")
        yield Static(id="detail")
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Ask for the lanes and marks first."""
        self.say("")
        self._view.focus()
        self._ask(self._begin, self._begun)

    def _begin(self) -> None:
        busy = [lane for lane in self.model.lanes(None) if lane.kind in (LaneKind.RANK, LaneKind.GPU)]
        if len(busy) <= _FEW_LANES:
            self.lanes.open |= {lane.key for lane in busy if lane.holds_lanes}
        self.lanes.lay_out()

    def _begun(self, _: object) -> None:
        self._renew()
        # Where marks cannot be read, the lanes are there all the same.
        self._ask(lambda: self.model.marks(self.model.span), self._marked)

    def _marked(self, marks: Sequence[Mark]) -> None:
        self.marks = self.scene.marks = marks
        self._view.renew()

    def on_resize(self) -> None:
        """Everything is made for a size."""
        if self.query("#foot"):
            self.query_one("#detail").styles.height = max(min(self.size.height // 5, 12), 4)
            self.say("")
            self.strip = None
            self.call_after_refresh(self._renew)

    @property
    def _view(self) -> TimelineView:
        return self.query_one(TimelineView)

    def _renew(self) -> None:
        """Draw what is known, and ask for what is not."""
        if not self.query(TimelineView):
            return
        view, scene = self._view, self.scene
        self._adopt()
        scene.cursor = max(min(scene.cursor, len(scene.rows) - 1), 0)
        high = view.lanes_high
        scene.top = max(min(scene.top, scene.cursor, len(scene.rows) - high), scene.cursor - high + 1, 0)
        shown = tuple(row.lane for row in scene.rows[scene.top : scene.top + high])
        request = Request(self.looking.window, view.columns, shown, self.only)
        scene.drawn = {
            lane.key: self.asked.kept[request.key(lane)] for lane in shown if request.key(lane) in self.asked.kept
        }
        with self._lock:
            self._request = request
            if (self.strip is None or self.strip.width != view.columns) and scene.rows:
                busy = busy_lanes(self.model.lanes(None))
                scene.busy_lanes = len(busy)
                self.strip = Strip(self.model, view.columns, busy[:_MOST_IN_STRIP])
        view.renew()
        self._head()
        self._tell()
        self._answer_beside()

    def _adopt(self) -> None:
        """Take rows that were laid out anew; the cursor stays on its lane, or goes to the one that hides it."""
        before, rows = self.scene.rows, self.lanes.rows
        if before is rows:
            return
        lane, known = self._lane, {row.lane.key: row.lane for row in before}
        self.scene.rows = rows
        places = {row.lane.key: place for place, row in enumerate(rows)}
        while lane is not None and lane.key not in places:
            lane = known.get(lane.parent or "")
        if lane is not None:
            self.scene.cursor = places[lane.key]

    def _head(self) -> None:
        width, looking = self.size.width, self.looking
        words = [f" {flat(self.model.title)}", window_text(looking.window, looking.span.start_ns)]
        if looking.selection is not None:
            words.append(f"selected {duration(looking.selection.length_ns)}")
        if self.only != ALL:
            words.append(f"filter {filter_text(self.only)}")
        if self.pattern and self.hits is not None:
            words.append(f"/{flat(self.pattern)}: {self.hits.total:,}")
        self.query_one("#title", Static).update(Text(cut("  ".join(words), width), no_wrap=True))

    def _tell(self) -> None:
        """The lines below: of the chosen slice, else what the source says of itself."""
        width, height = self.size.width, self.query_one("#detail").styles.height
        room = int(height.value) if height is not None else 4
        head, detail = self.query_one("#of", Static), self.query_one("#detail", Static)
        if self.scene.chosen is None or self.detail is None or self.detail.slice != self.chosen:
            lane = self._lane
            title = f" {flat(lane.label)}" + (f": {lane.rows:,} slices" if lane.rows else "") if lane else ""
            lines = [line for note in self.model.notes for line in wrapped(flat(note), width - 2)]
        else:
            title = f" {self.detail.title}"
            words = "; ".join(fact_text(fact) for fact in (*self.detail.facts, *self.detail.evidence))
            lines = wrapped(words, width - 2)
            if len(lines) > room:
                lines = [*lines[: room - 1], cut(f"{lines[room - 1]} … Enter shows all", width - 2)]
        head.update(Text(cut(title, width), no_wrap=True))
        detail.update(Text("\n".join(f" {cut(line, width - 2)}" for line in lines[:room]), no_wrap=True))

    @property
    def _lane(self) -> Lane | None:
        rows = self.scene.rows
        return rows[self.scene.cursor].lane if self.scene.cursor < len(rows) else None

    def _ask(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Ask something of the model, and go on with the answer; questions are answered in their order."""
        with self._lock:
            self._jobs.append((call, then))
        self._answer_beside()

    def _answer_beside(self) -> None:
        with self._lock:
            if self._answering or self._next_job(peek=True) is None:
                return
            self._answering = True
        self.run_worker(self._answer, thread=True, group="answer", exit_on_error=True)

    def _next_job(self, *, peek: bool = False) -> Job | None:
        """Questions come first, then lanes in sight, then the overview."""
        if self._jobs:
            return self._jobs[0] if peek else self._jobs.popleft()
        request = self._request
        if request is not None:
            missing = self.asked.missing(request)
            if missing:
                return partial(self.asked.ask, request, missing[0]), self._drawn
        if self.strip is not None and self.strip.left:
            return self.strip.ask, self._strip_drawn
        return None

    def _answer(self) -> None:
        while True:
            with self._lock:
                job = self._next_job()
                if job is None or not self.is_running:
                    self._answering = False
                    return
            call, then = job
            try:
                answer = call()
            except TracevizError as error:
                self._refused(call)
                self.call_from_thread(self.say, f" {error}")
                continue
            if self.is_running:
                self.call_from_thread(then, answer)

    def _refused(self, call: Callable[[], Any]) -> None:
        """What cannot be drawn is not asked again."""
        if isinstance(call, partial) and call.func == self.asked.ask:
            request, lane = call.args
            self.asked.kept[request.key(lane)] = None

    def _drawn(self, _: object) -> None:
        request, scene = self._request, self.scene
        if request is None:
            return
        for lane in request.lanes:
            if request.key(lane) in self.asked.kept:
                scene.drawn[lane.key] = self.asked.kept[request.key(lane)]
        if not self.asked.missing(request):
            self._view.renew()

    def _strip_drawn(self, _: object) -> None:
        if self.strip is not None:
            self.scene.overview = self.strip.found
            self._view.renew()
