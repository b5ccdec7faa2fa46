"""Why nothing shows for certain who waited for whom, and which ranks to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.wording import numbered
from traceviz_dag.spans import spanned
from traceviz_dag.vocabulary import Fault, Refusal

UNKNOWN_COLUMNS = (
    *("rank", "dimension", "group_name", "members", "members_found", "matched_by", "fault", "aligned_refusal"),
    *("wait_aligned_ns", "wait_by_duration_ns"),
)
"""Columns of ``collectives`` that are read here."""

NOTABLE_LOSS = 0.01
"""Share of communication kernels whose other members' kernels are lost, from which an answer is not certain."""

CONTRADICTS = frozenset({Fault.ORDER_DIFFERS, Fault.OPERATIONS_DIFFER})
"""What a communication is that contradicts those of other ranks."""

_WHY = {
    Fault.NO_GROUP: "nothing shows their process groups",
    Fault.GROUPS_CONTRADICTED: "the traces contradict the groups in unique_parallel_groups_*; replace or remove it",
    Fault.MEMBERS_UNKNOWN: "nothing shows who takes part in them",
    Fault.NO_SCHEDULE: "the pipeline's steps, which show what each message carries, are not known",
    Fault.NOT_IN_SCHEDULE: "the pipeline's steps have no messages for them",
    Fault.PEER_MISSING: "the other ends of their messages were not found",
    Fault.PEER_DIFFERS: "recorded peers contradict the pipeline's steps",
    Refusal.ORDER_ALONE: "they are matched by order alone, and their ends do not confirm it",
}


@dataclass(frozen=True, slots=True)
class UnknownWaits:
    """Why waits are unknown.

    Attributes:
        reason: in a sentence that begins with how many kernels it is about.
        unread: whether it is for ranks alone that were not read, which is said of the iteration anyway.
    """

    reason: str
    unread: bool


def uncertain_waits(collectives: pa.Table) -> int:
    """How many communication kernels are not matched, or not wholly, or have no wait by any measure to go by."""
    untold = pc.is_null(pc.coalesce(collectives["wait_aligned_ns"], collectives["wait_by_duration_ns"]))
    return pc.sum(pc.or_(untold, pc.is_valid(collectives["fault"]))).as_py() or 0


def unknown_waits(collectives: pa.Table) -> UnknownWaits | None:
    """Why no wait of several ranks is certain, or whose communications contradict the others'; None where neither is.

    Args:
        collectives: that table, or its ``UNKNOWN_COLUMNS``.
    """
    uncertain, ranks = uncertain_waits(collectives), pc.unique(collectives["rank"])
    faults = set(pc.unique(collectives["fault"]).to_pylist())
    foreign = Fault.GROUPS_CONTRADICTED in faults
    if len(ranks) < 2 or not (foreign or faults & CONTRADICTS or uncertain == collectives.num_rows):
        return None
    rows = collectives.select(list(UNKNOWN_COLUMNS)).to_pylist()
    contradicting = [row for row in rows if row["fault"] in CONTRADICTS]
    about = f"{uncertain} of {len(rows)} communication kernels have no certain wait"
    if foreign:
        return UnknownWaits(f"{about}: {_WHY[Fault.GROUPS_CONTRADICTED]}", unread=False)
    if contradicting:
        return UnknownWaits(f"{about}: {_contradiction(rows, contradicting)}", unread=False)
    causes = Counter(row["fault"] or row["aligned_refusal"] for row in rows)
    cause = causes.most_common(1)[0][0]
    if cause == Fault.MEMBERS_MISSING:
        largest = max(row["members"] or 0 for row in rows)
        unread = len(ranks) < largest
        read = f"only {len(ranks)} of the {largest} ranks that take part were read"
        return UnknownWaits(f"{about}: {read if unread else 'members have no kernel for them'}", unread)
    return UnknownWaits(f"{about}: {_WHY.get(cause, 'neither solved clocks nor durations show it')}", unread=False)


def lost_kernels(collectives: pa.Table, all_read: Callable[[], bool]) -> UnknownWaits | None:
    """Of what share of communication kernels the traces lost those of other members; None where it is no doubt.

    A group of which no communication is whole tells nothing where ranks of it may not have been read.

    Args:
        collectives: that table, or its ``UNKNOWN_COLUMNS``. all_read: says whether all ranks of the job were read.
    """
    if Fault.MEMBERS_MISSING not in pc.unique(collectives["fault"]).to_pylist():
        return None
    rows = collectives.select(list(UNKNOWN_COLUMNS)).to_pylist()
    whole = {_group(row) for row in rows if row["members"] is not None and row["members_found"] == row["members"]}
    every = all_read()
    lost = sum(row["fault"] == Fault.MEMBERS_MISSING and (every or _group(row) in whole) for row in rows)
    if not lost or lost < NOTABLE_LOSS * len(rows):
        return None
    reason = (
        f"{lost} of {len(rows)} communication kernels have no certain wait: members that were read have no kernel for "
        "them; their traces lost rows, or end elsewhere"
    )
    return UnknownWaits(reason, unread=False)


def _contradiction(rows: list[dict[str, object]], contradicting: list[dict[str, object]]) -> str:
    """Whose communications contradict whose, by number where that differs."""
    if all(row["fault"] == Fault.OPERATIONS_DIFFER for row in contradicting):
        return f"{_ranks(contradicting)} call different operations at the same places; look there"
    odd = [row for row in contradicting if row["fault"] == Fault.ORDER_DIFFERS]
    groups, ranks = {_group(row) for row in odd}, {row["rank"] for row in odd}
    mine, peers = (
        [row for row in rows if _group(row) in groups and (row["rank"] in ranks) == inside] for inside in (True, False)
    )
    own, theirs = _counts(mine), _counts(peers)
    if len({row["rank"] for row in peers}) <= len(ranks):
        return f"the communications of {_ranks([*odd, *peers])} contradict each other in {_differs(own, theirs)}"
    number = f" ({spanned(own)} of them, not {spanned(theirs)})" if own.isdisjoint(theirs) else ""
    return (
        f"the communications of {_ranks(odd)}{number} contradict those of {_ranks(peers)} in "
        f"{_differs(own, theirs)}; look at {_ranks(odd)}"
    )


def _differs(own: set[int], theirs: set[int]) -> str:
    return "number" if theirs and own.isdisjoint(theirs) else "order, operation, kernel, size or end"


def _group(row: dict[str, object]) -> tuple[object, ...]:
    return row["group_name"], row["members"], row["dimension"]


def _counts(rows: list[dict[str, object]]) -> set[int]:
    """How many communications each rank of some rows has."""
    return set(Counter((row["rank"], _group(row)) for row in rows).values())


def _ranks(rows: list[dict[str, object]]) -> str:
    return numbered("rank", pc.unique(pa.array([row["rank"] for row in rows], pa.int64())).to_pylist())
