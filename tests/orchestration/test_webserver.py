"""Pictures in the Dagster UI: what is drawn is shown as it is now, and what is not is said in its place."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from traceviz_dag.orchestration.webserver import GuardedWebserver


def test_a_picture_is_shown_as_it_is_now_and_a_missing_one_says_so(tmp_path):
    (tmp_path / "figures" / "job").mkdir(parents=True)
    (tmp_path / "figures" / "job" / "wait_map.png").write_bytes(b"\x89PNG")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG")
    server = object.__new__(GuardedWebserver)
    server._pictures = tmp_path / "figures"

    def asked(name: str, query: bytes = b""):
        return server._picture(
            Request({"type": "http", "path_params": {"name": name}, "query_string": query, "path": "/", "headers": []})
        )

    assert asked("job/wait_map.png").headers["cache-control"] == "no-cache"
    assert "cache-control" not in asked("job/wait_map.png", b"12345678").headers
    told = asked("job/previews/wait_map.png")
    assert (told.status_code, told.media_type) == (HTTPStatus.NOT_FOUND, "image/svg+xml") and b"Not drawn" in told.body
    for name in ("job/other.png", "../secret.png", "job/\0.png"):
        with pytest.raises(HTTPException):
            asked(name)
