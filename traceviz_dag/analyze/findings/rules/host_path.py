"""Hosts that limit the step together, though no rank deviates and no GPU starves alone: the critical path shows it."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.analyze.findings.rules import launch_bound
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.tables.causes import PATH_HOSTS_SQL
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.1
"""Share of the critical path from which it is reported."""

_SQL = f"""
WITH path AS (
    SELECT CAST(sum(duration_ns) FILTER (cause = 'host') AS BIGINT) AS host_ns, sum(duration_ns) AS path_ns
    FROM path_segments WHERE run = $run AND iteration = $iteration
),
gains AS (
    SELECT sum(gain_ns) FILTER (edit = 'no_pauses') AS pauses_ns,
        sum(gain_ns) FILTER (edit = 'host_free') AS host_free_ns
    FROM what_if WHERE run = $run AND iteration = $iteration AND refusal IS NULL AND rank IS NULL
),
ranks AS (
    SELECT count(DISTINCT rank) AS ranks FROM kernels WHERE run = $run AND iteration = $iteration
),
hosts AS (
    SELECT coalesce(caller, module) AS place, operation, sum(path_ns)::BIGINT AS place_ns FROM ({PATH_HOSTS_SQL})
    WHERE run = $run AND iteration = $iteration AND operation IS NOT NULL
    GROUP BY ALL ORDER BY place_ns DESC, operation, place LIMIT 1
)
SELECT host_ns, host_ns / path_ns AS value, ranks, coalesce(2 * pauses_ns >= host_free_ns, false) AS pauses,
    operation, place, place_ns
FROM path CROSS JOIN gains CROSS JOIN ranks LEFT JOIN hosts ON true
WHERE host_ns >= {LEAST_SHARE} * path_ns AND NOT EXISTS (
    -- Where most GPUs wait for launches one after the other, a finding says so.
    FROM ({launch_bound.SQL}) AS bound WHERE 2 * bound.ranks > ranks.ranks
)
"""


def _sentence(row: Row) -> str:
    who = "the host limits" if row["ranks"] == 1 else "the hosts limit"
    them = "it" if row["ranks"] == 1 else "them"
    return f"{who} the step: its critical path runs on {them} for {duration(row['host_ns'])}"


def _detail(row: Row) -> str:
    what = "pauses" if row["pauses"] else "launches and what lies between them"
    told = f"{share(row['value'])} of the path, {counted(row['ranks'], 'rank', 'ranks')}; mostly {what}"
    if row["operation"] is None:
        return told
    where = "" if row["place"] in (None, row["operation"]) else f" in {row['place']}"
    return f"{told}; longest before {row['operation']}{where}, for {duration(row['place_ns'])}"


RULE = Rule(
    name="host_path",
    of_class=FindingClass.OPPORTUNITY,
    question="Do hosts limit the step, on all ranks alike?",
    remedy="See what hosts do between launches (call stacks; traceviz critical-path): load data ahead, keep other work "
    "and other processes off their cores, launch less (CUDA graphs, fused kernels, larger micro-batches). The profiler "
    "itself slows launches, most with call stacks: take a trace without them before you act.",
    sql=_SQL,
    measure="share of the critical path",
    sentence=_sentence,
    detail=_detail,
    edit=lambda row: EditKey("no_pauses" if row["pauses"] else "host_free"),
    unable_sql="""
SELECT 'no critical path is known (traceviz critical-path says why)' AS reason
WHERE NOT EXISTS (FROM path_segments WHERE run = $run AND iteration = $iteration)
""",
)
