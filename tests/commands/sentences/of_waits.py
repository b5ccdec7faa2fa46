"""What ``waits`` and the wait map print, each with the SQL that its numbers are those of.

Arrivals and waits are computed anew, from the starts and durations in ``kernels`` and the offsets in ``rank_clocks``.
Which kernels meet in one communication (``communication``), whether that can be believed (``fault``) and by which
measure (``clocks``) an algorithm decides that SQL cannot express; so it does of the parts of a wait (``late_*_ns``).
These are read, and held against bounds: see ``_BOUNDED``.
"""

from __future__ import annotations

from tests.commands.sentences.of_commands import MS, PERCENT, SHARE
from tests.commands.sentences.printed import PrintedTable, Sentence

_TOLD = """
    WITH RECURSIVE parts AS (
        SELECT rank, communication, fault, t.stage, k.step, start_ns, k.duration_ns AS ns,
            CAST(collectives.dimension AS VARCHAR) AS dimension,
            late_compute_ns, late_communication_ns, late_memory_ns, late_host_ns, late_idle_ns,
            late_since_ns, CAST(late_category AS VARCHAR) AS late_category, clocks, last_transfer_ns,
            CASE clocks WHEN 'durations' THEN -k.duration_ns WHEN 'solved' THEN start_ns - offset_ns
                - CAST(round_even(coalesce(drift_ppm, 0) * 1e-6 * (start_ns - reference_ns),
                    0) AS BIGINT) END AS arrival
        FROM collectives JOIN kernels AS k USING (run, iteration, rank, kernel_id)
            JOIN rank_clocks USING (run, iteration, rank) LEFT JOIN topology AS t USING (run, iteration, rank)
        WHERE run = $run AND iteration = $iteration
    ),
    told AS (
        SELECT *, max(arrival) OVER meeting - arrival AS wait, arg_min(rank, (-arrival, rank)) OVER meeting AS late
        FROM parts WHERE arrival IS NOT NULL WINDOW meeting AS (PARTITION BY communication)
    )
"""
"""parts: each communication kernel, with its arrival on a clock that it shares with those that it meets; told: those
whose wait is known, and the last rank to arrive."""

_KERNELS = (
    "(SELECT count(*) FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'communication') AS kernels"
)
_CERTAIN = "(SELECT count(*) FROM told WHERE fault IS NULL) AS certain"

_WITHIN = f"""
    {_TOLD},
    within AS (
        SELECT * FROM told WHERE fault IS NULL AND (dimension IN ('tp', 'cp', 'ep', 'etp', 'dp', 'edp')
            OR dimension IN ('unknown', 'world') AND stage IS NULL)
    ),
    longest AS (
        SELECT late AS rank, step, wait, if(late_host_ns >= 20000, late_host_ns, 0) AS host, late_category,
            least(wait, greatest(0, late_compute_ns + late_memory_ns + host)) AS own, communication,
            late_since_ns AS since, (
                SELECT any_value(start_ns) FROM parts
                WHERE parts.rank = within.late AND parts.communication = within.communication
            ) AS came
        FROM within WHERE wait > 0 QUALIFY row_number() OVER (PARTITION BY communication ORDER BY wait DESC,
            rank DESC) = 1
    ),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY rank ORDER BY came, communication) AS n FROM longest
    ),
    windows AS (
        SELECT *, least(n - 1, (
            SELECT count(*) FROM numbered AS b WHERE b.rank = a.rank AND b.came <= a.since
        )) AS before FROM numbered AS a
    ),
    -- One delay that several wait for counts once: what disjoint times hold at most, of the first n windows.
    most AS (
        SELECT DISTINCT rank, CAST(0 AS BIGINT) AS n, [CAST(0 AS BIGINT)] AS waits, [CAST(0 AS BIGINT)] AS owns,
            [CAST(0 AS BIGINT)] AS hosts FROM longest
        UNION ALL
        SELECT w.rank, w.n, list_append(waits, greatest(waits[w.n], waits[before + 1] + wait)),
            list_append(owns, greatest(owns[w.n], owns[before + 1] + own)),
            list_append(hosts, greatest(hosts[w.n], hosts[before + 1] + host))
        FROM most JOIN windows AS w ON w.rank = most.rank AND w.n = most.n + 1
    ),
    once AS (
        SELECT rank, step, late_category, waits[n + 1] - waits[n] AS wait, owns[n + 1] - owns[n] AS own,
            hosts[n + 1] - hosts[n] AS host
        FROM most JOIN windows USING (rank, n)
    ),
    step AS (
        SELECT max(window_end_ns - window_start_ns) AS step_ns FROM overlap
        WHERE run = $run AND iteration = $iteration AND window_name = 'step'
    ),
    categories AS (
        SELECT rank, arg_max(late_category, ns) AS doing
        FROM (SELECT rank, late_category, sum(wait) AS ns FROM once GROUP BY ALL) GROUP BY rank
    ),
    sums AS (
        SELECT rank, count(*) AS last, sum(wait) AS delay, sum(own) AS own, sum(host) AS host,
            count(*) FILTER (host > 0) AS times, max(in_step) AS most
        FROM (SELECT *, sum(own) OVER (PARTITION BY rank, step) AS in_step FROM once) GROUP BY rank
    ),
    ranks AS (
        SELECT rank, communications, coalesce(last, 0) AS last, coalesce(delay, 0) AS delay, coalesce(own, 0) AS own,
            if(2 * coalesce(host, 0) > own, 'host', doing) AS doing, most / step_ns AS share,
            share >= if(doing = 'host' AND (times >= 3 OR host >= 1000000), 0.01, 0.05) AS lasting
        FROM (SELECT DISTINCT rank FROM parts)
            LEFT JOIN (SELECT rank, count(*) AS communications FROM within GROUP BY rank) USING (rank)
            LEFT JOIN sums USING (rank) LEFT JOIN categories USING (rank), step
    ),
    judged AS (
        SELECT *, lasting AND own >= 3 * (SELECT quantile_cont(own, 0.25) FROM ranks)
            AND own >= 0.2 * (SELECT max(own) FROM ranks) AS blamed
        FROM ranks
    )
"""
"""within: what counts, among ranks that do the same work; judged: how late each rank was, and whether it is blamed."""

# The own part of a delay is what charge_waits found; it is held against what must hold of the parts: all five of them
# are the wait, and between stages, which do different work, what the late rank computed while the other waited is no
# more than its computation kernels lasted then.
_BOUNDED = """
    late_compute_ns + late_communication_ns + late_memory_ns + late_host_ns + late_idle_ns = wait
    AND (dimension <> 'pp' OR late_compute_ns BETWEEN 0 AND (
        SELECT coalesce(sum(least(k.start_ns + k.duration_ns, other.start_ns) - greatest(k.start_ns,
            other.start_ns - told.wait)), 0)
        FROM kernels AS k, parts AS other
        WHERE k.run = $run AND k.iteration = $iteration AND k.rank = told.late AND k.kind = 'computation'
            AND other.rank = told.late AND other.communication = told.communication
            AND k.start_ns < other.start_ns AND k.start_ns + k.duration_ns > other.start_ns - told.wait))
"""

_MATRIX = f"""
    {_TOLD},
    matrix AS (
        SELECT rank, late, dimension, count(*) AS waits, sum(wait) / 1e6 AS wait, bool_and({_BOUNDED}) AS bounded,
            if(bounded, sum(late_compute_ns) / 1e6, NULL) AS compute, sum(late_communication_ns) / 1e6 AS communication,
            sum(late_memory_ns) / 1e6 AS memory, sum(late_host_ns) / 1e6 AS host, sum(late_idle_ns) / 1e6 AS idle
        FROM told WHERE wait > 0 AND fault IS NULL GROUP BY rank, late, dimension
    )
"""

_HIDDEN = f"""
    {_TOLD},
    begun AS (
        SELECT rank, start_ns AS a, start_ns + duration_ns AS b,
            coalesce(a > max(b) OVER (PARTITION BY rank ORDER BY a, b ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                true) AS new
        FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'computation'
    ),
    islands AS (SELECT *, sum(CAST(new AS INTEGER)) OVER (PARTITION BY rank ORDER BY a, b) AS island FROM begun),
    computation AS (SELECT rank, min(a) AS a, max(b) AS b FROM islands GROUP BY rank, island),
    beside AS (
        SELECT rank, told.start_ns AS start, told.communication, any_value(dimension) AS dimension, any_value(ns) AS ns,
            any_value(wait) AS wait,
            coalesce(sum(greatest(0, least(b, start_ns + wait) - greatest(a, start_ns))), 0) AS hidden_wait,
            coalesce(sum(greatest(0, least(b, start_ns + ns) - greatest(a, start_ns + wait))), 0) AS hidden_transfer
        FROM told LEFT JOIN computation USING (rank) WHERE fault IS NULL GROUP BY rank, start_ns, communication
    )
"""

_LINKS = """
    WITH rows AS (
        SELECT c.rank, communication, dimension, operation, c.scope, bytes, last_transfer_ns AS ns,
            coalesce(group_name, '') || '/' || min(c.rank) OVER (PARTITION BY communication) AS members
        FROM collectives AS c WHERE run = $run AND iteration = $iteration AND fault IS NULL AND last_transfer_ns > 0
            AND coalesce(bytes, 65536) >= 65536
    ),
    ratios AS (
        SELECT rank, scope, dimension, members, ns / median(ns) OVER kind AS ratio FROM rows
        WINDOW kind AS (PARTITION BY dimension, operation, scope, bytes)
        QUALIFY count(DISTINCT members) OVER kind > 1
    ),
    typical AS (SELECT rank, scope, dimension, median(ratio) AS ratio FROM ratios GROUP BY ALL),
    slow AS (
        SELECT rank, scope, min(ratio) AS ratio FROM typical GROUP BY rank, scope
        HAVING count(*) > 1 AND min(ratio) >= 1.5
    ),
    always AS (
        SELECT a.rank AS rank, b.rank AS other, a.scope AS scope FROM slow AS a JOIN slow AS b
            ON a.scope IS NOT DISTINCT FROM b.scope AND a.rank <> b.rank
        WHERE NOT EXISTS (FROM ratios AS mine WHERE mine.rank = a.rank AND mine.scope IS NOT DISTINCT FROM a.scope
            AND mine.members NOT IN (SELECT members FROM ratios WHERE rank = b.rank))
    ),
    elsewhere AS (
        SELECT slow.rank, slow.scope, bool_or(high.ratio >= 1.5) AS high
        FROM slow JOIN (SELECT rank, scope, min(ratio) AS ratio FROM typical GROUP BY rank, scope) AS high
            ON high.rank = slow.rank AND high.scope <> slow.scope
        GROUP BY ALL
    ),
    tied AS (
        SELECT slow.*, coalesce(e.high, false) AS high, (SELECT list(other ORDER BY other) FROM always AS a
            WHERE a.rank = slow.rank AND a.scope IS NOT DISTINCT FROM slow.scope) AS meets
        FROM slow LEFT JOIN elsewhere AS e USING (rank, scope)
    ),
    judged AS (
        -- Of those that only meet each other, the one that is slow in its other scope alone explains all.
        SELECT *, scope = 'intra_node' AS inside, scope = 'inter_node' AS outside, CASE WHEN high AND
            NOT EXISTS (FROM tied AS t WHERE t.scope = tied.scope AND t.high AND list_contains(tied.meets, t.rank))
            THEN NULL ELSE meets END AS others
        FROM tied
    )
"""

_LOADS = """
    WITH sizes AS (
        SELECT rank, communication, k.in_elements AS a, k.out_elements AS b
        FROM collectives JOIN kernels AS k USING (run, iteration, rank, kernel_id)
        WHERE run = $run AND iteration = $iteration AND operation = 'all_to_all' AND communication IS NOT NULL
            AND k.in_elements IS NOT NULL AND k.out_elements IS NOT NULL
    ),
    sides AS (
        SELECT *, if(max(a) OVER meeting - min(a) OVER meeting > max(b) OVER meeting - min(b) OVER meeting, a,
            b) AS taken
        FROM sizes WINDOW meeting AS (PARTITION BY communication)
    ),
    means AS (SELECT *, avg(taken) OVER (PARTITION BY communication) AS mean FROM sides)
    SELECT rank, sum(taken) / sum(mean) AS load FROM means GROUP BY rank ORDER BY load DESC, rank LIMIT 1
"""

_NOBODY = r"[nN]o rank is to blame for the waiting of its stage's peers"
_NO_BLAME = "NOT EXISTS (FROM judged WHERE blamed) AND EXISTS (FROM within)"
_UNKNOWN = r"[nN]obody can be blamed: no wait among peers of one stage is known"
_DOING = r"(?P<b_meanwhile>meanwhile mostly )?(?P<v_doing>[\w ]+)"
_OF_BLAMED = f"""{_WITHIN}
    SELECT own, doing, doing LIKE '%communication%' AS meanwhile, share, last, communications,
        (SELECT count(DISTINCT step) > 1 FROM within) AS several,
        (SELECT count(*) - 1 FROM judged WHERE blamed) AS more FROM judged
    WHERE rank = $rank AND blamed
"""

WAITS = (
    Sentence(
        rf"rank (?P<k_rank>\d+) delayed its peers by (?P<v_own>{MS}) of its own \({_DOING}\), (?P<b_several>up to )?"
        rf"(?P<v_share>{PERCENT}) of (?:a|the) step, last in (?P<v_last>\d+) of (?P<v_communications>\d+) "
        r"communications; a sum of delays, not what fixing it would save(?: \(traceviz waits\))?",
        _OF_BLAMED,
    ),
    Sentence(
        r"(?P<v_more>[\d,]+) more ranks delayed their peers(?: \(traceviz waits\))?",
        f"{_WITHIN} SELECT count(*) - 5 AS more FROM judged WHERE blamed HAVING count(*) > 6",
    ),
    Sentence(
        _NOBODY, f"{_WITHIN} SELECT * FROM (SELECT {_CERTAIN}, {_KERNELS} WHERE {_NO_BLAME}) WHERE certain = kernels"
    ),
    Sentence(
        rf"{_NOBODY} in the (?P<v_certain>\d+) of (?P<v_kernels>\d+) communication kernels whose waits are certain",
        f"{_WITHIN} SELECT * FROM (SELECT {_CERTAIN}, {_KERNELS} WHERE {_NO_BLAME}) WHERE certain < kernels",
    ),
    Sentence(_UNKNOWN, f"{_WITHIN} SELECT 1 AS one WHERE NOT EXISTS (FROM within)"),
    Sentence(
        "no rank can be compared with peers of its stage: no kernel ran equally often on all ranks of a stage .*",
        """
        WITH work AS (
            SELECT rank, stage, step, phase, name, count(*) AS kernels FROM kernels
            WHERE run = $run AND iteration = $iteration AND kind = 'computation' GROUP BY ALL
        ),
        items AS (
            SELECT stage FROM work GROUP BY stage, step, phase, name
            HAVING count(*) > 1 AND min(kernels) = max(kernels)
                AND count(*) = (SELECT count(DISTINCT rank) FROM work AS w WHERE w.stage IS NOT DISTINCT
                    FROM work.stage)
        )
        SELECT count(*) FROM items HAVING count(*) = 0""",
    ),
    Sentence(
        r"waits of (?P<v_kernels>\d+) communication kernels come from durations, which need no clock: .*",
        f"{_TOLD} SELECT count(*) AS kernels FROM told WHERE clocks = 'durations' AND fault IS NULL "
        "AND wait BETWEEN 0 AND ns",
    ),
    Sentence(
        r"no wait is known for (?P<v_kernels>\d+) matched communication kernels: neither solved clocks nor .*",
        f"""{_TOLD}
        SELECT count(*) AS kernels FROM parts WHERE arrival IS NULL
            AND communication IN (SELECT communication FROM parts GROUP BY communication HAVING count(*) > 1)""",
    ),
    # What is matched wholly is so by SQL, too: as many ranks meet as the traces say that the group has.
    Sentence(
        r"(?P<v_kernels>\d+) communication kernels are not matched, or not wholly: (?P<v_kinds>[\w, ]+) \(--json .*",
        """
        WITH meetings AS (
            SELECT fault, communication, coalesce(c.members, k.group_size) AS members,
                count(*) OVER (PARTITION BY communication) AS met
            FROM collectives AS c JOIN kernels AS k USING (run, iteration, rank, kernel_id)
            WHERE run = $run AND iteration = $iteration
        )
        SELECT count(*) FILTER (communication IS NULL OR met <> members) AS kernels,
            string_agg(DISTINCT replace(CAST(fault AS VARCHAR), '_', ' '), ', '
                ORDER BY replace(CAST(fault AS VARCHAR), '_', ' ')) AS kinds
        FROM meetings""",
    ),
    # Transfers are those of the last to arrive, by the measure of each communication.
    Sentence(
        r"rank (?P<k_rank>\d+) has slow links(?P<k_where> inside its node| to other nodes|): its transfers take "
        r"(?P<v_ratio>[\d.]+) times the usual",
        f"""{_LINKS} SELECT * FROM judged WHERE rank = $rank AND others IS NULL AND $where =
            CASE WHEN inside THEN ' inside its node' WHEN outside THEN ' to other nodes' ELSE '' END""",
    ),
    Sentence(
        r"ranks (?P<k_rank>\d+), (?P<v_other>\d+) meet over slow links((?P<b_inside> inside its node)|"
        r"(?P<b_outside> to other nodes))?, and whose are slow is unknown: their transfers take "
        r"(?P<v_ratio>[\d.]+) times the usual",
        f"{_LINKS} SELECT *, others[1] AS other FROM judged WHERE rank = $rank AND len(others) = 1 "
        "AND EXISTS (FROM always WHERE rank = others[1] AND other = $rank)",
    ),
    Sentence(
        r"experts of rank (?P<v_rank>\d+) take (?P<v_load>[\d.]+) times the mean of their peers",
        f"SELECT * FROM ({_LOADS}) WHERE load >= 1.2",
    ),
    Sentence(
        r"((?P<k_run>\w+) (?P<k_iteration>\d+)|who is late is not known): (?P<v_uncertain>\d+) of (?P<v_kernels>\d+) "
        r"communication kernels have no certain wait(; whom they waited for is not known|: only (?P<v_read>\d+) of the "
        r"(?P<v_members>\d+) ranks that take part were read|: .*?)( \(traceviz waits\))?",
        f"""{_TOLD}
        SELECT kernels, kernels - certain AS uncertain, read, members
        FROM (SELECT {_CERTAIN}, {_KERNELS}), (SELECT count(DISTINCT rank) AS read, max(members) AS members
            FROM collectives WHERE run = $run AND iteration = $iteration)""",
    ),
)

_MAP = f"""{_WITHIN}
    SELECT *, kernels > certain AS partial FROM (
        SELECT sum(wait) / sum(ns) AS share, sum(wait) AS ns, count(*) AS certain, {_KERNELS} FROM told
            WHERE fault IS NULL)
"""
WAIT_MAP = (
    Sentence(
        r"Rank (?P<k_rank>\d+) delayed its peers by (?P<v_own>[\d.]+ \w+) of its own \("
        rf"{_DOING}\), last in "
        r"(?P<v_last>\d+) of (?P<v_communications>\d+) communications(, and (?P<v_more>\d+) more)?",
        _OF_BLAMED,
    ),
    Sentence(
        rf"(?P<v_share>{SHARE}) of (communication time|(?P<b_partial>the time of communication whose wait is certain)) "
        r"is waiting, (?P<v_ns>[\d.]+ \w+) in all",
        _MAP,
    ),
)

_COSTS = """
    WITH costs AS (
        SELECT rank, CAST(cause AS VARCHAR) AS cause, sum(cost_ns) AS cost, sum(direct_ns) AS direct,
            sum(passed_on_ns) AS passed
        FROM delay_costs WHERE run = $run AND iteration = $iteration GROUP BY rank, cause
    ),
    gains AS (
        SELECT rank, sum(gain_ns) AS gain FROM what_if
        WHERE run = $run AND iteration = $iteration AND edit IN ('fix_rank', 'fix_link') AND refusal IS NULL
        GROUP BY rank, edit QUALIFY gain = max(gain) OVER (PARTITION BY rank)
    )
"""

WAIT_TABLES = (
    PrintedTable(
        r"Late ranks, those at fault first \(longest wait for each communication among peers of a stage, summed\), ms",
        f"""{_WITHIN}
        SELECT rank, coalesce(communications, 0) AS communications, if(communications > 0, last, NULL) AS last,
            if(communications > 0, delay / 1e6, NULL) AS delay, if(communications > 0, own / 1e6, NULL) AS own,
            if(communications > 0, coalesce(share, 0), NULL) AS share, doing,
            if(communications > 0, if(coalesce(blamed, false), 'yes', 'no'), NULL) AS blamed
        FROM judged""",
        {
            **{name: name for name in ("rank", "communications", "doing")},
            **{
                "last in": "last",
                "delay": "delay",
                "own": "own",
                "own, of step": "share",
                "late on its own": "blamed",
            },
        },
        ["rank"],
    ),
    PrintedTable(
        r"First causes of waits, through chains; cost: waits of (?:all ranks|the ranks read), gain: saved by fixing "
        r"the rank or its links, ms",
        f"""{_COSTS} SELECT *, cost / (SELECT sum(cost) FROM costs) AS share, cost / 1e6 AS cost_ms,
            direct / 1e6 AS direct_ms, passed / 1e6 AS passed_ms, gain / 1e6 AS gain_ms
        FROM costs LEFT JOIN gains USING (rank)""",
        {
            **{"rank": "rank", "cause": "cause", "cost": "cost_ms", "of all waits": "share"},
            **{"direct": "direct_ms", "passed on": "passed_ms", "gain": "gain_ms"},
        },
        ["rank", "cause"],
    ),
    PrintedTable(
        "Communication by dimension, sums over the kernels whose waits are known, ms",
        f"""{_HIDDEN}
        SELECT dimension, count(*) AS kernels, sum(hidden_wait) / 1e6 AS hidden_wait,
            sum(wait - hidden_wait) / 1e6 AS exposed_wait, sum(hidden_transfer) / 1e6 AS hidden_transfer,
            sum(ns - wait - hidden_transfer) / 1e6 AS exposed_transfer
        FROM beside GROUP BY dimension""",
        {
            **{"dimension": "dimension", "kernels": "kernels", "hidden wait": "hidden_wait"},
            **{"exposed wait": "exposed_wait", "hidden transfer": "hidden_transfer"},
            "exposed transfer": "exposed_transfer",
        },
        ["dimension"],
    ),
    PrintedTable(
        r"Who waited for whom, the longest waits first; then what the late rank did for longer than who waited, ms",
        f"{_MATRIX} FROM matrix",
        {
            **{name: name for name in ("rank", "dimension", "waits", "wait")},
            **{"computation": "compute", "other communication": "communication", "memory operations": "memory"},
            **{"late rank": "late", "its host": "host", "idle": "idle"},
        },
        ["rank", "late rank", "dimension"],
    ),
)
