"""Parts of queries that several rules share; each is a subquery in brackets, over the tables of an iteration."""

from __future__ import annotations

STAGES = "(SELECT rank, stage FROM topology WHERE run = $run AND iteration = $iteration)"
"""rank, stage."""

MEASURED = """(
    SELECT rank, device, window_name, sum(window_end_ns - window_start_ns) AS window_ns
    FROM overlap
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND (rank, device, window_name) IN (
        SELECT (rank, device, window_name) FROM gpu_gaps WHERE run = $run AND iteration = $iteration
    )
    GROUP BY rank, device, window_name
)"""
"""rank, device, window_name, window_ns: the time of which gaps are known."""

PAUSES = "('data_loading', 'garbage_collection', 'compilation', 'allocation')"
"""Work of the host that rules of ``host_pauses`` find."""
