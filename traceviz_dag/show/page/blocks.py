"""Blocks on a time axis: intervals merged for the page, drawn as one collection a colour, and numbers inside them.

What lies closer together than the page can show becomes one block whose height is the share of its time that is
covered, so that its area stays true. What is thinner than the page can show is drawn as thin as the page can; nothing
is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.transforms import Affine2D

from traceviz_dag.analyze.intervals import Intervals, measure_within, union
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import Stretches, TimeScale, rule_across
from traceviz_dag.show.page.rendering import DOTS_PER_INCH
from traceviz_dag.show.page.typography import POINTS_PER_INCH, outline, width

LEAST_FILL = 0.22
"""Least height of a merged block, as a share of its lane, so that sparse work stays visible."""

_LONGEST_RUN = 6
"""A merged run is cut into pieces of this many resolvable gaps, so that its height follows the time."""

_NUMBER_SIZES = (8.0, 7.0, 6.0, 5.2, 4.5)
_NUMBER_MARGIN, _LINE, _NEARLY_ALL = 0.015, 1.05, 0.95
_LEAST_EDGED = 0.03
_GAP_DOTS, _WIDTH_DOTS = 3.0, 1.4


class Resolution(NamedTuple):
    """What a page can show: the shortest gap between two blocks and the shortest block, ns."""

    gap_ns: int
    width_ns: int

    @classmethod
    def of(cls, span_ns: int, inches: float) -> Resolution:
        """The resolution of an axis that shows so much time on so many inches."""
        dot = span_ns / (inches * DOTS_PER_INCH)
        return cls(int(_GAP_DOTS * dot) + 1, int(_WIDTH_DOTS * dot) + 1)


class Blocks(NamedTuple):
    """What is drawn of some intervals: starts and ends in ns, and the share of each block's time that they cover."""

    starts: Int64
    ends: Int64
    filled: Float64


class Part(NamedTuple):
    """One of several disjoint parts of a window."""

    label: str
    intervals: Intervals
    colour: str


@dataclass(frozen=True, slots=True)
class Band:
    """A horizontal band of an axis, in inches from the top of the data."""

    top: float
    bottom: float

    @property
    def middle(self) -> float:
        """Half its height."""
        return (self.top + self.bottom) / 2

    @property
    def height(self) -> float:
        """Its height, inches."""
        return self.bottom - self.top

    def part(self, first: float, last: float) -> Band:
        """The part between two shares of its height, counted from the top."""
        return Band(self.top + first * self.height, self.top + last * self.height)


def merge_for_page(intervals: Intervals, resolution: Resolution) -> Blocks:
    """Merge intervals that are closer than eyes can part, and widen what is thinner than a page can show.

    Every interval lies inside a block. An interval without a duration counts as 1 ns long.
    """
    covered = union(intervals.starts, np.maximum(intervals.ends, intervals.starts + 1))
    if not len(covered.starts):
        return Blocks(covered.starts, covered.ends, np.empty(0))
    far = covered.starts[1:] - covered.ends[:-1] >= resolution.gap_ns
    run = np.concatenate(([0], np.cumsum(far)))
    first = np.concatenate(([0], np.flatnonzero(far) + 1))
    piece = (covered.starts - covered.starts[first][run]) // (_LONGEST_RUN * resolution.gap_ns)
    opens = np.concatenate(([True], far | (piece[1:] != piece[:-1])))
    firsts = np.flatnonzero(opens)
    lasts = np.concatenate((firsts[1:] - 1, [len(opens) - 1]))
    # A piece reaches to the next one of its run: a gap that the page cannot show lowers it and draws no line.
    goes_on = np.append(~far[lasts[:-1]], False)
    starts, ends = covered.starts[firsts], covered.ends[lasts]
    ends = np.where(goes_on, np.append(starts[1:], ends[-1]), ends)
    time = np.add.reduceat(covered.ends - covered.starts, firsts)
    filled = time / (ends - starts)
    # Pieces of one run overlap by a hair, or the paper would shine through between them.
    ends = ends + np.where(goes_on, resolution.width_ns // 4, 0)
    return Blocks(*hairlines(Intervals(starts, ends), resolution.width_ns), filled)


def hairlines(intervals: Intervals, least_ns: int) -> Intervals:
    """Intervals that are each at least so long; shorter ones are widened around their middle."""
    lacking = np.maximum(least_ns - (intervals.ends - intervals.starts), 0)
    return Intervals(intervals.starts - lacking // 2, intervals.ends + (lacking - lacking // 2))


def draw_blocks(axes: Axes, blocks: Blocks, band: Band, colour: str, scale: TimeScale, zero_ns: int, name: str) -> None:
    """Draw blocks from the foot of a band upwards, as one collection.

    Args:
        name: what the blocks show; becomes the id of the group in SVG files.
    """
    if not len(blocks.starts):
        return
    time = scale.on_axis(Intervals(blocks.starts, blocks.ends), zero_ns)
    tops = band.bottom - band.height * np.clip(blocks.filled, LEAST_FILL, 1.0)
    draw_bars(axes, time, tops, np.full(len(tops), band.bottom), colour, name)


def draw_boxes(axes: Axes, time: Stretches, band: Band, colour: str, name: str, zorder: float = 2.0) -> None:
    """Draw boxes that fill the height of a band, as one collection; times in units of the axis."""
    count = len(time.starts)
    draw_bars(axes, time, np.full(count, band.top), np.full(count, band.bottom), colour, name, zorder)


def draw_bars(
    axes: Axes, time: Stretches, tops: Float64, bottoms: Float64, colour: str, name: str, zorder: float = 2.0
) -> None:
    """Draw boxes of their own heights as one collection; x and y in units of the axes."""
    corners = np.empty((len(tops), 4, 2))
    corners[:, 0, 0] = corners[:, 1, 0] = time.starts
    corners[:, 2, 0] = corners[:, 3, 0] = time.ends
    corners[:, 0, 1] = corners[:, 3, 1] = bottoms
    corners[:, 1, 1] = corners[:, 2, 1] = tops
    collection = PolyCollection(
        cast("Sequence[npt.ArrayLike]", corners), facecolors=[colour], edgecolors="none", linewidths=0, zorder=zorder
    )
    collection.set_gid(name)
    axes.add_collection(collection, autolim=False)


def draw_shares(
    axes: Axes, parts: Sequence[Part], window: tuple[int, int], band: Band, scale: TimeScale, columns: int, name: str
) -> None:
    """Draw disjoint parts of a window stacked from the foot of a band: in each column, each part's share of the time.

    Args:
        parts: from the foot upwards; what they leave over stays blank.
        columns: into how many equal columns the window is cut.
    """
    edges = np.linspace(window[0], window[1], columns + 1).round().astype(np.int64)
    lengths = np.maximum(np.diff(edges), 1)
    shares = np.stack([measure_within(union(*part.intervals), edges[:-1], edges[1:]) / lengths for part in parts])
    labels, colours = [part.label for part in parts], [part.colour for part in parts]
    draw_stack(axes, shares, (edges - window[0]) / scale.per_unit, band, labels, colours, name)


def draw_stack(
    axes: Axes,
    shares: Float64,
    edges: Float64,
    band: Band,
    labels: Sequence[str],
    colours: Sequence[str],
    name: str,
) -> None:
    """Draw shares of columns stacked from the foot of a band, as one area a part.

    Args:
        shares: (parts, columns) in 0 to 1; what they leave over in a column stays blank.
        edges: where the columns begin and the last one ends, in units of the axis.
    """
    across = np.repeat(edges, 2)[1:-1]
    floor = np.full(shares.shape[1], band.bottom)
    for part, label, colour in zip(shares, labels, colours, strict=True):
        top = floor - band.height * part
        if part.any():
            up, down = np.repeat(top, 2), np.repeat(floor, 2)
            corners = np.column_stack((np.concatenate((across, across[::-1])), np.concatenate((up, down[::-1]))))
            area = PolyCollection([corners], facecolors=[colour], edgecolors="none", linewidths=0, zorder=2)
            area.set_gid(f"{name}/{label}")
            axes.add_collection(area, autolim=False)
        floor = top


def prepare_bars(axes: Axes, limits: tuple[float, float], height: float, label: str) -> None:
    """Rule axes for rows of bars that begin at zero.

    Args:
        limits: of what is drawn. height: of all rows together, in inches. label: of the axis.
    """
    # What is written on the paper, such as why a row has no bar, shows through.
    axes.patch.set_visible(False)
    room = 0.02 * (limits[1] - limits[0])
    axes.set(xlim=(limits[0] - (room if limits[0] < 0 else 0), limits[1] + room), ylim=(height, 0), yticks=[])
    rule_across(axes, label, 9)
    axes.axvline(0, color=palette.QUIET_INK, linewidth=0.8, zorder=1.5)


def draw_edges(axes: Axes, time: Stretches, band: Band) -> None:
    """Draw a thin white line at the start of each box that is wide enough for it, so that neighbours stay apart."""
    wide = time.starts[(time.ends - time.starts) * inches_per_unit(axes) > _LEAST_EDGED]
    axes.vlines(wide, band.top, band.bottom, colors=palette.PAPER, linewidths=0.5, zorder=2.5)


def inches_per_unit(axes: Axes) -> float:
    """Inches on paper of one unit of the time axis."""
    low, high = axes.get_xlim()
    figure = axes.get_figure(root=True)
    return 0.0 if figure is None else float(axes.get_position().width * figure.get_figwidth() / (high - low))


def number_size(axes: Axes, time: Stretches, height: float, texts: Sequence[str]) -> float | None:
    """The largest size in points at which nearly all texts fit into their boxes, else the smallest.

    Args:
        time: starts and ends of the boxes, in units of the axis.
        height: of the boxes, inches; None is returned where it is too low for any text.
    """
    room = (time.ends - time.starts) * inches_per_unit(axes)
    possible = [size for size in _NUMBER_SIZES if height >= _LINE * size / POINTS_PER_INCH]
    for size in possible:
        if (room >= _widths(texts, size)).sum() >= _NEARLY_ALL * len(texts):
            return size
    return possible[-1] if possible else None


def draw_numbers(axes: Axes, time: Stretches, band: Band, texts: Sequence[str], size: float, colour: str) -> int:
    """Write a short text into each box where it fits, as one collection; returns how many fitted."""
    figure = axes.get_figure(root=True)
    fits = np.flatnonzero((time.ends - time.starts) * inches_per_unit(axes) >= _widths(texts, size))
    if figure is None or not len(fits):
        return 0
    middles = (time.starts[fits] + time.ends[fits]) / 2
    numbers = PathCollection(
        [outline(texts[place], size) for place in fits.tolist()],
        offsets=np.column_stack((middles, np.full(len(fits), band.middle))),
        offset_transform=axes.transData,
        facecolors=[colour],
        edgecolors="none",
        linewidths=0,
        zorder=3,
    )
    numbers.set_transform(Affine2D().scale(1 / POINTS_PER_INCH) + figure.dpi_scale_trans)
    axes.add_collection(numbers, autolim=False)
    return len(fits)


def _widths(texts: Sequence[str], size: float) -> Float64:
    return np.array([width(text, size) for text in texts]) + _NUMBER_MARGIN
