"""``traceviz nsys summary``: what takes the time of each GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.summary import NAME_COLUMNS, summaries
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, gpu_numbers, opened


def summary(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    short: Annotated[bool, typer.Option("--short", help="Add kernels up by their short names.")] = False,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the kernels and memory operations that take most time, the streams, and GPU metrics if there are any.

    Totals are sums of durations, which may exceed the window where operations run side by side. Busy time is a union,
    memory operations included.
    """
    with opened(path, home, trim, rules) as given:
        found = summaries(given.profile, given.rules, gpu_numbers(gpu), given.window, short=short)
        if json:
            overlaps = {part.device: gpu_overlap(part, given.window) for part in given.gpus(gpu)}
            parts = ("operations", "streams", "metrics")
            given.print_json(
                [
                    asdict(overlaps[one.device]) | {name: [asdict(row) for row in getattr(one, name)] for name in parts}
                    for one in found
                ]
            )
            return
        for one in found:
            span_ns = one.window.end_ns - one.window.start_ns
            print_columns(
                f"GPU {one.device}: busy {milliseconds(one.busy_ns)} of {milliseconds(span_ns)} ms "
                f"({wording.percent(one.busy_ns / span_ns if span_ns else None)}), {one.kernels} operations",
                one.operations,
                NAME_COLUMNS,
            )
            print_columns(f"Streams of GPU {one.device}", one.streams, ["stream", ("count", "operations"), "busy_ns"])
            if one.metrics:
                print_columns(f"Metrics of GPU {one.device}", one.metrics, ["metric", "samples", "mean", "most"])
