"""Ranks whose traces state another environment than the others: comparing them compares that as well."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.vocabulary import FindingClass

STATED = {
    "world_size": "world size",
    "device_name": "model of the GPU",
    "device_memory_bytes": "bytes of GPU memory",
    "backend": "communication backend",
    "nccl_version": "version of NCCL",
    "runtime_version": "version of the runtime",
    "driver_version": "version that the driver serves",
    "driver_release": "release of the driver",
    "profiler_version": "version of the profiler",
}
"""Columns of table ``traces`` that say what a rank ran on and with; NULL is unknown, and compared with nothing."""

COMPARED = STATED | {
    "has_stacks": "recording of call stacks",
    "has_shapes": "recording of shapes",
    "has_memory_events": "recording of memory",
    "has_host_rows": "recording of the host",
}
"""Columns of table ``traces`` that are compared, beside each entry of its column settings: nothing else of an
environment is kept. A rank that does not state one is not compared in it; one that states other settings was recorded
by the plugin, which keeps all of its lists that are set, so that a setting missing there is reported."""

SETTINGS = "settings of the job"
"""What the entries of column settings are called together."""

NOT_KEPT = "none kept"
"""What is printed of a rank that keeps settings, but not this one."""

_COLUMNS = ", ".join(f"CAST({column} AS TEXT) AS {column}" for column in COMPARED)

_SQL = f"""
WITH kept AS (
    SELECT rank, setting.key AS what, setting.value AS said FROM (
        SELECT rank, unnest(map_entries(json_transform(settings, '"MAP(VARCHAR, VARCHAR)"'))) AS setting
        FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed' AND settings IS NOT NULL
    )
),
stated AS (
    SELECT rank, what, said FROM (
        SELECT rank, {_COLUMNS} FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
    ) UNPIVOT (said FOR what IN ({", ".join(COMPARED)}))
    UNION ALL
    SELECT keeping.rank, what, coalesce(said, '{NOT_KEPT}')
    FROM (SELECT DISTINCT rank FROM kept) AS keeping CROSS JOIN (SELECT DISTINCT what FROM kept) LEFT JOIN kept
        USING (rank, what)
),
of_value AS (
    SELECT what, said, count(*) AS ranks, min(rank) AS first_rank
    FROM stated GROUP BY what, said
),
ranked AS (
    -- What most ranks have is usual; of equally many, what the lowest rank has.
    SELECT *, row_number() OVER (PARTITION BY what ORDER BY ranks DESC, first_rank) = 1 AS usual
    FROM of_value QUALIFY count(*) OVER (PARTITION BY what) > 1
)
SELECT
    CASE WHEN sum(ranks) FILTER (NOT usual) = 1 AND sum(ranks) > 2 THEN any_value(first_rank) FILTER (NOT usual) END
        AS rank,
    what AS operation,
    any_value(said) FILTER (usual) AS usual,
    CAST(any_value(ranks) FILTER (usual) AS BIGINT) AS usual_ranks,
    string_agg(
        said || CASE WHEN ranks = 1 THEN ' on rank ' || first_rank
            ELSE ' on ' || ranks || ' ranks, of which ' || first_rank || ' is the lowest' END,
        '; ' ORDER BY first_rank
    ) FILTER (NOT usual) AS others,
    sum(ranks) FILTER (NOT usual) / sum(ranks) AS value
FROM ranked GROUP BY what
"""


_TRACES = "FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'"

_SAID = {**STATED, "settings": SETTINGS}

KNOWN_SQL = f"""
SELECT list_extract({[*_SAID.values()]}, place + 1) AS what, place, count(said) AS ranks, count(*) AS of_ranks,
    count(DISTINCT said) AS said
FROM (
    SELECT list_position({[*_SAID]}, stated) - 1 AS place, said
    FROM (SELECT {", ".join(f"CAST({column} AS TEXT) AS {column}" for column in _SAID)} {_TRACES})
        UNPIVOT INCLUDE NULLS (said FOR stated IN ({", ".join(_SAID)}))
)
GROUP BY place
"""
"""How many ranks state each thing, and how many different values: columns what, place, ranks, of_ranks, said."""

_UNABLE_SQL = f"""
SELECT CASE WHEN max(of_ranks) > 1 THEN 'no two ranks state anything of their GPUs, software or settings'
    ELSE 'one rank alone has none to be compared with' END AS reason
FROM ({KNOWN_SQL}) HAVING coalesce(max(ranks), 0) < 2
"""

_PARTLY_SQL = f"""
SELECT 'some ranks do not state what others do: ' || string_agg(
    what || ' (' || ranks || ' of ' || of_ranks || ' ranks do)', ', ' ORDER BY place
) AS reason
FROM ({KNOWN_SQL}) WHERE ranks > 0 AND ranks < of_ranks
HAVING count(*) > 0 AND (SELECT max(ranks) FROM ({KNOWN_SQL})) > 1
"""


def _sentence(row: Row) -> str:
    many = f"{row['usual_ranks']} rank{'s' if row['usual_ranks'] > 1 else ''}"
    name = row["operation"]
    what = f"{COMPARED[name]} ({name})" if name in COMPARED else f"setting {name}"
    return f"ranks differ in the {what}: {row['usual']} on {many}, {row['others']}"


RULE = Rule(
    name="environment",
    of_class=FindingClass.FAULT,
    question="Do all ranks run in the same environment, and record the same?",
    remedy="Make the ranks the same before you compare them: the same image, driver and GPU, and the same capture.",
    sql=_SQL,
    measure="share of ranks that differ",
    sentence=_sentence,
    unable_sql=_UNABLE_SQL,
    partly_sql=_PARTLY_SQL,
    unpredicted="what other software or hardware would take is not known",
)
