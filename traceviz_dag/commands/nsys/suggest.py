"""``traceviz nsys suggest``: a GPU and an iteration that represent the profile."""

from __future__ import annotations

import shlex
from dataclasses import asdict

import typer

from traceviz_dag.analyze.nsys.representative import representative
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.errors import UsageError


def suggest(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Suggest a GPU and a window to look at: the ones nearest to the median.

    The GPU is the one whose computation, exposed communication, memory operations alone and idle time are nearest to
    the medians over the GPUs. Of its iterations it is the one of median length; if there are more than two, the first
    is left out, because it often warms up.
    """
    with opened(path, home, trim, rules) as given:
        found = representative(given.profile, given.gpus(gpu), given.rules, given.window)
        if found is None:
            raise UsageError(f"{path}: no iteration is in the window")
        window = found.iteration.overlap
        options = f"--gpu {found.gpu.device} --trim {_seconds(window.window_start_ns)} {_seconds(window.window_end_ns)}"
        if json:
            given.print_json({**asdict(found), "options": options})
            return
        typer.echo(
            f"GPU {found.gpu.device} of {found.gpus}: {milliseconds(found.distance_ns)} ms from the medians.\n"
            f"Iteration {found.iteration.number}, of {found.iterations}: {milliseconds(window.span_ns)} ms, from "
            f"{found.iteration.source}.\n"
            f"Look at it with: traceviz nsys overlap {shlex.quote(str(path))} {options}"
        )


def _seconds(nanoseconds: int) -> str:
    """An instant as --trim takes it, to the nanosecond."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{rest // 10**9}.{rest % 10**9:09d}"
