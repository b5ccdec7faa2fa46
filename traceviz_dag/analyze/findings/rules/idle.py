"""GPUs on which nothing runs, with the cause that costs most."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import PAUSES
from traceviz_dag.analyze.findings.rule import MEASURE, Places, Row, Rule
from traceviz_dag.analyze.findings.windows import COUNTED, LEAST_SHARE, UNMEASURED, WINDOWS, over_ranks
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.vocabulary import FindingClass

_SQL = f"""
WITH measured AS (
    SELECT sum(window_ns) AS window_ns, sum(idle_ns) AS idle_ns, count(DISTINCT rank) AS ranks,
        count(DISTINCT (rank, device)) AS gpus
    FROM {WINDOWS}
),
causes AS (
    SELECT
        coalesce(sum(starved_ns) FILTER (synchronization_id IS NOT NULL), 0) AS waits_ns,
        coalesce(sum(starved_ns) FILTER (synchronization_id IS NULL AND host_work IN {PAUSES}), 0) AS pauses_ns,
        coalesce(sum(starved_ns) FILTER (
            synchronization_id IS NULL AND coalesce(host_work NOT IN {PAUSES}, true)), 0) AS launches_ns,
        coalesce(sum(unexplained_ns), 0) AS unexplained_ns,
        coalesce(sum(blocked_ns), 0) AS blocked_ns,
        sum(duration_ns) AS gaps_ns
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {COUNTED}
),
doing AS (
    SELECT coalesce(caller, doing) AS host_in, sum(starved_ns) AS host_in_ns FROM gpu_gaps
    WHERE run = $run AND iteration = $iteration AND {COUNTED} AND coalesce(caller, doing) IS NOT NULL
    GROUP BY host_in ORDER BY host_in_ns DESC, host_in LIMIT 1
)
SELECT
    ranks, if(gpus > ranks, 'GPU', 'rank') AS of,
    CAST(round(idle_ns / gpus) AS BIGINT) AS idle_ns,
    CAST(idle_ns AS BIGINT) AS at_most_ns,
    CAST(round(launches_ns / gpus) AS BIGINT) AS launches_ns,
    CAST(round(waits_ns / gpus) AS BIGINT) AS waits_ns,
    CAST(round(pauses_ns / gpus) AS BIGINT) AS pauses_ns,
    CAST(round(unexplained_ns / gpus) AS BIGINT) AS unexplained_ns,
    CAST(round(blocked_ns / gpus) AS BIGINT) AS blocked_ns,
    CAST(round(gaps_ns / gpus) AS BIGINT) AS gaps_ns,
    host_in,
    CAST(round(host_in_ns / gpus) AS BIGINT) AS host_in_ns,
    idle_ns / window_ns AS value
FROM measured CROSS JOIN causes LEFT JOIN doing ON true
WHERE idle_ns >= {LEAST_SHARE} * window_ns
"""

_PLACES = f"""
SELECT rank, start_ns, duration_ns, starved_ns + unexplained_ns AS weight FROM gpu_gaps
WHERE run = $run AND iteration = $iteration AND {COUNTED}
"""

_CAUSES = {
    "launches_ns": "before launches that came late",
    "waits_ns": "after waits of the host for the GPU",
    "pauses_ns": "in pauses of the host (data, garbage collection, compilation, allocation)",
    "unexplained_ns": "between launch and start, or for reasons that nothing records",
    "blocked_ns": "while communication, copies or other work ran that the next computation needed",
}
"""The parts of the time without computation, which add up to it: in some of it something else runs."""


def _sentence(row: Row) -> str:
    return f"the GPU is idle for {duration(row['idle_ns'])} per {row['of']}, {share(row['value'])} of the time measured"


def _detail(row: Row) -> str:
    causes = sorted((name for name in _CAUSES if row[name]), key=lambda name: -row[name])
    split = ", ".join(f"{duration(row[name])} {_CAUSES[name]}" for name in causes)
    during = (
        f"; the host is most often in {row['host_in']} ({duration(row['host_in_ns'])})"
        if row["host_in"] is not None and row["host_in_ns"]
        else ""
    )
    without = f"; {duration(row['gaps_ns'])} without computation: {split}" if split else ""
    return f"{over_ranks(row['ranks'])}{without}{during}"


_REMEDIES = {
    "launches_ns": "Launch faster: CUDA graphs, fused kernels, larger micro-batches; less Python between launches.",
    "waits_ns": "Wait for the GPU less often (.item(), .cpu(), nonzero); copy with non_blocking=True.",
    "pauses_ns": "Take the pauses off the training thread: load data ahead, freeze garbage collection, compile first.",
    "unexplained_ns": "Capture with call stacks, so that the host's work beside these gaps is known.",
}


def _remedy(row: Row) -> str:
    return _REMEDIES[max(_REMEDIES, key=lambda name: row[name])]


RULE = Rule(
    name="idle",
    of_class=FindingClass.OPPORTUNITY,
    question="For how long does nothing run on the GPU, and why?",
    remedy="Give the GPU its next work earlier.",
    remedy_of=_remedy,
    serving="Give the GPU its next work earlier: CUDA graphs, larger batches, fewer waits of the host for the GPU.",
    sql=_SQL,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    places=Places(_PLACES, ()),
    unpredicted="its causes have findings of their own where one can be predicted",
    unable_sql=UNMEASURED,
)
