"""Lets in who knows the token, to read alone: the middleware of ``traceviz serve`` behind the guard.

A random token is in the address that the command prints. Whoever shows it gets a cookie, so that links need no token;
other users of the machine, who reach loopback as well, know neither.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse

from traceviz_dag.show.web.layout import markup

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"
"""Name of the token in an address."""

STRANGER = (
    "This server answers whoever opened the address that traceviz serve printed, which ends with a token. "
    "Open that address; each start of traceviz serve has a new one."
)

OWN_POLICY = "; ".join(
    (
        *("default-src 'none'", "style-src 'self'", "img-src 'self' data:"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
"""Content security policy of every answer that brings none of its own: no script at all."""

_HEADERS = {
    "content-security-policy": OWN_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_READING = ("GET", "HEAD")


class ReadOnly:
    """ASGI middleware, the outermost: refuses everything but GET and HEAD, and gives every answer its headers.

    An answer that brings one of these headers itself keeps its own.

    Args:
        written: the paths that take POST, too.
    """

    def __init__(self, app: ASGIApp, written: Callable[[str], bool] = lambda _: False) -> None:
        self._app = app
        self._written = written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on who reads."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "this server is read-only"})
        elif scope["type"] == "http" and scope["method"] not in _READING and not self._takes(scope):
            refused = PlainTextResponse(
                "This address is only read: it answers GET and HEAD.\n",
                HTTPStatus.METHOD_NOT_ALLOWED,
                {"allow": ", ".join(_READING), "connection": "close"},
            )
            await refused(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            await self._app(scope, receive, _with_headers(send))

    def _takes(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and self._written(scope["path"])


class Door:
    """ASGI middleware that answers 403 to who shows neither the token nor the cookie that the token was changed for.

    Args:
        token: in the address. port: names the cookie, since browsers hand cookies to every port of a host.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"traceviz_{port}"
        # Not the token itself: what a browser keeps is worth nothing in an address.
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on who is known; who just showed the token gets the cookie."""
        headers = Headers(scope=scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = next((value for name, value in query if name == TOKEN), None)
        if shown is not None and _equal(shown, self._token):
            cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
            sent = _with_headers(send, {"set-cookie": cookie})
            if headers.get("sec-fetch-mode") == "navigate":
                # The page that a browser goes to next begins here, so the strict cookie comes along wherever the
                # first link was; and the token leaves the address bar.
                left = urlencode([(name, value) for name, value in query if name != TOKEN])
                await _gone_on(_own_path(scope) + (f"?{left}" if left else ""))(scope, receive, sent)
            else:
                await self._app(scope, receive, sent)
        elif _equal(HTTPConnection(scope).cookies.get(self._cookie, ""), self._session):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(f"{STRANGER}\n", HTTPStatus.FORBIDDEN)(scope, receive, send)


def _equal(given: str, known: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())


def _own_path(scope: Scope) -> str:
    """The path as it was asked for, on this server alone: two slashes at its beginning would name another host."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return "/" + raw.decode("latin-1").lstrip("/")


def _gone_on(address: str) -> HTMLResponse:
    return HTMLResponse(
        "<!doctype html><meta charset=utf-8><title>traceviz</title><link rel=icon href=data:,>"
        f'<meta http-equiv="refresh" content="0;url={markup(address)}"><a href="{markup(address)}">Go on</a>'
    )


def _with_headers(send: Send, headers: Mapping[str, str] = _HEADERS) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = MutableHeaders(scope=message)
            for name, value in headers.items():
                there.setdefault(name, value)
        await send(message)

    return sent
