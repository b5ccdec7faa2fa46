"""From a data set on a hub to figures by the UI alone: chosen in the launchpad of a browser, followed by itself."""

from __future__ import annotations

import time

import dagster as dg
import pytest

from assets.conventions import INPUT_VERSION_TAG
from tests.end_to_end.conftest import running_dagster
from tests.hub_server import hub
from tests.small_run import write_run
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.orchestration.instance import open_instance

CHOICE = """ops:
  nsys_profile:
    config:
      endpoint: {endpoint}
      repository: lab/traces
      file: job/iteration_7/*
      every_match: true
"""
FOLLOW = ("kernels", "overlap", "iterations", "pipelines", "pipeline_figures", "rank_figures")
LONGEST_SECONDS = 900


@pytest.mark.long
def test_a_data_set_chosen_in_the_launchpad_becomes_tables_and_figures_with_lineage(
    tmp_path, home, browser, monkeypatch
):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    run = write_run(tmp_path / "there/job", world=2)
    files = {str(path.relative_to(tmp_path / "there")): path.read_bytes() for path in sorted(run.rglob("rank_*"))}
    with hub("lab/traces", files) as server:
        monkeypatch.setenv("TRACEVIZ_HUB_ENDPOINTS", server.address)
        with running_dagster(home, tmp_path / "dagster.log") as dagster:
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            page.set_default_timeout(120_000)
            page.goto(f"{dagster.url}/assets/nsys_profile", wait_until="domcontentloaded")
            # The arrow beside the button opens the menu.
            button = page.get_by_role("button", name="Materialize").first
            button.locator("xpath=following::button[1]").click()
            page.get_by_role("menuitem", name="Open launchpad").click()
            page.locator(".CodeMirror").first.wait_for()
            page.get_by_text("No errors").wait_for()
            # A headless browser does not type into this editor: it takes keys by a hidden field that has no size.
            page.evaluate(
                "text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)",
                CHOICE.format(endpoint=server.address),
            )
            page.get_by_text("lab/traces").first.wait_for()
            page.get_by_text("No errors").wait_for()
            page.get_by_role("button", name="Materialize").last.click()
            page.wait_for_url("**/runs/*")
            _wait_until_made(home)
            page.goto(
                f"{dagster.url}/assets/kernels?view=lineage&lineageScope=upstream&lineageDepth=2",
                wait_until="domcontentloaded",
            )
            for asset in ("nsys_profile", "raw_traces", "topology"):
                page.get_by_text(asset, exact=True).first.wait_for()
            page.goto(f"{dagster.url}/assets/pipeline_figures?view=partitions", wait_until="domcontentloaded")
            page.get_by_text("job@7").first.click()
            page.wait_for_function(
                "() => [...document.images].some(one => one.src.includes('/figures/') && one.naturalWidth > 100)"
            )
            page.close()
    with open_instance(home) as instance:
        for rank in (0, 1):
            wanted = dg.AssetRecordsFilter(dg.AssetKey("kernels"), asset_partitions=[f"job@7|{rank:04d}"])
            (record,) = instance.fetch_materializations(wanted, limit=1).records
            read = record.asset_materialization.tags[f"{INPUT_VERSION_TAG}raw_traces"]
            assert read == digest_of(run / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json")
    assert list((home / "figures/job/7").rglob("*.png"))


def _wait_until_made(home) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    with open_instance(home) as instance:
        while left := [name for name in FOLLOW if not instance.get_materialized_partitions(dg.AssetKey(name))]:
            failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
            assert not failed, [run.job_name for run in failed]
            assert time.monotonic() < end, f"not made: {left}"
            time.sleep(2)
