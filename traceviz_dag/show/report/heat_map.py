"""A map of pairs as inline SVG: a row and a column a place, cells dark by class of length, each a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from traceviz_dag.analyze.wording import duration
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.palette import text_on
from traceviz_dag.show.report.charts import LABEL, WIDTH, cut, legend, svg

CLASSES = len(palette.WAITING)
_HEAD, _TALLEST, _LOWEST, _WIDEST = 92, 26, 9, 90
_LETTER = 6.4


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, int], int],
    words: str,
    side: tuple[str, str],
) -> Markup:
    """Cells by (row, column), ns; those that are not there are left blank.

    Args:
        words: what a cell says, with {row}, {column} and {time}.
        side: what rows are, and what columns are.
    """
    high = max(cells.values(), default=1)
    across = min((WIDTH - LABEL - 10) / max(len(columns), 1), _WIDEST)
    down = min(max(520 / max(len(rows), 1), _LOWEST), _TALLEST)
    drawn = [
        Markup('<rect x="{}" y="{}" width="{:.1f}" height="{:.1f}" fill="{}"/>').format(
            LABEL, _HEAD, across * len(columns), down * len(rows), palette.PAPER
        ),
        _side(side[0], LABEL - 8, _HEAD - 8, "end"),
        _side(side[1], LABEL, 12, "start"),
    ]
    every = -(-9 // max(int(down), 1))
    drawn += [
        Markup('<text x="{}" y="{:.1f}" class="label{}" text-anchor="end">{}</text>').format(
            LABEL - 8, _HEAD + (place + 0.5) * down + 4, "" if down > 13 else " small", cut(row, LABEL - 12)
        )
        for place, row in enumerate(rows)
        if place % every == 0
    ]
    every = max(round(12 / across), 1)
    drawn += [
        Markup('<text transform="translate({:.1f} {}) rotate(-60)" class="label{}">{}</text>').format(
            LABEL + (place + 0.5) * across + 3, _HEAD - 5, "" if across > 13 else " small", cut(column, 84)
        )
        for place, column in enumerate(columns)
        if place % every == 0
    ]
    for (row, column), value in sorted(cells.items()):
        told = words.format(row=rows[row], column=columns[column], time=duration(value))
        drawn.append(
            _cell((row, column), told, value, high, (LABEL + column * across, _HEAD + row * down), (across, down))
        )
    chart = svg(title, _HEAD + down * len(rows) + 4, Markup("").join(drawn), role="group")
    return chart + legend(dict(zip(_names(high), palette.WAITING, strict=True)))


def class_of(value: int, high: int) -> int:
    """The class of a length: each is a third of the next, and the highest ends with the longest."""
    for number in range(CLASSES - 1, 0, -1):
        if value * 3 ** (CLASSES - number) > high:
            return number
    return 0


def _names(high: int) -> list[str]:
    edges = [high / 3 ** (CLASSES - number) for number in range(CLASSES)]
    return [
        f"to {duration(edges[1])}",
        *(f"{duration(edges[number])} to {duration(edges[number + 1])}" for number in range(1, CLASSES - 1)),
        f"{duration(edges[-1])} to {duration(high)}",
    ]


def _cell(
    place: tuple[int, int], told: str, value: int, high: int, at: tuple[float, float], size: tuple[float, float]
) -> Markup:
    colour = palette.WAITING[class_of(value, high)]
    inside = duration(value)
    fits = len(inside) * _LETTER + 6 < size[0] and size[1] >= 15
    words = (
        Markup('<text x="{:.1f}" y="{:.1f}" class="inside" text-anchor="middle" fill="{}">{}</text>').format(
            at[0] + size[0] / 2, at[1] + size[1] / 2 + 4, text_on(colour), inside
        )
        if fits
        else Markup("")
    )
    gap = 1.0 if size[1] > 12 else 0.3
    return Markup(
        '<a href="#part=waits" class="cell" data-row="{}" data-column="{}" aria-label="{}"><title>{}</title>'
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>{}</a>'
    ).format(*place, told, told, at[0] + gap, at[1] + gap, size[0] - 2 * gap, size[1] - 2 * gap, colour, words)


def _side(text: str, x: float, y: float, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" class="label side" text-anchor="{}">{}</text>').format(x, y, anchor, text)
