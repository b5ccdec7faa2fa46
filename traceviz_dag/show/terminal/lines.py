"""Lines that are asked for as they come into sight, so that a list costs what it shows; with a cursor."""

from __future__ import annotations

from typing import ClassVar, Protocol

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

_KEPT = 512
_CURSOR = Style(reverse=True)


class LineSource(Protocol):
    """What a list shows."""

    @property
    def count(self) -> int:
        """How many lines there are."""

    def line(self, index: int, width: int) -> Text:
        """One of them."""


class NoLines:
    """Nothing to show."""

    count = 0

    def line(self, index: int, width: int) -> Text:
        """There is none."""
        raise IndexError(index)


class LinesView(ScrollView, can_focus=True):
    """A list; its lines are kept until ``renew``."""

    DEFAULT_CSS = """
    LinesView { scrollbar-size: 0 0; overflow-x: hidden; overflow-y: scroll; height: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,w", "step(-1)", "up", show=False),
        Binding("down,s", "step(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "edge(-1)", "first", show=False),
        Binding("end", "edge(1)", "last", show=False),
        Binding("enter", "choose", "open", show=False),
    ]

    class Moved(Message):
        """The cursor is on another line."""

        def __init__(self, view: LinesView, index: int) -> None:
            super().__init__()
            self.view = view
            self.index = index

        @property
        def control(self) -> LinesView:
            """The list."""
            return self.view

    class Chosen(Moved):
        """A line was chosen: Enter, or a second click."""

    def __init__(self, source: LineSource | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.source: LineSource = source or NoLines()
        self.cursor = 0
        self._strips: LRUCache[tuple[int, int, bool], Strip] = LRUCache(_KEPT)

    def show(self, source: LineSource, cursor: int | None = None) -> None:
        """Show other lines; the cursor stays where it is, as far as there is a line."""
        self.source = source
        self.renew()
        self.move_to(self.cursor if cursor is None else cursor)

    def renew(self) -> None:
        """Ask for every line in sight again."""
        self._strips.clear()
        self.virtual_size = Size(self.size.width, self.source.count)
        self.refresh()

    def on_resize(self) -> None:
        """Lines are made for a width."""
        self.renew()
        self.move_to(self.cursor)

    def move_to(self, index: int) -> None:
        """Put the cursor on a line, and bring it into sight."""
        before = self.cursor
        self.cursor = max(min(index, self.source.count - 1), 0)
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, immediate=True, force=True)
        if self.cursor != before:
            self.refresh()
            self.post_message(self.Moved(self, self.cursor))

    def render_line(self, y: int) -> Strip:
        """One line in sight."""
        index, width = self.scroll_offset.y + y, self.size.width
        if index >= self.source.count:
            return Strip.blank(width, self.rich_style)
        marked = index == self.cursor and self.has_focus
        key = (index, width, marked)
        strip = self._strips.get(key)
        if strip is None:
            text = self.source.line(index, width).copy()
            text.end = ""
            if marked and text.plain.startswith(" "):
                # Seen where nothing shows reversed letters, too.
                text.plain = f">{text.plain[1:]}"
            segments = text.render(self.app.console)
            strip = Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)
            if marked:
                strip = strip.apply_style(_CURSOR)
            self._strips[key] = strip
        return strip

    def action_step(self, by: int) -> None:
        """Move the cursor by lines."""
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by what is in sight."""
        self.move_to(self.cursor + by * max(self.size.height - 1, 1))

    def action_edge(self, to: int) -> None:
        """Move the cursor to the first or last line."""
        self.move_to(0 if to < 0 else self.source.count - 1)

    def action_choose(self) -> None:
        """Choose the line under the cursor."""
        if self.source.count:
            self.post_message(self.Chosen(self, self.cursor))

    def on_click(self, event: Click) -> None:
        """Move the cursor to where the mouse is; a second click there chooses."""
        index = self.scroll_offset.y + event.y
        if index >= self.source.count:
            return
        again = index == self.cursor
        self.move_to(index)
        if again and event.chain > 1:
            self.action_choose()

    def on_focus(self) -> None:
        """The cursor shows where keys go."""
        self.renew()

    def on_blur(self) -> None:
        """Keys go elsewhere."""
        self.renew()
