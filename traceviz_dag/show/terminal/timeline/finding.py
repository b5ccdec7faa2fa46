"""The timeline's keys that show and find: details, measures, searches, filters, findings, bookmarks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from traceviz_dag.show.lanes.lane import Mark, MarkKind, Window
from traceviz_dag.show.screens.bookmarks import Bookmark
from traceviz_dag.show.screens.model import Aggregate, Hits, Slices
from traceviz_dag.show.terminal.glyphs import flat
from traceviz_dag.show.terminal.prompt import Prompt
from traceviz_dag.show.terminal.timeline.moving import Moving
from traceviz_dag.show.terminal.timeline.pairs import PairScreen
from traceviz_dag.show.terminal.timeline.words import (
    detail_lines,
    duration,
    exact,
    filter_of,
    filter_text,
    measure_lines,
    window_text,
)


class Finding(Moving):
    """Describes slices and windows, and goes to what is looked for."""

    def action_detail(self) -> None:
        """Everything known of the slice; without one, show or hide what is in the lane."""
        detail = self.detail
        if detail is None or detail.slice != self.chosen:
            self.action_fold()
            return
        lines = detail_lines(detail)
        peers = {f"{peer}": peer for peer in detail.peers}

        def go(place: int | None) -> None:
            peer = peers.get(lines[place][1]) if place is not None else None
            if peer is not None:
                self._go_or_say(lambda: peer, "")

        def copied(place: int) -> str:
            return detail.sql if lines[place][0] == "SQL" else lines[place][1]

        foot = "y copy the line or the SQL  Enter go to the same on another rank  q back"
        self.push_screen(PairScreen(detail.title, lines, foot, copied), go)

    def action_measure(self) -> None:
        """Measure the rank or GPU of the lane."""
        lane = self._lane
        self._measure([lane.key] if lane is not None else [])

    def action_measure_all(self) -> None:
        """Measure all ranks or GPUs."""
        self._measure([])

    def _measure(self, lanes: Sequence[str]) -> None:
        window = self.looking.selection or self.looking.window
        self.say(f" measuring {exact(window.length_ns)} …")
        self._ask(partial(self.model.aggregate, window, lanes), self._measured)

    def _measured(self, found: Aggregate) -> None:
        self.measured = found
        self.say("")
        lines = measure_lines(found, self.looking.span.start_ns)
        title = f"{'selection' if self.looking.selection else 'what is shown'}: {exact(found.window.length_ns)}"

        def copied(place: int) -> str:
            return lines[place][1] if lines[place][0] == "command" else "\n".join(found.commands)

        self.push_screen(PairScreen(title, lines, "y copy the command  q back", copied))

    def action_search(self) -> None:
        """Ask what to search for."""
        self.push_screen(Prompt("Search names: a regular expression, case ignored", self.pattern), self._search)

    def _search(self, text: str | None) -> None:
        if not text:
            return
        self.pattern, self.match = text, -1

        def found(hits: Hits) -> None:
            self.hits = hits
            if not hits.total:
                self.say(f" nothing is named {flat(text)}")
                self._renew()
            elif hits.total == 1:
                self.action_match(1)
            else:
                self.action_hits()

        self._ask(lambda: self.model.search(text, self.only), found)

    def action_hits(self) -> None:
        """List what was found."""
        hits = self.hits
        if hits is None or not hits.total:
            self.say(" nothing was searched for: press /" if hits is None else " nothing was found")
            return
        zero = self.looking.span.start_ns
        pairs = [
            (duration(hit.start_ns - zero), f"{duration(hit.duration_ns)}  {flat(hit.name)}  {hit.slice.lane}")
            for hit in hits.hits
        ]
        first = hits.before + 1
        title = f"/{flat(self.pattern)}: {first:,} to {first + len(hits.hits) - 1:,} of {hits.total:,}"

        def go(place: int | None) -> None:
            if place is not None:
                self.match = place
                self._go_or_say(lambda: hits.hits[place].slice, "")

        def turn(by: int) -> None:
            self._ask(
                lambda: self.model.search(self.pattern, self.only, None, (hits.page + by) % hits.pages), self._turned
            )

        pages = f"  n N page {hits.page + 1:,} of {hits.pages:,}" if hits.pages > 1 else ""
        foot = f"Enter go there, then n N for the next and previous{pages}  q back"
        self.push_screen(PairScreen(title, pairs, foot, turned=turn if hits.pages > 1 else None), go)

    def _turned(self, hits: Hits) -> None:
        self.hits, self.match = hits, -1
        self.action_hits()

    def action_match(self, by: int) -> None:
        """Go to the next match, or the one before; further pages are asked for."""
        hits = self.hits
        if hits is None or not hits.total:
            self.say(" nothing was searched for: press /" if hits is None else " nothing was found")
            return
        place = self.match + by if self.match >= 0 or by > 0 else -1
        if 0 <= place < len(hits.hits):
            self.match = place
            number = hits.before + place + 1
            self.say(f" match {number:,} of {hits.total:,}: {flat(hits.hits[place].name)}")
            self._go_or_say(lambda: hits.hits[place].slice, "")
            return
        page = (hits.page + (1 if place > 0 else -1)) % hits.pages

        def found(more: Hits) -> None:
            self.hits = more
            self.match = -1 if by > 0 else len(more.hits)
            self.action_match(by)

        self._ask(lambda: self.model.search(self.pattern, self.only, None, page), found)

    def action_filter(self) -> None:
        """Ask which slices to show."""
        question = "Show only: kinds, >20us for the shortest, here for this lane; nothing for all"
        self.push_screen(Prompt(question, filter_text(self.only)), self._filter)

    def _filter(self, text: str | None) -> None:
        if text is None:
            return
        shown = [drawn for drawn in self.scene.drawn.values() if isinstance(drawn, Slices)]
        kinds = sorted({kind for drawn in shown for kind in drawn.kinds} | set(self.only.kinds))
        found = filter_of(text, kinds, self._lane.key if self._lane else None)
        if isinstance(found, str):
            self.say(f" {found}")
            return
        self.only = found
        self._renew()

    def action_findings(self) -> None:
        """List findings and notes; Enter goes there."""
        marks = [mark for mark in self.marks if mark.kind in (MarkKind.FINDING, MarkKind.NOTE)]
        marks.sort(key=lambda mark: (mark.kind is MarkKind.NOTE, mark.number or 0))
        if not marks:
            self.say(" there are no findings here")
            return
        pairs = [
            (f"{'note: ' if mark.kind is MarkKind.NOTE else ''}{flat(mark.label)}", mark.statement or mark.label)
            for mark in marks
        ]

        def go(place: int | None) -> None:
            if place is not None:
                self._to_mark(marks[place])

        foot = "Enter go there  y copy the SQL  q back"
        self.push_screen(PairScreen("findings", pairs, foot, lambda place: marks[place].sql), go)

    def _to_mark(self, mark: Mark) -> None:
        def go(row: int | None) -> None:
            self.scene.chosen = self.detail = None
            self._adopt()
            if row is not None:
                self.scene.cursor = row
            self.looking.selection = Window(window.start_ns, max(window.end_ns, window.start_ns + 1))
            self.looking.bring(self.looking.selection)
            self.say(f" {flat(mark.statement or mark.label)}")
            self._renew()

        lane, window = mark.places[0] if mark.places else (mark.lane, Window(mark.start_ns, mark.end_ns))
        self._ask(lambda: self.lanes.reveal(lane) if lane is not None else None, go)

    def action_bookmark(self) -> None:
        """Keep this view with a note."""
        if self.bookmarks is None:
            self.say(" no bookmarks are kept of two side by side")
            return
        self.push_screen(Prompt("Bookmark this view; a note, or nothing:"), self._bookmark)

    def _bookmark(self, note: str | None) -> None:
        bookmarks, lane = self.bookmarks, self._lane
        if note is None or bookmarks is None:
            return
        one = Bookmark(self.looking.window, lane.key if lane else "", note)
        self._ask(lambda: bookmarks.add(self.model, one), lambda _: self.say(" kept in the home; B lists bookmarks"))

    def action_bookmarks(self) -> None:
        """List bookmarks; Enter goes there."""
        bookmarks = self.bookmarks
        if bookmarks is None:
            self.say(" no bookmarks are kept of two side by side")
            return
        self._ask(lambda: bookmarks.all(self.model), self._list_bookmarks)

    def _list_bookmarks(self, found: Sequence[Bookmark]) -> None:
        bookmarks = self.bookmarks
        if not found or bookmarks is None:
            self.say(" there are no bookmarks: b makes one")
            return
        zero = self.looking.span.start_ns
        pairs = [(window_text(one.window, zero), flat(f"{one.note}  {one.lane}")) for one in found]

        def go(place: int | None) -> None:
            if place is None:
                return
            one = found[place]

            def there(row: int | None) -> None:
                self._adopt()
                if row is not None:
                    self.scene.cursor = row
                self.looking.show(*one.window)
                self._renew()

            self._ask(lambda: self.lanes.reveal(one.lane) if one.lane else None, there)

        def remove(place: int) -> None:
            self._ask(lambda: bookmarks.remove(self.model, found[place]), lambda _: self.action_bookmarks())

        foot = "Enter go there  Delete forget it  q back"
        self.push_screen(PairScreen("bookmarks", pairs, foot, removed=remove), go)
