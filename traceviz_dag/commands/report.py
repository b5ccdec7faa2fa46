"""``traceviz report``: one page of an iteration that opens from disk, to send to others."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.compared import AgainstOption, compared_with
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.common.overwriting import check_output_of
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.shown import ShownPathsArgument, completeness_of, iterations_of
from traceviz_dag.errors import UsageError
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.system.paths import real_path


def report(
    paths: ShownPathsArgument = None,
    run: Annotated[str | None, typer.Option(help="Report on this run.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Report on this iteration; default: the last.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: HOME/reports/RUN/ITERATION.html.")
    ] = None,
    most_kernels: Annotated[
        int, typer.Option(min=0, help="Kernels that the timeline carries; of more, the shortest are left out.")
    ] = MOST_KERNELS,
    against: AgainstOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Write one HTML page of an iteration: its step, findings, timeline and measures. It opens without a network.

    New or changed traces are analysed first. Every number of the page leads to its rows and the SQL that gives them.
    """
    from traceviz_dag.pipeline.report import write_report

    with ExitStack() as opened:
        found = opened.enter_context(iterations_of(real_path(home), paths or [], run, iteration))
        runs = sorted({source.run for source in found})
        if len(runs) > 1:
            raise UsageError(f"there are {len(runs)} runs; name one with --run: {', '.join(runs[:5])}")
        chosen = max(found, key=lambda source: source.iteration)
        if out is not None:
            check_output_of(out, found)
        other = None if against is None else compared_with(chosen, against)
        place = None if other is None else (other.run, other.iteration)
        # One for the report and for what was not read.
        session = opened.enter_context(chosen.lake.session(run=chosen.run, iteration=chosen.iteration))
        chosen = replace(chosen, lake=session.within())
        path = write_report(chosen.lake, chosen.run, chosen.iteration, out and real_path(out), most_kernels, place)
        size = path.stat().st_size
        if json:
            answer = {"run": chosen.run, "iteration": chosen.iteration, "file": str(path), "bytes": size}
            compared = None if other is None else {"run": other.run, "iteration": other.iteration}
            print_json(answer | {"against": compared})
        else:
            which = f", the last of {len(found)}" if len(found) > 1 else ""
            beside = "" if other is None else f", against {other.run}, iteration {other.iteration}"
            typer.echo(f"{chosen.run}, iteration {chosen.iteration}{which}{beside}: {path} ({size / 1e6:,.1f} MB)")
        end_partial(completeness_of([chosen, *([other] if other else [])], paths or []))
