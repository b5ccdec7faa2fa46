"""A message reaches a webhook and a file; a webhook out of reach is an error and no silence."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from assets.settings import NotifySettings
from sensors.notifications import send


def test_a_message_is_posted_and_written(tmp_path):
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        settings = NotifySettings(f"http://127.0.0.1:{server.server_port}/hook", str(tmp_path / "deep/told.jsonl"))
        send(settings, {"text": "größer"})
        send(settings, {"text": "again"})
    finally:
        server.shutdown()
        server.server_close()
    assert posted == [{"text": "größer"}, {"text": "again"}]
    assert [json.loads(line) for line in (tmp_path / "deep/told.jsonl").read_text().splitlines()] == posted


def test_a_webhook_out_of_reach_is_an_error():
    with pytest.raises(OSError):
        send(NotifySettings("http://127.0.0.1:9/hook"), {"text": "x"})
