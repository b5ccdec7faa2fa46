"""When a rank counts as slow, and what is said of one, from its row of table ``rank_speeds``.

Commands start with it, so it imports nothing that measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from traceviz_dag.analyze.wording import numbered

SLOWER, SLOWER_THAN_FEW = 0.03, 0.05
"""How much longer than the median of its peers a rank takes for an item to count: the second one where it has fewer
than three peers, whose spread cannot be known."""

LEAST_ITEMS = 0.8
"""Share of the items in which a slow rank is slower."""

MEMORY_SLOWER = 1.1
"""How much longer kernels bound by memory take at least where memory alone is slow."""

MAY_BE_WORK = "it may be its work and not its GPU: no sizes, messages within layers or grids show how much it has to do"
"""What is said of a slow rank where nothing shows that it has as much to do as its peers."""


class SlowRank(TypedDict):
    """A row of the table ``rank_speeds``."""

    rank: int
    stage: int | None
    peers: int
    items: int
    slower_items: float | None
    ratio: float | None
    more_ns: int | None
    work: float | None
    work_by: str | None
    slow: bool | None
    slow_in: str | None
    slow_steps: list[int] | None
    slow_ratio: float | None
    slow_more_ns: int | None
    kernel: str | None


def slow_statement(row: SlowRank) -> str:
    """What is said of a slow rank, from its row of ``slow_ranks``.

    Raises:
        ValueError: the rank has no peer to be compared with.
    """
    steps = row["slow_steps"]
    ratio, more_ns = (row["slow_ratio"], row["slow_more_ns"]) if steps else (row["ratio"], row["more_ns"])
    if ratio is None or more_ns is None:
        raise ValueError(f"rank {row['rank']} has no peer to be compared with")
    where = "" if row["stage"] is None else f" of stage {row['stage']}"
    peers = f"{row['peers']} peer{'s' if row['peers'] > 1 else ''}"
    return (
        f"rank {row['rank']} computes slowly{in_steps(steps)}: the same kernels take {ratio:.2f} times as long as on "
        f"the median of its {peers}{where}, {more_ns / 1e6:,.3f} ms more; no clock is needed for this, and it "
        "is not what fixing it would save" + ("" if row["work_by"] else f"; {MAY_BE_WORK}")
    )


def in_steps(steps: Sequence[int] | None) -> str:
    """In which training steps alone a rank is slow, in words; nothing where it is so in all."""
    return f" in {numbered('step', steps)} alone" if steps else ""
