"""The sensor ``computed``: what commands computed in this home, or a killed run left untold, becomes known here."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from assets.resources import TracevizHome
from assets.retention import is_in_use
from assets.told import untold
from sensors.busy_storage import once_free
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.recorded import changed_since
from traceviz_dag.lake.under_way import is_under_way
from traceviz_dag.pipeline.home_settings import HomeSettings

_SECONDS_OF_A_TICK = 30
"""Telling is stopped then, and goes on with the next tick: Dagster ends a tick that takes longer than a minute."""


def computed_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor; it runs unless somebody switches it off."""

    @dg.sensor(
        name="computed",
        minimum_interval_seconds=settings.automation_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Records what traceviz analyze computed: partitions, versions, checks and lineage.",
    )
    def computed(context: dg.SensorEvaluationContext, traceviz: TracevizHome) -> dg.SensorResult:
        return once_free(lambda: tell_once(context.instance, traceviz, context.cursor))

    return computed


def tell_once(
    instance: dg.DagsterInstance, traceviz: TracevizHome, cursor: str | None, seconds: float = _SECONDS_OF_A_TICK
) -> dg.SensorResult:
    """One tick: tell Dagster of iterations whose record in the lake changed since the last one, oldest change first.

    Iterations that a command or a run is working on are left to a later tick. One that cannot be told, since a file of
    it is damaged, is named, costs no other, and is tried again when its record changes.

    Args:
        cursor: when the last record changed that is done, ns since the epoch.
        seconds: stop then.
    """
    end, done, events, waits = time.monotonic() + seconds, int(cursor or 0), 0, False
    home = traceviz.folder
    faults: list[str] = []
    for changed_ns, run, iteration in changed_since(traceviz.lake().tables_folder, done):
        key = iteration_key(run, iteration)
        if is_under_way(home, key) or is_in_use(instance, key):
            waits = True
            continue
        try:
            inputs = registered_if_any(home, key)
            for event in untold(instance, traceviz, inputs) if inputs is not None else ():
                instance.report_runless_asset_event(event)
                events += 1
                if time.monotonic() > end:
                    return _told(events, done, faults)
        except (TracevizError, OSError) as error:
            faults.append(f"{key} is not told whole: {error}")
        if not waits:
            done = changed_ns
    return _told(events, done, faults)


def _told(events: int, done: int, faults: Sequence[str]) -> dg.SensorResult:
    said = f"{events} events recorded" if events else "nothing new in the lake"
    return dg.SensorResult(skip_reason="; ".join([said, *faults]), cursor=str(done))
