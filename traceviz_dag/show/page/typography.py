"""The one typography of all figures: a font that comes with matplotlib, five sizes, and how wide a text is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import matplotlib as mpl
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath, text_to_path

from traceviz_dag.show.page import palette

FONT = "DejaVu Sans"
TITLE, FACTS, LABEL, SMALL, TINY = 13.0, 9.0, 8.5, 7.5, 6.0
"""Sizes in points: the finding; what was measured; lanes and axes; ticks and legends; numbers in blocks."""

POINTS_PER_INCH = 72.0

_SETTINGS = {
    "font.family": [FONT],
    "font.size": LABEL,
    # Names of a trace may hold dollar signs, and are no TeX.
    "text.parse_math": False,
    "text.color": palette.INK,
    "axes.edgecolor": palette.RULE,
    "axes.linewidth": 0.6,
    "axes.labelcolor": palette.QUIET_INK,
    "axes.labelsize": SMALL,
    "xtick.color": palette.QUIET_INK,
    "ytick.color": palette.QUIET_INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": palette.PAPER,
    "axes.facecolor": palette.PAPER,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "traceviz_dag",
    "pdf.fonttype": 42,
    "path.simplify": False,
}


@contextmanager
def typography() -> Iterator[None]:
    """Draw or save inside this: settings of the user's own never reach a figure, so that its bytes are the same."""
    defaults = {name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")}
    with mpl.rc_context({**defaults, **_SETTINGS}):  # type: ignore[dict-item]
        yield


@lru_cache(maxsize=4096)
def outline(text: str, size: float) -> Outline:
    """The outline of a short text in points, centred on the origin by its width and by the height of digits."""
    path = TextPath((0, 0), text, size=size, prop=FontProperties(family=FONT))
    return Outline(path.vertices - (width(text, size) * POINTS_PER_INCH / 2, 0.365 * size), path.codes)


@lru_cache(maxsize=4096)
def width(text: str, size: float, bold: bool = False) -> float:
    """Width of a text on paper, inches."""
    if not text:
        return 0.0
    prop = FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")
    across, _, _ = text_to_path.get_text_width_height_descent(text, prop, ismath=False)
    return float(across) / POINTS_PER_INCH


def wrapped(text: str, size: float, most: float, bold: bool = False) -> Sequence[str]:
    """The text in lines that are at most so wide (inches), broken at spaces."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width(longer, size, bold) <= most:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
