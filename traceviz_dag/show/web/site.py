"""The application of ``traceviz serve``: the pages of a home behind guard and door.

A page is a file in ``pages/`` with a function ``routes``, and its line in ``_PAGES``, or in ``site`` where it takes
more than the home.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from traceviz_dag.errors import TracevizError
from traceviz_dag.show.web.door import Door, ReadOnly
from traceviz_dag.show.web.guard import Guard, known_hosts
from traceviz_dag.show.web.layout import style_routes
from traceviz_dag.show.web.live.sources import Sources
from traceviz_dag.show.web.pages import figures, iteration, perfetto, reports, runs, timeline

_PAGES: tuple[Callable[[Path], Sequence[BaseRoute]], ...] = (
    figures.routes,
    reports.routes,
    perfetto.routes,
)


def site(
    home: Path, token: str, port: int, further_hosts: Sequence[str] = (), sources: Sources | None = None
) -> Starlette:
    """The application.

    Args:
        sources: what live timelines walk through; without them there are no such pages.
        home: what it shows, absolute. token: who shows it is let in.
        port: that it listens on. further_hosts: names of a proxy in front.
    """
    live = [*runs.routes(home, sources is not None), *iteration.routes(home, sources is not None)]
    if sources is not None:
        live += timeline.routes(home, sources)
    return Starlette(
        routes=[*style_routes(), *(route for routes in _PAGES for route in routes(home)), *live],
        middleware=[
            Middleware(ReadOnly, written=timeline.is_written),
            # Who has no token is read this far, too.
            Middleware(Guard, hosts=known_hosts(port, further_hosts), longest_body=timeline.LONGEST_BODY),
            Middleware(Door, token=token, port=port),
        ],
        exception_handlers={HTTPException: _refused, TracevizError: _failed},
    )


def _refused(_: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (404, "")
    return PlainTextResponse(f"{detail}\n", status)


def _failed(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", HTTPStatus.INTERNAL_SERVER_ERROR)
