"""Wait map: how long each rank waited in each of its communications, and which rank the others waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement
from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.step_time import WINDOW_COLUMNS, step_time
from traceviz_dag.analyze.waits.blame import late_ranks
from traceviz_dag.analyze.waits.blamed import JUDGED_COLUMNS, LateRank, judged_waits, nobody_blamed, wait_basis
from traceviz_dag.analyze.waits.unknown_waits import uncertain_waits
from traceviz_dag.analyze.wording import capitalised, duration, share
from traceviz_dag.arrays import Float64, Int64
from traceviz_dag.show.figures.wait_panels import (
    CLASSES,
    GAP,
    WaitPanel,
    class_edges,
    class_names,
    panel_widths,
    wait_panels,
)
from traceviz_dag.show.figures.wait_rows import MapRow, map_rows
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.blocks import draw_bars
from traceviz_dag.show.page.facts import delay_finding, lead_in, lost_ranks, place
from traceviz_dag.show.page.page import (
    DATA_WIDTH,
    LABELS,
    MEASURES,
    Caption,
    LegendEntry,
    LegendGroup,
    Page,
    Stretches,
    open_page,
)
from traceviz_dag.show.page.typography import LABEL, POINTS_PER_INCH, SMALL, TINY, typography, width
from traceviz_dag.show.source import TableSource
from traceviz_dag.tables.rows import RankClockRow, columns_of, rows_of

_MAP_HEIGHT, _HIGHEST_ROW, _LOWEST_ROW = 5.0, 0.3, 0.075
_HEADING = 0.36


def draw_wait_map(source: TableSource) -> Figure | None:
    """Draw the iteration's waits, on solved clocks where these are known, else as durations show them.

    Returns:
        The figure; None where no wait can be known.
    """
    collectives = source.table("collectives", JUDGED_COLUMNS)
    waits = judged_waits(collectives)
    if not waits.num_rows:
        return None
    ranks = np.unique(optional_integers(collectives, "rank"))
    step_ns = step_time(source.table("overlap", WINDOW_COLUMNS))
    late = {row["rank"]: row for row in rows_of(late_ranks(collectives, step_ns), LateRank)}
    lead, costs = lead_in(source), _delay_costs(source)
    blamed = sorted((row for row in late.values() if row["blamed"]), key=lambda row: -row["own_ns"])
    rows = map_rows(waits, ranks, [*lead.ranks, *(row["rank"] for row in blamed)])
    panels = wait_panels(waits, rows)
    edges = class_edges(panels)
    height = min(max(_MAP_HEIGHT / len(rows), _LOWEST_ROW), _HIGHEST_ROW)
    with typography():
        page = open_page(
            _caption(source, collectives, waits, step_ns, late, costs, rows, panels, edges, lead),
            _HEADING + len(rows) * height,
            axis_height=0.36,
        )
        left = 0.0
        for panel, across in zip(panels, panel_widths([panel.total_ns for panel in panels]), strict=True):
            _draw_panel(page, panel, edges, (left, across), height)
            left += across + GAP
        _label_rows(page, waits, rows, late, costs, height, lead)
    return page.figure


def _draw_panel(page: Page, panel: WaitPanel, edges: Sequence[int], at: tuple[float, float], height: float) -> None:
    left, across = at
    rows, columns = panel.wait_ns.shape
    axes = page.axes(_HEADING, rows * height, LABELS + left, MEASURES + DATA_WIDTH - left - across)
    axes.set(xlim=(0, columns), ylim=(rows * height, 0), yticks=[])
    # The numbers of the communications, where the last one ends: what lies between is read off by eye.
    axes.set_xticks([0, columns], ["0", f"{panel.most:,}"], size=TINY)
    axes.tick_params(axis="x", length=2, pad=1)
    name = panel.dimension.upper() if len(panel.dimension) <= 3 else panel.dimension
    x = page.figure.get_figwidth() * axes.get_position().x0
    heading, size = _heading(name, across)
    page.text(x, page.top + 0.08, heading, size, bold=True)
    page.text(x, page.top + 0.25, duration(panel.total_ns), SMALL, palette.QUIET_INK)
    _draw_cells(axes, panel, edges, height)


def _heading(name: str, across: float) -> tuple[str, float]:
    """The dimension's name as it fits over its panel."""
    room = across + GAP - 0.04
    size = next((size for size in (LABEL, SMALL, TINY) if width(name, size, bold=True) <= room), TINY)
    while len(name) > 2 and width(name, size, bold=True) > room:
        name = name.rstrip("…")[:-1] + "…"
    return name, size


def _draw_cells(axes: Axes, panel: WaitPanel, edges: Sequence[int], height: float) -> None:
    classes = panel.classes(edges)
    edge = 0.08 * height if height > 0.12 else 0.0
    wide = 0.06 if panel.wait_ns.shape[1] <= 40 else 0.0
    for number in range(CLASSES):
        row, first, last = _runs(classes == number) if not wide else _cells(classes == number)
        if len(row):
            top = row * height
            name = f"{panel.dimension}/class-{number}"
            draw_bars(
                axes,
                Stretches(first + wide, last - wide),
                top + edge,
                top + height - edge,
                palette.WAITING[number],
                name,
            )


def _cells(mask: npt.NDArray[np.bool_]) -> tuple[Float64, Float64, Float64]:
    """Row, left and right edge of each cell that a mask names."""
    row, column = (place_.astype(np.float64) for place_ in np.nonzero(mask))
    return row, column, column + 1.0


def _runs(mask: npt.NDArray[np.bool_]) -> tuple[Float64, Float64, Float64]:
    """The same, neighbours in a row as one: without gaps between them they look the same, in a smaller file."""
    beside = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, first = np.nonzero(beside == 1)
    _, last = np.nonzero(beside == -1)
    return row.astype(np.float64), first.astype(np.float64), last.astype(np.float64)


def _delay_costs(source: TableSource) -> Counter[int]:
    """What the waits that each rank first caused cost all ranks, through chains; empty where nothing shows it."""
    table = source.table("delay_costs", ("rank", "cost_ns"))
    costs: Counter[int] = Counter()
    for rank, cost in zip(*(optional_integers(table, name).tolist() for name in ("rank", "cost_ns")), strict=True):
        costs[rank] += cost
    return costs


def _label_rows(
    page: Page,
    waits: pa.Table,
    rows: Sequence[MapRow],
    late: Mapping[int, LateRank],
    costs: Counter[int],
    height: float,
    lead: Lead,
) -> None:
    size = max(min(LABEL, 0.8 * height * POINTS_PER_INCH), 4.5)
    waited: Counter[int] = Counter()
    for rank, wait in zip(optional_integers(waits, "rank").tolist(), _waits(waits).tolist(), strict=True):
        waited[rank] += wait
    makes = "costs others" if costs else "makes wait"
    page.text(page.right, page.top + 0.25, f"waits · {makes}", SMALL, palette.QUIET_INK)
    for number, row in enumerate(rows):
        blamed = any(late[rank]["blamed"] or rank in lead.faults for rank in row.ranks)
        y = _HEADING + (number + 0.5) * height
        own = max(costs[rank] if costs else late[rank]["own_ns"] for rank in row.ranks)
        mean = sum(waited[rank] for rank in row.ranks) // len(row.ranks)
        page.row_label(y, row.label, colour=palette.ATTENTION if blamed else palette.INK, size=size)
        page.row_measures(y, f"{duration(mean)} · {duration(own)}", min(size, SMALL), blamed)


def _waits(waits: pa.Table) -> Int64:
    return optional_integers(waits, "judged_wait_ns")


def _caption(
    source: TableSource,
    collectives: pa.Table,
    waits: pa.Table,
    step_ns: int | None,
    late: Mapping[int, LateRank],
    costs: Counter[int],
    rows: Sequence[MapRow],
    panels: Sequence[WaitPanel],
    edges: Sequence[int],
    lead: Lead,
) -> Caption:
    facts = clock_facts(source.table("rank_clocks", columns_of(RankClockRow)))
    statement = clock_statement(facts)
    total, time = int(_waits(waits).sum()), int(optional_integers(waits, "duration_ns").sum())
    warnings = [] if facts["solved"] else [statement]
    warnings += _basis(collectives) + _unmatched(collectives)
    blamed = any(row["blamed"] for row in late.values())
    folded = sum(len(row.ranks) for row in rows if len(row.ranks) > 1)
    several = any(panel.together > 1 for panel in panels) or folded
    finding = _finding(list(late.values()), collectives, waits, step_ns)
    return Caption(
        title=lead.limit if lead.faults else finding,
        facts=[
            place(source),
            *([finding] if lead.faults else []),
            f"{len(late)} ranks, {waits.num_rows:,} parts in matched communications",
            *([f"{share(total, time)} of their time is waiting"] if blamed else []),
            *(["costs: waits of all ranks, through chains to their first cause"] if costs else []),
            *(["a delay is not a saving"] if blamed or costs else []),
            *([f"rows of {folded} ranks are shared, those with similar waits in one"] if folded else []),
            *([statement.replace(" us ", " µs ")] if facts["solved"] else []),
        ],
        warnings=[*lost_ranks(source), *warnings],
        legend=[LegendGroup("wait", list(_legend(panels, edges)))],
        footer=f"tables collectives, rank_clocks, {'delay_costs, ' * bool(costs)}findings",
        note="a column: one communication of the rank, by its number in the dimension"
        + ("; mean where several share a cell" if several else ""),
    )


def _finding(late: Sequence[LateRank], collectives: pa.Table, waits: pa.Table, step_ns: int | None) -> str:
    blamed = [row for row in late if row["blamed"]]
    if not blamed:
        uncertain = uncertain_waits(collectives)
        total, time = int(_waits(waits).sum()), int(optional_integers(waits, "duration_ns").sum())
        nobody = nobody_blamed(late, step_ns, uncertain, collectives.num_rows)
        nobody = capitalised(nobody)
        if not time:
            return nobody
        of = "the time of communication whose wait is certain" if uncertain else "communication time"
        return f"{nobody}; {share(total, time)} of {of} is waiting, {duration(total)} in all"
    worst = max(blamed, key=lambda row: row["own_ns"])
    others = f", and {len(blamed) - 1} more" if len(blamed) > 1 else ""
    return f"{delay_finding(worst)}{others}"


def _basis(collectives: pa.Table) -> list[str]:
    kernels = wait_basis(collectives)
    said = (
        (kernels["durations"], "waits of {:,} kernels come from durations, which need no clock"),
        (kernels["untold"], "{:,} matched kernels are left out: nothing shows their waits"),
    )
    return [text.format(count) for count, text in said if count]


def _unmatched(collectives: pa.Table) -> list[str]:
    faults = pc.value_counts(collectives["fault"].cast(pa.string()).drop_null()).to_pylist()
    if not faults:
        return []
    told = ", ".join(f"{each['counts']:,} {each['values'].replace('_', ' ')}" for each in faults)
    return [f"of {collectives.num_rows:,} communication kernels some are not matched, or not wholly: {told}"]


def _legend(panels: Sequence[WaitPanel], edges: Sequence[int]) -> Iterator[LegendEntry]:
    present = {int(number) for panel in panels for number in np.unique(panel.classes(edges))}
    for number, word in enumerate(class_names(edges)):
        if number in present:
            yield LegendEntry(word, palette.WAITING[number])
