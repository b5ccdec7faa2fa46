"""What overlap saves: hidden communication of each dimension less the extra time of the computation beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.mean_savings import SAVINGS_COLUMNS, MeanSaving, UnknownSaving, mean_savings
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
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Savings

_ROW, _LABELS, _NUMBERS, _AXIS = 0.42, 1.3, 2.6, 0.66
_COLUMN_ENDS = tuple(WIDTH - MARGIN - left for left in (1.75, 0.85, 0.0))


def draw_overlap_savings(source: TableSource) -> Figure | None:
    """Draw what overlap saves, of each dimension that hides something.

    Returns:
        The figure; None where no saving is known.
    """
    means, unknown = mean_savings(source.table("overlap_savings", SAVINGS_COLUMNS).to_pylist())
    if not means:
        return None
    low = min([0.0, *(min(each.low_ns, *each.nets) for each in means)])
    high = max([1.0, *(max(each.hidden_ns, each.high_ns, *each.nets) for each in means)])
    scale = TimeScale.of(max(round(high - low), 1))
    with typography():
        page = open_page(_caption(source, means, unknown), _ROW * len(means), _AXIS)
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
            costs = each.high_ns < 0
            for x, value in zip(_COLUMN_ENDS, (each.hidden_ns, each.extra_ns, each.net_ns), strict=True):
                words = duration(value) if value >= 0 else f"−{duration(-value)}"
                page.text(x, y, words, SMALL, palette.ATTENTION if costs else palette.INK, "right")
    return page.figure


def _draw(axes: Axes, mean: MeanSaving, band: Band, scale: TimeScale) -> None:
    """The hidden time, of which the extra time takes its part away, from the right; what is left, with its spread."""
    hidden, net, low, high = (
        value / scale.per_unit for value in (mean.hidden_ns, mean.net_ns, mean.low_ns, mean.high_ns)
    )
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


def _caption(source: TableSource, means: Sequence[MeanSaving], unknown: Sequence[UnknownSaving]) -> Caption:
    first = means[0]
    named = "Overlap" if first.dimension == ALL_DIMENSIONS else f"Overlap of {capitals(first.dimension)} communication"
    costs = [capitals(each.dimension) for each in means if each.high_ns < 0 and each.dimension != ALL_DIMENSIONS]
    unsure = ", less than its error bar" if first.verdict is Savings.UNSURE else ""
    if first.net_ns < 0:
        title = f"{named} costs {duration(-first.net_ns)} per rank and step more than it saves{unsure}"
    else:
        hidden, extra = first.hidden_ns, first.extra_ns
        title = (
            f"{named} saves {duration(first.net_ns)} per rank and step{unsure}: {duration(hidden)} are hidden, and "
            f"computation takes {duration(extra)} ({share(extra, max(hidden, 1))} of that) longer for it"
        )
    return Caption(
        title=title,
        facts=[
            place(source),
            f"mean of {counted(len(first.nets), 'window', 'windows')}",
            *([f"costs more than it saves: {', '.join(costs)}"] if costs else []),
        ],
        warnings=[*lost_ranks(source), *(f"the saving {each.where}: {each.reason}" for each in unknown)],
        legend=[
            LegendGroup(
                "", [LegendEntry("net saving", palette.HIDDEN), LegendEntry("extra computation", palette.EXPOSED)]
            )
        ],
        footer="table overlap_savings",
        note="line: two standard errors of the mean; dot: the net saving of one rank and step",
    )
