"""What rules of one profile share: the windows of each GPU, and when a loss is worth a sentence."""

from __future__ import annotations

LEAST_SHARE = 0.05
"""Share of the time measured from which a loss that nothing predicts is reported."""

COUNTED = """(rank IN (SELECT rank FROM rank_clocks WHERE run = $run AND iteration = $iteration)
        OR NOT EXISTS (FROM rank_clocks WHERE run = $run AND iteration = $iteration))"""
"""Condition on ranks: those that count, of which there are clocks; ranks read in part only where none is whole."""

WINDOWS = f"""(
    SELECT rank, device, window_name, window_start_ns, window_end_ns, window_end_ns - window_start_ns AS window_ns,
        idle_ns, busy_ns - compute_ns - exposed_ns AS copies_alone_ns
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND window_name IN ('step', 'kernels')
        AND device <> 'cpu' AND {COUNTED}
    QUALIFY (window_name = 'step') = (count(*) FILTER (window_name = 'step') OVER (PARTITION BY rank, device) > 0)
)"""
"""A table: the training steps of each GPU, else its time from first to last kernel; ``copies_alone_ns``: memory
operations without a kernel beside them."""

OPERATIONS = f"""(
    SELECT rank, device, kernel_id, name, kind, operator, launch_name, bytes, stream, window_ns,
        start_ns, duration_ns,
        least(start_ns + duration_ns, window_end_ns) - greatest(start_ns, window_start_ns) AS inside_ns
    FROM (FROM kernels WHERE run = $run AND iteration = $iteration) JOIN {WINDOWS} USING (rank, device)
    WHERE start_ns < window_end_ns AND start_ns + duration_ns > window_start_ns
)"""
"""A table: kernels and memory operations that run in these windows; ``inside_ns``: for how long."""

UNMEASURED = """
SELECT 'no kernels of a GPU were measured' AS reason
WHERE NOT EXISTS (FROM overlap WHERE run = $run AND iteration = $iteration AND device <> 'cpu')
"""
"""One row where there are no such windows."""


def over_ranks(count: int) -> str:
    """Over how many ranks a mean is."""
    return f"mean of {count} rank{'' if count == 1 else 's'}"
