"""Runs of Dagster in this process, and what became of their steps: a failure is told, never passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from assets.step_faults import RANKS_TOLD
from traceviz_dag.orchestration.instance import own_process_tags
from traceviz_dag.orchestration.interrupts import interrupts_arrive

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def materialise(
    name: str,
    instance: dg.DagsterInstance,
    assets: Sequence[dg.AssetsDefinition | dg.SourceAsset],
    selection: Sequence[dg.AssetsDefinition],
    resources: Mapping[str, Any],
    partition_key: str | None = None,
    tags: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
) -> list[str]:
    """Make some assets, in this process.

    Args:
        name: of the run, as lists of runs show it; letters, digits and underscores.

    Returns:
        One line for each step that failed. Ranks that have a row of their own in ``traces`` are not told again.

    Raises:
        KeyboardInterrupt: the user interrupted it.
    """
    chosen = [key for one in selection for key in one.keys]
    job = dg.define_asset_job(name, selection=chosen, executor_def=dg.in_process_executor)
    definitions = dg.Definitions(assets, jobs=[job], resources=resources)
    with interrupts_arrive():
        result = definitions.resolve_job_def(name).execute_in_process(
            instance=instance,
            partition_key=partition_key,
            tags={**own_process_tags(), **(tags or {})},
            run_config={**_QUIET, **(config or {})},
            raise_on_error=False,
        )
    return [] if result.success else list(_faults(result))


def _faults(result: dg.ExecuteInProcessResult) -> Iterator[str]:
    failures = [event for event in result.all_events if event.is_step_failure]
    for failure in failures:
        told = failure.step_failure_data.user_failure_data
        if told is None or RANKS_TOLD not in told.metadata:
            yield _line(failure, result.run_id)
    if not failures:
        yield f"the run failed before its first step; see run {result.run_id[:8]} in traceviz dev"


def _line(event: dg.DagsterEvent, run_id: str) -> str:
    failure = event.step_failure_data
    told = failure.user_failure_data
    if told is not None and told.description:
        return told.description
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return f"{_message(error)}; this is a fault of traceviz: report it with run {run_id[:8]} of traceviz dev"


def _message(error: SerializableErrorInfo | None) -> str:
    return " ".join(error.message.split())[:300] if error is not None else "no reason was recorded"
