"""A pipeline stage that needs far more memory than the others: it alone decides what fits."""

from __future__ import annotations

from traceviz_dag.analyze.findings.gpu_memory import LEAST_BYTES, NO_EVENTS, UNPREDICTED, mebibytes
from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.vocabulary import FindingClass

LARGE = 1.2
"""Times the mean stage from which a stage is reported."""

_SQL = f"""
WITH parts AS (
    SELECT stage, rank, device, category, sum(requested_bytes) AS bytes,
        sum(sum(requested_bytes)) OVER (PARTITION BY rank, device) AS peak_bytes
    FROM memory_peaks JOIN (
        SELECT rank, stage FROM topology WHERE run = $run AND iteration = $iteration AND stage IS NOT NULL
    ) USING (rank)
    WHERE run = $run AND iteration = $iteration AND moment = 'peak'
    GROUP BY stage, rank, device, category
),
-- Of each stage the rank that needs most.
largest AS (
    SELECT * FROM parts
    WHERE (rank, device) IN (
        SELECT arg_max((rank, device), (peak_bytes, -rank, -device)) FROM parts GROUP BY stage
    )
),
stages AS (
    SELECT stage, rank AS fullest, CAST(any_value(peak_bytes) AS BIGINT) AS peak_bytes,
        CAST(avg(any_value(peak_bytes)) OVER () AS BIGINT) AS mean_bytes, count(*) OVER () AS known
    FROM largest GROUP BY stage, rank
),
categories AS (
    SELECT stage, category, coalesce(bytes, 0) - avg(coalesce(bytes, 0)) OVER (PARTITION BY category) AS beyond_bytes
    FROM (SELECT DISTINCT stage FROM stages) CROSS JOIN (SELECT DISTINCT category FROM largest)
    LEFT JOIN largest USING (stage, category)
)
SELECT
    stage, fullest, peak_bytes, mean_bytes, peak_bytes - mean_bytes AS beyond_bytes, peak_bytes / mean_bytes AS value,
    category AS operation, CAST(part_bytes AS BIGINT) AS part_bytes, known,
    (SELECT max(stages) FROM topology WHERE run = $run AND iteration = $iteration) AS of_stages
FROM stages JOIN (
    SELECT stage, arg_max(category, beyond_bytes) AS category, max(beyond_bytes) AS part_bytes
    FROM categories GROUP BY stage
) USING (stage)
WHERE known > 1 AND peak_bytes >= {LARGE} * mean_bytes AND peak_bytes - mean_bytes >= {LEAST_BYTES}
"""


def _sentence(row: Row) -> str:
    return f"stage {row['stage']} needs {row['value']:.2f} times the peak memory of the mean stage"


def _detail(row: Row) -> str:
    return (
        f"{mebibytes(row['peak_bytes'])} on rank {row['fullest']}, {mebibytes(row['beyond_bytes'])} more than the mean "
        f"of {row['known']} stages with a snapshot, of {row['of_stages']}; {mebibytes(row['part_bytes'])} more of "
        f"{row['operation']} memory alone"
    )


RULE = Rule(
    name="memory_imbalance",
    of_class=FindingClass.OPPORTUNITY,
    question="Does one stage need far more memory than the others?",
    remedy="Early stages keep more micro-batches: give them fewer layers (Megatron-LM: "
    "--decoder-first-pipeline-num-layers, --pipeline-model-parallel-layout), or recompute more there; traceviz memory "
    "schedule shows who keeps how many.",
    sql=_SQL,
    measure="times the mean stage",
    sentence=_sentence,
    detail=_detail,
    unable_sql=f"""
{NO_EVENTS}
UNION ALL
SELECT CASE WHEN max(stages) IS NULL THEN 'the stages of the ranks with snapshots are not known'
    ELSE 'snapshots of fewer than two of the ' || max(stages) || ' stages have events' END
FROM memory_peaks LEFT JOIN topology USING (run, iteration, rank)
WHERE run = $run AND iteration = $iteration AND moment = 'peak'
HAVING count(*) > 0 AND (max(stages) IS NULL OR (max(stages) > 1 AND count(DISTINCT stage) < 2))
""",
    partly_sql="""
SELECT 'not judged on ' || (max(stages) - count(DISTINCT stage)) || ' of ' || max(stages)
    || ' stages, for want of snapshots with events' AS reason
FROM memory_peaks JOIN topology USING (run, iteration, rank)
WHERE run = $run AND iteration = $iteration AND moment = 'peak'
HAVING count(DISTINCT stage) BETWEEN 2 AND max(stages) - 1
""",
    unpredicted=UNPREDICTED,
)
