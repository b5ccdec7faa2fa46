"""What ``critical-path`` and ``what-if`` may print, each with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.sentences.printed import PrintedTable, Sentence

_MS = r"-?[\d,]+\.\d{3} ms"
_PERCENT = r"-?[\d.]+ %"
_PLACE = r"(?P<k_run>\w+) · iteration (?P<k_iteration>\d+)( · PARTIAL: ranks? [\d–, ]+ of \d+ without a trace)?"
_HERE = "WHERE run = $run AND iteration = $iteration"

_PATH = f"""
    WITH by_rank AS (SELECT rank, sum(duration_ns) AS ns FROM path_segments {_HERE} GROUP BY rank),
    edges AS (SELECT * FROM path_edges {_HERE})
    SELECT sum(ns) AS step, count(*) AS ranks, arg_max(rank, (ns, -rank)) AS rank, max(ns) AS ns,
        max(ns) / sum(ns) AS share, (SELECT count(DISTINCT coalesce(step, -1)) FROM path_segments {_HERE}) AS steps,
        (SELECT count(*) FROM edges WHERE kind = 'event' AND edge_evidence = 'recorded') AS recorded,
        (SELECT count(*) FROM edges WHERE kind = 'event' AND edge_evidence = 'inferred') AS inferred,
        (SELECT count(waited_for_kernel_id) FROM edges WHERE edge_evidence = 'unknown') AS unknown,
        (SELECT count(*) FROM edges WHERE waited_for_kernel_id IS NULL) AS calls,
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

_DIMENSION = (
    "if(dimension IN ('tp', 'cp', 'ep', 'etp', 'dp', 'edp', 'pp'), upper(dimension), "
    "replace(replace(dimension, 'grad_', 'gradient_'), '_', ' '))"
)
_EDIT_WORDS = f"""
    CASE edit
        WHEN 'fix_rank' THEN 'fix rank ' || rank
        WHEN 'fix_link' THEN 'fix the links of rank ' || rank
        WHEN 'hide' THEN 'hide ' || {_DIMENSION} || ' communication'
        WHEN 'faster' THEN CAST(factor AS INTEGER) || ' times faster ' || {_DIMENSION} || ' communication'
        WHEN 'even_layers' THEN 'as many layers in every stage'
        WHEN 'equal_stages' THEN 'equal pipeline stages'
        WHEN 'equal_ranks' THEN 'equal ranks in each pipeline stage'
        WHEN 'no_jitter' THEN 'no jitter between micro-batches'
        WHEN 'fix_gpu' THEN 'fix the GPU of rank ' || rank
        WHEN 'no_pauses' THEN 'no pauses of ' || coalesce('the host of rank ' || rank, 'hosts')
        WHEN 'no_hidden_waits' THEN 'no hidden waits of hosts'
        WHEN 'host_free' THEN 'a host' || coalesce(' of rank ' || rank, '') || ' that takes no time'
        WHEN 'balanced_experts' THEN 'evenly loaded experts'
        WHEN 'no_congestion' THEN 'no congested transfers'
    END
"""
_SHARE = r"[\d.]+ %"
_LENGTH = r"[\d.]+ (ms|µs|s)"
_WORD = r"(?P<v_word>[A-Za-z ]+)"
_WORDS = {
    **{"fwd_computation": "forward computation", "bwd_computation": "backward computation"},
    **{"bwd_computation_recompute": "recompute", "optimizer_computation": "optimizer"},
    **{"other_computation": "other computation", "fwd_communication": "forward communication"},
    **{"bwd_communication": "backward communication", "pp_communication": "PP communication"},
    **{"dp_communication": "DP communication", "other_communication": "other communication"},
    **{"memory": "memory operations", "launch": "launch lag", "unexplained": "unexplained lag"},
    **{"late_begin": "late begin", "host": "host", "synchronisation": "synchronisation"},
}
_FACTORS = f"""
    WITH factors AS (
        SELECT replica, factor, dimension, parent, any_value(ranks) AS ranks, sum(ideal_ns) AS ideal,
            sum(time_ns) AS time, sum(lost_ns) AS lost, ideal / time AS value,
            (SELECT sum(time_ns) FROM efficiencies {_HERE} AND replica IS NULL AND parent IS NULL) AS step
        FROM efficiencies {_HERE} AND (reason IS NULL OR parent IS NOT NULL) GROUP BY replica, factor, dimension, parent
    )
"""
_LONGEST = f"""
    WITH steps AS (
        SELECT coalesce(step, -1) AS step, sum(duration_ns) AS ns FROM path_segments {_HERE}
        GROUP BY ALL ORDER BY ns DESC, step LIMIT 1
    ),
    mine AS (
        SELECT p.*, steps.ns, cause IN ('transfer', 'unmatched') AS moves,
            CASE if(cause IN ('work', 'transfer', 'unmatched'), category, cause)
                {" ".join(f"WHEN '{name}' THEN '{word}'" for name, word in _WORDS.items())} END AS part
        FROM path_segments p JOIN steps ON coalesce(p.step, -1) = steps.step {_HERE}
    ),
    parts AS (SELECT part, sum(duration_ns) / any_value(ns) AS share, any_value(ns) AS ns FROM mine GROUP BY part),
    ranks AS (
        SELECT rank, any_value(stage) AS stage, sum(duration_ns) AS ns
        FROM mine GROUP BY rank
    ),
    stages AS (
        SELECT stage, sum(ns) AS ns, arg_max(rank, (ns, -rank)) AS rank, max(ns) AS of_rank
        FROM ranks GROUP BY stage
    ),
    facts AS (
        SELECT (SELECT coalesce(sum(duration_ns) FILTER (moves), 0) / sum(duration_ns) FROM mine) AS transfers,
            (SELECT count(DISTINCT stage) FROM path_items {_HERE}) > 1 AS several,
            (SELECT count(DISTINCT rank) FROM path_items {_HERE}) AS read
    )
"""
"""Of the longest step: what its path is made of, and on which ranks and stages it runs."""

TITLES_OF_CAUSES = (
    Sentence(
        rf"The step is limited by stage (?P<v_stage>\d+)( \((?P<b_mostly>mostly )?rank (?P<v_rank>\d+)\))? for "
        rf"(?P<v_share>{_SHARE}) of its (?P<v_step>{_LENGTH})",
        f"""{_LONGEST}
        SELECT stages.*, stages.ns / steps.ns AS share, steps.ns AS step,
            of_rank < stages.ns AND 2 * of_rank > stages.ns AS mostly FROM stages, steps, facts
        WHERE several AND read > 1 AND transfers <= 0.5 ORDER BY stages.ns DESC, stage LIMIT 1""",
    ),
    Sentence(
        rf"The step is limited by rank (?P<v_rank>\d+) for (?P<v_share>{_SHARE}) of its (?P<v_step>{_LENGTH})",
        f"""{_LONGEST}
        SELECT rank, ranks.ns / steps.ns AS share, steps.ns AS step FROM ranks, steps, facts
        WHERE NOT several AND read > 1 AND transfers <= 0.5 ORDER BY ranks.ns DESC, rank LIMIT 1""",
    ),
    Sentence(
        rf"(?P<v_share>{_SHARE}) of the path is {_WORD}",
        f"{_LONGEST} SELECT part AS word, share FROM parts ORDER BY share DESC LIMIT 1",
    ),
    Sentence(
        rf"Of rank (?P<v_rank>\d+)'s step of (?P<v_step>{_LENGTH}), (?P<v_share>{_SHARE}) is {_WORD}",
        f"""{_LONGEST}
        SELECT (SELECT rank FROM ranks) AS rank, ns AS step, share, part AS word FROM parts, facts
        WHERE read = 1 ORDER BY share DESC LIMIT 1""",
    ),
    Sentence(
        rf"The largest predicted gain is (?P<v_gain>{_LENGTH}) \((?P<v_share>{_SHARE}) of (the step|"
        rf"(?P<v_steps>\d+) steps)\), (?P<v_low>{_LENGTH}) to (?P<v_high>{_LENGTH}): (?P<v_words>.+)",
        f"{_WHAT_IF} SELECT *, gain / step AS share, {_EDIT_WORDS} AS words FROM edits WHERE low > 0 "
        "ORDER BY gain DESC, edit, coalesce(rank, -1), coalesce(dimension, 'None') LIMIT 1",
    ),
    Sentence(
        rf"(?P<v_word>[A-Z][a-z ]+) loses (?P<v_lost>{_LENGTH}) \((?P<v_share>{_SHARE})\) of the (?P<v_step>{_LENGTH}) "
        r"(step|of (?P<v_steps>\d+) steps), more than any other factor: [a-z ,]+",
        f"""{_FACTORS}
        SELECT *, upper(factor[1]) || replace(factor[2:], '_', ' ') AS word, lost / step AS share,
            (SELECT count(DISTINCT step) FROM efficiencies {_HERE}) AS steps FROM factors
        WHERE replica IS NULL AND parent = 'parallel_efficiency' ORDER BY lost DESC LIMIT 1""",
    ),
    Sentence(
        "No usual edit would surely gain: no error bar is above 0",
        f"{_WHAT_IF} SELECT count(*) AS edits FROM edits HAVING count(*) FILTER (low > 0) = 0 AND count(*) > 0",
    ),
)

CAUSES = (
    Sentence(
        r"Verdict: (?P<k_limit>.+?)\.( (A (delay|loss) below|Exposed time) is no saving\."
        r"| The path shows where time counts, not whose fault it is\.)?",
        f"""SELECT true FROM (
            SELECT list(statement) AS statements, count(*) FILTER (severity = 'finding' AND rule <> 'environment')
                AS found
            FROM findings {_HERE}
        ) WHERE list_contains(statements, $limit)
            OR found = 0 AND $limit = 'No fault found, and no fix is predicted to save 1 % of the step'""",
    ),
    Sentence(
        rf"{_PLACE} · (step|(?P<v_steps>\d+) steps,) (?P<v_step>{_MS})( together, each)? to its last kernel",
        f"{_WHAT_IF} SELECT max(step) AS step, max(steps) AS steps FROM edits",
    ),
    Sentence(
        rf"{_PLACE} · (?P<v_pipelines>\d+) pipelines?",
        f"SELECT count(DISTINCT pipeline) AS pipelines FROM pipelines {_HERE}",
    ),
    Sentence(
        rf"{_PLACE} · (step|(?P<v_steps>\d+) steps,) (?P<v_step>{_MS})( to its last kernel; its|"
        r" together, each to its last kernel; their) critical path runs on "
        rf"rank (?P<v_rank>\d+) for (?P<v_ns>{_MS}) \((?P<v_share>{_PERCENT})\)"
        r"(, on (?P<v_ranks>\d+) ranks in all| and on no other)",
        _PATH,
    ),
    Sentence(
        r"(?P<v_critical>\d+) of (?P<v_items>\d+) items \(micro-batches' steps by rank and phase, and the work outside "
        r"them\) are critical: their slack is within 1 % of the step \(table path_items\)",
        f"""
        WITH steps AS (SELECT step, sum(duration_ns) AS ns FROM path_segments {_HERE} GROUP BY step)
        SELECT count(*) AS items, count(*) FILTER (slack_ns <= 0.01 * ns) AS critical
        FROM path_items JOIN steps ON path_items.step IS NOT DISTINCT FROM steps.step {_HERE}""",
    ),
    Sentence(
        r"waits between streams: (?P<v_recorded>\d+) recorded, (?P<v_inferred>\d+) inferred; of hosts for their GPU: "
        r"(?P<v_hosts>\d+)(; of (?P<v_unknown>\d+) communications nothing shows what waited for them)?"
        r"(; of (?P<v_calls>\d+) waits? nothing shows for what)? "
        r"\(table path_edges\)",
        _PATH,
    ),
    Sentence(
        r"(?P<v_unmatched>\d+) of (?P<v_kernels>\d+) communication kernels are not matched with all their members: "
        r"(?P<v_faults>\d+ [a-z ]+(, \d+ [a-z ]+)*) \(table collectives\)",
        f"""
        WITH faults AS (SELECT fault, count(*) AS n FROM collectives {_HERE} AND fault IS NOT NULL GROUP BY fault)
        SELECT (SELECT sum(n) FROM faults)::BIGINT AS unmatched,
            (SELECT count(*) FROM collectives {_HERE}) AS kernels,
            (SELECT string_agg(n || ' ' || replace(fault, '_', ' '), ', ' ORDER BY n DESC, fault)
                FROM faults) AS faults""",
    ),
    Sentence(
        rf"{_PLACE} · parallel efficiency (?P<v_value>{_PERCENT}): of the (?P<v_time>{_MS}) "
        rf"(step|of (?P<v_steps>\d+) steps) the mean rank computes (?P<v_ideal>{_MS})",
        f"""{_FACTORS}
        SELECT *, (SELECT count(DISTINCT step) FROM efficiencies {_HERE}) AS steps FROM factors
        WHERE replica IS NULL AND parent IS NULL""",
    ),
    Sentence(
        rf"(?P<v_word>[A-Z][a-z ]+) loses most, (?P<v_lost>{_MS}) \((?P<v_share>{_PERCENT})\): [a-z ,]+",
        f"""{_FACTORS}
        SELECT upper(factor[1]) || replace(factor[2:], '_', ' ') AS word, lost, lost / step AS share FROM factors
        WHERE replica IS NULL AND parent = 'parallel_efficiency' ORDER BY lost DESC LIMIT 1""",
    ),
    Sentence(
        rf"{_PLACE} · parallel efficiency is not known",
        f"SELECT 1 AS one WHERE NOT EXISTS (FROM efficiencies {_HERE} AND value IS NOT NULL)",
    ),
    Sentence(
        r"(?P<v_read>\d+) of (?P<v_world>\d+) ranks were read in this step, so who waited for whom is not known; "
        r"analyse the traces of all ranks",
        f"""SELECT any_value(expected_ranks) AS world, (SELECT count(DISTINCT rank) FROM kernels {_HERE}) AS read
        FROM runs {_HERE}""",
    ),
    Sentence(rf"{_PLACE} · no critical path", f"SELECT 1 AS one WHERE NOT EXISTS (FROM path_segments {_HERE})"),
    Sentence(
        r"(?P<v_edits>\d+) edits? (is|are) refused; (?P<k_first>[^,:]+)[^:]*: (?P<v_refusal>.+?)"
        r"(; (?P<v_others>\d+) for other reasons, see --json)?",
        f"""WITH refused AS (SELECT DISTINCT ON (edit, rank, ranks, dimension, factor)
            {_EDIT_WORDS} AS first, refusal FROM what_if {_HERE} AND refusal IS NOT NULL AND edit IS NOT NULL)
        SELECT refusal, (SELECT count(*) FROM refused) AS edits,
            (SELECT count(*) FROM refused o WHERE o.refusal <> r.refusal) AS others
        FROM refused r WHERE first = $first""",
    ),
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
        title,
        f"""{profile}
        SELECT part, ns / 1e6 AS ms, ns / (SELECT sum(ns) FROM parts) AS share FROM parts
        ORDER BY ns DESC, coalesce(part, 'None')""",
        {column: "part", "path ms": "ms", "of step": "share"},
        [column],
    )


_IMBALANCE = f"""
    WITH on_path AS (
        SELECT step, category, sum(duration_ns) AS ns FROM path_segments
        {_HERE} AND cause IN ('work', 'transfer', 'unmatched') GROUP BY ALL
    ),
    uneven AS (
        SELECT m.category, sum(coalesce(ns, 0)) AS path, sum(mean_ns) AS mean,
            sum(greatest(coalesce(ns, 0) - mean_ns, 0)) AS imbalance
        FROM critical_imbalance m LEFT JOIN on_path p ON p.category = m.category AND p.step IS NOT DISTINCT FROM m.step
        {_HERE} GROUP BY m.category HAVING imbalance > 0
    )
"""

_HOSTS = f"""
    WITH cuts AS (
        SELECT p.step, p.segment, p.rank, p.start_ns, p.start_ns + p.duration_ns AS end_ns, k.kernel_id,
            k.launch_start_ns AS cut, coalesce(operator, launch_name) AS operation, k.module,
            max(k.launch_start_ns) OVER (
                PARTITION BY p.step, p.segment ORDER BY k.launch_start_ns, k.kernel_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before
        FROM path_segments AS p JOIN kernels AS k ON k.run = p.run AND k.iteration = p.iteration AND k.rank = p.rank
            AND k.launch_start_ns > p.start_ns AND k.launch_start_ns <= p.start_ns + p.duration_ns
        WHERE p.run = $run AND p.iteration = $iteration AND cause = 'host'
    ),
    pieces AS (
        SELECT rank, kernel_id, operation, module, cut - coalesce(before, start_ns) AS ns FROM cuts
        UNION ALL BY NAME
        SELECT rank, start_ns + duration_ns - coalesce((
            SELECT max(cut) FROM cuts WHERE cuts.segment = p.segment AND cuts.step IS NOT DISTINCT FROM p.step
        ), start_ns) AS ns
        FROM path_segments AS p {_HERE} AND cause = 'host'
    ),
    gaps AS (
        SELECT rank, kernel_id, arg_max(caller, doing_ns) AS caller,
            arg_max(doing, doing_ns) FILTER (host_work IS NOT NULL) AS pause
        FROM gpu_gaps {_HERE} AND kernel_id IS NOT NULL GROUP BY ALL
    ),
    parts AS (
        SELECT coalesce(pause, operation) AS operation, coalesce(caller, module) AS place, sum(ns) AS ns
        FROM pieces LEFT JOIN gaps USING (rank, kernel_id) WHERE ns > 0 GROUP BY ALL
    )
"""

CAUSES_TABLES = (
    _profile("What the path is made of", "cause"),
    PrintedTable(
        "Hosts on the path: time until each launch, by what launches",
        f"""{_HOSTS}
        SELECT coalesce(operation, 'after the last launch') AS operation, place, ns / 1e6 AS ms,
            ns / (SELECT sum(duration_ns) FROM path_segments {_HERE}) AS share
        FROM parts ORDER BY ns DESC, operation, coalesce(place, 'None')""",
        {"operation": "operation", "in": "place", "path ms": "ms", "of step": "share"},
        ["operation", "in"],
    ),
    _profile("Ranks that the path runs on, those at fault first", "rank"),
    _profile("Pipeline stages that the path runs on", "stage"),
    _profile(
        "What runs on the path, by category",
        "category",
        "if(cause IN ('work', 'transfer', 'unmatched'), coalesce(category, 'unclassified'), cause)",
    ),
    PrintedTable(
        "Critical imbalance, the path beyond the mean rank, ms",
        f"{_IMBALANCE} SELECT *, path / 1e6 AS path_ms, mean / 1e6 AS mean_ms, imbalance / 1e6 AS imbalance_ms "
        f"FROM uneven ORDER BY imbalance DESC, category",
        {
            **{"category": "category", "path": "path_ms", "mean rank": "mean_ms"},
            **{"imbalance": "imbalance_ms"},
        },
        ["category"],
    ),
    PrintedTable(
        "Factors, what loses most first; they multiply, and losses add up",
        f"""{_FACTORS}
        SELECT
            replace(replace(coalesce(dimension, factor), 'grad_', 'gradient_'), '_', ' ') AS factor,
            value, lost / 1e6 AS ms, lost / step AS share
        FROM factors WHERE replica IS NULL""",
        {"factor": "factor", "value": "value", "lost ms": "ms", "of step": "share"},
        ["factor"],
    ),
    PrintedTable(
        "Model replicas, the least efficient first",
        f"""{_FACTORS}, parts AS (PIVOT (FROM factors WHERE replica IS NOT NULL AND dimension IS NULL)
            ON factor IN ('parallel_efficiency', 'load_balance', 'serialisation', 'transfer', 'host')
            USING any_value(value) GROUP BY replica, ranks)
        FROM parts ORDER BY parallel_efficiency, replica""",
        {
            **{"replica": "replica", "ranks": "ranks", "efficiency": "parallel_efficiency"},
            **{"load balance": "load_balance", "serialisation": "serialisation", "transfer": "transfer"},
            "host": "host",
        },
        ["replica"],
    ),
    PrintedTable(
        r"Gains(, each edit alone)?(, those of the findings first)?; they do not add up, ms",
        f"""{_WHAT_IF}
        SELECT *, gain / 1e6 AS gain_ms, gain / step AS share, low / 1e6 AS low_ms, high / 1e6 AS high_ms,
            (step - gain) / 1e6 AS then_ms,
            {_EDIT_WORDS} AS words
        FROM edits
        ORDER BY gain DESC, edit, coalesce(rank, -1), coalesce(dimension, 'None')""",
        {
            **{"edit": "words", "gain": "gain_ms", "of step": "share", "at least": "low_ms"},
            **{"at most": "high_ms", "step then": "then_ms", "steps": "steps"},
        },
        ["edit"],
    ),
)
