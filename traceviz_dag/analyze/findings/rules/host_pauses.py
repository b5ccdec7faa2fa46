"""A host that does something else while its GPU is idle, such as loading data or collecting garbage."""

from __future__ import annotations

from dataclasses import dataclass

from traceviz_dag.analyze.findings.fragments import MEASURED, STAGES, WITHOUT_GAPS, lacking
from traceviz_dag.analyze.findings.rule import MEASURE, EditKey, Places, Row, Rule
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.vocabulary import FindingClass, HostWork

LEAST_SHARE = 0.002
"""Share of the time measured from which it is reported."""

BEYOND_PEERS = 2
"""A rank is an outlier where it loses so many times what the median rank of its stage does, the lower one of two; else
it is all."""

LEAST_ALONE = 0.01
"""A rank alone in its stage is an outlier where it loses so many times what the median of the others does that lose any
at all, and at least this share of the time measured: stages differ in what their hosts do, such as loading data."""

LEAST_UNNAMED_NS = 1_000_000
"""Length of a gap from which its host paused, and was not merely slow to launch, though no row names what it did."""

_READ_WHOLE = "SELECT rank FROM traces WHERE run = $run AND iteration = $iteration AND status = 'read'"

UNNAMED = f"host_work IS NULL AND starved_ns >= {LEAST_UNNAMED_NS} AND rank IN ({_READ_WHOLE})"
"""Rows of ``gpu_gaps`` in which the host paused, and nothing names why. Of a rank that was read in part, rows may be
missing that would."""

_SQL = f"""
WITH measured AS (
    SELECT rank, sum(window_ns) AS window_ns FROM {MEASURED} GROUP BY rank
),
of_rank AS (
    SELECT
        rank, window_ns, count(starved_ns) AS gaps,
        CAST(coalesce(sum(starved_ns), 0) AS BIGINT) AS starved_ns,
        coalesce(max(starved_ns), 0) AS longest_ns,
        arg_max(coalesce(caller, doing), starved_ns) AS operation
    FROM measured LEFT JOIN (
        SELECT rank, starved_ns, caller, doing FROM gpu_gaps
        WHERE run = $run AND iteration = $iteration AND {{work}} AND starved_ns > 0
    ) USING (rank)
    GROUP BY rank, window_ns
),
judged AS (
    SELECT *, CASE
        WHEN count(*) OVER () = 1 THEN true
        WHEN count(*) OVER same > 1 THEN starved_ns > {BEYOND_PEERS} * quantile_disc(starved_ns, 0.5) OVER same
        ELSE starved_ns >= {LEAST_ALONE} * window_ns AND starved_ns > {BEYOND_PEERS} * coalesce(
            quantile_disc(starved_ns, 0.5) FILTER (starved_ns > 0) OVER (
                ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW
            ), 0
        ) END AS is_outlier
    FROM of_rank LEFT JOIN {STAGES} USING (rank)
    WINDOW same AS (PARTITION BY stage)
),
together AS (
    FROM judged WHERE NOT is_outlier AND rank IN ({_READ_WHOLE})
)
SELECT
    rank, stage, operation, starved_ns, longest_ns, gaps, starved_ns / window_ns AS value, 1 AS ranks, 0 AS apart,
    starved_ns AS at_most_ns
FROM judged
WHERE is_outlier AND starved_ns >= {LEAST_SHARE} * window_ns
UNION ALL
SELECT
    NULL, NULL, arg_max(operation, starved_ns), CAST(round(avg(starved_ns)) AS BIGINT), max(longest_ns),
    CAST(sum(gaps) AS BIGINT), sum(starved_ns) / sum(window_ns), count(*),
    (SELECT count(*) FROM judged WHERE is_outlier), CAST(sum(starved_ns) AS BIGINT)
FROM together WHERE starved_ns > 0
HAVING sum(starved_ns) >= {LEAST_SHARE} * (SELECT sum(window_ns) FROM together)
"""


UNNAMED_SQL = f"""
-- What nothing names is a fault of a rank alone: of all ranks together rule idle reports it.
SELECT * FROM (
{_SQL.format(work=UNNAMED)}
) WHERE rank IS NOT NULL AND (SELECT count(DISTINCT rank) FROM {MEASURED}) > 1
"""

_PLACES = """
SELECT rank, start_ns, duration_ns, starved_ns AS weight FROM gpu_gaps
WHERE run = $run AND iteration = $iteration AND {work}
"""

_WITHOUT_HOST = """
SELECT 'the traces have no rows of the host' AS reason
WHERE (SELECT bool_or(has_host_rows) FROM traces WHERE run = $run AND iteration = $iteration) IS DISTINCT FROM true
"""

_WITHOUT_STACKS = """
SELECT 'without call stacks it is not known {what} (capture with stacks)' AS reason
WHERE (SELECT bool_or(has_stacks) FROM traces WHERE run = $run AND iteration = $iteration) IS DISTINCT FROM true
"""


@dataclass(frozen=True, slots=True)
class _Pause:
    """A kind of pause: the rule's name, the host's work, what the host did in words, and what to ask and do.

    Attributes:
        by_stacks: what only call stacks show of it, in words; None where rows of the host without them show it.
    """

    name: str
    work: HostWork
    did: str
    question: str
    remedy: str
    by_stacks: str | None = None


_PAUSES = (
    _Pause(
        "data_stall",
        HostWork.DATA_LOADING,
        "loaded data",
        "Does a GPU wait for its data loader?",
        "Give the data loader more workers (Megatron-LM: --num-workers), look at the storage that this rank "
        "reads from, and prefetch; see whether other ranks of its node are also slow to load.",
    ),
    _Pause(
        "gc_pause",
        HostWork.GARBAGE_COLLECTION,
        "collected garbage",
        "Does Python collect garbage while a GPU waits?",
        "Collect between steps on all ranks at once (Megatron-LM: --manual-gc with --manual-gc-interval).",
        by_stacks="when Python collects garbage",
    ),
    _Pause(
        "recompilation",
        HostWork.COMPILATION,
        "compiled",
        "Does the compiler run in a steady step?",
        "Find what changes (TORCH_LOGS=recompiles), and mark it dynamic or keep it constant.",
        by_stacks="when code is compiled",
    ),
    _Pause(
        "graph_break",
        HostWork.GRAPH_BREAK,
        "ran what follows where compiled code had broken off",
        "Does compiled code break off and go on in Python?",
        "Find the breaks (TORCH_LOGS=graph_breaks; fullgraph=True makes them errors), and keep what breaks, such as "
        "prints, .item() and branches on values, out of compiled code.",
        by_stacks="where compiled code breaks off",
    ),
    _Pause(
        "allocation",
        HostWork.ALLOCATION,
        "allocated or freed GPU memory",
        "Does a rank allocate GPU memory in a steady step?",
        "Keep memory in the caching allocator: leave headroom, avoid empty_cache, and try "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
)


def _gaps(row: Row) -> str:
    longest = f", the longest {duration(row['longest_ns'])}" if row["gaps"] > 1 else ""
    mean = f" (mean of {row['ranks']} ranks)" if row["ranks"] > 1 else ""
    return f"{share(row['value'])} of the time measured{mean}; {counted(row['gaps'], 'gap', 'gaps')}{longest}"


def _rule(pause: _Pause) -> Rule:
    def sentence(row: Row) -> str:
        idle = duration(row["starved_ns"])
        if row["rank"] is not None:
            return f"the GPU of rank {row['rank']} waited for computation for {idle} while its host {pause.did}"
        if row["ranks"] == 1:
            return f"the GPU of one rank waited for computation for {idle} while its host {pause.did}"
        waited = f"waited for computation for {idle} each on average"
        return f"the GPUs of {row['ranks']} ranks {waited} while their hosts {pause.did}"

    def detail(row: Row) -> str:
        return f"{_gaps(row)}; mostly in {row['operation']}"

    work = f"host_work = '{pause.work.value}'"
    needs = _WITHOUT_HOST if pause.by_stacks is None else _WITHOUT_STACKS.format(what=pause.by_stacks)
    return Rule(
        name=pause.name,
        of_class=FindingClass.FAULT,
        question=pause.question,
        remedy=pause.remedy,
        sql=_SQL.format(work=work),
        gaps=f"{work} AND starved_ns > 0",
        measure=MEASURE,
        sentence=sentence,
        detail=detail,
        edit=lambda row: None if row["apart"] else EditKey("no_pauses", rank=row["rank"]),
        otherwise=lambda row: None if row["rank"] is None else EditKey("fix_rank", rank=row["rank"]),
        unpredicted="the edit that fixes it (no pauses of hosts) also fixes ranks that have findings of their own",
        places=Places(_PLACES.format(work=work)),
        unable_sql=f"{needs} UNION ALL {WITHOUT_GAPS} LIMIT 1",
        partly_sql=lacking("has_host_rows", "rows of the host")
        if pause.by_stacks is None
        else lacking("has_stacks", "call stacks"),
    )


def _unnamed(row: Row) -> str:
    return f"the host of rank {row['rank']} paused: its GPU waited for computation for {duration(row['starved_ns'])}"


def _unnamed_detail(row: Row) -> str:
    where = "nothing recorded shows what it did" if row["operation"] is None else f"mostly in {row['operation']}"
    return f"{_gaps(row)}, with nothing launched; {where}"


_PAUSED = Rule(
    name="host_pause",
    of_class=FindingClass.FAULT,
    question="Does a rank's host pause while its GPU waits, and nothing names why?",
    remedy="Capture with call stacks (traceviz capture plan), which name loading, garbage collection, compilation and "
    "your own code; look for other processes on that host's cores, and where it is pinned (numactl, taskset).",
    sql=UNNAMED_SQL,
    gaps=UNNAMED,
    measure=MEASURE,
    sentence=_unnamed,
    detail=_unnamed_detail,
    edit=lambda row: EditKey("no_pauses", rank=row["rank"]),
    otherwise=lambda row: EditKey("fix_rank", rank=row["rank"]),
    places=Places(_PLACES.format(work=UNNAMED)),
    unable_sql=f"""
{_WITHOUT_HOST} UNION ALL {WITHOUT_GAPS} UNION ALL
SELECT 'one rank alone has no other whose pauses could be compared'
WHERE (SELECT count(DISTINCT rank) FROM {MEASURED}) = 1 LIMIT 1
""",
    partly_sql=lacking("has_host_rows AND status = 'read'", "rows of the host"),
)

RULES = (*map(_rule, _PAUSES), _PAUSED)
