"""Which send and which receive are one message: by schedule and stage order in a pipeline, by their peers elsewhere.

In a pipeline each message has an identity of its own (direction, virtual stage, micro-batch), so both ends are found
without any metadata, in every PyTorch era, batched or not; a recorded peer that contradicts it is a fault. Elsewhere
(context-parallel rings, or steps that nothing shows) the k-th send of a rank to another is the k-th receive there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY, MatchedBy
from traceviz_dag.analyze.matching.communication_groups import GroupedRows
from traceviz_dag.analyze.matching.communications import Communications, labels, optional_integers
from traceviz_dag.analyze.matching.message_schedule import (
    ANY,
    RECEIVES,
    SENDS,
    CarriedMessages,
    RankSchedule,
    carried_messages,
)
from traceviz_dag.analyze.matching.operations import OPERATIONS, Operation
from traceviz_dag.analyze.matching.ring_messages import ring_messages
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import ALL_DIMENSIONS, CPU_DEVICE, Dimension, Fault, Phase

Rows = npt.NDArray[np.intp]
_SEND, _RECEIVE, _BOTH = (
    OPERATIONS.index(each) for each in (Operation.SEND, Operation.RECEIVE, Operation.SEND_RECEIVE)
)


@dataclass(frozen=True, slots=True)
class MessageMatches:
    """Matched messages, and what became of each row that may carry some.

    Attributes:
        sender, receiver: rows of ``Communications`` at both ends of each message, which are in this order.
        backward: whether the message is a gradient (1), an activation (0), or nothing says (MISSING).
        virtual, microbatch: virtual stage that receives it, and its micro-batch; MISSING outside pipelines.
        matched_by, fault, expected: per chosen row; expected counts the messages that it should carry.
    """

    sender: Int64
    receiver: Int64
    backward: Int64
    virtual: Int64
    microbatch: Int64
    matched_by: Int64
    fault: Int64
    expected: Int64


def is_message(rows: Communications) -> npt.NDArray[np.bool_]:
    """Mark point-to-point communications: sends, receives, and the send-receive kernels of pipelines and rings."""
    dimension, words = labels(rows.table, "dimension")
    exchanging = [words.index(each) for each in (Dimension.PP.value, Dimension.CP.value) if each in words]
    single = (rows.operation == _SEND) | (rows.operation == _RECEIVE)
    return single | ((rows.operation == _BOTH) & np.isin(dimension, exchanging))


def match_messages(
    rows: Communications, chosen: Rows, grouped: GroupedRows, microbatches: pa.Table, topology: Topology
) -> MessageMatches:
    """Match the chosen rows (messages) across ranks.

    Args:
        microbatches: the table ``microbatches`` of all ranks, with a column ``rank``.
        topology: gives the pipelines.
    """
    rule = np.full(len(chosen), MATCHED_BY.index(MatchedBy.NONE))
    fault = np.full(len(chosen), FAULTS.index(Fault.NONE))
    halves = _scheduled_halves(rows, chosen, microbatches, topology, rule)
    by_schedule = rule == MATCHED_BY.index(MatchedBy.SCHEDULE)
    rest = np.flatnonzero(~by_schedule & (fault == FAULTS.index(Fault.NONE)))
    halves = np.concatenate((halves, ring_messages(rows, chosen, rest, grouped, rule, fault)))
    return _pair(rows, chosen, halves, rule, fault)


class _Steps:
    """Forward and backward steps of every rank, in the order in which its host ran them."""

    def __init__(self, microbatches: pa.Table) -> None:
        phases = pa.array([Phase.FORWARD.value, Phase.BACKWARD.value])
        whole = pc.and_(
            pc.equal(microbatches["dimension"], ALL_DIMENSIONS), pc.is_in(microbatches["phase"], value_set=phases)
        )
        table = microbatches.filter(whole)
        columns = ("rank", "step", "order_in_rank", "chunk", "microbatch", "host_start_ns", "span_start_ns")
        values = {name: optional_integers(table, name) for name in columns}
        backward = pc.equal(table["phase"], Phase.BACKWARD.value).to_numpy(zero_copy_only=False).astype(np.int64)
        order = np.lexsort((values["order_in_rank"], values["step"], values["rank"]))
        keys = [values[name][order] for name in ("rank", "step", "order_in_rank")]
        # A rank with several devices has its steps once for each.
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
        order = order[fresh]
        self.values = {name: value[order] for name, value in values.items()} | {"backward": backward[order]}
        self._slices: dict[tuple[int, int], slice] = {}
        _, queue = number_groups(self.values["rank"], self.values["step"])
        edges = np.searchsorted(queue, np.arange(int(queue.max(initial=-1)) + 2))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            self._slices[int(self.values["rank"][low]), int(self.values["step"][low])] = slice(low, high)

    def of(self, rank: int, step: int) -> dict[str, Int64] | None:
        """The steps of one rank in one ProfilerStep; None where a step is unknown or lacks its other direction."""
        where = self._slices.get((rank, step))
        if where is None:
            return None
        found = {name: values[where] for name, values in self.values.items()}
        chunk, microbatch, backward = found["chunk"], found["microbatch"], found["backward"] == 1
        if (chunk == MISSING).any() or (microbatch == MISSING).any():
            return None
        there, back = (
            np.sort(chunk[each] * (int(microbatch.max()) + 1) + microbatch[each]) for each in (~backward, backward)
        )
        return found if not len(back) or np.array_equal(there, back) else None


def _scheduled_halves(
    rows: Communications, chosen: Rows, microbatches: pa.Table, topology: Topology, rule: Int64
) -> Int64:
    """The ends of the pipelines' messages: rows of (row, sends, pipeline, step, backward, virtual, micro-batch)."""
    steps = _Steps(microbatches)
    places = {
        rank: (number, stage, len(pipeline))
        for number, pipeline in enumerate(topology.pipelines)
        for stage, rank in enumerate(pipeline)
    }
    chunks = _chunks_of_pipelines(steps, places)
    dimension, words = labels(rows.table, "dimension")
    pipelined = np.flatnonzero(np.array([word == Dimension.PP for word in words])[dimension[chosen]])
    device, devices = labels(rows.table, "device")
    on_cpu = np.array([word == CPU_DEVICE for word in devices])
    if not len(pipelined):
        return np.empty((0, 7), np.int64)
    _, queue = number_groups(rows.rank[chosen[pipelined]], rows.step[chosen[pipelined]])
    ordered = rows.order(chosen[pipelined], queue.astype(np.int64))
    pipelined, queue = pipelined[ordered], queue[ordered]
    edges = np.flatnonzero(np.diff(queue, prepend=-1, append=-1))
    cache: dict[tuple[bytes, ...], CarriedMessages] = {}
    parts = []
    told = _told_pipelines(steps, places, rows, chosen[pipelined])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        of_queue = pipelined[low:high]
        mine = chosen[of_queue]
        rank, step = int(rows.rank[mine[0]]), int(rows.step[mine[0]])
        found, place = steps.of(rank, step), places.get(rank)
        if found is None or place is None or (place[0], step) not in told:
            continue
        pipeline, stage, stages = place
        virtual = found["chunk"] * stages + stage
        schedule = RankSchedule(
            virtual=virtual,
            direction=found["backward"],
            last=chunks[pipeline] * stages - 1,
            gaps=_gaps(rows, mine, found),
            kinds=_kinds(rows.operation[mine]),
            previous_first=bool(on_cpu[device[mine[0]]]),
        )
        carried = cache.get(schedule.key)
        if carried is None:
            carried = cache[schedule.key] = carried_messages(schedule)
        rule[of_queue] = MATCHED_BY.index(MatchedBy.SCHEDULE)
        backward = found["backward"][carried.step]
        target = virtual[carried.step] + np.where(backward == 1, -1, 1) * carried.sends
        constant = (np.full(len(target), pipeline), np.full(len(target), step))
        ends = (backward, target, found["microbatch"][carried.step])
        parts.append(np.stack((mine[carried.exchange], carried.sends, *constant, *ends), axis=1))
    return np.concatenate(parts) if parts else np.empty((0, 7), np.int64)


def _told_pipelines(
    steps: _Steps, places: dict[int, tuple[int, int, int]], rows: Communications, mine: Rows
) -> set[tuple[int, int]]:
    """(pipeline, ProfilerStep) in which the steps of every traced rank are known, so that both ends can be named."""
    everyone, without = set(), set()
    for rank, step in np.unique(np.stack((rows.rank[mine], rows.step[mine])), axis=1).T.tolist():
        place = places.get(rank)
        if place is not None and place[2] > 1:
            everyone.add((place[0], step))
            if steps.of(rank, step) is None:
                without.add((place[0], step))
    return everyone - without


def _chunks_of_pipelines(steps: _Steps, places: dict[int, tuple[int, int, int]]) -> dict[int, int]:
    chunks: dict[int, int] = {}
    ranks, chunk = steps.values["rank"], steps.values["chunk"]
    if not len(ranks):
        return chunks
    first, which = number_groups(ranks)
    highest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(highest, which, chunk)
    for rank, most in zip(ranks[first].tolist(), highest.tolist(), strict=True):
        if rank in places:
            pipeline = places[rank][0]
            chunks[pipeline] = max(chunks.get(pipeline, 1), most + 1)
    return chunks


def _gaps(rows: Communications, mine: Rows, steps: dict[str, Int64]) -> Int64:
    """How many steps were launched before each exchange; by the GPU's times where a launch is not known."""
    launch, host = rows.launch_ns[mine], steps["host_start_ns"]
    if (launch != MISSING).all() and (host != MISSING).all():
        return np.searchsorted(np.maximum.accumulate(host), launch, side="right")
    return np.searchsorted(np.maximum.accumulate(steps["span_start_ns"]), rows.start_ns[mine], side="right")


def _kinds(operation: Int64) -> Int64:
    return np.where(operation == _SEND, SENDS, np.where(operation == _RECEIVE, RECEIVES, ANY))


def _pair(rows: Communications, chosen: Rows, halves: Int64, rule: Int64, fault: Int64) -> MessageMatches:
    """Join the two ends of each message."""
    place_of = np.full(len(rows), -1, dtype=np.int64)
    place_of[chosen] = np.arange(len(chosen))
    expected = np.bincount(place_of[halves[:, 0]], minlength=len(chosen))
    sends, receives = halves[halves[:, 1] == 1], halves[halves[:, 1] == 0]
    keys = [np.concatenate((sends[:, column], receives[:, column])) for column in range(2, 7)]
    first, key = number_groups(*keys)
    of_send, of_receive = key[: len(sends)], key[len(sends) :]
    whole = (np.bincount(of_send, minlength=len(first)) == 1) & (np.bincount(of_receive, minlength=len(first)) == 1)
    sender, receiver = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    sender[of_send], receiver[of_receive] = sends[:, 0], receives[:, 0]
    contradicted = whole.copy()
    contradicted[whole] = _contradicts(rows, sender[whole], receiver[whole])
    kept = whole & ~contradicted
    paired = np.bincount(
        place_of[np.concatenate((sender[kept], receiver[kept]))].astype(np.intp), minlength=len(chosen)
    )
    fine = FAULTS.index(Fault.NONE)
    fault[(fault == fine) & (expected == 0)] = FAULTS.index(Fault.NOT_IN_SCHEDULE)
    fault[(fault == fine) & (paired < expected)] = FAULTS.index(Fault.PEER_MISSING)
    fault[place_of[np.concatenate((sender[contradicted], receiver[contradicted]))]] = FAULTS.index(Fault.PEER_DIFFERS)
    rule[paired == 0] = MATCHED_BY.index(MatchedBy.NONE)
    of_message = [column[first[kept]] for column in keys] if len(first) else [np.empty(0, np.int64)] * 5
    order = np.lexsort((receiver[kept], sender[kept]))
    backward, virtual, microbatch = (column[order] for column in of_message[2:])
    ends = sender[kept][order], receiver[kept][order]
    return MessageMatches(*ends, backward, virtual, microbatch, rule, fault, expected)


def _contradicts(rows: Communications, sender: Int64, receiver: Int64) -> npt.NDArray[np.bool_]:
    """Whether a recorded peer is a rank other than the one found; peers recorded as places in the group pass."""
    destination, source = rows.integers("destination_rank")[sender], rows.integers("source_rank")[receiver]
    # A trace that records global ranks names its own rank on its own side.
    global_send = rows.integers("source_rank")[sender] == rows.rank[sender]
    global_receive = rows.integers("destination_rank")[receiver] == rows.rank[receiver]
    wrong_send = global_send & (destination != MISSING) & (destination != rows.rank[receiver])
    wrong_receive = global_receive & (source != MISSING) & (source != rows.rank[sender])
    return np.asarray(wrong_send | wrong_receive)


def kernel_neighbours(matches: MessageMatches) -> tuple[Int64, Int64]:
    """Each message twice, from either end: (row, the row at the other end)."""
    ends = np.concatenate((matches.sender, matches.receiver))
    others = np.concatenate((matches.receiver, matches.sender))
    order = np.argsort(ends, kind="stable")
    return ends[order], others[order]
