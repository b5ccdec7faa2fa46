"""What the analysis starts from: trace files, topology text files and the rule table, each with a data version."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import dagster as dg

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


def _observable(
    name: str,
    *kinds: str,
    description: str,
    partitions_def: dg.PartitionsDefinition | None = None,
    deps: Sequence[str] = (),
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """Decorates the step that observes a source. ``observable_source_asset`` would take neither owners nor inputs.

    The step of one with partitions records an event for each and yields nothing, since results know no partition; so
    the source is skippable.
    """
    spec = dg.AssetSpec(
        name,
        deps=deps,
        description=description,
        group_name=groups.SOURCES,
        owners=OWNERS,
        kinds=set(kinds),
        partitions_def=partitions_def,
        skippable=partitions_def is not None,
    )
    return dg.multi_observable_source_asset(name=name, specs=[spec])


@_observable(
    "raw_traces",
    *("json", "pytorch"),
    partitions_def=rank_trace_partitions,
    deps=[DOWNLOAD],
    description="Trace files of the registered iterations. A file whose content changes gets a new data version."
    "\n\n**Ask:** `traceviz doctor` says what the traces of a folder can answer.",
)
def raw_traces(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.ObserveResult]:
    """Look at every registered file, and read again what looks different; a file that is gone keeps its version."""
    versions: dict[str, str] = {}
    for inputs in _looked_at_again(traceviz.folder):
        versions |= _versions_of_ranks(inputs)
    return _observed(context, versions)


@_observable(
    "topology_files",
    "text",
    partitions_def=iteration_partitions,
    description="The run's newest unique_parallel_groups_* file, which says how ranks form groups."
    "\n\n**Ask:** `traceviz topology`.",
)
def topology_files(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.ObserveResult]:
    """Digest the topology text file of every registered iteration."""
    return _observed(context, {inputs.key: topology_file_version(inputs) for inputs in all_registered(traceviz.folder)})


@_observable(
    "memory_snapshots",
    "pytorch",
    partitions_def=iteration_partitions,
    description="Snapshots of GPU memory beside the traces of an iteration, of all ranks that have one."
    "\n\n**Ask:** `traceviz memory summary`.",
)
def memory_snapshots(context: dg.AssetExecutionContext, traceviz: TracevizHome) -> Iterator[dg.ObserveResult]:
    """Look at every registered snapshot, and read again what looks different; an iteration without any has none."""
    every = _looked_at_again(traceviz.folder)
    return _observed(context, {one.key: one.snapshots_version for one in every if one.snapshots})


@_observable(
    "classification_rules",
    "text",
    description="The rules that classify kernels: the built-in table, and your own file before it."
    "\n\nColumns `phase_rule` and `dimension_rule` of the table `kernels` name the rule that decided.",
)
def classification_rules(traceviz: TracevizHome) -> dg.ObserveResult:
    """Digest the rule table in force."""
    return dg.ObserveResult(data_version=dg.DataVersion(traceviz.load_rules().digest))


def _versions_of_ranks(inputs: IterationInputs) -> dict[str, str]:
    """Partition → data version of the traces of an iteration."""
    return {str(rank_trace_key(inputs.key, rank_key(entry.rank))): entry.version for entry in inputs.ranks}


def topology_file_version(inputs: IterationInputs) -> str:
    """Digest of the iteration's topology text file; ``NO_FILE`` where there is none."""
    text = Path(inputs.topology_file) if inputs.topology_file else None
    return digest_of(text) if text is not None and text.is_file() else NO_FILE


def new_observations(instance: dg.DagsterInstance, inputs: Sequence[IterationInputs]) -> Iterator[dg.AssetObservation]:
    """An observation for each trace, topology file or set of snapshots whose data version Dagster does not have yet."""
    traces = {partition: version for one in inputs for partition, version in _versions_of_ranks(one).items()}
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
    yield from _observations(
        asset,
        {one: version for one, version in versions.items() if known.get(one, {}).get(DATA_VERSION_TAG) != version},
    )


def _observed(context: dg.AssetExecutionContext, versions: Mapping[str, str]) -> Iterator[dg.ObserveResult]:
    for observation in _observations(context.asset_key, versions):
        context.log_event(observation)
    yield from ()


def _observations(asset: dg.AssetKey, versions: Mapping[str, str]) -> Iterator[dg.AssetObservation]:
    for partition, version in versions.items():
        yield dg.AssetObservation(asset, partition=partition, tags={DATA_VERSION_TAG: version})


def _looked_at_again(home: Path) -> Iterator[IterationInputs]:
    for before in all_registered(home):
        (now,) = with_digests(home, [as_they_look_now(before)])
        register(home, now)
        yield now
