"""What the tables of ranks show of their hosts: who is bound by launches, who waited without need, who paused."""

from __future__ import annotations

from typing import Any

from traceviz_dag.analyze.findings.fragments import HIDDEN_WAIT, PAUSES
from traceviz_dag.analyze.findings.rules import host_pauses, launch_bound
from traceviz_dag.analyze.findings.rules.registry import SHARED
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.findings import speaking_rules

_HOST_CLUES_SQL = f"""
WITH clues AS (
    SELECT rank, synchronization_id, kernel_id, {HIDDEN_WAIT} AS waits,
        CASE WHEN {host_pauses.UNNAMED} THEN starved_ns ELSE doing_ns END AS pause_ns,
        -- What loading data usually takes, the graph itself shows.
        kernel_id IS NOT NULL AND (host_work IN {PAUSES} AND host_work <> 'data_loading'
            OR {host_pauses.UNNAMED} AND rank IN (SELECT rank FROM ({host_pauses.UNNAMED_SQL}))) AS pauses
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration
)
SELECT
    rank, list(DISTINCT synchronization_id) FILTER (waits) AS waits,
    list({{'kernel_id': kernel_id, 'ns': pause_ns}}) FILTER (pauses) AS pauses
FROM clues WHERE waits OR pauses GROUP BY rank
"""


def about_hosts(lake: Lake, run: str, iteration: int) -> list[list[dict[str, Any]]]:
    """Rows of who is bound by launches, of what hosts waited and paused for, and of the rules on pauses."""
    with lake.session(run=run, iteration=iteration) as session:
        pauses = [rule.sql for rule in speaking_rules(session, host_pauses.RULES)]
        answers = session.ask_each([launch_bound.RANKS_SQL, _HOST_CLUES_SQL, *pauses], SHARED)
    return [rows.to_pylist() for rows in answers]
