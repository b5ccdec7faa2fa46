"""Views across ranks, over the views of the tables: aligned kernels, percentiles of periods, the blame matrix."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.tables import KERNELS, PARTITION_COLUMNS


@dataclass(frozen=True, slots=True)
class View:
    """A view, which has no files of its own.

    Attributes:
        sql: its SELECT over the views of the tables.
        columns: (name, comment) of each column, in order.
    """

    name: str
    comment: str
    sql: str
    columns: tuple[tuple[str, str], ...]


_PLACE = tuple((column.name, column.comment) for column in PARTITION_COLUMNS.values())
_RUN, _ITERATION, _RANK = _PLACE

KERNELS_ALIGNED = View(
    "kernels_aligned",
    "Every kernel with its start on the common clock of all ranks.",
    """
SELECT
    kernels.*,
    start_ns - offset_ns
        - CAST(round(coalesce(drift_ppm, 0) * 1e-6 * (start_ns - reference_ns)) AS BIGINT) AS aligned_start_ns,
    component AS clock_component,
    greatest(abs(residual_p05_ns), abs(residual_p95_ns)) AS clock_error_ns,
    refusal AS clock_refusal
FROM kernels LEFT JOIN rank_clocks USING (run, iteration, rank)
""",
    (
        *_PLACE,
        *((column.name, column.comment) for column in KERNELS.columns),
        ("aligned_start_ns", "start_ns on the common clock; NULL where the rank's clock is refused."),
        ("clock_component", "Instants of different components have nothing in common."),
        ("clock_error_ns", "90 % of the residuals of the rank's clock are no larger, ns."),
        ("clock_refusal", "Why the rank's clock is not solved; NULL where it is."),
    ),
)

PERIOD_PERCENTILES = View(
    "period_percentiles",
    "Percentiles of each pair and stage over its steady window, which is first_unit to last_unit of each rank.",
    """
SELECT
    run, iteration, kind, pair, step, stage,
    count(DISTINCT rank) AS ranks,
    count(*) AS units,
    min(unit) AS first_unit,
    max(unit) AS last_unit,
    CAST(round(quantile_cont(period_ns, 0.5)) AS BIGINT) AS period_p50_ns,
    CAST(round(quantile_cont(period_ns, 0.9)) AS BIGINT) AS period_p90_ns,
    CAST(round(quantile_cont(period_ns, 0.99)) AS BIGINT) AS period_p99_ns,
    quantile_cont(overlap_score, 0.1) AS score_p10,
    quantile_cont(overlap_score, 0.5) AS score_p50,
    quantile_cont(overlap_score, 0.9) AS score_p90
FROM periods
WHERE period_ns IS NOT NULL
GROUP BY ALL
""",
    (
        *(_RUN, _ITERATION),
        ("kind", "stages, dimension or named."),
        ("pair", "Stages S and S+1, computation and a dimension, or the name that a file gives the pair."),
        ("step", "Number of the ProfilerStep; NULL where none."),
        ("stage", "Stage of stage0; NULL outside pipelines."),
        ("ranks", "Ranks with measures."),
        ("units", "Steady units of all of them."),
        ("first_unit", "First unit of the steady window."),
        ("last_unit", "Last unit of the steady window."),
        *((f"period_p{share}_ns", f"{share}th percentile of the periods, ns.") for share in (50, 90, 99)),
        *((f"score_p{share}", f"{share}th percentile of the OverlapScores.") for share in (10, 50, 90)),
    ),
)

BLAME = View(
    "blame",
    "Who waited for whom, how long, and for what; without waits that cannot be told and those with missing members.",
    """
SELECT
    run, iteration, rank,
    coalesce(last_rank_aligned, last_rank_by_duration) AS late_rank,
    CAST(dimension AS VARCHAR) AS dimension,
    count(*) AS waits,
    CAST(sum(coalesce(wait_aligned_ns, wait_by_duration_ns)) AS BIGINT) AS wait_ns,
    CAST(sum(late_compute_ns) AS BIGINT) AS late_compute_ns,
    CAST(sum(late_communication_ns) AS BIGINT) AS late_communication_ns,
    CAST(sum(late_memory_ns) AS BIGINT) AS late_memory_ns,
    CAST(sum(late_host_ns) AS BIGINT) AS late_host_ns,
    CAST(sum(late_idle_ns) AS BIGINT) AS late_idle_ns,
    bool_and(CAST(clocks AS VARCHAR) = 'solved') AS clocks_solved
FROM collectives
WHERE clocks IS NOT NULL AND fault IS NULL AND coalesce(wait_aligned_ns, wait_by_duration_ns) > 0
GROUP BY ALL
""",
    (
        *(_RUN, _ITERATION, _RANK),
        ("late_rank", "The rank that arrived last, on solved clocks or, without these, by durations."),
        ("dimension", "Parallel dimension of the communications."),
        ("waits", "In how many communications the rank waited for it."),
        ("wait_ns", "For how long in all, ns."),
        ("late_compute_ns", "Of it: the late rank computed, ns."),
        ("late_communication_ns", "Of it: the late rank was in other communication only, ns."),
        ("late_memory_ns", "Of it: the late rank did memory operations only, ns."),
        ("late_host_ns", "Of it: the late rank's GPU idled and its host had not launched yet, ns."),
        ("late_idle_ns", "Of it: the late rank's GPU idled although the host had launched, ns."),
        ("clocks_solved", "Whether all of it rests on solved clocks; if not, some rests on durations alone."),
    ),
)

VIEWS = (KERNELS_ALIGNED, PERIOD_PERCENTILES, BLAME)
