"""Named queries behind the summary that the main job prints: few rows, over all ranks of one iteration."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.lake.lake import Lake

_COVERED = """rank IN (
        SELECT rank FROM traces
        WHERE run = $run AND iteration = $iteration AND CASE
            WHEN EXISTS (FROM iterations WHERE run = $run AND iteration = $iteration) THEN rank IN (
                SELECT unnest(covered_ranks) FROM iterations WHERE run = $run AND iteration = $iteration
            )
            ELSE status = 'read'
        END
    )"""
# The ranks that the row of ``iterations`` covers, so that all figures of an iteration speak of the same ranks.

CATEGORY_SHARES_SQL = f"""
SELECT
    category,
    count(*) AS kernels,
    CAST(sum(duration_ns) AS BIGINT) AS time_ns,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (), 0) AS share
FROM kernels
WHERE run = $run AND iteration = $iteration AND {_COVERED}
GROUP BY category
ORDER BY time_ns DESC, category
"""

DIMENSIONS_SQL = f"""
WITH measured AS (
    SELECT *,
        count(*) FILTER (window_name = 'step') OVER (PARTITION BY rank, device) > 0 AS has_steps
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND window_name IN ('step', 'kernels') AND {_COVERED}
),
ranks AS (SELECT count(DISTINCT rank) AS ranks FROM measured)
SELECT
    dimension,
    CAST(round(sum(communication_ns) / any_value(ranks)) AS BIGINT) AS communication_ns,
    CAST(round(sum(hidden_ns) / any_value(ranks)) AS BIGINT) AS hidden_ns,
    CAST(round(sum(exposed_ns) / any_value(ranks)) AS BIGINT) AS exposed_ns,
    sum(hidden_ns) / nullif(sum(communication_ns), 0) AS hidden_share
FROM measured, ranks
WHERE dimension <> 'all' AND (window_name = 'step') = has_steps
GROUP BY dimension
ORDER BY exposed_ns DESC, dimension
"""

_COMPUTATION_SQL = f"""
WITH computation AS (
    SELECT rank, stage, CAST(sum(compute_ns) AS BIGINT) AS compute_ns
    FROM microbatches
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND phase IN ('forward', 'backward')
        AND stage IS NOT NULL AND {_COVERED}
    GROUP BY rank, stage
)
"""

STAGES_SQL = f"""
{_COMPUTATION_SQL}
SELECT
    stage,
    count(*) AS ranks,
    CAST(round(avg(compute_ns)) AS BIGINT) AS compute_ns,
    arg_max(rank, compute_ns) AS slowest_rank,
    max(compute_ns) AS slowest_rank_compute_ns
FROM computation
GROUP BY stage
ORDER BY compute_ns DESC, stage
"""


RANKS_SQL = f"""
{_COMPUTATION_SQL}
SELECT
    rank,
    stage,
    compute_ns,
    CAST(median(compute_ns) OVER peers AS BIGINT) AS stage_median_ns,
    compute_ns / nullif(median(compute_ns) OVER peers, 0) - 1 AS above_median
FROM computation
WINDOW peers AS (PARTITION BY stage)
QUALIFY count(*) OVER peers > 2
ORDER BY above_median DESC, rank
"""


def category_shares(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Kernel time by category over the ranks that the figures of the iteration cover.

    Columns: category, kernels, time_ns (a sum of durations), share of all time.
    """
    return lake.query_iteration(CATEGORY_SHARES_SQL, run=run, iteration=iteration)


def communication_by_dimension(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Mean over ranks of each dimension's communication, as unions within the training step (else the kernels' span).

    Columns: dimension, communication_ns, hidden_ns, exposed_ns, hidden_share; most exposed first. Dimensions overlap
    each other, so their times do not add up.
    """
    return lake.query_iteration(DIMENSIONS_SQL, run=run, iteration=iteration)


def stage_computation(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Computation inside micro-batches per pipeline stage, mean over its ranks, slowest stage first.

    Columns: stage, ranks, compute_ns, slowest_rank, slowest_rank_compute_ns.
    """
    return lake.query_iteration(STAGES_SQL, run=run, iteration=iteration)


def ranks_against_stage(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Computation inside micro-batches per rank against the median of its stage, slowest first.

    Ranks of one stage do the same work, so who needs longer has the slower GPU. Stages of fewer than three ranks are
    left out: they have no median to stand out from. Columns: rank, stage, compute_ns, stage_median_ns, above_median.
    """
    return lake.query_iteration(RANKS_SQL, run=run, iteration=iteration)
