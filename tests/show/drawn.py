"""What a figure holds, read back from its artists: the boxes of each colour, in nanoseconds and inches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from traceviz_dag.analyze.intervals import Intervals

_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "µs": 1_000}


@dataclass(frozen=True)
class Drawn:
    """One collection of boxes.

    Attributes:
        starts, ends: ns from the axis' zero.
        tops, bottoms: inches from the top of the data.
    """

    name: str
    colour: str
    starts: np.ndarray
    ends: np.ndarray
    tops: np.ndarray
    bottoms: np.ndarray

    def holds(self, intervals: Intervals, zero_ns: int) -> np.ndarray:
        """Mark the intervals that lie inside one of the boxes; float rounding is far below a thousandth of a pixel."""
        starts, ends = intervals.starts - zero_ns, intervals.ends - zero_ns
        slack = 2
        inside = (self.starts[:, None] <= starts + slack) & (ends - slack <= self.ends[:, None])
        return inside.any(axis=0)


def collections(figure: Figure) -> dict[str, Drawn]:
    """Name → boxes, of every collection that has a name."""
    found: dict[str, Drawn] = {}
    for axes in figure.axes[1:]:
        unit = _UNITS.get(axes.get_xlabel().rsplit(", ", 1)[-1], 1)
        for artist in axes.collections:
            if not isinstance(artist, PolyCollection) or artist.get_gid() is None:
                continue
            corners = np.array([path.vertices[:4] for path in artist.get_paths()])
            found[artist.get_gid()] = Drawn(
                artist.get_gid(),
                to_hex(artist.get_facecolor()[0]).upper(),
                corners[:, :, 0].min(axis=1) * unit,
                corners[:, :, 0].max(axis=1) * unit,
                corners[:, :, 1].min(axis=1),
                corners[:, :, 1].max(axis=1),
            )
    return found


def numbers(figure: Figure) -> int:
    """How many micro-batch numbers stand in blocks."""
    artists = [artist for axes in figure.axes for artist in axes.collections if isinstance(artist, PathCollection)]
    return sum(len(artist.get_offsets()) for artist in artists)


def texts(figure: Figure) -> list[str]:
    """Every line of text."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def title(figure: Figure) -> str:
    """The finding."""
    return str(figure.get_label())
