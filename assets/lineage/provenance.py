"""What an event that is logged by hand was made from, in the tags that Dagster itself gives to a step's outputs.

Dagster reads both of a dependency: the version, and a pointer to the last event of it that was there to be read. Where
one is missing, the asset counts as made before it had the dependency, and the user interface shows it as unsynced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.conventions import DATA_VERSION_TAG, INPUT_VERSION_TAG

_POINTER_TAG = "dagster/input_event_pointer/"
_PAGE = 1000
_NO_EVENT = ("INITIAL", "NULL")
"""Dagster's version and pointer of what never had an event."""


def input_tags(
    instance: dg.DagsterInstance, asset: dg.AssetsDefinition, name: str, read: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The tags of all dependencies of an asset, as they are now: ask before you read them.

    Args:
        name: one of the assets that the definition makes.
        read: dependency → version that is really read. What never had an event keeps Dagster's own word for that.
    """
    found = {}
    for dependency in asset.asset_deps[dg.AssetKey(name)]:
        version, pointer = _latest(instance, dependency)
        if pointer != _NO_EVENT[1]:
            version = (read or {}).get(dependency.to_user_string(), version)
        found[f"{INPUT_VERSION_TAG}{dependency.to_user_string()}"] = version
        found[f"{_POINTER_TAG}{dependency.to_user_string()}"] = pointer
    return found


def _latest(instance: dg.DagsterInstance, asset: dg.AssetKey) -> tuple[str, str]:
    """Version and pointer of the last event of an asset, whatever its partition."""
    for records in (instance.fetch_materializations(asset, limit=1), instance.fetch_observations(asset, limit=1)):
        for record in records.records:
            event = record.asset_materialization or record.asset_observation
            tags: Mapping[str, str] = (event.tags or {}) if event is not None else {}
            return tags.get(DATA_VERSION_TAG, _NO_EVENT[0]), str(record.storage_id)
    return _NO_EVENT


def latest_tags(instance: dg.DagsterInstance, asset: str, partitions: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Tags of the latest materialization of each partition; partitions without one are absent."""
    wanted = set(partitions)
    found: dict[str, Mapping[str, str]] = {}
    cursor = None
    # Asked for no partition, Dagster would give them all.
    while missing := list(wanted - set(found)):
        records_filter = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=missing)
        page = instance.fetch_materializations(records_filter, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(event.partition, event.tags or {})
        if not page.has_more:
            break
        cursor = page.cursor
    return found
