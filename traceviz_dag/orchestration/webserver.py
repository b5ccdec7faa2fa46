"""Dagster's web server behind our guard, so that no other web page can start runs or read what the UI shows."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import uvicorn
from dagster import DagsterInstance
from dagster_shared.cli import WorkspaceOpts
from dagster_webserver.cli import (  # type: ignore[attr-defined] # what its own command serves, from where that has it
    DEFAULT_DB_STATEMENT_TIMEOUT,
    DEFAULT_POOL_MAX_OVERFLOW,
    DEFAULT_POOL_RECYCLE,
    WorkspaceProcessContext,
    workspace_opts_to_load_target,
)
from dagster_webserver.version import __version__
from dagster_webserver.webserver import DagsterWebserver
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from traceviz_dag.show.web.guard import Guard
from traceviz_dag.show.web.http_reader import LONGEST_HEAD, BoundedReader
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import FIGURES_FOLDER, PREVIEWS_FOLDER

_POLL_MILLISECONDS = 2000
_NOT_DRAWN = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="460" height="40"><text x="4" y="25" font-family="sans-serif" '
    'font-size="14" fill="#68707a">Not drawn: materialize the asset of this figure.</text></svg>'
)
"""What a table's page shows in the place of its picture."""


def guarded(ui: Starlette, hosts: frozenset[str], home: Path) -> Starlette:
    """Dagster's UI, which from now on answers only to hosts that are known, and which shows the pictures of a home.

    Pages that show notebooks are closed: a link of a foreign page could have such a file, scripts and all, shown as one
    of ours.

    Args:
        hosts: from ``guard.known_hosts``. home: whose pictures are served.
    """
    folder = home / FIGURES_FOLDER

    def picture(request: Request) -> Response:
        """One that the metadata of a figure links to."""
        return show_picture(folder, request)

    pictures = Route(f"/{FIGURES_FOLDER}/{{name:path}}", picture)
    # Before Dagster's own pages, one of which takes every address.
    ui.router.routes[:0] = [pictures, *(Route(path, _closed) for path in ("/notebook", "/dagit/notebook"))]
    ui.add_middleware(Guard, hosts=hosts)
    return ui


def show_picture(folder: Path, request: Request) -> Response:
    """A picture of a folder as it is now, or what says in its place that it is not drawn.

    Raises:
        HTTPException: there is no such picture, and none is expected.
    """
    try:
        path = real_path(folder / request.path_params["name"])
        known = path.suffix == ".png" and path.is_relative_to(real_path(folder)) and path.is_file()
    except (OSError, ValueError):
        # No name of a file: too long, or with a NUL.
        known = False
    if not known and PREVIEWS_FOLDER in request.path_params["name"].split("/"):
        # A browser shows it in the picture's place, whatever the status.
        return Response(_NOT_DRAWN, HTTPStatus.NOT_FOUND, media_type="image/svg+xml")
    if not known:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    # Without a version in its address, the same address has another picture tomorrow.
    return FileResponse(
        path, media_type="image/png", headers={} if request.url.query else {"cache-control": "no-cache"}
    )


def _closed(_: Request) -> Response:
    raise HTTPException(HTTPStatus.NOT_FOUND)


def serve_ui(
    instance: DagsterInstance, home: Path, workspace: Path, host: str, port: int, hosts: frozenset[str]
) -> None:
    """Serve the UI until the process is asked to stop.

    Args:
        home: whose pictures are served.
        workspace: YAML file that lists the code servers.
        host, port: address to listen on. hosts: from ``guard.known_hosts``.
    """
    instance.optimize_for_webserver(DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
    shown = workspace_opts_to_load_target(WorkspaceOpts(workspace=[str(workspace)]))
    with WorkspaceProcessContext(instance, shown, version=__version__) as context:
        ui = DagsterWebserver(context, live_data_poll_rate=_POLL_MILLISECONDS).create_asgi_app()
        uvicorn.run(
            guarded(ui, hosts, home),
            host=host,
            port=port,
            log_level="warning",
            http=BoundedReader,
            h11_max_incomplete_event_size=LONGEST_HEAD,
        )
