"""Copies and memory sets for which nothing else runs on the GPU."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import MEASURE, Places, Row, Rule
from traceviz_dag.analyze.findings.windows import LEAST_SHARE, OPERATIONS, UNMEASURED, WINDOWS, over_ranks
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.vocabulary import FindingClass

_SQL = f"""
WITH measured AS (
    SELECT sum(window_ns) AS window_ns, sum(copies_alone_ns) AS alone_ns, count(DISTINCT rank) AS ranks FROM {WINDOWS}
),
copied AS (
    SELECT name AS operation, coalesce(operator, launch_name) AS asked_by, inside_ns, bytes
    FROM {OPERATIONS} WHERE kind = 'memory'
),
asking AS (
    SELECT operation, arg_max(asked_by, asked_ns) AS asked_by, max(asked_ns) AS asked_ns
    FROM (
        SELECT operation, asked_by, sum(inside_ns) AS asked_ns FROM copied WHERE asked_by IS NOT NULL GROUP BY ALL
    ) GROUP BY operation
)
-- Which copy has nothing beside it is known of all together: one kind is alone for no longer than it takes.
SELECT
    operation,
    any_value(ranks) AS ranks,
    count(*) AS copies,
    CAST(round(sum(inside_ns) / any_value(ranks)) AS BIGINT) AS time_ns,
    CAST(round(least(sum(inside_ns), any_value(alone_ns)) / any_value(ranks)) AS BIGINT) AS alone_ns,
    CAST(least(sum(inside_ns), any_value(alone_ns)) AS BIGINT) AS at_most_ns,
    CAST(quantile_disc(bytes, 0.5) AS BIGINT) AS median_bytes,
    sum(bytes) / nullif(sum(inside_ns) FILTER (bytes IS NOT NULL), 0) AS gigabytes_per_s,
    any_value(asking.asked_by) AS asked_by,
    CAST(round(any_value(asked_ns) / any_value(ranks)) AS BIGINT) AS asked_ns,
    least(sum(inside_ns), any_value(alone_ns)) / any_value(window_ns) AS value
FROM copied LEFT JOIN asking USING (operation) CROSS JOIN measured
GROUP BY operation
HAVING least(sum(inside_ns), any_value(alone_ns)) >= {LEAST_SHARE} * any_value(window_ns)
"""

_PLACES = f"""
SELECT rank, name AS operation, start_ns, duration_ns, inside_ns AS weight FROM {OPERATIONS} WHERE kind = 'memory'
"""


def _sentence(row: Row) -> str:
    alone = f"{duration(row['alone_ns'])} per rank with no kernel beside it"
    return f"{row['operation']} takes {alone}, {share(row['value'])} of the time measured"


def _detail(row: Row) -> str:
    size = "" if row["median_bytes"] is None else f", median {row['median_bytes'] / 1e6:,.3f} MB"
    rate = "" if row["gigabytes_per_s"] is None else f", {row['gigabytes_per_s']:.1f} GB/s"
    asked = "" if row["asked_by"] is None else f"; {duration(row['asked_ns'])} of it is requested by {row['asked_by']}"
    every = f"{duration(row['time_ns'])} in all, {over_ranks(row['ranks'])}"
    return f"{every}; {counted(row['copies'], 'copy', 'copies')}{size}{rate}{asked}"


def _remedy(row: Row) -> str:
    if "Pageable" in row["operation"]:
        return (
            "Copy from and to pinned memory (pin_memory=True) with non_blocking=True on a stream of its own, ahead of "
            "the computation that needs it."
        )
    if "HtoD" in row["operation"] or "DtoH" in row["operation"]:
        return (
            "Copy ahead on another stream, beside computation; keep on the GPU what is copied in every step "
            "(Megatron-LM: fewer --offload-modules, a lower --cpu-offloading-num-layers); profile after parameters and "
            "data are loaded."
        )
    return "Avoid the copy (contiguous layouts, views, in-place operations), or run it on another stream."


RULE = Rule(
    name="copies",
    of_class=FindingClass.OPPORTUNITY,
    question="Does the GPU copy memory instead of computing?",
    remedy="Run copies beside computation, or avoid them.",
    remedy_of=_remedy,
    sql=_SQL,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    places=Places(_PLACES, ("operation",)),
    unpredicted="no edit of the step hides copies",
    unable_sql=UNMEASURED,
)
