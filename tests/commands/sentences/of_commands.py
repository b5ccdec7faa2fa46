"""Every line and table that the commands may print, each with the SQL that its numbers are those of.

A printed line with a number that none of these knows fails the test: write it down here, with its query.
"""

from __future__ import annotations

from tests.commands.sentences.of_topology import WHY
from tests.commands.sentences.printed import PrintedTable, Sentence
from traceviz_dag.analyze.findings.rule import nothing_fixes
from traceviz_dag.analyze.findings.rules.registry import RULES

_STEPS = """
    WITH measured AS (
        SELECT *, window_end_ns - window_start_ns AS window_ns FROM overlap
        WHERE run = $run AND iteration = $iteration AND window_name = 'step'
    )
"""
_PER_MICROBATCH = """
    WITH units AS (
        SELECT rank, stage, step, microbatch, sum(compute_ns) AS ns, count(*) AS steps
        FROM microbatches
        WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND phase IN ('forward', 'backward')
            AND stage IS NOT NULL
        GROUP BY rank, stage, step, microbatch
        QUALIFY steps = max(steps) OVER (PARTITION BY stage)
    ),
    times AS (SELECT rank, stage, round(avg(ns)) AS ns FROM units GROUP BY ALL),
    stages AS (
        SELECT stage, count(*) AS ranks, min(rank) AS rank, quantile_disc(ns, 0.5) AS ns FROM times GROUP BY stage
    )
"""
_SLOWEST = f"""
    {_PER_MICROBATCH}
    SELECT stage, ranks, rank, ns, ns / (SELECT avg(ns) FROM stages) - 1 AS excess,
        (SELECT count(*) FROM stages) AS stages
    FROM stages ORDER BY ns DESC, stage LIMIT 1
"""
MS = r"[\d,]+\.\d{3} ms"
PERCENT = r"[+-]?[\d.]+ %"
SHARE = r"[\d.]+ %"
PLACE = r"(?P<k_run>\w+) · iteration (?P<k_iteration>\d+)( · PARTIAL: ranks? [\d–, ]+ of \d+ without a trace)?"
_TABLE = r"(?: \(table microbatches\))?"
_OF = r"(?:of the ranks that were read, )?"
_RANKS = r"(all ranks|ranks? [\d–, ]+ alone)"

SUMMARY = (
    Sentence(
        r"(?P<k_run>\w+) · iteration (?P<k_iteration>\d+) · (?P<v_ranks>\d+) ranks computed, 0 unchanged("
        r"?P<b_partial> · PARTIAL: ranks? [\d–, ]+ of "
        r"(?P<v_world>\d+) without a trace)?",
        """
        SELECT count(*) AS ranks, max(world_size) AS world, max(world_size) > count(*) AS partial
        FROM traces WHERE run = $run AND iteration = $iteration""",
    ),
    Sentence(
        rf"step (?P<v_ns>{MS}) over (?P<v_ranks>\d+) ranks(?P<b_several>, the longest of (?P<v_steps>\d+) steps, "
        r"(?P<v_first>\d+) to (?P<v_last>\d+))?(?P<b_partial>, PARTIAL)? \(table iterations\)",
        f"""{_STEPS}
        SELECT max(window_ns) AS ns, count(DISTINCT rank) AS ranks, count(DISTINCT step) AS steps, steps > 1 AS several,
            min(step) AS first, max(step) AS last,
            (SELECT count(*) FROM topology WHERE run = $run AND iteration = $iteration) > ranks
                OR (SELECT max(world_size) FROM traces WHERE run = $run AND iteration = $iteration) > ranks AS partial
        FROM measured""",
    ),
    Sentence(
        rf"exposed communication (?P<v_ns>{MS}) a rank and step, (?P<v_share>{PERCENT}) of the mean step; "
        rf"(?P<v_hidden>{PERCENT}) of communication is hidden \(table overlap\)",
        f"""{_STEPS},
        by_rank AS (
            SELECT rank, avg(exposed_ns) AS exposed, avg(window_ns) AS step,
                sum(hidden_ns) AS hidden, sum(communication_ns) AS whole
            FROM measured WHERE dimension = 'all' GROUP BY rank
        )
        SELECT avg(exposed) AS ns, ns / avg(step) AS share, sum(hidden) / sum(whole) AS hidden FROM by_rank""",
    ),
    Sentence(r"no communication ran in it \(table overlap\)"),
    Sentence(
        rf"MFU (?P<v_mfu>{PERCENT}): (?P<v_used>[\d,.]+) of (?P<v_peak>[\d,]+) TFLOP/s per GPU, what the model needs "
        r"against the (?P<k_format>\w+) peak(?P<b_partial>, PARTIAL)? \(table iterations\)",
        """
        SELECT model_flops_per_gpu / step_ns / 1e3 AS used, peak_flops_per_s / 1e12 AS peak, used / peak AS mfu, partial
        FROM iterations WHERE run = $run AND iteration = $iteration AND peak_format = $format""",
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of kernel time lies outside the training steps, and in none of their measures "
        r"\(tables kernels, overlap\)",
        """
        WITH steps AS (
            SELECT DISTINCT rank, device, window_start_ns AS a, window_end_ns AS b FROM overlap
            WHERE run = $run AND iteration = $iteration AND window_name = 'step'
        ),
        inside AS (
            SELECT sum(greatest(0, least(b, start_ns + duration_ns) - greatest(a, start_ns))) AS ns
            FROM kernels JOIN steps USING (rank, device) WHERE run = $run AND iteration = $iteration
        )
        SELECT 1 - (SELECT ns FROM inside) / sum(duration_ns) AS share FROM kernels
        WHERE run = $run AND iteration = $iteration""",
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of kernel time has no category: the evidence does not say \(traceviz doctor\)",
        "SELECT sum(duration_ns) FILTER (category = 'unclassified') / sum(duration_ns) AS share FROM kernels "
        "WHERE run = $run AND iteration = $iteration",
    ),
    Sentence(
        r"rank (?P<k_rank>\d+) computes slowly: the same kernels take (?P<v_ratio>[\d.]+) times as long as on the "
        rf"median of its (?P<v_peers>\d+) peers? of stage (?P<v_stage>\d+), (?P<v_more>{MS}) more; no clock is needed "
        "for this, and it is not what fixing it would save",
        """
        WITH work AS (
            SELECT rank, stage, step, phase, name, coalesce(operator, '') AS op, sum(duration_ns) AS ns FROM kernels
            WHERE run = $run AND iteration = $iteration AND kind = 'computation'
                AND stage = (SELECT any_value(stage) FROM topology
                    WHERE run = $run AND iteration = $iteration AND rank = $rank)
            GROUP BY rank, stage, step, phase, name, op
            WINDOW item AS (PARTITION BY stage, step, phase, name, op)
            QUALIFY min(count(*)) OVER item = max(count(*)) OVER item
                AND count(*) OVER item = (SELECT count(*) FROM topology AS t
                    WHERE t.run = $run AND t.iteration = $iteration AND t.stage = kernels.stage)
        ),
        peers AS (
            SELECT step, phase, name, op, median(ns) AS ns FROM work WHERE rank <> $rank GROUP BY ALL
        )
        SELECT any_value(work.stage) AS stage, sum(work.ns) / sum(peers.ns) AS ratio,
            sum(work.ns) - sum(peers.ns) AS more,
            (SELECT count(DISTINCT rank) - 1 FROM work) AS peers
        FROM work JOIN peers USING (step, phase, name, op) WHERE rank = $rank""",
    ),
    Sentence(
        r"(?P<v_more>[\d,]+) more ranks compute slowly",
        "SELECT count(*) - 5 AS more FROM rank_speeds WHERE run = $run AND iteration = $iteration AND slow "
        "HAVING count(*) > 6",
    ),
)

_OPEN = f"""severity = 'note' AND gain_ns IS NULL AND 1.25 * at_most_ns >= .01 * step_ns IS DISTINCT FROM false
    AND rule NOT IN ({", ".join(f"'{rule.name}'" for rule in RULES if rule.edit is nothing_fixes)})"""

_LOSS = """measure = 'share of the time measured' AND severity <> 'not_looked_at' AND rule <> 'unexplained'
    AND value >= .01 AND NOT coalesce(value < .1 AND gain_high_ns < .01 * step_ns, false)"""
"""What counts as a loss: not what is small and known to cost nothing."""

_OF_DIMENSION = "if(value >= .1, dimension, NULL)"
"""Of a rule one loss is named, and each dimension that takes so much."""

_LEADING = f"""
    WITH told AS (
        SELECT *, row_number() OVER (
                PARTITION BY rule, {_OF_DIMENSION} ORDER BY {_LOSS} DESC NULLS LAST, value DESC, finding
            ) AS place
        FROM findings WHERE run = $run AND iteration = $iteration
    ),
    losses AS (
        SELECT finding FROM told WHERE place = 1 AND {_LOSS}
        QUALIFY row_number() OVER (ORDER BY value DESC) <= 3 OR value >= .1
    ),
    numbered AS (
        SELECT *, severity = 'finding' AND class = 'fault' AS fault, coalesce(gain_after_ns, gain_ns,
            CASE measure WHEN 'share of the time measured' THEN value * coalesce(measured_ns, step_ns, 1) / 2 ELSE 0 END
        ) AS cost
        FROM told WHERE severity = 'finding' OR finding IN (FROM losses)
    )
    SELECT row_number() OVER (ORDER BY fault DESC, CASE WHEN fault THEN 0 ELSE -cost END, finding) AS number,
        CASE severity WHEN 'finding' THEN class ELSE 'loss' END AS class, rule, statement
    FROM numbered
"""
FOUND = (
    Sentence(
        r"largest loss(?P<b_several>es)?, of the time measured: (?P<v_losses>.+)",
        f"""
        WITH told AS (
            SELECT rule, value,
                row_number() OVER (PARTITION BY rule, {_OF_DIMENSION} ORDER BY value DESC, finding) AS place,
                if(length(dimension) < 4, upper(dimension),
                    replace(replace(dimension, 'grad_', 'gradient_'), '_', ' ')) AS named,
                concat_ws(', ', 'rank ' || rank, named, operation) AS fault
            FROM findings WHERE run = $run AND iteration = $iteration AND {_LOSS}
        ),
        largest AS (
            SELECT *, if(rule = lag(rule) OVER (ORDER BY value DESC), '', replace(rule, '_', ' ') || ' ') AS words
            FROM (FROM told WHERE place = 1 QUALIFY row_number() OVER (ORDER BY value DESC) <= 3 OR value >= .1)
        )
        SELECT count(*) > 1 AS several, string_agg(
            words || format(CASE WHEN value >= .0995 THEN '{{:.0f}} %' ELSE '{{:.1f}} %' END, value * 100) ||
            CASE fault WHEN '' THEN '' ELSE ' (' || fault || ')' END,
            ', ' ORDER BY value DESC) AS losses
        FROM largest""",
    ),
    Sentence(
        r"(?:no|(?P<v_findings>\d+)) findings? and (?P<v_notes>\d+) notes? "
        r"(?P<b_open>\((?P<v_unknown>\d+) of unknown gain\) )?"
        r"\(traceviz findings says what to do(?P<b_more>; (?P<v_left>\d+) more there)?\):",
        f"""
        WITH counted AS (
            SELECT count(*) FILTER (severity = 'finding') AS graves, count(*) FILTER (severity = 'note') AS notes,
                count(*) FILTER ({_OPEN}) AS unknown
            FROM findings WHERE run = $run AND iteration = $iteration
        )
        SELECT nullif(graves, 0) AS findings, notes, unknown > 0 AS open, unknown, numbered > 3 AS more,
            numbered - 3 AS left
        FROM counted, (SELECT count(*) AS numbered FROM ({_LEADING}))""",
    ),
    Sentence(
        r"no finding, (?P<v_notes>\d+) notes?(?P<b_open> \((?P<v_unknown>\d+) of unknown gain\))? "
        r"\(traceviz findings\)",
        f"""
        SELECT count(*) FILTER (severity = 'note') AS notes, count(*) FILTER ({_OPEN}) AS unknown, unknown > 0 AS open
        FROM findings
        WHERE run = $run AND iteration = $iteration AND NOT EXISTS (FROM ({_LEADING}))""",
    ),
    Sentence(
        r"(?P<k_number>\d+)\. (?P<v_class>\w+) · (?P<v_rule>\w+): (?P<v_statement>.+)",
        f"SELECT class, rule, statement FROM ({_LEADING}) WHERE number = $number",
    ),
)
# What a statement says is held against its own query in test_findings.py.

STAGES = (
    Sentence(
        rf"{_OF}no stage is an outlier: stage (?P<v_stage>\d+) computes longest, (?P<v_ns>{MS}) a micro-batch, "
        rf"(?P<v_excess>{PERCENT}) above the mean of the (?P<v_stages>\d+) stages{_TABLE}",
        f"SELECT * FROM ({_SLOWEST}) WHERE excess < 0.05",
    ),
    Sentence(
        rf"{_OF}slowest stage (?P<v_stage>\d+): (?P<v_ns>{MS}) of computation per micro-batch \(lower median of its "
        rf"(?P<v_ranks>\d+) ranks\), (?P<v_excess>{PERCENT}) above the mean of the (?P<v_stages>\d+) stages{_TABLE}",
        f"SELECT * FROM ({_SLOWEST}) WHERE excess >= 0.05 AND ranks > 1",
    ),
    Sentence(
        rf"{_OF}slowest stage (?P<v_stage>\d+), or its GPU: rank (?P<v_rank>\d+) is the only one of that stage with "
        rf"known micro-batches, so these do not show whether its GPU is slow or has too much work; (?P<v_ns>{MS}) of "
        rf"computation per micro-batch, (?P<v_excess>{PERCENT}) above the mean of the (?P<v_stages>\d+) stages{_TABLE}",
        f"SELECT * FROM ({_SLOWEST}) WHERE excess >= 0.05 AND ranks = 1",
    ),
)

_SPREAD = """
    SELECT step, stage, arg_max(rank, microbatch_ns) AS rank,
        max(microbatch_ns) / round(median(microbatch_ns)) - 1 AS spread,
        (SELECT count(DISTINCT step) FROM pipelines WHERE run = $run AND iteration = $iteration) > 1 AS several
    FROM pipelines WHERE run = $run AND iteration = $iteration
    GROUP BY step, stage ORDER BY spread DESC LIMIT 1
"""
PIPELINES = (
    Sentence(
        r"ranks of stage (?P<v_stage>\d+) differ most(?P<b_several> in step (?P<v_step>\d+))?: rank (?P<v_rank>\d+) "
        rf"takes (?P<v_spread>{PERCENT}) longer than their median for a micro-batch, waits for its tensor-, "
        "context- and expert-parallel peers included",
        _SPREAD,
    ),
    Sentence(
        r"pipeline (?P<k_pipeline>\d+): no forward and backward steps are known of stage (?P<v_stages>[\d, ]+)",
        """
        SELECT string_agg(stage, ', ' ORDER BY stage) AS stages FROM topology
        WHERE run = $run AND iteration = $iteration AND pipeline = $pipeline
            AND rank NOT IN (SELECT rank FROM microbatches WHERE run = $run AND iteration = $iteration)""",
    ),
    Sentence(
        rf"{PLACE} · no pipeline is known: neither process groups nor a topology text file name one",
        "SELECT 1 AS one WHERE NOT EXISTS "
        "(FROM topology WHERE run = $run AND iteration = $iteration AND pipeline IS NOT NULL)",
    ),
    Sentence(
        rf"{PLACE} · no pipeline of two or more stages: the job has no pipeline parallelism",
        "SELECT max(stages) FROM topology WHERE run = $run AND iteration = $iteration HAVING max(stages) = 1",
    ),
    Sentence(
        rf"{PLACE} · no micro-batch is known in these traces, so neither its pipelines' bubble nor idle time",
        "SELECT 1 AS one WHERE NOT EXISTS (FROM microbatches WHERE run = $run AND iteration = $iteration)",
    ),
)

_REFUSED = f"""
    WITH refusable AS (
        FROM periods
        WHERE run = $run AND iteration = $iteration AND pair = $pair AND stage IS NOT DISTINCT FROM {{stage}}
    ),
    {WHY}
    SELECT *, NOT nothing AS partial FROM why WHERE {{others}}
"""
# Of all splits in two the one with the least variance within, where that is known.
_MODES = """
    WITH units AS (
        SELECT row_number() OVER (ORDER BY period_ns) AS n, count(*) OVER () AS c, var_pop(period_ns) OVER () AS whole,
            avg(period_ns) OVER (ORDER BY period_ns ROWS UNBOUNDED PRECEDING) AS low,
            avg(period_ns) OVER (ORDER BY period_ns ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS high
        FROM periods WHERE run = $run AND iteration = $iteration AND pair = $pair
            AND stage IS NOT DISTINCT FROM {stage} AND period_ns IS NOT NULL
    )
    SELECT low, high, n / c AS share, 1 - n / c AS rest FROM (
        SELECT *, n * (c - n) / (c * c) * (high - low) * (high - low) AS between_ns FROM units WHERE n < c
        ORDER BY between_ns DESC, n LIMIT 1)
    WHERE c >= 8 AND between_ns >= 0.8 * whole AND least(share, rest) >= 0.1 AND high >= 1.3 * low
"""
PERIODS = (
    Sentence(
        r"(?P<k_pair>[\w +]+), stage (?P<k_stage>\d+)(, steps? [\d, ]+)?: none \((?P<v_refusal>.*)\)",
        _REFUSED.format(stage="$stage", others="NOT others"),
    ),
    Sentence(
        r"(?P<k_pair>[\w +]+?)(, steps? [\d, ]+)?: none \((?P<v_refusal>.*)\)",
        _REFUSED.format(stage="NULL", others="NOT others"),
    ),
    Sentence(
        r"(?P<k_pair>[\w +]+), stage (?P<k_stage>\d+)(, step [\d, ]+)?: (?P<b_partial>PARTIAL, )?"
        r"(?P<v_ranks_without>\d+) of (?P<v_ranks>\d+) ranks have no measures \((?P<v_refusal>.*)\)",
        _REFUSED.format(stage="$stage", others="others"),
    ),
    Sentence(
        r"(?P<k_pair>[\w +]+?)(, step [\d, ]+)?: (?P<b_partial>PARTIAL, )?"
        r"(?P<v_ranks_without>\d+) of (?P<v_ranks>\d+) ranks have no measures \((?P<v_refusal>.*)\)",
        _REFUSED.format(stage="NULL", others="others"),
    ),
    *(
        Sentence(
            rf"(?P<k_pair>[\w +]+?){words}(, step [\d, ]+)?: two modes: (?P<v_share>{PERCENT}) of the units near "
            rf"(?P<v_low>{MS}), (?P<v_rest>{PERCENT}) near (?P<v_high>{MS})",
            _MODES.format(stage=stage),
        )
        for words, stage in ((r", stage (?P<k_stage>\d+)", "$stage"), ("", "NULL"))
    ),
    Sentence(
        r"(?P<k_run>\w+) (?P<k_iteration>\d+): the measures of (?P<v_pair>[\w +]+), .* are those of fewer than all "
        r"ranks",
        """
        SELECT arg_min(pair, (pair LIKE 'stages%', stage)) AS pair FROM (
            SELECT pair, stage, step FROM periods WHERE run = $run AND iteration = $iteration
            GROUP BY pair, stage, step
            HAVING count(period_ns) > 0
                AND NOT bool_and(refusal IS NULL OR refusal LIKE 'no % communication in its % steady units'))
        HAVING count(*) > 0""",
    ),
    Sentence(
        r"nothing to overlap: no communication runs in the steady units",
        "SELECT count(*) FROM periods WHERE run = $run AND iteration = $iteration "
        "HAVING bool_and(refusal LIKE 'no % communication in its % steady units')",
    ),
    Sentence(
        rf"{PLACE} · periods in one training step: none",
        "SELECT count(*) FROM periods WHERE run = $run AND iteration = $iteration AND period_ns IS NOT NULL "
        "HAVING count(*) = 0",
    ),
)

EARLIER = (
    Sentence(
        r"Not printed: iteration (?P<v_earlier>\d+) of (?P<k_run>\w+); --iteration shows one, --json has all",
        "SELECT min(iteration) AS earlier FROM traces WHERE run = $run HAVING count(DISTINCT iteration) = 2",
    ),
)

_OF_RANK = "FROM kernels WHERE run = $run AND iteration = $iteration AND rank = $rank"
DOCTOR = (
    Sentence(
        r"(?P<k_run>\w+) · iteration (?P<k_iteration>\d+): (?P<v_ranks>\d+) ranks of a world of (?P<v_world>\d+); with "
        r"GPU rows (?P<v_gpu>\d+), call stacks (?P<v_stacks>\d+), operators (?P<v_operators>\d+), shapes \d+, "
        r"described groups (?P<v_groups>\d+); (?P<v_steps>\d+) profiler steps? per file",
        """
        SELECT count(*) AS ranks, max(world_size) AS world, count(*) FILTER (devices[1] <> 'cpu') AS gpu,
            count(*) FILTER (has_stacks) AS stacks, count(*) FILTER (has_host_rows) AS operators,
            count(*) FILTER (has_groups) AS groups, max(len(steps)) AS steps
        FROM traces WHERE run = $run AND iteration = $iteration""",
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of the kernel time of rank (?P<k_rank>\d+) has a phase(;.*)?",
        f"SELECT coalesce(sum(duration_ns) FILTER (phase <> 'unknown') / sum(duration_ns), 0) AS share {_OF_RANK}",
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of the kernel time of rank (?P<k_rank>\d+) has a module(;.*)?",
        "SELECT coalesce(sum(duration_ns) FILTER (module IS NOT NULL) / sum(duration_ns), 0) AS share " + _OF_RANK,
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of the forward and backward computation of rank (?P<k_rank>\d+) is in a "
        "micro-batch(;.*)?",
        "SELECT coalesce(sum(duration_ns) FILTER (microbatch IS NOT NULL) / sum(duration_ns), 0) AS share "
        f"{_OF_RANK} AND kind = 'computation' AND phase IN ('forward', 'backward', 'recompute')",
    ),
    Sentence(
        rf"(?P<v_share>{PERCENT}) of the communication time of rank (?P<k_rank>\d+) has one(;.*)?",
        "SELECT coalesce(sum(duration_ns) FILTER (dimension <> 'unknown') / sum(duration_ns), 0) AS share "
        f"{_OF_RANK} AND kind = 'communication'",
    ),
    Sentence(
        r"(?P<v_sized>\d+) of (?P<v_all>\d+) communications of rank (?P<k_rank>\d+) state their size",
        f"SELECT count(*) AS all, count(in_elements) AS sized {_OF_RANK} AND kind = 'communication'",
    ),
    Sentence(
        r"(?P<v_unknown>\d+) of (?P<v_all>\d+) communications of rank (?P<k_rank>\d+) "
        "are on groups that nothing identifies",
        "SELECT count(*) AS all, count(*) FILTER (group_name IS NULL) AS unknown "
        f"{_OF_RANK} AND kind = 'communication'",
    ),
    Sentence(
        r"no communication kernels on rank (?P<k_rank>\d+)",
        f"SELECT count(*) {_OF_RANK} AND kind = 'communication' HAVING count(*) = 0",
    ),
    Sentence(
        r"(?P<v_pipelines>\d+) pipelines known, with (?P<v_staged>\d+) of the (?P<v_ranks>\d+) ranks read",
        """
        SELECT count(DISTINCT pipeline) AS pipelines,
            count(*) FILTER (stage IS NOT NULL AND rank IN (SELECT rank FROM traces WHERE run = $run)) AS staged,
            (SELECT count(*) FROM traces WHERE run = $run AND iteration = $iteration) AS ranks
        FROM topology WHERE run = $run AND iteration = $iteration""",
    ),
    *(
        Sentence(
            rf"(?P<v_held>\d+) of (?P<v_ranks>\d+) ranks hold {words}",
            f"SELECT count(*) AS ranks, count(*) FILTER ({column}) AS held FROM traces "
            "WHERE run = $run AND iteration = $iteration",
        )
        for words, column in (
            ("operators", "has_host_rows"),
            ("call stacks", "has_stacks"),
            ("described process groups", "has_groups"),
        )
    ),
    Sentence(r"no micro-batch is known on rank \d+", "SELECT 1 AS one WHERE NOT EXISTS (FROM microbatches)"),
    Sentence(
        r"(one rank, )?(?P<v_ranks>\d+) of (?P<v_world>\d+) ranks(: nobody to wait for is read)?",
        "SELECT count(*) AS ranks, max(world_size) AS world FROM traces WHERE run = $run AND iteration = $iteration",
    ),
    Sentence(
        r"(?P<v_ranks>\d+) of (?P<v_world>\d+) ranks: of no group that rank (?P<k_rank>\d+) communicates in are all "
        r"members there",
        """
        SELECT count(*) AS ranks, max(world_size) AS world FROM traces WHERE run = $run AND iteration = $iteration
        HAVING NOT EXISTS (
            FROM collectives WHERE run = $run AND iteration = $iteration AND rank = $rank AND fault IS NULL)""",
    ),
    Sentence(
        r"operators state their input sizes on (?P<v_shapes>\d+) of (?P<v_ranks>\d+) ranks(; capture record_shapes)?",
        "SELECT count(*) AS ranks, count(*) FILTER (has_shapes) AS shapes FROM traces "
        "WHERE run = $run AND iteration = $iteration",
    ),
    Sentence(
        r"describe the process groups: use torch 2.4 or newer",
    ),
)

_CLOCKS_SOLVED = (
    rf"{PLACE} · clocks solved for (?P<v_solved>\d+) of (?P<v_ranks>\d+) ranks( in (?P<v_components>\d+) components)?; "
    r"ends agree within ((?P<v_bound>[\d.]+) µs|(?P<v_low>[+-][\d.]+) to (?P<v_high>[+-][\d.]+) µs) \(p05 to p95\)"
)
_CLOCKS_RECORDED = rf"{PLACE} · clocks as recorded, not solved: (?P<v_reason>.*)"
_ONE_CLOCK = "one rank, so no clocks are compared"
_OF_CLOCKS = """
    SELECT count(*) AS ranks, count(*) FILTER (refusal IS NULL) AS solved,
        count(DISTINCT component) FILTER (refusal IS NULL) AS components,
        min(residual_p05_ns) FILTER (refusal IS NULL) / 1e3 AS low,
        max(residual_p95_ns) FILTER (refusal IS NULL) / 1e3 AS high,
        if(greatest(abs(low), abs(high)) < 0.1, 0.1, NULL) AS bound,
        if(solved = 0, arg_min(refusal, rank), NULL) AS reason
    FROM rank_clocks WHERE run = $run AND iteration = $iteration
"""
CLOCKS = (
    Sentence(_CLOCKS_SOLVED, f"{_OF_CLOCKS} HAVING solved > 0"),
    Sentence(_CLOCKS_RECORDED, f"{_OF_CLOCKS} HAVING solved = 0"),
    Sentence(rf"{PLACE} · {_ONE_CLOCK}", f"{_OF_CLOCKS} HAVING count(*) = 1"),
)

_TOTALS = """
    WITH known AS (
        SELECT * FROM pipelines WHERE run = $run AND iteration = $iteration AND bubble_ns IS NOT NULL
            AND step = (SELECT arg_max(step, span_ns) FROM pipelines WHERE run = $run AND iteration = $iteration)
    )
    SELECT sum(bubble_ns) / sum(span_ns) AS bubble,
        greatest(sum(fill_drain_ns), sum(imbalance_ns), sum(jitter_ns), sum(stall_ns)) AS ns,
        ns / sum(span_ns) AS largest, 2 * ns > sum(bubble_ns) AS most
    FROM known
"""
_OF_FIRST_STEP = """
    SELECT avg(idle_share) AS idle, min(idle_share) AS least, max(idle_share) AS most FROM pipelines
    WHERE run = $run AND iteration = $iteration AND pipeline = $pipeline
        AND step = (SELECT min(step) FROM pipelines WHERE run = $run AND iteration = $iteration)
"""
_FIRST_STEP = """
    SELECT exposed_ns / nullif(communication_ns, 0) AS exposed, exposed_ns / (window_end_ns - window_start_ns) AS share
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND rank = $rank AND window_name = 'step' AND dimension = 'all'
    ORDER BY step LIMIT 1
"""
_LONGER = rf"computes (?P<v_excess>{SHARE}) longer than the mean stage"
FIGURES = (
    Sentence(
        rf"Pipeline (?P<k_pipeline>\d+): stages idle (?P<v_idle>{SHARE}) of the time(, from (?P<v_least>{SHARE}) on "
        rf"stage \d+ to (?P<v_most>{SHARE}) on stage \d+)?( \(PARTIAL: \d+ of \d+ ranks\))?",
        _OF_FIRST_STEP,
    ),
    Sentence(
        rf"(?P<v_bubble>{SHARE}) of the pipelines' time is bubble, ((?P<b_most>most of it)|its largest part) [a-z ]+ "
        rf"\((?P<v_largest>{SHARE})\)",
        _TOTALS,
    ),
    Sentence(rf"stage (?P<v_stage>\d+) {_LONGER}", f"SELECT * FROM ({_SLOWEST}) WHERE excess >= 0.05 AND ranks > 1"),
    Sentence(
        rf"rank (?P<v_rank>\d+), the only one measured of stage (?P<v_stage>\d+), {_LONGER}",
        f"SELECT * FROM ({_SLOWEST}) WHERE excess >= 0.05 AND ranks = 1",
    ),
    Sentence(
        rf"Rank (?P<k_rank>\d+): (?P<v_exposed>{SHARE}) of communication is exposed, (?P<v_share>{SHARE}) of "
        r"(the step|step \d+)",
        _FIRST_STEP,
    ),
)

OVERLAP = (Sentence(rf"{PLACE} · overlap in each training step"),)

MISSING = (
    Sentence(
        r"traceviz: (?P<k_run>\w+)@(?P<k_iteration>\d+): no trace of ranks? [\d–, ]+; "
        r"the world has (?P<v_world>\d+) ranks",
        "SELECT max(world_size) AS world FROM traces WHERE run = $run AND iteration = $iteration "
        "HAVING max(world_size) > count(*)",
    ),
    Sentence(
        r"no trace of ranks? [\d–, ]+; the world has (?P<v_world>\d+) ranks",
        "SELECT max(world_size) AS world FROM traces WHERE run = $run AND iteration = $iteration "
        "HAVING max(world_size) > count(*)",
    ),
)

SENTENCES = (*EARLIER, *OVERLAP, *MISSING, *SUMMARY, *FOUND, *STAGES, *PIPELINES, *PERIODS, *DOCTOR, *CLOCKS, *FIGURES)

TABLES = (
    PrintedTable(
        rf"{PLACE} · kernel time by category, all kernels of the iteration \(sums of durations over {_RANKS}.*\)",
        """
        SELECT CAST(category AS VARCHAR) AS category, count(*) AS kernels, sum(duration_ns) / 1e6 AS ms,
            sum(duration_ns) / sum(sum(duration_ns)) OVER () AS share
        FROM kernels WHERE run = $run AND iteration = $iteration GROUP BY category""",
        {"category": "category", "operations": "kernels", "time ms": "ms", "share": "share"},
        ["category"],
    ),
    PrintedTable(
        rf"{PLACE} · communication by dimension in one training step \(unions, mean over {_RANKS}.*\), ms",
        f"""{_STEPS},
        by_rank AS (
            SELECT rank, dimension, avg(communication_ns) AS c, avg(hidden_ns) AS h, avg(exposed_ns) AS e
            FROM measured WHERE dimension <> 'all' GROUP BY ALL
        )
        SELECT dimension, sum(c) / ranks / 1e6 AS c, sum(h) / ranks / 1e6 AS h, sum(e) / ranks / 1e6 AS e,
            sum(h) / nullif(sum(c), 0) AS hidden
        FROM by_rank, (SELECT count(DISTINCT rank) AS ranks FROM measured) GROUP BY dimension, ranks""",
        {"dimension": "dimension", "communication": "c", "hidden": "h", "exposed": "e", "hidden share": "hidden"},
        ["dimension"],
    ),
    PrintedTable(
        r"Bubble and idle time of each stage, in one training step, ms",
        """
        SELECT step, pipeline, stage, rank, schedule, microbatches, (span_ns - ideal_ns) / span_ns AS bubble_share,
            idle_ns / span_ns AS idle_share, ideal_share,
            span_ns / 1e6 AS span, bubble_ns / 1e6 AS bubble, fill_drain_ns / 1e6 AS fill, idle_ns / 1e6 AS idle,
            imbalance_ns / 1e6 AS imbalance, jitter_ns / 1e6 AS jitter, stall_ns / 1e6 AS stall,
            warmup_idle_ns / 1e6 AS warmup, steady_idle_ns / 1e6 AS steady, cooldown_idle_ns / 1e6 AS cooldown
        FROM pipelines WHERE run = $run AND iteration = $iteration""",
        {
            **{name: name for name in ("step", "pipeline", "stage", "rank", "schedule")},
            **{"micro-batches": "microbatches", "span": "span", "bubble": "bubble", "fill/drain": "fill"},
            **{"imbalance": "imbalance", "jitter": "jitter", "stall": "stall", "idle": "idle"},
            **{"bubble share": "bubble_share", "ideal share": "ideal_share", "idle share": "idle_share"},
            **{"warm-up": "warmup", "steady": "steady", "cool-down": "cooldown"},
        },
        ["step", "pipeline", "stage"],
    ),
    PrintedTable(
        rf"{PLACE} · periods in one training step, ms",
        """
        WITH medians AS (
            SELECT pair, stage, step, rank, median(overlap_score) AS score FROM periods
            WHERE run = $run AND iteration = $iteration AND period_ns IS NOT NULL GROUP BY ALL
        ),
        worst AS (SELECT pair, stage, step, arg_min(rank, (score, rank)) AS rank FROM medians GROUP BY ALL)
        SELECT p.pair, p.stage, p.step, count(DISTINCT p.rank) AS ranks, count(*) AS units,
            min(unit) || '-' || max(unit) AS window, quantile_cont(period_ns, 0.5) / 1e6 AS p50,
            quantile_cont(period_ns, 0.9) / 1e6 AS p90, quantile_cont(period_ns, 0.99) / 1e6 AS p99,
            median(stage0_ns) / 1e6 AS stage0, median(stage1_ns) / 1e6 AS stage1,
            quantile_cont(overlap_score, 0.1) AS s10, quantile_cont(overlap_score, 0.5) AS s50,
            quantile_cont(overlap_score, 0.9) AS s90, any_value(worst.rank) AS worst
        FROM periods AS p JOIN worst ON p.pair = worst.pair AND p.stage IS NOT DISTINCT FROM worst.stage
            AND p.step IS NOT DISTINCT FROM worst.step
        WHERE run = $run AND iteration = $iteration AND period_ns IS NOT NULL GROUP BY ALL""",
        {
            **{name: name for name in ("pair", "stage", "step", "ranks", "units", "window")},
            **{"first": "stage0", "second": "stage1"},
            **{"period p50": "p50", "p90": "p90", "p99": "p99", "score p10": "s10", "p50": "s50", "p90#2": "s90"},
            "worst rank": "worst",
        },
        ["pair", "stage", "step"],
    ),
    PrintedTable(
        r"Communication by dimension, mean of (?P<v_windows>\d+) windows?, ms",
        """
        SELECT dimension, sum(communication_ns) / 1e6 / count AS communication, sum(hidden_ns) / 1e6 / count AS hidden,
            sum(exposed_ns) / 1e6 / count AS exposed, sum(hidden_ns) / sum(communication_ns) AS share
        FROM overlap, (
            SELECT count(*) AS count FROM overlap
            WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND dimension = 'all'
        )
        WHERE run = $run AND iteration = $iteration AND window_name = 'step'
        GROUP BY dimension, count HAVING sum(communication_ns) > 0""",
        {
            **{name: name for name in ("dimension", "communication", "hidden", "exposed")},
            "hidden share": "share",
        },
        ["dimension"],
        """SELECT count(*) AS windows FROM overlap
        WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND dimension = 'all'""",
    ),
    PrintedTable(
        "Ranks, (those at fault first, then the most exposed|the most exposed first), ms",
        """
        SELECT rank, step, device, (window_end_ns - window_start_ns) / 1e6 AS window_ms,
            hidden_ns / nullif(communication_ns, 0) AS share,
            hidden_ns / nullif(least(compute_ns, communication_ns), 0) AS over_min,
            compute_ns / 1e6 AS compute, communication_ns / 1e6 AS communication, hidden_ns / 1e6 AS hidden,
            exposed_ns / 1e6 AS exposed, idle_ns / 1e6 AS idle
        FROM overlap WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND dimension = 'all'""",
        {
            **{name: name for name in ("rank", "step", "communication", "hidden", "exposed")},
            **{"GPU": "device", "computation": "compute"},
            **{"window": "window_ms", "idle": "idle", "hidden share": "share", "hidden / min": "over_min"},
        },
        ["rank", "GPU", "step"],
    ),
    PrintedTable(
        r"(?P<k_run>\w+): iterations, the longest step over the ranks; means over ranks and steps of the rest, ms",
        """
        SELECT iteration, step_ns / 1e6 AS step, compute_ns / 1e6 AS compute, exposed_ns / 1e6 AS exposed,
            idle_ns / 1e6 AS idle, hidden_share, longest_computation_rank, NULL AS night,
            model_flops_per_gpu / step_ns * 1e9 / peak_flops_per_s AS mfu,
            iterations.ranks || if(expected_ranks > iterations.ranks, ' of ' || expected_ranks, '')
                || if(partial, ' (partial)', '') AS ranks,
            CASE WHEN covered_ranks = lag(covered_ranks) OVER w THEN step_ns / lag(step_ns) OVER w - 1 END AS change
        FROM iterations LEFT JOIN runs USING (run, iteration) WHERE run = $run WINDOW w AS (ORDER BY iteration)""",
        {
            **{"iteration": "iteration", "ranks": "ranks", "step": "step", "change": "change", "idle": "idle"},
            **{"computation": "compute", "exposed": "exposed", "hidden share": "hidden_share", "night": "night"},
            **{"longest computation": "longest_computation_rank", "MFU": "mfu"},
        },
        ["iteration"],
    ),
    *(
        PrintedTable(
            title,
            """
            SELECT *, offset_ns / 1e3 AS offset_us, residual_p05_ns / 1e3 AS p05, residual_p95_ns / 1e3 AS p95
            FROM rank_clocks WHERE run = $run AND iteration = $iteration""",
            {
                **{name: name for name in ("rank", "component", "matches")},
                **{"offset µs": "offset_us", "drift ppm": "drift_ppm", "p05 µs": "p05", "p95 µs": "p95"},
                **{"why": "refusal", "early receives": "early_receives"},
            },
            ["rank"],
            said=_OF_CLOCKS,
        )
        for title in (_CLOCKS_SOLVED, _CLOCKS_RECORDED, rf"{PLACE} · {_ONE_CLOCK}")
    ),
)
