"""Dagster's own run launcher, which can also say whether a run is still alive.

Without that, a run whose process was killed stays "started" for ever, and automation waits for it for ever. With it,
Dagster's run monitoring marks the run failed, and its run retries start it again, a bounded number of times.

Dagster says that a run will be tried again a moment after it marked the run failed. A backfill that looks in between
finds nothing left to wait for and ends, and a run of a backfill that has ended is not tried again: its partitions would
never be computed. So this launcher says it first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from dagster import DagsterEventType, DagsterRun, DagsterRunStatus, DefaultRunLauncher
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus

WILL_RETRY_TAG = "dagster/will_retry"
"""Dagster's own word on a failed run that it will try again."""

_GRPC_TAG = ".dagster/grpc_info"
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_START_TOLERANCE_SECONDS = 5.0
_START_FIELD = 19


class CheckedRunLauncher(DefaultRunLauncher):
    """Launches runs in processes of the code server, and finds out which of them are gone."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Whether ``check_run_worker_health`` knows anything: it does."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the process of a started run is alive; of a run on another host nothing bad is concluded."""
        if not _runs_here(run):
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it runs on another host, or in a separate process")
        start = next(iter(self._instance.all_logs(run.run_id, of_type=DagsterEventType.RUN_START)), None)
        pid = start.dagster_event.pid if start is not None and start.dagster_event is not None else None
        if start is None or pid is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process has not reported anything yet")
        if is_alive(pid, since=start.timestamp):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {pid} of the run is gone")

    def get_run_worker_debug_info(self, run: DagsterRun, include_container_logs: bool | None = True) -> str | None:
        """Tag a run that will be tried again; Dagster asks this of a run right before it marks the run failed."""
        if auto_reexecution_should_retry_run(self._instance, run.with_status(DagsterRunStatus.FAILURE), None):
            self._instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: "true"})
        return super().get_run_worker_debug_info(run, include_container_logs)


def is_alive(pid: int, since: float) -> bool:
    """Whether the process that bore this number at a time (seconds since the epoch) is still there.

    A number that another process bears by now does not count, where the system shows when that one started.
    """
    if not _exists(pid):
        return False
    started = start_of(pid)
    return started is None or started <= since + _START_TOLERANCE_SECONDS


def start_of(pid: int) -> float | None:
    """When a process started, seconds since the epoch; None where /proc does not show. A zombie started never."""
    try:
        status = _status(pid)
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    if status[0] == "Z":
        return float("inf")
    return float(boot.split()[1]) + int(status[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _runs_here(run: DagsterRun) -> bool:
    server = json.loads(run.tags.get(_GRPC_TAG, "{}"))
    return bool(server) and (server.get("socket") is not None or server.get("host") in _HERE)
