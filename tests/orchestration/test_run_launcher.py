"""Which runs are alive: by the number and the start of their process, and only on this host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher.base import WorkerStatus

from traceviz_dag.orchestration.instance import own_process_tags
from traceviz_dag.orchestration.run_launcher import HOST_TAG, CheckedRunLauncher, is_alive, is_gone


def test_a_process_is_known_by_its_number_and_its_start():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert is_alive(process.pid, since=time.time())
        assert not is_alive(process.pid, since=time.time() - 3600), "another one bore the number an hour ago"
    finally:
        process.kill()
        process.wait()
    assert not is_alive(process.pid, since=time.time())


@pytest.mark.parametrize("jump_seconds", [0, 86_400, -86_400])
def test_setting_the_clock_ends_no_run(monkeypatch, jump_seconds):
    tags = own_process_tags()
    read = Path.read_text

    def after_the_jump(path: Path, *arguments: object, **named: object) -> str:
        text = read(path, *arguments, **named)
        if path != Path("/proc/stat"):
            return text
        [boot] = [line for line in text.splitlines() if line.startswith("btime")]
        return text.replace(boot, f"btime {int(boot.split()[1]) + jump_seconds}")

    monkeypatch.setattr(Path, "read_text", after_the_jump)
    assert not is_gone(dg.DagsterRun("job", tags=tags))
    pid, _, mark = tags["traceviz/process"].partition("@")
    assert is_gone(dg.DagsterRun("job", tags={**tags, "traceviz/process": f"{pid}@{mark}0"}))


@pytest.mark.parametrize(
    ("tags", "pid_of", "status"),
    [
        ({HOST_TAG: socket.gethostname()}, "alive", WorkerStatus.RUNNING),
        ({HOST_TAG: socket.gethostname()}, "dead", WorkerStatus.FAILED),
        ({HOST_TAG: "another-host"}, "dead", WorkerStatus.RUNNING),
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


def _job() -> dg.JobDefinition:
    @dg.job
    def empty():
        pass

    return empty
