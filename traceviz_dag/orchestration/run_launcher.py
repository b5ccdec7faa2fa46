"""Dagster's own run launcher, which says in good time that a run that was killed will be tried again.

Dagster says so a moment after it marked the run failed. A backfill that looks in between finds nothing left to wait for
and ends, and a run of a backfill that has ended is not tried again: its partitions would never be computed.
"""

from __future__ import annotations

import weakref

import dagster as dg

WILL_RETRY_TAG = "dagster/will_retry"
"""Dagster's own word on a failed run that it will try again."""

_MAX_RETRIES_TAG = "dagster/max_retries"


class CheckedRunLauncher(dg.DefaultRunLauncher):
    """Launches runs in processes of the code server."""

    _known: weakref.ReferenceType[dg.DagsterInstance]

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Learn whose runs they are."""
        super().register_instance(instance)
        self._known = weakref.ref(instance)

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str | None:
        """Tag a run that will be tried again; Dagster asks this of a run right before it marks the run failed."""
        instance = self._known()
        if instance is not None:
            announce_retry(instance, run)
        return super().get_run_worker_debug_info(run, include_container_logs)


def announce_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tag a run that is about to be marked failed, though no step of it failed, if Dagster will try it again."""
    most = run.tags.get(_MAX_RETRIES_TAG, instance.run_retries_max_retries)
    try:
        group = instance.get_run_group(run.run_id)
        # The first run is in it, too.
        tried_again = group is not None and len(list(group[1])) <= int(most)
    except (dg.DagsterRunNotFoundError, ValueError):
        # The first run was deleted, or the tag holds no number: Dagster then tries nothing.
        return
    if tried_again and instance.run_retries_enabled:
        instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: "true"})
