"""The Perfetto UI with a trace in it, served on loopback to who knows the token, and to no other origin."""

from __future__ import annotations

import json
import mimetypes
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.read.perfetto.exact_bytes import ExactBytes
from traceviz_dag.system.paths import real_path

PUBLIC_UI = "https://ui.perfetto.dev"
PUBLIC_PORT = 9001
"""The one port of loopback from which the public UI takes traces."""

PIPELINE_COMMANDS = (
    {"id": "dev.perfetto.PinTracksByRegex", "args": ["^stage \\d+ · rank"]},
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(pipeline|Global Track Events)"]},
)
"""Start-up commands that show the pipelines of an export at once: the micro-batches of every rank, pinned."""

EXPAND_ALL = ({"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]},)
"""Start-up commands that open every track of another trace."""

UI_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy under which the UI works, and connects to nobody but who serves it."""

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
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """What is served while the block of :func:`serve_trace` lasts.

    Attributes:
        url: what a browser is to open.
        base_ns: what was subtracted from the times of a JSON trace.
    """

    url: str
    base_ns: int


@dataclass(frozen=True, slots=True)
class _Site:
    """What the handler answers.

    Attributes:
        token: first part of every path.
        ui: folder of the UI; None where only the trace is served, to the public UI.
        trace: the trace file.
    """

    token: str
    ui: Path | None
    trace: Path
    headers: Mapping[str, str]
    origin: str | None


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
    token = secrets.token_urlsafe(24)
    headers, origin = (_PUBLIC_HEADERS, PUBLIC_UI) if public else (_HEADERS, None)
    site = _Site(token, None if public else ui, trace, headers, origin)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", PUBLIC_PORT if public else port), partial(_Handler, site))
    except OSError as error:
        raise UsageError(f"port {PUBLIC_PORT if public else port} is taken: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        own = f"http://127.0.0.1:{server.server_address[1]}/{token}"
        start = f"&startupCommands={quote(json.dumps(list(commands)))}" if commands else ""
        yield Served(f"{PUBLIC_UI if public else own}/#!/?url={own}/trace/{quote(trace.name)}{start}", base_ns)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ui_file(ui: Path, name: str) -> Path | None:
    """A file of the UI by its path there, its first page without one; None where there is no such file.

    Args:
        ui: the folder ``wasm_folder()`` names.
    """
    folder = real_path(ui.parent)
    try:
        path = real_path(folder / (name or "index.html"))
        # Without its service worker the UI keeps no copy of itself in the browser.
        known = path.is_relative_to(folder) and path.is_file() and path.name != "service_worker.js"
    except (OSError, ValueError):
        # No name of a file: too long, or with a NUL.
        known = False
    return path if known else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, site: _Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self._granted()
        if path is None:
            return
        if path.startswith("trace/"):
            self._send_trace()
        elif self.site.ui is not None:
            self._send_file(self.site.ui, path)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_OPTIONS(self) -> None:
        if self._granted() is not None:
            self._begin(HTTPStatus.NO_CONTENT, "text/plain", 0)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is logged: a path holds the token."""

    def _granted(self) -> str | None:
        """The path behind the token; None, after a refusal, for a stranger."""
        host, port = self.headers.get("Host", ""), self.connection.getsockname()[1]
        origin = self.headers.get("Origin")
        allowed = {f"http://127.0.0.1:{port}", self.site.origin} - {None}
        prefix = f"/{self.site.token}/"
        path = urlsplit(self.path).path
        # A name that another page has pointed at loopback still shows in Host; foreign pages show in Origin.
        if host != f"127.0.0.1:{port}" or (origin is not None and origin not in allowed):
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        if not secrets.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return path[len(prefix) :]

    def _send_file(self, ui: Path, name: str) -> None:
        path = ui_file(ui, name)
        if path is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        kind = "application/wasm" if path.suffix == ".wasm" else mimetypes.guess_type(path.name)[0]
        self._begin(HTTPStatus.OK, kind or "application/octet-stream", path.stat().st_size)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                self.wfile.write(block)

    def _send_trace(self) -> None:
        try:
            with ExactBytes(self.site.trace) as source:
                self._begin(HTTPStatus.OK, "application/octet-stream", None)
                for part in source.parts():
                    if part:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")
        except (BadInputError, OSError):
            # A body that ends without its last chunk is an error to the browser, as it should be.
            self.close_connection = True

    def _begin(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        for name, value in self.site.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
