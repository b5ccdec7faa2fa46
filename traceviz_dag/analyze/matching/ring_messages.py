"""Ends of messages whose peers are known from the trace or from a ring: pairs in the order of launch.

A trace of a new PyTorch names source and destination; in a group of two the peer is the other one; in a larger group
without names the only exchange that Megatron runs is the ring of context parallelism, to the next and from the last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY, MatchedBy
from traceviz_dag.analyze.matching.communication_groups import CommunicationGroup, GroupedRows
from traceviz_dag.analyze.matching.communications import Communications, labels
from traceviz_dag.analyze.matching.operations import OPERATIONS, Operation
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Fault

Rows = npt.NDArray[np.intp]
_SEND = OPERATIONS.index(Operation.SEND)
_RECEIVE = OPERATIONS.index(Operation.RECEIVE)
_BOTH = OPERATIONS.index(Operation.SEND_RECEIVE)


def ring_messages(
    rows: Communications, chosen: Rows, rest: Rows, grouped: GroupedRows, rule: Int64, fault: Int64
) -> Int64:
    """The ends of messages that no schedule shows, as ``message_matching`` pairs them.

    Args:
        chosen: rows that are messages; rest: positions in it that are to be matched here.
        rule, fault: of each chosen row; set where something is found out.

    Returns:
        (row, sends, channel, step, MISSING, MISSING, ordinal) of each end; a channel is a sender, a receiver, a group.
    """
    mine = chosen[rest]
    following, preceding = _peers(rows, mine, grouped)
    operation = rows.operation[mine]
    sends = np.flatnonzero((operation != _RECEIVE) & (following != MISSING))
    receives = np.flatnonzero((operation != _SEND) & (preceding != MISSING))
    unknown = np.ones(len(rest), dtype=bool)
    unknown[sends], unknown[receives] = False, False
    fault[rest[unknown]] = FAULTS.index(Fault.NO_SCHEDULE)
    at = np.concatenate((sends, receives))
    if not len(at):
        return np.empty((0, 7), np.int64)
    is_send = np.concatenate((np.ones(len(sends)), np.zeros(len(receives)))).astype(np.int64)
    source = np.concatenate((rows.rank[mine[sends]], preceding[receives]))
    target = np.concatenate((following[sends], rows.rank[mine[receives]]))
    step, group = rows.step[mine[at]], grouped.group[mine[at]]
    _, channel = number_groups(source, target, group, step)
    channel = channel.astype(np.int64)
    queue = channel * 2 + is_send
    order = rows.order(mine[at], queue)
    ordinal = np.empty(len(at), dtype=np.int64)
    lengths = np.bincount(queue)
    ordinal[order] = np.arange(len(at)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    counts = np.bincount(queue, minlength=2 * (int(channel.max()) + 1)).reshape(-1, 2)
    # Both ends there, but not equally often: which of them lacks its peer cannot be known.
    unequal = (counts.min(axis=1) > 0) & (counts[:, 0] != counts[:, 1])
    rule[rest[at]] = MATCHED_BY.index(MatchedBy.PEERS)
    fault[rest[at[unequal[channel]]]] = FAULTS.index(Fault.ORDER_DIFFERS)
    kept = ~unequal[channel]
    nothing = np.full(len(at), MISSING)
    table = np.stack((mine[at], is_send, channel, step, nothing, nothing, ordinal), axis=1)
    return table[kept]


def _peers(rows: Communications, mine: Rows, grouped: GroupedRows) -> tuple[Int64, Int64]:
    """The rank that each row sends to and the one that it receives from, where that is known."""
    rank, group = rows.rank[mine], grouped.group[mine]
    source, destination = rows.integers("source_rank")[mine], rows.integers("destination_rank")[mine]
    if not len(mine):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, pair = number_groups(group, rank, source, destination)
    ends = np.full((len(first), 2), MISSING)
    for number, row in enumerate(first.tolist()):
        if group[row] >= 0:
            ends[number] = _ends(grouped.groups[group[row]], int(rank[row]), int(source[row]), int(destination[row]))
    following, preceding = ends[pair, 0], ends[pair, 1]
    # In a pipeline both neighbours send and receive: without a schedule only a recorded or the only peer is certain.
    dimension, words = labels(rows.table, "dimension")
    pipelined = np.array([word == Dimension.PP for word in words])[dimension[mine]]
    sizes = np.array([len(each.members or ()) for each in grouped.groups] or [0])[group]
    uncertain = pipelined & ((rows.operation[mine] == _BOTH) | ((sizes != 2) & (source == MISSING)))
    return np.where(uncertain, MISSING, following), np.where(uncertain, MISSING, preceding)


def _ends(group: CommunicationGroup, rank: int, source: int, destination: int) -> tuple[int, int]:
    """(to whom, from whom) of one rank in its group."""
    members = group.members
    if MISSING not in (source, destination):
        if rank in (source, destination):
            return destination, source
        if members is not None and max(source, destination) < len(members):
            # Places in the group instead of global ranks.
            return members[destination], members[source]
    if members is None or rank not in members or len(members) < 2:
        return MISSING, MISSING
    place = members.index(rank)
    return members[(place + 1) % len(members)], members[place - 1]
