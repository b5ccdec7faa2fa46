"""Advised pipelines: forward and backward steps of a pipeline as they are, and with the best changes below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.causes.gains import named_change
from traceviz_dag.analyze.wording import capitalised, duration, share
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import Band, draw_boxes, draw_edges, prepare_bars
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import (
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    TimeScale,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, SMALL, typography
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category

_COLUMNS = (
    *("step", "place", "microbatches", "schedule", "chunks", "layers", "no_recompute"),
    *("step_ns", "predicted_step_ns", "low_ns", "high_ns", "wins"),
)
_ITEMS = ("step", "place", "stage", "chunk", "phase", "start_ns", "duration_ns")
_ROW, _TITLE, _BETWEEN = 0.17, 0.24, 0.12
_LOWEST_ROW, _MOST_HEIGHT = 0.05, 6.0
_COLOURS = {"forward": Category.FWD_COMPUTATION, "backward": Category.BWD_COMPUTATION}


def draw_advised_pipelines(source: TableSource) -> Figure | None:
    """Draw the pipeline of the first step that has advice, now and with the best changes.

    Returns:
        The figure; None where no change is predicted to win.
    """
    advice = [row for row in source.table("advice", _COLUMNS).to_pylist() if row["wins"]]
    items = source.table("advice_items", _ITEMS)
    if not advice or not items.num_rows:
        return None
    step = advice[0]["step"]
    of_step = pc.is_null(items["step"]) if step is None else pc.fill_null(pc.equal(items["step"], step), False)
    items = items.filter(of_step)
    places = sorted(pc.unique(items["place"]).to_pylist())
    rows = {row["place"]: row for row in advice if row["step"] == step}
    stages = pc.max(items["stage"]).as_py() + 1
    end = pc.max(pc.add(items["start_ns"], items["duration_ns"])).as_py()
    scale = TimeScale.of(end)
    row = min(max((_MOST_HEIGHT / len(places) - _TITLE) / stages, _LOWEST_ROW), _ROW)
    panel = _TITLE + row * stages + _BETWEEN
    with typography():
        page = open_page(_caption(source, rows, places), panel * len(places))
        axes = page.axes(0.0, panel * len(places))
        prepare_bars(
            axes, (0.0, end / scale.per_unit), panel * len(places), f"from the begin of the step, {scale.unit}"
        )
        for number, one in enumerate(places):
            mine = items.filter(pc.equal(items["place"], one))
            _draw(page, axes, mine, _title(rows.get(one), rows), (number * panel, row), scale, one)
    return page.figure


def _draw(
    page: Page, axes: Axes, items: pa.Table, title: str, at: tuple[float, float], scale: TimeScale, number: int
) -> None:
    top, height = at
    axes.text(0, top + 0.5 * _TITLE, title, size=LABEL, color=palette.INK, va="center_baseline", zorder=4)
    phases = np.array(items["phase"].cast(pa.string()).to_pylist())
    stage, chunk = items["stage"].to_numpy(), items["chunk"].to_numpy()
    start, taken = items["start_ns"].to_numpy(), items["duration_ns"].to_numpy()
    for one in np.unique(stage).tolist():
        band = Band(top + _TITLE + one * height, top + _TITLE + (one + 1) * height).part(0.06, 0.94)
        if height >= 0.1:
            page.row_label(band.middle, f"stage {one}", size=SMALL)
        for phase, category in _COLOURS.items():
            for later in (False, True):
                mine = (stage == one) & (phases == phase) & (chunk % 2 == later)
                if not mine.any():
                    continue
                time = Stretches(start[mine] / scale.per_unit, (start + taken)[mine] / scale.per_unit)
                colour = palette.LATER_CHUNK[category] if later else palette.CATEGORY[category]
                draw_boxes(axes, time, band, colour, f"{number}/{one}/{phase}/{int(later)}")
                draw_edges(axes, time, band)


def _title(row: Mapping[str, Any] | None, rows: Mapping[int, Mapping[str, Any]]) -> str:
    if row is None:
        return f"now · {duration(next(iter(rows.values()))['step_ns'])}"
    bar = f"{duration(row['low_ns'])} to {duration(row['high_ns'])}"
    return f"{named_change(row)} · {duration(row['predicted_step_ns'])} ({bar})"


def _caption(source: TableSource, rows: Mapping[int, Mapping[str, Any]], places: Sequence[int]) -> Caption:
    best = rows[min(rows)]
    gain = share(best["step_ns"] - best["predicted_step_ns"], best["step_ns"])
    names = {"forward step": Category.FWD_COMPUTATION, "backward step": Category.BWD_COMPUTATION}
    entries = [LegendEntry(name, palette.CATEGORY[category]) for name, category in names.items()]
    entries += [LegendEntry(f"{name}, odd chunk", palette.LATER_CHUNK[category]) for name, category in names.items()]
    return Caption(
        title=f"{capitalised(named_change(best))}: predicted to make the step {gain} shorter",
        facts=[
            place(source),
            "the pipeline that ends last, replayed with mean steps; the step ends after the optimizer",
        ],
        warnings=[*lost_ranks(source)],
        legend=[LegendGroup("", entries)],
        footer="tables advice, advice_items",
        note=f"now, and the best {len(places) - 1} other pipelines of the same global batch; error bars in parentheses",
    )
