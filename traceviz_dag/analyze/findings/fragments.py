"""Parts of queries over the tables of an iteration that several rules share."""

from __future__ import annotations

from traceviz_dag.analyze.slow_words import LEAST_ITEMS, MEMORY_SLOWER, SLOWER_THAN_FEW

STAGES = "(SELECT rank, stage FROM topology WHERE run = $run AND iteration = $iteration)"
"""A table: rank, stage."""

MEASURED = """(
    SELECT rank, device, window_name, sum(window_end_ns - window_start_ns) AS window_ns
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND (rank, device, window_name) IN (
        SELECT (rank, device, window_name) FROM gpu_gaps WHERE run = $run AND iteration = $iteration
    )
    GROUP BY rank, device, window_name
)"""
"""A table: rank, device, window_name, window_ns: the time of which gaps are known."""

LEAST_IN_MEMORY = 0.01
"""Share of a stage's computation in micro-batches that slow memory costs from which it counts; the optimizer, which is
bound by memory, is not among it."""

SLOW_ALONE = f"""CASE
    WHEN rank IS NULL THEN NULL
    WHEN slower_ns >= {SLOWER_THAN_FEW} * mean_ns AND ratio >= {1 + SLOWER_THAN_FEW} AND slower_items >= {LEAST_ITEMS}
        THEN 'all'
    WHEN slower_ns >= {LEAST_IN_MEMORY} * mean_ns AND memory_ratio >= {MEMORY_SLOWER}
        AND memory_slower_items >= {LEAST_ITEMS} AND arithmetic_ratio < {1 + SLOWER_THAN_FEW} THEN 'memory' END"""
"""Of table ``stage_speeds``, in what a rank that is alone in its stage is slow; NULL where it is not."""

PAUSES = "('data_loading', 'garbage_collection', 'compilation', 'graph_break', 'allocation')"
"""Work of the host that rules of ``host_pauses`` find."""

HIDDEN_WAIT = "of_framework = false AND host_work IS DISTINCT FROM 'data_loading' AND starved_ns > 0"
"""Rows of ``gpu_gaps`` in which the GPU starved after its host had waited for it, and need not have."""

WITHOUT_GAPS = """
SELECT 'no time is known in which a GPU could have computed: the traces have no kernels of GPUs' AS reason
WHERE NOT EXISTS (FROM gpu_gaps WHERE run = $run AND iteration = $iteration)
"""
"""One row where no rank's gaps are known."""


def lacking(column: str, what: str) -> str:
    """A query that gives one row where the traces of some ranks lack what a rule needs, and others have it.

    Args:
        column: of table ``traces``, an expression: whether a trace has it.
    """
    return f"""
SELECT 'not judged on ' || count(*) FILTER (NOT coalesce({column}, false)) || ' of ' || count(*)
    || ' ranks, for want of {what}' AS reason
FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
HAVING bool_or({column}) AND NOT bool_and(coalesce({column}, false))
"""
