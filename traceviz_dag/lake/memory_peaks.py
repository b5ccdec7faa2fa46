"""Who held the peak of GPU memory of each rank, from the tables of an iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.lake.lake import Lake

_DEVICES = """
WITH devices AS (
    SELECT rank, arg_max(device, (reserved_bytes, -device)) AS device
    FROM memory_peaks WHERE run = $run AND iteration = $iteration GROUP BY rank
)
"""
_HELD = (
    _DEVICES
    + """
SELECT
    rank, coalesce({text}, CASE WHEN alloc_event_id IS NULL THEN '{before}' ELSE '{frameless}' END) AS text,
    category, CAST(sum(requested_bytes) AS BIGINT) AS bytes, count(*) AS blocks
FROM (
    SELECT * FROM memory_blocks WHERE run = $run AND iteration = $iteration AND live_at_peak
) JOIN devices USING (rank, device) LEFT JOIN (
    SELECT rank, stack_id, {text} FROM memory_stacks WHERE run = $run AND iteration = $iteration
) USING (rank, stack_id)
GROUP BY ALL
"""
)
_RANKS = (
    _DEVICES
    + """
SELECT rank, device, stage, events, overwritten, lost + (contradictions <> '{}')::INTEGER > 0 AS in_part
FROM devices LEFT JOIN (
    SELECT rank, device, events, overwritten, lost, contradictions FROM memory_recordings
    WHERE run = $run AND iteration = $iteration
) USING (rank, device) LEFT JOIN (
    SELECT rank, stage FROM topology WHERE run = $run AND iteration = $iteration
) USING (rank)
ORDER BY rank
"""
)


@dataclass(frozen=True, slots=True)
class StoredPeak:
    """The peak of a rank, on its GPU with most reserved memory.

    Attributes:
        held: (stack, category) → requested bytes and blocks.
        stage: its pipeline stage; None where the topology does not show.
        events: of the snapshot; of one without any the end counts as the peak. None where nobody stored it.
        overwritten: whether older events were overwritten; None where the snapshot does not show.
        in_part: whether something of the snapshot could not be used, or contradicts itself.
    """

    held: Mapping[tuple[str, str], tuple[int, int]]
    device: int
    stage: int | None
    events: int | None
    overwritten: bool | None
    in_part: bool

    @property
    def peak_bytes(self) -> int:
        """Bytes requested then."""
        return sum(size for size, _ in self.held.values())


def stored_at_peaks(
    lake: Lake, run: str, iteration: int, *, whole_stacks: bool, before: str, frameless: str
) -> dict[int, StoredPeak]:
    """Requested bytes and blocks that are live when most is requested, of every rank with a snapshot.

    Args:
        whole_stacks: distinguish Python stacks, not only who asked.
        before, frameless: represent the stacks of blocks without one, from before the recording and since.
    """
    if not lake.partitions("memory_peaks", run, iteration):
        return {}
    sql = _HELD.format(text="python_text" if whole_stacks else "site", before=before, frameless=frameless)
    held: defaultdict[int, dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
    for row in lake.query_iteration(sql, run=run, iteration=iteration).to_pylist():
        held[row["rank"]][row["text"], str(row["category"])] = (row["bytes"], row["blocks"])
    return {
        row["rank"]: StoredPeak(
            held[row["rank"]], row["device"], row["stage"], row["events"], row["overwritten"], bool(row["in_part"])
        )
        for row in lake.query_iteration(_RANKS, run=run, iteration=iteration).to_pylist()
    }
