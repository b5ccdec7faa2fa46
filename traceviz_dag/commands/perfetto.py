"""``traceviz perfetto``: iterations exported as Perfetto traces, SQL on any trace, and the Perfetto UI, offline."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.analyze.wording import numbered
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json, terminal
from traceviz_dag.commands.common.overwriting import check_output_of
from traceviz_dag.commands.common.partial import end_partial, tell_partial
from traceviz_dag.commands.common.rows import as_json, print_rows
from traceviz_dag.commands.common.shown import ShownPathsArgument, completeness_of, iterations_of
from traceviz_dag.errors import BadInputError, IncompleteError, UsageError
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.pipeline.completeness import Completeness
    from traceviz_dag.read.perfetto.session import TraceSession
    from traceviz_dag.show.perfetto.iteration import Scope, WrittenTrace

perfetto = typer.Typer(
    name="perfetto",
    help="Export iterations to Perfetto, query any trace with PerfettoSQL, open the UI; all without internet.",
    no_args_is_help=True,
)

RunOption = Annotated[str | None, typer.Option(help="Take only this run.")]
IterationOption = Annotated[int | None, typer.Option(help="Take only this iteration.")]
PipelineOption = Annotated[int | None, typer.Option(min=0, help="Take only the pipeline group with this number.")]
ReplicaOption = Annotated[int | None, typer.Option(min=0, help="Take only the model replica with this number.")]
RecordedOption = Annotated[
    bool, typer.Option("--recorded-clocks", help="Keep clocks as recorded, even if they are solved.")
]


@perfetto.command()
def export(
    paths: ShownPathsArgument = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    pipeline: PipelineOption = None,
    replica: ReplicaOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; compressed if its name ends in .gz.")
    ] = None,
    recorded_clocks: RecordedOption = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Write one Perfetto trace of an iteration, or of one pipeline or replica of it, into HOME/perfetto.

    The trace has tracks by stage, rank and stream, named micro-batches, counters, and arrows from sends to receives
    and across collectives. New or changed traces are analysed first.
    """
    from traceviz_dag.pipeline.perfetto_export import export_iteration

    scope, number = _scope(pipeline, replica)
    with iterations_of(real_path(home), paths or [], run, iteration) as chosen:
        if out is not None and len(chosen) > 1:
            names = ", ".join(f"{each.run} {each.iteration}" for each in chosen[:5])
            raise UsageError(f"--out names one file, but there are {len(chosen)} iterations ({names}): choose one")
        if out is not None:
            check_output_of(out, chosen)
        written = []
        console = terminal(stderr=True)
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
        end_partial(completeness_of(chosen, paths or []))


TraceArgument = Annotated[Path, typer.Argument(help="Trace of any format that Perfetto reads.")]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--trace-processor",
        envvar="TRACEVIZ_TRACE_PROCESSOR",
        help="Trace processor to use: HOST:PORT, a path, native, wasm or download; default: native, else wasm.",
    ),
]


@perfetto.command()
def query(
    trace: TraceArgument,
    sql: Annotated[str | None, typer.Argument(help="PerfettoSQL statement; default: open a prompt.")] = None,
    trace_processor: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Query any trace with PerfettoSQL, without internet.

    The tables traceviz_kernels and traceviz_microbatches hold our categories and micro-batches; join them by slice_id.
    A line on stderr counts what the importer dropped. Times are those of the trace as loaded: see docs/perfetto.md.
    """
    from traceviz_dag.read.perfetto.engines import find_engine
    from traceviz_dag.read.perfetto.session import open_trace

    if sql is None and json:
        raise UsageError("--json needs a query")
    with open_trace(trace, find_engine(trace_processor)) as session:
        for line in load_lines(session):
            typer.echo(f"traceviz: {line}", err=True)
        if sql is None:
            prompt(session)
            return
        rows = ask(session, sql)
        if json:
            typer.echo(as_json(rows))
        else:
            print_rows(rows, terminal())
        if session.read_fault:
            raise IncompleteError(f"{trace}: the rows are of a part of the trace: {session.read_fault}")


@perfetto.command()
def compare(
    trace: Annotated[Path, typer.Argument(help="Kineto trace.")],
    trace_processor: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Read a Kineto trace with our reader and with Perfetto's, and compare them row by row.

    The exit code is 1 if a difference is unexplained. Explained differences are rows that Perfetto reports as dropped,
    and rows of threads with a negative id.
    """
    from traceviz_dag.pipeline.ranks import read_fault
    from traceviz_dag.read.kineto.reader import read_kineto
    from traceviz_dag.read.perfetto.comparison import compare as compared
    from traceviz_dag.read.perfetto.engines import find_engine
    from traceviz_dag.read.perfetto.reader import read_with_perfetto

    own = read_kineto(trace)
    found = compared(own, read_with_perfetto(trace, find_engine(trace_processor)))
    if json:
        print_json(asdict(found) | {"unexplained": found.unexplained})
    else:
        print_columns(
            f"{trace.name}: {found.dropped} slices dropped by Perfetto, {found.unexplained} rows differ without reason",
            found.differences,
            [
                *("table", ("own", "rows"), ("other", "rows by Perfetto"), ("only_own", "only ours")),
                *(("only_other", "only Perfetto's"), ("on_odd_threads", "of odd threads")),
            ],
        )
    if (fault := read_fault(own)) is not None:
        raise IncompleteError(f"{trace}: a part of the trace was compared: {fault}")
    if found.unexplained:
        raise typer.Exit(1)


@perfetto.command("open")
def open_ui(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="Trace of any format that Perfetto reads, or a folder of traces; default: what the home holds."
        ),
    ] = None,
    run: RunOption = None,
    iteration: IterationOption = None,
    pipeline: PipelineOption = None,
    replica: ReplicaOption = None,
    public: Annotated[bool, typer.Option("--public", help="Open ui.perfetto.dev instead of the bundled UI.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 = any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser on this machine.")] = True,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Open the Perfetto UI on a trace, without internet; Ctrl-C stops it.

    The UI and the trace are served on loopback, under a random path, to this origin alone. An iteration is exported
    first, and its pipelines are pinned. If it was not read completely, a line says so first, and the exit code is 2.
    """
    import webbrowser

    from traceviz_dag.pipeline.perfetto_export import export_iteration
    from traceviz_dag.read.perfetto.engines import wasm_folder
    from traceviz_dag.show.perfetto.ui import EXPAND_ALL, PIPELINE_COMMANDS
    from traceviz_dag.show.web.opened_trace import serve_trace

    partial: list[Completeness] = []
    exported = trace is None or trace.is_dir() or real_path(home) / "perfetto" in real_path(trace).parents
    if trace is None or trace.is_dir():
        with iterations_of(real_path(home), [] if trace is None else [trace], run, iteration) as chosen:
            source = chosen[-1]
            partial = tell_partial(completeness_of([source], [] if trace is None else [trace]))
            trace = export_iteration(source, *_scope(pipeline, replica)).path
            typer.echo(f"{source.run}, iteration {source.iteration}: {trace}")
    commands = PIPELINE_COMMANDS if exported else EXPAND_ALL
    with serve_trace(trace, wasm_folder(), commands, public, port) as served:
        if served.base_ns:
            typer.echo(f"{served.base_ns} ns were subtracted from all times, so that none loses a nanosecond")
        typer.echo(f"Perfetto UI: {served.url}\nCtrl-C stops it.")
        if browser and _has_screen():
            webbrowser.open(served.url)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    if partial:
        raise IncompleteError(f"partial result for {source.run} {source.iteration} (see above)")


def _has_screen() -> bool:
    """Whether a browser would open a window; without a screen some would take over the terminal instead."""
    return not sys.platform.startswith("linux") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))


def load_lines(session: TraceSession) -> list[str]:
    """What a user must know of how a trace was loaded."""
    lines = [f"Perfetto's importer lost something: {problem}" for problem in session.problems]
    if session.read_fault:
        lines.append(session.read_fault)
    if session.base_ns:
        lines.append(f"{session.base_ns} ns were subtracted from all times, so that none loses a nanosecond")
    return lines


def ask(session: TraceSession, sql: str) -> pa.Table:
    """The rows of a statement, our tables made before it where it names them."""
    from traceviz_dag.pipeline.perfetto_tables import add_tables_where_named
    from traceviz_dag.read.secrets import masked_table

    joined = add_tables_where_named(session, sql)
    if joined is not None and joined.without_slice:
        typer.echo(
            f"traceviz: {joined.without_slice} of {joined.kernels} kernels have no slice in Perfetto: slice_id is NULL",
            err=True,
        )
    return masked_table(session.query(sql))


def prompt(session: TraceSession) -> None:
    """Read statements until the input ends; a statement ends with a semicolon or an empty line."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its history

    typer.echo("PerfettoSQL; a statement ends with ; or an empty line, Ctrl-D leaves.", err=True)
    lines: list[str] = []
    while True:
        try:
            line = input("     ... " if lines else "perfetto> ")
        except EOFError:
            typer.echo(err=True)
            return
        except KeyboardInterrupt:
            typer.echo(err=True)
            lines = []
            continue
        lines += [line] if line.strip() else []
        if lines and (not line.strip() or line.rstrip().endswith(";")):
            statement, lines = "\n".join(lines), []
            try:
                print_rows(ask(session, statement), terminal())
            except (UsageError, BadInputError) as error:
                typer.echo(f"traceviz: {error}", err=True)


def _scope(pipeline: int | None, replica: int | None) -> tuple[Scope, int | None]:
    from traceviz_dag.show.perfetto.iteration import Scope

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
        lines.append(f"no kernels of {numbered('rank', written.missing)}")
    if written.backward:
        lines.append(f"{written.backward} arrows left out, which would run against time on these clocks")
    return lines
