"""``traceviz nsys summary``: what takes the time of each GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.overlap import gpu_overlap
from traceviz_dag.analyze.nsys.summary import summaries
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import percent, print_json, print_table, shortened, shown
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
    given = opened(path, home, trim, rules)
    found = summaries(given.profile, given.rules, gpu_numbers(gpu), given.window, short=short)
    if json:
        overlaps = {part.device: gpu_overlap(part, given.window) for part in given.gpus(gpu)}
        parts = ("operations", "streams", "metrics")
        print_json(
            [
                asdict(overlaps[one.device]) | {name: [asdict(row) for row in getattr(one, name)] for name in parts}
                for one in found
            ]
        )
        return
    for one in found:
        span_ns = one.window.end_ns - one.window.start_ns
        print_table(
            f"GPU {one.device}: busy {milliseconds(one.busy_ns)} of {milliseconds(span_ns)} ms "
            f"({wording.percent(one.busy_ns / span_ns if span_ns else None)}), {one.kernels} kernels",
            ["operation", "kind", "count", "total ms", "share of totals", "mean ms", "least ms", "most ms"],
            [
                [
                    *(shortened(row.name), row.kind, row.count, milliseconds(row.total_ns), percent(row.share)),
                    *(milliseconds(value) for value in (row.mean_ns, row.least_ns, row.most_ns)),
                ]
                for row in shown(one.operations)
            ],
            len(one.operations),
        )
        print_table(
            f"Streams of GPU {one.device}",
            ["stream", "operations", "busy ms"],
            [[row.stream, row.count, milliseconds(row.busy_ns)] for row in shown(one.streams)],
            len(one.streams),
        )
        if one.metrics:
            print_table(
                f"Metrics of GPU {one.device}",
                ["metric", "samples", "mean", "most"],
                [[row.metric, row.samples, f"{row.mean:.2f}", row.most] for row in one.metrics],
            )
