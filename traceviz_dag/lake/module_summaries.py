"""Named queries behind ``traceviz kernels --by module``: a model's modules as a tree, and its layers."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.operation_summaries import MEASURED_SQL, asked, of_rank
from traceviz_dag.tables.modules import MODULES_SQL

_MODULES = f"WITH modules AS ({MODULES_SQL})"
_HERE = "WHERE run = $run AND iteration = $iteration AND {rank}"

# The steps of ranks that do not have a module count, too.
TREE_SQL = f"""
{_MODULES}, steps AS ({MEASURED_SQL})
SELECT
    module_class AS module, depth, name, part,
    CAST(sum(kernel_ns) AS BIGINT) AS kernel_ns, CAST(sum(forward_ns) AS BIGINT) AS forward_ns,
    CAST(sum(backward_ns) AS BIGINT) AS backward_ns, CAST(sum(recompute_ns) AS BIGINT) AS recompute_ns,
    sum(modules.kernel_ns) / nullif(any_value(measured_ns), 0) AS step_share, sum(flops) AS flops,
    CAST(sum(unknown_ns) AS BIGINT) AS unknown_ns,
    sum(roofline_ns) / nullif(sum(modules.kernel_ns - modules.unknown_ns), 0) AS efficiency,
    CAST(sum(headroom_ns) AS BIGINT) AS headroom_ns, CAST(sum(exposed_ns) AS BIGINT) AS exposed_ns
FROM modules, steps {_HERE}
GROUP BY module_class, depth, name, part
ORDER BY module_class
"""

LAYERS_SQL = f"""
{_MODULES}
SELECT rank, stage, name, layer, kernels, kernel_ns, forward_ns, backward_ns, ratio
FROM modules {_HERE} AND layer IS NOT NULL AND kernel_ns > 0
ORDER BY ratio DESC NULLS LAST, rank, layer
"""


def modules(lake: Lake, run: str, iteration: int, rank: int | None = None) -> pa.Table:
    """The modules of the model, each with all that is in it, all ranks together; those of one class are one.

    Columns: module (its path), depth, name, part (layer, attention, mlp, experts, embedding or head; else NULL),
    kernel_ns without communication, forward_ns, backward_ns and recompute_ns of it, step_share (of the training steps
    of all ranks), flops (of kernels whose FLOPs are known; NULL without), unknown_ns (without a roofline), efficiency
    (of kernels with one), headroom_ns, exposed_ns (communication that no computation hides; NULL without any, and where
    ranks were not matched).
    """
    return asked(lake, TREE_SQL, run, iteration, rank)


def modules_and_layers(lake: Lake, run: str, iteration: int, rank: int | None = None) -> tuple[pa.Table, pa.Table]:
    """The rows of :func:`modules`, and the layers of each rank, the slowest first.

    Columns of the layers: rank, stage, name (class), layer (number), kernels, kernel_ns, forward_ns, backward_ns, ratio
    (to the median of the rank's layers with as many kernels and, where known, FLOPs; NULL without another one).
    """
    with lake.session(run=run, iteration=iteration) as session:
        tree, layers = session.ask_each([of_rank(sql, rank) for sql in (TREE_SQL, LAYERS_SQL)], [MODULES_SQL])
    return tree, layers
