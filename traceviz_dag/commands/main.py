"""The ``traceviz`` program: its subcommands, and the one place that turns errors into lines."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from traceviz_dag.commands.accuracy import accuracy
from traceviz_dag.commands.aggregate import aggregate
from traceviz_dag.commands.analyze import analyze, batch
from traceviz_dag.commands.capture import capture
from traceviz_dag.commands.classify import classify
from traceviz_dag.commands.clocks import clocks
from traceviz_dag.commands.demo import demo
from traceviz_dag.commands.dev import dev
from traceviz_dag.commands.doctor import doctor
from traceviz_dag.commands.figures import figures
from traceviz_dag.commands.gate import gate
from traceviz_dag.commands.iterations import iterations
from traceviz_dag.commands.nsys.app import nsys_app
from traceviz_dag.commands.overlap import overlap
from traceviz_dag.commands.perfetto import perfetto
from traceviz_dag.commands.periods import periods
from traceviz_dag.commands.pipelines import pipelines
from traceviz_dag.commands.simulate import simulate
from traceviz_dag.commands.sql import sql
from traceviz_dag.commands.topology import topology
from traceviz_dag.commands.waits import waits
from traceviz_dag.errors import TracevizError

COMMANDS = (
    *(demo, simulate, analyze, classify, batch, aggregate, figures),
    *(iterations, topology, overlap, clocks, waits, pipelines, periods, gate),
    *(accuracy, sql, dev, doctor),
)

app = typer.Typer(
    name="traceviz",
    help="Which rank, stage or link makes a Megatron-LM training step slow, read from its profiler traces.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _command in COMMANDS:
    app.command()(_command)
app.add_typer(capture, name="capture")
app.add_typer(nsys_app)
app.add_typer(perfetto)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"traceviz-dag {version('traceviz-dag')}")
        except PackageNotFoundError:
            typer.echo("traceviz-dag, run from its sources without being installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the subcommand."""


def main() -> None:
    """Run the program; an error that a user can mend is one line on stderr and exit code 2 (1 for a failed gate)."""
    try:
        app()
    except TracevizError as error:
        typer.echo(f"traceviz: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has gone; nobody is left to tell.
        sys.exit(0)


if __name__ == "__main__":
    main()
