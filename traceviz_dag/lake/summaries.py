"""Named queries behind the summary that the main job prints: few rows, over all ranks of one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import pyarrow as pa

from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.queries import TraceFiles
from traceviz_dag.tables.ranks import NOT_CUT

COVERED = """rank IN (
        SELECT rank FROM traces
        WHERE run = $run AND iteration = $iteration AND CASE
            WHEN EXISTS (FROM iterations WHERE run = $run AND iteration = $iteration) THEN rank IN (
                SELECT unnest(covered_ranks) FROM iterations WHERE run = $run AND iteration = $iteration
            )
            ELSE status = 'read'
        END
    )"""
"""Condition on the ranks that the row of ``iterations`` covers: all measures of an iteration are of these."""

CATEGORY_SHARES_SQL = f"""
SELECT
    category,
    count(*) AS kernels,
    CAST(sum(duration_ns) AS BIGINT) AS time_ns,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (), 0) AS share
FROM kernels
WHERE run = $run AND iteration = $iteration AND {COVERED}
GROUP BY category
ORDER BY time_ns DESC, category
"""

MEASURED_SQL = f"""
WITH measured AS (
    SELECT *,
        window_end_ns - window_start_ns AS window_ns,
        count(*) FILTER (window_name = 'step') OVER (PARTITION BY rank, device) > 0 AS has_steps
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND window_name IN ('step', 'kernels') AND {COVERED}
    QUALIFY (window_name = 'step') = has_steps
)
"""
"""The windows that measures over ranks speak of: the training steps of ranks that have any, else all kernels."""

DIMENSIONS_SQL = f"""
{MEASURED_SQL},
by_rank AS (
    -- A rank with several training steps or devices enters with their mean, as in the table iterations.
    SELECT rank, dimension, avg(communication_ns) AS communication_ns, avg(hidden_ns) AS hidden_ns,
        avg(exposed_ns) AS exposed_ns
    FROM measured WHERE dimension <> 'all' GROUP BY rank, dimension
),
ranks AS (SELECT count(DISTINCT rank) AS ranks FROM measured)
SELECT
    dimension,
    CAST(round(sum(communication_ns) / any_value(ranks)) AS BIGINT) AS communication_ns,
    CAST(round(sum(hidden_ns) / any_value(ranks)) AS BIGINT) AS hidden_ns,
    CAST(round(sum(exposed_ns) / any_value(ranks)) AS BIGINT) AS exposed_ns,
    sum(hidden_ns) / nullif(sum(communication_ns), 0) AS hidden_share,
    CAST(max(exposed_ns) AS BIGINT) AS most_exposed_ns,
    arg_max(rank, (exposed_ns, -rank)) AS most_exposed_rank
FROM by_rank, ranks
GROUP BY dimension
ORDER BY exposed_ns DESC, dimension
"""

BY_RANK_SQL = f"""
{MEASURED_SQL},
by_rank AS (
    SELECT rank, any_value(has_steps) AS has_steps, max(window_ns) AS longest_ns, avg(window_ns) AS window_ns,
        avg(compute_ns) AS compute_ns, avg(hidden_ns) AS hidden_ns, avg(exposed_ns) AS exposed_ns,
        avg(busy_ns) AS busy_ns, avg(idle_ns) AS idle_ns
    FROM measured WHERE dimension = 'all' GROUP BY rank
)
"""
"""Each rank's means over its steps and devices: means over ranks, and shares of the step, are made of these."""

WINDOWS_SQL = f"""
{BY_RANK_SQL},
-- Shares of means, which add up as the means do, and not means of shares.
shares AS (
    SELECT avg(exposed_ns) / nullif(avg(window_ns), 0) AS exposed_share,
        avg(compute_ns) / nullif(avg(window_ns), 0) AS computation_share,
        avg(idle_ns) / nullif(avg(window_ns), 0) AS idle_share
    FROM by_rank
),
steps AS (
    SELECT DISTINCT rank, device, window_start_ns, window_end_ns FROM measured WHERE has_steps AND dimension = 'all'
),
of_kernels AS (
    -- Files of kernels are many, and opened once: each kernel meets all steps of its rank, and counts with one of them.
    SELECT CAST(sum(greatest(0, least(start_ns + duration_ns, window_end_ns) - greatest(start_ns, window_start_ns)))
            AS BIGINT) AS inside_ns,
        CAST(sum(duration_ns) FILTER (is_first) AS BIGINT) AS whole_ns
    FROM kernels
    JOIN (SELECT *, row_number() OVER (PARTITION BY rank, device) = 1 AS is_first FROM steps) USING (rank, device)
    WHERE run = $run AND iteration = $iteration
)
SELECT
    (SELECT list(DISTINCT step ORDER BY step) FROM measured WHERE has_steps) AS steps,
    (SELECT list(DISTINCT window_from ORDER BY window_from) FROM measured WHERE has_steps) AS windows_from,
    (SELECT count(DISTINCT rank) FROM measured WHERE NOT has_steps) AS ranks_without_step,
    (SELECT exposed_share FROM shares) AS exposed_share,
    (SELECT computation_share FROM shares) AS computation_share,
    (SELECT idle_share FROM shares) AS idle_share,
    (SELECT 1 - inside_ns / nullif(whole_ns, 0) FROM of_kernels) AS outside_share
"""


COMPUTATION_SQL = f"""
WITH carried AS (
    SELECT rank, CAST(sum(in_elements) AS BIGINT) AS elements
    FROM kernels
    WHERE run = $run AND iteration = $iteration AND kind = 'communication' AND dimension IN ('tp', 'cp')
        AND microbatch IS NOT NULL AND {{covered}}
    GROUP BY rank
)
SELECT
    rank, stage, step, phase, name, operator, input_sizes,
    count(*) AS kernels,
    CAST(sum(grid_x * grid_y * grid_z) AS BIGINT) AS blocks,
    CAST(max(grid_x * grid_y * grid_z) AS BIGINT) AS most_blocks,
    any_value(elements) AS elements,
    CAST(sum(duration_ns) AS BIGINT) AS time_ns
FROM kernels LEFT JOIN carried USING (rank)
WHERE run = $run AND iteration = $iteration AND kind = 'computation' AND {{covered}} AND {NOT_CUT}
GROUP BY rank, stage, step, phase, name, operator, input_sizes
ORDER BY rank, step, phase, name, operator, input_sizes
"""

STAGE_WORK_SQL = f"""
WITH counted AS (
    -- Operators on a CPU take what its other threads leave them, whatever their sizes.
    SELECT * REPLACE (CASE WHEN device <> 'cpu' THEN input_sizes END AS input_sizes) FROM kernels
    WHERE run = $run AND iteration = $iteration AND kind = 'computation'
        -- A CUDA graph of a whole pass shows no micro-batches and no phases.
        AND (microbatch IS NOT NULL OR graph_node_id IS NOT NULL AND phase = 'unknown')
        AND stage IS NOT NULL AND {{covered}} AND {NOT_CUT}
),
size AS (SELECT stage, count(DISTINCT (rank, step)) AS steps FROM counted GROUP BY stage),
placed AS (
    SELECT
        *,
        -- Which product of a layer it is, where no sizes show it: layers run their kernels in one order.
        CASE WHEN input_sizes IS NULL THEN hash(
            lag(name, 2) OVER place, lag(name) OVER place, lead(name) OVER place, lead(name, 2) OVER place
        ) END AS around
    FROM counted
    WINDOW place AS (PARTITION BY rank, device, stream, step, chunk, microbatch, phase ORDER BY start_ns, kernel_id)
)
SELECT
    stage, phase, name, operator, input_sizes, CASE WHEN input_sizes IS NULL THEN module END AS module,
    CAST(around >> 1 AS BIGINT) AS around, grid_x, grid_y, grid_z,
    any_value(steps) AS steps,
    list_sort(list(DISTINCT rank)) AS ranks,
    count(*) AS kernels,
    CAST(sum(duration_ns) AS BIGINT) AS time_ns
FROM placed JOIN size USING (stage)
GROUP BY ALL
ORDER BY ALL
"""


class CutStep(TypedDict):
    """A training step beside an iteration in which the profiler started or stopped.

    Attributes:
        edge: which of both. ranks: on which ranks, and whether that is ``everywhere``. whole: ranks that have it whole.
    """

    step: int
    edge: str
    ranks: list[int]
    whole: list[int]
    everywhere: bool


def cut_steps(files: TraceFiles) -> list[CutStep]:
    """The training steps whose kernels are in the traces of an iteration, but no mark of theirs."""
    cut: dict[tuple[int, str], list[int]] = {}
    for row in files.rows:
        first = min(row["steps"] or (), default=None)
        for step in row["cut_steps"] or ():
            edge = "stop" if first is None or step >= first else "start"
            cut.setdefault((step, edge), []).append(row["rank"])
    return [
        CutStep(
            step=step,
            edge=edge,
            ranks=ranks,
            whole=[row["rank"] for row in files.rows if step in (row["steps"] or ())],
            everywhere=len(ranks) == len(files.rows),
        )
        for (step, edge), ranks in sorted(cut.items(), key=lambda each: each[0][0])
    ]


def stage_work(lake: Lake, run: str, iteration: int, ranks: Sequence[int]) -> pa.Table:
    """The computation of micro-batches, and of passes that are a CUDA graph, by stage and by what shows the work.

    Args:
        ranks: those that are counted.

    Returns:
        Columns stage, phase, name, operator, input_sizes, grid_x, grid_y, grid_z; where no sizes are known, module and
        around (a number of the names of the two kernels before it and behind it on its stream, in the same phase of the
        micro-batch), else NULL; steps (of the stage's ranks, together), ranks (that ran it), kernels, time_ns (a sum of
        durations).
    """
    sql = STAGE_WORK_SQL.format(covered=_one_of(ranks))
    return lake.query_iteration(sql, run=run, iteration=iteration)


def _one_of(ranks: Sequence[int]) -> str:
    """The condition that a row is of one of some ranks."""
    return f"list_contains([{', '.join(str(int(rank)) for rank in ranks)}]::BIGINT[], rank)"


def computation_by_kernel(lake: Lake, run: str, iteration: int, ranks: Sequence[int] | None = None) -> pa.Table:
    """Each rank's computation by step, phase, kernel name, operator and sizes: what ranks of one stage have in common.

    Args:
        ranks: those that are counted; by default those that the measures of the iteration cover.

    Columns: rank, stage, step, phase, name, operator, input_sizes, kernels, blocks (of all grids; NULL where unknown),
    most_blocks (of the largest grid), elements (of the messages that the rank's micro-batches send within layers, the
    same in all its rows; NULL where unknown), time_ns (a sum of durations).
    """
    sql = COMPUTATION_SQL.format(covered=COVERED if ranks is None else _one_of(ranks))
    return lake.query_iteration(sql, run=run, iteration=iteration)


def category_shares(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Kernel time by category over the ranks that the measures of the iteration cover.

    Columns: category, kernels, time_ns (a sum of durations), share of all time.
    """
    return lake.query_iteration(CATEGORY_SHARES_SQL, run=run, iteration=iteration)


def communication_by_dimension(lake: Lake, run: str, iteration: int) -> pa.Table:
    """Mean over ranks of each dimension's communication, as unions within one training step (else the kernels' span).

    A rank with several training steps enters with their mean. Columns: dimension, communication_ns, hidden_ns,
    exposed_ns, hidden_share; most exposed first. Dimensions overlap each other, so their times do not add up.
    """
    rows = lake.query_iteration(DIMENSIONS_SQL, run=run, iteration=iteration)
    return rows.drop_columns(["most_exposed_ns", "most_exposed_rank"])


class Windows(TypedDict):
    """The row of ``windows``."""

    steps: list[int] | None
    windows_from: list[str] | None
    ranks_without_step: int
    exposed_share: float | None
    computation_share: float | None
    idle_share: float | None
    outside_share: float | None


def windows(lake: Lake, run: str, iteration: int) -> pa.Table:
    """What the measures of an iteration speak of, in one row.

    Columns: steps (numbers of the training steps that were measured), windows_from (what their windows are),
    ranks_without_step (ranks measured from first to last kernel instead), exposed_share, computation_share, idle_share
    (exposed communication, computation and idle time over the window, each the mean over steps and devices, then
    ranks), outside_share (of the kernel time of ranks with a step, the part that no step window of the rank holds: work
    before the first step, after the last one or between them; NULL without steps).
    """
    return lake.query_iteration(WINDOWS_SQL, run=run, iteration=iteration)
