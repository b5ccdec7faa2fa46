"""Period distribution: how long the steady units of each stage and named pair take, and how far the pairs overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.pipelines.period_summary import period_summary, two_modes, two_modes_of_scores
from traceviz_dag.analyze.pipelines.periods import DIMENSION, NAMED
from traceviz_dag.analyze.wording import duration
from traceviz_dag.arrays import Float64
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import draw_bars
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import (
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    TimeScale,
    open_page,
    rule_across,
)
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL, TINY, typography
from traceviz_dag.show.source import TableSource

MOST_ROWS = 24
"""Rows that a panel has; of more, those with the longest tail, and the worst scores."""

SCORES_SHOWN = (-1.0, 2.0)
"""Scores beyond are at the edge of their panel, which says so: they are reported, and not clamped in any figure."""

BINS = 157
"""Columns of a row: 20 an inch."""

_COLUMNS = (
    *("pair", "kind", "step", "pipeline", "stage", "rank", "rank1", "unit", "start_ns", "period_ns"),
    *("overlap_score", "refusal", "stage0_ns", "stage1_ns"),
)
_MOST_NOTES = 3
_PAGE_HEIGHT, _HIGHEST_ROW, _LOWEST_ROW, _BETWEEN = 4.6, 0.42, 0.17, 0.66


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """One row: values of the units of a stage, or of a pair.

    Attributes:
        kind: of the pair; ``stage`` for the periods of a stage.
        values: periods in ns, or scores.
        percentiles: p50, p90, p99 of periods; p10, p50, p90 of scores.
    """

    label: str
    kind: str
    values: Float64
    percentiles: tuple[float, float, float]


def draw_period_distribution(source: TableSource) -> Figure | None:
    """Draw periods by stage and named pair, and OverlapScores by pair.

    Returns:
        The figure; None where no pair has two steady units.
    """
    table = source.table("periods", _COLUMNS)
    known = table.filter(pc.is_valid(table["period_ns"]))
    if not known.num_rows:
        return None
    periods, scores = period_spreads(known), score_spreads(known)
    count = len(periods) + len(scores)
    height = min(max(_PAGE_HEIGHT / count, _LOWEST_ROW), _HIGHEST_ROW)
    scale = TimeScale.of(int(max(row.values.max() for row in periods)))
    with typography():
        room = height * count + (_BETWEEN if scores else 0.0)
        page = open_page(_caption(source, table, known, periods, scores), room)
        _draw_periods(page, periods, height, scale)
        if scores:
            _draw_scores(page, scores, height * len(periods) + _BETWEEN, height)
    return page.figure


def period_spreads(known: pa.Table) -> list[Spread]:
    """Periods of each stage, a unit counted once whatever pairs it is in, and of each named pair."""
    named = pc.equal(known["kind"], NAMED)
    rows = []
    own = known.filter(pc.invert(named))
    unique = own.group_by(["stage", "rank", "step", "start_ns"], use_threads=False).aggregate([("period_ns", "min")])
    for stage in sorted(pc.unique(unique["stage"]).to_pylist(), key=lambda stage: -1 if stage is None else stage):
        mask = pc.is_null(unique["stage"]) if stage is None else pc.equal(unique["stage"], stage)
        chosen = unique.filter(pc.fill_null(mask, False))
        rows.append(_periods("all ranks" if stage is None else f"stage {stage}", "stage", chosen["period_ns_min"]))
    mine = known.filter(named)
    rows += [
        _periods(pair, NAMED, mine.filter(pc.equal(mine["pair"], pair))["period_ns"])
        for pair in pc.unique(mine["pair"]).to_pylist()
    ]
    tail = sorted(rows, key=lambda row: row.percentiles[0] - row.percentiles[2])[:MOST_ROWS]
    return [row for row in rows if row in tail]


def score_spreads(known: pa.Table) -> list[Spread]:
    """OverlapScores of each pair over its ranks: neighbouring stages and named pairs, then the dimensions."""
    scored = known.filter(pc.is_valid(known["overlap_score"]))
    rows = []
    for pair in pc.unique(scored["pair"]).to_pylist():
        mine = scored.filter(pc.equal(scored["pair"], pair))
        values = mine["overlap_score"].to_numpy()
        low, middle, high = np.percentile(values, (10, 50, 90)).tolist()
        rows.append(Spread(pair, mine["kind"][0].as_py(), values, (low, middle, high)))
    rows.sort(key=lambda row: row.kind == DIMENSION)
    worst = sorted(rows, key=lambda row: (row.kind == DIMENSION, row.percentiles[1]))[:MOST_ROWS]
    return [row for row in rows if row in worst]


def _periods(label: str, kind: str, values: pa.ChunkedArray) -> Spread:
    numbers = values.to_numpy().astype(np.float64)
    middle, high, highest = np.percentile(numbers, (50, 90, 99)).tolist()
    return Spread(label, kind, numbers, (middle, high, highest))


def _draw_periods(page: Page, rows: Sequence[Spread], height: float, scale: TimeScale) -> None:
    axes = page.axes(0.0, height * len(rows))
    longest = 1.02 * max(row.values.max() for row in rows) / scale.per_unit
    axes.set(xlim=(0.0, longest), ylim=(len(rows) * height, 0), yticks=[])
    rule_across(axes, f"period of a unit, {scale.unit}")
    page.text(page.right, page.top - 0.08, "p50 · p99 · units", SMALL, palette.QUIET_INK)
    for place_, row in enumerate(rows):
        top = place_ * height
        _draw_histogram(axes, row, row.values / scale.per_unit, (top, height), palette.COMPUTATION_ONLY)
        _draw_marks(axes, [value / scale.per_unit for value in row.percentiles], (top, height), strongest=0)
        middle, _, highest = row.percentiles
        measures = f"{duration(middle)} · {duration(highest)} · {len(row.values)}"
        _label(page, row.label, measures, top, height, two_modes(row.values) is not None)


def _draw_scores(page: Page, rows: Sequence[Spread], top: float, height: float) -> None:
    axes = page.axes(top, height * len(rows))
    low = max(min(0.0, *(float(row.values.min()) for row in rows)), SCORES_SHOWN[0])
    high = min(max(1.0, *(float(row.values.max()) for row in rows)), SCORES_SHOWN[1])
    margin = 0.02 * (high - low)
    axes.set(xlim=(low - margin, high + margin), ylim=(len(rows) * height, 0), yticks=[])
    rule_across(axes, "OverlapScore: 0 one after the other, 1 hidden")
    axes.vlines([0, 1], 0, len(rows) * height, colors=palette.QUIET_INK, linewidths=0.8, zorder=1.5)
    page.text(page.right, page.top + top - 0.08, "p50 · p10 · units", SMALL, palette.QUIET_INK)
    for place_, row in enumerate(rows):
        at = place_ * height
        _draw_histogram(axes, row, np.clip(row.values, low, high), (at, height), palette.HIDDEN)
        _draw_marks(axes, np.clip(row.percentiles, low, high).tolist(), (at, height), strongest=1)
        measures = f"{row.percentiles[1]:.2f} · {row.percentiles[0]:.2f} · {len(row.values)}"
        _label(page, _score_label(row), measures, top + at, height, False)


def _score_label(row: Spread) -> str:
    """How the row of a pair's scores is called: all dimensions are beside computation."""
    return f"with {row.label.removeprefix('computation + ').upper()}" if row.kind == DIMENSION else row.label


def _draw_histogram(axes: Axes, row: Spread, values: Float64, at: tuple[float, float], colour: str) -> None:
    """Columns as high as their share of the fullest one, on the foot of the row."""
    top, height = at
    counts, edges = np.histogram(values, bins=BINS, range=axes.get_xlim())
    filled = np.flatnonzero(counts)
    foot = np.full(len(filled), top + 0.94 * height)
    tops = foot - 0.84 * height * counts[filled] / counts.max()
    time = Stretches(edges[filled], edges[filled + 1])
    draw_bars(axes, time, tops, foot, colour, f"{row.kind}/{row.label}")
    axes.axhline(top + 0.94 * height, color=palette.RULE, linewidth=0.5, zorder=1)


def _draw_marks(axes: Axes, values: Sequence[float], at: tuple[float, float], strongest: int) -> None:
    top, height = at
    for number, value in enumerate(values):
        strong = number == strongest
        axes.vlines(
            value, top + (0.06 if strong else 0.4) * height, top + 0.94 * height,
            colors=palette.INK, linewidths=1.6 if strong else 0.8, zorder=3,
        )  # fmt: skip


def _label(page: Page, label: str, measures: str, top: float, height: float, stands_out: bool) -> None:
    size = max(min(LABEL, 0.75 * height * POINTS_PER_INCH), TINY)
    y = top + 0.6 * height
    page.row_label(
        y, label if len(label) <= 22 else label[:21] + "…", size=min(size, LABEL if len(label) < 18 else SMALL)
    )
    page.row_measures(y, measures, min(size, SMALL) if len(measures) < 24 else TINY, stands_out)


def _caption(
    source: TableSource, table: pa.Table, known: pa.Table, periods: Sequence[Spread], scores: Sequence[Spread]
) -> Caption:
    first, last = pc.min(known["unit"]).as_py(), pc.max(known["unit"]).as_py()
    pairs = period_summary(table).to_pylist()
    steps = len({row["step"] for row in pairs}) > 1
    without = sorted({(_pair(row, steps), row["refusal"]) for row in pairs if row["refusal"]})
    fewer = [
        f"{_pair(row, steps)}: fewer than all ranks ({row['without']})" for row in pairs if row["over_fewer_ranks"]
    ]
    modes = [(row.label, note) for row in periods if (note := two_modes(row.values)) is not None]
    return Caption(
        title=_finding(periods, scores),
        facts=[
            place(source),
            f"steady units {first} to {last} of each rank, warm-up and cool-down left out",
            "each period on the clock of its own rank: no alignment is needed",
            *_at_the_edge(scores),
            *(
                f"{_score_label(row)}: {note}"
                for row in scores
                if (note := two_modes_of_scores(row.values)) is not None
            ),
            *([f"{_pairs(len(without))} no measures, such as {without[0][0]}: {without[0][1]}"] if without else []),
        ],
        warnings=[
            *lost_ranks(source),
            *fewer[:_MOST_NOTES],
            *(
                [f"{len(fewer) - _MOST_NOTES} more pairs have measures of fewer than all ranks"]
                * (len(fewer) > _MOST_NOTES)
            ),
            *(f"{label}: {note}" for label, note in modes[:_MOST_NOTES]),
            *([f"{len(modes) - _MOST_NOTES} more have two modes"] if len(modes) > _MOST_NOTES else []),
        ],
        legend=[
            LegendGroup(
                "height: units in the column, against the fullest",
                [LegendEntry("periods", palette.COMPUTATION_ONLY), LegendEntry("scores", palette.HIDDEN)],
            )
        ],
        footer="tables periods, period_percentiles",
        note="tall line: p50; short: p90, p99, of scores p10, p90",
    )


def _at_the_edge(scores: Sequence[Spread]) -> Iterator[str]:
    """What of the scores is drawn at the edge, and what it means."""
    low, high = SCORES_SHOWN
    below = sum(int(np.count_nonzero(row.values < low)) for row in scores)
    above = sum(int(np.count_nonzero(row.values > high)) for row in scores)
    if not below + above:
        return
    word, are = ("score", "is") if below + above == 1 else ("scores", "are")
    text = f"{below + above:,} {word} below {low:g} or above {high:g} {are} drawn at the edge"
    yield f"{text}; below {low:g}, neither of the pair runs for longer than the shorter one takes" if below else text


def _pairs(count: int) -> str:
    return "1 pair has" if count == 1 else f"{count} pairs have"


def _pair(row: Mapping[str, Any], steps: bool) -> str:
    step = "" if not steps or row["step"] is None else f", step {row['step']}"
    return f"{row['pair']}{step}" if row["stage"] is None else f"{row['pair']}, stage {row['stage']}{step}"


def _finding(periods: Sequence[Spread], scores: Sequence[Spread]) -> str:
    tail = max(periods, key=lambda row: row.percentiles[2] / max(row.percentiles[0], 1.0))
    middle, _, highest = tail.percentiles
    text = f"Periods of {tail.label}: p50 {duration(middle)}, p99 {duration(highest)}"
    pairs = [row for row in scores if row.kind != DIMENSION] or list(scores)
    if not pairs:
        return text
    worst = min(pairs, key=lambda row: row.percentiles[1])
    return f"{text}; {worst.label} overlap least, OverlapScore {worst.percentiles[1]:.2f}"
