"""A local HTTP server that behaves as a Hugging Face hub does: revisions, listings, redirects to storage, ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """One data set.

    Attributes:
        requests: (method, path, Range header) of each request.
        stall_after: bytes after which a file's transfer stops without ending, until ``resume`` is set; None sends all.
        cut_after: bytes after which a file's transfer breaks, once.
        wrong: whether storage sends other bytes than the listing promises.
        commit: what it says its newest commit is.
        said: what it says of the data set instead; None says what is true.
        size: what it states as the size of every file; None states what is true.
        busy: whether storage asks everybody to come again in three years.
        too_much: whether the transfer of a file does not end.
        next_page: where it says that the next page of the listing is.
        tokens: the Authorization header of each request that had one.
    """

    daemon_threads = True

    def __init__(self, repository: str, files: dict[str, bytes]) -> None:
        self.repository, self.files = repository, files
        self.requests: list[tuple[str, str, str | None]] = []
        self.stall_after: int | None = None
        self.cut_after: int | None = None
        self.wrong = False
        self.said: bytes | None = None
        self.size: int | None = None
        self.busy = self.too_much = False
        self.next_page: str | None = None
        self.commit = COMMIT
        self.tokens: list[str] = []
        self.resume, self.stalled = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self) -> list[str | None]:
        """Range headers of the transfers of files, in order."""
        return [given for method, path, given in self.requests if method == "GET" and path.startswith("/storage/")]


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.server, urlparse(self.path).path
        hub.requests.append((self.command, path, self.headers.get("Range")))
        hub.tokens += self.headers.get_all("Authorization", [])
        api, resolve = f"/api/datasets/{hub.repository}", f"/datasets/{hub.repository}/resolve/"
        if path.startswith("/storage/"):
            self._storage(hub.files[path.removeprefix("/storage/")], body)
        elif path.startswith(resolve) and path.removeprefix(resolve).split("/", 1)[1] in hub.files:
            self._redirect(path.removeprefix(resolve).split("/", 1)[1])
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._json({"id": hub.repository, "sha": hub.commit, "private": False, "siblings": self._entries()})
        else:
            known = path.startswith(api)
            self._json({"error": "not found"}, 404, "RevisionNotFound" if known else "RepoNotFound")

    def _entries(self) -> list[dict[str, object]]:
        entries = []
        for name, data in self.server.files.items():
            digest = hashlib.sha256(data).hexdigest()
            large = {"sha256": digest, "size": len(data), "pointerSize": 134}
            entries.append({"blobId": digest[:40], "size": len(data), "rfilename": name, "lfs": large})
        return entries

    def _json(self, value: object, status: int = 200, code: str | None = None) -> None:
        data = json.dumps(value).encode() if self.server.said is None else self.server.said
        self.send_response(status)
        if self.server.next_page is not None:
            self.send_header("Link", f'<{self.server.next_page}>; rel="next"')
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _redirect(self, name: str) -> None:
        data = self.server.files[name]
        self.send_response(302)
        self.send_header("Location", f"{self.server.address}/storage/{name}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(data) if self.server.size is None else self.server.size))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _storage(self, data: bytes, body: bool) -> None:
        hub = self.server
        if hub.busy:
            self.send_response(429)
            self.send_header("RateLimit", '"api";r=0;t=99999999')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if hub.wrong:
            data = bytes(byte ^ 1 for byte in data)
        given = self.headers.get("Range")
        start = int(given.removeprefix("bytes=").split("-")[0]) if given else 0
        part = data[start:]
        self.send_response(206 if given else 200)
        if given:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        if hub.size is not None:
            self.send_header("X-Linked-Size", str(hub.size))
        if hub.too_much:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            return
        if hub.cut_after is not None:
            part, hub.cut_after = part[: hub.cut_after], None
            self.close_connection = True
        elif hub.stall_after is not None:
            self.wfile.write(part[: hub.stall_after])
            self.wfile.flush()
            hub.stalled.set()
            hub.resume.wait(30)
            self.close_connection = True
            return
        self.wfile.write(part)
        with suppress(OSError):
            while hub.too_much:
                self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub(repository: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve a data set until the block ends."""
    server = Hub(repository, files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.resume.set()
        server.shutdown()
        server.server_close()
