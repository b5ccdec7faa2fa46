"""``traceviz nsys calls`` and ``stalls``: calls of the host by name, and what held it up, by NVTX range."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.nsys.activity import processes_of
from traceviz_dag.analyze.nsys.calls import CUDA, SYSTEM, calls_by_name
from traceviz_dag.analyze.nsys.calls import stalls as find_stalls
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, Opened, ProfileArgument, TrimOption, no_kernels, opened

SLIGHT = 0.001
"""Share of all stalls together below which a row is only counted."""

_STATISTICS = ("total", "mean", "least", "median", "p90", "most")


def calls(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    system: Annotated[
        bool, typer.Option("--system", help="Show calls of the operating system's libraries instead of CUDA's.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show CUDA's runtime and driver calls by name, and the time that the host spends in them.

    Calls count where they start, whole. Times of threads side by side count each. With --gpu, it is about the
    processes that used these GPUs.
    """
    with opened(path, home, trim, concerns=no_kernels) as given:
        table = SYSTEM if system else CUDA
        rows = [asdict(one) for one in calls_by_name(given.profile, table, _processes(given, gpu), given.window)]
        if json:
            given.print_json(rows)
            return
        if not rows and given.window is None:
            what = "the operating system's libraries; profile with --trace=osrt" if system else "CUDA"
            typer.echo(f"The export holds no calls of {what}.")
            return
        print_columns(
            "Calls of the operating system's libraries" if system else "CUDA calls",
            [{**row, **row["durations"]} for row in rows],
            [
                *(("name", "call"), "threads", "count", *(f"{name}_ns" for name in _STATISTICS)),
                ("share", "share of totals"),
            ],
        )


def stalls(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show what held the host up, by NVTX range: synchronizations, module loading, allocation, garbage collection.

    Times are the host's, cut at the window's edges. Synchronizations are CUPTI's records. Garbage collections are NVTX
    ranges with gc or garbage in their names. Rows below 0.1 % of all together are only counted; JSON has every row
    and all ranges around it.
    """
    with opened(path, home, trim, concerns=no_kernels) as given:
        rows = [asdict(one) for one in find_stalls(given.profile, _processes(given, gpu), given.window)]
        if json:
            given.print_json(rows)
            return
        least_ns = SLIGHT * sum(row["total_ns"] for row in rows)
        slight = [row for row in rows if row["total_ns"] < least_ns]
        rows = rows[: len(rows) - len(slight)]
        print_columns(
            "What held the host up",
            [
                {
                    **row,
                    "innermost": row["ranges"][-1] if row["ranges"] else None,
                    "outermost": row["ranges"][0] if row["ranges"] else None,
                }
                for row in rows
            ],
            [
                *(("kind", "what"), ("innermost", "innermost range"), ("outermost", "outermost range")),
                *("count", "total_ns", "most_ns"),
            ],
        )
        if slight:
            length = milliseconds(sum(row["total_ns"] for row in slight))
            typer.echo(f"{len(slight)} more below {wording.percent(SLIGHT)} of all together: {length} ms together.")


def _processes(given: Opened, gpu: list[str]) -> tuple[int, ...] | None:
    """The processes that used the chosen GPUs; all where none is chosen."""
    return processes_of(given.gpus(gpu)) if gpu else None
