"""Fixes Dagster's memory of which partitions exist, which loses some under load.

Dagster keeps for each asset the set of materialised partitions up to an event. As of 1.13.27 it takes that set from an
earlier look than the event, so that partitions that were materialised in between are forgotten, and automation waits
for them until the next iteration appears. Its events know better, and wiping the set makes Dagster read them.
"""

from __future__ import annotations

import dagster as dg

from traceviz_dag.pipeline.home_settings import HomeSettings

_SECONDS = 60


def partition_status_sensor(settings: HomeSettings) -> dg.SensorDefinition:
    """The sensor ``partition_status``; it runs unless switched off, where there is a root to watch."""

    @dg.sensor(
        name="partition_status",
        minimum_interval_seconds=max(_SECONDS, settings.automation_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING if settings.watch else dg.DefaultSensorStatus.STOPPED,
        description="Compares Dagster's memory of materialised partitions with its events, and wipes it where it errs.",
    )
    def partition_status(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        repository = context.repository_def
        fixed = []
        # A step that makes several tables is there under the key of each.
        for key, asset in repository.assets_defs_by_key.items() if repository is not None else ():
            if asset.partitions_def is not None and forgotten(context.instance, key, asset.partitions_def):
                context.instance.wipe_asset_cached_status([key])
                fixed.append(key.to_user_string())
        return dg.SkipReason(f"forgotten partitions of {', '.join(sorted(fixed))}" if fixed else "nothing forgotten")

    return partition_status


def forgotten(instance: dg.DagsterInstance, key: dg.AssetKey, partitions_def: dg.PartitionsDefinition) -> set[str]:
    """Partitions with a materialization that Dagster's memory should know, by the event it reaches to, and does not."""
    records = instance.get_asset_records([key])
    status = records[0].asset_entry.cached_status if records else None
    if status is None:
        return set()
    with dg.partition_loading_context(None, instance):
        if status.partitions_def_id != partitions_def.get_serializable_unique_identifier():
            return set()
        known = set(status.deserialize_materialized_partition_subsets(partitions_def).get_partition_keys())
        seen = instance.event_log_storage.get_materialized_partitions(key, before_cursor=status.latest_storage_id + 1)
        return {str(one) for one in partitions_def.filter_valid_partition_keys(seen)} - {str(one) for one in known}
