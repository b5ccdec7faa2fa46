"""Units of a pipeline whose longest periods are far beyond the usual one."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import Places, Row, Rule
from traceviz_dag.analyze.wording import counted, duration
from traceviz_dag.vocabulary import FindingClass

LONG = 1.2
"""p99 over p50 from which there is a tail."""

FEWEST_UNITS = 8
"""Units that distinguish a tail from a single odd one."""

MOST_OF_IT = 0.5
"""Share of what long units take beyond p50 that one kind of work of the host makes up before it is named."""

_LONG_UNITS = f"""
WITH tails AS (
    SELECT pair, step, stage, units, period_p50_ns, period_p99_ns, period_p99_ns / period_p50_ns AS value
    FROM period_percentiles
    WHERE run = $run AND iteration = $iteration AND kind = 'stages' AND units >= {FEWEST_UNITS}
        AND period_p99_ns > {LONG} * period_p50_ns
    QUALIFY row_number() OVER (PARTITION BY stage ORDER BY value DESC, pair, step) = 1
),
long_units AS (
    SELECT stage, rank, start_ns, start_ns + period_ns AS end_ns, period_ns - period_p50_ns AS beyond_ns
    FROM periods JOIN tails USING (pair, stage)
    WHERE run = $run AND iteration = $iteration AND kind = 'stages' AND periods.step IS NOT DISTINCT FROM tails.step
        AND period_ns > {LONG} * period_p50_ns
)
"""

_SQL = f"""
{_LONG_UNITS},
beyond AS (
    SELECT stage, count(*) AS long_units, CAST(sum(beyond_ns) AS BIGINT) AS beyond_ns FROM long_units GROUP BY stage
),
works AS (
    SELECT stage, CASE WHEN of_framework = false THEN 'synchronisation' ELSE host_work END AS work,
        CAST(sum(starved_ns) AS BIGINT) AS work_ns
    FROM long_units JOIN (FROM gpu_gaps WHERE run = $run AND iteration = $iteration) AS gaps
        ON gaps.rank = long_units.rank AND gaps.start_ns >= long_units.start_ns AND gaps.start_ns < end_ns
    GROUP BY ALL
)
SELECT
    stage, value, period_p50_ns, period_p99_ns, units, long_units, beyond_ns,
    max(work_ns) FILTER (work IS NOT NULL AND work_ns >= {MOST_OF_IT} * beyond_ns) AS work_ns,
    arg_max(work, work_ns) FILTER (work IS NOT NULL AND work_ns >= {MOST_OF_IT} * beyond_ns) AS work
FROM tails JOIN beyond USING (stage) LEFT JOIN works USING (stage)
GROUP BY stage, value, period_p50_ns, period_p99_ns, units, long_units, beyond_ns
"""

_PLACES = f"""
{_LONG_UNITS}
SELECT rank, stage, start_ns, end_ns - start_ns AS duration_ns, beyond_ns AS weight FROM long_units
"""

_DID = {
    "allocation": "allocated or freed GPU memory",
    "synchronisation": "came back from waits for them",
    "compilation": "compiled",
    "graph_break": "ran what follows where compiled code had broken off",
    "garbage_collection": "collected garbage",
    "data_loading": "loaded data",
}


def _sentence(row: Row) -> str:
    return (
        f"some micro-batches of stage {row['stage']} take far longer than most: the p99 of their period is "
        f"{row['value']:.2f} times the p50"
    )


def _detail(row: Row) -> str:
    periods = f"p50 {duration(row['period_p50_ns'])}, p99 {duration(row['period_p99_ns'])}, {row['units']} units"
    long = counted(row["long_units"], "long unit takes", "long units take")
    if row["work"] is None:
        did = "no single activity of the hosts explains half of it"
    else:
        did = f"for {duration(row['work_ns'])} of that GPUs waited for computation while hosts {_DID[row['work']]}"
    return f"{periods}; {long} {duration(row['beyond_ns'])} beyond p50, and {did}"


RULE = Rule(
    name="tail",
    of_class=FindingClass.FAULT,
    question="Do some micro-batches take far longer than most?",
    remedy="See in table gpu_gaps what the host did in the long ones (host_work, caller), and whether sequence lengths "
    "differ (Megatron-LM: --reset-position-ids, packing).",
    sql=_SQL,
    measure="p99 over p50",
    sentence=_sentence,
    detail=_detail,
    places=Places(_PLACES, ("stage",)),
    unable_sql=f"""
SELECT 'no stage of a pipeline has {FEWEST_UNITS} units or more with a known period' AS reason
WHERE NOT EXISTS (
    FROM period_percentiles
    WHERE run = $run AND iteration = $iteration AND kind = 'stages' AND units >= {FEWEST_UNITS}
)
""",
)
