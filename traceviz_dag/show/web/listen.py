"""Listening on loopback, and answering there until the process is asked to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from traceviz_dag.errors import UsageError
from traceviz_dag.show.web.addresses import LOOPBACK
from traceviz_dag.show.web.http_reader import LONGEST_HEAD, BoundedReader

_END_SECONDS = 3


def listen(port: int) -> socket.socket:
    """A socket on loopback that takes connections from now on.

    Args:
        port: 0 takes a free one.

    Raises:
        UsageError: another program listens there, or the port is not for users.
    """
    listening = socket.socket(socket.AF_INET)
    # Connections of an earlier server that are still closing are no hindrance.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UsageError(
            f"cannot listen on {LOOPBACK} port {port}: {error.strerror}; name another with --port, or any free one "
            "with --port 0"
        ) from None
    return listening


class LoopbackServer(uvicorn.Server):
    """A server of an application.

    Args:
        started: called when it answers.
    """

    def __init__(self, app: ASGIApp, started: Callable[[], None] = lambda: None) -> None:
        super().__init__(_settings(app))
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._started()


def _settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        http=BoundedReader,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        # Addresses hold the token.
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_END_SECONDS,
    )


def answer(app: ASGIApp, listening: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until SIGINT or SIGTERM, which then do what they did before this was called.

    Args:
        started: called when it does.
    """
    LoopbackServer(app, started).run(sockets=[listening])
