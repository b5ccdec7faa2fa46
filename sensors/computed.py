"""The sensor ``computed``: what commands computed in this home, or a killed run left unreported, becomes known here."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg
import msgspec

from assets.resources import TracevizHome
from assets.retention import uses_of
from assets.unreported import unreported
from sensors.busy_storage import once_free
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.conversion import DAMAGED
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.recorded import changed_since
from traceviz_dag.lake.under_way import is_under_way
from traceviz_dag.pipeline.home_settings import HomeSettings

_SECONDS_OF_A_TICK = 30
"""Reporting stops then, and goes on with the next tick: Dagster ends a tick that takes longer than a minute."""


def computed_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor; it runs unless somebody switches it off."""

    @dg.sensor(
        name="computed",
        minimum_interval_seconds=settings.automation_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Records what traceviz analyze computed: partitions, versions, checks and lineage.",
    )
    def computed(context: dg.SensorEvaluationContext, traceviz: TracevizHome) -> dg.SensorResult:
        return once_free(lambda: report_once(context.instance, traceviz, context.cursor))

    return computed


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the sensor remembers from tick to tick.

    Attributes:
        done: when the last record changed that was looked at, ns since the epoch.
        again: (run, iteration) of those that were left for later: in use, or damaged.
    """

    done: int = 0
    again: list[tuple[str, int]] = []


def report_once(
    instance: dg.DagsterInstance, traceviz: TracevizHome, cursor: str | None, seconds: float = _SECONDS_OF_A_TICK
) -> dg.SensorResult:
    """One tick: report iterations whose record in the lake changed since the last one, oldest change first.

    Iterations that a command or a run is working on are left to a later tick. So is one of which a file is damaged: it
    is named, and costs no other.

    Args:
        cursor: a :class:`Cursor` in JSON.
        seconds: stop then.
    """
    end, events = time.monotonic() + seconds, 0
    faults: list[str] = []
    before = msgspec.json.decode(cursor, type=Cursor) if cursor else Cursor()
    done, again = before.done, list(before.again)
    found = [(before.done, *place) for place in before.again]
    is_in_use = uses_of(instance)
    for changed_ns, run, iteration in [*found, *changed_since(traceviz.lake().tables_folder, before.done)]:
        key, place = iteration_key(run, iteration), (run, iteration)
        again = [one for one in again if one != place]
        if is_under_way(traceviz.folder, key) or is_in_use(key):
            again.append(place)
        else:
            try:
                inputs = registered_if_any(traceviz.folder, key)
                for event in unreported(instance, traceviz, inputs) if inputs is not None else ():
                    instance.report_runless_asset_event(event)
                    events += 1
                    if time.monotonic() > end:
                        return _result(events, Cursor(done, [*again, place]), faults)
            except (TracevizError, *DAMAGED) as error:
                faults.append(f"{key} is not reported whole: {error}")
                again.append(place)
        done = max(done, changed_ns)
        if time.monotonic() > end:
            break
    return _result(events, Cursor(done, again), faults)


def _result(events: int, cursor: Cursor, faults: Sequence[str]) -> dg.SensorResult:
    said = f"{events} events recorded" if events else "nothing new in the lake"
    return dg.SensorResult(skip_reason="; ".join([said, *faults]), cursor=msgspec.json.encode(cursor).decode())
