"""Pictures in the Dagster UI: what is drawn is shown as it is now, and what is not is said in its place."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus

import dagster as dg
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from traceviz_dag.orchestration.instance import prepare_instance
from traceviz_dag.show.web.guard import known_hosts


def test_a_picture_is_shown_as_it_is_now_and_a_missing_one_says_so(tmp_path):
    from traceviz_dag.orchestration.webserver import show_picture

    (tmp_path / "figures" / "job").mkdir(parents=True)
    (tmp_path / "figures" / "job" / "wait_map.png").write_bytes(b"\x89PNG")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG")

    def asked(name: str, query: bytes = b""):
        return show_picture(
            tmp_path / "figures",
            Request({"type": "http", "path_params": {"name": name}, "query_string": query, "path": "/", "headers": []}),
        )

    assert asked("job/wait_map.png").headers["cache-control"] == "no-cache"
    assert "cache-control" not in asked("job/wait_map.png", b"12345678").headers
    told = asked("job/previews/wait_map.png")
    assert (told.status_code, told.media_type) == (HTTPStatus.NOT_FOUND, "image/svg+xml") and b"Not drawn" in told.body
    for name in ("job/other.png", "../secret.png", "job/\0.png"):
        with pytest.raises(HTTPException):
            asked(name)


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/runs", "127.0.0.1:3000", HTTPStatus.OK),
        ("/runs", "evil.example", HTTPStatus.FORBIDDEN),
        ("/figures/previews/job.png", "evil.example", HTTPStatus.FORBIDDEN),
        ("/figures/previews/job.png", "127.0.0.1:3000", HTTPStatus.NOT_FOUND),
        ("/notebook", "127.0.0.1:3000", HTTPStatus.NOT_FOUND),
        ("/dagit/notebook", "127.0.0.1:3000", HTTPStatus.NOT_FOUND),
    ],
)
def test_the_guard_and_our_pages_come_before_a_page_that_takes_every_address(tmp_path, path, host, status):
    from traceviz_dag.orchestration.webserver import guarded

    every = Route("/{name:path}", lambda _: PlainTextResponse("Dagster's"))
    app = guarded(Starlette(routes=[every]), known_hosts(3000, []), tmp_path)
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request"}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", host.encode())]}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == status


def test_dagsters_own_pages_are_served_behind_the_guard(tmp_path):
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text("load_from: []\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    instance = prepare_instance(tmp_path)
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "webserver", "--workspace", str(workspace)]
    command += ["--home", str(tmp_path), "--port", str(port)]
    served = subprocess.Popen(command, env={**os.environ, "DAGSTER_HOME": str(instance)})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info") as answer:
                    assert json.load(answer)["dagster_version"] == dg.__version__
                break
            except urllib.error.URLError:
                assert served.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        foreign = urllib.request.Request(f"http://127.0.0.1:{port}/server_info", headers={"Origin": "http://evil"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign)
    finally:
        served.terminate()
        served.wait(20)
