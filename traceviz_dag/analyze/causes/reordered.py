"""Another number of micro-batches, or another schedule: the step with the order of its work made anew.

No trace shows that order, so its kernels cannot be replayed. *Items* are, instead of kernels: a micro-batch's forward
or backward step in one model chunk, and the exchanges with the neighbouring stages in between. An item takes what it
took on its rank on average over the micro-batches, the first and the last each what it took itself: parameters are
gathered in the one, gradients reduced in the other. What follows a rank's last item (gradient synchronisation,
optimizer) comes by as much later as that item does. Messages are joins, as in the graph of kernels:

    T' = T + items(new order) - items(present order)

How far items(present order) is from the step says how good the model is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.measured_items import Item, Key, MeasuredRank, measured_ranks, message_members
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.matching.matches import connected
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import Action, Await, Backward, Combined, Exchange, Forward, Order, Transfer

SCHEDULES = ("1f1b", "interleaved", "interleaved-overlapped")
"""Schedules for which an order can be made."""

_MOST_ITEMS = 200_000
"""Forward steps of all ranks that are replayed at most: a minute of one processor, and 1 GB."""

Kind = frozenset[tuple[bool, int]]
"""Items that differ only in their micro-batch: (backward, chunk) of each step."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be another.

    Attributes:
        microbatches: of a training step; None: as it is. schedule: one of ``SCHEDULES``; None: as it is.
    """

    microbatches: int | None = None
    schedule: str | None = None

    def merged(self, other: Change) -> Change:
        """Both changes."""
        return Change(other.microbatches or self.microbatches, other.schedule or self.schedule)

    def order(self, present: Order) -> Order:
        """The order that follows from the present one.

        Raises:
            NoEvidenceError: there is none, with the reason.
        """
        result = replace(present, microbatches=self.microbatches or present.microbatches)
        if self.schedule is not None:
            if present.stages == 1:
                raise NoEvidenceError("a single pipeline stage has no other schedule")
            if self.schedule == "1f1b" and present.combined:
                raise NoEvidenceError(
                    "forward and backward steps run into each other, so nothing shows what each takes alone"
                )
            if self.schedule != "1f1b" and present.chunks == 1:
                raise NoEvidenceError("interleaving needs several model chunks in a stage, and the job has one")
            chunks = 1 if self.schedule == "1f1b" else present.chunks
            result = replace(result, chunks=chunks, overlapped=self.schedule == "interleaved-overlapped")
        if result.chunks > 1 and result.microbatches % result.stages:
            raise NoEvidenceError(
                f"interleaving needs a multiple of {result.stages} micro-batches, the number of pipeline stages"
            )
        return result


@dataclass(frozen=True, slots=True)
class Items:
    """All items of a step.

    Attributes:
        ranks: what each rank's took. pipelines: places of the ranks of each pipeline, by stage.
        step_ns: the step that they were measured in.
    """

    ranks: tuple[MeasuredRank, ...]
    pipelines: tuple[tuple[int, ...], ...]
    step_ns: int

    def present(self) -> Order:
        """The order that the items were run in; where two fit, the one whose replay is nearer to the step.

        Raises:
            NoEvidenceError: it is none that is known.
        """
        parts = [step for rank in self.ranks for item in rank.items for step in item.parts]
        _, chunks, microbatches = (1 + max(column) for column in zip(*parts, strict=True))
        combined = any(len(item.parts) > 1 for rank in self.ranks for item in rank.items)
        orders = [
            Order(len(self.pipelines[0]), chunks, microbatches, combined, overlapped)
            for overlapped in ((False, True) if chunks > 1 else (False,))
        ]
        fitting = [order for order in orders if self._fit(order)]
        if not fitting:
            raise NoEvidenceError("its micro-batches run in the order of no schedule that is known")
        if len(fitting) == 1:
            return fitting[0]
        return min(fitting, key=lambda order: abs(self.replayed(order, order) - self.step_ns))

    def replayed(self, order: Order, present: Order, own: Items | None = None) -> int:
        """The step with mean items in an order, ns.

        Args:
            own: whose items' durations are taken; by default these.

        Raises:
            NoEvidenceError: the order has items that a rank did not run.
        """
        count = len(self.ranks) * order.chunks * order.microbatches
        if count > _MOST_ITEMS:
            raise NoEvidenceError(f"{count:,} forward steps are too many to replay; ask for fewer micro-batches")
        chains = _Chains(order)
        taken = (own or self).ranks
        last = {}
        for pipeline in self.pipelines:
            for stage, place in enumerate(pipeline):
                durations = _mean_items(taken[place].items, order, present, stage)
                last[place] = chains.add(self.ranks[place], durations, pipeline, stage)
        ends = chains.ends()
        return self.step_ns + max(
            int(ends[node]) - self.ranks[place].items[-1].end_ns - self.ranks[place].slack_ns
            for place, node in last.items()
        )

    def changed(self, change: Change, ahead: Callable[[], Items] | None = None) -> tuple[int, float, tuple[int, int]]:
        """What a change of the order does.

        Args:
            ahead: the items of a host that waits for no exchange; these by default.

        Returns:
            How much longer the step is, ns; how far its replay with mean items is off, as a share of it; the numbers of
            micro-batches before and after.

        Raises:
            NoEvidenceError: the order is not known, or cannot be made.
        """
        present = self.present()
        order = change.order(present)
        before = self.replayed(present, present)
        # Where exchanges run beside computation the host waits for none of them, and launches ahead.
        own = ahead() if ahead is not None and order.overlapped and not present.overlapped else self
        later = self.replayed(order, present, own) - before
        return later, before / self.step_ns - 1, (present.microbatches, order.microbatches)

    def _fit(self, order: Order) -> bool:
        return all(
            [item.parts for item in self.ranks[place].items] == _keys(order.actions(stage))
            for pipeline in self.pipelines
            for stage, place in enumerate(pipeline)
        )


def items_of(step: StepWork, times: Sequence[Times], stages: Sequence[int]) -> Items:
    """Measure the items of a step.

    Args:
        times: of the step, edited or not. stages: stage of each rank; ``MISSING`` where unknown.

    Raises:
        NoEvidenceError: a rank shows no micro-batches, or a pipeline was not read whole.
    """
    ranks = tuple(measured_ranks(step, times))
    for number, rank in zip(step.ranks, ranks, strict=True):
        if not rank.items:
            raise NoEvidenceError(f"rank {number} shows no forward and backward steps of micro-batches")
    return Items(ranks, _pipelines(step, stages), step.step_ns(step.replay(times)))


def _pipelines(step: StepWork, stages: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks that exchange messages between stages, by stage."""
    members = step.members
    message = np.flatnonzero(message_members(step))
    message = message[np.argsort(members.meeting[message], kind="stable")]
    ends = members.rank[message].reshape(-1, 2).T if len(message) % 2 == 0 else members.rank[:0].reshape(2, 0)
    together = connected(ends[0], ends[1], len(step.ranks))
    result = []
    for lowest in np.unique(together).tolist():
        places = sorted(np.flatnonzero(together == lowest).tolist(), key=lambda place: stages[place])
        result.append(tuple(places))
    count = max(max(stages) + 1, 1)
    for pipeline in result:
        if count > 1 and [stages[place] for place in pipeline] != list(range(count)):
            raise NoEvidenceError(f"the pipeline of rank {step.ranks[pipeline[0]]} was not read or matched whole")
    return tuple(result)


class _Chains:
    """A chain of items and exchanges for each rank, tied by their messages."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._durations: list[int] = []
        self._edges: list[tuple[int, int]] = []
        self._posted: Counter[tuple[int, int, bool, bool]] = Counter()
        self._messages: dict[tuple[int, int, bool, int], int] = {}

    def add(self, rank: MeasuredRank, durations: Mapping[Key, int], pipeline: Sequence[int], stage: int) -> int:
        """Add one rank; returns the node of its last item."""
        now = last = self._node(rank.begin_ns)
        arrived: dict[bool, int] = {}
        before: dict[Transfer, int] = {}
        for place, action in enumerate(self._order.actions(stage)):
            if isinstance(action, Await):
                now = self._node(0, now, arrived[action.gradient])
            elif not isinstance(action, Exchange):
                now = last = self._node(durations[_key(action)], now)
            elif not (self._order.overlapped and place):
                now = self._exchange(rank, action.transfers, (now,), pipeline, stage)
                arrived |= {each.gradient: now for each in action.transfers if not each.sends}
            else:
                # Beside computation each message has a stream of its own; nobody waits for sends.
                for each in action.transfers:
                    follows = [before[each]] if each in before else []
                    before[each] = self._exchange(rank, (each,), (now, *follows), pipeline, stage)
                    if not each.sends:
                        arrived[each.gradient] = before[each]
        return last

    def ends(self) -> Int64:
        """When every node ends."""
        waiting, waited_for = np.array(self._edges, np.int64).reshape(-1, 2).T
        return graph_of(len(self._durations), waiting, waited_for).ends(np.array(self._durations, np.int64))

    def _exchange(
        self,
        rank: MeasuredRank,
        transfers: Sequence[Transfer],
        after: Sequence[int],
        pipeline: Sequence[int],
        stage: int,
    ) -> int:
        """Join the messages of an exchange; returns the node of its end."""
        if not transfers:
            return after[0]
        arrival = self._node(rank.exchange_lag_ns, *after)
        joins = []
        for each in transfers:
            peer = pipeline[each.peer(stage, len(pipeline))]
            ends = (pipeline[stage], peer) if each.sends else (peer, pipeline[stage])
            side = (*ends, each.gradient, each.sends)
            self._posted[side] += 1
            message = (*ends, each.gradient, self._posted[side])
            if message not in self._messages:
                self._messages[message] = self._node(0)
            self._edges.append((self._messages[message], arrival))
            joins.append(self._messages[message])
        return self._node(rank.transfer_ns, *joins)

    def _node(self, duration: int, *waits_for: int) -> int:
        node = len(self._durations)
        self._durations.append(duration)
        self._edges += [(node, each) for each in waits_for]
        return node


def _key(action: Forward | Backward | Combined) -> Key:
    parts = (action.forward, action.backward) if isinstance(action, Combined) else (action,)
    return frozenset((isinstance(part, Backward), part.chunk, part.microbatch) for part in parts if part is not None)


def _keys(actions: Sequence[Action]) -> list[Key]:
    return [_key(action) for action in actions if isinstance(action, Forward | Backward | Combined)]


def _kind(key: Key) -> Kind:
    return frozenset((backward, chunk) for backward, chunk, _ in key)


def _mean_items(items: Sequence[Item], order: Order, present: Order, stage: int) -> dict[Key, int]:
    """What each item of an order takes on a rank."""
    of_kind: dict[Kind, list[Item]] = defaultdict(list)
    for item in items:
        of_kind[_kind(item.parts)].append(item)
    measured = {kind: _taken(some) for kind, some in of_kind.items()}
    if order.chunks < present.chunks:
        measured = _as_one_chunk(measured, present.chunks)
    wanted: dict[Kind, list[Key]] = defaultdict(list)
    for key in _keys(order.actions(stage)):
        wanted[_kind(key)].append(key)
    missing = wanted.keys() - measured.keys()
    if missing:
        raise NoEvidenceError("the order pairs forward and backward steps that no rank ran together")
    return {
        key: duration
        for kind, keys in wanted.items()
        for key, duration in zip(keys, measured[kind].spread(len(keys)), strict=True)
    }


@dataclass(frozen=True, slots=True)
class _Taken:
    """What items of a kind take: usually; and the first, the last and those that replicas held up, beyond that.

    Attributes:
        held: place of an item, from the end if below 0, and how much longer it took.
    """

    usual: int
    first: int
    last: int
    held: tuple[tuple[int, int], ...] = ()

    def spread(self, count: int) -> list[int]:
        """So many of them: the first, the last and those held up as they were, the others as usual."""
        if count == 1:
            return [max(self.usual + self.first + self.last, 0)]
        result = [self.usual + self.first, *[self.usual] * (count - 2), self.usual + self.last]
        for place, longer in self.held:
            if 1 - count < place < count - 1:
                result[place] += longer
        return result


def _taken(items: Sequence[Item]) -> _Taken:
    """The mean of items between the first and the last one, without those that an exchange of replicas held up."""
    first, last = items[0].own_ns, items[-1].own_ns
    between = items[1:-1]
    free = [item.own_ns for item in between if not item.beside]
    some = free or [item.own_ns for item in between]
    usual = round(sum(some) / len(some)) if some else min(first, last)
    held = tuple(
        (place if 2 * place < len(items) else place - len(items), item.own_ns - usual)
        for place, item in enumerate(between, 1)
        if item.beside and free
    )
    return _Taken(usual, first - usual, last - usual, held)


def _as_one_chunk(measured: Mapping[Kind, _Taken], chunks: int) -> dict[Kind, _Taken]:
    """Items that run the layers of all chunks of a stage.

    Gathers of later layers run beside the first ones then, and reductions of later layers beside the last ones: the
    first and the last item take as much longer as that of the one chunk where it is the most, and none between is held
    up by another chunk's.
    """
    result = {}
    for backward in (False, True):
        each = [measured[frozenset({(backward, chunk)})] for chunk in range(chunks)]
        result[frozenset({(backward, 0)})] = _Taken(
            sum(one.usual for one in each), max(one.first for one in each), max(one.last for one in each)
        )
    return result
