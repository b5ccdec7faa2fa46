"""Work that takes much of the GPUs' time and hardly any of the critical path: making it faster saves little."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.tables.ranks import NOT_CUT
from traceviz_dag.vocabulary import FindingClass

LARGE, SMALL = 0.05, 0.1
"""Work counts from this share of kernel time; it is off the path below this share of its own time."""

_SQL = f"""
WITH work AS (
    SELECT category, sum(duration_ns) / count(DISTINCT rank) AS time_ns,
        sum(duration_ns) / sum(sum(duration_ns)) OVER () AS value
    FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'computation' AND {NOT_CUT} GROUP BY category
),
path AS (
    SELECT category, sum(duration_ns) AS path_ns
    FROM path_segments WHERE run = $run AND iteration = $iteration GROUP BY category
),
-- Communication that is not matched with all its members may be a wait for any work.
open AS (
    SELECT coalesce(sum(duration_ns), 0) AS open_ns FROM path_segments
    WHERE run = $run AND iteration = $iteration AND (cause = 'unmatched' OR (rank, kernel_id) IN (
        SELECT (rank, kernel_id) FROM collectives
        WHERE run = $run AND iteration = $iteration AND fault IS NOT NULL AND rank IS NOT NULL
    ))
)
SELECT
    category AS operation, value, CAST(round(time_ns) AS BIGINT) AS time_ns,
    CAST(coalesce(path_ns, 0) AS BIGINT) AS path_ns, CAST(open_ns AS BIGINT) AS open_ns
FROM work LEFT JOIN path USING (category), open
WHERE value >= {LARGE} AND coalesce(path_ns, 0) + open_ns < {SMALL} * time_ns
"""


def _sentence(row: Row) -> str:
    work = row["operation"].replace("_", " ")
    return f"{work} takes {duration(row['time_ns'])} per rank, but only {duration(row['path_ns'])} of the critical path"


def _detail(row: Row) -> str:
    unmatched = f"beside {duration(row['open_ns'])} of communication whose members were not all found; "
    beside = unmatched if row["open_ns"] else ""
    return f"{beside}{share(row['value'])} of the time of computation kernels; faster kernels save no more than that"


RULE = Rule(
    name="not_on_period",
    of_class=FindingClass.OPPORTUNITY,
    question="Which work takes much time without holding up the step?",
    remedy="Leave it: look at what the critical path runs on (traceviz critical-path).",
    sql=_SQL,
    measure="share of computation",
    sentence=_sentence,
    detail=_detail,
    unable_sql="""
SELECT 'no critical path is known (traceviz critical-path says why)' AS reason
WHERE NOT EXISTS (FROM path_segments WHERE run = $run AND iteration = $iteration)
UNION ALL
SELECT 'launches of communication are not recorded, so what waits for it is not known' AS reason
WHERE EXISTS (
    SELECT rank, stream FROM kernels WHERE run = $run AND iteration = $iteration GROUP BY rank, stream
    HAVING bool_and(kind = 'communication') AND 2 * count(launch_start_ns) < count(*)
)
""",
)
