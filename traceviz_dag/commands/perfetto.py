"""``traceviz perfetto``: iterations exported as Perfetto traces, SQL on any trace, and the Perfetto UI, offline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from traceviz_dag.commands.figures import iterations_of
from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.output import print_json
from traceviz_dag.errors import UsageError

if TYPE_CHECKING:
    from traceviz_dag.show.perfetto_iteration import Scope, WrittenTrace

perfetto = typer.Typer(
    name="perfetto",
    help="Perfetto both ways: export iterations, ask any trace with SQL, open the UI; all without internet.",
    no_args_is_help=True,
)

PathsArgument = Annotated[
    list[Path] | None, typer.Argument(help="Runs, iteration folders or trace files; without them the lake is read.")
]
RunOption = Annotated[str | None, typer.Option(help="Only this run of the lake.")]
IterationOption = Annotated[int | None, typer.Option(help="Only this iteration.")]
PipelineOption = Annotated[int | None, typer.Option(min=0, help="Only this pipeline group, by its number.")]
ReplicaOption = Annotated[int | None, typer.Option(min=0, help="Only this model replica, by its number.")]
RecordedOption = Annotated[
    bool, typer.Option("--recorded-clocks", help="Keep clocks as recorded, also where they are solved.")
]


@perfetto.command()
def export(
    paths: PathsArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    pipeline: PipelineOption = None,
    replica: ReplicaOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; .gz is compressed.")] = None,
    recorded_clocks: RecordedOption = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Write one Perfetto trace of an iteration, or of one pipeline or replica of it, into HOME/perfetto.

    Tracks by stage, rank and stream, micro-batches by name, arrows from sends to receives and across collectives, and
    counters. Traces that are given are analysed first, where they are new or changed.
    """
    from traceviz_dag.perfetto_pipeline import export_iteration

    scope, number = _scope(pipeline, replica)
    chosen = iterations_of(home.resolve(), paths or [], run, iteration)
    if out is not None and len(chosen) > 1:
        names = ", ".join(f"{each.run} {each.iteration}" for each in chosen[:5])
        raise UsageError(f"--out names one file, but there are {len(chosen)} iterations ({names}): choose one")
    written = []
    console = Console(stderr=True)
    for source in chosen:
        written.append(export_iteration(source, scope, number, out, recorded_clocks))
        if not json:
            for line in _lines(written[-1]):
                console.print(f"{source.run}, iteration {source.iteration}: {line}", markup=False, highlight=False)
            typer.echo(str(written[-1].path))
    if json:
        places = [{"run": source.run, "iteration": source.iteration} for source in chosen]
        rows = [asdict(each) | {"path": str(each.path)} for each in written]
        print_json([place | row for place, row in zip(places, rows, strict=True)])


def _scope(pipeline: int | None, replica: int | None) -> tuple[Scope, int | None]:
    from traceviz_dag.show.perfetto_iteration import Scope

    if pipeline is not None and replica is not None:
        raise UsageError("--pipeline and --replica exclude each other")
    if pipeline is not None:
        return Scope.PIPELINE, pipeline
    return (Scope.ITERATION, None) if replica is None else (Scope.REPLICA, replica)


def _lines(written: WrittenTrace) -> list[str]:
    lines = [
        f"{len(written.ranks)} ranks, {written.slices:,} slices, {written.arrows:,} arrows, "
        f"{written.bytes / 1e6:.1f} MB",
        written.clock,
    ]
    if written.missing:
        lines.append(f"no kernels of ranks {', '.join(map(str, written.missing))}")
    if written.backward:
        lines.append(f"{written.backward} arrows left out, which would run against time on these clocks")
    return lines
