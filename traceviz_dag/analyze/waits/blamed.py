"""What tables say of waiting once it was charged: which waits are known, whom they delay by stage, and whom to blame.

Commands start with it, so it imports nothing that charges waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.wording import share
from traceviz_dag.tables.rows import rows_of

JUDGED_COLUMNS = (
    *("rank", "communication", "step", "dimension", "stage", "fault", "arrival_ns", "duration_ns", "clocks"),
    *("wait_aligned_ns", "last_rank_aligned", "wait_by_duration_ns", "last_rank_by_duration", "aligned_refusal"),
    *("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns", "late_category"),
    "late_since_ns",
)
"""Columns of ``collectives`` that everything here needs."""


def judged_waits(collectives: pa.Table) -> pa.Table:
    """The rows whose wait can be known, with ``judged_wait_ns`` and ``late_rank`` by the best measure there is.

    Those of communications with missing members are left out: the last rank may be one of these.
    """
    wait = pc.coalesce(collectives["wait_aligned_ns"], collectives["wait_by_duration_ns"])
    late = pc.coalesce(collectives["last_rank_aligned"], collectives["last_rank_by_duration"])
    rows = collectives.append_column("judged_wait_ns", wait).append_column("late_rank", late)
    return rows.filter(pc.and_(pc.is_valid(wait), pc.is_null(rows["fault"])))


def wait_basis(collectives: pa.Table) -> dict[str, int]:
    """What the waits of matched communication kernels rest on, in kernels.

    Returns:
        ``solved`` clocks, ``durations`` alone, and ``untold``: matched with a peer, but neither measure holds.
    """
    bases = judged_waits(collectives)["clocks"].cast(pa.string())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(bases).to_pylist()}
    untold = pc.and_(pc.is_null(collectives["clocks"]), pc.is_valid(collectives["aligned_refusal"]))
    return {
        "solved": counts.get("solved", 0),
        "durations": counts.get("durations", 0),
        "untold": pc.sum(untold).as_py() or 0,
    }


class LateRank(TypedDict):
    """A row of ``late_ranks``."""

    rank: int
    communications: int
    last: int
    delay_ns: int
    own_ns: int
    own_share: float | None
    steps: int
    late_category: str | None
    blamed: bool


def share_of_step(part: float | None, steps: int) -> str:
    """``own_share`` of a row of ``late_ranks`` in words."""
    known = "–" if part is None else share(part)
    return f"{known} of the step" if steps == 1 else f"up to {known} of a step"


def blamed_ranks(late: pa.Table) -> list[LateRank]:
    """The rows of ``late_ranks`` of the ranks that are to blame, the longest delay first."""
    return sorted((row for row in rows_of(late, LateRank) if row["blamed"]), key=lambda row: -row["own_ns"])


def nobody_blamed(late: Iterable[LateRank], step_ns: int | None, uncertain: int, kernels: int) -> str:
    """Why no rank is blamed, in words: nobody was late, or nothing shows who was.

    Args:
        late: rows of ``late_ranks``, none of them blamed. step_ns: as given to it.
        uncertain: communication kernels without a certain wait (``uncertain_waits``), of ``kernels`` in all.
    """
    if step_ns is None:
        return "nobody can be blamed: the time of the step is not known"
    if not any(row["communications"] for row in late):
        return "nobody can be blamed: no wait among peers of one stage is known"
    nobody = "no rank is to blame for the waiting of its stage's peers"
    if not uncertain:
        return nobody
    return f"{nobody} in the {kernels - uncertain} of {kernels} communication kernels whose waits are certain"


def delays_by(late: pa.Table, place_of: Mapping[int, int | None], name: str) -> pa.Table:
    """Sum the rows of ``late_ranks`` over stages or nodes.

    Args:
        place_of: rank → stage or node; name: the column that says which.

    Returns:
        A row a place: ``ranks``, ``delay_ns``, ``own_ns``, ``worst_rank``; the longest delay first.
    """
    places = [place_of.get(rank) for rank in late["rank"].to_pylist()]
    rows = late.append_column(name, pa.array(places, pa.int64())).filter(pc.is_valid(pa.array(places, pa.int64())))
    rows = rows.sort_by([("own_ns", "descending")])
    sums = [("rank", "count"), ("delay_ns", "sum"), ("own_ns", "sum"), ("rank", "first")]
    table = rows.group_by([name], use_threads=False).aggregate(sums)
    names = {"rank_count": "ranks", "delay_ns_sum": "delay_ns", "own_ns_sum": "own_ns", "rank_first": "worst_rank"}
    table = table.rename_columns([names.get(column, column) for column in table.column_names])
    return table.sort_by([("own_ns", "descending")])
