"""The measures that can be asked by name: columns of tables, with their definitions."""

from __future__ import annotations

from traceviz_dag.tables import ITERATIONS, OVERLAP, UTILIZATION

_OF_WINDOWS = (
    *("compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"),
    *("hidden_share", "hidden_over_min"),
)
_OF_ITERATIONS = ("step_ns", "unclassified_share", "model_flops_per_gpu", "peak_flops_per_s", "mfu")
_OF_STEPS = ("tokens_per_s", "flops_per_gpu", "hfu")

REFUSALS = {"mfu": "mfu_refusal", "hfu": "hfu_refusal", "flops_per_gpu": "hfu_refusal"}
"""Measure → the column that says why it is NULL."""


def measures() -> dict[str, tuple[str, str]]:
    """Name → its table, and what it is, with its unit; of windows of ranks first, then of iterations and steps."""
    tables = ((OVERLAP, _OF_WINDOWS), (ITERATIONS, _OF_ITERATIONS), (UTILIZATION, _OF_STEPS))
    return {
        column.name: (table.name, column.comment)
        for table, names in tables
        for column in table.columns
        if column.name in names
    }
