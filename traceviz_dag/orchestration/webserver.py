"""Dagster's web server behind our guard, so that no other web page can start runs or read what the UI shows."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_webserver.cli import DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_MAX_OVERFLOW, DEFAULT_POOL_RECYCLE
from dagster_webserver.version import __version__
from dagster_webserver.webserver import DagsterWebserver
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

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


class GuardedWebserver(DagsterWebserver[WorkspaceProcessContext, WorkspaceRequestContext]):
    """The UI of Dagster, which answers only to hosts that are known, and which shows the pictures of a home.

    Args:
        context: what the UI shows. hosts: from ``guard.known_hosts``. home: whose pictures are served.
    """

    def __init__(self, context: WorkspaceProcessContext, hosts: frozenset[str], home: Path) -> None:
        self._hosts = hosts
        self._pictures = home / FIGURES_FOLDER
        super().__init__(context, live_data_poll_rate=_POLL_MILLISECONDS)

    def build_middleware(self) -> list[Middleware]:
        """Dagster's own middleware, behind the guard."""
        return [Middleware(Guard, hosts=self._hosts), *super().build_middleware()]

    def build_routes(self) -> list[BaseRoute]:
        """The pictures, which the metadata of figures links to, before Dagster's own pages; none that shows notebooks.

        A link of a foreign page could have such a file, scripts and all, shown as one of our pages.
        """
        pictures = Route(f"/{FIGURES_FOLDER}/{{name:path}}", self._picture)
        closed = [Route(path, _closed) for path in ("/notebook", "/dagit/notebook")]
        return [pictures, *closed, *super().build_routes()]  # type: ignore[no-untyped-call]

    def _picture(self, request: Request) -> Response:
        try:
            path = real_path(self._pictures / request.path_params["name"])
            known = path.suffix == ".png" and path.is_relative_to(real_path(self._pictures)) and path.is_file()
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
    with WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)]), version=__version__) as context:
        app = GuardedWebserver(context, hosts, home).create_asgi_app()
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            http=BoundedReader,
            h11_max_incomplete_event_size=LONGEST_HEAD,
        )
