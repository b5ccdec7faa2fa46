"""What a person sees in the Dagster UI: the asset graph with our groups, in a real browser."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from tests.end_to_end.conftest import program, running_dagster
from tests.hub_server import hub
from tests.small_run import write_run
from traceviz_dag.orchestration.instance import open_instance

pytestmark = pytest.mark.long


def test_the_ui_shows_the_asset_graph_and_the_partitions(tmp_path, home, browser):
    run = write_run(tmp_path / "job")
    program("analyze", run, "--home", home)
    with running_dagster(home, tmp_path / "dagster.log") as server:
        # The UI leaves out what is off the screen, so the screen holds the whole group.
        page = browser.new_page(viewport={"width": 4000, "height": 20000})
        group = f"{server.url}/locations/traceviz_dag.definitions/asset-groups/3_ranks/lineage"
        page.goto(group, wait_until="domcontentloaded")
        for asset in ("raw_traces", "topology", "kernels", "microbatches", "overlap", "iterations"):
            page.get_by_text(asset, exact=True).first.wait_for(timeout=60_000)
        page.goto(f"{server.url}/assets/kernels?view=partitions", wait_until="domcontentloaded")
        page.get_by_text("job@7").first.wait_for(timeout=60_000)
        assert not page.get_by_text("Failed to load").count()


def test_a_data_set_chosen_in_the_launchpad_becomes_tables_and_figures(tmp_path, home, browser, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    run = write_run(tmp_path / "there/job", world=2)
    files = {str(path.relative_to(tmp_path / "there")): path.read_bytes() for path in sorted(run.rglob("rank_*"))}
    with hub("lab/traces", files) as server:
        monkeypatch.setenv("TRACEVIZ_HUB_ENDPOINTS", server.address)
        config = (
            "ops:\n  nsys_profile:\n    config:\n      repository: lab/traces\n      file: job/iteration_7/*\n"
            f"      every_match: true\n      endpoint: {server.address}\n"
        )
        with running_dagster(home, tmp_path / "dagster.log") as dagster:
            page = browser.new_page(viewport={"width": 1600, "height": 1200})
            page.goto(f"{dagster.url}/assets/nsys_profile", wait_until="domcontentloaded")
            page.get_by_role("button", name="Materialize", exact=False).first.wait_for(timeout=60_000)
            page.get_by_role("button", name="arrow_drop_down").last.click()
            page.get_by_role("menuitem", name="launchpad").click()
            time.sleep(8)
            page.screenshot(path="/work/scratch/i37/launchpad.png")
            open("/work/scratch/i37/launchpad.html", "w").write(page.content())
            page.locator(".CodeMirror").first.wait_for(timeout=20_000)
            page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", config)
            page.screenshot(path=str(tmp_path / "launchpad.png"))
            page.get_by_role("button", name="Materialize").last.click()
            with open_instance(home) as instance:
                wait_for_partition(instance, "rank_figures", "job@7|0001", tmp_path / "dagster.log")
                for asset in ("kernels", "overlap"):
                    assert "job@7|0000" in instance.get_materialized_partitions(dg.AssetKey(asset))
                assert instance.get_materialized_partitions(dg.AssetKey("pipeline_figures")) == {"job@7"}
            page.goto(f"{dagster.url}/assets/pipeline_figures?partition=job@7", wait_until="domcontentloaded")
            page.get_by_text("job@7").first.wait_for(timeout=60_000)
            page.goto(f"{dagster.url}/assets/kernels?view=lineage&lineageScope=upstream&lineageDepth=5")
            page.get_by_text("nsys_profile", exact=True).first.wait_for(timeout=60_000)
            page.close()


def wait_for_partition(instance: dg.DagsterInstance, asset: str, partition: str, log: Path) -> None:
    deadline = time.monotonic() + 400
    while partition not in instance.get_materialized_partitions(dg.AssetKey(asset)):
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(1)
