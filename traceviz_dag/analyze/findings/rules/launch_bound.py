"""A GPU that runs kernels faster than its host launches them."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import MEASURED, PAUSES, STAGES, lacking
from traceviz_dag.analyze.findings.rule import MEASURE, EditKey, Places, Row, Rule
from traceviz_dag.analyze.findings.rules.host_pauses import UNNAMED, UNNAMED_SQL
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.tables.ranks import NOT_CUT
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.05
"""Starved share of the time measured from which a rank counts as bound by launches."""

LEAST_SHARE_ALONE = 0.01
"""The same of a rank that starves far more than the others."""

BEYOND_OTHERS = 4
"""So many times as much as the median rank."""

FAR_BEYOND = 2
"""So many times as much as the median rank each host that is at fault starves its GPU at least."""

SHORT_NS = 20_000
"""Median kernel below which launches can be the bound."""

MANY_A_MILLISECOND = 20
"""Launches a millisecond from which they can be as well."""

_OF_LAUNCHES = f"""synchronization_id IS NULL AND coalesce(host_work NOT IN {PAUSES}, true)
    -- A pause of one host that nothing names is a finding of its own.
    AND NOT ({UNNAMED} AND rank IN (SELECT rank FROM ({UNNAMED_SQL})))"""

_BOUND = f"""
WITH starved AS (
    SELECT
        rank, CAST(sum(starved_ns) AS BIGINT) AS starved_ns, CAST(sum(lost_ns) AS BIGINT) AS lost_ns,
        arg_max(operation, operation_ns) AS operation, max(operation_ns) AS operation_ns
    FROM (
        SELECT rank, coalesce(caller, doing) AS operation, sum(starved_ns) AS starved_ns,
            -- Of launches in quick succession some are on their way for longer than usual.
            sum(starved_ns + unexplained_ns) AS lost_ns,
            CASE WHEN operation IS NULL THEN -1 ELSE sum(starved_ns) END AS operation_ns
        FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {_OF_LAUNCHES}
        GROUP BY rank, operation
    ) GROUP BY rank
),
measured AS (
    SELECT rank, sum(window_ns) AS window_ns FROM {MEASURED} GROUP BY rank
),
candidates AS (
    SELECT * FROM starved JOIN measured USING (rank)
    WHERE starved_ns >= {LEAST_SHARE} * window_ns OR starved_ns >= {LEAST_SHARE_ALONE} * window_ns
        AND starved_ns > {BEYOND_OTHERS} * (SELECT quantile_disc(starved_ns, 0.5) FROM starved)
),
launches AS (
    SELECT rank, CAST(quantile_disc(duration_ns, 0.5) AS BIGINT) AS median_ns, count(*) AS kernels
    FROM kernels
    WHERE run = $run AND iteration = $iteration AND kind = 'computation' AND {NOT_CUT}
        AND rank IN (SELECT rank FROM candidates)
    GROUP BY rank
),
bound AS (
    SELECT * FROM candidates JOIN launches USING (rank)
    WHERE median_ns < {SHORT_NS} OR kernels / window_ns * 1e6 > {MANY_A_MILLISECOND}
)
"""

RANKS_SQL = f"{_BOUND} SELECT rank FROM bound"
"""The ranks that are bound by launches."""

SQL = f"""
{_BOUND}
SELECT
    CASE WHEN count(*) = 1 THEN min(rank) END AS rank,
    CASE WHEN count(*) = 1 THEN min(stage) END AS stage,
    mode(operation) AS operation,
    CAST(round(avg(starved_ns)) AS BIGINT) AS starved_ns,
    -- What its peers do not run costs a rank's GPU time as well.
    CASE WHEN count(*) > 1 OR min(extra) IS NULL THEN CAST(sum(lost_ns) AS BIGINT) END AS at_most_ns,
    max(median_ns) AS median_ns,
    max(kernels / window_ns * 1e6) AS launches_per_ms,
    count(*) AS ranks,
    (SELECT count(*) FROM measured) AS of_ranks,
    -- Where most hosts are so, or the others are nearly so, none deviates from its peers.
    CASE
        WHEN 2 * count(*) > (SELECT count(*) FROM measured)
            OR min(starved_ns) < {FAR_BEYOND} * (SELECT quantile_disc(starved_ns, 0.5) FROM starved)
        THEN 'opportunity' ELSE 'fault'
    END AS class,
    sum(starved_ns) / sum(window_ns) AS value,
    CASE WHEN count(*) = 1 THEN min(extra) END AS extra
FROM bound LEFT JOIN {STAGES} USING (rank) LEFT JOIN (
    SELECT rank, kernel AS extra FROM rank_speeds
    WHERE run = $run AND iteration = $iteration AND slow_in = 'extra'
) USING (rank)
HAVING count(*) > 0
"""

_PLACES = f"""
{_BOUND}
SELECT rank, start_ns, duration_ns, gpu_gaps.starved_ns AS weight FROM gpu_gaps
WHERE run = $run AND iteration = $iteration AND {_OF_LAUNCHES} AND rank IN (SELECT rank FROM bound)
"""


def _sentence(row: Row) -> str:
    if row["ranks"] > 1:
        who = f"{row['ranks']} of {row['of_ranks']} hosts launch too slowly: their GPUs wait for computation"
        return f"{who} for {duration(row['starved_ns'])} each"
    who = f"the host of rank {row['rank']} launches too slowly: its GPU waits for computation"
    return f"{who} for {duration(row['starved_ns'])}"


def _detail(row: Row) -> str:
    where = "" if row["operation"] is None else f", most often in {row['operation']}"
    mean = "in the mean, " if row["ranks"] > 1 else ""
    extra = (
        ""
        if row.get("extra") is None
        else f"; it runs all kernels of its peers and others as well, mostly {row['extra']}"
    )
    return (
        f"{mean}{share(row['value'])} of the time measured{where}; half of the computation kernels take "
        f"{duration(row['median_ns'])} or less{extra}"
    )


_REMEDY = (
    "Capture the step in CUDA graphs (Megatron-LM: --cuda-graph-impl, --enable-cuda-graph), fuse small kernels "
    "(torch.compile, fused optimizers), and make micro-batches larger. The profiler itself slows launches, most with "
    "call stacks: take a trace without them before you act."
)

EXTRA = (
    "See what launches these kernels on that rank alone (table kernels: module, operator; capture with call stacks), "
    "such as logging, checks, hooks or debugging code. Run it more rarely, or fuse it."
)
"""What to do about kernels that no peer runs."""


RULE = Rule(
    name="launch_bound",
    of_class=FindingClass.FAULT,
    question="Does a GPU wait for launches?",
    remedy=_REMEDY,
    remedy_of=lambda row: _REMEDY if row.get("extra") is None else EXTRA,
    serving="Replay CUDA graphs where the server runs eagerly (without --enforce-eager), compile the model, and serve "
    "larger batches. The profiler itself slows launches, most with call stacks: take a trace without them first.",
    sql=SQL,
    places=Places(_PLACES),
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    edit=lambda row: EditKey("host_free" if row.get("extra") is None else "fix_rank", rank=row["rank"]),
    unable_sql="""
SELECT 'the traces have no rows of launches of kernels' AS reason
WHERE (SELECT coalesce(sum(launched_kernels), 0) FROM traces WHERE run = $run AND iteration = $iteration) = 0
    OR NOT EXISTS (FROM gpu_gaps WHERE run = $run AND iteration = $iteration)
""",
    partly_sql=lacking("launched_kernels > 0", "rows of launches"),
)
