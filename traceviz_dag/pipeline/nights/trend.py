"""A series from night to night: what each measures, its verdict, and the changes that it raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nights.verdicts import FORMER_OUTCOMES, Metric
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.home_settings import NightlySettings
from traceviz_dag.pipeline.nights.judging import JudgedNight, change_rows, judge_series
from traceviz_dag.pipeline.nights.samples import named_night
from traceviz_dag.pipeline.nights.series import NightIterations, Series, series_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STORED = (
    "run",
    "iteration",
    "step_ns",
    "accepted",
    "verdict",
    "known",
    "statement",
    "moved",
    "limit_ns",
    "worse",
    "moved_ns",
)


@dataclass(frozen=True, slots=True)
class TrendNight:
    """A night of a series.

    Attributes:
        step_ns: its step, the lower median of its steps. limit_ns: above it the night is worse; None where unknown.
        accepted, verdict, known, statement, moved, moved_ns, worse: as in table ``nights``; None where not judged.
        changes: rows as of table ``night_changes`` that it raised.
    """

    partitions: NightIterations
    began_ns: int
    step_ns: int
    limit_ns: int | None
    accepted: bool | None
    verdict: str | None
    known: bool
    statement: str | None
    moved: str | None
    moved_ns: int | None
    worse: Sequence[str] | None
    changes: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """What messages call it."""
        return named_night(self.partitions)


@dataclass(frozen=True, slots=True)
class Trend:
    """The nights of a series that are measured, in order."""

    series: Series
    nights: Sequence[TrendNight]


def trends(lake: Lake, settings: NightlySettings, run: str | None = None, *, judge: bool = False) -> list[Trend]:
    """The series of a home.

    Args:
        run: only those that have iterations of it. judge: also judge nights without a verdict; nothing is written.
    """
    steps = {
        Partition(row["run"], row["iteration"]): row["step_ns"]
        for row in lake.table("iterations").arrow(["run", "iteration", "step_ns"]).to_pylist()
        if row["step_ns"] is not None
    }
    stored, raised = _rows(lake, "nights", _STORED), _rows(lake, "night_changes")
    found = []
    for series in series_of(lake, settings):
        if run is not None and all(one.run != run for night in series.nights for one in night):
            continue
        judged = {one.partitions: one for one in judge_series(lake, series, settings)} if judge else {}
        nights = []
        for night, began_ns in zip(series.nights, series.began_ns, strict=True):
            measured = [steps[one] for one in night if one in steps]
            if night in judged:
                nights.append(_of_judged(judged[night], began_ns))
            elif measured:
                rows = stored.get(night[0], [{"step_ns": lower_median(measured)}])
                changes = [row for one in night for row in raised.get(one, ())]
                nights.append(_of_row(night, began_ns, rows[0], changes))
        if nights:
            found.append(Trend(series, nights))
    return found


def _rows(lake: Lake, name: str, columns: Sequence[str] | None = None) -> dict[Partition, list[dict[str, Any]]]:
    found: dict[Partition, list[dict[str, Any]]] = {}
    if lake.partitions(name):
        for row in lake.table(name).arrow(columns).to_pylist():
            found.setdefault(Partition(row["run"], row["iteration"]), []).append(row)
    return found


def _of_judged(one: JudgedNight, began_ns: int) -> TrendNight:
    verdict, moved = one.verdict, one.verdict.moved
    return TrendNight(
        one.partitions,
        began_ns,
        one.measures.step_ns,
        one.limit.high_ns if one.limit else None,
        verdict.accepted,
        verdict.outcome.value,
        verdict.known,
        "; ".join(one.statements),
        moved.part if moved else None,
        moved.delta_ns if moved else None,
        verdict.worse,
        change_rows(one.changes),
    )


def _of_row(
    night: NightIterations, began_ns: int, row: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]
) -> TrendNight:
    former = FORMER_OUTCOMES[row.get("accepted")].value if row.get("statement") else None
    verdict = row.get("verdict") or former
    return TrendNight(
        *(night, began_ns, row["step_ns"], row.get("limit_ns"), row.get("accepted"), verdict),
        *(bool(row.get("known")), row.get("statement"), row.get("moved"), row.get("moved_ns")),
        *(row.get("worse"), changes),
    )


SERIES_FIGURE = "night_series"
"""Name of the figure of a series, which the gate keeps with its last night."""


def write_trend(home: Path, trend: Trend) -> Partition:
    """Draw the series into the figures of its last night, with a preview, and return its last iteration."""
    # Imported here because matplotlib takes a second to load.
    from traceviz_dag.pipeline.figures import figures_folder
    from traceviz_dag.show.page.rendering import write_figure, write_preview

    last = trend.nights[-1].partitions[-1]
    folder, figure = figures_folder(home, last.run, last.iteration), draw_trend(trend)
    write_figure(figure, folder, SERIES_FIGURE, ("png",))
    write_preview(figure, folder, SERIES_FIGURE)
    return last


def draw_trend(trend: Trend) -> Figure:
    """The series as a figure."""
    # Imported here because matplotlib takes a second to load.
    from traceviz_dag.show.figures.night_series import DrawnChange, NightPoint, draw_night_series

    places = {one: place for place, night in enumerate(trend.nights) for one in night.partitions}
    changes = [
        DrawnChange(places[since], row["before_ns"], row["after_ns"])
        for night in trend.nights
        for row in night.changes
        if row["metric"] == Metric.STEP and (since := Partition(row["since_run"], row["since_iteration"])) in places
    ]
    points = [NightPoint(one.name, one.step_ns, one.verdict, one.limit_ns) for one in trend.nights]
    return draw_night_series(trend.series.name, points, sorted(changes, key=lambda one: one.at))
