"""Time without computation that nothing in the trace explains."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import MEASURED, WITHOUT_GAPS
from traceviz_dag.analyze.findings.rule import MEASURE, Places, Row, Rule
from traceviz_dag.analyze.wording import capitalised, counted, duration, share
from traceviz_dag.vocabulary import FindingClass

_LOOK = "look for other processes on the GPU"

LEAST_SHARE = 0.05
"""Share of the time measured from which it is reported."""

_SQL = f"""
WITH unexplained AS (
    SELECT rank, device, window_name, CAST(sum(unexplained_ns) AS BIGINT) AS unexplained_ns
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration GROUP BY rank, device, window_name
)
SELECT
    CAST(sum(unexplained_ns) AS BIGINT) AS unexplained_ns, count(DISTINCT rank) AS ranks,
    sum(unexplained_ns) / sum(window_ns) AS value,
    EXISTS (
        FROM synchronizations
        WHERE run = $run AND iteration = $iteration AND kind = 'stream_wait' AND evidence = 'recorded'
    ) AS recorded
FROM unexplained JOIN {MEASURED} USING (rank, device, window_name)
HAVING sum(unexplained_ns) >= {LEAST_SHARE} * sum(window_ns)
"""


_PLACES = """
SELECT rank, start_ns, duration_ns, unexplained_ns AS weight FROM gpu_gaps
WHERE run = $run AND iteration = $iteration
"""


def _sentence(row: Row) -> str:
    return f"{duration(row['unexplained_ns'])} without computation is unexplained ({share(row['value'])})"


def _detail(row: Row) -> str:
    over = counted(row["ranks"], "rank", "ranks")
    return (
        f"over {over}, of the time measured; nothing in the trace records a late launch of the next kernel or what it "
        "waited for"
    )


RULE = Rule(
    name="unexplained",
    of_class=FindingClass.FAULT,
    question="How much time without computation does nothing explain?",
    remedy=f"Capture with cuda_sync rows (traceviz capture), which show what streams wait for, and {_LOOK}.",
    # The profiler of PyTorch 2.11 with CUDA 13 writes such rows without the stream that was waited for.
    remedy_of=lambda row: capitalised(_LOOK) + "." if row.get("recorded") else None,
    sql=_SQL,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    places=Places(_PLACES),
    unable_sql=WITHOUT_GAPS,
)
