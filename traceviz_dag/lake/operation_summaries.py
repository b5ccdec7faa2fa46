"""Named queries behind ``traceviz kernels``: the operations of an iteration, summed over its ranks."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.tables.ranks import NOT_CUT
from traceviz_dag.vocabulary import MATRIX, OperationClass

_HERE = "FROM operations WHERE run = $run AND iteration = $iteration AND {rank}"
_MEASURES = """
    CAST(sum(kernel_ns) AS BIGINT) AS kernel_ns,
    -- Of what is not known of all, no sum is made.
    CASE WHEN bool_and(roofline_ns IS NOT NULL) THEN CAST(sum(roofline_ns) AS BIGINT) END AS roofline_ns,
    CASE WHEN bool_and(roofline_ns IS NOT NULL) THEN sum(roofline_ns) / nullif(sum(kernel_ns), 0) END AS efficiency,
    CAST(sum(headroom_ns) AS BIGINT) AS headroom_ns"""

MEASURED_SQL = """
    SELECT sum(ns) AS measured_ns FROM (
        SELECT window_name, window_end_ns - window_start_ns AS ns,
            bool_or(window_name = 'step') OVER (PARTITION BY rank, device) AS marked
        FROM overlap WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND {rank}
    ) WHERE (window_name = 'step') = marked"""
"""The time of all ranks' training steps, of a rank without any from its first kernel to its last: measured_ns."""

_SIZES = "CAST(coalesce('of ' || CAST(forward_shapes AS VARCHAR), CAST(shapes AS VARCHAR)) AS VARCHAR)"
"""What tells how much an operation does: of a backward pass the sizes of its forward pass, where they are recorded."""

OPERATIONS_SQL = f"""
SELECT
    coalesce(operation, kernel) AS name, CAST(phase AS VARCHAR) AS phase, {_SIZES} AS shapes,
    CAST(number_format AS VARCHAR) AS number_format,
    CAST(sum(count) AS BIGINT) AS calls,
    {_MEASURES},
    CASE WHEN bool_and(flops IS NOT NULL) THEN sum(flops * count::HUGEINT) / nullif(sum(kernel_ns), 0) / 1e3
        END AS tera_flops_per_s,
    CASE WHEN bool_and(bytes IS NOT NULL) THEN sum(bytes * count::HUGEINT) / nullif(sum(kernel_ns), 0) / 1e3
        END AS tera_bytes_per_s,
    CASE WHEN count(DISTINCT bound) = 1 THEN CAST(any_value(bound) AS VARCHAR) END AS bound
{_HERE} AND operation_class <> 'communication'
GROUP BY ALL
ORDER BY kernel_ns DESC, name, phase, shapes, number_format
"""
"""Operations other than communications by name, phase, sizes of inputs and number format; the longest first.

Of the backward pass of an autograd function ``shapes`` are "of" those of its forward pass. An operation without a
name has that of its kernel. Columns: name, phase, shapes, number_format, calls, kernel_ns, roofline_ns and
efficiency (NULL where not known of all), headroom_ns, tera_flops_per_s, tera_bytes_per_s, bound."""

_GROUPS = f"""
SELECT CAST(name AS VARCHAR) AS name, {_MEASURES},
    CAST(sum(kernel_ns) FILTER (roofline_ns IS NULL) AS BIGINT) AS unknown_ns
FROM parts
GROUP BY ALL
ORDER BY kernel_ns DESC, name
"""

CLASSES_SQL = f"WITH parts AS (SELECT operation_class AS name, * {_HERE}) {_GROUPS}"
"""Operations by class.

Columns: name, kernel_ns, roofline_ns and efficiency (NULL where not known of all), headroom_ns, and unknown_ns,
which has no roofline."""

MODULES_SQL = f"""
WITH ran AS (
    SELECT rank, operation_id, CAST(module_path AS VARCHAR) AS path, count(*) AS ran, sum(duration_ns) AS ran_ns
    FROM kernels WHERE run = $run AND iteration = $iteration AND kind <> 'communication' AND {{rank}} GROUP BY ALL
), parts AS (
    -- Of an operation's calls each module has those of its own, as in the view of them. (A table that is named here is
    -- read.)
    SELECT regexp_replace(string_split(path, '/')[-1], 'Layer_[0-9]+$', 'Layer') AS name, ran_ns AS kernel_ns,
        roofline_ns * (ran / kernels) AS roofline_ns, headroom_ns * (ran / kernels) AS headroom_ns
    FROM ran LEFT JOIN (SELECT rank, operation_id, kernels, roofline_ns, headroom_ns {_HERE})
        USING (rank, operation_id)
)
{_GROUPS}"""
"""Kernels other than communications by the class of the innermost module of ``module_path``.

Columns as of ``CLASSES_SQL``; name is NULL for kernels of no module."""

REASONS_SQL = f"""
SELECT reason, CAST(sum(kernel_ns) AS BIGINT) AS kernel_ns
{_HERE} AND roofline_ns IS NULL AND operation_class <> 'communication'
GROUP BY reason
ORDER BY kernel_ns DESC, reason
"""
"""The kernel time without a roofline, communications left out, by the reason."""

PEAKS_SQL = f"""
SELECT DISTINCT CAST(gpu AS VARCHAR) AS gpu, CAST(number_format AS VARCHAR) AS number_format, peak_flops_per_s,
    memory_bytes_per_s
{_HERE} AND roofline_ns IS NOT NULL
ORDER BY gpu, peak_flops_per_s NULLS LAST, number_format
"""
"""The peaks that were used: gpu, number_format, peak_flops_per_s (NULL where only memory counts) and
memory_bytes_per_s."""


STEP_FLOPS_SQL = f"""
WITH ran AS (
    SELECT rank, step, operation_id, count(*) AS kernels, sum(duration_ns) AS kernel_ns FROM kernels
    WHERE run = $run AND iteration = $iteration AND kind <> 'communication' AND {NOT_CUT}
    GROUP BY ALL
), here AS (
    SELECT *, operation_class = '{OperationClass.OTHER}' AND flops IS NULL AS maybe
    FROM operations WHERE run = $run AND iteration = $iteration
)
SELECT
    rank, step, CAST(operation_class AS VARCHAR) AS operation_class, CAST(phase AS VARCHAR) AS phase,
    CAST(number_format AS VARCHAR) AS number_format, CASE WHEN flops IS NULL THEN reason END AS reason,
    CASE WHEN flops IS NULL THEN CAST(operation AS VARCHAR) END AS operation,
    CASE WHEN maybe THEN CAST(kernel AS VARCHAR) END AS kernel,
    -- An operation's calls of several steps are told apart by their kernels, as many for each.
    TRY_CAST(sum(flops * count::HUGEINT * ran.kernels // here.kernels) AS BIGINT) AS flops,
    CAST(sum(ran.kernel_ns) AS BIGINT) AS kernel_ns
FROM ran JOIN here USING (rank, operation_id)
WHERE operation_class IN ({", ".join(f"'{each}'" for each in sorted(MATRIX))}) OR maybe
GROUP BY ALL
ORDER BY ALL
"""


def step_flops(lake: Lake, run: str, iteration: int) -> pa.Table:
    """What each rank computed on matrix units in each training step, and what may be such an operation.

    Columns: rank, step, operation_class, phase, number_format, flops (of all calls; NULL where unknown), reason (why)
    and operation (NULL where its FLOPs are known), kernel (its longest, where the operation itself is not known; else
    NULL), kernel_ns.
    """
    return lake.query_iteration(STEP_FLOPS_SQL, run=run, iteration=iteration)


SAME_WORK_SQL = """
WITH classes AS (
    SELECT rank, max(ratio) FILTER (work_class = 'products') AS products,
        max(ratio) FILTER (work_class = 'attention') AS attention,
        max(ratio) FILTER (work_class = 'memory_bound') AS memory_bound,
        max(ratio) FILTER (work_class = 'transfers') AS transfers
    FROM class_speeds WHERE run = $run AND iteration = $iteration GROUP BY rank
)
SELECT rank, stage, products, attention, memory_bound, transfers, kind
FROM rank_speeds JOIN classes USING (rank) WHERE run = $run AND iteration = $iteration AND {rank}
ORDER BY kind IS NULL, greatest(products, attention, memory_bound, transfers) DESC, rank
"""
"""Ranks with peers, those of a kind first, then the slowest in a class.

Columns: rank, stage, the ratio of each class of work to the median peer (NULL where nothing compares), kind (NULL
where nothing is slow)."""


CONTENTION_SQL = f"""
SELECT
    coalesce(CAST(operation AS VARCHAR), contention.kernel) AS name, CAST(phase AS VARCHAR) AS phase,
    {_SIZES} AS shapes, CAST(contention.kernel AS VARCHAR) AS kernel,
    CAST(sum(alone) AS BIGINT) AS alone, CAST(round(sum(alone * alone_ns) / sum(alone)) AS BIGINT) AS alone_ns,
    CAST(sum(beside) AS BIGINT) AS beside, CAST(round(sum(beside * beside_ns) / sum(beside)) AS BIGINT) AS beside_ns,
    -- As much as those beside communication take, to what as many of the same rank take alone.
    sum(beside * beside_ns) / nullif(sum(beside * alone_ns), 0) AS slowdown,
    CAST(sum(extra_ns) AS BIGINT) AS extra_ns
FROM contention JOIN operations USING (run, iteration, rank, operation_id)
WHERE run = $run AND iteration = $iteration AND contention.slowdown IS NOT NULL AND {{rank}}
GROUP BY 1, 2, 3, 4
ORDER BY extra_ns DESC, name, phase, shapes, kernel
"""
"""Operations that run beside communication and alone, the most extra time first.

Columns: name, phase, shapes, kernel; alone and beside (how many kernels), alone_ns and beside_ns (means of the
ranks' medians), slowdown, extra_ns."""

SAVINGS_SQL = "FROM overlap_savings WHERE run = $run AND iteration = $iteration AND {rank}"
"""The rows of table ``overlap_savings``."""

LAUNCHED_SQL = f"""
SELECT
    CAST(kernels.name AS VARCHAR) AS kernel, [grid_x, grid_y, grid_z] AS grid, [block_x, block_y, block_z] AS block,
    CAST(operation AS VARCHAR) AS operation, CAST(operations.phase AS VARCHAR) AS phase,
    {_SIZES} AS shapes, any_value(flops) AS flops, any_value(operations.bytes) AS bytes,
    -- Over all kernels of the operation it is the number of its calls.
    sum(operations.count / operations.kernels) AS calls,
    count(*) AS launches, CAST(median(duration_ns) AS BIGINT) AS median_ns
FROM kernels JOIN operations USING (run, iteration, rank, operation_id)
WHERE run = $run AND iteration = $iteration AND kind <> 'communication' AND {{rank}}
GROUP BY 1, 2, 3, 4, 5, 6, operations.flops, operations.bytes
ORDER BY sum(duration_ns) DESC, kernel, operation, phase, shapes
"""


def launched(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """Kernels by name, sizes of grid and block and operation.

    Columns: kernel, grid and block (lists of three, NULL within where unknown), operation, phase, shapes, flops and
    bytes (of a call of the operation), calls (the operation's, of which each kernel has its part), launches, median_ns.
    """
    return asked(lake, LAUNCHED_SQL, run, iteration, rank)


def asked(lake: Lake, sql: str, run: str, iteration: int, rank: int | None) -> pa.Table:
    """What a query gives of an iteration, or of one of its ranks."""
    return lake.query_iteration(of_rank(sql, rank), run=run, iteration=iteration)


def of_rank(sql: str, rank: int | None) -> str:
    """A query of one rank, or of all; ``{rank}`` in it is the condition."""
    return sql.replace("{rank}", "true" if rank is None else f"rank = {int(rank)}")
