"""Parts of queries over the tables of an iteration that several rules share."""

from __future__ import annotations

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

PAUSES = "('data_loading', 'garbage_collection', 'compilation', 'graph_break', 'allocation')"
"""Work of the host that rules of ``host_pauses`` find."""

HIDDEN_WAIT = "of_framework = false AND host_work IS DISTINCT FROM 'data_loading' AND starved_ns > 0"
"""Rows of ``gpu_gaps`` in which the GPU starved after its host had waited for it, and need not have."""
