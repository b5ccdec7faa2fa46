"""``traceviz overlap``: how much communication is hidden behind computation, from a trace or from the lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.output import milliseconds, percent, print_json, print_table
from traceviz_dag.commands.partial import end_partial
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.vocabulary import ALL_DIMENSIONS

if TYPE_CHECKING:
    from traceviz_dag.completeness import Completeness
    from traceviz_dag.lake.inputs import IterationInputs
    from traceviz_dag.rank_pipeline import RankTrace

_WINDOWS = ("file", "step", "kernels")


def overlap(
    path: Annotated[
        Path | None, typer.Argument(help="A trace, folder or iteration; without it the lake is read.")
    ] = None,
    window: Annotated[
        str,
        typer.Option(help="file, step (each ProfilerStep) or kernels (first start to last end, per device)."),
    ] = "step",
    start_ns: Annotated[int | None, typer.Option(help="Start of an explicit window, ns; only with a path.")] = None,
    end_ns: Annotated[int | None, typer.Option(help="End of an explicit window, ns; only with a path.")] = None,
    dimension: Annotated[
        str | None, typer.Option(help="Only this dimension of communication, for example tp, or all.")
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="TOML file with rules that come before the built-in ones.")] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show computation, communication, and how much of it is hidden, per rank, window and dimension.

    A rank that was read in part is marked, and the exit code is 2. Times are unions, never sums of durations.
    hidden_share is hidden / communication, hidden_over_min is hidden / min(computation, communication).
    """
    if window not in _WINDOWS:
        raise UsageError(f"no window {window!r}; there are {', '.join(_WINDOWS)}")
    if path is None:
        rows, found = _from_lake(home, window)
    else:
        rows, found = _from_path(path, window, start_ns, end_ns, rules, home.resolve())
    rows = [row for row in rows if dimension is None or row["dimension"] == dimension]
    if json:
        print_json(rows)
    elif rows or not found:
        _print(rows, dimension)
    end_partial(found)


def _print(rows: Sequence[dict[str, Any]], dimension: str | None) -> None:
    shown = rows if dimension is not None else [row for row in rows if row["dimension"] == ALL_DIMENSIONS] or rows
    print_table(
        "Overlap",
        [
            "run",
            "iteration",
            "rank",
            "device",
            "step",
            "dimension",
            "window ms",
            "compute ms",
            "communication ms",
            "hidden ms",
            "exposed ms",
            "idle ms",
            "hidden",
            "hidden / min",
        ],
        [
            [
                row["run"],
                row["iteration"],
                f"{row['rank']} (in part)" if row["partial"] else row["rank"],
                row["device"],
                row["step"],
                row["dimension"],
                milliseconds(row["window_end_ns"] - row["window_start_ns"]),
                *(
                    milliseconds(row[f"{name}_ns"])
                    for name in ("compute", "communication", "hidden", "exposed", "idle")
                ),
                percent(row["hidden_share"]),
                percent(row["hidden_over_min"]),
            ]
            for row in shown
        ],
    )


def _from_lake(home: Path, window: str) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """The rows, and what of their iterations was not read."""
    from traceviz_dag.commands.figures import completeness_of
    from traceviz_dag.figure_pipeline import LakeSource

    if window == "file":
        raise UsageError("the lake keeps the windows step and kernels; give a path for --window file")
    lake = open_lake(home)
    rows = lake.query(_STORED_SQL, {"window": window}).to_pylist()
    places = sorted({(row["run"], row["iteration"]) for row in rows})
    return rows, completeness_of([LakeSource(lake, *place) for place in places], [])


_STORED_SQL = """
SELECT overlap.*, coalesce(status <> 'read', false) AS partial
FROM overlap LEFT JOIN traces USING (run, iteration, rank)
WHERE window_name = $window
ORDER BY run, iteration, rank, device, step, dimension
"""


def _from_path(
    path: Path, window: str, start_ns: int | None, end_ns: int | None, rules_file: Path | None, home: Path
) -> tuple[Sequence[dict[str, Any]], list[Completeness]]:
    """The rows, and what of the iterations was not read."""
    from traceviz_dag.analyze.overlap import overlap_table, window_overlap
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.completeness import RankFault, ranks_chosen_by_name, read_completeness
    from traceviz_dag.discovery import inputs_below
    from traceviz_dag.iteration_pipeline import rank_traces, read_topology
    from traceviz_dag.rank_pipeline import classify_trace, kernels_of_step, read_events, read_fault, step_windows

    explicit = start_ns is not None or end_ns is not None
    whole = window == "file" or explicit
    rules = load_rules(rules_file)
    rows: list[dict[str, Any]] = []
    # A rank's trace, which may hold several iterations, is classified once.
    of_trace: dict[tuple[Path, str], list[tuple[IterationInputs, RankTrace]]] = {}
    below = inputs_below([path], home=home)
    topologies = {inputs.key: read_topology(inputs, home=home) for inputs in below}
    faults: dict[str, list[RankFault]] = {inputs.key: [] for inputs in below}
    for inputs in below:
        for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home):
            of_trace.setdefault((trace.path, trace.part), []).append((inputs, trace))
    for places in of_trace.values():
        inputs, first = places[0]
        topology = topologies[inputs.key]
        try:
            events = read_events(first, topology, rules)
        except BadInputError as error:
            for inputs, trace in places:
                faults[inputs.key].append(RankFault(trace.rank, trace.name, str(error), failed=True))
            continue
        fault = read_fault(events)
        classified = classify_trace(events, first.rank, topology, rules)
        for inputs, trace in places[:1] if whole else places:
            if fault is not None:
                faults[inputs.key].append(RankFault(trace.rank, trace.name, fault, failed=False))
            table: pa.Table
            if whole:
                table = window_overlap(classified.kernels, "clip" if explicit else "file", start_ns, end_ns)
            else:
                kernels = kernels_of_step(classified, trace.step)
                table = overlap_table(kernels, step_windows(classified, trace.step), classified.kernels)
            place = {"run": inputs.run, "iteration": inputs.iteration, "rank": trace.rank}
            rows += [
                {**place, **row, "partial": fault is not None}
                for row in table.to_pylist()
                if whole or row["window_name"] == window
            ]
    found = []
    for inputs in below:
        expected = None if ranks_chosen_by_name(inputs, [path]) else topologies[inputs.key].world_size
        found.append(read_completeness(inputs, expected, faults[inputs.key]))
    return sorted(rows, key=lambda row: (row["run"], row["iteration"], row["rank"])), found
