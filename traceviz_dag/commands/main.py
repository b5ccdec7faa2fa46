"""The ``traceviz`` program: its subcommands, and the one place that turns errors into lines."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, ClassVar

import typer

from traceviz_dag.commands.lazy import LazyGroup
from traceviz_dag.errors import TracevizError

_COMMANDS = (
    *("demo", "simulate", "analyze", "classify", "batch", "aggregate", "figures"),
    *("iterations", "topology", "overlap", "clocks", "waits", "pipelines", "periods", "gate"),
    *("accuracy", "sql", "dev", "doctor", "capture"),
)


class _Group(LazyGroup):
    places: ClassVar = {
        **{name: f"traceviz_dag.commands.{name}:{name}" for name in _COMMANDS},
        "webserver": "traceviz_dag.commands.dev:webserver",
        "batch": "traceviz_dag.commands.analyze:batch",
        "nsys": "traceviz_dag.commands.nsys.app:nsys_app",
        "perfetto": "traceviz_dag.commands.perfetto:perfetto",
    }


app = typer.Typer(
    name="traceviz",
    cls=_Group,
    help="Which rank, stage or link makes a Megatron-LM training step slow, read from its profiler traces.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


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
