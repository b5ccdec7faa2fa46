"""Exports in the real Perfetto UI, in a real browser, with the network off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import program
from traceviz_dag.read.perfetto.engines import wasm_folder
from traceviz_dag.show.perfetto.ui import PIPELINE_COMMANDS
from traceviz_dag.show.web.opened_trace import serve_trace

pytestmark = pytest.mark.long

LOST = "Data-loss/import error"
STATS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
QUERY = """async (sql) => {
    const found = [];
    const result = await window.app.trace.engine.query(sql);
    const rows = result.iter({name: 'str', value: 0});
    for (; rows.valid(); rows.next()) found.push(rows.name);
    return found;
}"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> list[Path]:
    """Exports of a simulated job, of real GPU traces and of real CPU traces of Megatron's schedules."""
    folder = tmp_path_factory.mktemp("ui")
    program("simulate", folder / "job", "--pp", "2", "--dp", "2", "--microbatches", "4", "--layers", "4")
    places = (folder / "job", shared_data / "kineto/dlrm8", shared_data / "megatron_cpu/pp4_1f1b")
    found = []
    for number, place in enumerate(places):
        found.append(folder / f"{number}.pftrace.gz")
        program("perfetto", "export", place, "--home", folder / f"home_{number}", "--out", found[-1])
    return found


def shown(browser: Any, path: Path, ui: Path) -> tuple[str, list[str], list[str]]:
    """The text of the UI with a trace, what its importer lost, and what came from elsewhere than our server."""
    with serve_trace(path, ui, PIPELINE_COMMANDS) as served:
        own = served.url.partition("/#")[0]
        answered: list[str] = []
        page = browser.new_page()
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(own) else route.abort())
        page.on("response", lambda response: answered.append(response.url))
        page.goto(served.url)
        page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=120_000)
        page.wait_for_function("() => window.waitForPerfettoIdle().then(() => true)", timeout=120_000)
        found = page.inner_text("body"), page.evaluate(QUERY, STATS)
        page.close()
    return *found, [url for url in answered if not url.startswith(own)]


def test_exports_open_without_an_import_error_and_without_a_network(exports: list[Path], browser: Any) -> None:
    ui = wasm_folder()
    if ui is None:
        pytest.skip("the Perfetto UI is not installed")
    for path in exports:
        text, lost, outside = shown(browser, path, ui)
        assert (lost, outside) == ([], [])
        assert LOST not in text
        assert "rank" in text


def test_the_ui_says_when_something_was_lost(tmp_path: Path, browser: Any) -> None:
    ui = wasm_folder()
    if ui is None:
        pytest.skip("the Perfetto UI is not installed")
    event = '{"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": %d, "dur": 100}'
    path = tmp_path / "broken.json"
    path.write_text('{"traceEvents": [' + ",".join(event % start for start in (1000, 1050)) + "]}")
    text, lost, _ = shown(browser, path, ui)
    assert lost == ["slice_drop_overlapping_complete_event"]
    assert LOST in text
