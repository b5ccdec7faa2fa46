"""What ``critical-path`` and ``what-if`` may print, each with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.sentences.printed import PrintedTable, Sentence

_MS = r"-?[\d,]+\.\d{3} ms"
_PERCENT = r"-?[\d.]+%"
_PLACE = r"(?P<k_run>\w+) · iteration (?P<k_iteration>\d+)( · PARTIAL: ranks? [\d–, ]+ of \d+ without a trace)?"
_HERE = "WHERE run = $run AND iteration = $iteration"
_FIRST = r"(?P<b_more>: the first (?P<v_shown>\d+) of (?P<v_all>\d+))?"
_SHOWN = 12

_PATH = f"""
    WITH by_rank AS (SELECT rank, sum(duration_ns) AS ns FROM path_segments {_HERE} GROUP BY rank),
    edges AS (SELECT * FROM path_edges {_HERE})
    SELECT sum(ns) AS step, count(*) AS ranks, arg_max(rank, (ns, -rank)) AS rank, max(ns) AS ns,
        max(ns) / sum(ns) AS share, (SELECT count(DISTINCT coalesce(step, -1)) FROM path_segments {_HERE}) AS steps,
        (SELECT count(*) FROM edges WHERE kind = 'event' AND edge_evidence = 'recorded') AS recorded,
        (SELECT count(*) FROM edges WHERE kind = 'event' AND edge_evidence = 'inferred') AS inferred,
        (SELECT count(*) FROM edges WHERE edge_evidence = 'unknown') AS unknown,
        (SELECT count(*) FROM edges WHERE kind = 'synchronisation') AS hosts
    FROM by_rank
"""
_WHAT_IF = f"""
    WITH edits AS (
        SELECT edit, rank, dimension, factor, count(*) AS steps, sum(step_ns) AS step, sum(gain_ns) AS gain,
            sum(predicted_step_ns) AS predicted,
            least(sum(gain_low_ns), count(*) * min(gain_ns)) AS low,
            greatest(sum(gain_high_ns), count(*) * max(gain_ns)) AS high
        FROM what_if {_HERE} AND refusal IS NULL GROUP BY ALL
    )
"""

CAUSES = (
    Sentence(
        rf"{_PLACE} · (step|(?P<v_steps>\d+) steps,) (?P<v_step>{_MS})(; its| together; their) critical path runs on "
        rf"rank (?P<v_rank>\d+) for (?P<v_ns>{_MS}) \((?P<v_share>{_PERCENT})\)"
        r"(, on (?P<v_ranks>\d+) ranks in all| and on no other)",
        _PATH,
    ),
    Sentence(
        r"(?P<v_critical>\d+) of (?P<v_items>\d+) items \(micro-batches' steps by rank and phase, and the work outside "
        r"them\) are critical: their slack is within 1% of the step \(table path_items\)",
        f"""
        WITH steps AS (SELECT step, sum(duration_ns) AS ns FROM path_segments {_HERE} GROUP BY step)
        SELECT count(*) AS items, count(*) FILTER (slack_ns <= 0.01 * ns) AS critical
        FROM path_items JOIN steps ON path_items.step IS NOT DISTINCT FROM steps.step {_HERE}""",
    ),
    Sentence(
        r"waits between streams: (?P<v_recorded>\d+) recorded, (?P<v_inferred>\d+) inferred; of hosts for their GPU: "
        r"(?P<v_hosts>\d+)(; of (?P<v_unknown>\d+) communications nothing tells what waited for them)? "
        r"\(table path_edges\)",
        _PATH,
    ),
    Sentence(rf"{_PLACE} · no critical path", f"SELECT 1 AS one WHERE NOT EXISTS (FROM path_segments {_HERE})"),
    Sentence(
        rf"{_PLACE} · nothing can be predicted",
        f"SELECT 1 AS one WHERE NOT EXISTS (FROM what_if {_HERE} AND refusal IS NULL)",
    ),
)


def _profile(title: str, column: str, value: str = "") -> PrintedTable:
    profile = f"""
        WITH parts AS (
            SELECT CAST({value or column} AS VARCHAR) AS part, sum(duration_ns) AS ns
            FROM path_segments {_HERE} GROUP BY part
        )
    """
    return PrintedTable(
        f"{title}{_FIRST}",
        f"""{profile}
        SELECT part, ns / 1e6 AS ms, ns / (SELECT sum(ns) FROM parts) AS share FROM parts
        ORDER BY ns DESC, coalesce(part, 'None') LIMIT {_SHOWN}""",
        {column: "part", "ms": "ms", "of the step": "share"},
        [column],
        said=f"{profile} SELECT count(*) AS all, least(count(*), {_SHOWN}) AS shown, count(*) > {_SHOWN} AS more "
        "FROM parts",
    )


CAUSES_TABLES = (
    _profile("What the path is made of", "cause"),
    _profile("Ranks that the path runs on", "rank"),
    _profile("Pipeline stages that the path runs on", "stage"),
    _profile("What runs on the path, by category", "category", "coalesce(category, 'host')"),
    PrintedTable(
        rf"{_PLACE} · (step|(?P<v_steps>\d+) steps,) (?P<v_step>{_MS})( together)?; what edits gain, which do not add "
        rf"up{_FIRST}",
        f"""{_WHAT_IF}
        SELECT *, gain / 1e6 AS gain_ms, gain / step AS share, low / 1e6 AS low_ms, high / 1e6 AS high_ms,
            (step - gain) / 1e6 AS then_ms,
            CASE edit
                WHEN 'fix_rank' THEN 'fix rank ' || rank
                WHEN 'fix_link' THEN 'fix the links of rank ' || rank
                WHEN 'hide' THEN 'hide ' || of_what
                WHEN 'faster' THEN CAST(factor AS INTEGER) || ' times faster ' || of_what
                WHEN 'even_layers' THEN 'as many layers in every stage'
                WHEN 'equal_stages' THEN 'equal pipeline stages'
                WHEN 'no_jitter' THEN 'no jitter between micro-batches'
                WHEN 'no_pauses' THEN 'no pauses of hosts'
                WHEN 'host_free' THEN 'no waiting for launches'
                WHEN 'balanced_experts' THEN 'evenly loaded experts'
            END AS words
        FROM (SELECT *, dimension || ' communication' AS of_what FROM edits)
        ORDER BY gain DESC, edit, coalesce(rank, -1), coalesce(dimension, 'None') LIMIT {_SHOWN}""",
        {
            **{"edit": "words", "gain ms": "gain_ms", "of the step": "share", "at least ms": "low_ms"},
            **{"at most ms": "high_ms", "step then ms": "then_ms", "steps": "steps"},
        },
        ["edit"],
        said=f"{_WHAT_IF} SELECT max(step) AS step, max(steps) AS steps, count(*) AS all, "
        f"least(count(*), {_SHOWN}) AS shown, count(*) > {_SHOWN} AS more FROM edits",
    ),
)
