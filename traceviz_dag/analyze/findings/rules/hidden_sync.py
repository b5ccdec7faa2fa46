"""Code that waits for the GPU in every step, beside what Megatron itself waits for, and leaves it without work."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import HIDDEN_WAIT, MEASURED, STAGES, lacking
from traceviz_dag.analyze.findings.rule import MEASURE, EditKey, Places, Row, Rule
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.01
"""Share of the time measured from which a line of code is judged with the others: one edit fixes them all."""

_MOST = 0.5
"""Share of what all such waits cost from which one edit of them all is that of a single line of code."""

_SQL = f"""
WITH waits AS (
    SELECT rank, device, window_name, synchronization_caller AS operation, starved_ns
    FROM gpu_gaps
    WHERE run = $run AND iteration = $iteration AND {HIDDEN_WAIT}
),
-- A host that has waited is no longer ahead of its GPU, which may starve at any launch from then on.
starved AS (
    SELECT rank, device, window_name, sum(starved_ns) AS in_all_ns FROM gpu_gaps
    WHERE run = $run AND iteration = $iteration GROUP BY ALL
)
-- One row for a line of code, whoever calls it; a rank is named where it alone does.
SELECT
    CASE WHEN count(DISTINCT rank) = 1 THEN min(rank) END AS rank,
    CASE WHEN count(DISTINCT rank) = 1 THEN min(stage) END AS stage,
    operation,
    count(DISTINCT rank) AS ranks,
    CAST(sum(starved_ns) AS BIGINT) AS starved_ns,
    CAST(greatest(
        sum(starved_ns),
        CASE WHEN sum(starved_ns) >= {_MOST} * sum(sum(starved_ns)) OVER () THEN sum(in_all_ns) ELSE 0 END,
        CASE WHEN sum(starved_ns) >= {LEAST_SHARE} * sum(window_ns) THEN sum(sum(starved_ns)) OVER () ELSE 0 END
    ) AS BIGINT) AS at_most_ns,
    CAST(sum(waits) AS BIGINT) AS waits,
    sum(starved_ns) / sum(window_ns) AS value
FROM (
    SELECT rank, device, window_name, operation, sum(starved_ns) AS starved_ns, count(*) AS waits
    FROM waits GROUP BY ALL
) JOIN {MEASURED} USING (rank, device, window_name) JOIN starved USING (rank, device, window_name)
    LEFT JOIN {STAGES} USING (rank)
GROUP BY operation
"""


_PLACES = f"""
SELECT rank, synchronization_caller AS operation, start_ns, duration_ns, starved_ns AS weight FROM gpu_gaps
WHERE run = $run AND iteration = $iteration AND {HIDDEN_WAIT}
"""


def _sentence(row: Row) -> str:
    if row["rank"] is None:
        who, whom = f"{row['ranks']} ranks wait for their GPUs", "these"
    else:
        who, whom = f"rank {row['rank']} waits for its GPU", "the GPU"
    time = f"{duration(row['starved_ns'])}{' in all' if row['rank'] is None else ''}"
    return f"{who} in {row['operation']}, which leaves {whom} without computation for {time}"


def _detail(row: Row) -> str:
    on = "" if row["rank"] is not None else " on these ranks"
    waits = counted(row["waits"], "wait", "waits")
    return f"after {waits}; {share(row['value'])} of the time measured{on}"


RULE = Rule(
    name="hidden_sync",
    of_class=FindingClass.FAULT,
    question="Does code wait for the GPU (.item(), synchronize, a pageable copy) in a steady step?",
    remedy="Keep the value on the GPU and read it every so many steps, copy from pinned memory with non_blocking=True, "
    "and find others with torch.cuda.set_sync_debug_mode('warn').",
    sql=_SQL,
    gaps=HIDDEN_WAIT,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    edit=lambda _: EditKey("no_hidden_waits"),
    places=Places(_PLACES, ("rank", "operation")),
    unable_sql="""
SELECT 'without call stacks it is not known whether the framework has to wait for the GPU (capture with stacks); rule '
    || 'host_waits names the calls' AS reason
WHERE NOT EXISTS (FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND of_framework IS NOT NULL)
    AND (EXISTS (FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND synchronization_id IS NOT NULL)
    OR (SELECT bool_or(has_stacks) FROM traces WHERE run = $run AND iteration = $iteration) IS DISTINCT FROM true)
""",
    partly_sql=lacking("has_stacks", "call stacks"),
)
