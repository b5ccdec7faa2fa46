"""A run that did not start in time never looks failed for good while Dagster will try it again."""

from __future__ import annotations

import logging
import time

import dagster as dg
import yaml
from dagster._core.storage.runs import RunStorage, SqlRunStorage
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from traceviz_dag.orchestration.instance import open_instance, prepare_instance


def test_a_killed_run_never_looks_failed_for_good_while_it_will_be_tried_again(tmp_path, monkeypatch):
    # A backfill that sees it so ends, and then Dagster tries its runs no more.
    prepare_instance(tmp_path)
    settings = tmp_path / "dagster" / "dagster.yaml"
    told = yaml.safe_load(settings.read_text())
    told["run_monitoring"] |= {"start_timeout_seconds": 1}
    settings.write_text(yaml.safe_dump(told))
    with open_instance(tmp_path) as instance:
        seen: list[dict[str, str]] = []

        def is_marked(storage: RunStorage, run_id: str, *others: object) -> None:
            handle(storage, run_id, *others)
            if (run := instance.get_run_by_id(run_id)).status is dg.DagsterRunStatus.FAILURE:
                seen.append(dict(run.tags))

        @dg.job
        def empty():
            pass

        run = instance.create_run_for_job(empty, status=dg.DagsterRunStatus.NOT_STARTED)
        starting = dg.DagsterEvent(dg.DagsterEventType.RUN_STARTING.value, run.job_name)
        instance.report_dagster_event(starting, run.run_id)
        time.sleep(1.1)
        handle = SqlRunStorage.handle_run_event
        monkeypatch.setattr(SqlRunStorage, "handle_run_event", is_marked)
        with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
            list(execute_run_monitoring_iteration(workspace, logging.getLogger("quiet")))
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
        assert [tags["dagster/will_retry"] for tags in seen] == ["true"]
