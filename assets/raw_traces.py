"""What the analysis starts from: trace files, topology text files and the rule table, each with a data version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import dagster as dg
from dagster._core.definitions.external_asset import create_external_asset_from_source_asset

from assets import groups
from assets.conventions import DATA_VERSION_TAG, OWNERS
from assets.partitions import iteration_partitions, rank_trace_key, rank_trace_partitions
from assets.resources import TracevizHome
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import (
    IterationInputs,
    all_registered,
    as_they_look_now,
    register,
    with_digests,
)
from traceviz_dag.lake.partition_keys import rank_key

NO_FILE = "none"
"""Data version of a topology text file that a run does not have."""

DOWNLOAD = "nsys_profile"
"""The asset whose downloads are among the traces."""


def _owned(observed: dg.SourceAsset) -> dg.AssetsDefinition:
    """What is observed, with owners: Dagster's decorator takes none."""
    external = create_external_asset_from_source_asset(observed)
    return external.map_asset_specs(lambda spec: spec.replace_attributes(owners=OWNERS))


@dg.observable_source_asset(
    name="raw_traces",
    partitions_def=rank_trace_partitions,
    group_name=groups.SOURCES,
    description="Trace files of the registered iterations. A file whose content changes gets a new data version."
    "\n\n**Ask:** `traceviz doctor` says what the traces of a folder can answer.",
    tags={"dagster/kind/json": "", "dagster/kind/pytorch": ""},
)
def _traces(traceviz: TracevizHome) -> dg.DataVersionsByPartition:
    """Look at every registered file, and read again what looks different; a file that is gone keeps its version."""
    versions = {}
    for inputs in _looked_at_again(traceviz.folder):
        for entry in inputs.ranks:
            versions[str(rank_trace_key(inputs.key, rank_key(entry.rank)))] = entry.version
    return dg.DataVersionsByPartition(versions)


raw_traces = _owned(_traces).map_asset_specs(lambda spec: spec.replace_attributes(deps=[dg.AssetDep(DOWNLOAD)]))


@_owned
@dg.observable_source_asset(
    partitions_def=iteration_partitions,
    group_name=groups.SOURCES,
    description="The run's newest unique_parallel_groups_* file, which says how ranks form groups."
    "\n\n**Ask:** `traceviz topology`.",
    tags={"dagster/kind/text": ""},
)
def topology_files(traceviz: TracevizHome) -> dg.DataVersionsByPartition:
    """Digest the topology text file of every registered iteration."""
    return dg.DataVersionsByPartition(
        {inputs.key: topology_file_version(inputs) for inputs in all_registered(traceviz.folder)}
    )


@_owned
@dg.observable_source_asset(
    partitions_def=iteration_partitions,
    group_name=groups.SOURCES,
    description="Snapshots of GPU memory beside the traces of an iteration, of all ranks that have one."
    "\n\n**Ask:** `traceviz memory summary`.",
    tags={"dagster/kind/pytorch": ""},
)
def memory_snapshots(traceviz: TracevizHome) -> dg.DataVersionsByPartition:
    """Look at every registered snapshot, and read again what looks different; an iteration without any has none."""
    every = _looked_at_again(traceviz.folder)
    return dg.DataVersionsByPartition({one.key: one.snapshots_version for one in every if one.snapshots})


@_owned
@dg.observable_source_asset(
    group_name=groups.SOURCES,
    description="The rules that classify kernels: the built-in table, and your own file before it."
    "\n\nColumns `phase_rule` and `dimension_rule` of the table `kernels` name the rule that decided.",
    tags={"dagster/kind/text": ""},
)
def classification_rules(traceviz: TracevizHome) -> dg.DataVersion:
    """Digest the rule table in force."""
    return dg.DataVersion(traceviz.load_rules().digest)


def topology_file_version(inputs: IterationInputs) -> str:
    """Digest of the iteration's topology text file; ``NO_FILE`` where there is none."""
    text = Path(inputs.topology_file) if inputs.topology_file else None
    return digest_of(text) if text is not None and text.is_file() else NO_FILE


def new_observations(instance: dg.DagsterInstance, inputs: Sequence[IterationInputs]) -> Iterator[dg.AssetObservation]:
    """An observation for each trace, topology file or set of snapshots whose data version Dagster does not have yet."""
    traces = {
        str(rank_trace_key(one.key, rank_key(entry.rank))): entry.version for one in inputs for entry in one.ranks
    }
    yield from _changed(instance, raw_traces.key, traces)
    yield from _changed(instance, topology_files.key, {one.key: topology_file_version(one) for one in inputs})
    snapshots = {one.key: one.snapshots_version for one in inputs if one.snapshots}
    if snapshots:
        yield from _changed(instance, memory_snapshots.key, snapshots)


def _changed(
    instance: dg.DagsterInstance, asset: dg.AssetKey, versions: Mapping[str, str]
) -> Iterator[dg.AssetObservation]:
    known = instance.event_log_storage.get_latest_tags_by_partition(
        asset, dg.DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG], list(versions)
    )
    for partition, version in versions.items():
        if known.get(partition, {}).get(DATA_VERSION_TAG) != version:
            yield dg.AssetObservation(asset, partition=partition, tags={DATA_VERSION_TAG: version})


def _looked_at_again(home: Path) -> Iterator[IterationInputs]:
    for before in all_registered(home):
        (now,) = with_digests(home, [as_they_look_now(before)])
        register(home, now)
        yield now
