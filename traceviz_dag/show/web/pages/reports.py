"""Reports: HTML files of the home, served as they are."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Route

from traceviz_dag.show.web.contents import REPORT_ENDING, held_file
from traceviz_dag.vocabulary import REPORTS_FOLDER

# A report is one file that brings a stricter policy inside; this one keeps any report from asking a server for more.
_POLICY = (
    "default-src 'unsafe-inline' 'wasm-unsafe-eval' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def routes(home: Path) -> Sequence[BaseRoute]:
    """``/reports/RUN/ITERATION.html``, the files below HOME/reports."""

    def report(request: Request) -> FileResponse:
        path = held_file(home, REPORTS_FOLDER, request.path_params["name"], (REPORT_ENDING,))
        if path is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "This home holds no such report.")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": _POLICY})

    return [Route(f"/{REPORTS_FOLDER}/{{name:path}}", report)]
