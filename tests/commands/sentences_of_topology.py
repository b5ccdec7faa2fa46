"""What ``topology`` and ``gate`` print, each with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.printed import PrintedTable, Sentence

_HERE = "WHERE run = $run AND iteration = $iteration"
_AT = r"(?P<k_run>\w+), iteration (?P<k_iteration>\d+)"
_LIST = "'[' || array_to_string({}, ', ') || ']'"

TOPOLOGY = (
    Sentence(
        rf"{_AT}: world size (?P<v_world>\d+), from (?P<v_sources>[\w, ]+)",
        f"""
        SELECT (SELECT max(world_size) FROM traces {_HERE}) AS world, string_agg(source, ', ' ORDER BY place) AS sources
        FROM (SELECT DISTINCT source, list_position(['distributed_info', 'text_file', 'computed'], source) AS place
            FROM process_groups {_HERE})""",
    ),
)

# Which ranks are one complete model: those that dense and expert replicas join, however many of them in a row.
_REPLICAS = f"""
    WITH RECURSIVE places AS (SELECT rank, dp, edp FROM topology {_HERE}),
    dense AS (SELECT list(rank ORDER BY rank) AS ranks FROM places GROUP BY dp HAVING NOT EXISTS (FROM places
        WHERE dp IS NULL)),
    expert AS (SELECT list(rank ORDER BY rank) AS ranks FROM places GROUP BY edp
        HAVING NOT EXISTS (FROM places WHERE edp IS NULL)),
    reached AS (
        SELECT rank AS a, rank AS b FROM places UNION
        SELECT a, other.rank FROM reached JOIN places ON places.rank = b
            JOIN places AS other ON other.dp = places.dp OR other.edp = places.edp
    ),
    complete AS (
        SELECT list(a ORDER BY a) AS ranks FROM (SELECT a, min(b) AS model FROM reached GROUP BY a) GROUP BY model
        HAVING EXISTS (FROM dense) AND EXISTS (FROM expert)
    ),
    replicas AS (
        SELECT 'dense replica (one dp index)' AS kind, ranks FROM dense
        UNION ALL SELECT 'expert replica (one edp index)', ranks FROM expert
        UNION ALL SELECT 'complete model', ranks FROM complete
    )
    SELECT kind, row_number() OVER (PARTITION BY kind ORDER BY ranks) - 1 AS number, len(ranks) AS size,
        {_LIST.format("ranks")} AS ranks
    FROM replicas
"""

TOPOLOGY_TABLES = (
    PrintedTable(
        rf"{_AT}: pipelines, ranks in stage order",
        f"""
        SELECT row_number() OVER (ORDER BY list_min(ranks)) - 1 AS pipeline, len(ranks) AS stages,
            {_LIST.format("ranks")} AS ranks
        FROM (SELECT DISTINCT ranks FROM process_groups {_HERE} AND dimension = 'pp')""",
        {"pipeline": "pipeline", "stages": "stages", "ranks": "ranks"},
        ["pipeline"],
    ),
    PrintedTable(
        rf"{_AT}: replicas",
        _REPLICAS,
        {"kind": "kind", "number": "number", "size": "size", "ranks": "ranks"},
        ["kind", "number"],
    ),
    # The jobs have no group list of more than the two dozen ranks at which lines are cut.
    PrintedTable(
        rf"{_AT}: process groups",
        f"""
        SELECT coalesce(description, group_name, 'no description') AS description, dimension, source,
            count(*) AS groups, string_agg({_LIST.format("ranks")}, ' ' ORDER BY ranks) AS ranks
        FROM process_groups {_HERE} AND NOT (dimension = 'world' AND coalesce(description, group_name) IS NULL)
        GROUP BY ALL""",
        {name: name for name in ("description", "dimension", "source", "groups", "ranks")},
        ["description", "dimension", "source"],
    ),
)

PAIRS = """
[[pair]]
name = "stages 0 and 1"
stages = [0, 1]
threshold = 0.6
[[pair]]
name = "tensors"
dimension = "tp"
percentile = 10
[[pair]]
name = "gradients"
dimension = "dp"
percentile = 90
threshold = -100
[[pair]]
name = "nowhere"
stage0 = {range = "no such range", rank = 0}
stage1 = {range = "no such range", rank = 1}
"""

# Scores anew from the periods and busy times of the units.
_VERDICTS = """
    WITH pairs(pair, stage, dimension, percentile, threshold) AS (
        VALUES ('stages 0 and 1', 0, NULL, 50.0, 0.6), ('tensors', NULL, 'tp', 10.0, 0.3),
            ('gradients', NULL, 'dp', 90.0, -100.0), ('nowhere', NULL, 'no such', 50.0, 0.3)
    ),
    units AS (
        SELECT run, iteration, pairs.pair, refusal,
            (stage0_ns + stage1_ns - period_ns) / nullif(least(stage0_ns, stage1_ns), 0) AS score
        FROM periods JOIN pairs ON kind = 'stages' AND periods.stage = pairs.stage
            OR kind = 'dimension' AND periods.dimension = pairs.dimension
    ),
    verdicts AS (
        SELECT run, iteration, pair, any_value(percentile) AS percentile, any_value(threshold) AS threshold,
            count(score) AS units, list(score) AS scores, min(refusal) AS refusal, count(refusal) AS refused,
            any_value(dimension) AS dimension, count(units.pair) AS rows
        FROM ((SELECT DISTINCT run, iteration FROM traces) CROSS JOIN pairs) LEFT JOIN units USING (run, iteration,
            pair)
        GROUP BY run, iteration, pair
    )
    SELECT *, CASE percentile WHEN 50 THEN list_aggregate(scores, 'quantile_cont', 0.5)
            WHEN 10 THEN list_aggregate(scores, 'quantile_cont', 0.1)
            ELSE list_aggregate(scores, 'quantile_cont', 0.9) END AS score,
        CASE WHEN score IS NULL THEN 'not judged' WHEN score >= threshold THEN 'passed' ELSE 'FAILED' END AS verdict,
        CASE WHEN pair = 'nowhere' THEN 'no range is called ''no such range'' on rank 0'
            WHEN pair LIKE 'stages%' AND rows = 0 THEN 'the iteration has no pair of stages 0 and 1'
            WHEN rows = 0 THEN 'the iteration has no pair of computation and ' || dimension || ' communication'
            WHEN score IS NULL THEN coalesce(refusal, 'no unit has a score') END AS why
    FROM verdicts
"""

GATE = (
    Sentence(
        r"pair '(?P<v_pair>.+?)' of (?P<k_run>\w+) (?P<k_iteration>\d+): (?P<v_why>.*)",
        f"SELECT * FROM ({_VERDICTS}) {_HERE} AND verdict = 'not judged' "
        "ORDER BY list_position(['stages 0 and 1', 'tensors', 'gradients', 'nowhere'], pair) LIMIT 1",
    ),
)

GATE_TABLES = (
    PrintedTable(
        "OverlapScore gate",
        _VERDICTS,
        {
            name: name
            for name in (
                *("run", "iteration", "pair", "verdict", "score"),
                *("percentile", "threshold", "units", "why"),
            )
        },
        ["run", "iteration", "pair"],
    ),
)
