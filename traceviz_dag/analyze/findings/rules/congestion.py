"""Transfers that are slow in parts of the step: far slower than like ones of the same rank at other times."""

from __future__ import annotations

from traceviz_dag.analyze.causes.gains import CONGESTED_TIMES, FEWEST_ALIKE, LEAST_CONGESTED_NS
from traceviz_dag.analyze.findings.fragments import MEASURED
from traceviz_dag.analyze.findings.rule import EditKey, Places, Row, Rule
from traceviz_dag.analyze.wording import capitals, duration, share
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.002
"""Share of the time measured that slow transfers take beyond usual ones at least."""

UNSIZED_TIMES = 3
"""How many times as long as usual a transfer takes that is congested where nothing shows sizes: up to that it may carry
more, such as the larger one of two messages that CUDA graphs send in turn."""

_ALIKE = f"""
roles AS (
    -- What only sends may end when it is in a buffer, long before it is received.
    SELECT rank, kernel_id, sum(role) AS role FROM (
        SELECT sender_rank AS rank, sender_kernel_id AS kernel_id, 1 AS role FROM messages
        WHERE run = $run AND iteration = $iteration
        UNION SELECT receiver_rank, receiver_kernel_id, 2 FROM messages WHERE run = $run AND iteration = $iteration
    ) GROUP BY ALL
),
met AS (
    -- A rank in the middle of a pipeline may reach one neighbour inside its node and the other over the network.
    SELECT *, min(rank) OVER meeting AS lowest, max(rank) OVER meeting AS highest
    FROM collectives LEFT JOIN roles USING (rank, kernel_id)
    WHERE run = $run AND iteration = $iteration AND fault IS NULL
    WINDOW meeting AS (PARTITION BY step, communication)
),
alike AS (
    SELECT rank, kernel_id, dimension, group_name, bytes, last_transfer_ns AS ns,
        quantile_disc(last_transfer_ns, 0.5) OVER same AS usual_ns,
        count(*) OVER same AS many
    FROM met WHERE last_transfer_ns > 0
    WINDOW same AS (PARTITION BY rank, role, lowest, highest, group_name, dimension, operation, bytes)
),
judged AS (
    SELECT *, ns - usual_ns >= {LEAST_CONGESTED_NS}
        AND ns >= CASE WHEN bytes IS NULL THEN {UNSIZED_TIMES} ELSE {CONGESTED_TIMES} END * usual_ns AS slow
    FROM alike WHERE many >= {FEWEST_ALIKE}
)
"""

_SQL = f"""
WITH {_ALIKE},
counted AS (
    SELECT
        count(*) FILTER (slow) AS slow_transfers, count(*) AS transfers,
        median(ns / usual_ns) FILTER (slow) AS value,
        CAST(sum(ns - usual_ns) FILTER (slow) / count(DISTINCT rank) AS BIGINT) AS more_ns,
        count(DISTINCT rank) FILTER (slow) AS slow_ranks, count(DISTINCT rank) AS ranks,
        array_to_string(list(DISTINCT dimension ORDER BY dimension) FILTER (slow), ', ') AS dimensions
    FROM judged
)
SELECT *, slow_transfers / transfers AS share, {FEWEST_ALIKE} AS fewest
FROM counted
WHERE more_ns >= {LEAST_SHARE} * (
    SELECT avg(window_ns) FROM (SELECT rank, max(window_ns) AS window_ns FROM {MEASURED} GROUP BY rank)
)
"""

_PLACES = f"""
WITH {_ALIKE}
SELECT judged.rank, start_ns, duration_ns, ns - usual_ns AS weight
FROM (FROM judged WHERE slow) AS judged
    JOIN (FROM kernels WHERE run = $run AND iteration = $iteration) AS kernels USING (rank, kernel_id)
"""


def _sentence(row: Row) -> str:
    slow = f"{row['slow_transfers']} of {row['transfers']}"
    return f"transfers are congested at times: {slow} take {row['value']:.2f} times as long as usual"


def _detail(row: Row) -> str:
    where = f"{capitals(row['dimensions'])}, on {row['slow_ranks']} of {row['ranks']} ranks"
    return (
        f"{share(row['share'])} of transfers ({where}); median, against similar ones among the same ranks, waits "
        f"excluded; {duration(row['more_ns'])} more per rank; transfers with fewer than {row['fewest']} similar "
        "ones are not judged: the highest gain takes all but the shortest transfer's time of theirs for congestion"
    )


RULE = Rule(
    name="congestion",
    of_class=FindingClass.FAULT,
    question="Are transfers slow in parts of the step?",
    remedy="See what else uses the network at these moments (other jobs, checkpoints, data loading), and the switches' "
    "counters of pauses and marked packets (PFC, ECN); spread the job over fewer switches or turn adaptive routing on.",
    sql=_SQL,
    measure="times as long as usual",
    sentence=_sentence,
    detail=_detail,
    edit=lambda _: EditKey("no_congestion"),
    places=Places(_PLACES, ()),
    unable_sql=f"""
WITH {_ALIKE}
SELECT 'no {FEWEST_ALIKE} transfers of one rank are similar' AS reason
WHERE NOT EXISTS (FROM judged)
""",
)
