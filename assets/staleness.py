"""What of an iteration is not made from what it should be made from: one answer for command line and automation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from assets.conventions import CODE_VERSION, CODE_VERSION_TAG, INPUT_VERSION_TAG, RULES_TAG
from assets.partitions import rank_trace_key
from assets.topology import INPUTS_TAG, inputs_version
from traceviz_dag.across_ranks import ACROSS_RANKS_TABLES
from traceviz_dag.iteration_pipeline import stored_topology
from traceviz_dag.lake.inputs import IterationInputs, RankInput
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.rank_pipeline import PROFILE_TABLES, RANK_TABLES

_PAGE = 1000

ITERATION_TABLES = ("iterations", "runs", *ACROSS_RANKS_TABLES)
"""Everything that is made once an iteration from the tables of its ranks."""


def topology_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the stored topology was made from these inputs by this code."""
    if not lake.exists("topology", run=inputs.run, iteration=inputs.iteration):
        return False
    tags = latest_tags(instance, "topology", [inputs.key]).get(inputs.key, {})
    return tags.get(INPUTS_TAG) == inputs_version(inputs) and tags.get(CODE_VERSION_TAG) == CODE_VERSION


def stale_ranks(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, topology_version: str, rules_digest: str
) -> list[RankInput]:
    """Ranks whose file, topology, rules or code is not what their tables were made from, or whose tables are gone.

    A rank whose file is gone keeps the tables that it has.
    """
    partitions = {str(rank_trace_key(inputs.key, rank_key(entry.rank))): entry for entry in inputs.ranks}
    wanted_tags = [f"{INPUT_VERSION_TAG}raw_traces", f"{INPUT_VERSION_TAG}topology", RULES_TAG, CODE_VERSION_TAG]
    recorded = latest_tags(instance, "kernels", list(partitions))
    stale = []
    for key, entry in partitions.items():
        versions = dict(zip(wanted_tags, (entry.version, topology_version, rules_digest, CODE_VERSION), strict=True))
        stands = all(
            lake.exists(name, run=inputs.run, iteration=inputs.iteration, rank=entry.rank)
            for name in (RANK_TABLES if not entry.part else (*RANK_TABLES, *PROFILE_TABLES))
        )
        tags = recorded.get(key, {})
        current = stands and all(tags.get(tag) == version for tag, version in versions.items())
        if not current and not (stands and not Path(entry.path).exists()):
            stale.append(entry)
    return stale


def iteration_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the iteration's own tables are younger than every rank and the topology that they are made of."""
    if not all(lake.exists(name, run=inputs.run, iteration=inputs.iteration) for name in ITERATION_TABLES):
        return False
    partitions = {str(rank_trace_key(inputs.key, rank_key(entry.rank))) for entry in inputs.ranks}
    newest_rank = max(_positions(instance, "overlap", partitions).values(), default=0)
    for name in ITERATION_TABLES:
        made_from = latest_tags(instance, name, [inputs.key]).get(inputs.key, {})
        if made_from.get(CODE_VERSION_TAG) != CODE_VERSION:
            return False
        if _positions(instance, name, {inputs.key}).get(inputs.key, 0) < newest_rank:
            return False
    return True


def pending_stage(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, rules_digest: str
) -> tuple[str, list[int]] | None:
    """The next stage that an iteration needs, and the ranks that it concerns.

    Returns:
        ("topology", []), ("ranks", the stale ones) or ("iterations", []); None where everything is current.
    """
    if not topology_is_current(instance, lake, inputs):
        return ("topology", [])
    _, topology_version = stored_topology(lake, inputs.run, inputs.iteration)
    stale = stale_ranks(instance, lake, inputs, topology_version, rules_digest)
    if stale:
        return ("ranks", [entry.rank for entry in stale])
    return None if iteration_is_current(instance, lake, inputs) else ("iterations", [])


def _positions(instance: dg.DagsterInstance, asset: str, partitions: set[str]) -> Mapping[str, int]:
    """Where in the event log the latest materialization of each partition stands."""
    event = dg.DagsterEventType.ASSET_MATERIALIZATION
    return instance.get_latest_storage_id_by_partition(dg.AssetKey(asset), event, partitions)


def contiguous(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; one Dagster run covers one of them."""
    groups: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if groups and rank == groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], rank)
        else:
            groups.append((rank, rank))
    return groups


def latest_tags(instance: dg.DagsterInstance, asset: str, partitions: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Tags of the latest materialization of each partition; partitions without one are absent."""
    wanted = set(partitions)
    found: dict[str, Mapping[str, str]] = {}
    cursor = None
    while True:
        records_filter = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=list(wanted - set(found)))
        page = instance.fetch_materializations(records_filter, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(event.partition, event.tags or {})
        if not page.has_more or len(found) == len(wanted):
            return found
        cursor = page.cursor
