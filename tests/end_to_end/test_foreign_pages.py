"""A page of another origin, in a real browser, tries to reach the Dagster UI on loopback: nothing happens."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest

from tests.end_to_end.conftest import CHROMIUM_FLAGS, running_dagster
from traceviz_dag.orchestration.instance import open_instance

pytestmark = pytest.mark.long

ADD = """mutation($key: String!) {
  addDynamicPartition(
    partitionsDefName: "iteration", partitionKey: $key,
    repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "traceviz_dag.definitions"}
  ) { __typename ... on PythonError { message } ... on UnauthorizedError { message } }
}"""


def _body(key: str) -> str:
    return json.dumps({"query": ADD, "variables": {"key": key}})


def _page(target: str) -> str:
    """Tries everything a page can: images, forms, scripts, requests with and without CORS, a WebSocket, a frame."""
    by_get = f"{target}/graphql?query={quote(ADD)}&variables={quote(json.dumps({'key': 'by-get'}))}"
    return f"""<!doctype html><title>evil</title>
<img src="{by_get}"><script src="{by_get}"></script><iframe id="frame" src="{target}/"></iframe>
<form id="form" action="{target}/graphql" method="post" enctype="text/plain" target="form_frame">
  <input name='{_body("by-form").removesuffix("}")}, "x": "' value='"}}'></form>
<iframe name="form_frame"></iframe>
<script>
const outcomes = {{}};
const tries = {{
  plain: () => fetch("{target}/graphql", {{method: "POST", mode: "no-cors", body: {json.dumps(_body("by-plain"))}}}),
  simple: () => fetch("{target}/graphql", {{method: "POST",
    body: {json.dumps(_body("by-simple"))}}}).then((r) => r.text()),
  asked: () => fetch("{target}/graphql", {{method: "POST", headers: {{"Content-Type": "application/json"}},
    body: {json.dumps(_body("by-json"))}}}).then((r) => r.text()),
  read: () => fetch("{target}/server_info").then((r) => r.text()),
  socket: () => new Promise((resolve, reject) => {{
    const socket = new WebSocket("{target}/graphql".replace("http", "ws"), "graphql-ws");
    socket.onopen = () => resolve("open"); socket.onerror = () => reject(new Error("refused"));
  }}),
}};
document.getElementById("form").submit();
Promise.all(Object.entries(tries).map(([name, attempt]) => attempt().then(
  (answer) => {{ outcomes[name] = String(answer && answer.type === "opaque" ? "opaque" : answer); }},
  () => {{ outcomes[name] = "failed"; }}))).then(() => {{ window.outcomes = outcomes; }});
</script>"""


@contextmanager
def _foreign(page: str):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://evil.test:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _keys(home) -> list[str]:
    with open_instance(home) as instance:
        return list(instance.get_dynamic_partitions("iteration"))


def test_foreign_pages_neither_change_nor_read_anything(tmp_path, home, browser):
    with running_dagster(home, tmp_path / "dagster.log") as server:
        # The mutation is a real one: sent as the UI sends it, it works.
        answer = server.graphql(ADD, key="by-the-ui")["addDynamicPartition"]
        assert answer["__typename"] == "AddDynamicPartitionSuccess", answer
        assert _keys(home) == ["by-the-ui"]

        # Each name leads to loopback, as an attacker's own name server would have it.
        rebinding = browser.browser_type.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=[*CHROMIUM_FLAGS, "--host-resolver-rules=MAP *.test 127.0.0.1"],
        )
        port = server.url.rpartition(":")[2]
        with _foreign(_page(server.url)) as address:
            page = rebinding.new_page()
            page.goto(address)
            page.wait_for_function("window.outcomes !== undefined", timeout=30_000)
            outcomes = page.evaluate("window.outcomes")
            assert outcomes["plain"] in ("opaque", "failed")
            assert {outcomes[name] for name in ("simple", "asked", "read", "socket")} == {"failed"}
            frame = page.query_selector("#frame").content_frame()
            assert "Dagster" not in (frame.content() if frame else "")
            # A link may be followed, but not to what would run the scripts of a file.
            assert (
                page.goto(f"{server.url}/notebook?path=/tmp/x.ipynb&repoLocName=traceviz_dag.definitions").status == 404
            )

        # Rebound: the page itself comes from the name of which the port is Dagster's.
        page = rebinding.new_page()
        response = page.goto(f"http://evil.test:{port}/")
        assert response.status == 403
        inside = page.evaluate(
            "body => fetch('/graphql', {method: 'POST', headers: {'Content-Type': 'application/json'}, body})"
            ".then((r) => r.status)",
            _body("by-rebinding"),
        )
        assert inside == 403
        rebinding.close()
        assert _keys(home) == ["by-the-ui"]
