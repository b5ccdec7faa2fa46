"""The schedule that keeps house: old iterations are pruned after the night, and the room for partitions is watched."""

from __future__ import annotations

import dagster as dg

from sensors.jobs import PRUNE
from traceviz_dag.pipeline.home_settings import HomeSettings


def keep_house_schedule(settings: HomeSettings) -> dg.ScheduleDefinition:
    """The schedule ``keep_house``; it runs unless switched off, where there is a root to watch."""
    return dg.ScheduleDefinition(
        name="keep_house",
        job=PRUNE,
        cron_schedule=settings.retention.cron,
        execution_timezone=settings.nightly.time_zone,
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.watch else dg.DefaultScheduleStatus.STOPPED,
        description="Prunes what traceviz.toml no longer keeps, and watches the number of partitions.",
    )
