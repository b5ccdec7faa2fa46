"""``traceviz nsys threads``: which threads of the host use its processors."""

from __future__ import annotations

from dataclasses import asdict

import typer

from traceviz_dag.analyze.nsys.activity import processes_of
from traceviz_dag.analyze.nsys.threads import threads_by_cycles
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, TrimOption, opened


def threads(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show which threads of the host use its processors, by sampled cycles.

    Shares are of the cycles of all threads that were sampled in the window, whatever their process.
    """
    with opened(path, home, trim) as given:
        processes = processes_of(given.gpus(gpu)) if gpu else None
        rows = [asdict(one) for one in threads_by_cycles(given.profile, processes, given.window)]
        if json:
            given.print_json(rows)
            return
        if not rows and not len(given.profile.rows("samples", "thread")):
            typer.echo("The export holds no samples of processors; profile with --sample=process-tree.")
            return
        columns = ["process", "thread", "name", "samples", "cycles", "share"]
        print_columns("Threads of the host, by sampled cycles", rows, columns)
