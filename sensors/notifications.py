"""Notifies somebody that a run failed: a JSON object by POST to a webhook, and a line in a file."""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets.conventions import RANGE_START_TAG
from assets.resources import TracevizHome
from sensors.busy_storage import once_free
from traceviz_dag.orchestration.run_launcher import WILL_RETRY_TAG
from traceviz_dag.pipeline.home_settings import HomeSettings, NotifySettings

_TIMEOUT_SECONDS = 10


def notify_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor ``notify``: every run that failed for good, failed gates among them, since a failed gate fails its
    run. It runs unless switched off, where there is somebody to notify."""
    tells = bool(settings.notify.webhook or settings.notify.file)

    @dg.run_failure_sensor(
        name="notify",
        minimum_interval_seconds=settings.automation_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if tells else dg.DefaultSensorStatus.STOPPED,
        description="Calls the webhook, or writes to the file, of traceviz.toml about runs that failed for good.",
    )
    def notify(context: dg.RunFailureSensorContext, traceviz: TracevizHome) -> dg.SkipReason | None:
        run = context.dagster_run
        if run.tags.get(WILL_RETRY_TAG) == "true":
            return dg.SkipReason(f"run {run.run_id} is tried again")
        send(traceviz.settings().notify, once_free(lambda: failure_message(context)))
        return None

    return notify


def failure_message(context: dg.RunFailureSensorContext) -> dict[str, Any]:
    """What failed, as a JSON object; ``text`` says it in one line."""
    run = context.dagster_run
    assets = sorted(key.to_user_string() for key in run.asset_selection or _planned(context.instance, run.run_id))
    partition = run.tags.get("dagster/partition") or run.tags.get(RANGE_START_TAG, "")
    checks = _failed_checks(context.instance, run.run_id)
    faults = [*checks.values()] or [_step_fault(event) for event in context.get_step_failure_events()]
    fault = "; ".join(fault for fault in faults if fault) or context.failure_event.message or "no reason was recorded"
    what = ", ".join(assets) or run.job_name
    return {
        "text": f"traceviz: {what} {partition} failed: {fault}".replace("  ", " "),
        "run_id": run.run_id,
        "job": run.job_name,
        "assets": assets,
        "partition": partition,
        "checks": dict(checks),
    }


def send(settings: NotifySettings, message: Mapping[str, Any]) -> None:
    """Post the message to the webhook, then append it to the file, where either is set.

    Raises:
        OSError: the webhook cannot be reached or refuses it; the sensor's tick fails then and is tried again.
    """
    line = json.dumps(message, ensure_ascii=False)
    if settings.webhook:
        request = urllib.request.Request(settings.webhook, line.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            pass
    if settings.file:
        path = Path(settings.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _planned(instance: dg.DagsterInstance, run_id: str) -> set[dg.AssetKey]:
    """The assets that a run was to make; a job's run has no selection of its own."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    keys = {entry.dagster_event.asset_key for entry in entries if entry.dagster_event is not None}
    return {key for key in keys if key is not None}


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """asset:check → what it says, of the run's failed checks of severity ERROR."""
    failed = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        event = entry.dagster_event
        evaluation = event.asset_check_evaluation_data if event is not None else None
        if evaluation is not None and not evaluation.passed and evaluation.severity is dg.AssetCheckSeverity.ERROR:
            failed[f"{evaluation.asset_key.to_user_string()}:{evaluation.check_name}"] = evaluation.description or ""
    return failed


def _step_fault(event: dg.DagsterEvent) -> str:
    failure = event.step_failure_data
    described = failure.user_failure_data.description if failure.user_failure_data else None
    return described or (failure.error.message.strip().splitlines()[0] if failure.error else "")
