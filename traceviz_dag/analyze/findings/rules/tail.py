"""Units of a pipeline whose longest periods are far beyond the usual one."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import Row, Rule, milliseconds
from traceviz_dag.vocabulary import FindingClass

LONG = 1.2
"""p99 over p50 from which there is a tail."""

FEWEST_UNITS = 8
"""Units that tell a tail from a single odd one."""

_SQL = f"""
SELECT
    stage, max(period_p99_ns / period_p50_ns) AS value,
    arg_max(period_p50_ns, period_p99_ns / period_p50_ns) AS period_p50_ns,
    arg_max(period_p99_ns, period_p99_ns / period_p50_ns) AS period_p99_ns,
    arg_max(units, period_p99_ns / period_p50_ns) AS units
FROM period_percentiles
WHERE run = $run AND iteration = $iteration AND kind = 'stages' AND units >= {FEWEST_UNITS}
    AND period_p99_ns > {LONG} * period_p50_ns
GROUP BY stage
"""


def _sentence(row: Row) -> str:
    return (
        f"the micro-batches of stage {row['stage']} have a tail: p50 of the period is "
        f"{milliseconds(row['period_p50_ns'])}, p99 {milliseconds(row['period_p99_ns'])} ({row['value']:.2f} times), "
        f"over {row['units']} units"
    )


RULE = Rule(
    name="tail",
    of_class=FindingClass.FAULT,
    question="Do some micro-batches take far longer than most?",
    remedy="See in table gpu_gaps what the host did in the long ones (host_work, caller), and whether sequence lengths "
    "differ (--reset-position-ids, packing).",
    sql=_SQL,
    measure="p99 over p50",
    sentence=_sentence,
)
