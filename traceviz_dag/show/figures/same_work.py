"""Same work: how long each class of work takes on each rank, to the median peer of its stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.wording import counted
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import draw_bars
from traceviz_dag.show.page.facts import lead_in, lost_ranks, place, ranks_named
from traceviz_dag.show.page.page import (
    DATA_WIDTH,
    LABELS,
    MARGIN,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL, typography
from traceviz_dag.show.source import TableSource

_CLASSES = {
    "products": "products",
    "attention": "attention",
    "memory_bound": "memory-bound",
    "transfers": "transfers",
}
_EDGES = (0.0, 1.03, 1.1, 1.25, 1.5)
_WORDS = ("below 1.03", "1.03 to 1.1", "1.1 to 1.25", "1.25 to 1.5", "1.5 and more")
_KINDS = {
    **{"gpu": "whole GPU", "core_clock": "core clock", "memory": "memory", "throttling": "throttled"},
    **{"kernel": "one kernel", "algorithm": "algorithm", "extra_work": "extra work", "link": "links", "host": "host"},
}
_HEIGHT, _HIGHEST_ROW = 6.0, 0.3
_HEADING, _MOST_ROWS = 0.24, 40


def draw_same_work(source: TableSource) -> Figure | None:
    """Draw the iteration's ratios, the ranks of a stage below each other.

    Returns:
        The figure; None where no rank has a peer whose work is the same.
    """
    ratios: dict[int, dict[str, float]] = {}
    for row in source.table("class_speeds", ("rank", "work_class", "ratio")).to_pylist():
        ratios.setdefault(row["rank"], {})[row["work_class"]] = row["ratio"]
    named = ("rank", "stage", "peers", "slow_ratio", "kind", "kind_evidence")
    ranks = [row for row in source.table("rank_speeds", named).to_pylist() if row["rank"] in ratios]
    if not ranks:
        return None
    rows = _chosen(ranks, ratios)
    columns = [name for name in _CLASSES if any(name in ratios[row["rank"]] for row in rows)]
    height = min(_HEIGHT / len(rows), _HIGHEST_ROW)
    with typography():
        page = open_page(_caption(source, ranks, rows, ratios), _HEADING + height * len(rows), 0.3)
        axes = page.axes(_HEADING, height * len(rows))
        axes.set(xlim=(0, len(columns)), ylim=(len(rows) * height, 0), xticks=[], yticks=[])
        axes.spines["bottom"].set_visible(False)
        _draw_cells(axes, [[ratios[row["rank"]].get(name) for name in columns] for row in rows], height)
        _write(page, axes, rows, columns, ratios, height)
    return page.figure


def _chosen(ranks: Sequence[dict[str, Any]], ratios: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The ranks that fit on a page, by stage and rank: those with a kind, and those that are slowest in a class."""
    slowest = sorted(ranks, key=lambda row: (row["kind"] is None, -max(ratios[row["rank"]].values()), row["rank"]))
    return sorted(slowest[:_MOST_ROWS], key=lambda row: (row["stage"] if row["stage"] is not None else -1, row["rank"]))


def _draw_cells(axes: Axes, cells: Sequence[Sequence[float | None]], height: float) -> None:
    for number, colour in enumerate(palette.WAITING):
        here = [
            (row, column)
            for row, values in enumerate(cells)
            for column, ratio in enumerate(values)
            if ratio is not None and _class_of(ratio) == number
        ]
        if here:
            row, column = (np.array(each, dtype=np.float64) for each in zip(*here, strict=True))
            edge = 0.06 * height
            time = Stretches(column + 0.01, column + 0.99)
            draw_bars(axes, time, row * height + edge, (row + 1) * height - edge, colour, f"class-{number}")


def _class_of(ratio: float) -> int:
    return int(np.searchsorted(_EDGES, ratio, side="right")) - 1


def _write(
    page: Page,
    axes: Axes,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    ratios: Mapping[int, Mapping[str, float]],
    height: float,
) -> None:
    across = DATA_WIDTH / len(columns)
    for number, name in enumerate(columns):
        x = MARGIN + LABELS + (number + 0.5) * across
        page.text(x, page.top + 0.1, _CLASSES[name], SMALL, palette.QUIET_INK, "center")
    size = min(LABEL, 0.72 * height * POINTS_PER_INCH)
    several = len({row["stage"] for row in rows}) > 1
    for number, row in enumerate(rows):
        y = _HEADING + (number + 0.5) * height
        stage = f" · stage {row['stage']}" if several and row["stage"] is not None else ""
        colour = palette.INK if row["kind"] is None else palette.ATTENTION
        page.row_label(y, f"rank {row['rank']}{stage}", colour=colour, size=size)
        if row["kind"] is not None:
            page.row_measures(y, _KINDS[row["kind"]], min(size, SMALL), True)
        for column, name in enumerate(columns):
            ratio = ratios[row["rank"]].get(name)
            if ratio is not None:
                ink = palette.text_on(palette.WAITING[_class_of(ratio)])
                middle = (number + 0.5) * height
                axes.text(
                    column + 0.5, middle, f"{ratio:.2f}", size=min(size, SMALL), color=ink, ha="center", va="center"
                )


def _caption(
    source: TableSource,
    ranks: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    ratios: Mapping[int, Mapping[str, float]],
) -> Caption:
    named = [row for row in ranks if row["kind"] is not None]
    worst = max(named, key=lambda row: (row["slow_ratio"] or 0.0, -row["rank"]), default=None)
    lead = lead_in(source)
    present = {_class_of(ratio) for row in rows for ratio in ratios[row["rank"]].values()}
    left_out = len(ranks) - len(rows)
    return Caption(
        title=_finding(worst, ranks),
        facts=[
            place(source),
            f"{counted(len(ranks), 'rank', 'ranks')} with peers",
            *([ranks_named(row["rank"] for row in named) + " marked"] if len(named) > 1 else []),
            *(
                [f"the {left_out} others are below {_highest(ranks, rows, ratios):.2f} in every class"]
                if left_out
                else []
            ),
            *([lead.limit] if lead.limit else []),
        ],
        warnings=lost_ranks(source),
        legend=[LegendGroup("times as long as on the median peer", list(_legend(present)))],
        footer="tables class_speeds, rank_speeds, findings",
        note="the same kernels on ranks of one stage; transfers: the rank's slowest links; empty: nothing to compare",
    )


def _highest(
    ranks: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], ratios: Mapping[int, Mapping[str, float]]
) -> float:
    """The highest ratio of the ranks that are not drawn, rounded up to two digits."""
    drawn = {row["rank"] for row in rows}
    highest = max(max(ratios[row["rank"]].values()) for row in ranks if row["rank"] not in drawn)
    return float(np.ceil(100 * highest + 1e-9) / 100)


def _finding(worst: dict[str, Any] | None, ranks: Sequence[dict[str, Any]]) -> str:
    if worst is None:
        of = counted(len(ranks), "rank", "ranks")
        return f"No rank of {of} takes longer for the same work in a way that has a known kind"
    stage = "" if worst["stage"] is None else f" (stage {worst['stage']})"
    evidence = "" if worst["kind_evidence"] is None else f": {worst['kind_evidence']}"
    return f"Rank {worst['rank']}{stage}, {_KINDS[worst['kind']]}{evidence}"


def _legend(present: set[int]) -> Iterator[LegendEntry]:
    for number, word in enumerate(_WORDS):
        if number in present:
            yield LegendEntry(word, palette.WAITING[number])
