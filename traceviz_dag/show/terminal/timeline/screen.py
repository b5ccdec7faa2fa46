"""The timeline on the terminal: its keys, copying, leaving, the mouse."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from traceviz_dag.show.screens.model import SliceId
from traceviz_dag.show.terminal.app import Keys
from traceviz_dag.show.terminal.glyphs import flat
from traceviz_dag.show.terminal.timeline.finding import Finding
from traceviz_dag.show.terminal.timeline.view import TimelineView
from traceviz_dag.show.terminal.timeline.words import (
    exact,
)


class TimelineApp(Finding):
    """Lanes over time, with keys and mouse; arguments as ``Asking`` has them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,a", "move(-1)", show=False),
        Binding("right,d", "move(1)", show=False),
        Binding("plus,equals_sign,w", "zoom(7,10)", show=False),
        Binding("minus,s", "zoom(10,7)", show=False),
        Binding("0", "all", show=False),
        Binding("z", "zoom_selection", show=False),
        Binding("u", "undo", show=False),
        Binding("U", "redo", show=False),
        Binding("tab", "slice(1)", show=False, priority=True),
        Binding("shift+tab", "slice(-1)", show=False, priority=True),
        Binding("g", "gap(1)", show=False),
        Binding("G", "gap(-1)", show=False),
        Binding("i", "iteration(1)", show=False),
        Binding("I", "iteration(-1)", show=False),
        Binding("x", "launch", show=False),
        Binding("o", "peer", show=False),
        Binding("c", "path", show=False),
        Binding("down,j", "lane(1)", show=False),
        Binding("up,k", "lane(-1)", show=False),
        Binding("J", "shift(1)", show=False),
        Binding("K", "shift(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("space", "fold", show=False),
        Binding("p", "pin", show=False),
        Binding("enter", "detail", show=False),
        Binding("left_square_bracket", "select(-1)", show=False),
        Binding("right_square_bracket", "select(1)", show=False),
        Binding("colon", "go_to", show=False),
        Binding("m", "measure", show=False),
        Binding("M", "measure_all", show=False),
        Binding("slash", "search", show=False),
        Binding("n", "match(1)", show=False),
        Binding("N", "match(-1)", show=False),
        Binding("h", "hits", show=False),
        Binding("F", "filter", show=False),
        Binding("f", "findings", show=False),
        Binding("b", "bookmark", show=False),
        Binding("B", "bookmarks", show=False),
        Binding("y", "copy", show=False),
        Binding("Y", "copy_command", show=False),
    ]
    KEYS: ClassVar[Keys] = (
        ("← → a d", "move"),
        ("+ - w s", "zoom in and out"),
        ("0", "show all"),
        ("↓ ↑ j k", "lane below and above; PgUp, PgDn, Home, End"),
        ("Space", "show or hide what is in a lane"),
        ("p", "pin a lane to the top, or no longer"),
        ("J K", "move a lane down and up"),
        ("Tab Shift+Tab", "next and previous slice of the lane"),
        ("Enter", "everything known of the slice, with its SQL"),
        ("g G", "next and previous gap"),
        ("i I", "next and previous iteration"),
        ("x", "from a kernel to its launch, and back"),
        ("o", "the same communication on the next rank"),
        ("c", "the lane of the critical path; of the next rank, and so on"),
        ("[ ]", "start and end a selection at the slice, or at the edge of what is shown"),
        ("z", "zoom to the selection, or to the slice"),
        ("m M", "measure the selection, or what is shown: this rank or GPU, all"),
        (":", "show a window: START END in ns of the time above, or in s, ms, us"),
        ("/", "search names by a regular expression; h lists what was found"),
        ("n N", "next and previous match"),
        ("F", "filter: kinds, >20us; hits: here for this lane, dim:tp"),
        ("f", "findings; Enter goes there"),
        ("b B", "bookmark this view with a note; list bookmarks"),
        ("u U", "undo and redo a move"),
        ("y Y", "copy the SQL; the command"),
        ("t", "back from a list to the timeline"),
        ("mouse", "click chooses, drawing selects, wheel scrolls, with Ctrl zooms"),
    )
    FOOT: ClassVar[str] = " ←→ move +- zoom  ↑↓ lane  Tab slice  m measure  / search  f findings  ? help  q end"

    def action_copy(self) -> None:
        """Copy the SQL of the slice, or the command where it has none."""
        self._copy(self.detail.sql or self.detail.command if self.detail is not None and self.chosen else "")

    def action_copy_command(self) -> None:
        """Copy the command that shows this slice, or that measures what was measured last."""
        if self.detail is not None and self.chosen and self.detail.command:
            self._copy(self.detail.command)
        else:
            self._copy("\n".join(self.measured.commands) if self.measured else "")

    def _copy(self, text: str) -> None:
        if text:
            self.copy_to_clipboard(text)
        self.say(
            f" copied: {flat(text)}"
            if text
            else " there is nothing to copy: choose a slice with Tab, or measure with m"
        )

    async def action_back(self) -> None:
        """Forget what is chosen, then what is filtered, then end."""
        if len(self.screen_stack) > 1 or not (self.chosen or self.looking.selection):
            await super().action_back()
            return
        self.scene.chosen = self.detail = self.looking.selection = None
        self.say("")
        self._renew()

    def on_timeline_view_pointed(self, event: TimelineView.Pointed) -> None:
        """A click: on the overview it goes there, on a label it folds, on a slice it chooses."""
        looking = self.looking
        if event.of_all and event.time_ns is not None:
            half = looking.window.length_ns // 2
            looking.show(event.time_ns - half, event.time_ns + half)
            self._renew()
        elif event.row is not None:
            self._to_row(event.row)
            lane, time_ns = self._lane, event.time_ns
            if time_ns is None:
                self.action_fold()
            elif lane is not None and event.twice:
                self.action_zoom_selection()
            elif lane is not None:
                cell = max(looking.window.length_ns // self._view.columns, 1)

                def near() -> SliceId | None:
                    # A column is as long as what the mouse points at: the first slice that touches it.
                    for at in (time_ns, time_ns + cell // 2, time_ns + cell - 1):
                        found = self.model.at(lane.key, at)
                        if found is not None:
                            return found
                    return None

                self._go_or_say(near, "")

    def on_timeline_view_selected(self, event: TimelineView.Selected) -> None:
        """The mouse was drawn over a window."""
        self.looking.selection = event.window
        self.say(f" selected {exact(event.window.length_ns)}; z zooms to it, m measures it")
        self._renew()

    def on_timeline_view_wheeled(self, event: TimelineView.Wheeled) -> None:
        """Scroll the lanes; with Ctrl zoom where the mouse is."""
        if event.at_ns is not None:
            self.looking.zoom(*((10, 7) if event.by > 0 else (7, 10)), event.at_ns)
            self._renew()
        else:
            self._to_row(self.scene.cursor + event.by)
