"""Whether what Dagster shows as materialised is there: the files of the lake, as they were reported to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.lineage.provenance import latest_tags
from assets.partitions import rank_trace_key
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.nights.series import NIGHT_TABLES
from traceviz_dag.pipeline.staleness import ITERATION_TABLES, LAST_WRITTEN
from traceviz_dag.tables import RANK_TABLES, TOPOLOGY_TABLES, derived_tables

RECORDED = "recorded_tables_exist"

_NAMED = 20


def lost_tables(instance: dg.DagsterInstance, lake: Lake, every: Sequence[IterationInputs]) -> list[str]:
    """Tables of registered iterations that Dagster shows as made, and whose file is gone, or is not the one that was
    written. Of a rank the table that is reported last represents the others.

    Returns:
        ``TABLE of PARTITION``, by table.
    """
    found = []
    keys = {inputs.key: inputs for inputs in every}
    for name in (*TOPOLOGY_TABLES, *ITERATION_TABLES, *NIGHT_TABLES, *derived_tables()):
        for key in latest_tags(instance, name, list(keys)):
            found += [f"{name} of {key}" for _ in _lost(lake, [name], keys[key])]
    ranks = {str(rank_trace_key(one.key, rank_key(rank.rank))): (one, rank) for one in every for rank in one.ranks}
    for key in latest_tags(instance, LAST_WRITTEN, list(ranks)):
        inputs, entry = ranks[key]
        names = (*RANK_TABLES, *trace_format(entry.format).extra_tables)
        found += [f"{name} of {key}" for name in _lost(lake, names, inputs, entry.rank)]
    return found


def _lost(lake: Lake, names: Sequence[str], inputs: IterationInputs, rank: int | None = None) -> Iterator[str]:
    """Those whose file is not there, or is not the one that was written."""
    for name in names:
        if not lake.is_as_written(name, run=inputs.run, iteration=inputs.iteration, rank=rank):
            yield name


def recorded_check(lost: Sequence[str]) -> dg.AssetCheckResult:
    """Warns where Dagster shows tables that are not there, and names the first of them."""
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    told = f"not as recorded: {', '.join(lost[:_NAMED])}{more}; traceviz analyze on the traces makes them anew"
    return dg.AssetCheckResult(
        passed=not lost,
        check_name=RECORDED,
        asset_key="retention",
        severity=dg.AssetCheckSeverity.WARN,
        description=told if lost else "Every table that was recorded is there.",
        metadata={"lost": dg.MetadataValue.json(list(lost[:_NAMED])), "tables": len(lost)},
    )
