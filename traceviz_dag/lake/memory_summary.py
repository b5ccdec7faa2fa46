"""Who holds the highest peak of GPU memory of an iteration, from the tables of its snapshots."""

from __future__ import annotations

from typing import Any

from traceviz_dag.lake.lake import Lake
from traceviz_dag.vocabulary import MatchEvidence

_PEAK = """
WITH peaks AS (
    SELECT rank, device, CAST(sum(requested_bytes) AS BIGINT) AS peak_requested_bytes
    FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak' AND rank IN (
        SELECT rank FROM traces WHERE run = $run AND iteration = $iteration AND status IN ('read', 'partial')
    )
    GROUP BY rank, device
),
highest AS (SELECT * FROM peaks ORDER BY peak_requested_bytes DESC, rank, device LIMIT 1),
held AS (
    SELECT category, site, CAST(sum(requested_bytes) AS BIGINT) AS bytes,
        CAST(sum(sum(requested_bytes)) OVER (PARTITION BY category) AS BIGINT) AS category_bytes
    FROM (
        SELECT * FROM memory_blocks WHERE run = $run AND iteration = $iteration AND live_at_peak
    ) JOIN highest USING (rank, device) LEFT JOIN (
        SELECT rank, stack_id, site FROM memory_stacks WHERE run = $run AND iteration = $iteration
    ) USING (rank, stack_id)
    GROUP BY category, site
)
SELECT
    rank, device, peak_requested_bytes, category, category_bytes, site, bytes AS site_bytes,
    (SELECT count(DISTINCT rank) FROM peaks) AS ranks,
    (
        SELECT any_value(matched_by) FROM memory_recordings
        WHERE run = $run AND iteration = $iteration AND rank = highest.rank
    ) AS matched_by
FROM highest LEFT JOIN (SELECT * FROM held ORDER BY category_bytes DESC, category, bytes DESC, site LIMIT 1) ON true
"""


def memory_peak(lake: Lake, run: str, iteration: int) -> dict[str, Any] | None:
    """The rank whose GPU has most requested at its peak, the category that has most of it, and in this the call site.

    Returns:
        rank, device, peak_requested_bytes, category, category_bytes, site (None without call stacks), site_bytes,
        ranks: how many have a trace that was read and a snapshot with events, and matched_by: what shows that this
        snapshot is of its trace; None where no rank has, or nothing is requested.
    """
    if not lake.partitions("memory_peaks", run, iteration):
        return None
    rows = lake.query_iteration(_PEAK, run=run, iteration=iteration).to_pylist()
    return rows[0] if rows and rows[0]["site_bytes"] else None


def memory_statement(peak: dict[str, Any]) -> str:
    """It in one line."""
    mebibytes = {name: f"{peak[name] / (1 << 20):,.2f}" for name in ("peak_requested_bytes", "site_bytes")}
    share = peak["category_bytes"] / peak["peak_requested_bytes"]
    site = "without call stacks" if peak["site"] is None else f"of {peak['site']}"
    alone = "the only rank" if peak["ranks"] == 1 else f"most of the {peak['ranks']} ranks"
    alike = ", matched to its trace by its name alone" if peak["matched_by"] == MatchEvidence.NAME else ""
    return (
        f"GPU memory of rank {peak['rank']}, {alone} with a snapshot{alike}: {mebibytes['peak_requested_bytes']} MiB "
        f"requested at the peak, {100 * share:.1f} % of it {str(peak['category']).replace('_', ' ')}, in that "
        f"most {site}: "
        f"{mebibytes['site_bytes']} MiB (tables memory_peaks, memory_blocks)"
    )
