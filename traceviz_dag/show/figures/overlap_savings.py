"""What overlap saves: hidden communication of each dimension less the extra time of the computation beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.wording import capitals, counted, duration, share
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes, prepare_bars
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import (
    MARGIN,
    WIDTH,
    Caption,
    LegendEntry,
    LegendGroup,
    Stretches,
    TimeScale,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, SMALL, typography
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import ALL_DIMENSIONS

_COLUMNS = (
    *("rank", "device", "window_name", "step", "dimension", "hidden_ns", "judged_share", "extra_ns"),
    *("net_ns", "net_low_ns", "net_high_ns", "reason"),
)
_ROW, _LABELS, _NUMBERS, _AXIS = 0.42, 1.3, 2.6, 0.66
_COLUMN_ENDS = tuple(WIDTH - MARGIN - left for left in (1.75, 0.85, 0.0))


class _Mean(NamedTuple):
    """The means of a dimension over its windows whose saving is known, and the nets of all of these."""

    dimension: str
    hidden: float
    extra: float
    net: float
    low: float
    high: float
    nets: list[int]


def draw_overlap_savings(source: TableSource) -> Figure | None:
    """Draw what overlap saves, of each dimension that hides something.

    Returns:
        The figure; None where no saving is known.
    """
    rows = _of_steps(source.table("overlap_savings", _COLUMNS).to_pylist())
    means = _means([row for row in rows if row["net_ns"] is not None])
    if not means:
        return None
    low = min([0.0, *(min(each.low, *each.nets) for each in means)])
    high = max([1.0, *(max(each.hidden, each.high, *each.nets) for each in means)])
    scale = TimeScale.of(max(round(high - low), 1))
    with typography():
        page = open_page(_caption(source, rows, means), _ROW * len(means), _AXIS)
        axes = page.axes(0.0, _ROW * len(means), _LABELS, _NUMBERS)
        limits = low / scale.per_unit, high / scale.per_unit
        prepare_bars(axes, limits, _ROW * len(means), f"per rank and step, {scale.unit}")
        for x, word in zip(_COLUMN_ENDS, ("hidden", "extra", "net"), strict=True):
            page.text(x, page.top - 0.08, word, SMALL, palette.QUIET_INK, "right")
        for number, each in enumerate(means):
            band = Band(number * _ROW, (number + 1) * _ROW)
            _draw(axes, each, band, scale)
            y = page.top + band.middle
            page.text(MARGIN + _LABELS - 0.12, y, capitals(each.dimension), LABEL, palette.INK, "right")
            costs = each.high < 0
            for x, value in zip(_COLUMN_ENDS, (each.hidden, each.extra, each.net), strict=True):
                words = duration(round(value)) if value >= 0 else f"−{duration(round(-value))}"
                page.text(x, y, words, SMALL, palette.ATTENTION if costs else palette.INK, "right")
    return page.figure


def _of_steps(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each rank and device its training steps, else all its kernels."""
    marked = {(row["rank"], row["device"]) for row in rows if row["window_name"] == "step"}
    return [row for row in rows if (row["window_name"] == "step") == ((row["rank"], row["device"]) in marked)]


def _means(rows: Sequence[Mapping[str, Any]]) -> list[_Mean]:
    of: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["dimension"], []).append(row)
    means = []
    for dimension, mine in of.items():
        hidden, extra, net, low, high = (
            sum(row[name] for row in mine) / len(mine)
            for name in ("hidden_ns", "extra_ns", "net_ns", "net_low_ns", "net_high_ns")
        )
        means.append(_Mean(dimension, hidden, extra, net, low, high, [row["net_ns"] for row in mine]))
    return sorted(means, key=lambda each: (each.dimension != ALL_DIMENSIONS, each.net, each.dimension))


def _draw(axes: Axes, mean: _Mean, band: Band, scale: TimeScale) -> None:
    """The hidden time, of which the extra time takes its part away, from the right; what is left, with its spread."""
    hidden, net, low, high = (value / scale.per_unit for value in (mean.hidden, mean.net, mean.low, mean.high))
    bars = (
        ("saved", palette.HIDDEN, 0.0, max(net, 0.0)),
        ("extra", palette.EXPOSED, net, hidden),
    )
    for name, colour, begin, end in bars:
        if end > begin:
            time = Stretches(np.array([begin]), np.array([end]))
            draw_boxes(axes, time, band.part(0.14, 0.6), colour, f"{name}/{mean.dimension}")
    axes.hlines(band.part(0.14, 0.6).middle, low, high, colors=palette.INK, linewidths=1.2, zorder=3)
    nets = np.array(mean.nets) / scale.per_unit
    dots = axes.scatter(nets, np.full(len(nets), band.part(0.6, 0.95).middle), s=9, color=palette.QUIET_INK, zorder=3)
    dots.set_gid(f"nets/{mean.dimension}")


def _caption(source: TableSource, rows: Sequence[Mapping[str, Any]], means: Sequence[_Mean]) -> Caption:
    first = means[0]
    unknown = [row for row in rows if row["net_ns"] is None]
    named = "Overlap" if first.dimension == ALL_DIMENSIONS else f"Overlap of {capitals(first.dimension)} communication"
    costs = [capitals(each.dimension) for each in means if each.high < 0 and each.dimension != ALL_DIMENSIONS]
    if first.net < 0:
        title = f"{named} costs {duration(round(-first.net))} per rank and step more than it saves"
    else:
        hidden, extra = round(first.hidden), round(first.extra)
        title = (
            f"{named} saves {duration(round(first.net))} per rank and step: {duration(hidden)} are hidden, and "
            f"computation takes {duration(extra)} ({share(extra, max(hidden, 1))} of that) longer for it"
        )
    warnings = [*lost_ranks(source)]
    if unknown:
        dimensions = ", ".join(sorted({capitals(row["dimension"]) for row in unknown}))
        warnings.append(f"unknown of {dimensions} in some or all windows: {unknown[0]['reason']}")
    return Caption(
        title=title,
        facts=[
            place(source),
            f"mean of {counted(len(first.nets), 'window', 'windows')}",
            *([f"costs more than it saves: {', '.join(costs)}"] if costs else []),
        ],
        warnings=warnings,
        legend=[
            LegendGroup(
                "", [LegendEntry("net saving", palette.HIDDEN), LegendEntry("extra computation", palette.EXPOSED)]
            )
        ],
        footer="table overlap_savings",
        note="line: the mean's error bar, from the spread of kernels; dot: the net saving of one rank and step",
    )
