"""Module tree: each module of the model, its time by phase, its headroom and exposed communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.wording import counted, duration, share
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
from traceviz_dag.show.page.typography import LABEL, SMALL, typography, width
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import Category

MOST_ROWS = 26
"""Rows of a page; of more modules, those with the most time."""

_SUMMED = (
    *("kernel_ns", "forward_ns", "backward_ns", "recompute_ns", "unknown_ns"),
    *("roofline_ns", "headroom_ns", "exposed_ns"),
)
_COLUMNS = ("rank", "module_class", "depth", "name", "part", "layer", "step_share", "ratio", *_SUMMED)
_PHASES = (
    ("forward", palette.CATEGORY[Category.FWD_COMPUTATION]),
    ("backward", palette.CATEGORY[Category.BWD_COMPUTATION]),
    ("recompute", palette.CATEGORY[Category.BWD_COMPUTATION_RECOMPUTE]),
    ("other phases", palette.CATEGORY[Category.OTHER_COMPUTATION]),
)
_ROW, _LABELS, _NUMBERS, _INDENT = 0.3, 2.75, 3.35, 0.12
_ENDS = tuple(WIDTH - MARGIN - left for left in (2.65, 2.05, 1.3, 0.65, 0.0))
_HEADINGS = ("time", "of step", "efficiency", "headroom", "exposed")
_SLOW_LAYER = 1.1


class _Module(NamedTuple):
    """A module over all ranks, layers of one class together; times are means per rank, ns.

    Attributes:
        phases: forward, backward, recompute and the rest.
        efficiency: of what has a roofline; None where nothing has.
        headroom, exposed: None where unknown.
    """

    path: str
    depth: int
    name: str
    part: str | None
    time: float
    phases: tuple[float, float, float, float]
    step_share: float | None
    efficiency: float | None
    headroom: float | None
    exposed: float | None


def draw_module_tree(source: TableSource) -> Figure | None:
    """Draw the modules of an iteration, each below the one that holds it, the longest first.

    Returns:
        The figure; None where no kernel shows its modules.
    """
    table = source.table("modules", _COLUMNS)
    ranks = source.table("overlap", ("rank",))["rank"].unique()
    modules = _modules(table, max(len(ranks), 1))
    if not modules:
        return None
    rows = _ordered(modules)
    longest = max(row.time + (row.exposed or 0.0) for row in rows)
    scale = TimeScale.of(round(longest))
    with typography():
        page = open_page(_caption(source, table, modules, rows, max(len(ranks), 1)), _ROW * len(rows), 0.5)
        axes = page.axes(0.0, _ROW * len(rows), _LABELS, _NUMBERS)
        prepare_bars(axes, (0.0, longest / scale.per_unit), _ROW * len(rows), f"mean per rank, {scale.unit}")
        for x, word in zip(_ENDS, _HEADINGS, strict=True):
            page.text(x, page.top - 0.08, word, SMALL, palette.QUIET_INK, "right")
        for number, row in enumerate(rows):
            band = Band(number * _ROW, (number + 1) * _ROW)
            _draw(axes, row, band, scale)
            left = MARGIN + _INDENT * (row.depth - rows[0].depth)
            room = MARGIN + _LABELS - 0.12 - left
            size = LABEL * min(room / width(row.name, LABEL), 1.0)
            page.text(left, page.top + band.middle, row.name, size, bold=row.part is not None)
            for x, words in zip(_ENDS, _measures(row), strict=True):
                page.text(x, page.top + band.middle, words, SMALL, palette.INK, "right")
    return page.figure


def _modules(table: pa.Table, ranks: int) -> list[_Module]:
    """The modules that take time, as means over all ranks, which need not all have each."""
    key = ["module_class", "depth", "name", "part"]
    measures = (*_SUMMED, "step_share")
    found = table.group_by(key, use_threads=False).aggregate([(name, "sum") for name in measures])
    modules = []
    for row in found.to_pylist():
        total = {name: row[f"{name}_sum"] for name in measures}
        if not total["kernel_ns"]:
            continue
        first = [total[f"{phase}_ns"] for phase in ("forward", "backward", "recompute")]
        known = total["kernel_ns"] - total["unknown_ns"]
        forward, backward, recompute, rest = (value / ranks for value in (*first, total["kernel_ns"] - sum(first)))
        modules.append(
            _Module(
                *(row["module_class"], row["depth"], row["name"], row["part"], total["kernel_ns"] / ranks),
                (forward, backward, recompute, rest),
                None if total["step_share"] is None else total["step_share"] / ranks,
                total["roofline_ns"] / known if known and total["roofline_ns"] is not None else None,
                None if total["headroom_ns"] is None else total["headroom_ns"] / ranks,
                None if total["exposed_ns"] is None else total["exposed_ns"] / ranks,
            )
        )
    return modules


def _ordered(modules: Sequence[_Module]) -> list[_Module]:
    """The tree from the outermost module that holds more than one, the longest child first; so many as a page has."""
    children: dict[str, list[_Module]] = {}
    for module in sorted(modules, key=lambda module: (-module.time, module.path)):
        children.setdefault(module.path.rpartition("/")[0], []).append(module)
    top = children[""]
    while len(top) == 1 and len(inner := children.get(top[0].path, [])) == 1:
        top = inner
    tree = [row for module in top for row in _below(module, children)]
    kept = {module.path for module in sorted(tree, key=lambda module: (-module.time, module.depth))[:MOST_ROWS]}
    return [row for row in tree if row.path in kept]


def _below(module: _Module, children: Mapping[str, Sequence[_Module]]) -> Iterator[_Module]:
    yield module
    for child in children.get(module.path, ()):
        yield from _below(child, children)


def _draw(axes: Axes, row: _Module, band: Band, scale: TimeScale) -> None:
    """Kernel time by phase, exposed communication after it; below, the part of the kernel time that is headroom."""
    upper, lower = band.part(0.14, 0.64), band.part(0.7, 0.84)
    lengths = [*row.phases, row.exposed or 0.0]
    ends = np.cumsum(lengths) / scale.per_unit
    colours = [*_PHASES, ("exposed", palette.EXPOSED)]
    for (name, colour), end, length in zip(colours, ends, lengths, strict=True):
        if length > 0:
            time = Stretches(np.array([end - length / scale.per_unit]), np.array([end]))
            draw_boxes(axes, time, upper, colour, f"{name}/{row.path}")
    if row.headroom:
        end = row.time / scale.per_unit
        time = Stretches(np.array([end - row.headroom / scale.per_unit]), np.array([end]))
        draw_boxes(axes, time, lower, palette.INK, f"headroom/{row.path}")


def _measures(row: _Module) -> Iterator[str]:
    yield duration(row.time)
    for part in (row.step_share, row.efficiency):
        yield "–" if part is None else share(part)
    for time in (row.headroom, row.exposed):
        yield "–" if time is None else duration(time)


def _caption(
    source: TableSource, table: pa.Table, modules: Sequence[_Module], rows: Sequence[_Module], ranks: int
) -> Caption:
    unknown = any(row.headroom is None for row in rows[:1])
    drawn = {name for row in rows for (name, _), time in zip(_PHASES, row.phases, strict=True) if time > 0}
    left_out = len({row.path for row in modules} - {row.path for row in rows} - _around(modules, rows))
    exposed = [LegendEntry("exposed communication", palette.EXPOSED)] if any(row.exposed for row in rows) else []
    headroom = [LegendEntry("headroom", palette.INK)] if any(row.headroom for row in rows) else []
    return Caption(
        title=_finding(rows),
        facts=[
            place(source),
            f"mean of {counted(ranks, 'rank', 'ranks')}",
            "layers of one class are one row",
            *([f"{counted(left_out, 'shorter module is', 'shorter modules are')} left out"] if left_out else []),
            *_slow_layer(table),
        ],
        warnings=[
            *lost_ranks(source),
            *(["headroom is unknown: no operation has a roofline (record_shapes)"] if unknown else []),
        ],
        legend=[
            LegendGroup(
                "", [*(LegendEntry(name, colour) for name, colour in _PHASES if name in drawn), *exposed, *headroom]
            )
        ],
        footer="view modules",
        note="headroom: what perfect kernels would save at most, of the time above it",
    )


def _around(modules: Sequence[_Module], rows: Sequence[_Module]) -> set[str]:
    """The modules that hold the whole tree and are not drawn."""
    return {row.path for row in modules if all(each.path.startswith(f"{row.path}/") for each in rows)}


def _finding(rows: Sequence[_Module]) -> str:
    """Which part of the model takes most of the step, and which has the most headroom."""
    parts = [row for row in rows if row.part not in (None, "layer")] or list(rows)
    longest = max(parts, key=lambda row: row.time)
    of_step = "" if longest.step_share is None else f", {share(longest.step_share)} of the step"
    title = f"{longest.name} takes {duration(longest.time)} per rank{of_step}"
    known = [row for row in parts if row.headroom]
    if not known:
        return title
    worst = max(known, key=lambda row: row.headroom or 0.0)
    subject = "it" if worst is longest else worst.name
    return f"{title}; perfect kernels in {subject} save at most {duration(worst.headroom or 0.0)}"


def _slow_layer(table: pa.Table) -> Iterator[str]:
    columns = table.select(["rank", "layer", "ratio"]).to_pylist()
    layers = [row for row in columns if row["layer"] is not None and row["ratio"] is not None]
    slowest = max(layers, key=lambda row: row["ratio"], default=None)
    if slowest is not None and slowest["ratio"] >= _SLOW_LAYER:
        yield f"layer {slowest['layer']} of rank {slowest['rank']} takes {slowest['ratio']:.2f} times its equals"
