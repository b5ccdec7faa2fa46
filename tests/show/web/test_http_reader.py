"""Requests that are too long, or never come to their end, on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from traceviz_dag.show.web.http_reader import LONGEST_HEAD, BoundedReader
from traceviz_dag.show.web.listen import LoopbackServer, listen

WAITED = 0.4
BEGINNING = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"


async def _length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch, listen(0) as listening:
        patch.setattr(BoundedReader, "most_seconds", WAITED)
        server = LoopbackServer(Starlette(routes=[Route("/", _length, methods=["POST"])]))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def answered(port: int, *parts: bytes, pause: float = 0.0) -> tuple[str, float]:
    """The status of the answer, empty without one, and after how many seconds the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        began = time.monotonic()
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while data := connection.recv(1 << 16):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received.partition(b"\r\n")[0].decode(), time.monotonic() - began


def test_a_head_of_the_stated_size_is_read_and_one_byte_more_is_refused(port):
    def head(length: int) -> bytes:
        end = b"Connection: close\r\n\r\n"
        return BEGINNING + b"X: " + b"a" * (length - len(BEGINNING) - len(end) - 5) + b"\r\n" + end

    assert len(head(LONGEST_HEAD)) == LONGEST_HEAD
    assert answered(port, head(LONGEST_HEAD), b"body")[0] == "HTTP/1.1 200 OK"
    assert answered(port, head(LONGEST_HEAD + 1), b"body")[0] == "HTTP/1.1 400 Bad Request"


@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([], 0.0),
        ([BEGINNING], 0.0),
        ([BEGINNING, *[b"X"] * 6], WAITED / 4),
        ([BEGINNING + b"\r\nbo"], 0.0),
        ([BEGINNING + b"\r\nbody", BEGINNING], WAITED / 8),
    ],
    ids=["nothing", "half a head", "a head byte by byte", "half a body", "half a second head"],
)
def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(port, parts, pause):
    _, seconds = answered(port, *parts, pause=pause)
    assert WAITED * 0.9 <= seconds < 10, "and well before a client gives up"


def test_a_body_that_comes_slowly_is_read(port):
    begin = BEGINNING + b"Connection: close\r\n\r\n"
    assert answered(port, begin, b"b", b"o", b"d", b"y", pause=WAITED / 2)[0] == "HTTP/1.1 200 OK"
