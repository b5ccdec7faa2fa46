"""What a person sees in the Dagster UI: the asset graph with our groups, in a real browser."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import program, running_dagster
from tests.small_run import write_run

pytestmark = pytest.mark.long


def test_the_ui_shows_the_asset_graph_and_the_partitions(tmp_path, home, browser):
    run = write_run(tmp_path / "job")
    program("analyze", run, "--home", home)
    with running_dagster(home, tmp_path / "dagster.log") as server:
        # The UI leaves out what is off the screen, so the screen holds the whole group.
        page = browser.new_page(viewport={"width": 8000, "height": 20000})
        group = f"{server.url}/locations/traceviz_dag.definitions/asset-groups/3_ranks/lineage"
        page.goto(group, wait_until="domcontentloaded")
        for asset in ("raw_traces", "topology", "kernels", "microbatches", "overlap", "findings"):
            page.get_by_text(asset, exact=True).first.wait_for(timeout=60_000)
        page.goto(f"{server.url}/assets/kernels?view=partitions", wait_until="domcontentloaded")
        page.get_by_text("job@7").first.wait_for(timeout=60_000)
        assert not page.get_by_text("Failed to load").count()
