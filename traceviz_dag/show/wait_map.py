"""Wait map: how long each rank waited in each of its communications, and which rank the others waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.blame import judged_waits, late_ranks
from traceviz_dag.analyze.clock_summary import clock_facts, clock_statement
from traceviz_dag.analyze.communications import labels, optional_integers
from traceviz_dag.analyze.intervals import Int64
from traceviz_dag.show import palette
from traceviz_dag.show.blocks import Float64, draw_bars
from traceviz_dag.show.facts import duration, place, share
from traceviz_dag.show.page import (
    DATA_WIDTH,
    FIGURES,
    LABELS,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    open_page,
)
from traceviz_dag.show.source import TableSource
from traceviz_dag.show.typography import LABEL, POINTS_PER_INCH, SMALL, TINY, typography, width

MOST_ROWS = 64
"""Rows that the map has; of more ranks, neighbours share a row with their mean."""

CLASSES = ((0, "under 10 µs"), (10_000, "10 to 100 µs"), (100_000, "0.1 to 1 ms"), (1_000_000, "1 to 10 ms"))
LONGEST_CLASS = (10_000_000, "10 ms and more")
"""Least wait of each class, ns, and its name."""

_COLUMNS = (
    *("rank", "communication", "dimension", "stage", "fault", "arrival_ns", "duration_ns", "wait_ns", "last_rank"),
    *("wait_aligned_ns", "last_rank_aligned", "late_compute_ns", "late_communication_ns", "late_memory_ns"),
    *("late_host_ns", "late_idle_ns", "late_category"),
)
_CLOCK_COLUMNS = ("rank", "component", "residual_p05_ns", "residual_p95_ns", "refusal")
_MAP_HEIGHT, _HIGHEST_ROW, _LOWEST_ROW = 5.0, 0.3, 0.075
_HEADING, _GAP, _NARROWEST_PANEL, _NARROWEST_CELL = 0.36, 0.14, 0.62, 0.02


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

    def classes(self) -> Int64:
        """The class of each cell, -1 where there is none."""
        edges = np.array([least for least, _ in (*CLASSES, LONGEST_CLASS)], dtype=np.float64)
        found = np.searchsorted(edges, np.nan_to_num(self.wait_ns), side="right") - 1
        return np.where(np.isnan(self.wait_ns), -1, found)


def draw_wait_map(source: TableSource) -> Figure | None:
    """Draw the iteration's waits, on solved clocks where these are known.

    Returns:
        The figure; None where no communication is matched.
    """
    collectives = source.table("collectives", _COLUMNS)
    waits = judged_waits(collectives)
    if not waits.num_rows:
        return None
    ranks = np.unique(optional_integers(collectives, "rank"))
    panels = wait_panels(waits, ranks)
    late = {row["rank"]: row for row in late_ranks(collectives).to_pylist()}
    rows = row_count(len(ranks))
    height = min(max(_MAP_HEIGHT / rows, _LOWEST_ROW), _HIGHEST_ROW)
    with typography():
        page = open_page(_caption(source, collectives, waits, late, panels), _HEADING + rows * height, axis_height=0.36)
        left = 0.0
        for panel, across in zip(panels, _widths(panels), strict=True):
            _draw_panel(page, panel, left, across, height)
            left += across + _GAP
        _label_rows(page, waits, ranks, late, height)
    return page.figure


def wait_panels(waits: pa.Table, ranks: Int64) -> list[WaitPanel]:
    """The matched rows of ``collectives`` as one matrix a dimension, the longest waiting first.

    Args:
        waits: as ``judged_waits`` gives them.
        ranks: all ranks, ascending; beyond ``MOST_ROWS`` neighbours share a row.
    """
    dimension, names = labels(waits, "dimension")
    rank, arrival, wait = (optional_integers(waits, name) for name in ("rank", "arrival_ns", "judged_wait_ns"))
    place_of = np.searchsorted(ranks, rank)
    known = [(name or "unknown", np.flatnonzero(dimension == code)) for code, name in enumerate(names)]
    known = [(name, rows) for name, rows in known if len(rows)]
    known.sort(key=lambda each: -int(wait[each[1]].sum()))
    ordinals = [_ordinals(place_of[rows], arrival[rows]) for _, rows in known]
    counts = [int(ordinal.max()) + 1 for ordinal in ordinals]
    panels = []
    for (name, rows), ordinal, most, across in zip(known, ordinals, counts, _panel_widths(counts), strict=True):
        together = -(-most // max(int(across / _NARROWEST_CELL), 1))
        shape = row_count(len(ranks)), -(-most // together)
        cell = (place_of[rows] // _ranks_in_row(len(ranks))) * shape[1] + ordinal // together
        count = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.float64)
        total = np.bincount(cell, weights=wait[rows], minlength=shape[0] * shape[1])
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
        panels.append(WaitPanel(name, together, mean, most, int(wait[rows].sum())))
    return panels


def row_count(ranks: int) -> int:
    """Rows of the map of so many ranks."""
    return -(-ranks // _ranks_in_row(ranks))


def _ranks_in_row(ranks: int) -> int:
    return max(-(-ranks // MOST_ROWS), 1)


def _ordinals(rank: Int64, arrival: Int64) -> Int64:
    """How many communications of its rank came before each one."""
    order = np.lexsort((arrival, rank))
    _, first, count = np.unique(rank[order], return_index=True, return_counts=True)
    ordinal = np.empty(len(rank), dtype=np.int64)
    ordinal[order] = np.arange(len(rank)) - np.repeat(first, count)
    return ordinal


def _widths(panels: Sequence[WaitPanel]) -> list[float]:
    return _panel_widths([panel.most for panel in panels])


def _panel_widths(counts: Sequence[int]) -> list[float]:
    """Inches of each panel: the more communications, the wider, by the root, so that few ones stay legible."""
    room = DATA_WIDTH - _GAP * (len(counts) - 1)
    least = min(_NARROWEST_PANEL, room / len(counts))
    roots = np.sqrt(np.array(counts, dtype=np.float64))
    return [float(least + (room - least * len(counts)) * root / roots.sum()) for root in roots]


def _draw_panel(page: Page, panel: WaitPanel, left: float, across: float, height: float) -> None:
    rows, columns = panel.wait_ns.shape
    axes = page.axes(_HEADING, rows * height, LABELS + left, FIGURES + DATA_WIDTH - left - across)
    axes.set(xlim=(0, columns), ylim=(rows * height, 0), yticks=[])
    # The numbers of the communications, where the last one ends: what lies between is read off by eye.
    axes.set_xticks([0, columns], ["0", f"{panel.most:,}"], size=TINY)
    axes.tick_params(axis="x", length=2, pad=1)
    at = page.top
    name = panel.dimension.upper() if len(panel.dimension) <= 3 else panel.dimension
    x = page.figure.get_figwidth() * axes.get_position().x0
    heading, size = _heading(name, across)
    page.text(x, at + 0.08, heading, size, bold=True)
    page.text(x, at + 0.25, duration(panel.total_ns), SMALL, palette.QUIET_INK)
    _draw_cells(axes, panel, height)


def _heading(name: str, across: float) -> tuple[str, float]:
    """The dimension's name as it fits over its panel."""
    room = across + _GAP - 0.04
    size = next((size for size in (LABEL, SMALL, TINY) if width(name, size, bold=True) <= room), TINY)
    while len(name) > 2 and width(name, size, bold=True) > room:
        name = name.rstrip("…")[:-1] + "…"
    return name, size


def _draw_cells(axes: Axes, panel: WaitPanel, height: float) -> None:
    classes = panel.classes()
    edge = 0.08 * height if height > 0.12 else 0.0
    wide = 0.06 if panel.wait_ns.shape[1] <= 40 else 0.0
    for number, (_, word) in enumerate((*CLASSES, LONGEST_CLASS)):
        row, column = np.nonzero(classes == number)
        if len(row):
            left = column.astype(np.float64)
            time = Stretches(left + wide, left + 1.0 - wide)
            top = row.astype(np.float64) * height
            name = f"{panel.dimension}/{word.replace(' ', '-')}"
            draw_bars(axes, time, top + edge, top + height - edge, palette.WAITING[number], name)


def _label_rows(page: Page, waits: pa.Table, ranks: Int64, late: dict[int, dict[str, object]], height: float) -> None:
    together, size = _ranks_in_row(len(ranks)), max(min(LABEL, 0.8 * height * POINTS_PER_INCH), 4.5)
    waited = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(waited, np.searchsorted(ranks, optional_integers(waits, "rank")), _waits(waits))
    page.text(page.right, page.top + 0.25, "waits · makes wait", SMALL, palette.QUIET_INK)
    for row in range(row_count(len(ranks))):
        mine = ranks[row * together : (row + 1) * together].tolist()
        blamed = [rank for rank in mine if late[rank]["blamed"]]
        word = f"rank {mine[0]}" if len(mine) == 1 else f"ranks {mine[0]} to {mine[-1]}"
        y = _HEADING + (row + 0.5) * height
        own = max(int(str(late[rank]["own_ns"])) for rank in mine)
        mean = int(waited[row * together : (row + 1) * together].mean())
        page.row_label(y, word, colour=palette.ATTENTION if blamed else palette.INK, size=size)
        page.row_figures(y, f"{duration(mean)} · {duration(own)}", min(size, SMALL), bool(blamed))


def _waits(waits: pa.Table) -> Int64:
    return optional_integers(waits, "judged_wait_ns")


def _caption(
    source: TableSource,
    collectives: pa.Table,
    waits: pa.Table,
    late: dict[int, dict[str, object]],
    panels: Sequence[WaitPanel],
) -> Caption:
    facts = clock_facts(source.table("rank_clocks", _CLOCK_COLUMNS))
    statement = clock_statement(facts)
    total, time = int(_waits(waits).sum()), int(optional_integers(waits, "duration_ns").sum())
    warnings = [] if facts["solved"] else [statement]
    warnings += _unmatched(collectives)
    several = any(panel.together > 1 for panel in panels) or _ranks_in_row(len(late)) > 1
    return Caption(
        title=_finding(list(late.values()), total, time),
        facts=[
            place(source),
            f"{len(late)} ranks, {waits.num_rows:,} parts in matched communications",
            f"{share(total, time)} of their time is waiting",
            *([statement.replace(" us ", " µs ")] if facts["solved"] else []),
        ],
        warnings=warnings,
        legend=[LegendGroup("wait", list(_legend(panels)))],
        footer="tables collectives, rank_clocks",
        note="a column: one communication of the rank, by its number in the dimension"
        + ("; mean where several share a cell" if several else ""),
    )


def _finding(late: Sequence[dict[str, object]], total: int, time: int) -> str:
    blamed = [row for row in late if row["blamed"]]
    if not blamed:
        return f"No rank is to blame: {share(total, time)} of communication time is waiting, {duration(total)} in all"
    worst = max(blamed, key=lambda row: int(str(row["own_ns"])))
    others = f", and {len(blamed) - 1} more" if len(blamed) > 1 else ""
    doing = str(worst["late_category"]).replace("_", " ")
    return (
        f"Rank {worst['rank']} makes its stage's peers wait {duration(int(str(worst['own_ns'])))} ({doing}), "
        f"last in {worst['last']} of {worst['communications']} communications{others}"
    )


def _unmatched(collectives: pa.Table) -> list[str]:
    faults = pc.value_counts(collectives["fault"].cast(pa.string()).drop_null()).to_pylist()
    if not faults:
        return []
    told = ", ".join(f"{each['counts']:,} {each['values'].replace('_', ' ')}" for each in faults)
    return [f"of {collectives.num_rows:,} communication kernels some are not matched, or not wholly: {told}"]


def _legend(panels: Sequence[WaitPanel]) -> Iterator[LegendEntry]:
    present = {int(number) for panel in panels for number in np.unique(panel.classes())}
    for number, (_, word) in enumerate((*CLASSES, LONGEST_CLASS)):
        if number in present:
            yield LegendEntry(word, palette.WAITING[number])
