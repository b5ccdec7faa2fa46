"""``traceviz nsys nccl``: communication by operation and communicator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze.nsys.nccl import FEWEST_ALIKE, communication, slow_communication
from traceviz_dag.analyze.wording import ABSENT, milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, check_number
from traceviz_dag.commands.common.output import print_json, print_table, shown
from traceviz_dag.commands.nsys.common import (
    GpuOption,
    Opened,
    ProfileArgument,
    RulesOption,
    TrimOption,
    opened,
    seconds,
)


def nccl(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    slow: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Show kernels that took this many times the median of their operation, communicator and size.",
            show_default=False,
        ),
    ] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show communication kernels by operation, and by communicator if the export holds NCCL's payload.

    The time of a communication kernel includes its waiting for other ranks. Libraries other than NCCL also count.
    """
    check_number("--slow", slow)
    given = opened(path, home, trim, rules)
    if slow is not None:
        _slow(given, gpu, slow, json)
        return
    rows = given.rows(gpu, communication)
    if json:
        print_json(rows)
        return
    print_table(
        "Communication",
        [
            "GPU",
            "operation",
            "communicator",
            "count",
            "total ms",
            "busy ms",
            "hidden ms",
            "exposed ms",
            "mean ms",
            "most ms",
            "bytes",
        ],
        [
            [row["device"], row["operation"], row["communicator"], row["count"]]
            + [milliseconds(row[f"{name}_ns"]) for name in ("total", "busy", "hidden", "exposed", "mean", "most")]
            + [ABSENT if row["bytes"] is None else f"{row['bytes']:,}"]
            for row in rows
        ],
    )


def _slow(given: Opened, gpu: list[str], times: float, json: bool) -> None:
    """Show single kernels that took long beside similar ones."""
    rows = [
        {"device": part.device, **asdict(one), "times": one.times}
        for part in given.gpus(gpu)
        for one in slow_communication(given.profile, part, given.window, times)
    ]
    if json:
        print_json(rows)
        return
    print_table(
        f"{len(rows)} communication kernels took {times:g} times the median of similar ones, or more; "
        f"of {FEWEST_ALIKE} similar ones at least",
        ["GPU", "operation", "communicator", "bytes", "from s", "ms", "median ms", "times", "alike"],
        [
            [
                *(row["device"], row["operation"], row["communicator"]),
                *(ABSENT if row["bytes"] is None else f"{row['bytes']:,}", seconds(row["start_ns"])),
                *(milliseconds(row["duration_ns"]), milliseconds(row["usual_ns"])),
                *(f"{row['times']:.1f}", row["alike"]),
            ]
            for row in shown(rows)
        ],
        len(rows),
    )
