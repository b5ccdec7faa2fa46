"""Commands that draw on a terminal or serve pages: each opens what it says, on what a home or a profile holds."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.commands.jobs import home_of
from tests.nsys_file import small_export
from traceviz_dag.commands.main import _run
from traceviz_dag.show.terminal.look import Look


@pytest.fixture
def export(tmp_path):
    return small_export().write(tmp_path / "small.sqlite")


@pytest.mark.parametrize(
    ("words", "screen", "title"),
    [
        ("timeline --home HOME", "TimelineApp", "healthy"),
        ("top --home HOME", "HomeApp", None),
        ("nsys timeline EXPORT --home OWN", "TimelineApp", "small.sqlite"),
        ("nsys tui EXPORT --home OWN", "TreeApp", None),
    ],
)
def test_a_screen_opens_on_what_was_named(words, screen, title, export, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("traceviz_dag.show.terminal.look.look_of_terminal", lambda *_: Look(unicode=True, colour=True))
    opened: list[Any] = []
    monkeypatch.setattr("traceviz_dag.show.terminal.app.TerminalApp.walk", lambda self: opened.append(self))  # noqa: PLW0108 it must become a method
    assert _run(_given(words, export, tmp_path)) == 0, capsys.readouterr().err
    assert [type(one).__name__ for one in opened] == [screen]
    if title is not None:
        assert title in str(opened[0].model.title)


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("serve --home HOME --port 0", "healthy"),
        ("timeline --web --home HOME --port 0", "healthy"),
        ("nsys web EXPORT --home OWN --port 0", "small"),
        ("nsys timeline-web EXPORT --home OWN --port 0", "small"),
    ],
)
def test_the_address_that_is_printed_answers_with_the_page(words, content, export, tmp_path, monkeypatch, capsys):
    pages = []

    def answer(app, _listening, started):
        started()
        printed = capsys.readouterr().out
        address = urlsplit(re.search(r"http://\S+", printed)[0])
        pages.append(asyncio.run(_get(app, address)))

    monkeypatch.setattr("traceviz_dag.show.web.listen.answer", answer)
    assert _run(_given(words, export, tmp_path)) == 0, capsys.readouterr().err
    ((status, body),) = pages
    assert status == 200 and content in body


def _given(words, export, folder) -> list[str]:
    places = {"HOME": home_of("healthy"), "EXPORT": export, "OWN": folder / "home"}
    return [str(places.get(word, word)) for word in words.split()]


async def _get(app, address) -> tuple[int, str]:
    """The page at an address, following one redirection as a browser does, with the cookie that came with it."""
    headers = [(b"host", address.netloc.encode())]
    path, query = address.path, address.query
    for _ in range(2):
        sent: list[dict[str, Any]] = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message, sent=sent):
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", address.port),
        }
        await app(scope, receive, send)
        answered = {name.lower(): value for name, value in sent[0]["headers"]}
        if not 300 <= sent[0]["status"] < 400:
            break
        target = urlsplit(answered[b"location"].decode())
        path, query = target.path, target.query
        headers.append((b"cookie", answered[b"set-cookie"].split(b";")[0]))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]).decode(errors="replace")
