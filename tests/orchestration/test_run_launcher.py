"""Which runs are alive: by the number and the start of their process, and only on this host."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time

import dagster as dg
import pytest
import yaml
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.runs import RunStorage, SqlRunStorage
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from traceviz_dag.orchestration.instance import open_instance, prepare_instance
from traceviz_dag.orchestration.run_launcher import CheckedRunLauncher, is_alive


def test_a_process_is_known_by_its_number_and_its_start():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert is_alive(process.pid, since=time.time())
        assert not is_alive(process.pid, since=time.time() - 3600), "another one bore the number an hour ago"
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid, since=time.time()), "it has ended, though nobody has waited for it yet"
        process.wait()
    assert not is_alive(process.pid, since=time.time())


@pytest.mark.parametrize(
    ("tags", "pid_of", "status"),
    [
        ({".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}, "alive", WorkerStatus.RUNNING),
        ({".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}, "dead", WorkerStatus.FAILED),
        ({".dagster/grpc_info": json.dumps({"host": "code-server", "port": 1})}, "dead", WorkerStatus.RUNNING),
        ({}, "dead", WorkerStatus.RUNNING),
    ],
)
def test_a_run_whose_process_is_gone_from_this_host_is_failed(tags, pid_of, status, monkeypatch):
    if pid_of == "dead":
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        monkeypatch.setattr(os, "getpid", lambda: gone.pid)
    with dg.instance_for_test() as instance:
        run = instance.create_run_for_job(_job(), tags=tags, status=dg.DagsterRunStatus.STARTED)
        instance.report_dagster_event(
            dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name, pid=os.getpid()), run.run_id
        )
        launcher = CheckedRunLauncher()
        launcher.register_instance(instance)
        assert launcher.check_run_worker_health(run).status is status


def test_a_run_whose_process_has_said_nothing_yet_is_not_failed():
    with dg.instance_for_test() as instance:
        tags = {".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}
        run = instance.create_run_for_job(_job(), tags=tags, status=dg.DagsterRunStatus.STARTED)
        launcher = CheckedRunLauncher()
        launcher.register_instance(instance)
        assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
def test_a_killed_run_never_looks_failed_for_good_while_it_will_be_tried_again(tmp_path, status, monkeypatch):
    # A backfill that sees it so ends, and then Dagster tries its runs no more.
    prepare_instance(tmp_path)
    settings = tmp_path / "dagster" / "dagster.yaml"
    told = yaml.safe_load(settings.read_text())
    told["run_monitoring"] |= {"start_timeout_seconds": 1}
    settings.write_text(yaml.safe_dump(told))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    tags = {".dagster/grpc_info": json.dumps({"host": "localhost", "socket": "/tmp/x"})}
    with open_instance(tmp_path) as instance:
        seen: list[dict[str, str]] = []

        def is_marked(storage: RunStorage, run_id: str, *others: object) -> None:
            handle(storage, run_id, *others)
            if (run := instance.get_run_by_id(run_id)).status is dg.DagsterRunStatus.FAILURE:
                seen.append(dict(run.tags))

        run = instance.create_run_for_job(_job(), tags=tags, status=dg.DagsterRunStatus.NOT_STARTED)
        events = [dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START]
        for event in events[: 1 + (status is dg.DagsterRunStatus.STARTED)]:
            instance.report_dagster_event(dg.DagsterEvent(event.value, run.job_name, pid=gone.pid), run.run_id)
        time.sleep(1.1)
        handle = SqlRunStorage.handle_run_event
        monkeypatch.setattr(SqlRunStorage, "handle_run_event", is_marked)
        with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
            list(execute_run_monitoring_iteration(workspace, logging.getLogger("quiet")))
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
        assert [tags["dagster/will_retry"] for tags in seen] == ["true"]


def _job() -> dg.JobDefinition:
    @dg.job
    def empty():
        pass

    return empty
