"""Code that holds more memory at the end of every training step: the job runs out of it in the end."""

from __future__ import annotations

from traceviz_dag.analyze.findings.gpu_memory import NO_EVENTS, RANKS, UNPREDICTED, known, mebibytes
from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.vocabulary import FindingClass

# As analyze.memory.leaks: ends of profiler steps where four or more are named, else of the optimizer's; the last 64.
_ENDS = """
named AS (
    SELECT rank, device, last_event_id AS event, starts_with(name, 'ProfilerStep#') AS of_profiler
    FROM memory_steps
    WHERE run = $run AND iteration = $iteration AND last_event_id >= greatest(coalesce(first_event_id, -1), 0)
        AND NOT (starts_with(name, 'ProfilerStep#') AND start_ns IS NULL)
),
ends AS (
    SELECT rank, device, event, row_number() OVER (PARTITION BY rank, device ORDER BY event) AS place,
        count(*) OVER (PARTITION BY rank, device) AS ends
    FROM (
        SELECT DISTINCT rank, device, event FROM named JOIN (
            SELECT rank, device, count(*) FILTER (of_profiler) > 3 AS by_profiler FROM named GROUP BY rank, device
        ) USING (rank, device)
        WHERE of_profiler = by_profiler
        QUALIFY dense_rank() OVER (PARTITION BY rank, device ORDER BY event DESC) <= 64
    )
)
"""

_SQL = f"""
WITH {_ENDS},
lives AS (
    SELECT rank, device, stack_id, requested_bytes, coalesce(alloc_event_id, -1) AS event,
        coalesce(free_completed_event_id, 9223372036854775807) AS freed
    FROM memory_blocks WHERE run = $run AND iteration = $iteration AND stack_id IS NOT NULL
),
-- Few blocks outlive the end of the step that allocates them.
kept AS (
    SELECT lives.* FROM lives ASOF JOIN ends
    ON lives.rank = ends.rank AND lives.device = ends.device AND lives.event <= ends.event
    WHERE lives.freed > ends.event
),
held AS (
    SELECT rank, device, stack_id, place, ends, sum(requested_bytes) AS bytes
    FROM kept JOIN ends USING (rank, device)
    WHERE kept.event <= ends.event AND freed > ends.event AND place >= 2 AND ends > 3
    GROUP BY ALL
),
growing AS (
    SELECT rank, stack_id, ends, arg_max(bytes, place) AS bytes,
        coalesce(min(bytes) FILTER (place = 2), 0) AS first_bytes
    FROM (
        SELECT *, bytes > coalesce(lag(bytes) OVER (PARTITION BY rank, device, stack_id ORDER BY place), 0) AS rises
        FROM held
    )
    GROUP BY rank, device, stack_id, ends
    HAVING count(*) FILTER (place >= 3) = ends - 2 AND bool_and(rises) FILTER (place >= 3)
),
leaks AS (
    SELECT rank, site AS operation, ends, CAST(sum(bytes) AS BIGINT) AS bytes,
        CAST(sum((bytes - first_bytes) // (ends - 2)) AS BIGINT) AS step_bytes
    FROM growing JOIN (
        SELECT rank, stack_id, site FROM memory_stacks WHERE run = $run AND iteration = $iteration
    ) USING (rank, stack_id)
    GROUP BY rank, site, ends
)
SELECT
    CASE WHEN count(*) = 1 THEN min(rank) END AS rank, operation, count(*) AS ranks, {RANKS} AS of_ranks,
    (SELECT count(DISTINCT rank) FROM ends WHERE ends > 3) AS known,
    arg_max(rank, (step_bytes, -rank)) AS worst, max(step_bytes) AS value,
    arg_max(ends, (step_bytes, -rank)) AS ends, arg_max(bytes, (step_bytes, -rank)) AS bytes
FROM leaks GROUP BY operation
"""


def _sentence(row: Row) -> str:
    return f"memory that {row['operation']} allocates grows by {mebibytes(row['value'])} per step"


def _detail(row: Row) -> str:
    many = f"on {row['ranks']} of {row['known']} ranks with a snapshot of enough steps; " if row["rank"] is None else ""
    return (
        f"{many}on rank {row['worst']}, to {mebibytes(row['bytes'])} at the last of {row['ends']} ends of steps; "
        f"{known(row['known'], row['of_ranks'])}"
    )


RULE = Rule(
    name="memory_leak",
    of_class=FindingClass.FAULT,
    question="Does some code hold more memory after every step?",
    remedy="Look for what that code keeps from step to step: tensors in lists, losses that are summed with their "
    "graph, hooks that are added again; traceviz memory leak SNAPSHOT shows the whole stacks.",
    sql=_SQL,
    measure="bytes a step",
    sentence=_sentence,
    detail=_detail,
    unable_sql=f"""
{NO_EVENTS}
UNION ALL
SELECT 'no snapshot of GPU memory knows the ends of four training steps'
FROM (WITH {_ENDS} SELECT coalesce(max(ends), 0) AS most FROM ends)
WHERE most <= 3 AND EXISTS (FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak')
""",
    partly_sql=f"""
SELECT 'not judged on ' || (ranks - known) || ' of ' || ranks
    || ' ranks, for want of snapshots with the ends of four steps' AS reason
FROM (SELECT {RANKS} AS ranks) CROSS JOIN (
    WITH {_ENDS} SELECT count(DISTINCT rank) AS known FROM ends WHERE ends > 3
)
WHERE known > 0 AND known < ranks
""",
    unpredicted=UNPREDICTED,
)
