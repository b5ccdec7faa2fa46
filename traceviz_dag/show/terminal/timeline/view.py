"""The widget that draws the overview, the axis and the lanes, letter by letter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.events import Click, MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.message import Message
from textual.strip import Strip as Line
from textual.widget import Widget

from traceviz_dag.show.lanes.lane import Mark, MarkKind, Window
from traceviz_dag.show.lanes.words import EXPOSED, word_of
from traceviz_dag.show.page.palette import text_on
from traceviz_dag.show.screens.model import Counter, Overview, SliceId, Slices
from traceviz_dag.show.terminal.app import ATTENTION, INK, PAPER, QUIET, RULE, TerminalApp
from traceviz_dag.show.terminal.glyphs import HEIGHTS, flat, padded
from traceviz_dag.show.terminal.timeline.cells import (
    Cells,
    cells_of,
    counter_cells,
    letter_of,
    strip_eighths,
)
from traceviz_dag.show.terminal.timeline.lanes import ShownLane
from traceviz_dag.show.terminal.timeline.looking import Looking
from traceviz_dag.show.terminal.timeline.picture import Drawn
from traceviz_dag.show.terminal.timeline.words import duration, instant, tick_step
from traceviz_dag.vocabulary import Kind

ABOVE = 5
"""Lines above the lanes: busy, exposed, what is shown of all, the axis, iterations with findings."""

BELOW = 1
"""Lines below the lanes: what their colours mean."""

_COUNTER = "#8ab8f0"
_IDLE = "#24292f"
_BLOCKS, _BAR = f"{HEIGHTS}░▒▓·:", "▬"


@dataclass(slots=True)
class Scene:
    """What is drawn.

    Attributes:
        top: row of the first lane in sight. cursor: row of the chosen lane.
        drawn: lane → its answer for this window; lanes that are not in it are being asked for.
        chosen: the chosen slice and where it lies.
        overview: of all the time, over as many ranks or GPUs as it says. busy_lanes: how many there are.
    """

    looking: Looking
    colour: bool = True
    rows: Sequence[ShownLane] = ()
    top: int = 0
    cursor: int = 0
    drawn: dict[str, Drawn] = field(default_factory=dict)
    overview: Overview | None = None
    busy_lanes: int = 0
    marks: Sequence[Mark] = ()
    chosen: tuple[SliceId, Window] | None = None


class TimelineView(Widget, can_focus=True):
    """The timeline; keys are the screen's."""

    DEFAULT_CSS = "TimelineView { height: 1fr; }"

    class Pointed(Message):
        """The mouse asks for a place.

        Attributes:
            time_ns: None where it is on the labels.
            row: row of the lane; None above the lanes.
            of_all: whether it is on the overview.
        """

        def __init__(self, time_ns: int | None, row: int | None, of_all: bool, twice: bool) -> None:
            super().__init__()
            self.time_ns, self.row, self.of_all, self.twice = time_ns, row, of_all, twice

    class Selected(Message):
        """The mouse was drawn over a window."""

        def __init__(self, window: Window) -> None:
            super().__init__()
            self.window = window

    class Wheeled(Message):
        """The wheel was turned: up is negative; with Ctrl it zooms at an instant."""

        def __init__(self, by: int, at_ns: int | None) -> None:
            super().__init__()
            self.by, self.at_ns = by, at_ns

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene
        self._lines: dict[tuple[int, int], Line] = {}
        self._pressed: int | None = None

    @property
    def labels(self) -> int:
        """Columns of the labels."""
        return max(min(self.size.width // 4, 34), 12)

    @property
    def columns(self) -> int:
        """Columns of the time."""
        return max(self.size.width - self.labels, 1)

    @property
    def lanes_high(self) -> int:
        """How many lanes are in sight."""
        return max(self.size.height - ABOVE - BELOW, 1)

    def renew(self) -> None:
        """Draw again."""
        self._lines.clear()
        self.refresh()

    def on_key(self) -> None:
        """What was said before is read."""
        if isinstance(self.app, TerminalApp):
            self.app.say("")

    def on_resize(self) -> None:
        """Lines are made for a width."""
        self._lines.clear()

    def render_line(self, y: int) -> Line:
        """One line."""
        key = (y, self.size.width)
        if key not in self._lines:
            self._lines[key] = self._line(y).adjust_cell_length(self.size.width).apply_style(self.rich_style)
        return self._lines[key]

    def _line(self, y: int) -> Line:
        above = (
            lambda: self._strip("busy", "busy", word_of(Kind.COMPUTATION).colour),
            lambda: self._strip("exposed", "exposed", _seen(word_of(EXPOSED).colour)),
            self._frame,
            self._axis,
            self._marks,
        )
        if y < ABOVE:
            return above[y]()
        if y >= ABOVE + self.lanes_high:
            return self._legend()
        place = self.scene.top + y - ABOVE
        return self._lane(place) if place < len(self.scene.rows) else Line.blank(self.size.width)

    def _strip(self, label: str, part: str, colour: str) -> Line:
        overview, width = self.scene.overview, self.columns
        done = overview.lanes if overview is not None else 0
        told = "" if done == self.scene.busy_lanes else f" {done:,} of {self.scene.busy_lanes:,}"
        segments = [Segment(padded(f" {label}{told}", self.labels), _style(QUIET))]
        if overview is not None:
            values = strip_eighths(getattr(overview, f"{part}_ns"), overview, width)
            segments.append(Segment("".join(HEIGHTS[value] for value in values.tolist()), _style(colour, _IDLE)))
        return Line(segments)

    def _frame(self) -> Line:
        """Which part of all is shown."""
        looking, width = self.scene.looking, self.columns
        whole = looking.all
        first = (looking.window.start_ns - whole.start_ns) * width // whole.length_ns
        last = max(-(-(looking.window.end_ns - whole.start_ns) * width // whole.length_ns), first + 1)
        text = "─" * first + "━" * (last - first) + "─" * (width - last)
        shown = f" {duration(looking.window.length_ns)}"
        return Line(
            [
                Segment(padded(shown, self.labels), Style(bold=True)),
                Segment(text[:first], _style(RULE)),
                Segment(text[first:last], _style(INK)),
                Segment(text[last:], _style(RULE)),
            ]
        )

    def _axis(self) -> Line:
        """Ticks with their times, from the beginning of all."""
        looking, width = self.scene.looking, self.columns
        zero = looking.span.start_ns
        step = tick_step(looking.window.length_ns, max(width // 14, 1))
        letters = [" "] * width
        at = -(-(looking.window.start_ns - zero) // step) * step
        free = 0
        while at <= looking.window.end_ns - zero:
            cell = looking.cell_of(at + zero, width)
            text = f"│{instant(at, step)}"
            if cell >= free and cell + len(text) <= width:
                letters[cell : cell + len(text)] = text
                free = cell + len(text) + 1
            at += step
        return Line([Segment(padded(" time", self.labels), _style(QUIET)), Segment("".join(letters), _style(QUIET))])

    def _marks(self) -> Line:
        """Iterations, findings, and what is selected."""
        looking, width = self.scene.looking, self.columns
        letters, styles = [" "] * width, [_style(QUIET)] * width
        named: set[int] = set()

        def put(cell: int, text: str, style: Style) -> None:
            for place, letter in enumerate(text, cell):
                if 0 <= place < width:
                    letters[place], styles[place] = letter, style

        for mark in self.scene.marks:
            cell = looking.cell_of(mark.start_ns, width)
            if mark.kind is MarkKind.ITERATION and cell < width:
                end = min(looking.cell_of(mark.end_ns, width), width)
                begin = max(cell, 0)
                put(cell, "├", _style(INK))
                label = flat(mark.label)[: max(end - begin - 1, 0)]
                put(begin + (cell >= 0), label, _style(INK))
                named |= set(range(begin, begin + len(label) + 1))
        for mark in self.scene.marks:
            if mark.kind in (MarkKind.FINDING, MarkKind.NOTE):
                sign = "▲" if mark.kind is MarkKind.FINDING else "△"
                for start in [window.start_ns for _, window in mark.places] or [mark.start_ns]:
                    cell = looking.cell_of(start, width)
                    # A finding is drawn above a note.
                    if 0 <= cell < width and cell not in named and letters[cell] != "▲":
                        put(cell, sign, _style(ATTENTION))
        selection = looking.selection
        if selection is not None:
            first = looking.cell_of(selection.start_ns, width)
            last = max(looking.cell_of(selection.end_ns - 1, width), first)
            for place in range(max(first, 0), min(last + 1, width)):
                put(place, "[" if place == first else "]" if place == last else "=", _style(ATTENTION))
        label = padded(" selected" if selection is not None else " marks", self.labels)
        return Line([Segment(label, _style(QUIET)), *map(Segment, letters, styles)]).simplify()

    def _lane(self, place: int) -> Line:
        row, scene, width = self.scene.rows[place], self.scene, self.columns
        marked = place == scene.cursor
        label = padded(_label(row, row.lane.key in self._open(), marked), self.labels - 1) + " "
        segments = [Segment(label, Style(bold=True, reverse=marked and scene.colour))]
        drawn = scene.drawn.get(row.lane.key)
        if isinstance(drawn, Counter):
            cells, most = counter_cells(drawn, scene.looking.window, width)
            words = _amount(most, drawn.unit)
            line = Line(
                [
                    Segment("".join(HEIGHTS[value] for value in cells.eighths.tolist()), _style(_COUNTER)),
                ]
            )
            if most:
                text = f" most {words}"
                line = Line.join([line.crop(0, max(width - len(text), 0)), Line([Segment(text, _style(QUIET))])])
            return Line.join([Line(segments), line])
        if drawn is None:
            waits = row.lane.key not in scene.drawn and bool(row.lane.rows)
            segments.append(Segment(padded(" …" if waits else "", width), _style(QUIET)))
            return Line(segments)
        line = Line(self._segments(drawn, cells_of(drawn, scene.looking.window, width)))
        return Line.join([Line(segments), self._chosen(line, row)])

    def _legend(self) -> Line:
        """What the colours of the lanes in sight mean; kinds that take most of their time come first."""
        scene = self.scene
        time: dict[str, float] = {}
        for row in scene.rows[scene.top : scene.top + self.lanes_high]:
            drawn = scene.drawn.get(row.lane.key)
            if isinstance(drawn, Slices):
                sums = np.bincount(drawn.kind, weights=drawn.busy_ns, minlength=len(drawn.kinds))
                for word, each in zip(drawn.kinds, sums.tolist(), strict=False):
                    time[word] = time.get(word, 0) + each
        # Of kinds that share a colour, as a category and the phase that it is of, one is enough.
        meanings: dict[str, str] = {}
        for word in sorted(time, key=lambda word: -time[word]):
            meanings.setdefault(_seen(word_of(word).colour), word)
        segments: list[Segment] = []
        for colour, word in meanings.items():
            entry = f" {letter_of(word, 8, scene.colour)} {word_of(word).label} "
            if sum(map(len, (each.text for each in segments))) + len(entry) > self.size.width:
                break
            segments += [Segment(entry[:2], _style(colour)), Segment(entry[2:], _style(QUIET))]
        return Line(segments)

    def _open(self) -> set[str]:
        """Keys of lanes whose lanes are shown right below them."""
        rows = self.scene.rows
        return {rows[place].lane.key for place in range(len(rows) - 1) if rows[place + 1].depth > rows[place].depth}

    def _segments(self, slices: Slices, cells: Cells) -> list[Segment]:
        """The columns of a lane, with names on slices that are wide enough."""
        scene = self.scene
        letters: list[str] = []
        styles: list[Style] = []
        # A row that is merely idle looks like a row; one without a slice does not.
        for kind, eighths in zip(cells.kind.tolist(), cells.eighths.tolist(), strict=True):
            word = slices.kinds[kind] if 0 <= kind < len(slices.kinds) else ""
            letters.append(letter_of(word, eighths, scene.colour))
            styles.append(_style(_seen(word_of(word).colour), _IDLE))
        for first, text in cells.labels:
            word = slices.kinds[int(cells.kind[first])] if cells.kind[first] >= 0 else ""
            colour = _seen(word_of(word).colour)
            style = Style(color=text_on(colour), bgcolor=colour) if scene.colour else Style(reverse=True)
            for place, letter in _by_column(first, text):
                if place < len(letters):
                    letters[place], styles[place] = letter, style
        return [Segment(letter, style) for letter, style in zip(letters, styles, strict=True)]

    def _chosen(self, line: Line, row: ShownLane) -> Line:
        """The line with the chosen slice made out."""
        scene, width = self.scene, self.columns
        if scene.chosen is None or scene.chosen[0].lane != row.lane.key:
            return line.simplify()
        window = scene.chosen[1]
        first = max(scene.looking.cell_of(window.start_ns, width), 0)
        last = min(max(scene.looking.cell_of(window.end_ns - 1, width), first), width - 1)
        if first >= width or last < 0:
            return line.simplify()
        inside = [
            Segment(_BAR if letter in _BLOCKS else letter, _of_chosen(letter, scene.colour, each.style or Style()))
            for each in line.crop(first, last + 1)
            for letter in each.text
        ]
        return Line.join([line.crop(0, first), Line(inside), line.crop(last + 1, width)]).simplify()

    def _time_at(self, x: int) -> int | None:
        cell = x - self.labels
        return self.scene.looking.time_of(cell, self.columns) if cell >= 0 else None

    def on_mouse_down(self, event: MouseDown) -> None:
        """A selection may begin."""
        self._pressed = event.x if event.x >= self.labels and event.y >= 2 else None
        self.capture_mouse()

    def on_mouse_move(self, event: MouseMove) -> None:
        """Show what would be selected."""
        if self._pressed is not None and event.x != self._pressed:
            self.scene.looking.selection = self._between(self._pressed, event.x)
            self.renew()

    def on_mouse_up(self, event: MouseUp) -> None:
        """A selection ends."""
        self.release_mouse()
        pressed, self._pressed = self._pressed, None
        if pressed is not None and event.x != pressed:
            self.post_message(self.Selected(self._between(pressed, event.x)))

    def _between(self, one: int, other: int) -> Window:
        low, high = sorted((one - self.labels, max(other - self.labels, 0)))
        looking = self.scene.looking
        return Window(looking.time_of(low, self.columns), looking.time_of(high + 1, self.columns))

    def on_click(self, event: Click) -> None:
        """Choose what is under the mouse."""
        place = self.scene.top + event.y - ABOVE
        on_lanes = ABOVE <= event.y < ABOVE + self.lanes_high
        row = place if on_lanes and place < len(self.scene.rows) else None
        time_ns = self._time_at(event.x)
        if event.y < 3 and time_ns is not None:
            whole = self.scene.looking.all
            time_ns = whole.start_ns + (event.x - self.labels) * whole.length_ns // self.columns
        self.post_message(self.Pointed(time_ns, row, event.y < 3, event.chain > 1))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Lanes further down; with Ctrl more time."""
        self.post_message(self.Wheeled(1, self._time_at(event.x) if event.ctrl else None))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Lanes further up; with Ctrl less time."""
        self.post_message(self.Wheeled(-1, self._time_at(event.x) if event.ctrl else None))


def _by_column(first: int, text: str) -> Iterator[tuple[int, str]]:
    """The letters of a text with their columns; of a wide letter the second column holds nothing."""
    place = first
    for letter in text:
        width = cell_len(letter)
        if width:
            yield place, letter
        for more in range(1, width):
            yield place + more, ""
        place += width


def _of_chosen(letter: str, colour: bool, style: Style) -> Style:
    """A column of the chosen slice: its name on the colour of attention, else a bar of that colour."""
    if not colour:
        return style if letter in _BLOCKS else style + Style(reverse=True, underline=True)
    return style + (Style(color=ATTENTION) if letter in _BLOCKS else Style(color=PAPER, bgcolor=ATTENTION))


def _label(row: ShownLane, is_open: bool, marked: bool) -> str:
    sign = ("▾" if is_open else "▸") if row.lane.holds_lanes else " "
    pin = "•" if row.pinned else ""
    return f"{'>' if marked else ' '}{'  ' * row.depth}{sign}{pin}{flat(row.lane.label)}"


def _amount(value: int, unit: str) -> str:
    if unit != "bytes":
        return f"{value:,}"
    place = min(max(value.bit_length() - 1, 0) // 10, 4)
    return f"{value / 1024**place:,.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[place]}"


@cache
def _style(colour: str, background: str | None = None) -> Style:
    return Style(color=colour, bgcolor=background)


@cache
def _seen(colour: str) -> str:
    """A colour of the palette, which is chosen for white paper, light enough for a dark page."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    brightest = max(red, green, blue, 1)
    if (red * 299 + green * 587 + blue * 114) // 1000 >= 90:
        return colour
    scale = max(170 / brightest, 1)
    mixed = [min(int(each * scale) + 40, 255) for each in (red, green, blue)]
    return "#" + "".join(f"{each:02x}" for each in mixed)
