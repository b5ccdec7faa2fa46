"""``traceviz dev``: the Dagster UI on this home; ``traceviz webserver``: its web server alone, for a deployment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

import traceviz_dag
from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.show.web.guard import ALLOWED_HOSTS_VARIABLE, check_address, hosts_of_environment, known_hosts
from traceviz_dag.system.paths import real_path

_LOOPBACK = "127.0.0.1"

HostOption = Annotated[
    str,
    typer.Option(help=f"Address to listen on; beyond loopback, {ALLOWED_HOSTS_VARIABLE} must name the allowed hosts."),
]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="Port of the web server.")]


def dev(
    home: HomeOption = DEFAULT_HOME,
    port: PortOption = 3000,
    host: HostOption = _LOOPBACK,
    prepare_only: Annotated[
        bool,
        typer.Option("--prepare-only", help="Create HOME/dagster if it is missing, and exit."),
    ] = False,
) -> None:
    """Open the Dagster UI on this home: lineage, partitions, runs and checks of everything analysed.

    Requests that other web pages send (with a foreign Host or Origin) are refused.
    """
    from traceviz_dag.orchestration.instance import INSTANCE_FOLDER, open_instance

    folder = real_path(home)
    instance_folder = folder / INSTANCE_FOLDER
    if prepare_only:
        # Programs that start at once on an empty home (web server, daemon, code server) find every storage set up.
        with open_instance(folder):
            pass
        typer.echo(f"DAGSTER_HOME={instance_folder}")
        return
    check_address(host, hosts_of_environment())
    from traceviz_dag.orchestration.services import run_services
    from traceviz_dag.system.processes import end_children_with_me

    # The folder of our own packages comes first on the path there, before a foreign assets/ in the current folder.
    packages = real_path(Path(traceviz_dag.__file__)).parents[1]
    os.chdir(packages)
    named = {"DAGSTER_HOME": str(instance_folder), "TRACEVIZ_HOME": str(folder), "DAGSTER_IS_DEV_CLI": "1"}
    os.environ.update(named)
    end_children_with_me()
    end_on(signal.SIGTERM)
    try:
        with open_instance(folder):
            # Every storage is set up before the services look at it.
            typer.echo(f"Dagster UI on http://{host}:{port} for home {folder}; Ctrl-C stops it.")
        run_services(packages, port, host, named)
    except KeyboardInterrupt:
        typer.echo("Ended.", err=True)


def webserver(
    workspace: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="YAML file that lists the code servers.")
    ],
    home: HomeOption = DEFAULT_HOME,
    port: PortOption = 3000,
    host: HostOption = _LOOPBACK,
) -> None:
    """Serve the Dagster UI of the instance in DAGSTER_HOME, as a separate service.

    It has no login. To share it, put a proxy with a login in front, and name the proxy's host in
    TRACEVIZ_ALLOWED_HOSTS; requests with another Host or Origin are refused.
    """
    further = hosts_of_environment()
    check_address(host, further)
    from dagster import DagsterInstance

    from traceviz_dag.orchestration.webserver import serve_ui

    with DagsterInstance.get() as instance:
        serve_ui(instance, real_path(home), workspace, host, port, known_hosts(port, further))
