"""The frame of our own pages: title, style sheet, and text made safe for HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from traceviz_dag.printable import printable

_STYLE = "/style.css"


def markup(text: str) -> str:
    """Text as HTML shows it, in elements and in quoted attributes: no tag, no control character."""
    return escape(printable(text))


def link(address: str, text: str) -> str:
    """A link; address and text are made safe here."""
    return f'<a href="{markup(address)}">{markup(text)}</a>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML already, the head is text."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    heads = "".join(f'<th scope="col">{markup(each)}</th>' for each in head)
    return f"<table><thead><tr>{heads}</tr></thead>\n{lines}</table>"


def page(title: str, *parts: str, above: str = "") -> HTMLResponse:
    """A page of ours.

    Args:
        title: text, also its heading. parts: HTML, in order.
        above: HTML before the heading, such as the way back.
    """
    body = "\n".join(parts)
    return HTMLResponse(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{markup(title)}</title><link rel="icon" href="data:,"><link rel="stylesheet" href="{_STYLE}"></head>\n'
        f"<body><main>{f'<nav>{above}</nav>' if above else ''}<h1>{markup(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def style_routes() -> list[BaseRoute]:
    """The style sheet of our pages."""
    text = resources.files("traceviz_dag.show.web").joinpath("style.css").read_text(encoding="utf-8")

    def style(_: object) -> Response:
        return Response(text, media_type="text/css")

    return [Route(_STYLE, style)]
