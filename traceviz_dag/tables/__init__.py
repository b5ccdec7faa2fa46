"""Every table's schema in one place: columns, types, units and comments.

Parquet files, the DuckDB catalogue, Dagster's column metadata and the documentation follow from these definitions.
Times are integer nanoseconds on the rank's own clock and their names end in ``_ns``. ``run``, ``iteration`` and
``rank`` are the partition columns: they are in the path, not in the file.
"""

from __future__ import annotations

from functools import cache

from traceviz_dag.tables.across_ranks import (
    BLAME,
    CLASS_SPEEDS,
    COLLECTIVES,
    EXPERT_LOADS,
    GROUP_SPEEDS,
    LATE_RANKS,
    LINK_GROUPS,
    LINKS,
    PERIOD_PERCENTILES,
    PERIODS,
    PIPELINES,
    RANK_CLOCKS,
    RANK_SPEEDS,
    STAGE_SPEEDS,
)
from traceviz_dag.tables.causes import (
    ADVICE,
    ADVICE_ITEMS,
    CRITICAL_IMBALANCE,
    DELAY_COSTS,
    EFFICIENCIES,
    MESSAGES,
    PATH_EDGES,
    PATH_ITEMS,
    PATH_SEGMENTS,
    WHAT_IF,
)
from traceviz_dag.tables.derived import DerivedTable, plugin_tables
from traceviz_dag.tables.findings import FINDINGS
from traceviz_dag.tables.iterations import (
    ITERATIONS,
    NIGHT_CHANGES,
    NIGHT_COORDINATES,
    NIGHT_DELTAS,
    NIGHT_STEPS,
    NIGHTS,
    RUNS,
    STALE_TABLES,
    UTILIZATION,
)
from traceviz_dag.tables.memory import (
    MEMORY_BLOCKS,
    MEMORY_EVENTS,
    MEMORY_PEAKS,
    MEMORY_RECORDINGS,
    MEMORY_SEGMENTS,
    MEMORY_STACKS,
    MEMORY_STEPS,
)
from traceviz_dag.tables.ranks import (
    CONTENTION,
    GPU_GAPS,
    KERNELS,
    MICROBATCHES,
    NVTX_RANGES,
    OPERATIONS,
    OVERLAP,
    OVERLAP_SAVINGS,
    SYNCHRONIZATIONS,
    TRACES,
)
from traceviz_dag.tables.schema import (
    BY_ITERATION,
    BY_RANK,
    PARTITION_COLUMNS,
    Column,
    Table,
)
from traceviz_dag.tables.topology import PROCESS_GROUPS, TOPOLOGY, TOPOLOGY_TABLES

__all__ = [
    "ACROSS_RANKS_TABLES",
    "ADVICE",
    "ADVICE_ITEMS",
    "BLAME",
    "BY_ITERATION",
    "BY_RANK",
    "CAUSES_TABLES",
    "CLASS_SPEEDS",
    "COLLECTIVES",
    "CONTENTION",
    "CRITICAL_IMBALANCE",
    "DELAY_COSTS",
    "EFFICIENCIES",
    "EXPERT_LOADS",
    "FINDINGS",
    "GPU_GAPS",
    "GROUP_SPEEDS",
    "ITERATIONS",
    "KERNELS",
    "LATE_RANKS",
    "LINKS",
    "LINK_GROUPS",
    "MEMORY_BLOCKS",
    "MEMORY_EVENTS",
    "MEMORY_PEAKS",
    "MEMORY_RECORDINGS",
    "MEMORY_SEGMENTS",
    "MEMORY_STACKS",
    "MEMORY_STEPS",
    "MEMORY_TABLES",
    "MESSAGES",
    "MICROBATCHES",
    "NIGHTS",
    "NIGHT_CHANGES",
    "NIGHT_COORDINATES",
    "NIGHT_DELTAS",
    "NIGHT_STEPS",
    "NVTX_RANGES",
    "OPERATIONS",
    "OVERLAP",
    "OVERLAP_SAVINGS",
    "PARTITION_COLUMNS",
    "PATH_EDGES",
    "PATH_ITEMS",
    "PATH_SEGMENTS",
    "PERIODS",
    "PERIOD_PERCENTILES",
    "PIPELINES",
    "PROCESS_GROUPS",
    "RANK_CLOCKS",
    "RANK_SPEEDS",
    "RANK_TABLES",
    "RUNS",
    "STAGE_SPEEDS",
    "STALE_TABLES",
    "SYNCHRONIZATIONS",
    "TABLES",
    "TOPOLOGY",
    "TOPOLOGY_TABLES",
    "TRACES",
    "UTILIZATION",
    "WHAT_IF",
    "Column",
    "DerivedTable",
    "Table",
    "all_tables",
    "derived_tables",
]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(RUNS, TRACES, TOPOLOGY, PROCESS_GROUPS, KERNELS, MICROBATCHES, SYNCHRONIZATIONS, GPU_GAPS),
        *(OPERATIONS, OVERLAP, CONTENTION, OVERLAP_SAVINGS, NVTX_RANGES),
        *(MEMORY_EVENTS, MEMORY_BLOCKS, MEMORY_SEGMENTS, MEMORY_STACKS, MEMORY_STEPS, MEMORY_PEAKS, MEMORY_RECORDINGS),
        ITERATIONS,
        *(COLLECTIVES, RANK_CLOCKS, LATE_RANKS, BLAME, LINKS, EXPERT_LOADS, RANK_SPEEDS, STAGE_SPEEDS),
        *(CLASS_SPEEDS, GROUP_SPEEDS, LINK_GROUPS, UTILIZATION),
        *(PIPELINES, PERIODS, PERIOD_PERCENTILES),
        *(MESSAGES, PATH_EDGES, PATH_SEGMENTS, PATH_ITEMS, CRITICAL_IMBALANCE, EFFICIENCIES, DELAY_COSTS, WHAT_IF),
        *(ADVICE, ADVICE_ITEMS),
        FINDINGS,
        *(NIGHTS, NIGHT_DELTAS, NIGHT_STEPS, NIGHT_CHANGES),
        STALE_TABLES,
    )
}
"""The tables of this project."""

RANK_TABLES = (
    *("traces", "kernels", "microbatches", "synchronizations", "gpu_gaps", "operations"),
    *("contention", "overlap_savings", "overlap"),
)
"""The tables that every rank's trace becomes, in the order in which they are written."""

CAUSES_TABLES = (
    *("path_edges", "path_segments", "path_items", "critical_imbalance", "efficiencies", "delay_costs", "what_if"),
    *("advice", "advice_items"),
)
"""What the replay of a training step shows."""

ACROSS_RANKS_TABLES = (
    *("collectives", "rank_clocks", "late_ranks", "blame", "links", "expert_loads", "rank_speeds", "stage_speeds"),
    *("class_speeds", "group_speeds", "link_groups", "utilization"),
    *("pipelines", "periods", "period_percentiles", "messages", *CAUSES_TABLES, "findings"),
)
"""The tables across ranks, in the order in which they are made; findings are made from the others."""

MEMORY_TABLES = tuple(name for name in TABLES if name.startswith("memory_"))
"""What snapshots of GPU memory show."""


@cache
def derived_tables() -> dict[str, DerivedTable]:
    """Name → table that another package adds.

    Raises:
        UsageError: something is wrong with one of them.
    """
    return plugin_tables(TABLES)


@cache
def all_tables() -> dict[str, Table]:
    """Name → table, of this project and of other packages.

    Raises:
        UsageError: something is wrong with one of another package.
    """
    return {**TABLES, **derived_tables()}
