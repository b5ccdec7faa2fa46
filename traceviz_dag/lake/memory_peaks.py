"""Who held the peak of GPU memory of a rank, from the tables of an iteration."""

from __future__ import annotations

from collections.abc import Mapping

from traceviz_dag.lake.lake import Lake

_HELD = """
WITH devices AS (
    SELECT arg_max(device, (reserved_bytes, -device)) AS device
    FROM memory_peaks WHERE run = $run AND iteration = $iteration AND rank = {rank}
)
SELECT
    coalesce({text}, CASE WHEN alloc_event_id IS NULL THEN '{before}' ELSE '{frameless}' END) AS text,
    category, CAST(sum(requested_bytes) AS BIGINT) AS bytes, count(*) AS blocks
FROM memory_blocks JOIN devices USING (device) LEFT JOIN (
    SELECT stack_id, {text} FROM memory_stacks WHERE run = $run AND iteration = $iteration AND rank = {rank}
) USING (stack_id)
WHERE run = $run AND iteration = $iteration AND rank = {rank} AND live_at_peak
GROUP BY ALL
"""


def stored_at_peak(
    lake: Lake, run: str, iteration: int, rank: int, *, whole_stacks: bool, before: str, frameless: str
) -> Mapping[tuple[str, str], tuple[int, int]] | None:
    """Requested bytes and blocks that are live when most is requested, on the GPU with most reserved memory.

    Args:
        whole_stacks: tell Python stacks apart, not only who asked.
        before, frameless: stand for the stacks of blocks without one, from before the recording and since.

    Returns:
        (stack, category) → bytes and blocks; None where the rank has no snapshot.
    """
    text = "python_text" if whole_stacks else "site"
    if not lake.partitions("memory_peaks", run, iteration, rank):
        return None
    sql = _HELD.format(rank=int(rank), text=text, before=before, frameless=frameless)
    rows = lake.query_iteration(sql, run=run, iteration=iteration).to_pylist()
    return {(row["text"], str(row["category"])): (row["bytes"], row["blocks"]) for row in rows} or None
