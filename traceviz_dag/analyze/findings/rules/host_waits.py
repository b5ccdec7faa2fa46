"""Calls in which the host waits for its GPU, in traces that do not show whether it has to."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import MEASURE, Places, Row, Rule
from traceviz_dag.analyze.findings.windows import COUNTED, LEAST_SHARE, UNMEASURED, WINDOWS, over_ranks
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.vocabulary import FindingClass

_UNTOLD = "synchronization_id IS NOT NULL AND of_framework IS NULL"

_SQL = f"""
WITH measured AS (
    SELECT sum(window_ns) AS window_ns, count(DISTINCT rank) AS ranks FROM {WINDOWS}
),
gaps AS (
    SELECT rank, coalesce(synchronization_caller, 'a call that nothing names') AS operation, synchronization_id,
        starved_ns
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {COUNTED} AND {_UNTOLD}
),
waits AS (
    SELECT rank, synchronization_id, name AS called, duration_ns FROM synchronizations
    WHERE run = $run AND iteration = $iteration
),
by_wait AS (
    SELECT operation, rank, synchronization_id, sum(starved_ns) AS starved_ns, any_value(called) AS called,
        any_value(duration_ns) AS waited_ns
    FROM gaps LEFT JOIN waits USING (rank, synchronization_id)
    GROUP BY ALL
)
SELECT
    operation,
    any_value(ranks) AS ranks,
    count(*) AS waits,
    mode(called) AS called,
    CAST(round(sum(waited_ns) / any_value(ranks)) AS BIGINT) AS waited_ns,
    CAST(round(sum(starved_ns) / any_value(ranks)) AS BIGINT) AS starved_ns,
    CAST(sum(starved_ns) AS BIGINT) AS at_most_ns,
    sum(starved_ns) / any_value(window_ns) AS value
FROM by_wait CROSS JOIN measured
GROUP BY operation
HAVING sum(waited_ns) >= {LEAST_SHARE} * any_value(window_ns)
    OR sum(starved_ns) >= {LEAST_SHARE} * any_value(window_ns)
"""

_PLACES = f"""
SELECT rank, coalesce(synchronization_caller, 'a call that nothing names') AS operation, start_ns, duration_ns,
    starved_ns AS weight
FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {COUNTED} AND {_UNTOLD}
"""


def _sentence(row: Row) -> str:
    idle = f"{duration(row['starved_ns'])} per rank"
    return f"the host waits for its GPU in {row['operation']}, which leaves the GPU without computation for {idle}"


def _detail(row: Row) -> str:
    called = "" if row["called"] is None else f"{row['called']}: "
    waited = "" if row["waited_ns"] is None else f" of {duration(row['waited_ns'])} per rank"
    waits = counted(row["waits"], "wait", "waits")
    before = f"{called}{waits}{waited} that end before a gap of the GPU"
    return f"{before}; {share(row['value'])} of the time measured, {over_ranks(row['ranks'])}"


RULE = Rule(
    name="host_waits",
    of_class=FindingClass.OPPORTUNITY,
    question="In which calls does the host wait for its GPU?",
    remedy="Remove the wait if the value is not needed now (.item(), .cpu(), nonzero, copies from pageable memory); "
    "capture with call stacks to see the line of code.",
    sql=_SQL,
    gaps=_UNTOLD,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    places=Places(_PLACES, ("operation",)),
    unpredicted="without call stacks it is not known whether the framework has to wait there",
    unable_sql=UNMEASURED,
)
