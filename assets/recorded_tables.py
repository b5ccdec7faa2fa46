"""Whether what Dagster shows as materialised is there: the files of the lake, as they were recorded."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.lineage.recorded_files import are_as_recorded
from assets.nightly import NIGHT_TABLES
from assets.partitions import rank_trace_key
from assets.staleness import ITERATION_TABLES, LAST_RECORDED, latest_tags
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.ranks import RANK_TABLES
from traceviz_dag.tables import TOPOLOGY_TABLES, derived_tables

RECORDED = "recorded_tables_exist"

_NAMED = 20


def lost_tables(instance: dg.DagsterInstance, lake: Lake, every: Sequence[IterationInputs]) -> list[str]:
    """Tables of registered iterations whose last materialization recorded a file that is not there, or is another one.

    Returns:
        ``TABLE of PARTITION``, by table.
    """
    found = []
    keys = {inputs.key: inputs for inputs in every}
    for name in (*TOPOLOGY_TABLES, *ITERATION_TABLES, *NIGHT_TABLES, *derived_tables()):
        for key, tags in latest_tags(instance, name, list(keys)).items():
            if not are_as_recorded(lake, tags, [name], keys[key].run, keys[key].iteration):
                found.append(f"{name} of {key}")
    ranks = {str(rank_trace_key(one.key, rank_key(rank.rank))): (one, rank) for one in every for rank in one.ranks}
    for key, tags in latest_tags(instance, LAST_RECORDED, list(ranks)).items():
        inputs, entry = ranks[key]
        found += [
            f"{name} of {key}"
            for name in (*RANK_TABLES, *trace_format(entry.format).extra_tables)
            if not are_as_recorded(lake, tags, [name], inputs.run, inputs.iteration, entry.rank)
        ]
    return found


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
