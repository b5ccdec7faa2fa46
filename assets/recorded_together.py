"""Several events as one entry into Dagster's records: one wait for them, not one each.

A job of a thousand ranks has ten thousand of them.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar
from uuid import uuid4

import dagster as dg
from dagster._core.events import (
    AssetObservationData,
    DagsterEvent,
    DagsterEventBatchMetadata,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID

_Event = TypeVar("_Event")
_Told = dg.AssetMaterialization | dg.AssetObservation


def log_together(context: dg.OpExecutionContext | dg.AssetExecutionContext, events: Iterable[_Told]) -> None:
    """Log events as ``context.log_event`` does, in their order; in SQLite all of them are recorded, or none."""
    step = context.get_step_execution_context()
    for one, place in _places(events):
        if isinstance(one, dg.AssetMaterialization):
            DagsterEvent.asset_materialization(step, one, place)
        else:
            DagsterEvent.asset_observation(step, one, place)


def report_together(instance: dg.DagsterInstance, events: Iterable[_Told]) -> None:
    """Record events that belong to no run, as ``instance.report_runless_asset_event`` does, in their order."""
    for one, place in _places(events):
        data: StepMaterializationData | AssetObservationData
        if isinstance(one, dg.AssetMaterialization):
            kind, data = DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData(one)
        else:
            kind, data = DagsterEventType.ASSET_OBSERVATION, AssetObservationData(one)
        told = DagsterEvent(kind.value, RUNLESS_JOB_NAME, event_specific_data=data)
        instance.report_dagster_event(told, RUNLESS_RUN_ID, batch_metadata=place)


def _places(events: Iterable[_Event]) -> Iterator[tuple[_Event, DagsterEventBatchMetadata]]:
    every, batch = list(events), str(uuid4())
    for number, one in enumerate(every, 1):
        yield one, DagsterEventBatchMetadata(batch, is_end=number == len(every))
