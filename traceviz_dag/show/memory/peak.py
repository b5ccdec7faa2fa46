"""Who holds the peak, as a tree map: a rectangle per call site, as large as what it holds, by category."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from traceviz_dag.analyze import wording
from traceviz_dag.printable import printable
from traceviz_dag.show.memory.colours import COLOUR, label
from traceviz_dag.show.memory.recording import CATEGORIES, Recording
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import DATA_WIDTH, LABELS, MEASURES, Caption, LegendEntry, LegendGroup, open_page
from traceviz_dag.show.page.typography import POINTS_PER_INCH, SMALL, typography, width

MOST_SITES = 40
"""Call sites of a category that have rectangles of their own; the smaller ones share one."""

NO_STACK = "no call stack"
"""What represents the site of blocks without one."""

_MIB = 1 << 20
_WIDTH, _HEIGHT = DATA_WIDTH + LABELS + MEASURES, 4.8
_LINE = 1.35

Box = tuple[float, float, float, float]
"""Left, top, width and height."""


def draw_memory_peak(recording: Recording) -> Figure | None:
    """Draw who holds what when most is requested.

    Returns:
        The figure; None where nothing is held, or without events, which alone show the peak.
    """
    holders = recording.holders_at_peak()
    total = sum(size for _, _, size in holders)
    if not total or not recording.events.num_rows:
        return None
    by_category = {
        category: _folded([(site, size) for name, site, size in holders if name == category]) for category in CATEGORIES
    }
    sums = {category: sum(size for _, size in sites) for category, sites in by_category.items() if sites}
    ordered = sorted(sums, key=lambda category: -sums[category])
    category, site, size = holders[0]
    largest = f"the largest part, {size / _MIB:,.2f} MiB of {label(category)}, "
    largest += f"is of {printable(site)}" if site else "has no call stack"
    caption = Caption(
        f"{recording.subject}: {total / _MIB:,.2f} MiB requested at the peak, "
        f"{wording.percent(sums[ordered[0]] / total)} of it {label(ordered[0])}; {largest}",
        [printable(recording.place), "each rectangle is a call site, its area what it holds"],
        list(recording.warnings),
        [
            LegendGroup(
                "",
                [LegendEntry(f"{label(each)} {sums[each] / _MIB:,.2f} MiB", COLOUR[each]) for each in ordered],
            )
        ],
        "tables memory_blocks, memory_stacks",
    )
    with typography():
        page = open_page(caption, _HEIGHT, 0.25)
        axes = page.axes(0.0, _HEIGHT, 0.0, 0.0)
        axes.set(xlim=(0, _WIDTH), ylim=(_HEIGHT, 0), xticks=[], yticks=[])
        axes.spines["bottom"].set_visible(False)
        boxes = squarified([sums[each] for each in ordered], (0.0, 0.0, _WIDTH, _HEIGHT))
        for name, box in zip(ordered, boxes, strict=True):
            sites = by_category[name]
            for (where, held), inner in zip(sites, squarified([held for _, held in sites], box), strict=True):
                _draw_box(axes, inner, COLOUR[name], printable(where), held)
            left, top, across, down = box
            axes.add_patch(Rectangle((left, top), across, down, fill=False, edgecolor=palette.INK, linewidth=1.0))
    return page.figure


def squarified(sizes: Sequence[int], box: Box) -> list[Box]:
    """Cut a rectangle into others of given sizes, in falling order, each as close to a square as a row of them allows:
    Bruls, Huizing and van Wijk, Squarified Treemaps (2000)."""
    left, top, across, down = box
    total = float(sum(sizes))
    found: list[Box] = []
    place = 0
    while place < len(sizes):
        short = min(across, down)
        scale = across * down / total if total else 0.0
        row = [sizes[place] * scale]
        while place + len(row) < len(sizes):
            longer = [*row, sizes[place + len(row)] * scale]
            if _worst(longer, short) > _worst(row, short):
                break
            row = longer
        thick = sum(row) / short if short else 0.0
        at = 0.0
        for area in row:
            length = area / thick if thick else 0.0
            found.append((left, top + at, thick, length) if across >= down else (left + at, top, length, thick))
            at += length
        if across >= down:
            left, across = left + thick, max(across - thick, 0.0)
        else:
            top, down = top + thick, max(down - thick, 0.0)
        total -= sum(sizes[place : place + len(row)])
        place += len(row)
    return found


def _worst(areas: Sequence[float], side: float) -> float:
    """How far the longest of some rectangles in a row is from a square."""
    whole = sum(areas)
    if not whole or not min(areas) or not side:
        return float("inf")
    return max(side * side * max(areas) / whole**2, whole**2 / (side * side * min(areas)))


def _folded(sites: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The largest call sites, and one for all others."""
    named = [(site or NO_STACK, size) for site, size in sites]
    if len(named) <= MOST_SITES:
        return named
    rest = named[MOST_SITES - 1 :]
    folded = [*named[: MOST_SITES - 1], (f"{len(rest)} more", sum(size for _, size in rest))]
    return sorted(folded, key=lambda one: -one[1])


def _draw_box(axes: Axes, box: Box, colour: str, site: str, size: int) -> None:
    left, top, across, down = box
    patch = Rectangle((left, top), across, down, facecolor=colour, edgecolor=palette.PAPER, linewidth=0.6)
    axes.add_patch(patch)
    ink = palette.text_on(colour)
    line = _LINE * SMALL / POINTS_PER_INCH
    lines = [text for text in (*_words(site), f"{size / _MIB:,.2f} MiB") if width(text, SMALL) + 0.1 <= across]
    for number, text in enumerate(lines):
        if down < (number + 1) * line + 0.08:
            break
        axes.text(left + 0.05, top + 0.06 + (number + 0.5) * line, text, size=SMALL, color=ink, va="center_baseline")


def _words(site: str) -> list[str]:
    """A site in two lines: the end of its file with the line, and its function."""
    place, _, function = site.rpartition(" ")
    return [place.rsplit("/", 1)[-1], function] if ":" in place else [site]
