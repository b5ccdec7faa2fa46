"""Roofline: what the operations of each stage compute per second against what their bytes and the GPU's peaks allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from traceviz_dag.analyze.wording import counted, duration, numbered, share
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import lost_ranks, place
from traceviz_dag.show.page.page import MARGIN, WIDTH, Caption, LegendEntry, LegendGroup, Page, open_page
from traceviz_dag.show.page.typography import SMALL, TINY, typography, width
from traceviz_dag.show.source import TableSource
from traceviz_dag.vocabulary import MATRIX, Category, OperationClass, Phase

MOST_PANELS = 8
"""Stages of a page; of more, those with the most headroom."""

MOST_NAMED = 3
"""Operations that each panel names: those with the most headroom."""

LEAST_SHARE = 0.001
"""Of a stage's kernel time: operations that take less are no points, or launches would stretch the axes by decades."""

MOST_DECADES = 5
"""Below the highest peak: slower operations, of a few elements each, lie outside the axes."""

_KEY = ("shapes", "forward_shapes", "types", "phase", "operation_class")
"""Beside its name what tells an operation; its main kernel may differ from rank to rank."""

_COLUMNS = (
    *("rank", "stage", "operation", "kernel", *_KEY, "number_format", "count", "kernel_ns", "flops", "bytes"),
    *("roofline_ns", "headroom_ns", "gpu", "peak_flops_per_s", "memory_bytes_per_s"),
)
_PHASES = {
    Phase.FORWARD.value: ("forward", palette.CATEGORY[Category.FWD_COMPUTATION]),
    Phase.BACKWARD.value: ("backward", palette.CATEGORY[Category.BWD_COMPUTATION]),
    Phase.RECOMPUTE.value: ("recompute", palette.CATEGORY[Category.BWD_COMPUTATION_RECOMPUTE]),
    Phase.OPTIMIZER.value: ("optimizer", palette.CATEGORY[Category.OPTIMIZER_COMPUTATION]),
    None: ("other phases", palette.CATEGORY[Category.OTHER_COMPUTATION]),
}
_MARKERS = {"products": "o", "attention": "D", "memory-bound": "s"}
_SIGNS = {"products": "●", "attention": "◆", "memory-bound": "■"}
_PANEL, _GAP, _AXIS, _LINE, _HEADING, _LEFT = 2.7, 0.45, 0.46, 0.17, 0.24, 0.5
_LARGEST, _SMALLEST, _DECADE = 260.0, 14.0, 10.0
_BESIDE = ((8, -8), (8, 3), (-13, -3))
"""Where the number of a named operation lies from its point, in points; those of neighbours do not cover each other."""
_UNDRAWN = f"without FLOPs, unknown, or below {100 * LEAST_SHARE:g} % each"


class _Point(NamedTuple):
    """An operation of a stage over its ranks.

    Attributes:
        intensity: FLOPs per byte. rate: FLOP/s.
        headroom: mean per rank, ns.
    """

    name: str
    group: str
    phase: str | None
    kernel_ns: int
    intensity: float
    rate: float
    efficiency: float
    headroom: float


class _Panel(NamedTuple):
    """A stage, or its ranks with one kind of GPU: operations with FLOPs and bytes, the most headroom first, and roofs.

    Attributes:
        gpu: None where all ranks of the figure have the same.
        undrawn_ns: kernel time of operations that compute nothing, are not known, or take too little.
        peaks: number format → FLOP/s. bandwidth: bytes/s.
    """

    stage: int | None
    gpu: str | None
    ranks: int
    points: list[_Point]
    kernel_ns: int
    undrawn_ns: int
    peaks: dict[str, int]
    bandwidth: int

    @property
    def headroom(self) -> float:
        """Mean per rank, ns."""
        return sum(point.headroom for point in self.points)


def draw_roofline(source: TableSource) -> Figure | None:
    """Draw the operations of each stage, all its ranks with the same GPU together.

    Returns:
        The figure; None where no operation has FLOPs, bytes and a roofline.
    """
    table = source.table("operations", _COLUMNS)
    table = table.filter(pc.not_equal(table["operation_class"].cast(pa.string()), OperationClass.COMMUNICATION.value))
    panels = [panel for panel in _panels(table.to_pylist()) if panel.points]
    if not panels:
        return None
    worst = sorted(panels, key=lambda panel: -panel.headroom)[:MOST_PANELS]
    shown = [panel for panel in panels if panel in worst]
    across = min(len(shown), 2 if len(shown) <= 4 else 3)
    lines = -(-len(shown) // across)
    below = _AXIS + MOST_NAMED * _LINE
    height = lines * (_HEADING + _PANEL + below) + (lines - 1) * 0.1
    limits = _limits(shown)
    with typography():
        page = open_page(_caption(source, panels, shown, limits[1][0]), height, 0.1)
        whole = (WIDTH - 2 * MARGIN + _GAP) / across
        for number, panel in enumerate(shown):
            left = whole * (number % across)
            top = (number // across) * (_HEADING + _PANEL + below + 0.1)
            _draw(page, panel, left, top, whole - _GAP, limits, named=len(panels) > 1 or panel.stage is not None)
    return page.figure


def _panels(rows: Sequence[dict[str, Any]]) -> Iterator[_Panel]:
    """By stage and GPU: ranks of different GPUs have different roofs."""
    gpu_of = {row["rank"]: row["gpu"] for row in rows if row["gpu"] is not None}
    several = len(set(gpu_of.values())) > 1
    parts: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        stage = -1 if row["stage"] is None else row["stage"]
        parts.setdefault((stage, gpu_of.get(row["rank"], "")), []).append(row)
    for (_, gpu), mine in sorted(parts.items(), key=lambda part: part[0]):
        yield _panel(mine, gpu if several else None)


def _panel(rows: Sequence[dict[str, Any]], gpu: str | None) -> _Panel:
    ranks = len({row["rank"] for row in rows})
    of_operation: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["flops"] and row["bytes"] and row["roofline_ns"] is not None and row["kernel_ns"]:
            key = (row["operation"] or row["kernel"], *(row[name] for name in _KEY))
            of_operation.setdefault(key, []).append(row)
    total = sum(row["kernel_ns"] for row in rows)
    large = [each for each in of_operation.values() if sum(row["kernel_ns"] for row in each) >= LEAST_SHARE * total]
    points = [_point(each, ranks) for each in large]
    drawn = [row for each in large for row in each]
    return _Panel(
        *(rows[0]["stage"], gpu, ranks, sorted(points, key=lambda point: (-point.headroom, point.name)), total),
        total - sum(row["kernel_ns"] for row in drawn),
        {row["number_format"]: row["peak_flops_per_s"] for row in drawn if row["peak_flops_per_s"] is not None},
        max((row["memory_bytes_per_s"] for row in drawn), default=0),
    )


def _point(rows: Sequence[Mapping[str, Any]], ranks: int) -> _Point:
    first = rows[0]
    flops = sum(row["flops"] * row["count"] for row in rows)
    time = sum(row["kernel_ns"] for row in rows)
    phase = first["phase"] if first["phase"] in _PHASES else None
    return _Point(
        *(first["operation"] or first["kernel"], _group(first["operation_class"]), phase, time),
        flops / sum(row["bytes"] * row["count"] for row in rows),
        flops / time * 1e9,
        sum(row["roofline_ns"] for row in rows) / time,
        sum(row["headroom_ns"] for row in rows) / ranks,
    )


def _group(operation_class: str) -> str:
    if operation_class == OperationClass.ATTENTION:
        return "attention"
    return "products" if operation_class in MATRIX else "memory-bound"


def _limits(panels: Sequence[_Panel]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The same axes for all panels, so that stages compare: intensity, and FLOP/s."""
    ridges = [peak / panel.bandwidth for panel in panels for peak in panel.peaks.values()]
    peaks: list[float] = [peak for panel in panels for peak in panel.peaks.values()]
    every = [point for panel in panels for point in panel.points]
    floor = max(peaks or [point.rate for point in every]) / 10**MOST_DECADES
    points = [point for point in every if point.rate >= floor]
    x = [point.intensity for point in points]
    y = [point.rate for point in points]
    # A decade below the ridge at least, so that the slope shows.
    left, low = min([*x, *(ridge / _DECADE for ridge in ridges)]), min([*y, *(peak / _DECADE for peak in peaks)])
    return (left / 2, max([*x, *ridges]) * 4), (low / 2, max([*y, *peaks]) * 2.2)


def _draw(
    page: Page,
    panel: _Panel,
    left: float,
    top: float,
    across: float,
    limits: tuple[tuple[float, float], tuple[float, float]],
    named: bool,
) -> None:
    right = WIDTH - 2 * MARGIN - left - across
    axes = page.axes(top + _HEADING, _PANEL, left + _LEFT, right)
    axes.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
    axes.set_xlabel("FLOP per byte", labelpad=2)
    for axis, formatter in ((axes.xaxis, _plain), (axes.yaxis, _tera)):
        axis.set_major_locator(LogLocator(10.0, numticks=8))
        axis.set_major_formatter(FuncFormatter(formatter))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(which="minor", length=0)
    axes.grid(visible=True, color=palette.RULE, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)
    _draw_roofs(axes, panel, limits[0])
    _draw_points(axes, panel)
    heading = f"stage {panel.stage}" if panel.stage is not None else "all ranks" if not named else "stage unknown"
    heading += "" if panel.gpu is None else f" · {panel.gpu or 'GPU unknown'}"
    x, y = MARGIN + left, page.top + top + 0.08
    page.text(x, y, heading, SMALL, palette.INK, bold=True)
    of = f"{counted(panel.ranks, 'rank', 'ranks')} · {duration(panel.kernel_ns / panel.ranks)} of kernels per rank"
    page.text(x + width(heading, SMALL, bold=True) + 0.12, y, f"{of} · TFLOP/s", SMALL, palette.QUIET_INK)
    below = page.top + top + _HEADING + _PANEL + _AXIS
    for number, point in enumerate(_named(panel)):
        room = across - 0.1
        reached = f"{share(point.efficiency)} of the roof, headroom {duration(point.headroom)}"
        words = f"{number + 1}  {_with_phase(point, ' ')}: {reached}"
        size = SMALL * min(room / width(words, SMALL), 1.0)
        page.text(x + 0.1, below + number * _LINE, words, max(size, TINY), palette.INK)


def _with_phase(point: _Point, between: str) -> str:
    """The operation and its phase, unless its name has that."""
    phase = _PHASES[point.phase][0]
    return point.name if point.phase is None or phase in point.name.lower() else f"{point.name}{between}{phase}"


def _named(panel: _Panel) -> list[_Point]:
    return [point for point in panel.points[:MOST_NAMED] if point.headroom > 0]


def _draw_roofs(axes: Axes, panel: _Panel, limits: tuple[float, float]) -> None:
    """The slope of the memory's bandwidth up to the highest peak, and each peak from where it is the lower one."""
    highest = max(panel.peaks.values(), default=0)
    end = highest / panel.bandwidth if highest else limits[1]
    axes.plot([limits[0], end], [limits[0] * panel.bandwidth, end * panel.bandwidth], color=palette.INK, lw=1.2)
    for name, peak in sorted(panel.peaks.items(), key=lambda item: item[1]):
        axes.plot([peak / panel.bandwidth, limits[1]], [peak, peak], color=palette.INK, lw=1.2, gid=f"peak/{name}")
        words = f"{name} {peak / 1e12:,.0f}"
        axes.text(limits[1], peak * 1.06, words, size=TINY, color=palette.QUIET_INK, ha="right", va="bottom")


def _draw_points(axes: Axes, panel: _Panel) -> None:
    """One collection for each class and phase; the largest points first, so that no smaller one is covered."""
    longest = max(point.kernel_ns for point in panel.points)
    for group, marker in _MARKERS.items():
        # Backward passes are the larger points.
        for layer, (phase, (name, colour)) in enumerate(reversed(_PHASES.items())):
            points = [point for point in panel.points if (point.group, point.phase) == (group, phase)]
            if points:
                points.sort(key=lambda point: -point.kernel_ns)
                sizes = [max(_LARGEST * point.kernel_ns / longest, _SMALLEST) for point in points]
                at = [point.intensity for point in points], [point.rate for point in points]
                dots = axes.scatter(
                    *at, s=sizes, c=colour, marker=marker, alpha=0.85, edgecolors=palette.PAPER, linewidths=0.6,
                    zorder=3 + layer / 10,
                )  # fmt: skip
                dots.set_gid(f"{group}/{name}")
    for number, point in enumerate(_named(panel)):
        axes.annotate(
            str(number + 1), (point.intensity, point.rate), _BESIDE[number], textcoords="offset points", size=TINY,
            color=palette.INK, weight="bold", zorder=4,
        )  # fmt: skip


def _plain(value: float, _: int | None) -> str:
    return f"{value:,.6g}"


def _tera(value: float, _: int | None) -> str:
    return f"{value / 1e12:,.6g}"


def _caption(source: TableSource, panels: Sequence[_Panel], shown: Sequence[_Panel], low: float) -> Caption:
    points = [point for panel in shown for point in panel.points]
    phases = {point.phase for point in points}
    groups = {point.group for point in points}
    left_out = sorted({panel.stage for panel in panels if panel not in shown and panel.stage is not None})
    outside = sum(point.rate < low for point in points)
    undrawn, total = (sum(getattr(panel, name) for panel in panels) for name in ("undrawn_ns", "kernel_ns"))
    bandwidths = sorted({panel.bandwidth for panel in shown})
    return Caption(
        title=_finding(panels),
        facts=[
            place(source),
            "slope: " + ", ".join(f"{value / 1e12:,.2f} TB/s" for value in bandwidths),
            *([f"not drawn: {share(undrawn, total)} of the kernel time, {_UNDRAWN}"] if undrawn else []),
            *([f"outside the axes: {counted(outside, 'operation', 'operations')} of few elements"] if outside else []),
            *([f"{numbered('stage', left_out)} with less headroom left out"] if left_out else []),
        ],
        warnings=lost_ranks(source),
        legend=[
            LegendGroup("", [LegendEntry(*entry) for phase, entry in _PHASES.items() if phase in phases]),
        ],
        footer="table operations",
        note=" · ".join(_notes(groups)),
    )


def _notes(groups: set[str]) -> Iterator[str]:
    yield from (f"{sign} {group}" for group, sign in _SIGNS.items() if group in groups)
    yield "area: kernel time"
    yield "headroom: mean per rank; above the slope, data came from caches"


def _finding(panels: Sequence[_Panel]) -> str:
    """The operation with the most headroom of all stages."""
    panel = max(panels, key=lambda each: each.points[0].headroom)
    point = panel.points[0]
    stage = "" if panel.stage is None or len(panels) == 1 else f" on stage {panel.stage}"
    stage += "" if panel.gpu is None else f" ({panel.gpu})"
    if not point.headroom:
        return "All operations with FLOPs run at the roof"
    return (
        f"{_with_phase(point, ', ')}{stage}: {share(point.efficiency)} of the roof; perfect kernels save at most "
        f"{duration(point.headroom)} per rank"
    )
