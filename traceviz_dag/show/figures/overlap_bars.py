"""Overlap bars: what fills the wall clock of each micro-batch's forward and backward step, and of the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.activity import NO_CHUNK, is_partial, trace_status
from traceviz_dag.show.page.blocks import Band, draw_bars, draw_boxes
from traceviz_dag.show.page.facts import RankMeasures, place, rank_measures
from traceviz_dag.show.page.page import (
    DATA_WIDTH,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    TimeScale,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, SMALL, TINY, typography, width
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Phase

_PARTS = (
    ("computation alone", palette.COMPUTATION_ONLY),
    ("hidden communication", palette.HIDDEN),
    ("exposed communication", palette.EXPOSED),
    ("memory operations", palette.MEMORY_ONLY),
    ("idle", palette.IDLE),
)
_COLUMNS = (
    "step",
    "phase",
    "dimension",
    "chunk",
    "microbatch",
    "span_start_ns",
    "span_end_ns",
    "compute_ns",
    "communication_ns",
    "hidden_ns",
    "busy_ns",
)
_WHOLE_HEIGHT, _BETWEEN = 0.34, 0.62
_HIGHEST_PANEL, _LOWEST_PANEL = 1.9, 0.75
_MOST_BARS = 240
"""Bars that a panel can show; beyond, neighbouring micro-batches share a bar with their mean."""

_BAR = 0.74


@dataclass(frozen=True, slots=True)
class PhaseBars:
    """One panel: a bar a micro-batch, by chunk and micro-batch.

    Attributes:
        parts: (5, bars) mean ns of each of: computation alone, hidden, exposed, memory alone, idle; a column adds up
            to the wall clock of its step.
        labels: what is under each bar.
        chunk: model chunk of each bar.
        together: micro-batches that share a bar.
    """

    phase: str
    parts: Float64
    labels: Sequence[str]
    chunk: Int64
    together: int
    communication_ns: int
    hidden_ns: int

    @property
    def highest_ns(self) -> float:
        """Wall clock of the highest bar, ns."""
        return float(self.parts.sum(axis=0).max())


def draw_overlap_bars(source: TableSource, rank: int) -> Figure | None:
    """Draw one rank's bars; without micro-batches there is only the bar of the whole step, and the figure says so.

    Returns:
        The figure; None for a rank without a row in the table ``overlap``.
    """
    measures = rank_measures(source, rank)
    if measures is None:
        return None
    panels = phase_bars(source, rank, measures.step if measures.steps > 1 else None)
    highest = max((panel.highest_ns for panel in panels), default=1.0)
    # All panels have one scale: as many inches for a millisecond.
    heights = [max(_HIGHEST_PANEL * panel.highest_ns / highest, _LOWEST_PANEL) for panel in panels]
    with typography():
        room = _WHOLE_HEIGHT + _BETWEEN * (len(panels) + 0.45) + sum(heights)
        page = open_page(_caption(source, rank, measures, panels), room, axis_height=0.3)
        _draw_whole(page, measures)
        top = _WHOLE_HEIGHT + _BETWEEN
        for panel, height in zip(panels, heights, strict=True):
            _draw_panel(page, panel, (top, height), TimeScale.of(int(highest)), highest * height / _HIGHEST_PANEL)
            top += height + _BETWEEN
    return page.figure


def phase_bars(source: TableSource, rank: int, step: int | None = None) -> list[PhaseBars]:
    """The rank's forward and backward panels, of one training step where it is given; none without micro-batches."""
    table = source.table("microbatches", _COLUMNS, rank)
    if step is not None:
        table = table.filter(pc.equal(table["step"], step))
    table = table.filter(pc.equal(table["dimension"], ALL_DIMENSIONS))
    table = table.sort_by([("chunk", "ascending"), ("microbatch", "ascending"), ("span_start_ns", "ascending")])
    panels = []
    for phase in (Phase.FORWARD.value, Phase.BACKWARD.value):
        steps = table.filter(pc.equal(table["phase"], phase))
        if steps.num_rows:
            panels.append(_bars(phase, steps))
    return panels


def _bars(phase: str, steps: pa.Table) -> PhaseBars:
    def ns(name: str) -> Int64:
        return np.asarray(steps[name].cast(pa.int64()).fill_null(NO_CHUNK).to_numpy(), dtype=np.int64)

    parts = _parted(ns("compute_ns"), ns("communication_ns"), ns("hidden_ns"), ns("busy_ns"), _wall_clock(steps))
    chunk, microbatch = ns("chunk"), ns("microbatch")
    together = -(-steps.num_rows // _MOST_BARS)
    firsts = np.arange(0, steps.num_rows, together)
    counts = np.diff(np.append(firsts, steps.num_rows))
    return PhaseBars(
        phase=phase,
        parts=np.add.reduceat(parts, firsts, axis=1) / counts,
        labels=[str(number) for number in microbatch[firsts].tolist()],
        chunk=chunk[firsts],
        together=together,
        communication_ns=int(ns("communication_ns").sum()),
        hidden_ns=int(ns("hidden_ns").sum()),
    )


def _wall_clock(steps: pa.Table) -> Int64:
    return np.asarray(pc.subtract(steps["span_end_ns"], steps["span_start_ns"]).to_numpy(), dtype=np.int64)


def _parted(compute: Int64, communication: Int64, hidden: Int64, busy: Int64, window: Int64) -> Float64:
    exposed = communication - hidden
    return np.stack((compute - hidden, hidden, exposed, busy - compute - exposed, window - busy)).astype(np.float64)


def _draw_whole(page: Page, measures: RankMeasures) -> None:
    """The bar of the whole step, its parts named where their words fit."""
    axes = page.axes(0.0, _WHOLE_HEIGHT)
    scale = TimeScale.of(measures.window_ns)
    span = measures.window_ns / scale.per_unit
    axes.set(xlim=(0, span), ylim=(_WHOLE_HEIGHT, 0), yticks=[])
    axes.set_xlabel(f"{scale.unit} of {measures.the_window}", labelpad=1)
    values = [
        np.array([value])
        for value in (
            measures.compute_ns,
            measures.communication_ns,
            measures.hidden_ns,
            measures.busy_ns,
            measures.window_ns,
        )
    ]
    parts = _parted(*values)[:, 0] / scale.per_unit
    start = 0.0
    for (label, colour), part in zip(_PARTS, parts.tolist(), strict=True):
        if part > 0:
            time = Stretches(np.array([start]), np.array([start + part]))
            draw_boxes(axes, time, Band(0.0, _WHOLE_HEIGHT), colour, f"whole/{label.replace(' ', '-')}")
            words = f"{duration(part * scale.per_unit)}, {share(round(part * 1e6), round(span * 1e6))}"
            if width(words, SMALL) + 0.1 < part / span * DATA_WIDTH:
                axes.text(
                    start + part / 2,
                    _WHOLE_HEIGHT / 2,
                    words,
                    size=SMALL,
                    color=palette.text_on(colour),
                    ha="center",
                    va="center_baseline",
                )
        start += part
    page.row_label(_WHOLE_HEIGHT / 2, f"whole {measures.window_label}", duration(measures.window_ns))


def _draw_panel(page: Page, panel: PhaseBars, at: tuple[float, float], scale: TimeScale, top_ns: float) -> None:
    top, height = at
    axes = page.axes(top, height)
    bars = panel.parts.shape[1]
    axes.set(xlim=(-0.5, bars - 0.5), ylim=(0, 1.06 * top_ns / scale.per_unit))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=max(2, int(height / 0.35))))
    axes.grid(visible=True, axis="y", color=palette.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_ylabel(f"time, {scale.unit}", labelpad=6)
    middles = np.arange(bars, dtype=np.float64)
    time = Stretches(middles - _BAR / 2, middles + _BAR / 2)
    floor = np.zeros(bars)
    for (label, colour), part in zip(_PARTS, panel.parts, strict=True):
        ceiling = floor + part / scale.per_unit
        if part.any():
            draw_bars(axes, time, ceiling, floor, colour, f"{panel.phase}/{label.replace(' ', '-')}")
        floor = ceiling
    axes.hlines(floor, time.starts, time.ends, colors=palette.INK, linewidths=0.9, zorder=3)
    _label_bars(axes, panel, height)
    mean = panel.parts.sum(axis=0).mean()
    hidden = (
        f"{share(panel.hidden_ns, panel.communication_ns)} hidden" if panel.communication_ns else "no communication"
    )
    middle = page.top + top + height / 2
    page.text(page.right, middle - 0.17, panel.phase, LABEL, bold=True)
    page.text(page.right, middle, f"mean {duration(mean)}", SMALL)
    page.text(page.right, middle + 0.16, hidden, SMALL, palette.QUIET_INK)


def _label_bars(axes: Axes, panel: PhaseBars, height: float) -> None:
    """Micro-batch numbers under the bars as far as they fit, and a line with a name under each chunk."""
    bars = len(panel.labels)
    longest = {size: max(width(label, size) for label in panel.labels) + 0.06 for size in (SMALL, TINY)}
    size = SMALL if longest[SMALL] * bars < DATA_WIDTH else TINY
    every = max(1, int(np.ceil(longest[size] * bars / DATA_WIDTH)))
    shown = range(0, bars, every)
    axes.set_xticks(list(shown), [panel.labels[place_] for place_ in shown], size=size)
    axes.tick_params(axis="x", length=0, pad=2)
    word = "micro-batch" if panel.together == 1 else f"first of {panel.together} micro-batches; bars are their means"
    chunks = np.unique(panel.chunk)
    if len(chunks) < 2:
        axes.set_xlabel(f"{panel.phase} step of {word}", labelpad=2)
        return
    below = axes.get_xaxis_transform()
    line, words_at = (-inches / height for inches in (0.19, 0.3))
    for chunk in chunks.tolist():
        first, last = np.flatnonzero(panel.chunk == chunk)[[0, -1]]
        axes.plot(
            [first - _BAR / 2, last + _BAR / 2], [line] * 2, color=palette.RULE, transform=below, clip_on=False, lw=1
        )
        words = f"chunk {chunk}, {panel.phase} step of {word}"
        room = (last - first + 1) / bars * DATA_WIDTH
        axes.text(
            (first + last) / 2,
            words_at,
            words if width(words, SMALL) < room else f"chunk {chunk}" if width("chunk 0", SMALL) < room else str(chunk),
            size=SMALL,
            color=palette.QUIET_INK,
            ha="center",
            va="center_baseline",
            transform=below,
        )


def _caption(source: TableSource, rank: int, measures: RankMeasures, panels: Sequence[PhaseBars]) -> Caption:
    partial = is_partial(trace_status(source, rank))
    warnings = [f"a part of rank {rank}'s trace could not be read"] if partial else []
    if not panels:
        warnings.append("no micro-batch is known in this trace: only the whole is shown")
    return Caption(
        title=f"Rank {rank}: {_finding(measures, panels)}" + (" (PARTIAL trace)" if partial else ""),
        facts=[
            place(source),
            *measures.notes,
            f"in the whole of {measures.the_window} {duration(measures.hidden_ns)} of "
            f"{duration(measures.communication_ns)} communication is hidden"
            if measures.communication_ns
            else f"no communication in {measures.the_window}",
        ],
        warnings=warnings,
        legend=[LegendGroup("", [LegendEntry(label, colour) for label, colour in _PARTS])],
        footer="tables microbatches, overlap",
        note="line on a bar: wall clock of the step; backward includes recompute" if panels else "",
    )


def _finding(measures: RankMeasures, panels: Sequence[PhaseBars]) -> str:
    said = [panel for panel in panels if panel.communication_ns]
    if not measures.communication_ns and not said:
        return f"no communication in {measures.the_window}, idle {share(measures.idle_ns, measures.window_ns)} of it"
    if not said:
        return (
            f"{share(measures.hidden_ns, measures.communication_ns)} of communication is hidden, "
            f"{share(measures.exposed_ns, measures.window_ns)} of {measures.the_window} waits for it"
        )
    hides = [f"{panel.phase} hides {share(panel.hidden_ns, panel.communication_ns)}" for panel in said]
    return f"{' and '.join(hides)} of its own communication"
