"""Charts of signed lengths as inline SVG: waterfalls, gains with their error bars, and ranges about zero.

As in ``charts``, every piece has a title, no colour speaks alone, and a table of the same numbers is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from traceviz_dag.printable import printable
from traceviz_dag.show.page.gain_rows import signed
from traceviz_dag.show.report.charts import LABEL, ROW, WIDTH, Piece, cut, svg

_END, _WIDE_LABEL = 150, 300
_STEP, _BESIDE = 13, 72


@dataclass(frozen=True, slots=True)
class Fall:
    """A row of a waterfall: a first piece from 0, then pieces that each begin where the one before ended.

    Attributes:
        end: words at its end.
    """

    label: str
    first: Piece
    pieces: Sequence[Piece]
    end: str = ""

    @property
    def edges_ns(self) -> list[float]:
        """0, the end of the first piece, and that of each further one."""
        edges = [0.0, float(self.first.ns)]
        for piece in self.pieces:
            edges.append(edges[-1] + piece.ns)
        return edges


@dataclass(frozen=True, slots=True)
class Range:
    """A value with its range.

    Attributes:
        value_ns: length of the bar from 0; None where there is only the range.
    """

    label: str
    value_ns: float | None
    low_ns: float
    high_ns: float
    colour: str
    end: str = ""


def waterfall(title: str, falls: Sequence[Fall]) -> Markup:
    """Rows of pieces on one scale from 0; each piece has a line of its own, and the last edge is marked."""
    reach = max((max(fall.edges_ns) for fall in falls), default=0) or 1
    room = WIDTH - LABEL - _END
    heights = [_STEP * len(fall.pieces) + 6 for fall in falls]
    drawn, top = [], 3.0
    for fall, height in zip(falls, heights, strict=True):
        drawn.append(_fall(fall, top, height - 6, reach, room))
        top += height
    return svg(title, top + 2, Markup("").join(drawn))


def _fall(fall: Fall, top: float, height: float, reach: float, room: float) -> Markup:
    edges = [LABEL + edge / reach * room for edge in fall.edges_ns]
    parts = [_label(fall.label, top + height / 2 + 4)]
    told = f"{fall.first.name}: {signed(fall.first.ns)}"
    parts.append(_box(told, (edges[0], edges[1]), (top, height), fall.first.colour))
    for number, piece in enumerate(fall.pieces):
        first, last = sorted(edges[number + 1 : number + 3])
        at = top + number * _STEP
        if not piece.ns:
            continue
        parts.append(_box(f"{piece.name}: {signed(piece.ns)}", (first, last), (at, _STEP), piece.colour))
        if abs(piece.ns) >= 0.01 * reach:
            # The line must not go through the words: they are right of it then.
            left = edges[-1] if last < edges[-1] < last + _BESIDE - 4 else last
            parts.append(_words(signed(piece.ns), left + 4, at + _STEP - 3, "label small"))
    line = Markup('<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}" class="whisker"/>')
    parts.append(line.format(edges[-1], top, top + height))
    # The words of the pieces may reach this far.
    beside = max(edge + _BESIDE for edge in edges[1:])
    parts.append(_words(fall.end, min(beside, WIDTH - _END + 60), top + height / 2 + 4))
    return Markup("").join(parts)


def gains(title: str, ranges: Sequence[Range]) -> Markup:
    """Bars from 0 with an error bar each, on one scale that holds 0."""
    return _ranges(title, ranges, _gain, _WIDE_LABEL)


def intervals(title: str, ranges: Sequence[Range]) -> Markup:
    """A box from the low to the high end of each range, on one scale that holds 0."""
    return _ranges(title, ranges, _interval, LABEL)


_Draw = Callable[[Range, float, Callable[[float], float]], Markup]


def _ranges(title: str, ranges: Sequence[Range], draw: _Draw, label: int) -> Markup:
    low = min([0.0, *(each.low_ns for each in ranges)])
    high = max([0.0, *(each.high_ns for each in ranges)])
    span = (high - low) or 1.0
    room = WIDTH - label - _END

    def place(value: float) -> float:
        return label + (value - low) / span * room

    height = ROW * len(ranges) + 22
    drawn = [
        Markup('<line x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}" class="rule"/>').format(place(0), height - 18),
        _words("0", place(0), height - 5, "label small", "middle"),
    ]
    drawn += [
        _words(signed(value), place(value), height - 5, "label small", "middle")
        for value in (low, high)
        if abs(place(value) - place(0)) > 60
    ]
    for number, each in enumerate(ranges):
        top = number * ROW + 3
        drawn += [_label(each.label, top + 15, label), draw(each, top, place)]
        drawn.append(_words(each.end, place(max(each.high_ns, 0)) + 8, top + 15))
    return svg(title, height, Markup("").join(drawn))


def _gain(each: Range, top: float, place: Callable[[float], float]) -> Markup:
    value = each.value_ns or 0
    told = f"{each.label}: {signed(value)}, {signed(each.low_ns)} to {signed(each.high_ns)}"
    first, last = sorted((place(0), place(value)))
    middle, low, high = top + (ROW - 6) / 2, place(each.low_ns), place(each.high_ns)
    line = '<path d="M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}V{4:.1f}M{1:.1f} {3:.1f}V{4:.1f}" class="whisker"/>'
    return _box(told, (first, last), (top, ROW - 6), each.colour) + Markup(line).format(
        low, high, middle, middle - 5, middle + 5
    )


def _interval(each: Range, top: float, place: Callable[[float], float]) -> Markup:
    told = f"{each.label}: {signed(each.low_ns)} to {signed(each.high_ns)}"
    first, last = place(each.low_ns), place(each.high_ns)
    # A range of no width is still to be seen.
    lacking = max(3 - (last - first), 0) / 2
    return _box(told, (first - lacking, last + lacking), (top + 3, ROW - 12), each.colour)


def _box(told: str, across: tuple[float, float], down: tuple[float, float], colour: str) -> Markup:
    box = '<g><title>{}</title><rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}"/></g>'
    return Markup(box).format(told, across[0], down[0], max(across[1] - across[0], 0.4), down[1], colour)


def _label(text: str, y: float, room: int = LABEL) -> Markup:
    return _words(cut(text, room - 12), room - 8, y, "label", "end")


def _words(text: str, x: float, y: float, style: str = "label", anchor: str = "start") -> Markup:
    if not text:
        return Markup("")
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, style, anchor, printable(text)
    )
