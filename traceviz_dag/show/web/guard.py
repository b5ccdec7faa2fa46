"""Keeps other web pages out of a server on loopback: what they can make a browser send is refused before it is read.

A page from anywhere can have its visitor's browser send requests to 127.0.0.1. It cannot choose the headers Host and
Origin, nor send JSON without being asked first, so these three separate our page from a foreign one. Programs such as
curl send no Origin and may talk to the server as before. Users are not distinguished: a shared server needs a proxy in
front that knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from traceviz_dag.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALLOWED_HOSTS_VARIABLE = "TRACEVIZ_ALLOWED_HOSTS"
"""Names, separated by commas, under which a proxy in front may offer the server."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

LONGEST_BODY = 16 << 20
"""Bytes of a request's body; the UI's own are some kilobytes, and a materialization that a job reports may be more."""

HANDSHAKE = "WEBSOCKET"
"""What represents a method where a browser asks for a WebSocket."""

_SENT_TWICE = ","
_SCHEMES = ("http", "https")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_ADDED_HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def known_hosts(port: int, further: Iterable[str] = ()) -> frozenset[str]:
    """The values of the header Host that a server answers to.

    Args:
        port: that it listens on; a browser leaves out port 80.
        further: names under which a proxy offers it, each as the browser shows it, with a port unless it is the usual.
    """
    own = {f"{name}:{port}" for name in LOOPBACK} | (set(LOOPBACK) if port == 80 else set())
    return frozenset(own | {name.strip().lower() for name in further if name.strip()})


def hosts_of_environment() -> list[str]:
    """The names in TRACEVIZ_ALLOWED_HOSTS."""
    return [name for name in os.environ.get(ALLOWED_HOSTS_VARIABLE, "").split(",") if name.strip()]


def check_address(host: str, further: Iterable[str]) -> None:
    """Refuse to listen beyond loopback while nobody has said under which name.

    Raises:
        UsageError: the address is reachable from elsewhere and no further name is given.
    """
    if host.strip("[]") not in {name.strip("[]") for name in LOOPBACK} and not list(further):
        raise UsageError(
            f"{host} is reachable from other machines, and the UI knows no users: listen on 127.0.0.1 and use "
            f"ssh -L, or put a proxy with a login in front and name it in {ALLOWED_HOSTS_VARIABLE}"
        )


def refusal(method: str, path: str, query: str, headers: Mapping[str, str], hosts: frozenset[str]) -> str | None:
    """Why a request is refused; None lets it pass.

    Args:
        method: of HTTP, in capitals, or HANDSHAKE.
        path, query: of the address. headers: by lower-case name.
        hosts: from :func:`known_hosts`.
    """
    if "content-length" in headers and "transfer-encoding" in headers:
        # A proxy in front may see another end of it, and so another request behind it.
        return "a request has one length: send Content-Length or Transfer-Encoding"
    if headers.get("host", "").lower() not in hosts:
        return "this server does not answer to that Host"
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}" for scheme in _SCHEMES for host in hosts}:
        return "requests from pages of other origins are refused"
    followed_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site", "none") not in _OWN_SITES and not followed_link:
        return "requests from pages of other sites are refused"
    if method not in (*_SAFE_METHODS, HANDSHAKE):
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return None if kind == "application/json" else "send JSON, with the content type application/json"
    asks = path.rstrip("/").endswith("/graphql") and "query" in parse_qs(query, keep_blank_values=True)
    return "send GraphQL by POST" if asks and method != HANDSHAKE else None


class Guard:
    """ASGI middleware that answers what :func:`refusal` names with 403, and forbids frames of other pages.

    A body is read before it is passed on, and refused with 413 where it is longer than anything that the UI sends: the
    application behind would hold all of it.

    Args:
        app: what is guarded.
        hosts: from :func:`known_hosts`.
        longest_body: in bytes.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], longest_body: int = LONGEST_BODY) -> None:
        self._app = app
        self._hosts = hosts
        self._longest_body = longest_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it unread."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key = name.decode("latin-1").lower()
            # A header sent twice matches nothing that is known.
            headers[key] = _SENT_TWICE if key in headers else value.decode("latin-1")
        method = scope["method"] if scope["type"] == "http" else HANDSHAKE
        fault = refusal(method, scope["path"], scope["query_string"].decode("latin-1"), headers, self._hosts)
        if fault is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": fault})
        elif fault is not None:
            await _refuse(send, fault, HTTPStatus.FORBIDDEN)
        elif method in (*_SAFE_METHODS, HANDSHAKE):
            await self._app(scope, receive, _with_headers(send))
        elif (body := await _body(receive, self._longest_body)) is None:
            fault = f"a request of more than {self._longest_body:,} bytes is refused"
            await _refuse(send, fault, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            await self._app(scope, _again(body, receive), _with_headers(send))


async def _body(receive: Receive, longest: int) -> list[Message] | None:
    """The messages of a body; None where it is longer."""
    messages: list[Message] = []
    length, more = 0, True
    while more:
        message = await receive()
        messages.append(message)
        length += len(message.get("body", b""))
        if length > longest:
            return None
        more = bool(message.get("more_body"))
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    left = iter(messages)

    async def received() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return received


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", ())}
            added = [header for header in _ADDED_HEADERS if header[0] not in there]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sent


async def _refuse(send: Send, fault: str, status: HTTPStatus) -> None:
    body = f"{fault}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    # The rest of it is not waited for.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_ADDED_HEADERS]})
    await send({"type": "http.response.body", "body": body})
