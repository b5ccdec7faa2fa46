"""Views across ranks, as SQL over the catalogue: aligned kernels, percentiles of periods, the blame matrix."""

from __future__ import annotations

KERNELS_ALIGNED_SQL = """
SELECT
    kernels.*,
    start_ns - offset_ns
        - CAST(round(coalesce(drift_ppm, 0) * 1e-6 * (start_ns - reference_ns)) AS BIGINT) AS aligned_start_ns,
    component AS clock_component,
    greatest(abs(residual_p05_ns), abs(residual_p95_ns)) AS clock_error_ns,
    refusal AS clock_refusal
FROM kernels LEFT JOIN rank_clocks USING (run, iteration, rank)
"""
"""Every kernel with its start on the common clock; NULL where the rank's clock is refused. Instants of different
``clock_component`` have nothing in common. ``clock_error_ns`` bounds 90 % of the residuals of the rank."""

PERIOD_PERCENTILES_SQL = """
SELECT
    run, iteration, kind, pair, step, stage,
    count(DISTINCT rank) AS ranks,
    count(*) AS units,
    min(unit) AS first_unit,
    max(unit) AS last_unit,
    quantile_cont(period_ns, 0.5) AS period_p50_ns,
    quantile_cont(period_ns, 0.9) AS period_p90_ns,
    quantile_cont(period_ns, 0.99) AS period_p99_ns,
    quantile_cont(overlap_score, 0.1) AS score_p10,
    quantile_cont(overlap_score, 0.5) AS score_p50,
    quantile_cont(overlap_score, 0.9) AS score_p90
FROM periods
WHERE period_ns IS NOT NULL
GROUP BY ALL
"""
"""Percentiles of each pair and stage over its steady window, which is first_unit to last_unit of each rank."""

BLAME_SQL = """
SELECT
    run, iteration, rank,
    coalesce(last_rank_aligned, last_rank) AS late_rank,
    CAST(dimension AS VARCHAR) AS dimension,
    count(*) AS waits,
    CAST(sum(coalesce(wait_aligned_ns, wait_ns)) AS BIGINT) AS wait_ns,
    CAST(sum(late_compute_ns) AS BIGINT) AS late_compute_ns,
    CAST(sum(late_communication_ns) AS BIGINT) AS late_communication_ns,
    CAST(sum(late_memory_ns) AS BIGINT) AS late_memory_ns,
    CAST(sum(late_host_ns) AS BIGINT) AS late_host_ns,
    CAST(sum(late_idle_ns) AS BIGINT) AS late_idle_ns,
    bool_and(CAST(clocks AS VARCHAR) = 'solved') AS clocks_solved
FROM collectives
WHERE wait_ns IS NOT NULL AND fault IS NULL AND rank <> coalesce(last_rank_aligned, last_rank)
GROUP BY ALL
"""
"""Who waited for whom, how long, and for what; communications with missing members are left out."""
