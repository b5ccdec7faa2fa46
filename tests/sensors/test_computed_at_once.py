"""A new iteration is computed by the run that registers it, once; whatever changes or fails is left to automation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from assets.automation import without_pictures
from assets.unreported import unreported
from sensors import register_traces
from sensors.computed import report_once
from tests.assets.loop import COMPUTED, Loop, of_figures, of_iterations, of_ranks, of_topology
from tests.damage import call
from tests.in_process import ranks_in_this_process
from tests.sensors.ticks import Sensor
from tests.small_run import rank_file, write_run
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline import making
from traceviz_dag.pipeline.home_settings import FigureSettings, HomeSettings

ORIGIN = RemoteInstigatorOrigin(
    RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "repository"), "automation"
)


def automation_looked(
    instance: dg.DagsterInstance, at: float, status: InstigatorStatus = InstigatorStatus.RUNNING
) -> None:
    """What the daemon keeps of the sensor after a look."""
    state = InstigatorState(ORIGIN, InstigatorType.SENSOR, status, SensorInstigatorData(last_tick_timestamp=at))
    known = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    (instance.update_instigator_state if known else instance.add_instigator_state)(state)


@pytest.fixture(autouse=True)
def _ranks_in_this_process() -> Iterator[None]:
    """What the pool does is tested elsewhere."""
    with ranks_in_this_process():
        yield


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """One whose events are in memory; it keeps the state of sensors, which an ephemeral one does not."""
    events = {"module": "dagster._core.storage.event_log", "class": "InMemoryEventLogStorage"}
    with dg.instance_for_test(overrides={"event_log_storage": events}) as made:
        yield made


def watched(folder: Path, instance: dg.DagsterInstance, settings: str = "", pictures: bool = False) -> Loop:
    """A home over an empty folder, of which automation has seen that it is empty."""
    (folder / "runs").mkdir()
    loop = Loop(folder / "home", folder / "runs", settings, pictures)
    loop.instance = instance
    loop.tick()
    automation_looked(loop.instance, time.time())
    assert loop.evaluate() == set() and loop.evaluate() == set()
    return loop


def trace(run: Path, rank: int) -> Path:
    return run / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json"


@pytest.mark.long
def test_a_new_iteration_is_computed_by_the_run_that_registers_it_and_a_change_of_it_by_automation(tmp_path, instance):
    loop = watched(tmp_path, instance, pictures=True)
    run = write_run(tmp_path / "runs/job", world=2)
    loop.settle()
    everything = of_topology("job@7") | of_ranks("job@7", 0, 1) | of_iterations("job@7")
    assert loop.news() == everything and loop.pending() == {}
    (registering,) = {
        record.run_id for record in loop.instance.fetch_materializations(dg.AssetKey("findings"), limit=9).records
    }
    assert loop.instance.get_run_by_id(registering).job_name == "register_traces"
    checks = loop.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey("runs"), "complete_ranks")]
    )
    assert [one.status.value for one in checks.values()] == ["SUCCEEDED"]
    asked = [loop.evaluate() for _ in range(3)]
    assert set().union(*asked) == of_figures("job@7", 0, 1), "the tables are there"
    loop.assets = without_pictures(loop.assets, HomeSettings(figures=FigureSettings(automatic=False)))
    loop.computed = COMPUTED

    automation_looked(loop.instance, time.time())
    rank_file(1, 2, scale=2).write(trace(run, 1))
    loop.settle()
    assert loop.automate() == [of_topology("job@7"), of_ranks("job@7", 1), of_iterations("job@7")]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that make tables, as often as they are called."""
    calls: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if name != "analyse_ranks" or arguments[1]:
                calls.append(name)
            return real(*arguments, **named)

        return called

    for name in ("topology_to_store", "analyse_ranks", "aggregate", "analyse_across_ranks"):
        monkeypatch.setattr(making, name, counted(name, getattr(making, name)))
    return calls


@pytest.mark.long
def test_what_a_command_computed_and_the_sensor_reported_is_recorded_by_automation_and_not_made_anew(
    tmp_path, instance, made
):
    loop = watched(tmp_path, instance)
    run = write_run(tmp_path / "runs/job", world=2)
    call("analyze", run, "--home", loop.home)
    made.clear()
    report_once(instance, loop.traceviz, None)
    loop.settle()
    loop.automate()
    assert made == [] and loop.failures == []


@pytest.mark.long
@pytest.mark.parametrize("recorded", [1, 8, 20])
def test_a_run_that_was_killed_while_it_recorded_costs_no_second_computation(
    tmp_path, instance, made, monkeypatch, recorded: int
):
    loop = watched(tmp_path, instance)
    write_run(tmp_path / "runs/job", world=2)

    def killed(*arguments: Any) -> Iterator[Any]:
        yield from islice(unreported(*arguments), recorded)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(register_traces, "unreported", killed)
        loop.settle()
    assert loop.pending() == {}, "all of it is in the lake"
    made.clear()
    loop.automate()
    loop.settle()
    loop.automate()
    everything = of_topology("job@7") | of_ranks("job@7", 0, 1) | of_iterations("job@7")
    assert loop.news() == everything and made == [] and loop.failures == []


@pytest.mark.long
def test_what_fails_is_asked_for_by_automation_whose_run_says_why(tmp_path, instance):
    loop = watched(tmp_path, instance)
    run = write_run(tmp_path / "runs/job", world=2)
    trace(run, 1).write_text('{"traceEvents": "none"}')
    loop.settle()
    assert loop.news() == of_topology("job@7") | of_ranks("job@7", 0)
    assert loop.automate() == [of_ranks("job@7", 1)] and len(loop.failures) == 1
    rank_file(1, 2).write(trace(run, 1))
    automation_looked(loop.instance, time.time())
    loop.settle()
    loop.automate()
    assert open_lake(loop.home).query("SELECT partial FROM iterations").to_pylist() == [{"partial": False}]


@pytest.mark.parametrize("large", [True, False])
def test_a_large_iteration_is_left_to_automation_and_so_is_all_while_it_is_off(tmp_path, instance, large: bool):
    loop = watched(tmp_path, instance, "[sensor]\nat_once_megabytes = 0\n" if large else "")
    if not large:
        automation_looked(loop.instance, time.time(), InstigatorStatus.STOPPED)
    write_run(tmp_path / "runs/job", world=2)
    loop.settle()
    assert loop.news() == set()
    assert loop.instance.get_dynamic_partitions("iteration") == ["job@7"]


@pytest.mark.long
def test_a_change_while_automation_is_off_is_computed_once_it_is_on_again(tmp_path, instance):
    """It was switched off before it saw what had been computed at once: its next look sees that and the change."""
    loop = watched(tmp_path, instance)
    run = write_run(tmp_path / "runs/job", world=2)
    looked = time.time()
    automation_looked(instance, looked)
    loop.settle()
    assert loop.news() >= of_ranks("job@7", 0, 1)
    automation_looked(instance, looked, InstigatorStatus.STOPPED)
    rank_file(1, 2, scale=2).write(trace(run, 1))
    loop.settle()
    automation_looked(instance, time.time())
    loop.settle()
    loop.automate()
    assert loop.news() == of_topology("job@7") | of_ranks("job@7", 1) | of_iterations("job@7")


@pytest.mark.long
def test_a_change_of_what_was_computed_waits_for_the_next_look_of_automation(tmp_path, instance):
    """Else a look would see the tables and the change at once, and take these for those."""
    run = write_run(tmp_path / "runs/job", world=2)
    sensor = Sensor(tmp_path / "home", run.parent)
    sensor.instance, sensor.now = instance, time.time()
    automation_looked(instance, time.time())
    sensor.tick()
    (request,) = sensor.tick().run_requests
    sensor.register(request)
    rank_file(1, 2, scale=2).write(trace(run, 1))
    assert [sensor.asked() for _ in range(3)] == [[], [], []]
    automation_looked(instance, time.time())
    assert sensor.asked() == ["iteration_7"]
