"""Named queries behind ``traceviz kernels --by module``: a model's modules as a tree, and its layers."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.operation_summaries import asked

MODULES_SQL = """
WITH exposed AS (
    SELECT rank, kernel_id, coalesce(exposed_wait_ns, 0) + exposed_transfer_ns AS exposed_ns FROM collectives
    WHERE run = $run AND iteration = $iteration
), ran AS (
    SELECT
        rank, operation_id, CAST(phase AS VARCHAR) AS phase, kind = 'communication' AS communicates,
        -- Layers of one class are one module of the tree.
        string_split(regexp_replace(CAST(module_path AS VARCHAR), 'Layer_[0-9]+', 'Layer', 'g'), '/') AS path,
        count(*) AS kernels, sum(duration_ns) AS ns, sum(exposed_ns) AS exposed_ns
    FROM kernels LEFT JOIN exposed USING (rank, kernel_id)
    WHERE run = $run AND iteration = $iteration AND module_path IS NOT NULL AND {rank}
    GROUP BY ALL
), measured AS (
    -- Of an operation's calls each module has those of its kernels.
    SELECT ran.*, flops * count::DOUBLE * ran.kernels / operations.kernels AS flops,
        roofline_ns * (ran.kernels / operations.kernels) AS roofline_ns,
        headroom_ns * (ran.kernels / operations.kernels) AS headroom_ns
    FROM ran LEFT JOIN (FROM operations WHERE run = $run AND iteration = $iteration) AS operations
        USING (rank, operation_id)
), nodes AS (
    SELECT *, unnest(range(1, len(path) + 1)) AS depth FROM measured
)
SELECT
    array_to_string(path[:depth], '/') AS module, depth, any_value(path[depth]) AS name,
    CASE
        WHEN name LIKE '%Layer' AND name NOT LIKE 'MoE%' THEN 'layer'
        WHEN name LIKE '%Attention' AND module NOT LIKE '%Attention/%' THEN 'attention'
        WHEN regexp_matches(name, '^(MoELayer|SwitchMLP)$') THEN 'experts'
        WHEN name LIKE '%MLP' AND module NOT LIKE '%MoELayer/%' THEN 'mlp'
        WHEN name LIKE '%Embedding' AND module NOT LIKE '%Embedding/%' THEN 'embedding'
        WHEN regexp_matches(module, 'Model/[A-Za-z]*ColumnParallelLinear$') THEN 'head'
    END AS part,
    CAST(coalesce(sum(ns) FILTER (NOT communicates), 0) AS BIGINT) AS kernel_ns,
    CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'forward'), 0) AS BIGINT) AS forward_ns,
    CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'backward'), 0) AS BIGINT) AS backward_ns,
    CAST(coalesce(sum(ns) FILTER (NOT communicates AND phase = 'recompute'), 0) AS BIGINT) AS recompute_ns,
    sum(flops) FILTER (NOT communicates) AS flops,
    CAST(coalesce(sum(ns) FILTER (NOT communicates AND roofline_ns IS NULL), 0) AS BIGINT) AS unknown_ns,
    sum(roofline_ns) FILTER (NOT communicates)
        / nullif(sum(ns) FILTER (NOT communicates AND roofline_ns IS NOT NULL), 0) AS efficiency,
    CAST(round(sum(headroom_ns) FILTER (NOT communicates)) AS BIGINT) AS headroom_ns,
    CAST(sum(exposed_ns) FILTER (communicates) AS BIGINT) AS exposed_ns
FROM nodes GROUP BY module, depth
ORDER BY module
"""

LAYERS_SQL = """
WITH of_layer AS (
    SELECT
        rank, any_value(stage) AS stage,
        regexp_extract(CAST(module_path AS VARCHAR), '([A-Za-z]*Layer)_[0-9]+', 1) AS name,
        CAST(regexp_extract(CAST(module_path AS VARCHAR), 'Layer_([0-9]+)', 1) AS INTEGER) AS layer,
        count(*) AS kernels, CAST(sum(duration_ns) AS BIGINT) AS kernel_ns,
        CAST(coalesce(sum(duration_ns) FILTER (phase = 'forward'), 0) AS BIGINT) AS forward_ns,
        CAST(coalesce(sum(duration_ns) FILTER (phase = 'backward'), 0) AS BIGINT) AS backward_ns
    FROM kernels
    WHERE run = $run AND iteration = $iteration AND kind = 'computation'
        AND regexp_matches(CAST(module_path AS VARCHAR), 'Layer_[0-9]+') AND {rank}
    GROUP BY rank, 3, 4
), alike AS (
    -- Layers that run as many kernels are equal; one with other parts is not.
    SELECT rank, name, kernels, count(*) AS layers, median(kernel_ns) AS usual_ns
    FROM of_layer GROUP BY rank, name, kernels
)
SELECT of_layer.*, CASE WHEN layers > 1 THEN kernel_ns / usual_ns END AS ratio
FROM of_layer JOIN alike USING (rank, name, kernels)
ORDER BY ratio DESC NULLS LAST, rank, layer
"""


def modules(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """The modules of the model, each with all that is in it, all ranks together; those of one class are one.

    Columns: module (its path), depth, name, part (layer, attention, mlp, experts, embedding or head; else NULL),
    kernel_ns without communication, forward_ns, backward_ns and recompute_ns of it, flops (of kernels whose FLOPs are
    known; NULL without), unknown_ns (without a roofline), efficiency (of kernels with one), headroom_ns, exposed_ns
    (communication that no computation hides; NULL without any, and where ranks were not matched).
    """
    return asked(lake, MODULES_SQL, run, iteration, rank)


def layers(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """The layers of each rank, the slowest first.

    Columns: rank, stage, name (class), layer (number), kernels, kernel_ns, forward_ns, backward_ns, ratio (to the
    median of the rank's layers with as many kernels; NULL without another one).
    """
    return asked(lake, LAYERS_SQL, run, iteration, rank)
