"""The bundled Perfetto UI and the traces that it opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Route

from traceviz_dag.read.perfetto.engines import wasm_folder
from traceviz_dag.show.perfetto.ui import PIPELINE_COMMANDS, UI_POLICY, kind_of, ui_file
from traceviz_dag.show.web.contents import TRACE_ENDINGS, held_file
from traceviz_dag.show.web.layout import link
from traceviz_dag.vocabulary import PERFETTO_FOLDER

_UI = f"/{PERFETTO_FOLDER}/ui/"
_TRACES = f"/{PERFETTO_FOLDER}/traces/"


def routes(home: Path) -> Sequence[BaseRoute]:
    """``/perfetto/ui/``, the files of the UI, and ``/perfetto/traces/RUN/ITERATION/…``, those below HOME/perfetto."""
    wasm = wasm_folder()

    def ui(request: Request) -> FileResponse:
        path = None if wasm is None else ui_file(wasm, request.path_params["name"])
        if path is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "The Perfetto UI has no such file, or is not installed.")
        return FileResponse(path, media_type=kind_of(path), headers={"content-security-policy": UI_POLICY})

    def trace(request: Request) -> FileResponse:
        path = held_file(home, PERFETTO_FOLDER, request.path_params["name"], TRACE_ENDINGS)
        if path is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "This home holds no such trace.")
        return FileResponse(path, media_type="application/octet-stream")

    return [Route(f"{_UI}{{name:path}}", ui), Route(f"{_TRACES}{{name:path}}", trace)]


def trace_links(traces: Sequence[str], request: Request) -> str:
    """A list of traces, each a link that opens it in the UI; where the UI is not installed, how to open them."""
    if wasm_folder() is None:
        return f"<p>{len(traces)} traces; the Perfetto UI is not installed: install traceviz-dag[perfetto-offline].</p>"
    items = (f"<li>{link(trace_address(name, request) or '', name.rpartition('/')[2])}</li>" for name in traces)
    return f"<ul>{''.join(items)}</ul>"


def trace_address(name: str, request: Request) -> str | None:
    """The address that opens a trace in the UI; None where the UI is not installed.

    Args:
        name: its path below the folder of traces.
    """
    if wasm_folder() is None:
        return None
    start = quote(json.dumps(list(PIPELINE_COMMANDS)))
    # Behind a proxy that speaks https, the UI has to ask by https, too.
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else request.url.scheme
    origin = f"{scheme}://{request.headers['host']}"
    return f"{_UI}#!/?url={origin}{_TRACES}{quote(quote(name))}&startupCommands={start}"
