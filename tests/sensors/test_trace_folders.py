"""The sensor at its ticks: what it asks for, what it remembers over restarts, what it leaves at rest."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import msgspec
import pytest

from assets.resources import TracevizHome
from sensors.ledger import FolderRecord, FolderState, read_ledger, update_ledger
from sensors.trace_folders import read_cursor, rests
from tests.nsys_file import UTC, node_export
from tests.sensors.ticks import Sensor, folders
from tests.small_run import write_run
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import registered
from traceviz_dag.pipeline.home_settings import SensorSettings, load_settings


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def test_one_run_is_asked_for_all_that_is_due_and_not_twice(tmp_path, home):
    write_run(tmp_path / "runs/job", {7: 4, 8: 4})
    sensor = Sensor(home, tmp_path / "runs")
    assert sensor.asked() == []
    (request,) = sensor.tick().run_requests
    assert [Path(folder["folder"]).name for folder in folders(request)] == ["iteration_7", "iteration_8"]
    sensor.register(request)
    assert sensor.asked() == [] and read_cursor(sensor.cursor).pending == {}
    assert set(sensor.instance.get_dynamic_partitions("iteration")) == {"job@7", "job@8"}
    assert list(sensor.instance.get_dynamic_partitions("rank")) == ["0000", "0001", "0002", "0003"]


def test_exports_of_nodes_become_partitions_when_they_are_whole_and_a_late_node_adds_its_ranks(tmp_path, home):
    folder = tmp_path / "runs/job"
    node_export(folder / "node0.sqlite", communicator=7)
    sensor = Sensor(home, tmp_path / "runs")

    def settle() -> list[dg.RunRequest]:
        sensor.tick()
        requests = sensor.tick().run_requests
        for request in requests:
            sensor.register(request)
        return requests

    assert len(settle()) == 1 and sensor.asked() == []
    assert sensor.instance.get_dynamic_partitions("iteration") == ["job@0"]
    assert list(sensor.instance.get_dynamic_partitions("rank")) == ["0000", "0001"]

    whole = node_export(tmp_path / "elsewhere.sqlite", communicator=7).read_bytes()
    arriving = folder / "node1.sqlite"
    arriving.write_bytes(b"")
    assert len(settle()) == 1
    assert read_ledger(home)[str(folder)].reason == "still being written: node1.sqlite"
    arriving.write_bytes(whole[: len(whole) // 2])
    assert len(settle()) == 1
    assert read_ledger(home)[str(folder)].state is FolderState.WAITING
    assert [entry.rank for entry in registered(home, "job@0").ranks] == [0, 1], "as they were"
    arriving.write_bytes(whole)
    (folder / "node1.sqlite-journal").write_bytes(b"a transaction is open")
    assert settle() == []
    (folder / "node1.sqlite-journal").unlink()
    assert len(settle()) == 1 and sensor.asked() == []
    assert list(sensor.instance.get_dynamic_partitions("rank")) == ["0000", "0001", "0002", "0003"]
    entries = registered(home, "job@0").ranks
    assert [(entry.rank, entry.name, entry.part[-2:]) for entry in entries] == [
        (0, "node0.sqlite", ":0"),
        (1, "node0.sqlite", ":1"),
        (2, "node1.sqlite", ":0"),
        (3, "node1.sqlite", ":1"),
    ]

    node_export(folder / "of_another_day.sqlite", UTC + 24 * 3600 * 10**9)
    assert len(settle()) == 1
    assert sensor.instance.get_dynamic_partitions("iteration") == ["job@0", "job-of_another_day@0"]
    assert registered(home, "job@0").ranks == entries


def test_nothing_is_asked_for_while_a_registering_run_is_under_way(tmp_path, home):
    write_run(tmp_path / "runs/job")
    sensor = Sensor(home, tmp_path / "runs")
    run = dg.DagsterRun(job_name="register_traces", status=dg.DagsterRunStatus.STARTED)
    sensor.instance.add_run(run)
    sensor.tick()
    assert sensor.asked() == []
    sensor.instance.report_run_failed(run)
    assert sensor.asked() == ["iteration_7"]


def test_the_cursor_survives_a_restart_and_a_lost_one_asks_with_the_same_run_key(tmp_path, home):
    write_run(tmp_path / "runs/job")
    sensor = Sensor(home, tmp_path / "runs")
    sensor.tick()
    kept = sensor.cursor
    (request,) = sensor.tick().run_requests
    sensor.cursor = kept
    (again,) = sensor.tick().run_requests
    assert again.run_key == request.run_key, "Dagster does not launch a key twice"
    sensor.register(request)
    sensor.cursor = None
    assert [sensor.asked(), sensor.asked()] == [[], []], "what is done stands in the ledger"


def test_a_cursor_of_another_version_begins_anew(tmp_path, home):
    write_run(tmp_path / "runs/job")
    sensor = Sensor(home, tmp_path / "runs")
    sensor.cursor = '{"pending": 3}'
    sensor.tick()
    assert sensor.asked() == ["iteration_7"]


def test_a_root_that_cannot_be_listed_changes_nothing(tmp_path, home):
    root = tmp_path / "runs"
    write_run(root / "job")
    sensor = Sensor(home, root)
    sensor.tick()
    root.rename(tmp_path / "unmounted")
    lost = sensor.tick()
    assert "cannot be listed" in lost.skip_reason.skip_message
    (tmp_path / "unmounted").rename(root)
    assert sensor.asked() == ["iteration_7"], "the look before the fault still counts"


def test_the_rules_are_observed_once_for_each_state_of_them(tmp_path, home):
    sensor = Sensor(home)
    (event,) = sensor.tick().asset_events
    assert event.asset_key == dg.AssetKey("classification_rules")
    assert list(sensor.tick().asset_events) == []
    rules = tmp_path / "rules.toml"
    rules.write_text('[[frame]]\nname = "x"\non = ["python_function"]\npatterns = ["*x*"]\nphase = "other"\n')
    sensor.traceviz = TracevizHome(home=str(home), rules=str(rules))
    assert len(sensor.tick().asset_events) == 1
    rules.write_text("half an edit [")
    assert list(sensor.tick().asset_events) == []


def test_without_a_root_it_says_how_to_name_one(home):
    assert "TRACEVIZ_ROOTS" in Sensor(home).tick().skip_reason.skip_message


def test_a_tick_that_runs_out_of_time_goes_on_where_it_stopped(tmp_path, home):
    write_run(tmp_path / "runs/job", dict.fromkeys(range(10, 16), 1))
    sensor = Sensor(home, tmp_path / "runs", settings="[sensor]\nbudget_seconds = 0\n")
    seen = set()
    for _ in range(12):
        sensor.tick()
        seen |= {Path(folder).name for folder in read_cursor(sensor.cursor).pending}
    assert seen == {f"iteration_{number}" for number in range(10, 16)}


def test_a_folder_long_at_rest_is_listed_at_its_turn_or_when_a_name_came():
    settings = SensorSettings(interval_seconds=30, rest_hours=1, look_again_hours=1)
    record = FolderRecord("a", FolderState.REGISTERED, 4, changed_ns=5, newest_ns=0, is_leaf=True)
    waiting = FolderRecord("a", FolderState.WAITING, 4, changed_ns=5, newest_ns=0, is_leaf=True)
    ledger = {"/runs/a": record, "/runs/waiting": waiting}
    at_rest = [rests(settings, ledger, "/runs", 1e6 + 30 * turn)("/runs/a", 5) for turn in range(120)]
    assert at_rest.count(False) == 1, "once an hour"
    never = rests(settings, ledger, "/runs", 1e6 + 30 * (at_rest.index(False) + 1))
    assert not never("/runs/a", 6) and not never("/runs/waiting", 5) and not never("/runs/unknown", 5)
    assert never("/runs/a", 5)


def test_the_ledger_survives_damage_and_drops_what_is_gone(tmp_path):
    record = FolderRecord("a", FolderState.REGISTERED, 4)
    update_ledger(tmp_path, {"/a": record, "/b": record})
    update_ledger(tmp_path, {"/c": record}, gone={"/a"})
    assert set(read_ledger(tmp_path)) == {"/b", "/c"}
    (tmp_path / "watched_folders.json").write_text("{")
    assert read_ledger(tmp_path) == {}


def test_the_nightly_look_forgets_folders_that_are_gone_and_none_that_cannot_be_listed(tmp_path, home):
    root = tmp_path / "runs"
    write_run(root / "job")
    sensor = Sensor(home, root)
    gone = FolderRecord("a", FolderState.REGISTERED, 4)
    update_ledger(home, {str(root / "job/iteration_7"): gone, str(root / "job/iteration_6"): gone, "/elsewhere": gone})
    everything = dg.RunConfig(ops={"register_folders": {"config": {"everything": True}}}).to_config_dict()
    root.rename(tmp_path / "unmounted")
    sensor.register(dg.RunRequest(run_config=everything))
    assert len(read_ledger(home)) == 3
    (tmp_path / "unmounted").rename(root)
    sensor.register(dg.RunRequest(run_config=everything))
    assert set(read_ledger(home)) == {str(root / "job/iteration_7"), "/elsewhere"}


def test_settings_come_from_the_file_and_the_environment(tmp_path):
    (tmp_path / "traceviz.toml").write_text(
        '[[watch]]\npath = "/a"\nexpected_ranks = 8\n[nightly]\ncron = "30 4 * * *"\ntime_zone = "Europe/Berlin"\n'
    )
    settings = load_settings(tmp_path, {"TRACEVIZ_ROOTS": "/b, s3://bucket/c", "TRACEVIZ_WEBHOOK": "https://hook"})
    assert [root.path for root in settings.watch] == ["/b", "s3://bucket/c", "/a"]
    assert (settings.nightly.cron, settings.nightly.time_zone) == ("30 4 * * *", "Europe/Berlin")
    assert settings.notify.webhook == "https://hook"


@pytest.mark.parametrize(
    "text",
    [
        "[sensor]\nintervall = 3\n",
        '[[watch]]\npath = "relative"\n',
        "[nightly\n",
        '[notify]\nwebhook = "file:///etc/passwd"\n',
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path, text):
    (tmp_path / "traceviz.toml").write_text(text)
    with pytest.raises(BadInputError, match=r"traceviz\.toml"):
        load_settings(tmp_path, {})


def test_the_cursor_stays_small(tmp_path, home):
    for number in range(600):
        folder = tmp_path / f"runs/job/iteration_{number}"
        folder.mkdir(parents=True)
        os.close(os.open(folder / "rank_0.json", os.O_CREAT))
    sensor = Sensor(home, tmp_path / "runs")
    sensor.tick()
    assert len(sensor.cursor) < 100_000 and len(msgspec.json.decode(sensor.cursor)["pending"]) == 500
