"""Live timelines: ``/timeline/RUN/ITERATION``, ``/opened/NUMBER`` of what the command was given, and their answers.

Each page asks below its own address: ``…/tiles`` for columns, ``…/about``, ``…/detail`` and so on for JSON. Answers
bear the digest of the source as ETag. Bookmarks are the one thing that is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.partitions import Partition, escape
from traceviz_dag.show.web.addresses import OPENED, TIMELINE, iteration_path, report_path
from traceviz_dag.show.web.contents import held_iterations, report_of, traces_of
from traceviz_dag.show.web.live.answers import ANSWERS, as_json, change_bookmarks
from traceviz_dag.show.web.live.page import TraceLink, live_page
from traceviz_dag.show.web.live.questions import Question
from traceviz_dag.show.web.live.sources import Desk, Source, Sources, Walked
from traceviz_dag.show.web.live.tiles import tiles
from traceviz_dag.show.web.pages.perfetto import trace_address

LONGEST_BODY = 16 << 10
"""Bytes of a bookmark that is sent."""

_BOOKMARKS = "bookmarks"
_TILES = "tiles"
_WHOLE = "iteration."
"""Begin of the name of the trace of all ranks."""
_NOT_THERE = "There is no such timeline; / lists what this home holds."
_CHANGED = "What is shown has changed since this page was opened: reload it."
# The state of a source is in its ETag; what is asked is in the address.
_KEPT = {"cache-control": "private, no-cache"}
_READ = {"cache-control": "no-store"}


def is_written(path: str) -> bool:
    """Whether an address takes what is sent to it: bookmarks of a timeline."""
    return path.startswith((f"/{TIMELINE}/", f"/{OPENED}/")) and path.endswith(f"/{_BOOKMARKS}")


def routes(home: Path, sources: Sources, desk: Desk | None = None) -> Sequence[BaseRoute]:
    """Pages and answers.

    Args:
        desk: who answers; by default one of its own.
    """
    asked = Desk() if desk is None else desk
    known: dict[tuple[str, str], Partition] = {}
    # Another start may answer in another way.
    start = secrets.token_hex(4)

    def iteration_of(request: Request) -> Partition:
        named = request.path_params["run"], request.path_params["iteration"]
        if named not in known:
            known.update({(escape(each.run), str(each.iteration)): each for each in held_iterations(home)})
        if named not in known:
            raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_THERE)
        return known[named]

    def source_of(request: Request) -> Source:
        if "number" in request.path_params:
            number = request.path_params["number"]
            if number >= len(sources.opened):
                raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_THERE)
            return sources.opened[number]
        return sources.of_iteration(*_key(iteration_of(request)))

    def page_of_iteration(request: Request) -> Response:
        each = iteration_of(request)
        links = [("/", "all runs"), (iteration_path(*_key(each)), f"{each.run}, iteration {each.iteration}")]
        if report_of(home, each):
            links.append((report_path(*_key(each)), "report"))
        found = ((name, trace_address(name, request)) for name in traces_of(home, each))
        named = [(name.rpartition("/")[2], address) for name, address in found if address is not None]
        traces = [TraceLink(name, address, name.startswith(_WHOLE)) for name, address in named]
        return live_page(f"{each.run}, iteration {each.iteration}", links, traces)

    def page_of_opened(request: Request) -> Response:
        return live_page(source_of(request).title, [("/", "all runs")], [])

    async def answered(request: Request) -> Response:
        what, source = request.path_params["what"], source_of(request)
        question = Question(request.query_params)
        name = request.url.path.rpartition("/")[0]
        if request.method == "POST":
            body = await request.body() if what == _BOOKMARKS else b""
            if what != _BOOKMARKS:
                raise HTTPException(HTTPStatus.BAD_REQUEST, "Only bookmarks are taken, each of a few words.")
            return await _answer(lambda walked, _: _json(change_bookmarks(walked, body)), asked, name, source, request)
        if what != _TILES and what not in ANSWERS:
            raise HTTPException(HTTPStatus.NOT_FOUND, "A timeline does not answer that.")

        def answer(walked: Walked, digest: str) -> Response:
            tag = f'"{start}-{digest}"'
            shown = request.query_params.get("state")
            if shown is not None and shown != digest:
                return PlainTextResponse(f"{_CHANGED}\n", HTTPStatus.CONFLICT)
            if what == _TILES:
                if request.headers.get("if-none-match") == tag:
                    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={**_KEPT, "etag": tag})
                model = walked.model
                window, overview = question.window(model), question.number("overview", 0, 1, default=0) == 1
                content = tiles(model, question.lanes(), window, question.pixels(), question.shown(), overview, digest)
                return Response(content, headers={**_KEPT, "etag": tag}, media_type="application/octet-stream")
            found = ANSWERS[what](walked, question)
            return _json({**found, "state": digest} if what == "about" else found)

        return await _answer(answer, asked, name, source, request)

    every = ["GET", "POST"]
    return [
        Route(f"/{TIMELINE}/{{run}}/{{iteration}}", page_of_iteration),
        Route(f"/{TIMELINE}/{{run}}/{{iteration}}/{{what}}", answered, methods=every),
        Route(f"/{OPENED}/{{number:int}}", page_of_opened),
        Route(f"/{OPENED}/{{number:int}}/{{what}}", answered, methods=every),
    ]


async def _answer(
    question: Callable[[Walked, str], Response], desk: Desk, name: str, source: Source, request: Request
) -> Response:
    try:
        return await desk.ask(name, source, question, request.is_disconnected)
    except UsageError as error:
        return PlainTextResponse(f"{error}\n", HTTPStatus.BAD_REQUEST)


def _json(found: Any) -> Response:
    return Response(as_json(found), headers=_READ, media_type="application/json")


def _key(each: Partition) -> tuple[str, int]:
    assert each.iteration is not None
    return each.run, each.iteration
