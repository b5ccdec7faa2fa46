"""Of which columns those of a table are made: for the tables that people follow over the iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

_WINDOW = ("overlap.window_start_ns", "overlap.window_end_ns")
_MEANS = ("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "idle_ns")
_STATED = ("backend", "device_name", "has_stacks", "has_shapes", "has_groups")
_SCORES = ("score_p10", "score_p50", "score_p90")
_PERIODS = ("period_p50_ns", "period_p90_ns", "period_p99_ns")

MADE_OF_COLUMNS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "iterations": {
        **{name: (f"overlap.{name}",) for name in _MEANS},
        "step_ns": _WINDOW,
        "hidden_share": ("overlap.hidden_ns", "overlap.communication_ns"),
        "longest_computation_rank": ("overlap.rank", "overlap.compute_ns"),
        "covered_ranks": ("overlap.rank",),
        "unclassified_share": ("traces.classified_ns", "traces.kernel_ns"),
        "step_kind": ("traces.step_kind",),
    },
    "runs": {name: (f"traces.{name}",) for name in _STATED},
    "period_percentiles": {
        **{name: (f"periods.{name}",) for name in ("kind", "pair", "step", "stage")},
        **dict.fromkeys(_PERIODS, ("periods.period_ns",)),
        **dict.fromkeys(_SCORES, ("periods.overlap_score",)),
        "stage0_p50_ns": ("periods.stage0_ns",),
        "stage1_p50_ns": ("periods.stage1_ns",),
    },
}
"""Table → column → ``table.column`` of those that its values come from."""


def columns_made_of(table: str) -> dict[str, Any]:
    """The metadata that says so, which Dagster+ draws; nothing for a table whose columns nobody wrote down."""
    known = MADE_OF_COLUMNS.get(table)
    if known is None:
        return {}
    lineage = dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(dg.AssetKey(source), name) for source, name in (one.split(".") for one in of)]
            for column, of in known.items()
        }
    )
    return {"dagster/column_lineage": dg.MetadataValue.column_lineage(lineage)}
