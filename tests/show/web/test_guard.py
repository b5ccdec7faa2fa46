"""What the guard lets pass: pages of our own and programs, and nothing that a foreign page can make a browser send."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from traceviz_dag.errors import UsageError
from traceviz_dag.show.web.guard import LONGEST_BODY, Guard, check_address, known_hosts
from traceviz_dag.show.web.listen import LoopbackServer, listen

OWN = "http://127.0.0.1:3000"
JSON = {"content-type": "application/json"}


async def _answer(_):
    return PlainTextResponse("reached")


async def _echo(request):
    return PlainTextResponse(await request.body())


async def _talk(websocket):
    await websocket.accept()
    await websocket.send_text("reached")
    await websocket.close()


def _guarded(port: int) -> Starlette:
    routes = [
        Route("/graphql", _answer, methods=["GET", "POST"]),
        WebSocketRoute("/graphql", _talk),
        Route("/echo", _echo, methods=["POST"]),
        Route("/{path:path}", _answer, methods=["GET", "POST", "PUT", "DELETE"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=known_hosts(port, ["ui.example.com"]))])


@pytest.fixture(scope="module")
def client():
    return TestClient(_guarded(3000), base_url=OWN)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("GET", "/", {"host": "localhost:3000"}),
        ("GET", "/", {"host": "[::1]:3000"}),
        ("GET", "/", {"host": "UI.example.com", "origin": "https://ui.example.com"}),
        ("GET", "/graphql", {"accept": "text/html"}),
        ("POST", "/graphql", JSON),
        ("POST", "/graphql", {"content-type": "application/json; charset=utf-8", "origin": OWN}),
        ("POST", "/graphql", {**JSON, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}),
        ("GET", "/runs", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
    ],
)
def test_own_pages_programs_and_links_are_let_in(client, method, path, headers):
    assert client.request(method, path, headers=headers).text == "reached"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {"host": "evil.example:3000"}),
        ("GET", "/", {"host": "127.0.0.1:3001"}),
        ("GET", "/", {"host": "127.0.0.1:3000.evil.example"}),
        ("GET", "/", {"host": "127.0.0.1"}),
        ("GET", "/", {"origin": "http://evil.example"}),
        ("GET", "/", {"origin": "null"}),
        ("GET", "/", {"origin": "http://127.0.0.1:3001"}),
        ("GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        ("GET", "/", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}),
        ("GET", "/graphql?query=mutation%7Bx%7D", {}),
        ("GET", "/graphql/?query=", {}),
        ("GET", "/prefix/graphql?query=%7Bversion%7D", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("POST", "/graphql", {"content-type": "text/plain"}),
        ("POST", "/graphql", {"content-type": "text/plain; x=application/json"}),
        ("POST", "/graphql", {"content-type": "application/graphql"}),
        ("POST", "/graphql", {}),
        ("POST", "/report_asset_materialization/kernels?data_version=1", {}),
        ("POST", "/graphql", {**JSON, "origin": "https://evil.example"}),
        ("POST", "/runs", {**JSON, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("DELETE", "/runs", {}),
    ],
)
def test_what_a_foreign_page_can_have_sent_is_refused(client, method, path, headers):
    response = client.request(method, path, headers=headers)
    assert response.status_code == 403 and "reached" not in response.text


def test_a_header_sent_twice_is_refused(client):
    headers = [("host", "127.0.0.1:3000"), ("origin", "http://evil.example"), ("origin", OWN)]
    assert client.get("/", headers=headers).status_code == 403


def test_web_sockets_are_for_own_pages_alone(client):
    with client.websocket_connect("/graphql", headers={"host": "127.0.0.1:3000", "origin": OWN}) as socket:
        assert socket.receive_text() == "reached"
    foreign = {"host": "127.0.0.1:3000", "origin": "http://evil.example"}
    with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/graphql", headers=foreign):
        pass
    assert "origins" in refused.value.reason


def test_no_other_page_can_frame_the_ui(client):
    assert client.get("/").headers["x-frame-options"] == "SAMEORIGIN"


def test_listening_beyond_loopback_needs_a_name_of_the_proxy_in_front():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, [])
    with pytest.raises(UsageError, match="TRACEVIZ_ALLOWED_HOSTS"):
        check_address("0.0.0.0", [])
    check_address("0.0.0.0", ["ui.example.com"])


@pytest.mark.parametrize("pieces", [[b" " * (LONGEST_BODY + 1)], [b" " * (1 << 20)] * 17])
def test_a_body_longer_than_any_of_the_ui_is_refused_before_the_application_holds_it(client, pieces):
    refused = client.post("/echo", headers=JSON, content=iter(pieces))
    assert refused.status_code == 413 and "16,777,216 bytes" in refused.text


def test_a_head_without_end_and_two_lengths_are_refused_and_hold_up_nobody():
    with listen(0) as listening:
        port = listening.getsockname()[1]
        server = LoopbackServer(_guarded(port))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()

        def answered(head: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as asked, suppress(OSError):
                asked.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n" % (port, head))
                return asked.recv(100)
            return b""

        json = b"Content-Type: application/json\r\n"
        before = time.process_time()
        for head in (b"x: a\r\n" * 500_000, b"x: " + b"a" * (8 << 20)):
            assert b" 200 " not in answered(head)
        assert time.process_time() - before < 5
        two = answered(json + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")
        assert b" 403 " in two and b" 200 " in answered(json + b"Content-Length: 0\r\n")
        server.should_exit = True
        thread.join()


def test_a_body_reaches_the_application_whole(client):
    pieces = [b"1" * (1 << 20), b"2" * 5]
    assert client.post("/echo", headers=JSON, content=iter(pieces)).content == b"".join(pieces)
