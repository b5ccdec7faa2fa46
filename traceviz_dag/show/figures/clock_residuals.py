"""Clock residuals: how well the solved clocks agree, rank by rank, and by what they were apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from traceviz_dag.analyze.clocks.clock_summary import ClockFacts, clock_facts, clock_statement
from traceviz_dag.analyze.wording import capitalised, duration
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import draw_bars
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import Caption, LegendEntry, LegendGroup, Page, Stretches, TimeScale, open_page
from traceviz_dag.show.page.typography import LABEL, SMALL, typography
from traceviz_dag.show.source import TableSource
from traceviz_dag.tables.rows import RankClockRow, columns_of, rows_of

_HEIGHT, _BETWEEN = 1.7, 0.55
_BOX, _LEAST_BOX = 0.8, 0.015
_LEAST_TICK_NS = 1_000
_MOST_DIGITS = 64
"""Of the numbers of ranks below an axis."""


def draw_clock_residuals(source: TableSource) -> Figure | None:
    """Draw the residuals of each rank over its offset.

    Returns:
        The figure; None where no rank has matched communications to judge by.
    """
    table = source.table("rank_clocks", columns_of(RankClockRow))
    clocks = sorted(rows_of(table, RankClockRow), key=lambda row: row["rank"])
    if not any(map(_is_judged, clocks)):
        return None
    with typography():
        page = open_page(_caption(source, clocks, clock_facts(table)), 2 * _HEIGHT + _BETWEEN)
        _draw_residuals(page, clocks)
        _draw_offsets(page, clocks)
    return page.figure


class _JudgedClock(RankClockRow):
    """A rank with matched communications to judge its clock by, be it solved or refused."""

    residual_p05_ns: int  # type: ignore[misc]
    residual_p95_ns: int  # type: ignore[misc]


class _SolvedClock(RankClockRow):
    """A rank whose offset is known."""

    offset_ns: int  # type: ignore[misc]
    reference_rank: int  # type: ignore[misc]


def _is_judged(row: RankClockRow) -> TypeGuard[_JudgedClock]:
    return row["residual_p05_ns"] is not None


def _is_solved(row: RankClockRow) -> TypeGuard[_SolvedClock]:
    return row["offset_ns"] is not None


def _draw_residuals(page: Page, clocks: Sequence[RankClockRow]) -> None:
    axes = page.axes(0.0, _HEIGHT)
    known = [(place_, row) for place_, row in enumerate(clocks) if _is_judged(row)]
    most = max(max(abs(row["residual_p05_ns"]), abs(row["residual_p95_ns"])) for _, row in known)
    scale = TimeScale.of(max(most, _LEAST_TICK_NS))
    _prepare(axes, clocks, "residual", scale, max(most, _LEAST_TICK_NS), labelled=False)
    for refused, colour in ((False, palette.COMPUTATION_ONLY), (True, palette.ATTENTION)):
        chosen = [(place_, row) for place_, row in known if (row["refusal"] is not None) is refused]
        if chosen:
            low = np.array([row["residual_p05_ns"] for _, row in chosen]) / scale.per_unit
            high = np.array([row["residual_p95_ns"] for _, row in chosen]) / scale.per_unit
            # A clock that agrees to the nanosecond is still to be seen.
            lacking = np.maximum(_LEAST_BOX * np.ptp(axes.get_ylim()) - (high - low), 0.0) / 2
            low, high = low - lacking, high + lacking
            name = "residuals/refused" if refused else "residuals/solved"
            draw_bars(axes, _boxes([place_ for place_, _ in chosen]), high, low, colour, name)
    axes.axhline(0.0, color=palette.INK, linewidth=0.8, zorder=3)
    widest = max(known, key=lambda each: each[1]["residual_p95_ns"] - each[1]["residual_p05_ns"])[1]
    middle = page.top + _HEIGHT / 2
    page.text(page.right, middle - 0.17, "residuals", LABEL, bold=True)
    page.text(page.right, middle, f"widest: rank {widest['rank']}", SMALL)
    words = f"{duration(widest['residual_p95_ns'] - widest['residual_p05_ns'])} wide"
    page.text(page.right, middle + 0.16, words, SMALL, palette.QUIET_INK)


def _draw_offsets(page: Page, clocks: Sequence[RankClockRow]) -> None:
    axes = page.axes(_HEIGHT + _BETWEEN, _HEIGHT)
    known = [(place_, row) for place_, row in enumerate(clocks) if _is_solved(row)]
    most = max((abs(row["offset_ns"]) for _, row in known), default=1)
    scale = TimeScale.of(max(most, _LEAST_TICK_NS))
    _prepare(axes, clocks, "offset", scale, max(most, _LEAST_TICK_NS), labelled=True)
    if known:
        offset = np.array([row["offset_ns"] for _, row in known]) / scale.per_unit
        places = [place_ for place_, _ in known]
        low, high = np.minimum(offset, 0.0), np.maximum(offset, 0.0)
        draw_bars(axes, _boxes(places), high, low, palette.FILL_DRAIN, "offsets/solved")
    axes.axhline(0.0, color=palette.INK, linewidth=0.8, zorder=3)
    drifts = [abs(drift) for row in clocks if (drift := row["drift_ppm"]) is not None]
    middle = page.top + _HEIGHT + _BETWEEN + _HEIGHT / 2
    page.text(page.right, middle - 0.17, "offsets", LABEL, bold=True)
    page.text(page.right, middle, f"up to {duration(most)}" if known else "none", SMALL)
    words = f"drift to {max(drifts):.1f} ppm" if drifts else "drift unknown"
    page.text(page.right, middle + 0.16, words, SMALL, palette.QUIET_INK)


def _prepare(
    axes: Axes, clocks: Sequence[RankClockRow], word: str, scale: TimeScale, most: int, labelled: bool
) -> None:
    reach = 1.1 * most / scale.per_unit
    axes.set(xlim=(-0.5, len(clocks) - 0.5), ylim=(-reach, reach))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+,.4g}" if value else "0"))
    axes.set_ylabel(f"{word}, {scale.unit}", labelpad=6)
    axes.grid(visible=True, axis="y", color=palette.RULE, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)
    every = -(-len(clocks) // (_MOST_DIGITS // len(str(clocks[-1]["rank"]))))
    shown = range(0, len(clocks), every)
    axes.set_xticks(list(shown), [str(clocks[place_]["rank"]) for place_ in shown])
    axes.tick_params(axis="x", length=0, pad=2)
    if labelled:
        axes.set_xlabel("rank", labelpad=2)
    for place_, row in enumerate(clocks):
        if row["refusal"] is not None:
            axes.axvspan(
                place_ - 0.5, place_ + 0.5, facecolor=palette.MISSING, edgecolor=palette.RULE, hatch="////", lw=0
            )


def _boxes(places: Sequence[int]) -> Stretches:
    middles = np.array(places, dtype=np.float64)
    return Stretches(middles - _BOX / 2, middles + _BOX / 2)


def _caption(source: TableSource, clocks: Sequence[RankClockRow], facts: ClockFacts) -> Caption:
    refusals = sorted({str(row["refusal"]) for row in clocks if row["refusal"] is not None})
    early = sum(row["early_receives"] or 0 for row in clocks)
    warnings = [f"not solved: {reason}" for reason in refusals]
    if early:
        warnings.append(f"{early} receives end before their send starts on these clocks: they cannot be right")
    references = sorted({row["reference_rank"] for row in clocks if _is_solved(row)})
    matches = sorted(row["matches"] for row in clocks)
    statement = clock_statement(facts)
    return Caption(
        title=capitalised(statement).replace(" us ", " µs "),
        facts=[
            place(source),
            f"{matches[len(matches) // 2]:,} matched communications per rank (median)",
            *([f"offsets against rank {', '.join(map(str, references))}"] if references else []),
        ],
        warnings=[*lost_ranks(source), *warnings],
        legend=[
            LegendGroup(
                "",
                [
                    LegendEntry("residuals, p05 to p95, of a solved clock", palette.COMPUTATION_ONLY),
                    *([LegendEntry("of a refused clock", palette.ATTENTION)] if refusals else []),
                    LegendEntry("what the clock is ahead", palette.FILL_DRAIN),
                ],
            )
        ],
        footer="table rank_clocks",
        note="residual: aligned end of a rank's communication minus the median of its members'",
    )
