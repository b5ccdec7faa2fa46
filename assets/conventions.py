"""What all assets share: groups, owners, code versions, and table schemas as Dagster metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from assets.reading import table_description
from traceviz_dag.pipeline.staleness import code_version_of
from traceviz_dag.pipeline.steps import lead_of
from traceviz_dag.show.web.addresses import iteration_path, usual_address
from traceviz_dag.tables import PARTITION_COLUMNS, all_tables

OWNERS = ["team:performance"]
DATA_VERSION_TAG = "dagster/data_version"
CODE_VERSION_TAG = "dagster/code_version"
INPUT_VERSION_TAG = "dagster/input_data_version/"
INVARIANTS = "invariants"
ONLY_STALE_TAG = "traceviz/only_stale"
"""A run with this tag makes no table anew that is made from what is there now; it records what Dagster lacks."""

AT_ONCE_TAG = "traceviz/at_once"
"""A run with this tag registered iterations, and computed those that were new."""

RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
"""Of a run over several partitions, its first and its last."""

IN_FLIGHT = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""States of a run that has not ended."""


def only_stale(context: dg.AssetExecutionContext) -> bool:
    """Whether a run leaves what is current as it is: automation asks for what is stale, by events, which may lag behind
    the lake; another try, of the step or the run, goes on where the first one ended."""
    return context.run.tags.get(ONLY_STALE_TAG) == "true" or bool(context.run.parent_run_id) or context.retry_number > 0


def table_spec(
    name: str,
    *,
    group: str,
    deps: Iterable[dg.CoercibleToAssetDep],
    condition: dg.AutomationCondition | None = None,
    skippable: bool = False,
) -> dg.AssetSpec:
    """The asset that is one table of the lake.

    Args:
        condition: when automation makes the step's tables anew; only the lead of a step bears it, see
            ``traceviz_dag/pipeline/steps.py``. None leaves that to a job.
        skippable: whether a run may leave out some of its partitions.
    """
    return dg.AssetSpec(
        name,
        deps=deps,
        group_name=group,
        owners=OWNERS,
        kinds={"parquet", "duckdb"},
        code_version=code_version_of(name),
        description=table_description(all_tables()[name]),
        metadata=_table_metadata(name),
        automation_condition=condition if name == lead_of(name) else None,
        skippable=skippable,
    )


def _table_metadata(name: str) -> dict[str, Any]:
    """Definition metadata of a table's asset: its name and its columns with types and comments."""
    table = all_tables()[name]
    columns = [PARTITION_COLUMNS[column] for column in table.partitioned_by] + list(table.columns)
    return {
        "dagster/table_name": name,
        "dagster/column_schema": dg.TableSchema(
            columns=[
                dg.TableColumn(
                    column.name,
                    str(column.type).replace("dictionary<values=string, indices=int32, ordered=0>", "string"),
                    column.comment,
                )
                for column in columns
            ]
        ),
    }


def served_page(run: str, iteration: int) -> dict[str, Any]:
    """Metadata that leads to the page of an iteration, which ``traceviz serve`` shows on its usual port."""
    return {"traceviz_serve": dg.MetadataValue.url(usual_address(iteration_path(run, iteration)))}


def written_metadata(rows: int, size_bytes: int, uri: str) -> dict[str, Any]:
    """Materialization metadata of one partition."""
    return {
        "dagster/row_count": dg.MetadataValue.int(rows),
        "bytes": dg.MetadataValue.int(size_bytes),
        "dagster/uri": uri,
    }
