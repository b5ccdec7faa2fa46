"""``traceviz dev``: the Dagster UI on this home."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import traceviz_dag
from traceviz_dag.commands.options import DEFAULT_HOME, HomeOption


def dev(
    home: HomeOption = DEFAULT_HOME,
    port: Annotated[int, typer.Option(help="Port of the web server.")] = 3000,
    host: Annotated[str, typer.Option(help="Address that it listens on.")] = "127.0.0.1",
    prepare_only: Annotated[
        bool,
        typer.Option("--prepare-only", help="Create HOME/dagster, if it is not there, and stop."),
    ] = False,
) -> None:
    """Open the Dagster UI on this home: lineage, partitions, runs and checks of everything analysed."""
    from traceviz_dag.orchestrate import open_instance, prepare_instance
    from traceviz_dag.processes import end_children_with_me
    from traceviz_dag.whole_files import exclusive_lock

    folder = home.resolve()
    instance_folder = prepare_instance(folder)
    if prepare_only:
        # Programs that start at once on an empty home would each create the same tables, and all but one fail.
        with exclusive_lock(instance_folder / ".prepare.lock"), open_instance(folder):
            pass
        typer.echo(f"DAGSTER_HOME={instance_folder}")
        return
    end_children_with_me()
    environment = os.environ | {"DAGSTER_HOME": str(instance_folder), "TRACEVIZ_HOME": str(folder)}
    # The folder of our own packages comes first on the path there, before a foreign assets/ in the current folder.
    packages = Path(traceviz_dag.__file__).resolve().parents[1]
    command = [sys.executable, "-m", "dagster", "dev", "-m", "traceviz_dag.definitions"]
    command += ["--working-directory", str(packages), "--port", str(port), "--host", host]
    typer.echo(f"Dagster UI on http://{host}:{port} for home {folder}; Ctrl-C ends it.")
    os.chdir(packages)
    os.execve(sys.executable, command, environment)
