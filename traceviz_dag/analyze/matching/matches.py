"""Every communication of an iteration with the kernels of other ranks that it is one with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.matching.collective_matching import (
    BY_ORDER_ALONE,
    FAULTS,
    MATCHED_BY,
    UNMATCHED,
    MatchedBy,
    SequenceTrust,
    match_collectives,
)
from traceviz_dag.analyze.matching.communication_groups import BY_SIZE, GroupedRows, group_communications
from traceviz_dag.analyze.matching.communications import Communications, labels, word_column
from traceviz_dag.analyze.matching.message_matching import MessageMatches, is_message, kernel_neighbours, match_messages
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Fault

_VAGUE = (Dimension.WORLD, Dimension.UNKNOWN, None)
"""Dimensions that show no more than that nothing more is known of a communication."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The communications of all ranks, matched; arrays have an entry per row unless said otherwise.

    Attributes:
        rows, grouped: the communications and their groups.
        is_message: whether it is point-to-point.
        communication: number of the matched communication; kernels that share messages, directly or through others,
            are one. ``UNMATCHED`` where none was found.
        matched_by, fault: codes of ``MATCHED_BY`` and ``FAULTS``.
        members: ranks that take part by definition (for messages: the rank and its peers), ``MISSING`` where unknown;
            found: of how many a kernel was found.
        may_meet: number of the ranks that it may have met at most, where ``waits.by_ends`` can say; else ``UNMATCHED``.
        messages: the matched messages.
        end, other: each message from either end, as rows; sorted by ``end``.
        group_of, trust: of the collectives, as ``CollectiveMatches`` has them.
    """

    rows: Communications
    grouped: GroupedRows
    is_message: np.ndarray
    communication: Int64
    matched_by: Int64
    fault: Int64
    members: Int64
    found: Int64
    may_meet: Int64
    messages: MessageMatches
    end: Int64
    other: Int64
    group_of: Int64
    trust: SequenceTrust

    @property
    def collective_rows(self) -> Int64:
        """Rows of matched collectives, messages apart."""
        return np.flatnonzero(~self.is_message & (self.communication >= 0))

    @property
    def by_order_alone(self) -> npt.NDArray[np.bool_]:
        """Mark rows whose group no trace names."""
        by_size = np.array([group.evidence == BY_SIZE for group in self.grouped.groups] + [False])[self.grouped.group]
        return by_size | np.isin(self.matched_by, [MATCHED_BY.index(rule) for rule in BY_ORDER_ALONE])


def match_communications(
    rows: Communications,
    topology: Topology,
    microbatches: pa.Table,
    grouped: GroupedRows | None = None,
    *,
    distrust: bool = False,
) -> Matches:
    """Match the communications of all ranks of an iteration.

    Args:
        topology: the job's groups and pipelines.
        microbatches: the table ``microbatches`` of all ranks, with a column ``rank``.
        grouped: the groups of the rows, where other rows show some of them. distrust: as ``match_collectives``.
    """
    grouped = group_communications(rows, topology) if grouped is None else grouped
    messaging = is_message(rows)
    collectives, exchanges = np.flatnonzero(~messaging), np.flatnonzero(messaging)
    gathered = match_collectives(rows, collectives, grouped, distrust=distrust)
    exchanged = match_messages(rows, exchanges, grouped, microbatches, topology)
    end, other = kernel_neighbours(exchanged)
    count = len(rows)
    communication = np.full(count, UNMATCHED)
    communication[collectives] = gathered.communication
    joined = np.unique(end)
    if len(joined):
        component = connected(end, other, count)[joined]
        communication[joined] = number_groups(component)[1] + int(gathered.communication.max(initial=-1)) + 1
    result = {
        "matched_by": np.full(count, MATCHED_BY.index(MatchedBy.NONE)),
        "fault": np.full(count, FAULTS.index(Fault.NONE)),
        "members": np.full(count, MISSING),
        "found": np.ones(count, dtype=np.int64),
        "may_meet": np.full(count, UNMATCHED),
    }
    for name in ("matched_by", "fault"):
        result[name][collectives], result[name][exchanges] = getattr(gathered, name), getattr(exchanged, name)
    result["members"][collectives], result["found"][collectives] = gathered.members, gathered.found
    peers = _distinct_peers(rows, end, other)
    result["found"][exchanges] = 1 + peers[exchanges]
    fine = result["fault"][exchanges] == FAULTS.index(Fault.NONE)
    result["members"][exchanges[fine]] = 1 + peers[exchanges[fine]]
    rows = _with_one_dimension(rows, communication)
    return Matches(
        rows=rows,
        grouped=grouped,
        is_message=messaging,
        communication=communication,
        matched_by=result["matched_by"],
        fault=result["fault"],
        members=result["members"],
        found=result["found"],
        may_meet=result["may_meet"],
        messages=exchanged,
        end=end,
        other=other,
        group_of=gathered.group_of,
        trust=gathered.trust,
    )


def _with_one_dimension(rows: Communications, communication: Int64) -> Communications:
    """The rows, those of one communication with the dimension that most members show: where one lacks the rows of its
    host, for example, that member's kernel shows no more than its group."""
    code, words = labels(rows.table, "dimension")
    vague = np.array([word in _VAGUE for word in words])
    matched = np.flatnonzero(communication >= 0)
    first, which = number_groups(communication[matched], code[matched])
    first, votes = matched[first], np.bincount(which)
    order = np.lexsort((-code[first], votes, ~vague[code[first]], communication[first]))
    best = np.full(int(communication.max(initial=-1)) + 1, -1)
    best[communication[first[order]]] = code[first[order]]
    told = np.where(communication >= 0, best[communication] if len(best) else code, code)
    if np.array_equal(told, code):
        return rows
    place = rows.table.column_names.index("dimension")
    return replace(rows, table=rows.table.set_column(place, "dimension", word_column(told, words)))


def connected(ends: Int64, others: Int64, count: int) -> Int64:
    """Connected components of a graph: per node the lowest node of its component.

    Args:
        ends, others: the two nodes of each edge; count: number of nodes.
    """
    lowest = np.arange(count)
    while True:
        before = lowest.copy()
        smaller = np.minimum(lowest[ends], lowest[others])
        np.minimum.at(lowest, lowest[ends], smaller)
        np.minimum.at(lowest, lowest[others], smaller)
        lowest = lowest[lowest]
        if np.array_equal(before, lowest):
            return lowest


def _distinct_peers(rows: Communications, end: Int64, other: Int64) -> Int64:
    """How many ranks each row exchanges messages with."""
    pairs = np.unique(np.stack((end, rows.rank[other])), axis=1)
    return np.bincount(pairs[0], minlength=len(rows)).astype(np.int64)
