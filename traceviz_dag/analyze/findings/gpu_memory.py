"""What the rules of GPU memory share: when none of them can judge, and how their sentences write bytes."""

from __future__ import annotations

UNPREDICTED = "what memory is used for is no part of the replay"
"""Why nothing predicts what fixing them would save."""

NO_EVENTS = """
SELECT 'no snapshot of GPU memory with events is beside the traces (traceviz capture plan records them)' AS reason
WHERE NOT EXISTS (FROM memory_peaks WHERE run = $run AND iteration = $iteration AND moment = 'peak')
"""
"""One row where no rank's memory over time is known."""

PARTLY = """
SELECT 'not judged on ' || (ranks - known) || ' of ' || ranks || ' ranks, for want of snapshots with events' AS reason
FROM (SELECT count(*) AS ranks FROM traces WHERE run = $run AND iteration = $iteration) CROSS JOIN (
    SELECT count(DISTINCT rank) AS known FROM memory_peaks
    WHERE run = $run AND iteration = $iteration AND moment = 'peak'
)
WHERE known > 0 AND known < ranks
"""
"""One row where the memory of some ranks is known over time, and that of others is not."""

RANKS = "(SELECT count(*) FROM traces WHERE run = $run AND iteration = $iteration)"
"""How many ranks of the iteration have a trace."""

LEAST_BYTES = 256 << 20
"""Less memory than that is not worth a line."""


def known(ranks: int, of_ranks: int) -> str:
    """Of how many ranks a rule knows the memory, in words."""
    return f"known of {ranks} of {of_ranks} rank{'' if of_ranks == 1 else 's'}"


def mebibytes(count: int) -> str:
    """Bytes as sentences write them."""
    return f"{count / (1 << 20):,.2f} MiB"
