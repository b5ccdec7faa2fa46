"""Figures as files, and galleries of them for the other pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Route

from traceviz_dag.show.web.contents import HeldFigure, held_file
from traceviz_dag.show.web.layout import link, markup
from traceviz_dag.vocabulary import FIGURE_FORMATS, FIGURES_FOLDER

_KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".pdf": "application/pdf"}
# A vector drawing brings its styles, and must not run anything.
_SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"


def routes(home: Path) -> Sequence[BaseRoute]:
    """``/figures/RUN/ITERATION/…``, the files below HOME/figures."""

    def figure(request: Request) -> FileResponse:
        name = request.path_params["name"]
        path = held_file(home, FIGURES_FOLDER, name, tuple(_KINDS))
        if path is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "This home holds no such figure.")
        headers = {"content-security-policy": _SVG_POLICY} if path.suffix == ".svg" else {}
        # Viewers of PDF inside browsers need more rights than a picture has.
        saved = path.name if path.suffix == ".pdf" else None
        return FileResponse(path, media_type=_KINDS[path.suffix], headers=headers, filename=saved)

    return [Route(f"/{FIGURES_FOLDER}/{{name:path}}", figure)]


def gallery(figures: Iterable[HeldFigure], size: str = "") -> str:
    """Figures as pictures, each with what it shows and links to its files."""
    return f'<div class="figures {size}">{"".join(map(_shown, figures))}</div>'


def _shown(figure: HeldFigure) -> str:
    files = " ".join(
        link(_address(figure.files[each]), each.upper()) for each in FIGURE_FORMATS if each in figure.files
    )
    best = _address(next(iter(figure.files.values())))
    small = figure.preview or figure.files.get("png")
    picture = ""
    if small is not None:
        source = f"{_address(small)}?changed={figure.changed_ns}"
        image = f'<img src="{markup(source)}" alt="{markup(figure.title)}" loading="lazy">'
        picture = f'<a href="{markup(best)}">{image}</a>'
    return f"<figure>{picture}<figcaption>{markup(figure.title)} {files}</figcaption></figure>\n"


def _address(name: str) -> str:
    return f"/{FIGURES_FOLDER}/{quote(name)}"
