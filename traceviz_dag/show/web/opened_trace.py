"""The Perfetto UI with one trace in it, served on loopback to who knows the token, and to no other origin."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.perfetto.exact_bytes import ExactBytes
from traceviz_dag.show.perfetto.ui import UI_POLICY, kind_of, ui_file
from traceviz_dag.show.web.listen import LoopbackServer, listen

PUBLIC_UI = "https://ui.perfetto.dev"
PUBLIC_PORT = 9001
"""The one port of loopback from which the public UI takes traces."""

_HEADERS = {
    "Content-Security-Policy": UI_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PUBLIC_HEADERS = {
    "Access-Control-Allow-Origin": PUBLIC_UI,
    "Access-Control-Allow-Private-Network": "true",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Served:
    """What is served while the block of :func:`serve_trace` lasts.

    Attributes:
        url: what a browser is to open.
        base_ns: what was subtracted from the times of a JSON trace.
    """

    url: str
    base_ns: int


@contextmanager
def serve_trace(
    trace: Path, ui: Path | None, commands: Sequence[Mapping[str, object]] = (), public: bool = False, port: int = 0
) -> Iterator[Served]:
    """Serve the UI and one trace on loopback, in a thread that ends with the block.

    A JSON trace is served rebased, so that the UI loses no nanosecond of it.

    Args:
        ui: the folder ``wasm_folder()`` names; not needed for the public UI.
        commands: the UI's start-up commands.
        public: serve the trace alone, for the public UI to fetch; it leaves this machine only if the browser sends it.
        port: 0 takes a free one; the public UI needs ``PUBLIC_PORT``.

    Raises:
        BadInputError: there is no such trace.
        UsageError: there is no UI, or the port is taken.
    """
    if ui is None and not public:
        raise UsageError("the Perfetto UI is not installed: install traceviz-dag[perfetto-offline], or use --public")
    with ExactBytes(trace) as source:
        base_ns = source.base_ns
    token, started = secrets.token_urlsafe(24), threading.Event()
    try:
        bound = listen(PUBLIC_PORT if public else port)
    except UsageError:
        if not public:
            raise
        raise UsageError(f"port {PUBLIC_PORT} is taken, and the public UI takes traces from no other") from None
    with bound as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        server = LoopbackServer(_application(host, token, trace, None if public else ui), started.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        started.wait()
        try:
            own = f"http://{host}/{token}"
            start = f"&startupCommands={quote(json.dumps(list(commands)))}" if commands else ""
            yield Served(f"{PUBLIC_UI if public else own}/#!/?url={own}/trace/{quote(trace.name)}{start}", base_ns)
        finally:
            server.should_exit = True
            thread.join()


def _application(host: str, token: str, trace: Path, ui: Path | None) -> Starlette:
    """What answers: the trace, and the UI; without that, the trace alone, to the public one."""
    origin, headers = (PUBLIC_UI, _PUBLIC_HEADERS) if ui is None else (None, _HEADERS)

    def answer(request: Request) -> Response:
        # A name that another page has pointed at loopback still shows in Host; foreign pages show in Origin.
        asked_by = request.headers.get("origin")
        if request.headers.get("host") != host or asked_by not in (None, f"http://{host}", origin):
            return Response(status_code=HTTPStatus.FORBIDDEN)
        shown, _, path = request.path_params["path"].partition("/")
        if not secrets.compare_digest(shown.encode(), token.encode()):
            return Response(status_code=HTTPStatus.NOT_FOUND)
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
        if path.startswith("trace/"):
            return _Streamed(_parts(trace), media_type="application/octet-stream", headers=headers)
        file = None if ui is None else ui_file(ui, path)
        if file is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        return FileResponse(file, media_type=kind_of(file), headers=headers)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "OPTIONS"])])


class _Streamed(StreamingResponse):
    """A body that ends without its last part where that cannot be read: an error to the browser, as it should be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(BadInputError, OSError):
            await super().__call__(scope, receive, send)


def _parts(trace: Path) -> Iterator[bytes]:
    with ExactBytes(trace) as source:
        yield from source.parts()
