"""``traceviz nsys nccl``: communication by operation and communicator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze.nsys.nccl import FEWEST_ALIKE, communication, slow_communication
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, check_number
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, RulesOption, TrimOption, opened


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
    with opened(path, home, trim, rules) as given:
        if slow is not None:
            _slow(given, gpu, slow, json)
            return
        rows = given.rows(gpu, communication)
        if json:
            given.print_json(rows)
            return
        print_columns(
            "Communication",
            rows,
            [
                *("device", "operation", "communicator", "count", "total_ns", "busy_ns", "hidden_ns", "exposed_ns"),
                *("mean_ns", "most_ns", "bytes"),
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
        given.print_json(rows)
        return
    print_columns(
        f"{len(rows)} communication kernels took {times:g} times the median of similar ones, or more; "
        f"of {FEWEST_ALIKE} similar ones at least",
        rows,
        [
            *("device", "operation", "communicator", "bytes", "start_ns", "duration_ns", ("usual_ns", "median")),
            *("times", "alike"),
        ],
    )
