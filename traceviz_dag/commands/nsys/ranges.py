"""``traceviz nsys ranges`` and ``pace``: NVTX ranges on the host and on a GPU, and how evenly they repeat."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.activity import Activity
from traceviz_dag.analyze.nsys.projections import (
    Pace,
    Projection,
    by_projected_name,
    pace_of_operations,
    pace_of_ranges,
    project,
)
from traceviz_dag.analyze.nsys.search import matcher
from traceviz_dag.analyze.nsys.statistics import Durations
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import most_printed, print_columns
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, TrimOption, opened
from traceviz_dag.errors import UsageError

_OF_NAMES = ("total", "mean", "median", "p90", "most")
_OF_PACE = ("mean", "least", "median", "p90", "most")


def ranges(
    path: ProfileArgument,
    word: Annotated[
        str | None, typer.Argument(help="Part of a name, or a pattern with * and ? for all of it.", show_default=False)
    ] = None,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    each: Annotated[bool, typer.Option("--each", help="Show every range instead of every name.")] = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show NVTX ranges on the host and projected onto the GPU: from first start to last end of what they launched.

    Ranges count where they start. Each is projected with all that calls inside it launched on its thread, whenever
    that ran. A range that launched nothing has no projection.
    """
    with opened(path, home, trim) as given:
        wanted = matcher(word) if word is not None else None
        found = [(part.device, project(given.profile, part, given.window, wanted)) for part in given.gpus(gpu)]
        if each:
            _each(given, found, json)
            return
        rows = [
            {"device": device, **asdict(one)} for device, projection in found for one in by_projected_name(projection)
        ]
        if json:
            given.print_json(rows)
            return
        print_columns(
            "NVTX ranges by time on the GPU",
            [
                {**row, **{f"{of}_{name}": value for of in ("host", "gpu") for name, value in row[of].items()}}
                for row in rows
            ],
            [
                *("device", ("name", "range"), ("host_count", "count"), "host_total_ns", "host_mean_ns"),
                *(("gpu_count", "on GPU"), *(f"gpu_{name}_ns" for name in _OF_NAMES), "operations"),
            ],
        )


def _each(given: Opened, found: list[tuple[int, Projection]], json: bool) -> None:
    if json:
        given.print_json([{"device": device, "ranges": _rows(projection, None)} for device, projection in found])
        return
    for device, projection in found:
        print_columns(
            f"{len(projection)} NVTX ranges, GPU {device}",
            [
                {
                    **row,
                    "host_ns": row["end_ns"] - row["start_ns"],
                    "gpu_ns": None if row["gpu_start_ns"] is None else row["gpu_end_ns"] - row["gpu_start_ns"],
                }
                for row in _rows(projection, most_printed())
            ],
            [
                *(("name", "range"), "depth", ("start_ns", "host from"), "host_ns", "operations"),
                *(("gpu_start_ns", "GPU from"), ("gpu_ns", "GPU")),
            ],
            len(projection),
        )


def _rows(projection: Projection, most: int | None) -> list[dict[str, Any]]:
    columns = {
        "depth": projection.ranges.depth[projection.position],
        "start_ns": projection.start_ns,
        "end_ns": projection.end_ns,
        "operations": projection.operations,
        "gpu_start_ns": projection.gpu_start_ns,
        "gpu_end_ns": projection.gpu_end_ns,
    }
    names, values = projection.names()[:most], [column[:most].tolist() for column in columns.values()]
    rows = [{"name": name, **dict(zip(columns, row, strict=True))} for name, *row in zip(names, *values, strict=True)]
    for row in rows:
        if not row["operations"]:
            row["gpu_start_ns"] = row["gpu_end_ns"] = None
    return rows


def pace(
    path: ProfileArgument,
    word: Annotated[str, typer.Argument(help="Part of a name, or a pattern with * and ? for all of it.")],
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Take kernels and memory operations instead of NVTX ranges.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how evenly NVTX ranges or kernels of some names repeat: period, duration, and time on the GPU, one by one.

    A period runs from one start to the next. Ranges inside another one of these names are left out.
    """
    with opened(path, home, trim) as given:
        found = [(part.device, _pace(given, part, word, kernels)) for part in given.gpus(gpu)]
        if not any(len(one) for _, one in found):
            what = "kernels or memory operations" if kernels else "NVTX ranges"
            raise UsageError(f"{path}: no {what} match {word}; traceviz nsys search finds names")
        if json:
            measures = [{name: asdict(one) for name, one in _measures(pace).items()} for _, pace in found]
            rows = [{"device": device, "each": _instances(pace, None)} for device, pace in found]
            given.print_json([{**row, **measured} for row, measured in zip(rows, measures, strict=True)])
            return
        print_columns(
            f"Pace of {'kernels' if kernels else 'ranges'} that match {word}",
            [
                {"device": device, "measure": _WORDS[name], **asdict(durations)}
                for device, pace in found
                for name, durations in _measures(pace).items()
                if not (kernels and name.startswith("gpu"))
            ],
            ["device", "measure", "count", *(f"{name}_ns" for name in _OF_PACE)],
        )
        for device, one in found:
            print_columns(
                f"One by one, GPU {device}",
                _instances(one, most_printed()),
                ["start_ns", "period_ns", "duration_ns", ("gpu_start_ns", "GPU from"), ("gpu_duration_ns", "GPU")],
                len(one),
            )


_WORDS = {
    "period": "period",
    "duration": "duration",
    "gpu_period": "period on the GPU",
    "gpu_duration": "duration on the GPU",
}


def _pace(given: Opened, part: Activity, word: str, kernels: bool) -> Pace:
    if kernels:
        return pace_of_operations(part, matcher(word), given.window)
    return pace_of_ranges(project(given.profile, part, given.window, matcher(word)))


def _measures(pace: Pace) -> dict[str, Durations]:
    return {
        "period": Durations.of(pace.periods()),
        "duration": Durations.of(pace.end_ns - pace.start_ns),
        "gpu_period": Durations.of(pace.gpu_periods()),
        "gpu_duration": Durations.of((pace.gpu_end_ns - pace.gpu_start_ns)[pace.launched]),
    }


def _instances(pace: Pace, most: int | None) -> list[dict[str, int | None]]:
    periods: list[int | None] = [None, *pace.periods().tolist()]
    columns = (pace.start_ns, pace.end_ns, pace.gpu_start_ns, pace.gpu_end_ns, pace.launched)
    return [
        {
            "start_ns": start,
            "period_ns": period,
            "duration_ns": end - start,
            "gpu_start_ns": gpu_start if launched else None,
            "gpu_duration_ns": gpu_end - gpu_start if launched else None,
        }
        for period, start, end, gpu_start, gpu_end, launched in zip(
            periods[: len(pace)][:most], *(column[:most].tolist() for column in columns), strict=True
        )
    ]
