"""The tree as lines: what is expanded, in which order, and how a line is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.text import Text

from traceviz_dag.analyze.nsys.outline import Entry, Of, Order, Outline
from traceviz_dag.arrays import NONE
from traceviz_dag.show.lanes.names import function_name
from traceviz_dag.show.terminal.app import QUIET
from traceviz_dag.show.terminal.glyphs import bar, cut, cut_inside, flat, padded

MOST_INSIDE = 5_000
"""Entries of one range that are listed; a line says how many are left out."""

_BAR = 8
_WIDE = 110


@dataclass(slots=True)
class Line:
    """A line: an entry at a depth; ``left_out`` entries that are not listed have none."""

    entry: Entry | None
    depth: int
    expanded: bool = False
    left_out: int = 0


@dataclass(slots=True)
class TreeLines:
    """What the tree shows.

    Attributes:
        each: single ranges and operations instead of paths and names.
        lines: in the order of the screen.
        measured: how often entries were asked for, for whoever counts.
    """

    outline: Outline
    each: bool = False
    order: Order = Order.HEAVIEST
    lines: list[Line] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self.begin()

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self.lines)

    def begin(self) -> None:
        """Show the outermost entries alone."""
        self.lines = self._listed(self._inside(None), 0)

    def expand(self, index: int) -> bool:
        """Show what is in an entry; whether there is something that was not shown."""
        line = self.lines[index]
        if line.entry is None or line.expanded or not line.entry.holds:
            return False
        line.expanded = True
        self.lines[index + 1 : index + 1] = self._listed(self._inside(line.entry), line.depth + 1)
        return True

    def collapse(self, index: int) -> int:
        """Hide what is in an entry, or in the one around it where nothing is shown in it; its line."""
        line = self.lines[index]
        if not line.expanded:
            while index and self.lines[index].depth >= line.depth:
                index -= 1
            if self.lines[index].depth >= line.depth:
                return index
            line = self.lines[index]
        end = index + 1
        while end < len(self.lines) and self.lines[end].depth > line.depth:
            end += 1
        del self.lines[index + 1 : end]
        line.expanded = False
        return index

    def open(self, number: int) -> int | None:
        """Expand what is around a path or range, and return its line; None where it is among those left out."""
        of = Of.RANGE if self.each else Of.PATH
        low, place = 0, None
        for one in self.outline.path_to(of, number):
            place = self._find(of, one, low)
            if place is None:
                return None
            if one != number:
                self.expand(place)
            low = place + 1
        return place

    def _find(self, of: Of, number: int, low: int) -> int | None:
        for index in range(low, len(self.lines)):
            entry = self.lines[index].entry
            if entry is not None and entry.of is of and entry.number == number:
                return index
        return None

    def _inside(self, entry: Entry | None) -> list[Entry]:
        self.measured += 1
        if entry is not None and entry.of is Of.OUTSIDE:
            return self.outline.outside(self.order)
        inside = self.outline.ranges_inside if self.each else self.outline.paths_inside
        return inside(NONE if entry is None else entry.number, self.order)

    def _listed(self, entries: list[Entry], depth: int) -> list[Line]:
        lines = [Line(entry, depth) for entry in entries[:MOST_INSIDE]]
        if len(entries) > MOST_INSIDE:
            lines.append(Line(None, depth, left_out=len(entries) - MOST_INSIDE))
        return lines

    def line(self, index: int, width: int) -> Text:
        """A line of the screen."""
        line = self.lines[index]
        numbers_width = numbers_of(width)
        name_width = width - numbers_width
        indent = "  " * min(line.depth, max(name_width // 4, 1))
        if line.entry is None:
            words = f" {indent}  … {line.left_out:,} more; --trim shows a shorter time"
            return Text(cut(words, width), QUIET, no_wrap=True)
        entry = line.entry
        sign = ("▾ " if line.expanded else "▸ ") if entry.holds else "  "
        ranges = entry.of in (Of.PATH, Of.RANGE, Of.OUTSIDE)
        name = flat(entry.name) if ranges else function_name(entry.name)
        text = Text(no_wrap=True)
        head = f" {indent}{sign}"
        text.append(padded(head + cut_inside(name, name_width - len(head) - 1), name_width), "" if ranges else QUIET)
        cells = [f"{entry.count:>7,}", f"{_ms(entry.span_ns):>10}"]
        if ranges:
            cells += [f"{_ms(value):>10}" for value in (entry.gpu_span_ns, entry.busy_ns, entry.idle_ns)]
        else:
            cells += [" " * 10, f"{_ms(entry.busy_ns):>10}", " " * 10]
        if width >= _WIDE:
            cells += [f"{entry.operations:>8,}", bar(entry.busy_ns, self._heaviest(), _BAR)]
        text.append(" ".join(cells) + " ")
        return text

    def _heaviest(self) -> int:
        return max((line.entry.busy_ns for line in self.lines[:1] if line.entry), default=0) or 1


def numbers_of(width: int) -> int:
    """Cells that the numbers take."""
    return 52 + (18 if width >= _WIDE else 0)


def heading(width: int) -> str:
    """The names of the columns."""
    names = ["  count", "   host ms", "  GPU span", "   busy ms", "   idle ms"]
    if width >= _WIDE:
        names += ["     ops", " " * _BAR]
    return padded(" range", width - numbers_of(width)) + " ".join(names) + " "


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.3f}"
