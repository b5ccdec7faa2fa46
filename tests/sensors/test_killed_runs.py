"""Which runs are alive: by the number and the start of their process, and only on this host and in this location."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import dagster as dg
import pytest

from sensors.killed_runs import killed_runs_sensor
from traceviz_dag.orchestration.instance import open_instance, prepare_instance
from traceviz_dag.pipeline.home_settings import HomeSettings

HERE = {".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}
STARTED, FAILED = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE


def dead_process() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def a_run(instance: dg.DagsterInstance, tags: dict[str, str], pid: int | None) -> dg.DagsterRun:
    """A run that was started, by a process that said its number."""

    @dg.job
    def empty():
        pass

    run = instance.create_run_for_job(empty, tags=tags, status=STARTED)
    if pid is not None:
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name, pid=pid)
        instance.report_dagster_event(event, run.run_id)
    return run


def look(instance: dg.DagsterInstance) -> str:
    tick = killed_runs_sensor(HomeSettings()).evaluate_tick(dg.build_sensor_context(instance))
    assert tick.skip_message is not None
    return tick.skip_message


@pytest.mark.parametrize(
    ("tags", "is_dead", "status"),
    [
        (HERE, False, STARTED),
        (HERE, True, FAILED),
        ({".dagster/grpc_info": json.dumps({"host": "code-server", "port": 1})}, True, STARTED),
        ({}, True, STARTED),
    ],
)
def test_a_run_whose_process_is_gone_from_this_host_is_failed(tags, is_dead, status):
    with dg.instance_for_test() as instance:
        run = a_run(instance, tags, dead_process() if is_dead else os.getpid())
        assert (run.run_id in look(instance)) is (status is FAILED)
        assert instance.get_run_by_id(run.run_id).status is status


def test_a_run_whose_process_has_said_nothing_yet_is_not_failed():
    with dg.instance_for_test() as instance:
        run = a_run(instance, HERE, pid=None)
        assert look(instance) == "every run is alive"
        assert instance.get_run_by_id(run.run_id).status is STARTED


def test_runs_of_another_code_location_are_left_alone(monkeypatch):
    class Origin:
        location_name = "ours"

    with dg.instance_for_test() as instance:
        pid = dead_process()
        runs = {one: a_run(instance, {**HERE, ".dagster/repository": one}, pid) for one in ("r@ours", "r@theirs")}
        context = dg.build_sensor_context(instance, repository_name="r")
        monkeypatch.setattr(type(context), "code_location_origin", Origin)
        killed_runs_sensor(HomeSettings()).evaluate_tick(context)
        states = {one: instance.get_run_by_id(run.run_id).status for one, run in runs.items()}
        assert states == {"r@ours": FAILED, "r@theirs": STARTED}


def test_a_killed_run_never_looks_failed_for_good_while_it_will_be_tried_again(tmp_path, monkeypatch):
    # A backfill that sees it so ends, and then Dagster tries its runs no more.
    prepare_instance(tmp_path)
    with open_instance(tmp_path) as instance:
        before: list[dict[str, str]] = []
        run = a_run(instance, HERE, dead_process())
        report = instance.report_run_failed

        def mark(*told: object) -> object:
            before.append(dict(instance.get_run_by_id(run.run_id).tags))
            return report(*told)

        monkeypatch.setattr(instance, "report_run_failed", mark)
        look(instance)
        assert instance.get_run_by_id(run.run_id).status is FAILED
        assert [tags["dagster/will_retry"] for tags in before] == ["true"]


@pytest.mark.parametrize(
    ("tags", "says"), [({}, "true"), ({"dagster/max_retries": "0"}, None), ({"dagster/max_retries": "x"}, None)]
)
def test_only_a_run_that_dagster_tries_again_says_so(tmp_path, tags, says):
    prepare_instance(tmp_path)
    with open_instance(tmp_path) as instance:
        run = a_run(instance, {**HERE, **tags}, dead_process())
        look(instance)
        ended = instance.get_run_by_id(run.run_id)
        assert ended.status is FAILED
        assert ended.tags["dagster/will_retry"] == (says or "false")
