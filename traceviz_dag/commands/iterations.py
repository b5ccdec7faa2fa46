"""``traceviz iterations``: how step time and its parts went from iteration to iteration, with the nights' verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceviz_dag.analyze.wording import activity, ranks_of, signed_percent
from traceviz_dag.commands.common.failures import end_gone, end_half_renewed, end_stale, gone_iterations
from traceviz_dag.commands.common.figure_file import check_figure
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, print_wrapped, shown
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.lake.recorded import check
from traceviz_dag.system.paths import real_path
from traceviz_dag.tables import TRACES

if TYPE_CHECKING:
    from traceviz_dag.lake.lake import Lake
    from traceviz_dag.pipeline.nights.trend import Trend, TrendNight

_TABLES = "iterations runs stale_tables traces"
_MEASURES = (
    *("compute_ns", "exposed_ns", "idle_ns", "hidden_share", "longest_computation_rank", "unclassified_share"),
    *("mfu", "mfu_refusal"),
)
_WORSE = 1
_NAMED = 5
_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def iterations(
    run: Annotated[str | None, typer.Option("--run", help="Show only this run.")] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Show only the last iterations of each run; 0 = all.")] = 0,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Judge nights that have no verdict, and exit by the last one of each series."),
    ] = False,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw the series into this .png, .svg or .pdf.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the trend over iterations: step time and its change, computation, exposed communication, nightly verdicts.

    A night's verdict is pass, worse, better or inconclusive; confirmed changes, which last, are below the table.

    The step is the longest over the ranks, MFU is of this step, where the job's settings are known; the other times are
    means over the ranks (table iterations). An iteration that was not read completely is marked (partial), and its step
    is compared only with one over the same ranks; (stale) marks measures that are kept although something newer could
    not be computed, and a line says why. The exit code is 2 if an iteration is partial, has no measures or stale
    tables, its last analysis was cut off, or a table that is shown was deleted. With --gate it is 1 if the last night
    of a series is worse, 2 if it is inconclusive.
    """
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.pipeline.nights.series import NIGHT_TABLES

    if figure is not None:
        check_figure(figure)
    lake = open_lake(home, refresh=False)
    rows = _measured(lake, run)
    gone = lake.gone_parts(f"{_TABLES} {' '.join(NIGHT_TABLES)}", run)
    if not rows:
        end_gone(gone)
        _end_without_measures(lake, {}, run, every=True)
        known = ", ".join(sorted({partition.run for partition in lake.partitions("iterations")}))
        raise UsageError(
            f"no iterations of run {run!r} in {home}; there are {known}"
            if known
            else f"no iterations in {home}; run traceviz analyze on traces first"
        )
    # What is not judged is shown without a verdict, and takes no time.
    is_judged = gate or figure is not None or bool(lake.partitions("nights"))
    found = _trends(lake, run, judge=gate) if is_judged else []
    verdicts = {
        (one.run, one.iteration): night for trend in found for night in trend.nights for one in night.partitions
    }
    for row in rows:
        night = verdicts.get((row["run"], row["iteration"]))
        row |= {name: getattr(night, name, None) for name in ("accepted", "moved", "statement", "verdict", "known")}
        is_last = night is not None and night.partitions[-1].iteration == row["iteration"]
        row["changes"] = list(night.changes) if night is not None and is_last else []
    by_run = {name: list(group)[-last:] for name, group in groupby(rows, key=lambda row: row["run"])}
    if json:
        print_json([row for group in by_run.values() for row in group])
    else:
        for name, group in by_run.items():
            _print(name, group, verdicts)
    if figure is not None:
        _draw(figure, found)
    places = [(row["run"], row["iteration"]) for group in by_run.values() for row in group]
    # Where one is damaged, nobody knows which ranks were read.
    check(lake.tables_folder, TRACES, [part for place in places for part in lake.partitions(TRACES.name, *place)])
    end_half_renewed(real_path(home), places)
    end_stale(lake, places)
    end_gone(gone | gone_iterations(lake, run, None, "kernels"))
    _end_without_measures(lake, by_run, run, every=not last)
    partial = [f"{row['run']} {row['iteration']}" for group in by_run.values() for row in group if row["partial"]]
    if partial:
        raise IncompleteError(f"partial result for {_named(partial)}; traceviz analyze on their traces says why")
    if gate:
        _end_by_verdicts(found)


def _measured(lake: Lake, run: str | None) -> list[dict[str, Any]]:
    """What each iteration measures, by run and iteration, and how its step differs from one before over its ranks."""
    captured = lake.rows_of("runs", lake.partitions("runs", run), ["run", "iteration", "expected_ranks"]).to_pylist()
    expected = {(row["run"], row["iteration"]): row["expected_ranks"] for row in captured}
    columns = ["run", "iteration", "ranks", "covered_ranks", "partial", "step_ns", *_MEASURES]
    rows: list[dict[str, Any]] = []
    before: dict[str, Any] = {"run": None}
    for row in lake.rows_of("iterations", lake.partitions("iterations", run), columns).to_pylist():
        place, step_ns = (row["run"], row["iteration"]), row["step_ns"]
        is_like = row["run"] == before["run"] and row["covered_ranks"] == before["covered_ranks"]
        before_ns = before["step_ns"] if is_like and step_ns is not None else None
        rows.append(
            {
                **{name: row[name] for name in ("run", "iteration", "ranks")},
                "expected_ranks": expected.get(place),
                "partial": row["partial"],
                "stale": lake.has_stale_measures(*place),
                "step_ns": step_ns,
                "change_ns": None if before_ns is None else step_ns - before_ns,
                "change_share": step_ns / before_ns - 1 if before_ns else None,
                **{name: row[name] for name in _MEASURES},
            }
        )
        before = row
    return rows


def _trends(lake: Lake, run: str | None, *, judge: bool) -> Sequence[Trend]:
    from traceviz_dag.pipeline.home_settings import load_settings
    from traceviz_dag.pipeline.nights.trend import trends

    return trends(lake, load_settings(lake.home).nightly, run, judge=judge)


def _end_by_verdicts(found: Sequence[Trend]) -> None:
    """End the command by the last verdict of each series.

    Raises:
        Exit: one is worse.
        NoEvidenceError: one is inconclusive, or there is none.
    """
    last = [trend.nights[-1] for trend in found if trend.series.is_steady]
    if any(night.verdict == "worse" for night in last):
        raise typer.Exit(_WORSE)
    undecided = [night for night in last if night.verdict not in ("pass", "better")]
    if undecided:
        raise NoEvidenceError(undecided[0].statement or f"{undecided[0].name} is not judged")
    if not last:
        raise NoEvidenceError("no series of numbered steps after the warm-up, and verdicts on others decide nothing")


def _draw(figure: Path, found: Sequence[Trend]) -> None:
    from traceviz_dag.pipeline.nights.trend import draw_trend
    from traceviz_dag.show.page.rendering import write_figure

    drawn = [trend for trend in found if trend.series.is_steady] or list(found)
    if len(drawn) != 1:
        names = ", ".join(trend.series.name for trend in drawn[:_NAMED])
        raise UsageError(f"--figure draws one series; choose it with --run: {names}")
    write_figure(draw_trend(drawn[0]), figure.parent, figure.stem, (figure.suffix.removeprefix("."),))


def _end_without_measures(
    lake: Lake, shown: Mapping[str, list[dict[str, Any]]], run: str | None, *, every: bool
) -> None:
    """End the command where iterations have traces in the lake and no measures.

    Args:
        every: look at all; else at those between the shown ones and after them.

    Raises:
        IncompleteError: it names them.
    """
    left_out = []
    for name, number in sorted({(part.run, part.iteration) for part in lake.partitions("traces", run)}):
        numbers = [row["iteration"] for row in shown.get(name, [])]
        if number not in numbers and (every or not numbers or number > numbers[0]):
            left_out.append(f"{name} {number}")
    if left_out:
        raise IncompleteError(
            f"no measures of {_named(left_out)}: no rank was read whole, or their analysis failed or is not done; "
            "traceviz analyze on their traces says why"
        )


def _named(places: Sequence[str]) -> str:
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"{', '.join(places[:_NAMED])}{more}"


def _ranks(row: Mapping[str, Any]) -> str:
    marks = "".join(f" ({name})" for name in ("partial", "stale") if row[name])
    return f"{ranks_of(row['ranks'], row['expected_ranks'])}{marks}"


def _print(run: str, rows: list[dict[str, Any]], verdicts: Mapping[tuple[str, int], TrendNight]) -> None:
    longest = max((row["step_ns"] or 0 for row in rows), default=0)
    has_mfu = any(row["mfu"] is not None for row in rows)
    print_columns(
        f"{run}: iterations, the longest step over the ranks; means over ranks and steps of the rest",
        [
            {
                **row,
                "ranks": _ranks(row),
                "bar": bar(row["step_ns"] or 0, longest),
                "change": None if row["change_share"] is None else signed_percent(row["change_share"]).replace(" ", ""),
                "night": _night(verdicts.get((row["run"], row["iteration"]))),
            }
            for row in rows
        ],
        [
            *("iteration", "ranks", "step_ns", ("bar", ""), "change", "compute_ns", "exposed_ns", "idle_ns"),
            *("hidden_share", ("longest_computation_rank", "longest computation"), *(["mfu"] if has_mfu else [])),
            "night",
        ],
        last=True,
    )
    for row in shown(rows, last=True):
        night = verdicts.get((run, row["iteration"]))
        is_last = night is not None and night.partitions[-1].iteration == row["iteration"]
        if is_last and row["statement"] is not None and (not row["accepted"] or row["changes"]):
            print_wrapped(row["statement"], 4, "  ")


def bar(value: int, longest: int) -> str:
    """A bar of up to twelve characters, to an eighth of one, as long as the value is of the longest."""
    eighths = round(_BAR * 8 * value / longest) if longest else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _night(night: TrendNight | None) -> str | None:
    """A verdict in a word; where it is worse, with the part of the step that grew, else with what is worse."""
    if night is None or night.verdict != "worse":
        return None if night is None or night.statement is None else night.verdict
    measures = [name.partition(":")[0] for name in night.worse or ()]
    # The step may be longer than most nights and yet shorter than its reference.
    has_grown = night.moved is not None and (night.moved_ns is None or night.moved_ns > 0)
    is_step = not measures or any(name.startswith("step") for name in measures)
    return (
        f"worse: {activity(night.moved) if night.moved and has_grown and is_step else (measures or ['step time'])[0]}"
    )
