"""Finds runs whose process was killed. They would stay "started" for ever, and automation would wait for them.

The code server looks, as the parent of these processes. Dagster's run monitoring would ask the run launcher, within the
daemon, and takes the answer in types that Dagster does not publish.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import dagster as dg

from sensors.busy_storage import once_free
from traceviz_dag.orchestration.run_launcher import announce_retry
from traceviz_dag.pipeline.home_settings import HomeSettings
from traceviz_dag.system.process_table import is_alive

_GRPC_TAG = ".dagster/grpc_info"
_REPOSITORY_TAG = ".dagster/repository"
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_TICKS = 2


def killed_runs_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor ``killed_runs``; it runs unless switched off."""

    @dg.sensor(
        name="killed_runs",
        minimum_interval_seconds=_EVERY_TICKS * settings.automation_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Marks runs failed whose process is gone; Dagster then tries them again, as dagster.yaml says.",
    )
    def killed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        gone = once_free(lambda: dict(_killed(context.instance, _labels(context))))
        for run_id, pid in gone.items():
            run = context.instance.get_run_by_id(run_id)
            # It may have come to its end since it was listed.
            if run is not None and run.status is dg.DagsterRunStatus.STARTED:
                announce_retry(context.instance, run)
                context.instance.report_run_failed(run, f"Process {pid} of the run is gone. Marking the run as failed.")
        return dg.SkipReason(f"runs {', '.join(sorted(gone))} were killed" if gone else "every run is alive")

    return killed_runs


def _labels(context: dg.SensorEvaluationContext) -> dict[str, str]:
    """Tags of the runs of this code location: those of another may be at work on another machine."""
    origin = context.code_location_origin
    return {} if origin is None else {_REPOSITORY_TAG: f"{context.repository_name}@{origin.location_name}"}


def _killed(instance: dg.DagsterInstance, tags: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Started runs of this machine whose process is gone, with its number; of others nothing bad is concluded."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags=tags)):
        start = next(iter(instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)), None)
        pid = start.dagster_event.pid if start is not None and start.dagster_event is not None else None
        if start is None or pid is None or not _runs_here(run):
            # It has not said anything yet, or it is not ours to judge.
            continue
        if not is_alive(pid, since=start.timestamp):
            yield run.run_id, pid


def _runs_here(run: dg.DagsterRun) -> bool:
    server = json.loads(run.tags.get(_GRPC_TAG, "{}"))
    return bool(server) and (server.get("socket") is not None or server.get("host") in _HERE)
