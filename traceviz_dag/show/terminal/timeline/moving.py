"""The timeline's keys that move: in time, from lane to lane, from slice to slice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from traceviz_dag.show.lanes.lane import Lane, LaneKind, MarkKind, Window
from traceviz_dag.show.screens.model import ALL, Detail, Direction, SliceId, Slices
from traceviz_dag.show.terminal.glyphs import flat
from traceviz_dag.show.terminal.prompt import Prompt
from traceviz_dag.show.terminal.timeline.asking import Asking
from traceviz_dag.show.terminal.timeline.words import (
    exact,
)

_NEXT, _PREVIOUS = Direction.NEXT, Direction.PREVIOUS


class Moving(Asking):
    """Moves in time and between lanes and slices."""

    def action_move(self, by: int) -> None:
        """Move by a fifth of what is shown."""
        self.looking.move(by, 5)
        self._renew()

    def action_zoom(self, parts: int, of: int) -> None:
        """Show more or less time around the chosen slice, or the middle."""
        at = None
        if self.scene.chosen is not None:
            window = self.scene.chosen[1]
            middle = (window.start_ns + window.end_ns) // 2
            at = middle if self.looking.window.start_ns <= middle < self.looking.window.end_ns else None
        self.looking.zoom(parts, of, at)
        self._renew()

    def action_all(self) -> None:
        """Show all."""
        self.looking.show(*self.looking.all)
        self._renew()

    def action_undo(self) -> None:
        """Show what was shown before."""
        self.say("" if self.looking.undo() else " there is no view before this one")
        self._renew()

    def action_redo(self) -> None:
        """Show what was shown before ``u``."""
        self.say("" if self.looking.redo() else " there is no view after this one")
        self._renew()

    def action_zoom_selection(self) -> None:
        """Show the selection, or the slice with some time around it."""
        if self.looking.selection is not None:
            self.looking.show(*self.looking.selection)
        elif self.scene.chosen is not None:
            window = self.scene.chosen[1]
            by = max(window.length_ns // 10, 1)
            self.looking.show(window.start_ns - by, window.end_ns + by)
        else:
            self.say(" nothing is selected: press [ and ], or Tab for a slice")
        self._renew()

    def action_iteration(self, by: int) -> None:
        """Show the next iteration, or the one before; one that begins where the view does counts as the next."""
        whole, window = self.looking.all, self.looking.window
        iterations = [
            (Window(max(mark.start_ns, whole.start_ns), min(mark.end_ns, whole.end_ns)), mark)
            for mark in self.marks
            if mark.kind is MarkKind.ITERATION
        ]
        if by > 0:
            found = [each for each in iterations if each[0].start_ns >= window.start_ns and each[0] != window]
        else:
            found = [each for each in iterations if each[0].start_ns < window.start_ns]
        if found:
            inside, mark = found[0 if by > 0 else -1]
            self.looking.show(*inside)
            self.say(f" {flat(mark.label)}: {exact(mark.end_ns - mark.start_ns)}")
        else:
            self.say(" there is no iteration further on" if by > 0 else " there is no iteration before")
        self._renew()

    def action_go_to(self) -> None:
        """Ask for a window."""
        start = self.looking.span.start_ns
        shown = f"{self.looking.window.start_ns - start} {self.looking.window.end_ns - start}"
        self.push_screen(Prompt("Show from START to END, ns; or with s, ms, us", shown), self._go_to)

    def _go_to(self, text: str | None) -> None:
        if text is None:
            return
        found = [_instant(word) for word in text.replace(",", "").split()]
        times = [time for time in found if time is not None]
        if len(times) != 2 or len(found) != 2 or times[1] <= times[0]:
            self.say(f" {flat(text)}: write two times, the later one behind")
            return
        start = self.looking.span.start_ns
        self.looking.show(start + times[0], start + times[1])
        self._renew()

    def action_lane(self, by: int) -> None:
        """The lane below or above."""
        self._adopt()
        self._to_row(self.scene.cursor + by)

    def action_page(self, by: int) -> None:
        """A page of lanes down or up."""
        self._adopt()
        self._to_row(self.scene.cursor + by * self._view.lanes_high)

    def action_edge(self, to: int) -> None:
        """The first or last lane."""
        self._adopt()
        self._to_row(0 if to < 0 else len(self.scene.rows) - 1)

    def _to_row(self, row: int) -> None:
        self.scene.cursor = max(min(row, len(self.scene.rows) - 1), 0)
        self._renew()

    def action_fold(self) -> None:
        """Show or hide what is in the lane."""
        self._of_lane(lambda lane: self.lanes.fold(lane.key) if lane.holds_lanes else None)

    def action_pin(self) -> None:
        """Pin the lane, or no longer."""
        self._of_lane(lambda lane: self.lanes.pin(lane.key))

    def action_shift(self, by: int) -> None:
        """Move the lane among those beside it."""
        self._of_lane(lambda lane: self.lanes.shift(lane.key, by))

    def _of_lane(self, change: Callable[[Lane], None]) -> None:
        """Change the lanes at the cursor, which stays on its lane."""
        lane = self._lane
        if lane is None:
            return

        self._ask(lambda: change(lane), lambda _: self._renew())

    def action_slice(self, by: int) -> None:
        """The next slice of the lane, or the one before."""
        direction, lane = (_NEXT if by > 0 else _PREVIOUS), self._lane
        if lane is None:
            return

        def ask() -> SliceId | None:
            chosen = self.chosen
            if chosen is not None and chosen.lane == lane.key:
                return self.model.neighbour(chosen, direction, self.only)
            shown = self.model.slices(lane.key, self.looking.window, self._view.columns, self.only)
            return _edge(shown, by)

        left_out = " that the filter shows" if self.only != ALL else ""
        self._go_or_say(ask, f" {flat(lane.label)} has no slice {'further on' if by > 0 else 'before'}{left_out}")

    def action_gap(self, by: int) -> None:
        """Select the next time in which the lane shows nothing, or the one before."""
        lane = self._lane
        if lane is None:
            return

        def ask() -> Window | None:
            window = self.looking.window
            here = self.looking.selection or (self.scene.chosen[1] if self.scene.chosen else None)
            if here is None:
                here = Window(window.start_ns, window.start_ns) if by > 0 else Window(window.end_ns, window.end_ns)
            if by > 0:
                return self.model.gap(lane.key, here.start_ns, _NEXT)
            return self.model.gap(lane.key, here.start_ns, _PREVIOUS)

        def go(window: Window | None) -> None:
            if window is None:
                self.say(f" {flat(lane.label)} has no gap {'further on' if by > 0 else 'before'}")
            else:
                self.scene.chosen = self.detail = None
                self.looking.selection = window
                self.looking.bring(window)
                self.say(f" gap of {exact(window.length_ns)}")
            self._renew()

        self._ask(ask, go)

    def action_launch(self) -> None:
        """From a kernel to its launch, or from a launch to what it launched."""
        chosen = self.chosen
        if chosen is None:
            self.say(" no slice is chosen: press Tab")
            return
        self._go_or_say(lambda: self.model.follow(chosen), " nothing is known of its launch")

    def action_peer(self) -> None:
        """The same communication on the next rank."""
        chosen = self.chosen
        if chosen is None:
            self.say(" no slice is chosen: press Tab")
            return

        def ask() -> SliceId | None:
            members, here = list(self.model.members(chosen)), self._outermost(chosen.lane)
            places = [place for place, one in enumerate(members) if self._outermost(one.lane) == here]
            return members[(places[0] + 1) % len(members)] if places and len(members) > 1 else None

        self._go_or_say(ask, " it is no communication that is matched across ranks")

    def _outermost(self, key: str) -> str:
        """Key of the rank, GPU or process that a lane belongs to."""
        while (above := self.model.lane(key).parent) is not None:
            key = above
        return key

    def _go_or_say(self, ask: Callable[[], SliceId | None], otherwise: str) -> None:
        def found() -> tuple[SliceId, Window, int] | None:
            one = ask()
            return None if one is None else (one, self.model.bounds(one), self.lanes.reveal(one.lane))

        def go(answer: tuple[SliceId, Window, int] | None) -> None:
            if answer is None:
                self.say(otherwise)
                return
            one, window, row = answer
            self.choose(one, window, row)

        self._ask(found, go)

    def choose(self, one: SliceId, window: Window, row: int) -> None:
        """Choose a slice: bring it into sight and show what is known of it."""
        self._adopt()
        self.scene.chosen, self.scene.cursor = (one, window), row
        self.looking.selection = None
        self.looking.bring(window)
        self._renew()
        self._ask(partial(self.model.detail, one), self._detailed)

    def _detailed(self, detail: Detail) -> None:
        if detail.slice == self.chosen:
            self.detail = detail
            self._tell()

    def action_path(self) -> None:
        """Go to the critical path of this rank; from there to that of the next rank that has one."""
        lane = self._lane

        def ask() -> int | None:
            ranks = [one.key for one in self.model.lanes(None)]
            here = self._outermost(lane.key) if lane is not None else ""
            first = ranks.index(here) if here in ranks else 0
            first += lane is not None and lane.kind is LaneKind.PATH
            for rank in [*ranks[first:], *ranks[:first]]:
                for one in self.model.lanes(rank):
                    if one.kind is LaneKind.PATH:
                        return self.lanes.reveal(one.key)
            return None

        def go(row: int | None) -> None:
            if row is None:
                self.say(" no critical path is known here")
            else:
                self._adopt()
                self._to_row(row)

        self._ask(ask, go)

    def action_select(self, side: int) -> None:
        """Begin or end the selection at the slice, or at the edge of what is shown."""
        here = self.scene.chosen[1] if self.scene.chosen else self.looking.window
        before = self.looking.selection or self.looking.window
        start, end = (here.start_ns, before.end_ns) if side < 0 else (before.start_ns, here.end_ns)
        if end <= start:
            self.say(" the selection would end before it starts")
            return
        self.looking.selection = Window(start, end)
        self.say(f" selected {exact(end - start)}; z zooms to it, m measures it")
        self._renew()


def _edge(shown: Slices, by: int) -> SliceId | None:
    """The first or last slice that is drawn."""
    return shown.slice_id(0 if by > 0 else len(shown) - 1) if len(shown) else None


def _instant(word: str) -> int | None:
    """A time as it was typed, ns: whole, or with decimals of a unit."""
    for ending, digits in (("ns", 0), ("us", 3), ("µs", 3), ("ms", 6), ("s", 9), ("", 0)):
        text = word.removesuffix(ending) if ending else word
        if text == word and ending:
            continue
        whole, _, rest = text.partition(".")
        # Decimals below a nanosecond are refused, not cut.
        if whole.isdecimal() and (not rest or rest.isdecimal()) and len(rest.rstrip("0")) <= digits:
            return int(whole) * 10**digits + int(f"{rest:0<{digits}}"[:digits] or "0")
        return None
    return None
