"""The view ``modules``: time, FLOPs and exposed communication of each module of the model, from tables of its ranks."""

from __future__ import annotations

MODULES_COLUMNS = (
    ("stage", "Stage of the rank; NULL where the topology is unknown."),
    ("module", "Path of the module: classes from the outermost one, layers with their numbers."),
    ("module_class", "The same without the numbers of layers: equal modules have the same."),
    ("depth", "Modules around it, and itself."),
    ("name", "Its class."),
    ("part", "layer, attention, mlp, experts, embedding or head; NULL for other modules."),
    ("layer", "Number of the layer, of a layer that lies in no other; else NULL."),
    ("kernels", "Kernels and memory operations, communications left out, launched in it and in the modules it holds."),
    ("kernel_ns", "Their time, ns."),
    ("forward_ns", "Of it in the forward phase, ns."),
    ("backward_ns", "Of it in the backward phase, ns."),
    ("recompute_ns", "Of it in recompute, ns."),
    ("flops", "FLOPs of all calls whose FLOPs are known; NULL without any."),
    ("unknown_ns", "Of kernel_ns what has no roofline, ns."),
    ("roofline_ns", "What perfect kernels would take for the rest, ns; NULL where nothing has a roofline."),
    ("efficiency", "roofline_ns / (kernel_ns - unknown_ns)."),
    ("headroom_ns", "Kernel time above the roofline, operation by operation, ns."),
    ("exposed_ns", "Communication launched in it that nothing hides, ns; NULL without any, or without matches."),
    ("step_share", "kernel_ns over the time of the rank's training steps."),
    (
        "ratio",
        "kernel_ns to the median of the rank's equal modules with as many kernels and, where known, FLOPs; NULL "
        "without another one.",
    ),
)

MODULES_SQL = """
WITH exposed AS (
    SELECT run, iteration, rank, kernel_id, coalesce(exposed_wait_ns, 0) + exposed_transfer_ns AS exposed_ns
    FROM collectives
), steps AS (
    SELECT run, iteration, rank, sum(ns) AS step_ns FROM (
        SELECT run, iteration, rank, window_name, window_end_ns - window_start_ns AS ns,
            bool_or(window_name = 'step') OVER (PARTITION BY run, iteration, rank, device) AS marked
        FROM overlap WHERE dimension = 'all'
    ) WHERE (window_name = 'step') = marked GROUP BY ALL
), ran AS (
    SELECT
        run, iteration, rank, stage, operation_id, CAST(phase AS VARCHAR) AS phase,
        kind = 'communication' AS communicates, string_split(CAST(module_path AS VARCHAR), '/') AS path,
        count(*) AS kernels, sum(duration_ns) AS ns, sum(exposed_ns) AS exposed_ns
    FROM kernels LEFT JOIN exposed USING (run, iteration, rank, kernel_id)
    WHERE module_path IS NOT NULL GROUP BY ALL
), measured AS (
    -- Of an operation's calls each module has those of its kernels.
    SELECT ran.*, flops * count::DOUBLE * ran.kernels / operations.kernels AS flops,
        roofline_ns * (ran.kernels / operations.kernels) AS roofline_ns,
        headroom_ns * (ran.kernels / operations.kernels) AS headroom_ns
    FROM ran LEFT JOIN operations USING (run, iteration, rank, operation_id)
), nodes AS (
    SELECT *, unnest(range(1, len(path) + 1)) AS depth FROM measured
), summed AS (
    SELECT
        run, iteration, rank, any_value(stage) AS stage, array_to_string(path[:depth], '/') AS module,
        regexp_replace(module, 'Layer_[0-9]+', 'Layer', 'g') AS module_class, depth,
        string_split(module_class, '/')[-1] AS name,
        CAST(coalesce(sum(kernels) FILTER (NOT communicates), 0) AS BIGINT) AS kernels,
        CAST(coalesce(sum(ns) FILTER (NOT communicates), 0) AS BIGINT) AS kernel_ns,
        CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'forward'), 0) AS BIGINT) AS forward_ns,
        CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'backward'), 0) AS BIGINT) AS backward_ns,
        CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'recompute'), 0) AS BIGINT) AS recompute_ns,
        sum(flops) FILTER (NOT communicates) AS flops,
        CAST(coalesce(sum(ns) FILTER (NOT communicates AND roofline_ns IS NULL), 0) AS BIGINT) AS unknown_ns,
        CAST(round(sum(roofline_ns) FILTER (NOT communicates)) AS BIGINT) AS roofline_ns,
        CAST(round(sum(headroom_ns) FILTER (NOT communicates)) AS BIGINT) AS headroom_ns,
        CAST(sum(exposed_ns) FILTER (communicates) AS BIGINT) AS exposed_ns
    FROM nodes GROUP BY run, iteration, rank, module, depth
), alike AS (
    -- Modules that run as many kernels for as many FLOPs are equal; one with other parts or sizes is not.
    SELECT *, count(*) OVER same AS others, median(kernel_ns) OVER same AS usual_ns
    FROM summed WINDOW same AS (PARTITION BY run, iteration, rank, module_class, kernels, round(flops))
)
SELECT
    run, iteration, rank, stage, module, module_class, depth, name,
    CASE
        WHEN name LIKE '%Layer' AND name NOT LIKE 'MoE%' THEN 'layer'
        WHEN name LIKE '%Attention' AND module_class NOT LIKE '%Attention/%' THEN 'attention'
        WHEN regexp_matches(name, '^(MoELayer|SwitchMLP)$') THEN 'experts'
        WHEN name LIKE '%MLP' AND module_class NOT LIKE '%MoELayer/%' THEN 'mlp'
        WHEN name LIKE '%Embedding' AND module_class NOT LIKE '%Embedding/%' THEN 'embedding'
        WHEN regexp_matches(module_class, 'Model/[A-Za-z]*ColumnParallelLinear$') THEN 'head'
    END AS part,
    CASE WHEN part = 'layer' AND module_class NOT LIKE '%Layer/%'
        THEN CAST(nullif(regexp_extract(module, '_([0-9]+)$', 1), '') AS INTEGER) END AS layer,
    kernels, kernel_ns, forward_ns, backward_ns, recompute_ns, flops, unknown_ns, roofline_ns,
    roofline_ns / nullif(kernel_ns - unknown_ns, 0) AS efficiency, headroom_ns, exposed_ns,
    kernel_ns / nullif(step_ns, 0) AS step_share,
    CASE WHEN others > 1 THEN kernel_ns / usual_ns END AS ratio
FROM alike LEFT JOIN steps USING (run, iteration, rank)
"""
