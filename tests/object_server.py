"""A store of objects on loopback that speaks as much of S3 as is asked of it, and errs as stores do when told to."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

SECRET = "topsecretvalue"
_LAID = datetime(2020, 1, 1, tzinfo=UTC).timestamp()


class ObjectServer:
    """The objects of a bucket named ``bucket``.

    Attributes:
        objects: key → bytes; may be changed at any time.
        requests: (method, key, range) of all that was asked.
        refuse: given a method and a key, the status and code of an answer that is an error; None goes on.
        honours_conditions: If-Match and If-None-Match count.
        written: key → when it was put, seconds since 1970; what was laid there otherwise is of 2020.
        longest_body: GETs are cut off after so many bytes of a body.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.refuse: Callable[[str, str], tuple[int, str] | None] = lambda _method, _key: None
        self.written: dict[str, float] = {}
        self.honours_conditions = True
        self.longest_body = 1 << 40
        self.lock = threading.Lock()

    def upload(self, folder: Path, prefix: str) -> None:
        """Put all files of a folder below a prefix."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.objects[f"{prefix}/{file.relative_to(folder).as_posix()}"] = file.read_bytes()

    def of(self, method: str) -> list[str]:
        """The keys that were asked for by a method."""
        return [key for asked, key, _ in self.requests if asked == method]


def tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def variables(port: int) -> dict[str, str]:
    """The environment in which a store on a port is used."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def serving(store: ObjectServer) -> Iterator[int]:
    """Serve a store while the block runs; its port."""

    class Handler(_Handler):
        served = store

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: ObjectServer
    protocol_version = "HTTP/1.1"
    # Head and body are two writes, which would wait for each other.
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        bucket, key = self._asked()
        if bucket != "bucket":
            self._error(404, "NoSuchBucket")
        elif not key:
            self._list()
        else:
            self._object(key)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        _, key = self._asked()
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        store = self.served
        if self._refused(key):
            return
        with store.lock:
            there = store.objects.get(key)
            wanted = self.headers["If-Match"]
            failed = (self.headers["If-None-Match"] == "*" and there is not None) or (
                wanted is not None and (there is None or tag_of(there) != wanted)
            )
            if failed and store.honours_conditions:
                self._error(412, "PreconditionFailed")
                return
            store.objects[key], store.written[key] = data, time.time()
        self._answer(200, b"", {"ETag": tag_of(data)})

    def do_POST(self) -> None:
        """Remove the objects that a list names; obstore asks so even for one."""
        self._asked()
        keys = re.findall("<Key>(.*?)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode())
        if not self._refused(keys[0]):
            with self.served.lock:
                for key in keys:
                    self.served.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _written(self, key: str) -> datetime:
        return datetime.fromtimestamp(self.served.written.get(key, _LAID), UTC)

    def _asked(self) -> tuple[str, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        self.served.requests.append((self.command, key, self.headers["Range"] or ""))
        return bucket, key

    def _refused(self, key: str) -> bool:
        refusal = self.served.refuse(self.command, key)
        if refusal is not None:
            self._error(*refusal)
        return refusal is not None

    def _object(self, key: str) -> None:
        if self._refused(key):
            return
        data = self.served.objects.get(key)
        if data is None:
            self._error(404, "NoSuchKey")
            return
        if self.headers["If-Match"] not in (None, tag_of(data)):
            self._error(412, "PreconditionFailed")
            return
        fields = {"ETag": tag_of(data), "Last-Modified": format_datetime(self._written(key), usegmt=True)}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if span is None:
            self._answer(200, data, fields)
            return
        first, last = int(span[1]), min(int(span[2]), len(data) - 1)
        fields["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], fields)

    def _list(self) -> None:
        if self._refused(""):
            return
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        after = asked.get("continuation-token", asked.get("start-after", ""))
        keys = [key for key in sorted(self.served.objects) if key.startswith(asked.get("prefix", "")) and key > after]
        page, more = keys[:1000], len(keys) > 1000
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{self._written(key):%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(tag_of(self.served.objects[key]))}</ETag><Size>{len(self.served.objects[key])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        cut = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{cut}{token}{rows}</ListBucketResult>".encode(), {})

    def _error(self, status: int, code: str) -> None:
        # Stores quote the request, secrets and all.
        told = f"<Error><Code>{code}</Code><Message>{SECRET} {self.headers['Authorization']}</Message></Error>"
        self._answer(status, told.encode())

    def _answer(self, status: int, body: bytes, fields: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: self.served.longest_body])
            if len(body) > self.served.longest_body:
                self.close_connection = True
