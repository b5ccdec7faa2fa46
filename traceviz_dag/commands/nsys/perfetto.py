"""``traceviz nsys perfetto``: a trace that Perfetto's UI opens."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.overwriting import check_output
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.show.nsys.perfetto import write_perfetto
from traceviz_dag.system.paths import real_path


def perfetto(
    path: ProfileArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Trace to write; compressed if its name ends in .gz.", dir_okay=False)
    ] = Path("profile.pftrace.gz"),
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write a native Perfetto trace: streams, NVTX ranges, calls with arrows to what they launched, GPU metrics.

    Times are exact. If the capture states its start, they are UTC, so that traces of several nodes line up.
    """
    check_output(output, path)
    with opened(path, home, trim, rules) as given:
        slices = write_perfetto(given.profile, given.gpus(gpu), real_path(output), given.window)
        typer.echo(f"{slices} slices: {output}; open it with: traceviz perfetto open {shlex.quote(str(output))}")
