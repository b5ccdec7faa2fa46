"""The work that records of pipeline operations show, as a graph: who waits for whom within a step.

The edges and joins are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al.,
OSDI 2025): computation runs in its recorded order; receives feed it, and it feeds sends; each kind of message keeps its
order; parameters are gathered before the first forward step and gradients reduced after the last backward step; a send
and its receive, and the members of a collective communication, start together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.causes.graph import Graph, graph_of, tie
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation, PipelineRecords

MESSAGES = {
    Operation.FORWARD_SEND: 0,
    Operation.FORWARD_RECEIVE: -1,
    Operation.BACKWARD_SEND: 0,
    Operation.BACKWARD_RECEIVE: 1,
}
"""Kinds of messages between stages → the sender's stage, seen from the one that recorded it."""

_FEEDS = (
    (Operation.FORWARD, Operation.FORWARD_RECEIVE, Operation.FORWARD_SEND),
    (Operation.BACKWARD, Operation.BACKWARD_RECEIVE, Operation.BACKWARD_SEND),
)
_END_OF_STEP = (
    *(Operation.GARBAGE_COLLECTION, Operation.LAYERNORM, Operation.EMBEDDING),
    *(Operation.REDUCE_SCATTER, Operation.CLIP, Operation.OPTIMIZER),
)
"""What follows the last computation of a stage, in this order."""

_AHEAD_NS = 10_000_000
"""A member that ends so long before the last one starts did not wait for it: its transfer took no time."""

Edges = tuple[Int64, Int64]
"""Operations that wait, and those that they wait for."""


@dataclass(frozen=True, slots=True)
class RecordsWork:
    """Operations and their graph; one entry an operation, sorted by step.

    Attributes:
        step, data_parallel_rank, stage, rank, chunk, microbatch, operation: whose it is, and what (place in
            ``OPERATIONS``); -1 where it is of no micro-batch.
        start_ns: as recorded. own_ns: how long it takes once it starts: the transfer, for a communication that several
            start together.
        join: number of the join that it is a member of; -1 for none.
        begin: node of the begin of all steps.
        graph: the operations, behind them a node for each join, the begin, and whatever else ties operations.
        waiting, waited_for: edges, as given to the graph. waits: per edge, the operation that waits by it.
        lag_ns: per edge, from the end of the latest that the operation waited for to its start; none without a wait.
        faults: one line for each step that was left out.
    """

    step: Int64
    data_parallel_rank: Int64
    stage: Int64
    rank: Int64
    chunk: Int64
    microbatch: Int64
    operation: Int64
    start_ns: Int64
    own_ns: Int64
    join: Int64
    begin: int
    graph: Graph
    waiting: Int64
    waited_for: Int64
    waits: Int64
    lag_ns: Int64
    faults: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.step)

    def places(self) -> dict[int, tuple[int, int]]:
        """Rank → its data-parallel rank and stage, in the order of ranks."""
        ranks, first = np.unique(self.rank, return_index=True)
        whose = zip(self.data_parallel_rank[first].tolist(), self.stage[first].tolist(), strict=True)
        return dict(zip(ranks.tolist(), whose, strict=True))

    def step_times(self, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """How long each step takes: steps, in ascending order, × cases.

        Args:
            own: operations × cases, instead of ``own_ns``.
        """
        joins = np.zeros((self.graph.nodes - len(own), own.shape[1]))
        ends = self.graph.ends(np.concatenate([own, joins]))[: len(own)]
        return np.maximum.reduceat(ends, np.flatnonzero(np.diff(self.step, prepend=self.step[0] - 1)), axis=0)


def records_work(records: PipelineRecords) -> RecordsWork:
    """Build the graph of all steps at once.

    Raises:
        NoEvidenceError: no step has all its operations, or receives do not fit the computation that they feed.
    """
    rows, faults = _whole_steps(records)
    column = {name: rows[name].to_numpy() for name in rows.column_names}
    places = _Places(number_groups(*(column[name] for name in _QUEUE))[1], column["operation"])
    edges = [*_chains(places), *_feeds(places), *_start_and_end(places)]
    waiting, waited_for = (np.concatenate(side) for side in zip(*edges, strict=True))
    join = _joins(column)
    own, count = _own(column, join), len(join)
    nodes, tied, sources = tie(count, waiting, waited_for, join)
    members = np.flatnonzero(join >= 0)
    # What waits for nothing else waits for the begin of its step.
    bare = np.setdiff1d(np.arange(count), waiting)
    tied = np.concatenate([tied, np.where(join[bare] >= 0, count + join[bare], bare)])
    sources = np.concatenate([sources, np.full(len(bare), nodes)])
    lag = _lags(column["start_ns"], own, join, waiting, waited_for)
    lags = np.concatenate([lag[waiting], np.zeros(len(members), np.int64), column["start_ns"][bare]])
    step, dp_rank, stage, rank, chunk, microbatch, operation = (column[name] for name in _WHOSE)
    waits = np.concatenate([waiting, members, bare])
    return RecordsWork(
        step, dp_rank, stage, rank, chunk, microbatch, operation, column["start_ns"], own, join,
        nodes, graph_of(nodes + 1, tied, sources), tied, sources, waits, lags, faults,
    )  # fmt: skip


def _lags(start: Int64, own: Int64, join: Int64, waiting: Int64, waited_for: Int64) -> Int64:
    """Per operation, from the latest end of what it waits for to its start; 0 where it waits for nothing."""
    begin = start.copy()
    members = np.flatnonzero(join >= 0)
    last = np.full(join.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, join[members], start[members])
    begin[members] = last[join[members]]
    arrival = np.full(len(start), np.iinfo(np.int64).min)
    np.maximum.at(arrival, waiting, (begin + own)[waited_for])
    return np.where(arrival == np.iinfo(np.int64).min, 0, start - arrival)


_WHOSE = ("step", "dp_rank", "stage", "rank", "chunk", "microbatch", "operation")
_QUEUE = ("step", "dp_rank", "stage")


def _whole_steps(records: PipelineRecords) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows of steps in which every rank of a stage has as many operations of each kind as in most steps."""
    rows = records.rows
    counts = rows.group_by([*_QUEUE, "operation"]).aggregate([("start_ns", "count")])
    usual: dict[tuple[int, int], int] = {}
    by_kind = counts.group_by(["stage", "operation", "start_ns_count"]).aggregate([("step", "count")]).to_pylist()
    for row in sorted(by_kind, key=lambda row: row["step_count"]):
        usual[row["stage"], row["operation"]] = row["start_ns_count"]
    kinds = counts.to_pandas()
    kinds["usual"] = [usual[key] for key in zip(kinds["stage"], kinds["operation"], strict=True)]
    as_usual = kinds[kinds["usual"] == kinds["start_ns_count"]].groupby("step").size()
    whole = as_usual.index[as_usual == records.data_parallel * len(usual)]
    steps = np.unique(rows["step"].to_numpy())
    if not len(whole):
        raise NoEvidenceError("no step of the records has the same operations on all ranks of a stage")
    left_out = np.setdiff1d(steps, whole)
    if not len(left_out):
        return rows, ()
    named = ", ".join(map(str, left_out[:5].tolist()))
    fault = f"{len(left_out)} of {len(steps)} steps were left out: ranks lack operations in them ({named})"
    return rows.filter(pa.array(np.isin(rows["step"].to_numpy(), whole))), (fault,)


class _Places:
    """Where operations of some kinds are, within their queues: a stage of a data-parallel rank in one step."""

    def __init__(self, queue: npt.NDArray[np.intp], operation: Int64) -> None:
        self._queue = queue
        self._operation = operation
        self._queues = int(queue.max()) + 1

    def of(self, *operations: Operation) -> Int64:
        """Places of some kinds, in the order of the rows."""
        return np.flatnonzero(np.isin(self._operation, [OPERATIONS.index(each) for each in operations]))

    def successive(self, *operations: Operation) -> Edges:
        """Each place of some kinds waits for the one before it in its queue."""
        places = self.of(*operations)
        same = self._queue[places[1:]] == self._queue[places[:-1]]
        return places[1:][same], places[:-1][same]

    def first(self, *operations: Operation) -> Int64:
        """The first place in each queue; -1 where there is none."""
        return self._one(self.of(*operations)[::-1])

    def last(self, *operations: Operation) -> Int64:
        """The last place in each queue; -1 where there is none."""
        return self._one(self.of(*operations))

    def count(self, operation: Operation) -> Int64:
        """How many places of a kind each queue has."""
        return np.bincount(self._queue[self.of(operation)], minlength=self._queues)

    def one_to_one(self, later: Operation, earlier: Operation, shift: int = 0) -> Edges:
        """The n-th place of one kind waits for number n - shift of another, queue by queue."""
        places = self.of(later), self.of(earlier)
        keys = [self._queue[each] * len(self._queue) + self._numbers(each) for each in places]
        _, of_later, of_earlier = np.intersect1d(keys[0], keys[1] + shift, assume_unique=True, return_indices=True)
        return places[0][of_later], places[1][of_earlier]

    def _one(self, places: Int64) -> Int64:
        result = np.full(self._queues, -1, np.int64)
        result[self._queue[places]] = places
        return result

    def _numbers(self, places: Int64) -> Int64:
        queue = self._queue[places]
        return np.arange(len(places)) - np.searchsorted(queue, queue)


def _chains(places: _Places) -> Iterator[Edges]:
    """What runs one after the other: computation, and each kind of message, gathering and reduction for itself."""
    yield places.successive(Operation.FORWARD, Operation.BACKWARD)
    for kind in (*MESSAGES, Operation.GATHER, Operation.REDUCE_SCATTER):
        yield places.successive(kind)


def _feeds(places: _Places) -> Iterator[Edges]:
    """A step of computation waits for what it receives, a receive for the step before, and a send for its step."""
    for computation, receive, send in _FEEDS:
        for message in (receive, send):
            count = places.count(message)
            if ((count != 0) & (count != places.count(computation))).any():
                raise NoEvidenceError(f"a stage has some {message} operations, but not one for each {computation}")
        yield places.one_to_one(computation, receive)
        yield places.one_to_one(receive, computation, shift=1)
        yield places.one_to_one(send, computation)


def _start_and_end(places: _Places) -> Iterator[Edges]:
    """Parameters are gathered before the first forward step; the optimizer's part follows the last computation."""
    gathered = places.last(Operation.GATHER)
    for kind in (Operation.FORWARD, Operation.REDUCE_SCATTER):
        yield _both(places.first(kind), gathered)
    before = places.last(Operation.FORWARD, Operation.BACKWARD)
    for kind in _END_OF_STEP:
        yield _both(places.first(kind), before)
        last = places.last(kind)
        before = np.where(last < 0, before, last)


def _both(later: Int64, earlier: Int64) -> Edges:
    there = (later >= 0) & (earlier >= 0)
    return later[there], earlier[there]


def _joins(column: dict[str, Int64]) -> Int64:
    """Per operation, the number of the join whose member it is; -1 for one that starts by itself.

    Raises:
        NoEvidenceError: a message has no counterpart on the other stage.
    """
    operation = column["operation"]
    join = np.full(len(operation), -1, np.int64)
    sender = np.zeros(len(operation), np.int64)
    direction = np.full(len(operation), -1, np.int64)
    for kind, shift in MESSAGES.items():
        of_kind = operation == OPERATIONS.index(kind)
        sender[of_kind] = column["stage"][of_kind] + shift
        direction[of_kind] = kind in (Operation.BACKWARD_SEND, Operation.BACKWARD_RECEIVE)
    message = np.flatnonzero(direction >= 0)
    keys = (column["step"], column["dp_rank"], direction, sender, column["sequence"])
    _, join[message] = number_groups(*(key[message] for key in keys))
    if (np.bincount(join[message]) != 2).any():
        raise NoEvidenceError("a message between stages was recorded by one of them alone")
    step, sequence = column["step"], column["sequence"]
    for kind, together in (
        (Operation.EMBEDDING, (step, column["dp_rank"])),
        (Operation.GATHER, (step, column["stage"], sequence)),
        (Operation.REDUCE_SCATTER, (step, column["stage"], sequence)),
        (Operation.CLIP, (step,)),
    ):
        members = np.flatnonzero(operation == OPERATIONS.index(kind))
        if len(members):
            join[members] = number_groups(*(key[members] for key in together))[1] + join.max() + 1
    return join


def _own(column: dict[str, Int64], join: Int64) -> Int64:
    """How long each operation takes once it starts; a member of a join starts with the last of them."""
    start, duration = column["start_ns"], column["duration_ns"]
    members = np.flatnonzero(join >= 0)
    last = np.full(join.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, join[members], start[members])
    own = duration.copy()
    transfer = start[members] + duration[members] - last[join[members]]
    own[members] = np.where(transfer <= -_AHEAD_NS, 0, transfer)
    return own
