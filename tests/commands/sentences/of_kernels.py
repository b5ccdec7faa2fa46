"""What ``traceviz kernels`` may print, with the SQL that its numbers are those of."""

from __future__ import annotations

from tests.commands.sentences.of_commands import MS, PERCENT, PLACE, SHARE
from tests.commands.sentences.printed import PrintedTable, Sentence

_HERE = "FROM operations WHERE run = $run AND iteration = $iteration"
_OWN = f"{_HERE} AND operation_class <> 'communication'"

KERNELS = (
    Sentence(
        rf"{PLACE} · kernel time (?P<v_ns>{MS}) without communication"
        rf"(?:, (?P<v_known>{PERCENT}) of it with a roofline)?",
        f"""
        SELECT sum(duration_ns) AS ns,
            (SELECT coalesce(sum(kernel_ns), 0) {_OWN} AND roofline_ns IS NOT NULL) / ns AS known
        FROM kernels WHERE run = $run AND iteration = $iteration AND kind <> 'communication'""",
    ),
    Sentence(
        rf"Perfect kernels would save (?P<v_ns>{MS}) at most, all ranks together",
        f"SELECT sum(greatest(kernel_ns - roofline_ns, 0)) AS ns {_HERE}",
    ),
    Sentence(
        r"Peaks used: (?P<v_peaks>.+)",
        f"""
        SELECT gpu || format(' {{:.2f}} TB/s', any_value(memory_bytes_per_s) / 1e12) || coalesce(string_agg(
            DISTINCT format(', {{}} {{:.1f}} TFLOP/s', number_format, peak_flops_per_s / 1e12), ''
        ) FILTER (peak_flops_per_s IS NOT NULL), '') AS peaks
        {_HERE} AND roofline_ns IS NOT NULL GROUP BY gpu""",
    ),
)

SAVINGS = Sentence(
    r"what overlap saves of (?P<k_dimension>.+?) is unknown in (?P<v_unknown>\d+) of (?P<v_windows>\d+) windows? "
    r"\(table overlap_savings\): .+",
    """
    SELECT count(*) AS windows, count(*) - count(net_ns) AS unknown FROM overlap_savings
    WHERE run = $run AND iteration = $iteration AND window_name = 'step'
        AND lower($dimension) = if(dimension = 'all', 'all communication',
            replace(replace(dimension, 'grad_', 'gradient_'), '_', ' '))
    GROUP BY dimension HAVING unknown > 0""",
)

SAVINGS_TABLE = PrintedTable(
    r"What overlap saves, mean of the windows that show it: hidden communication less extra computation, ms",
    """
    SELECT dimension, count(*) AS windows, avg(hidden_ns) / 1e6 AS hidden,
        avg(extra_ns) / 1e6 AS extra, avg(net_ns) / 1e6 AS net,
        greatest(
            coalesce(2 * stddev_samp(net_ns) / sqrt(count(*)), 0),
            sqrt(sum(((net_high_ns - net_low_ns) / 2) ** 2)) / count(*)
        ) / 1e6 AS error,
        net - error AS low, net + error AS high, CASE WHEN low > 0 THEN 'saves'
            WHEN high < 0 THEN 'costs more than it saves' ELSE 'unsure' END AS verdict
    FROM overlap_savings
    WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND net_ns IS NOT NULL GROUP BY dimension""",
    {
        **{name: name for name in ("dimension", "windows", "hidden", "net", "verdict")},
        **{"extra computation": "extra", "at least": "low", "at most": "high"},
    },
    ["dimension"],
)

_GROUPS = """
    sum(kernel_ns) / 1e6 AS ms, coalesce(sum(kernel_ns) FILTER (roofline_ns IS NULL), 0) / 1e6 AS unknown,
    if(count(roofline_ns) = count(*), sum(roofline_ns) / sum(kernel_ns), NULL) AS efficiency,
    sum(headroom_ns) / 1e6 AS headroom"""
_OF_GROUPS = {"time": "ms", "without roofline": "unknown", "efficiency": "efficiency", "headroom": "headroom"}


def _short(column: str, most: int) -> str:
    return f"CASE WHEN length({column}) > {most} THEN {column}[:{most - 1}] || '…' ELSE {column} END"


_SIZES = _short("coalesce('of ' || forward_shapes, operations.shapes)", 48)


def _operations(first: str, condition: str) -> PrintedTable:
    return PrintedTable(
        rf"Operations, the {first} first, all ranks together, ms",
        f"""
        WITH told AS (
            SELECT {_short("coalesce(operation, kernel)", 90)} AS name, {_SIZES} AS shapes, phase,
                number_format AS format, sum(count) AS calls, sum(kernel_ns) / sum(sum(kernel_ns)) OVER () AS share,
                if(count(flops) = count(*), sum(flops * count) / sum(kernel_ns) / 1e3, NULL) AS tflops,
                if(count(bytes) = count(*), sum(bytes * count) / sum(kernel_ns) / 1e3, NULL) AS tb, max(bound) AS bound,
                -- Long names of kernels differ in what is not printed, but in their times, too.
                printf('%.3f', sum(kernel_ns) / 1e6) AS text, {_GROUPS}
            {_OWN} GROUP BY coalesce(operation, kernel), operations.shapes, forward_shapes, phase, number_format
        )
        FROM told {condition}""",
        {
            **{name: name for name in ("shapes", "phase", "format", "calls", "share", "efficiency", "bound")},
            **{"operation": "name", "time": "text", "TFLOP/s": "tflops", "TB/s": "tb", "headroom": "headroom"},
        },
        ["operation", "shapes", "phase", "format", "calls", "time"],
    )


KERNELS_TABLES = (
    SAVINGS_TABLE,
    PrintedTable(
        r"Operations beside communication and alone, the most extra time first, all ranks together",
        f"""
        SELECT {_short("coalesce(operation, contention.kernel)", 90)} AS name, {_SIZES} AS shapes, phase,
            {_short("contention.kernel", 48)} AS kernel, sum(alone) AS alone,
            sum(alone * alone_ns) / sum(alone) / 1e3 AS alone_us, sum(beside) AS beside,
            sum(beside * beside_ns) / sum(beside) / 1e3 AS beside_us,
            sum(beside * beside_ns) / sum(beside * alone_ns) AS slow, printf('%.3f', sum(extra_ns) / 1e6) AS extra
        FROM contention JOIN operations USING (run, iteration, rank, operation_id)
        WHERE run = $run AND iteration = $iteration AND contention.slowdown IS NOT NULL
        GROUP BY coalesce(operation, contention.kernel), operations.shapes, forward_shapes, phase,
            contention.kernel""",
        {
            **{
                "operation": "name",
                "kernel": "kernel",
                "shapes": "shapes",
                "phase": "phase",
                "alone": "alone",
                "each µs": "alone_us",
            },
            **{"beside": "beside", "each µs#2": "beside_us", "slow-down": "slow", "extra ms": "extra"},
        },
        ["operation", "kernel", "shapes", "phase", "alone", "beside", "extra ms"],
    ),
    _operations("longest", ""),
    _operations("most headroom", "WHERE headroom > 0"),
    PrintedTable(
        r"Innermost modules, the longest first, all ranks together, ms",
        f"""
        SELECT regexp_extract(module_path, '([^/]*?)(_[0-9]+)?$', 1) AS module, {_GROUPS} FROM (
            SELECT module_path, duration_ns AS kernel_ns, roofline_ns / operations.kernels AS roofline_ns,
                headroom_ns / operations.kernels AS headroom_ns
            FROM kernels LEFT JOIN operations USING (run, iteration, rank, operation_id)
            WHERE run = $run AND iteration = $iteration AND kind <> 'communication'
        ) GROUP BY module""",
        {"module": "module", **_OF_GROUPS},
        ["module"],
    ),
    PrintedTable(
        r"Classes, the longest first, all ranks together, ms",
        f"SELECT operation_class AS class, {_GROUPS} {_HERE} GROUP BY class",
        {"class": "class", **_OF_GROUPS},
        ["class"],
    ),
    PrintedTable(
        r"The same work on each rank, times as long as on the median of its peers; the slowest first",
        """
        PIVOT (
            SELECT rank, rank_speeds.stage, work_class, class_speeds.ratio, kind
            FROM class_speeds JOIN rank_speeds USING (run, iteration, rank)
            WHERE run = $run AND iteration = $iteration
        ) ON work_class IN ('products', 'attention', 'memory_bound', 'transfers') USING max(ratio)""",
        {
            **{name: name for name in ("rank", "stage", "products", "attention", "transfers", "kind")},
            "memory-bound": "memory_bound",
        },
        ["rank"],
    ),
    PrintedTable(
        r"Kernel time without a roofline",
        f"SELECT reason, sum(kernel_ns) / 1e6 AS ms {_OWN} AND roofline_ns IS NULL GROUP BY reason HAVING ms > 0",
        {"reason": "reason", "time ms": "ms"},
        ["reason"],
    ),
)

_STEP = "FROM utilization WHERE run = $run AND iteration = $iteration AND step = $step"
_JOB = f"{_STEP} AND part = 'job'"

_PATH = "regexp_replace(module_path, 'Layer_[0-9]+', 'Layer', 'g')"
MODULES = (
    Sentence(
        rf"{PLACE} · kernel time (?P<v_ns>{MS}) in modules, without communication",
        """
        SELECT sum(duration_ns) AS ns FROM kernels
        WHERE run = $run AND iteration = $iteration AND kind <> 'communication' AND module_path IS NOT NULL""",
    ),
)
MODULES_TABLES = (
    PrintedTable(
        r"Modules, each with all that is in it, all ranks together, ms",
        f"""
        WITH places AS (
            SELECT kernels.*, string_split({_PATH}, '/') AS path, flops * count / operations.kernels AS flops,
                roofline_ns / operations.kernels AS roof, headroom_ns / operations.kernels AS head,
                coalesce(exposed_wait_ns, 0) + exposed_transfer_ns AS exposed
            FROM kernels LEFT JOIN operations USING (run, iteration, rank, operation_id)
                LEFT JOIN collectives USING (run, iteration, rank, kernel_id)
            WHERE run = $run AND iteration = $iteration AND module_path IS NOT NULL
        ), every AS (
            SELECT *, unnest(range(1, len(path) + 1)) AS depth, kind <> 'communication' AS own, duration_ns AS ns
            FROM places
        ),
        total AS (SELECT sum(duration_ns) AS all_ns FROM places WHERE kind <> 'communication'),
        steps AS (
            SELECT sum(window_end_ns - window_start_ns) AS step_ns FROM overlap
            WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND dimension = 'all'
        ),
        told AS (
            SELECT array_to_string(path[:depth], '/') AS node,
                any_value(repeat('· ', depth - 1) || path[depth]) AS module, any_value(path[depth]) AS name,
                coalesce(sum(ns) FILTER (own), 0) AS own_ns, sum(flops) FILTER (own) / 1e12 AS tera,
                sum(roof) FILTER (own) / sum(ns) FILTER (own AND roof IS NOT NULL) AS efficiency,
                sum(head) FILTER (own) / 1e6 AS headroom, sum(exposed) FILTER (NOT own) / 1e6 AS exposed,
                coalesce(sum(ns) FILTER (own AND roof IS NULL), 0) / 1e6 AS unknown,
                coalesce(sum(ns) FILTER (own AND phase = 'forward'), 0) / 1e6 AS forward,
                coalesce(sum(ns) FILTER (own AND phase = 'backward'), 0) / 1e6 AS backward,
                coalesce(sum(ns) FILTER (own AND phase = 'recompute'), 0) / 1e6 AS recompute
            FROM every GROUP BY node
        )
        SELECT *, printf('%.3f', own_ns / 1e6) AS ms, own_ns / all_ns AS share,
            own_ns / step_ns AS of_step,
            CASE name WHEN 'TransformerLayer' THEN 'layer' WHEN 'SelfAttention' THEN 'attention' WHEN 'MLP' THEN 'mlp'
                WHEN 'MoELayer' THEN 'experts'
                WHEN 'LanguageModelEmbedding' THEN 'embedding' WHEN 'ColumnParallelLinear' THEN 'head' END AS part
        FROM told, total, steps""",
        {
            **{name: name for name in ("module", "part", "share", "forward", "backward", "recompute", "efficiency")},
            **{
                "time": "ms",
                "of step": "of_step",
                "TFLOP": "tera",
                "headroom": "headroom",
                "without roofline": "unknown",
                "exposed": "exposed",
            },
        },
        ["module", "time"],
    ),
    PrintedTable(
        r"Layers, to the median of the rank's layers with the same work, the slowest first, ms",
        """
        WITH every AS (
            SELECT rank, regexp_extract(module_path, 'Layer_([0-9]+)', 1)::INT AS layer,
                regexp_extract(module_path, '([A-Za-z]*Layer)_[0-9]', 1) AS class, count(*) AS kernels,
                sum(duration_ns)::BIGINT AS ns, sum(duration_ns) FILTER (phase = 'forward') / 1e6 AS forward,
                sum(duration_ns) FILTER (phase = 'backward') / 1e6 AS backward
            FROM kernels WHERE run = $run AND iteration = $iteration AND kind <> 'communication'
                AND regexp_matches(module_path, 'Layer_[0-9]')
            GROUP BY ALL
        ), alike AS (SELECT rank, class, kernels, count(*) AS layers, median(ns) AS usual FROM every GROUP BY ALL)
        SELECT rank, layer, class, ns / 1e6 AS ms, forward, backward, if(layers > 1, ns / usual, NULL) AS ratio
        FROM every JOIN alike USING (rank, class, kernels)""",
        {**{name: name for name in ("rank", "layer", "class", "forward", "backward", "ratio")}, "time": "ms"},
        ["rank", "layer"],
    ),
)

_COMPUTED = "FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'computation'"
_BOUND = """
    (SELECT DISTINCT rank, kernel_id FROM gpu_gaps
        WHERE run = $run AND iteration = $iteration AND starved_ns > 0) AS bound"""
LENGTHS = (
    Sentence(
        rf"{PLACE} · (?P<v_ns>{MS}) of computation: (?P<v_short>{PERCENT}) of the kernels are shorter than 10 µs, "
        rf"(?P<v_time>{PERCENT}) of the time; (?P<v_bound>{PERCENT}) of the time is launch-bound",
        f"""
        SELECT sum(duration_ns) AS ns, count(*) FILTER (duration_ns < 10000) / count(*) AS short,
            coalesce(sum(duration_ns) FILTER (duration_ns < 10000), 0) / ns AS time,
            coalesce(sum(duration_ns) FILTER ((rank, kernel_id) IN (FROM {_BOUND})), 0) / ns AS bound
        {_COMPUTED}""",
    ),
)
LENGTHS_TABLES = (
    PrintedTable(
        r"Computation kernels by length, all ranks together, ms",
        """
        WITH waits AS (
            SELECT rank, kernel_id, sum(starved_ns) AS wait FROM gpu_gaps
            WHERE run = $run AND iteration = $iteration AND starved_ns > 0 GROUP BY ALL
        )
        SELECT CASE WHEN duration_ns < 2000 THEN 'below 2 µs' WHEN duration_ns < 5000 THEN '2 µs to 5 µs'
            WHEN duration_ns < 10000 THEN '5 µs to 10 µs' WHEN duration_ns < 20000 THEN '10 µs to 20 µs'
            WHEN duration_ns < 50000 THEN '20 µs to 50 µs' WHEN duration_ns < 100000 THEN '50 µs to 100 µs'
            WHEN duration_ns < 1000000 THEN '100 µs to 1 ms' ELSE '1 ms and more' END AS length,
            count(*) AS kernels, count(*) / sum(count(*)) OVER () AS of_kernels, sum(duration_ns) / 1e6 AS ms,
            sum(duration_ns) / sum(sum(duration_ns)) OVER () AS of_time, count(wait) AS bound,
            coalesce(sum(duration_ns) FILTER (wait > 0), 0) / 1e6 AS bound_ms, coalesce(sum(wait), 0) / 1e6 AS wait_ms
        FROM kernels LEFT JOIN waits USING (rank, kernel_id)
        WHERE run = $run AND iteration = $iteration AND kind = 'computation' GROUP BY length""",
        {
            **{
                "length": "length",
                "kernels": "kernels",
                "of kernels": "of_kernels",
                "time": "ms",
                "of time": "of_time",
            },
            **{"launch-bound": "bound", "launch-bound time": "bound_ms", "wait before": "wait_ms"},
        },
        ["length"],
    ),
    PrintedTable(
        r"Gaps of computation by what the GPU waits for, all ranks together",
        """
        WITH steps AS (
            SELECT sum(window_end_ns - window_start_ns) AS step_ns FROM overlap
            WHERE run = $run AND iteration = $iteration AND window_name = 'step' AND dimension = 'all'
        ), pieces AS (FROM gpu_gaps WHERE run = $run AND iteration = $iteration),
        told AS (
            SELECT 'other work of the GPU' AS cause, NULL AS work, sum(blocked_ns) AS ns FROM pieces
            UNION ALL SELECT 'unexplained', NULL, sum(unexplained_ns) FROM pieces
            UNION ALL SELECT 'the host', host_work, sum(starved_ns) FROM pieces GROUP BY host_work
        )
        SELECT cause, work, ns / 1e6 AS ms, ns / step_ns AS of_step FROM told, steps WHERE ns > 0""",
        {"waits for": "cause", "host work": "work", "gaps ms": "ms", "of step": "of_step"},
        ["waits for", "host work"],
    ),
    PrintedTable(
        r"Spread of equal work, p95 to median, weighted by time",
        """
        WITH classes AS (
            SELECT *, CASE WHEN operation_class IN ('gemm', 'grouped_gemm', 'convolution') THEN 'products'
                WHEN operation_class = 'attention' THEN 'attention' ELSE 'memory-bound' END AS class
            FROM operations
            WHERE run = $run AND iteration = $iteration AND operation_class <> 'communication'
        ), ran AS (
            SELECT rank, operation_id, step, chunk, microbatch, count(*) AS n, sum(duration_ns) AS ns
            FROM kernels JOIN classes USING (run, iteration, rank, operation_id)
            WHERE run = $run AND iteration = $iteration AND microbatch IS NOT NULL GROUP BY ALL
        ), of_rank AS (
            SELECT rank, operation_id, chunk, n, median(ns) AS usual, quantile_cont(ns, 0.95) / median(ns) AS spread,
                sum(ns) AS ns FROM ran GROUP BY rank, operation_id, chunk, n HAVING count(*) >= 3
        ), named AS (SELECT * FROM of_rank JOIN classes USING (rank, operation_id)),
        of_ranks AS (
            SELECT class, quantile_cont(usual, 0.95) / median(usual) AS spread, sum(ns) AS ns FROM named
            GROUP BY class, stage, phase, operation, module, shapes, types, strides, kernel, chunk, n
            HAVING count(*) > 1
        ), over_ranks AS (SELECT class, sum(spread * ns) / sum(ns) AS ranks FROM of_ranks GROUP BY class)
        SELECT class, sum(ns) / 1e6 AS ms, sum(spread * ns) / sum(ns) AS microbatches, any_value(ranks) AS ranks
        FROM named LEFT JOIN over_ranks USING (class) GROUP BY class""",
        {"class": "class", "time ms": "ms", "over micro-batches": "microbatches", "over ranks": "ranks"},
        ["class"],
    ),
)

UTILIZATION = (
    SAVINGS,
    Sentence(
        rf"{PLACE} · step (?P<k_step>\d+): (?P<v_ns>{MS})(?P<b_mfu>, MFU (?P<v_mfu>{PERCENT}))?"
        rf"(?P<b_hfu>, HFU (?P<v_hfu>{PERCENT}))?",
        f"""
        WITH windows AS (
            SELECT rank, window_end_ns - window_start_ns AS ns FROM overlap
            WHERE run = $run AND iteration = $iteration AND step = $step AND window_name = 'step' AND dimension = 'all'
        )
        SELECT max(ns) AS ns, (SELECT mfu {_JOB}) AS mfu, (SELECT hfu {_JOB}) AS hfu FROM windows""",
    ),
    Sentence(
        r"Peak used: (?P<v_peak>[\d,.]+) TFLOP/s per GPU \((?P<v_gpu>.+), (?P<v_format>\w+): (the format that the "
        r"job's settings state|(?P<b_operations>the format with the most FLOPs))\)",
        f"""
        SELECT peak_flops_per_s / 1e12 AS peak, gpu, peak_format AS format, peak_named_by = 'operations' AS operations
        {_JOB}""",
    ),
    Sentence(
        r"The model needs (?P<v_flops>[\d,.]+) TFLOP per GPU",
        """
        SELECT model_flops_per_gpu / 1e12 AS flops FROM iterations WHERE run = $run AND iteration = $iteration""",
    ),
    Sentence(
        r"Operations computed (?P<v_flops>[\d,.]+) TFLOP per GPU, (?P<v_recompute>[\d,.]+) of them recompute",
        # Of files with several steps all are equal.
        """
        SELECT sum(flops * count) / count(DISTINCT rank) / 1e12 AS flops,
            coalesce(sum(flops * count) FILTER (phase = 'recompute'), 0) / count(DISTINCT rank) / 1e12 AS recompute
        FROM operations
        WHERE run = $run AND iteration = $iteration
            AND operation_class IN ('gemm', 'grouped_gemm', 'attention', 'convolution')""",
    ),
    Sentence(
        r"(?P<v_all>[\d,]+) tokens/s, (?P<v_each>[\d,]+) per GPU",
        f"""
        SELECT tokens / step_ns * 1e9 AS all, tokens / step_ns * 1e9 / max(world_size) AS each
        FROM (SELECT * {_JOB}), (FROM traces WHERE run = $run AND iteration = $iteration) GROUP BY tokens, step_ns""",
    ),
    Sentence(
        rf"HFU is unknown: FLOPs are known of (?P<v_covered>{SHARE}) of the time of products, attention and "
        r"convolutions, less than 99 %; mostly: .+",
        f"SELECT coverage AS covered {_JOB}",
    ),
)


def _parts(title: str, part: str) -> PrintedTable:
    return PrintedTable(
        title,
        f"""
        SELECT number, ranks, flops_per_gpu / 1e12 AS flops, recompute_flops_per_gpu / 1e12 AS recompute, coverage, hfu,
            compute_ns / 1e6 AS ms, compute_utilization AS busy {_STEP} AND part = '{part}'""",
        {
            **{part: "number", "ranks": "ranks", "computed TFLOP": "flops", "recompute TFLOP": "recompute"},
            **{"FLOPs known": "coverage", "HFU": "hfu", "computation ms": "ms", "HFU while computing": "busy"},
        },
        [part],
    )


UTILIZATION_TABLES = (
    _parts("Model replicas, operations per GPU", "replica"),
    _parts("Pipeline stages, operations per GPU", "stage"),
)
