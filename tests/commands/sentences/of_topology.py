"""What ``topology`` and ``gate`` print, each with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.sentences.printed import PrintedTable, Sentence

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

# Each reason with the pipelines (of two ranks) or ranks whose it is, those without figures: by run, iteration, pair and
# stage. A reason that all rows of a pair have needs no owner.
WHY = """
    owned AS (
        SELECT DISTINCT run, iteration, pair, stage, refusal, rank, rank IS NULL AS nobody,
            if(pipeline IS NOT NULL AND rank <> rank1, 'pipeline', 'rank') AS word,
            if(pipeline IS NOT NULL AND rank <> rank1, pipeline, rank) AS number
        FROM refusable WHERE refusal IS NOT NULL
    ),
    islands AS (
        SELECT *, number - dense_rank() OVER (PARTITION BY run, iteration, pair, stage, refusal, word ORDER BY number)
            AS island
        FROM owned
    ),
    spans AS (
        SELECT run, iteration, pair, stage, refusal, word, min(number) AS low, max(number) AS high, min(rank) AS rank
        FROM islands GROUP BY run, iteration, pair, stage, refusal, word, island
    ),
    named AS (
        SELECT run, iteration, pair, stage, refusal, min(rank) AS rank, word || if(sum(high - low + 1) > 1, 's', '')
            || ' ' || string_agg(if(low = high, CAST(low AS VARCHAR), low || '–' || high), ', ' ORDER BY low) AS owner
        FROM spans GROUP BY run, iteration, pair, stage, refusal, word
    ),
    counted AS (
        SELECT run, iteration, pair, stage, count(DISTINCT refusal) AS reasons, bool_or(refusal IS NULL) AS others,
            count(DISTINCT rank) FILTER (refusal IS NOT NULL) AS ranks_without, count(DISTINCT rank) AS ranks,
            bool_and(refusal IS NULL OR refusal LIKE 'no % communication in its % steady units') AS nothing
        FROM refusable GROUP BY run, iteration, pair, stage
    ),
    why AS (
        SELECT n.run, n.iteration, n.pair, n.stage, any_value(ranks) AS ranks, any_value(nothing) AS nothing,
            any_value(ranks_without) AS ranks_without, any_value(others) AS others,
            string_agg(if((reasons = 1 AND NOT others) OR owner IS NULL, refusal, owner || ': ' || refusal),
                '; ' ORDER BY rank, refusal) AS refusal
        FROM named AS n JOIN counted AS c ON n.run = c.run AND n.iteration = c.iteration AND n.pair = c.pair
            AND n.stage IS NOT DISTINCT FROM c.stage
        GROUP BY ALL
    )
"""

# Scores anew from the periods and busy times of the units.
_VERDICTS = f"""
    WITH pairs(pair, stage, dimension, percentile, threshold) AS (
        VALUES ('stages 0 and 1', 0, NULL, 50.0, 0.6), ('tensors', NULL, 'tp', 10.0, 0.3),
            ('gradients', NULL, 'dp', 90.0, -100.0), ('nowhere', NULL, 'no such', 50.0, 0.3)
    ),
    refusable AS (
        SELECT run, iteration, pairs.pair, NULL AS stage, refusal, pipeline, rank, rank1,
            (stage0_ns + stage1_ns - period_ns) / nullif(least(stage0_ns, stage1_ns), 0) AS score
        FROM periods JOIN pairs ON kind = 'stages' AND periods.stage = pairs.stage
            OR kind = 'dimension' AND periods.dimension = pairs.dimension
    ),
    {WHY},
    verdicts AS (
        SELECT run, iteration, pair, any_value(percentile) AS percentile, any_value(threshold) AS threshold,
            count(score) AS units, list(score) AS scores, any_value(why.refusal) AS refusal,
            any_value(dimension) AS dimension, count(u.pair) AS rows, coalesce(any_value(nothing), true) AS nothing
        FROM ((SELECT DISTINCT run, iteration FROM traces) CROSS JOIN pairs)
            LEFT JOIN refusable AS u USING (run, iteration, pair) LEFT JOIN why USING (run, iteration, pair)
        GROUP BY run, iteration, pair
    )
    SELECT *, CASE percentile WHEN 50 THEN list_aggregate(scores, 'quantile_cont', 0.5)
            WHEN 10 THEN list_aggregate(scores, 'quantile_cont', 0.1)
            ELSE list_aggregate(scores, 'quantile_cont', 0.9) END AS score,
        CASE WHEN score IS NULL THEN 'not judged' WHEN score >= threshold THEN 'passed' ELSE 'FAILED' END
            || if(score IS NULL OR nothing, '', ', PARTIAL') AS verdict,
        CASE WHEN score IS NULL THEN ' is not judged' WHEN nothing THEN ' leaves out ranks with nothing to overlap'
            ELSE ' is judged over fewer than all its ranks' END AS what,
        CASE WHEN pair = 'nowhere' THEN 'no range is called ''no such range'' on rank 0'
            WHEN pair LIKE 'stages%' AND rows = 0 THEN 'the iteration has no pair of stages 0 and 1'
            WHEN rows = 0 THEN 'the iteration has no pair of computation and ' || dimension || ' communication'
            ELSE coalesce(refusal, if(score IS NULL, 'no unit has a score', NULL)) END AS why
    FROM verdicts
"""

GATE = (
    Sentence(
        r"pair '(?P<k_pair>.+?)' of (?P<k_run>\w+) (?P<k_iteration>\d+)"
        r"(?P<v_what> is [\w ]+| leaves [\w ]+)?: (?P<v_why>.*)",
        f"SELECT * FROM ({_VERDICTS}) {_HERE} AND pair = $pair",
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
                *("percentile", "threshold", "units"),
            )
        },
        ["run", "iteration", "pair"],
    ),
)
