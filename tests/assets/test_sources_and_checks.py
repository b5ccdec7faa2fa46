"""What the sources observe, what blocks an aggregate, and what is expected of a watched place."""

from __future__ import annotations

import importlib
import os

import dagster as dg
import pyarrow.compute as pc
import pytest

from assets.automation import with_freshness
from assets.raw_traces import raw_traces
from tests.assets.loop import QUIET, Loop, of_iterations
from tests.small_run import rank_file, write_run
from traceviz_dag import definitions
from traceviz_dag.definitions import ASSETS, defs
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.home_settings import HomeSettings, WatchedRoot, load_settings
from traceviz_dag.tables import ACROSS_RANKS_TABLES


@pytest.fixture
def loop(tmp_path):
    write_run(tmp_path / "runs/job")
    return Loop(tmp_path / "home", tmp_path / "runs")


def observed(loop: Loop) -> dict[str, str]:
    """Partition → data version of the raw traces, as an observation from the UI gives them."""
    job = dg.define_asset_job("observe", dg.AssetSelection.assets(raw_traces.key))
    definitions = dg.Definitions(assets=ASSETS, jobs=[job], resources={"traceviz": loop.traceviz})
    assert definitions.resolve_job_def("observe").execute_in_process(QUIET, loop.instance).success
    tags = loop.instance.event_log_storage.get_latest_tags_by_partition(
        raw_traces.key, dg.DagsterEventType.ASSET_OBSERVATION, ["dagster/data_version"]
    )
    return {partition: one["dagster/data_version"] for partition, one in tags.items()}


def test_an_observation_by_hand_sees_content_and_not_times(loop, tmp_path):
    loop.settle()
    files = {rank: tmp_path / f"runs/job/iteration_7/rank_{rank:04d}_iter_7.pt.trace.json" for rank in range(4)}
    before = observed(loop)
    assert set(before) == {f"job@7|{rank:04d}" for rank in range(4)}
    os.utime(files[0])
    rank_file(1, 4, scale=2).write(files[1])
    files[2].unlink()
    after = observed(loop)
    assert {partition for partition in before if before[partition] != after[partition]} == {"job@7|0001"}


def test_figures_that_break_an_invariant_stop_the_aggregate(loop):
    loop.settle()
    loop.evaluate()
    loop._execute({("topology", "job@7")})
    loop._execute_ranks([f"job@7|{rank:04d}" for rank in range(4)])
    lake = open_lake(loop.home)
    overlap = lake.table("overlap", "job", 7, 2).arrow()
    columns = [name for name in overlap.column_names if name not in {"run", "iteration", "rank"}]
    broken = overlap.select(columns)
    broken = broken.set_column(
        columns.index("hidden_ns"), broken.schema.field("hidden_ns"), pc.add(broken["hidden_ns"], 10**9)
    )
    lake.write("overlap", broken, run="job", iteration=7, rank=2)
    loop.news()
    loop._execute(of_iterations("job@7"))
    assert {asset for asset, _ in loop.news()} == set(ACROSS_RANKS_TABLES), "they are not made of overlap"
    assert loop.failures == ["iterations job@7"]


def test_freshness_is_expected_only_where_folders_are_watched():
    assert [asset for asset in with_freshness(ASSETS, HomeSettings()) if _policies(asset)] == []
    watched = with_freshness(ASSETS, HomeSettings(watch=(WatchedRoot("/runs"),)))
    assert {key for asset in watched for key in _policies(asset)} == {"nights", "iterations"}


def _policies(asset: object) -> list[str]:
    specs = asset.specs if isinstance(asset, dg.AssetsDefinition) else ()
    return [spec.key.to_user_string() for spec in specs if spec.freshness_policy is not None]


def test_the_code_location_holds_together():
    dg.Definitions.validate_loadable(defs())
    repository = defs().get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "automation",
        "computed", "downloads", "killed_runs", "nightly_verdict", "notify", "partition_status", "trace_folders"
    }  # fmt: skip
    running = [one for one in repository.sensor_defs if one.default_status is dg.DefaultSensorStatus.RUNNING]
    assert [one.name for one in running] == ["computed", "downloads", "killed_runs"], (
        "on a home that watches no folder, too"
    )
    named = {job.name for job in defs().jobs or ()}
    assert {"register_traces", "compute_ranks", "draw_iteration", "judge_night", "prune_old_iterations"} <= named


def test_the_night_is_at_two_unless_set_otherwise():
    schedule = defs().get_repository_def().get_schedule_def("nightly")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 2 * * *", "UTC")


def test_settings_of_the_home_are_read_when_the_location_is_loaded_and_not_at_import(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path))
    settings = tmp_path / "traceviz.toml"
    settings.write_text("nothing_of_ours = 1\n")
    location = importlib.reload(definitions)
    with pytest.raises(BadInputError, match="nothing_of_ours"):
        location.defs()
    for text, status in (("", "STOPPED"), ("[[watch]]\npath = '/runs'\n", "RUNNING")):
        settings.write_text(text)
        loaded = location.defs()
        (sensor,) = [one for one in loaded.sensors if one.name == "trace_folders"]
        assert sensor.default_status.value == status
        assert loaded.resources["traceviz"].settings() == load_settings(tmp_path)
