"""What the lake holds and Dagster does not know: what commands computed, and what a killed run left unreported.

What Dagster knows of a partition is the data version of its last event; what the lake holds is recorded with a digest.
Where they differ, the events are made up for, in the order of the way, so that each finds the events of its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from assets.across_ranks import across_ranks_assets, checks_across_ranks, gate
from assets.conventions import CODE_VERSION_TAG, DATA_VERSION_TAG, written_metadata
from assets.derived_tables import derived_assets
from assets.events import table_metadata
from assets.iteration_tables import complete_ranks, iteration_assets, own_traces
from assets.lineage.provenance import input_tags, latest_tags
from assets.memory import memory_tables, snapshots_read, version_of_ranks
from assets.partitions import register_partitions
from assets.rank_tables import checks_of_ranks, rank_events, rank_tables, unknown_ranks
from assets.raw_traces import new_observations
from assets.resources import TracevizHome
from assets.row_previews import preview_of_file
from assets.topology import sources_agree, topology_assets
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import ANALYSE_AGAIN, Partition
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.lake.record_lines import GONE
from traceviz_dag.lake.recorded import gone_parts
from traceviz_dag.pipeline.iteration import unread_ranks
from traceviz_dag.pipeline.making import judged_pairs, pairs_file
from traceviz_dag.pipeline.memory import read_in_part
from traceviz_dag.pipeline.staleness import ITERATION_TABLES, LAST_WRITTEN, code_version_of
from traceviz_dag.pipeline.steps import lead_of
from traceviz_dag.pipeline.stored_topology import stored_topology, topology_version
from traceviz_dag.tables import (
    ACROSS_RANKS_TABLES,
    EXTRA_TABLES,
    MEMORY_TABLES,
    RANK_TABLES,
    TOPOLOGY_TABLES,
    all_tables,
    derived_tables,
)
from traceviz_dag.vocabulary import StaleStage

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation

_STEPS: Mapping[str, dg.AssetsDefinition] = {
    **dict.fromkeys(TOPOLOGY_TABLES, topology_assets),
    **dict.fromkeys(MEMORY_TABLES, memory_tables),
    **dict.fromkeys(ITERATION_TABLES, iteration_assets),
    **dict.fromkeys(ACROSS_RANKS_TABLES, across_ranks_assets),
    **{asset.key.to_user_string(): asset for asset in derived_assets},
}
"""Table of an iteration → the step that makes it."""


def unreported(instance: dg.DagsterInstance, traceviz: TracevizHome, inputs: IterationInputs) -> Iterator[Event]:
    """What Dagster does not know of an iteration, in order: report each event before asking for the next.

    The partitions are added first. Checks come before the tables that they are about.
    """
    lake = traceviz.lake()
    register_partitions(instance, [inputs])
    yield from new_observations(instance, [inputs])
    yield from _of_iteration(instance, lake, inputs, TOPOLOGY_TABLES)
    yield from _of_ranks(instance, traceviz, lake, inputs)
    yield from _of_iteration(instance, lake, inputs, (*MEMORY_TABLES, *ITERATION_TABLES, *derived_tables()))


def _of_iteration(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, names: Sequence[str]
) -> Iterator[Event]:
    """Events of tables with a partition an iteration; before them the checks on them, which a tick that ends in between
    would lose.

    Raises:
        BadInputError: a table was written, and is gone.
    """
    _refuse_gone(lake, inputs, names)
    changed: dict[str, tuple[str, list[Partition]]] = {}
    for name in names:
        parts = lake.partitions(name, inputs.run, inputs.iteration, with_stale=True)
        version = _version(lake, name, parts)
        known = latest_tags(instance, name, [inputs.key]).get(inputs.key, {}).get(DATA_VERSION_TAG)
        if version is not None and version != known:
            changed[name] = (version, parts)
    for check in _checks(lake, inputs, changed):
        yield _evaluation(check)
    made_of: dict[frozenset[dg.AssetKey], dict[str, str]] = {}
    for name, (version, parts) in changed.items():
        # Tables of a step are made of the same, whose events come before theirs.
        inputs_of = frozenset(_STEPS[name].asset_deps[dg.AssetKey(name)])
        if inputs_of not in made_of:
            made_of[inputs_of] = input_tags(instance, _STEPS[name], name)
        tags = {**made_of[inputs_of], DATA_VERSION_TAG: version, CODE_VERSION_TAG: code_version_of(name)}
        metadata = _metadata(lake, inputs, name, parts)
        yield dg.AssetMaterialization(name, partition=inputs.key, metadata=metadata, tags=tags)


def _of_ranks(
    instance: dg.DagsterInstance, traceviz: TracevizHome, lake: Lake, inputs: IterationInputs
) -> Iterator[Event]:
    """Events of the tables of ranks, and of the checks on them.

    Raises:
        BadInputError: a table of a rank was written, and is gone.
    """
    ranks = unknown_ranks(instance, lake, inputs, {entry.rank for entry in inputs.ranks})
    if not ranks:
        return
    # Before the checks, which would pass over the ranks that are left.
    _refuse_gone(lake, inputs, (*EXTRA_TABLES, *RANK_TABLES))
    version = topology_version(lake, inputs.run, inputs.iteration)
    read = {"topology": version, "classification_rules": traceviz.load_rules().digest}
    made_of = input_tags(instance, rank_tables, LAST_WRITTEN, read)
    for check in checks_of_ranks(lake, inputs):
        yield _evaluation(check)
    for rank in ranks:
        yield from rank_events(lake, inputs, rank, made_of)


def _refuse_gone(lake: Lake, inputs: IterationInputs, names: Iterable[str]) -> None:
    """Refuse an iteration of which somebody deleted a file: none is not "no rows"."""
    for name in names:
        if gone := gone_parts(lake.tables_folder, all_tables()[name], inputs.run, inputs.iteration):
            fault = f"table {name}, {gone[0].in_words}: somebody deleted the file"
            raise BadInputError(lake.path(name, **asdict(gone[0])), fault, ANALYSE_AGAIN)


def _version(lake: Lake, name: str, parts: Sequence[Partition]) -> str | None:
    """The data version of what is there; None where nothing is."""
    contents = [lake.content(name, run=one.run, iteration=one.iteration, rank=one.rank) for one in parts]
    digests = [content.computed for content in contents if content is not None and content.computed != GONE]
    if not digests:
        return None
    return version_of_ranks(digests) if name in MEMORY_TABLES else digests[0]


def _metadata(lake: Lake, inputs: IterationInputs, name: str, parts: Sequence[Partition]) -> dict[str, Any]:
    paths = [lake.path(name, run=one.run, iteration=one.iteration, rank=one.rank) for one in parts]
    size, uri = sum(path.stat().st_size for path in paths), paths[0].as_uri()
    if name not in ITERATION_TABLES:
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        return {**written_metadata(rows, size, uri), **preview_of_file(paths[0])}
    shown = lake.table(name, inputs.run, inputs.iteration).arrow(all_tables()[name].schema.names)
    return table_metadata(name, shown, size, uri, inputs.run, inputs.iteration)


def _checks(lake: Lake, inputs: IterationInputs, changed: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    """The checks on the tables of an iteration that changed."""
    place = (inputs.run, inputs.iteration)

    def rows(*names: str) -> dict[str, pa.Table]:
        return {name: lake.table(name, *place).arrow(all_tables()[name].schema.names) for name in names}

    if set(TOPOLOGY_TABLES) & set(changed):
        yield sources_agree(stored_topology(lake, *place)[0])
    if set(MEMORY_TABLES) & set(changed):
        faults = {str(rank): fault for rank, fault in read_in_part(lake, inputs).items()}
        faults |= {str(row.rank): row.reason for row in lake.stale(*place) if row.stage == StaleStage.MEMORY}
        lead = lead_of(MEMORY_TABLES[0])
        for one in inputs.snapshots:
            if not lake.exists(lead, run=inputs.run, iteration=inputs.iteration, rank=one.rank):
                faults.setdefault(str(one.rank), f"{one.name}: nothing of it could be read")
        yield snapshots_read(faults, len(inputs.snapshots))
    if set(AGGREGATED_TABLES) & set(changed):
        found = rows("runs", "iterations")
        yield complete_ranks(found["runs"], found["iterations"], unread_ranks(lake, inputs))
        yield own_traces(lake, inputs)
    if set(ACROSS_RANKS_TABLES) & set(changed):
        tables = rows("collectives", "rank_clocks", "pipelines", "periods")
        yield from checks_across_ranks(tables)
        file = pairs_file()
        if file is None and "named" in tables["periods"]["kind"].cast(pa.string()).to_pylist():
            # Whoever made them named the file of pairs, which has their thresholds.
            return
        yield gate(*judged_pairs(file, tables["periods"]))


def _evaluation(check: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A check's result as an event that belongs to no run."""
    assert check.asset_key is not None and check.check_name is not None
    return dg.AssetCheckEvaluation(
        asset_key=check.asset_key,
        check_name=check.check_name,
        passed=bool(check.passed),
        metadata=check.metadata,
        severity=check.severity,
        description=check.description,
    )
