"""Waits as matrices: rank × communication, a matrix a dimension, and the classes of lengths that a wait is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import labels, optional_integers
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.show.figures.wait_rows import MapRow
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import DATA_WIDTH

CLASSES = len(palette.WAITING)
"""Classes of lengths that a wait can be in, each with a colour."""

GAP = 0.14
"""Between two matrices, inches."""

_NARROWEST_PANEL, _NARROWEST_CELL = 0.62, 0.02
_NO_WAIT_NS, _WIDE = 1_000, 100


@dataclass(frozen=True, slots=True, eq=False)
class WaitPanel:
    """The communications of one dimension.

    Attributes:
        together: neighbouring communications of a rank that share a column with their mean.
        wait_ns: (rows, columns) mean wait, ns; NaN where the rank has no such communication.
        most: communications of the rank that has most.
        total_ns: sum of all waits, ns.
    """

    dimension: str
    together: int
    wait_ns: Float64
    most: int
    total_ns: int

    def classes(self, edges: Sequence[int]) -> Int64:
        """The class of each cell, -1 where there is none."""
        found = np.searchsorted(np.array(edges, dtype=np.float64), np.nan_to_num(self.wait_ns), side="right") - 1
        return np.where(np.isnan(self.wait_ns), -1, found)


def wait_panels(waits: pa.Table, rows_of_map: Sequence[MapRow]) -> list[WaitPanel]:
    """The matched rows of ``collectives`` as one matrix a dimension, the longest waiting first.

    Args:
        waits: as ``judged_waits`` gives them.
        rows_of_map: each with the ranks whose mean it shows.
    """
    row_of = {rank: number for number, row in enumerate(rows_of_map) for rank in row.ranks}
    ranks = np.array(sorted(row_of), dtype=np.int64)
    rows_by_place = np.array([row_of[rank] for rank in ranks.tolist()], dtype=np.int64)
    dimension, names = labels(waits, "dimension")
    rank, arrival, wait = (optional_integers(waits, name) for name in ("rank", "arrival_ns", "judged_wait_ns"))
    place_of = np.searchsorted(ranks, rank)
    known = [(name or "unknown", np.flatnonzero(dimension == code)) for code, name in enumerate(names)]
    known = [(name, rows) for name, rows in known if len(rows)]
    known.sort(key=lambda each: -int(wait[each[1]].sum()))
    ordinals = [_ordinals(place_of[rows], arrival[rows]) for _, rows in known]
    counts = [int(ordinal.max()) + 1 for ordinal in ordinals]
    widths = panel_widths([int(wait[rows].sum()) for _, rows in known])
    panels = []
    for (name, rows), ordinal, most, across in zip(known, ordinals, counts, widths, strict=True):
        together = -(-most // max(int(across / _NARROWEST_CELL), 1))
        shape = len(rows_of_map), -(-most // together)
        cell = rows_by_place[place_of[rows]] * shape[1] + ordinal // together
        count = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.float64)
        total = np.bincount(cell, weights=wait[rows], minlength=shape[0] * shape[1])
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
        panels.append(WaitPanel(name, together, mean, most, int(wait[rows].sum())))
    return panels


def class_edges(panels: Sequence[WaitPanel]) -> list[int]:
    """The least wait of each class, ns: decades where the waits of the map spread widely, else steps of about three.

    The highest class begins at 1, 3 or 10 of a decade, so that the longest hundredth of the cells is in it.
    """
    cells = np.concatenate([panel.wait_ns.ravel() for panel in panels])
    cells = cells[np.nan_to_num(cells) >= _NO_WAIT_NS]
    low, high = np.percentile(cells, (10, 99)).tolist() if len(cells) else (_NO_WAIT_NS, _NO_WAIT_NS)
    step = 2 if high > _WIDE * low else 1
    nice = [round(base * 10**power) for power in range(12) for base in (1, 3)]
    top = max(place for place, edge in enumerate(nice) if edge <= max(high, nice[step * (CLASSES - 2)]))
    return [0, *(nice[top - step * number] for number in reversed(range(CLASSES - 1)))]


def class_names(edges: Sequence[int]) -> list[str]:
    """The classes as legends call them."""
    words = [_plain(edge) for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(words[1:])]
    return [f"under {words[1]}", *between, f"{words[-1]} and more"]


def _plain(nanoseconds: int) -> str:
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if nanoseconds >= factor // 10 and nanoseconds >= 100:
            return f"{nanoseconds / factor:g} {unit}"
    return f"{nanoseconds} ns"


def _ordinals(rank: Int64, arrival: Int64) -> Int64:
    """How many communications of its rank came before each one."""
    order = np.lexsort((arrival, rank))
    _, first, count = np.unique(rank[order], return_index=True, return_counts=True)
    ordinal = np.empty(len(rank), dtype=np.int64)
    ordinal[order] = np.arange(len(rank)) - np.repeat(first, count)
    return ordinal


def panel_widths(waited_ns: Sequence[int]) -> list[float]:
    """Inches of each panel: the more waiting, the wider, above a least width at which a panel is legible.

    Args:
        waited_ns: the sum of each panel's waits, ns.
    """
    room = DATA_WIDTH - GAP * (len(waited_ns) - 1)
    least = min(_NARROWEST_PANEL, room / len(waited_ns))
    times = np.array(waited_ns, dtype=np.float64)
    shares = times / times.sum() if times.sum() else np.full(len(times), 1 / len(times))
    return [float(least + (room - least * len(times)) * share) for share in shares]
