"""``traceviz overlap``: how much communication is hidden behind computation, from a trace or from the lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.output import milliseconds, percent, print_json, print_table
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.vocabulary import ALL_DIMENSIONS

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

    Times are unions, never sums of durations. hidden_share is hidden / communication, hidden_over_min is
    hidden / min(computation, communication).
    """
    if window not in _WINDOWS:
        raise UsageError(f"no window {window!r}; there are {', '.join(_WINDOWS)}")
    rows = _from_lake(home, window) if path is None else _from_path(path, window, start_ns, end_ns, rules)
    rows = [row for row in rows if dimension is None or row["dimension"] == dimension]
    if json:
        print_json(rows)
        return
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
                row["rank"],
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


def _from_lake(home: Path, window: str) -> Sequence[dict[str, Any]]:
    if window == "file":
        raise UsageError("the lake keeps the windows step and kernels; give a path for --window file")
    table = open_lake(home).query(
        "SELECT * FROM overlap WHERE window_name = $window ORDER BY run, iteration, rank, device, step, dimension",
        {"window": window},
    )
    return table.to_pylist()


def _from_path(
    path: Path, window: str, start_ns: int | None, end_ns: int | None, rules_file: Path | None
) -> Sequence[dict[str, Any]]:
    from traceviz_dag.analyze.overlap import overlap_table, window_overlap
    from traceviz_dag.classify.rules import load_rules
    from traceviz_dag.discovery import inputs_below
    from traceviz_dag.iteration_pipeline import rank_traces, read_topology
    from traceviz_dag.rank_pipeline import classify_trace, kernels_of_step, read_events, step_windows

    explicit = start_ns is not None or end_ns is not None
    rules = load_rules(rules_file)
    rows: list[dict[str, Any]] = []
    seen: set[Path] = set()
    for inputs in inputs_below([path]):
        topology = read_topology(inputs)
        for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}):
            whole = window == "file" or explicit
            if whole and trace.path in seen:
                continue
            seen.add(trace.path)
            classified = classify_trace(read_events(trace, topology, rules), trace.rank, topology, rules)
            table: pa.Table
            if whole:
                table = window_overlap(classified.kernels, "clip" if explicit else "file", start_ns, end_ns)
            else:
                kernels = kernels_of_step(classified, trace.step)
                table = overlap_table(kernels, step_windows(classified, trace.step), classified.kernels)
            place = {"run": inputs.run, "iteration": inputs.iteration, "rank": trace.rank}
            rows += [{**place, **row} for row in table.to_pylist() if whole or row["window_name"] == window]
    return rows
