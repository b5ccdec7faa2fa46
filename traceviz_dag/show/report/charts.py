"""Charts as inline SVG: rows of stacked bars, a line over iterations, a map of pairs. Colours never speak alone.

Widths are in a unit of the chart's own and scale with the page; every piece has a title that a mouse and a screen
reader find, and is shown beside a table of the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from traceviz_dag.analyze.wording import duration
from traceviz_dag.printable import printable
from traceviz_dag.show.page.palette import text_on

WIDTH, LABEL, ROW = 1000, 190, 26
"""Of a chart, of the labels left of its rows, and the height of a row."""

_LETTER, _LABEL_LETTER, _END = 6.4, 7.0, 150


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a bar.

    Attributes:
        ns: its length; pieces of no length are not drawn.
        name: in the legend and its title.
    """

    name: str
    ns: float
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: its label, its pieces from left to right, and words at its end."""

    label: str
    pieces: Sequence[Piece]
    end: str = ""


def stacked_bars(title: str, bars: Sequence[Bar], words: Callable[[float], str] = duration) -> Markup:
    """Rows of pieces that lie one behind the other, on one scale from 0.

    Args:
        words: how a length is written.
    """
    longest = max((sum(max(piece.ns, 0) for piece in bar.pieces) for bar in bars), default=0) or 1
    room = WIDTH - LABEL - (_END if any(bar.end for bar in bars) else 10)
    drawn = Markup("").join(_bar(bar, place, longest, room, words) for place, bar in enumerate(bars))
    return svg(title, len(bars) * ROW + 4, drawn)


def _bar(bar: Bar, place: int, longest: float, room: float, words: Callable[[float], str]) -> Markup:
    top = place * ROW + 3
    parts = [
        Markup('<text x="{}" y="{}" class="label" text-anchor="end">{}</text>').format(
            LABEL - 8, top + 15, cut(bar.label, LABEL - 12)
        )
    ]
    left = float(LABEL)
    for piece in bar.pieces:
        if piece.ns <= 0:
            continue
        width = piece.ns / longest * room
        length = words(piece.ns)
        told = f"{printable(piece.name)}: {length}"
        inside = length if width > len(length) * _LETTER + 8 else ""
        parts.append(
            Markup('<g><title>{}</title><rect x="{:.2f}" y="{}" width="{:.2f}" height="{}" fill="{}"/>{}</g>').format(
                told,
                left,
                top,
                max(width, 0.4),
                ROW - 6,
                piece.colour,
                Markup('<text x="{:.1f}" y="{}" class="inside" fill="{}">{}</text>').format(
                    left + 4, top + 14, text_on(piece.colour), inside
                )
                if inside
                else "",
            )
        )
        left += width
    if bar.end:
        parts.append(
            Markup('<text x="{:.1f}" y="{}" class="label">{}</text>').format(left + 6, top + 15, cut(bar.end, _END))
        )
    return Markup("").join(parts)


def legend(entries: Mapping[str, str]) -> Markup:
    """Names with their colours; neighbours that share one, such as kinds of lag, share its square."""
    shown = (
        Markup("<span>{} {}</span>").format(swatch(colour), ", ".join(name for name, _ in mine))
        for colour, mine in groupby(entries.items(), key=lambda entry: entry[1])
    )
    return Markup('<p class="legend">{}</p>').format(Markup("").join(shown))


def swatch(colour: str) -> Markup:
    """A small square of a colour."""
    square = Markup('<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" fill="{}"/></svg>')
    return square.format(colour)


def trend(title: str, points: Sequence[tuple[int, float]], chosen: int) -> Markup:
    """A line over iterations with the chosen one marked; points are (iteration, ns)."""
    if len(points) < 2:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    low, high = 0.0, max(value for _, value in points) * 1.1 or 1
    height = 120

    def place(iteration: int, value: float) -> tuple[float, float]:
        x = 60 + (iteration - first) / max(last - first, 1) * (WIDTH - 130)
        return x, height - 24 - (value - low) / (high - low) * (height - 40)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    dots = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="{}"><title>{}</title></circle>').format(
            *place(*point),
            5 if point[0] == chosen else 2.5,
            "chosen" if point[0] == chosen else "point",
            f"iteration {point[0]}: {duration(point[1])}",
        )
        for point in points
    )
    ends = Markup('<text x="60" y="{0}" class="label" text-anchor="middle">{1}</text>').format(height - 6, first)
    ends += Markup('<text x="{2}" y="{0}" class="label" text-anchor="middle">{1}</text>').format(
        height - 6, last, WIDTH - 70
    )
    x, y = place(*next(point for point in points if point[0] == chosen))
    value = dict(points)[chosen]
    ends += Markup('<text x="{:.1f}" y="{:.1f}" class="label" text-anchor="middle">{}</text>').format(
        x, y - 10, duration(value)
    )
    base = Markup('<line x1="40" x2="{1}" y1="{0}" y2="{0}" class="rule"/>').format(height - 24, WIDTH - 50)
    return svg(title, height, base + Markup('<polyline points="{}" class="line"/>').format(line) + dots + ends)


def svg(title: str, height: float, content: Markup, role: str = "img") -> Markup:
    """A chart, which scrolls sideways where the window is narrower than it can be read.

    Args:
        role: group where it has links in it, which a picture hides from screen readers.
    """
    return Markup(
        '<div class="scroll"><svg class="chart" viewBox="0 0 {} {:.0f}" role="{}" aria-label="{}" '
        'preserveAspectRatio="xMinYMin">{}</svg></div>'
    ).format(WIDTH, height, role, printable(title), content)


def cut(text: str, room: float) -> str:
    """A text as it fits into so many units of a chart."""
    text, most = printable(text), int(room / _LABEL_LETTER)
    return text if len(text) <= most else text[: most - 1] + "…"
