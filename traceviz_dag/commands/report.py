"""``traceviz report``: one page of an iteration that opens from disk, to send to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.shown import completeness_of, iterations_of
from traceviz_dag.errors import UsageError
from traceviz_dag.system.paths import real_path


def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders, iteration folders or trace files; default: what the home holds."),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Report on this run.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Report on this iteration; default: the last.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: HOME/reports/RUN/ITERATION.html.")
    ] = None,
    most_kernels: Annotated[
        int, typer.Option(min=0, help="Kernels that the timeline carries; of more, the shortest are left out.")
    ] = 1_000_000,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Write one HTML page of an iteration: its step, findings, timeline and measures. It opens without a network.

    New or changed traces are analysed first. Every number of the page leads to its rows and the SQL that gives them.
    """
    from traceviz_dag.pipeline.report import write_report

    with iterations_of(real_path(home), paths or [], run, iteration) as found:
        runs = sorted({source.run for source in found})
        if len(runs) > 1:
            raise UsageError(f"there are {len(runs)} runs; name one with --run: {', '.join(runs[:5])}")
        chosen = max(found, key=lambda source: source.iteration)
        path = write_report(chosen.lake, chosen.run, chosen.iteration, out and real_path(out), most_kernels)
        size = path.stat().st_size
        if json:
            print_json({"run": chosen.run, "iteration": chosen.iteration, "file": str(path), "bytes": size})
        else:
            which = f", the last of {len(found)}" if len(found) > 1 else ""
            typer.echo(f"{chosen.run}, iteration {chosen.iteration}{which}: {path} ({size / 1e6:,.1f} MB)")
        end_partial(completeness_of([chosen], paths or []))
