"""What a person sees in the Dagster UI: the asset graph with our groups, in a real browser."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.end_to_end.conftest import running_dagster, traceviz
from tests.small_run import write_run

pytestmark = pytest.mark.slow
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


@pytest.fixture
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("TRACEVIZ_REQUIRE_BROWSER"):
            pytest.fail("Chromium is required here and missing: apt-get install chromium")
        pytest.skip("Chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def test_the_ui_shows_the_asset_graph_and_the_partitions(tmp_path, home, browser):
    run = write_run(tmp_path / "job")
    traceviz("analyze", run, "--home", home)
    with running_dagster(home, tmp_path / "dagster.log") as server:
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        group = f"{server.url}/locations/traceviz_dag.definitions/asset-groups/ranks/lineage"
        page.goto(group, wait_until="domcontentloaded")
        for asset in ("raw_traces", "topology", "kernels", "microbatches", "overlap", "iterations"):
            page.get_by_text(asset, exact=True).first.wait_for(timeout=60_000)
        page.goto(f"{server.url}/assets/kernels?view=partitions", wait_until="domcontentloaded")
        page.get_by_text("job@7").first.wait_for(timeout=60_000)
        assert not page.get_by_text("Failed to load").count()
