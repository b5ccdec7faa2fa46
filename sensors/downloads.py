"""The sensor that follows downloads: tables and figures of what the asset ``nsys_profile`` registered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import dagster as dg

from assets.conventions import IN_FLIGHT, ONLY_STALE_TAG, RANGE_END_TAG, RANGE_START_TAG
from assets.nsys_download import PARTITIONS
from assets.partitions import rank_trace_key
from assets.raw_traces import DOWNLOAD
from assets.resources import TracevizHome
from sensors.busy_storage import once_free
from sensors.jobs import DRAW_ITERATION, DRAW_RANKS, STAGES
from sensors.nightly import under_way, was_tried, what_is_missing
from traceviz_dag.lake.inputs import IterationInputs, registered_if_any
from traceviz_dag.lake.partition_keys import rank_key

_SECONDS = 15


@dg.sensor(
    name="downloads",
    jobs=[*STAGES.values(), DRAW_ITERATION, DRAW_RANKS],
    minimum_interval_seconds=_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Computes the tables and draws the figures of what nsys_profile downloaded, stage by stage.",
)
def downloads_sensor(
    context: dg.SensorEvaluationContext, traceviz: TracevizHome
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Ask for the next stage of the oldest download that is not done; the cursor is the last one that is."""

    def asked() -> list[dg.RunRequest | dg.SkipReason]:
        download = next_download(context.instance, int(context.cursor or 0))
        if download is None:
            return [dg.SkipReason("nothing was downloaded since")]
        busy = _busy(context.instance, traceviz)
        if busy:
            return [dg.SkipReason(busy)]
        requests = list(left_of(context.instance, traceviz, download))
        if requests:
            return list(requests)
        context.update_cursor(str(download.storage_id))
        return [dg.SkipReason(f"the download of run {download.run_id} is done")]

    yield from once_free(asked)


def next_download(instance: dg.DagsterInstance, after: int) -> dg.EventLogRecord | None:
    """The oldest download that was recorded after an event."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey(DOWNLOAD), after_storage_id=after)
    records = instance.fetch_materializations(wanted, limit=1, ascending=True).records
    return records[0] if records else None


def left_of(
    instance: dg.DagsterInstance, traceviz: TracevizHome, download: dg.EventLogRecord
) -> Iterator[dg.RunRequest]:
    """Requests for the next stage of each iteration of a download, once each; nothing where all is done or tried."""
    occasion = f"download {download.run_id}"
    every = [one for key in _keys_of(download) if (one := registered_if_any(traceviz.folder, key)) is not None]
    requests = list(what_is_missing(instance, traceviz, every, occasion, {}))
    yield from requests
    if not requests and traceviz.settings().figures.automatic:
        for inputs in every:
            if traceviz.lake().exists("iterations", run=inputs.run, iteration=inputs.iteration):
                yield from _drawings(instance, inputs, occasion)


def _keys_of(download: dg.EventLogRecord) -> list[str]:
    event = download.asset_materialization
    told = event.metadata.get(PARTITIONS) if event is not None else None
    keys = told.value if isinstance(told, dg.JsonMetadataValue) else None
    return [str(key) for key in keys] if isinstance(keys, list) else []


def _drawings(instance: dg.DagsterInstance, inputs: IterationInputs, occasion: str) -> Iterator[dg.RunRequest]:
    tags = {ONLY_STALE_TAG: "true"}
    first, last = (str(rank_trace_key(inputs.key, rank_key(inputs.ranks[end].rank))) for end in (0, -1))
    for request in (
        dg.RunRequest(
            run_key=f"{occasion} draw {inputs.key}",
            job_name=DRAW_ITERATION.name,
            partition_key=inputs.key,
            tags=tags,
        ),
        dg.RunRequest(
            run_key=f"{occasion} draw ranks {inputs.key}",
            job_name=DRAW_RANKS.name,
            tags={**tags, RANGE_START_TAG: first, RANGE_END_TAG: last},
        ),
    ):
        if not was_tried(instance, str(request.run_key)):
            yield request


def _busy(instance: dg.DagsterInstance, traceviz: TracevizHome) -> str:
    """Why it is too early to ask; where folders are watched, automation asks for most of it itself."""
    if traceviz.settings().watch:
        return under_way(instance, traceviz, time.time())
    in_flight = instance.get_runs_count(dg.RunsFilter(statuses=IN_FLIGHT))
    return f"{in_flight} runs are under way" if in_flight else ""
