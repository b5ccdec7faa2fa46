"""Memory that is reserved and serves no request when most is requested."""

from __future__ import annotations

from traceviz_dag.analyze.findings.gpu_memory import (
    LEAST_BYTES,
    NO_EVENTS,
    PARTLY,
    RANKS,
    UNPREDICTED,
    known,
    mebibytes,
)
from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.analyze.wording import share
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.1
"""Share of the reserved memory that serves nobody; the two published snapshots of transformers have 2 and 3 %."""

_SQL = f"""
WITH peaks AS (
    SELECT rank, device, any_value(reserved_bytes) AS reserved_bytes,
        CAST(any_value(reserved_bytes) - sum(requested_bytes) AS BIGINT) AS lost_bytes
    FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak' GROUP BY rank, device
),
known AS (SELECT *, count(DISTINCT rank) OVER () AS known FROM peaks),
wasteful AS (
    SELECT *, lost_bytes / reserved_bytes AS share FROM known
    WHERE lost_bytes >= {LEAST_SHARE} * reserved_bytes AND lost_bytes >= {LEAST_BYTES}
)
SELECT
    CASE WHEN count(DISTINCT rank) = 1 THEN min(rank) END AS rank,
    count(DISTINCT rank) AS ranks, any_value(known) AS known, {RANKS} AS of_ranks,
    arg_max(rank, (share, -rank)) AS worst, max(share) AS value,
    arg_max(reserved_bytes, (share, -rank)) AS reserved_bytes, arg_max(lost_bytes, (share, -rank)) AS lost_bytes
FROM wasteful HAVING count(*) > 0
"""


def _sentence(row: Row) -> str:
    where = f"at the peak of rank {row['worst']}"
    return f"{share(row['value'])} of the reserved memory is lost to fragmentation {where}"


def _detail(row: Row) -> str:
    many = f"{row['ranks']} of {row['known']} ranks with a snapshot lose memory so; " if row["rank"] is None else ""
    lost = f"{mebibytes(row['lost_bytes'])} of {mebibytes(row['reserved_bytes'])}"
    return f"{many}{lost} serves no request; {known(row['known'], row['of_ranks'])}"


RULE = Rule(
    name="memory_fragmentation",
    of_class=FindingClass.FAULT,
    question="Is reserved memory lost in pieces?",
    remedy="Let segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), and allocate what is kept before "
    "what comes and goes; traceviz memory fragmentation SNAPSHOT says why each part serves nobody.",
    sql=_SQL,
    measure="share of the reserved memory",
    sentence=_sentence,
    detail=_detail,
    unable_sql=NO_EVENTS,
    partly_sql=PARTLY,
    unpredicted=UNPREDICTED,
)
