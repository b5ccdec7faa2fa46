"""Named queries behind ``traceviz kernels --by length``: how long kernels are, what gaps wait for, how times spread."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.operation_summaries import MEASURED_SQL, asked
from traceviz_dag.tables.ranks import NOT_CUT
from traceviz_dag.vocabulary import MATRIX, OperationClass

EDGES_NS = (2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000)
"""Where each class of lengths but the first begins."""

LENGTHS_SQL = f"""
WITH starved AS (
    SELECT rank, kernel_id, sum(starved_ns) AS starved_ns FROM gpu_gaps
    WHERE run = $run AND iteration = $iteration AND starved_ns > 0 AND {{rank}} GROUP BY ALL
), computed AS (
    SELECT duration_ns, starved_ns,
        CASE {" ".join(f"WHEN duration_ns >= {edge} THEN {edge}" for edge in reversed(EDGES_NS))} ELSE 0 END AS from_ns
    FROM kernels LEFT JOIN starved USING (rank, kernel_id)
    WHERE run = $run AND iteration = $iteration AND kind = 'computation' AND {NOT_CUT} AND {{rank}}
)
SELECT
    CAST(from_ns AS BIGINT) AS from_ns, count(*) AS kernels, CAST(sum(duration_ns) AS BIGINT) AS kernel_ns,
    count(*) / sum(count(*)) OVER () AS kernel_share,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (), 0) AS time_share,
    count(starved_ns) AS launch_bound,
    CAST(coalesce(sum(duration_ns) FILTER (starved_ns IS NOT NULL), 0) AS BIGINT) AS launch_bound_ns,
    CAST(coalesce(sum(starved_ns), 0) AS BIGINT) AS starved_ns
FROM computed GROUP BY from_ns
ORDER BY from_ns
"""

GAPS_SQL = f"""
WITH causes AS (
    SELECT unnest([
        {{'cause': 'other work of the GPU', 'host_work': NULL::VARCHAR, 'ns': blocked_ns}},
        {{'cause': 'the host', 'host_work': CAST(host_work AS VARCHAR), 'ns': starved_ns}},
        {{'cause': 'unexplained', 'host_work': NULL::VARCHAR, 'ns': unexplained_ns}}
    ], recursive := true)
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {{rank}}
)
SELECT cause, host_work, CAST(sum(ns) AS BIGINT) AS gap_ns, sum(ns) / nullif(any_value(measured_ns), 0) AS share
FROM causes, ({MEASURED_SQL})
GROUP BY cause, host_work HAVING sum(ns) > 0
ORDER BY gap_ns DESC, cause, host_work
"""

_MATRIX = ", ".join(f"'{each}'" for each in sorted(MATRIX - {OperationClass.ATTENTION}))
SPREAD_SQL = f"""
WITH named AS (
    SELECT rank, operation_id, hash(stage, phase, operation, module, shapes, types, strides, kernel) AS work,
        CASE WHEN operation_class IN ({_MATRIX}) THEN 'products' WHEN operation_class = '{OperationClass.ATTENTION}'
            THEN 'attention' ELSE 'memory-bound' END AS work_class
    FROM operations WHERE run = $run AND iteration = $iteration AND operation_class <> 'communication' AND {{rank}}
), ran AS (
    SELECT rank, operation_id, step, chunk, microbatch, count(*) AS kernels, sum(duration_ns) AS ns FROM kernels
    WHERE run = $run AND iteration = $iteration AND microbatch IS NOT NULL AND kind <> 'communication' AND {NOT_CUT}
        AND {{rank}}
    GROUP BY ALL
), alike AS (
    -- Micro-batches that run the operation equally often.
    SELECT *, count(*) OVER same AS others FROM ran
    WINDOW same AS (PARTITION BY rank, operation_id, chunk, kernels)
), of_rank AS (
    SELECT rank, work, work_class, chunk, kernels, sum(ns) AS ns, median(ns) AS usual_ns,
        quantile_cont(ns, 0.95) / nullif(median(ns), 0) AS spread
    FROM alike JOIN named USING (rank, operation_id) WHERE others >= 3
    GROUP BY rank, work, work_class, chunk, kernels, operation_id
), of_ranks AS (
    SELECT work, work_class, sum(ns) AS ns, count(*) AS ranks,
        quantile_cont(usual_ns, 0.95) / nullif(median(usual_ns), 0) AS spread
    FROM of_rank GROUP BY work, work_class, chunk, kernels
), over_ranks AS (
    SELECT work_class, sum(spread * ns) / sum(ns) AS over_ranks FROM of_ranks
    WHERE ranks > 1 AND spread IS NOT NULL GROUP BY work_class
)
SELECT work_class, CAST(sum(ns) AS BIGINT) AS kernel_ns, sum(spread * ns) / sum(ns) AS over_microbatches,
    any_value(over_ranks) AS over_ranks
FROM of_rank LEFT JOIN over_ranks USING (work_class) WHERE spread IS NOT NULL
GROUP BY work_class
ORDER BY kernel_ns DESC
"""


def kernel_lengths(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """Computation kernels by class of length.

    Columns: from_ns (where the class begins), kernels, kernel_ns, kernel_share, time_share (NULL where no
    kernel takes time); launch_bound (kernels that
    a GPU without other computation waited for until its host had launched them), launch_bound_ns (their time),
    starved_ns (the wait before them).
    """
    return asked(lake, LENGTHS_SQL, run, iteration, rank)


def gap_causes(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """What gaps of computation wait for.

    Columns: cause, host_work (what the host did, where its rows show it), gap_ns, share (of all windows).
    """
    return asked(lake, GAPS_SQL, run, iteration, rank)


def kernel_spread(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """How far equal work spreads: p95 / median of an operation's time, weighted by it.

    Columns: work_class, kernel_ns, over_microbatches (of one rank, three or more that run it equally often), over_ranks
    (of the medians of ranks of one stage; NULL where no two run it).
    """
    return asked(lake, SPREAD_SQL, run, iteration, rank)
