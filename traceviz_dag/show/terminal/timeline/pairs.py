"""A list over the whole screen: headings and texts, or hits, findings and bookmarks to go to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from traceviz_dag.show.terminal.app import QUIET, Answering
from traceviz_dag.show.terminal.glyphs import cut, flat, padded, wrapped
from traceviz_dag.show.terminal.lines import LinesView

_HEAD = 30


class PairLines:
    """Headings with texts, each text broken to the width.

    Args:
        pairs: heading and text.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], width: int) -> None:
        self.lines: list[tuple[str, str, int]] = []
        head = min(max((len(name) for name, _ in pairs), default=0) + 2, _HEAD, width // 3)
        for place, (name, text) in enumerate(pairs):
            for number, line in enumerate(wrapped(flat(text), max(width - head - 2, 10))):
                self.lines.append((padded(f" {name}" if number == 0 else "", head), line, place))
        self.count = len(self.lines)

    def line(self, index: int, width: int) -> Text:
        """A line."""
        head, text, _ = self.lines[index]
        return Text.assemble((head, QUIET), " ", cut(text, width - len(head) - 1), no_wrap=True)


class PairScreen(Answering[int | None]):
    """Headings with texts; Enter answers with the place of the one under the cursor.

    Args:
        title: above the list.
        foot: what the keys do here.
        copied: what ``y`` copies of a place; None where there is nothing to copy.
        removed: called with the place that ``Delete`` is pressed on; None where nothing can be removed.
        turned: called with 1 or -1 for the next page or the one before; None where there is one page.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,t", "dismiss(None)", "back", show=False),
        Binding("y", "copy", "copy", show=False),
        Binding("delete", "remove", "forget", show=False),
        Binding("n", "turn(1)", "next page", show=False),
        Binding("N", "turn(-1)", "previous page", show=False),
    ]

    def __init__(
        self,
        title: str,
        pairs: Sequence[tuple[str, str]],
        foot: str,
        copied: Callable[[int], str] | None = None,
        removed: Callable[[int], None] | None = None,
        turned: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self.named, self.pairs, self.foot = title, pairs, foot
        self.copied, self.removed, self.turned = copied, removed, turned

    def compose(self) -> ComposeResult:
        """Title, list, keys."""
        yield Static(Text(f" {self.named}", no_wrap=True), classes="title")
        yield LinesView()
        yield Static(Text(f" {self.foot}", no_wrap=True), id="pairs_foot", classes="quiet")

    def on_mount(self) -> None:
        """Break the texts to the width."""
        self._lay_out()
        self.query_one(LinesView).focus()

    def on_resize(self) -> None:
        """Break them anew."""
        self._lay_out()

    def _lay_out(self) -> None:
        self.query_one(LinesView).show(PairLines(self.pairs, self.app.size.width))

    def on_lines_view_chosen(self, event: LinesView.Chosen) -> None:
        """Enter."""
        place = self._place()
        if place is not None:
            self.dismiss(place)

    def action_copy(self) -> None:
        """Copy what belongs to the line."""
        place = self._place()
        text = self.copied(place) if self.copied is not None and place is not None else ""
        if text:
            self.app.copy_to_clipboard(text)
        words = f" copied: {flat(text)}" if text else " there is nothing to copy here"
        self.query_one("#pairs_foot", Static).update(Text(cut(words, self.app.size.width), no_wrap=True))

    def action_remove(self) -> None:
        """Remove what the line is of, and close the list."""
        place = self._place()
        if self.removed is not None and place is not None and not self.answered:
            self.dismiss(None)
            self.removed(place)

    def action_turn(self, by: int) -> None:
        """Close the list for another page of it."""
        if self.turned is not None and not self.answered:
            self.dismiss(None)
            self.turned(by)

    def _place(self) -> int | None:
        view = self.query_one(LinesView)
        source = view.source
        return source.lines[view.cursor][2] if isinstance(source, PairLines) and source.count else None
