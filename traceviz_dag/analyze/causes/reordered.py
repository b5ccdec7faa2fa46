"""Another number of micro-batches, schedule, chunks or layers: the step with the order of its work made anew.

No trace shows that order, so its kernels cannot be replayed. *Items* are, instead of kernels: a micro-batch's forward
or backward step in one model chunk, and the exchanges with the neighbouring stages in between. An item takes what it
took on its rank on average over the micro-batches, the first and the last each what it took itself: parameters are
gathered in the one, gradients reduced in the other. What follows a rank's last item (gradient synchronisation,
optimizer) comes by as much later as that item does. Messages are joins, as in the graph of kernels:

    T' = T + items(new order) - items(present order)

How far items(present order) is from the step says how good the model is. Of other chunks and layers an item takes what
layers run of it in proportion to its layers, and the rest where the model has it: embedding, output layer and loss.
Where gradients of weights come later, a backward step takes what is left without their products. Where a forward and a
backward step are combined, the communication of experts in each runs beside the computation of the other's layers:

    pair = rest + max(F' - f, b) + max(B' - b, f)

F' and B' are the two steps without the rest (output layer and loss), f and b what of them waits for experts. The pair
takes as long as the computation of both, or the communication of both, at least, and F + B at most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.expert_exchanges import NONE_SHOWN, why_not_apart
from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.analyze.causes.layers import Layers
from traceviz_dag.analyze.causes.measured_items import (
    Item,
    Key,
    MeasuredRank,
    latest_ends,
    measured_ranks,
    message_members,
    messages_beside_work,
)
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.causes.weight_gradients import WHOLE, why_whole
from traceviz_dag.analyze.matching.matches import connected
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import (
    Action,
    Await,
    Backward,
    Combined,
    Exchange,
    Forward,
    InputGradient,
    Order,
    Step,
    Transfer,
    WeightGradient,
)

COMBINED = "combined-1f1b"
"""A forward and a backward step run into each other, and exchanges between stages beside them."""

SCHEDULES = ("1f1b", "interleaved", "interleaved-overlapped", "zero-bubble", COMBINED)
"""Schedules for which an order can be made."""

_MOST_ITEMS, _MOST_PIPELINES = 200_000, 10
"""Forward steps of a pipeline that are replayed at most: a minute of one processor; and of how many such pipelines:
1 GB each."""

_BESIDE = 0.02
"""Share of the step that combined steps may save beyond the experts' communication: what follows it in a layer (tokens
put back, residual) runs on its stream, beside the other step, and so does what passes until its host launches it."""

Kind = frozenset[tuple[int, int]]
"""Items that differ only in their micro-batch: (kind, chunk) of each step, the kind as in ``Key``."""

_ONE_CHUNK = ("1f1b", "zero-bubble")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be another; None: as it is.

    Attributes:
        microbatches: of a training step. schedule: one of ``SCHEDULES``. chunks: model chunks of each stage.
        layers: of each stage. no_recompute: stages that recompute nothing.
    """

    microbatches: int | None = None
    schedule: str | None = None
    chunks: int | None = None
    layers: tuple[int, ...] | None = None
    no_recompute: tuple[int, ...] | None = None

    @property
    def remakes(self) -> bool:
        """Whether items are made that no step ran, or another host waits for exchanges."""
        return self != Change(self.microbatches)

    @property
    def name(self) -> str:
        """The word of the edit that makes it: the first thing that is another."""
        return next((each.name for each in fields(self) if getattr(self, each.name) is not None), "schedule")

    def as_row(self) -> dict[str, Any]:
        """What is another, as columns: several numbers as a text such as 7,8,8,7."""
        each = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in each.items()}

    def merged(self, other: Change) -> Change:
        """Both changes."""
        both = {each.name: getattr(other, each.name) for each in fields(self)}
        return replace(self, **{name: value for name, value in both.items() if value is not None})

    def order(self, present: Order) -> Order:
        """The order that follows from the present one.

        Raises:
            NoEvidenceError: there is none, with the reason.
        """
        result = replace(present, microbatches=self.microbatches or present.microbatches)
        chunks = self.chunks or (1 if self.schedule in _ONE_CHUNK else present.chunks)
        if self.schedule is not None or chunks != present.chunks:
            if present.stages == 1 and (self.schedule != COMBINED or chunks > 1):
                raise NoEvidenceError("a single pipeline stage has no other schedule")
            if present.combined and (self.schedule in _ONE_CHUNK or chunks != present.chunks):
                raise NoEvidenceError(
                    "forward and backward steps run into each other, so nothing shows what each takes alone"
                )
            if self.schedule in _ONE_CHUNK and chunks > 1:
                raise NoEvidenceError(f"{self.schedule} runs one model chunk in a stage")
            if self.schedule not in (None, *_ONE_CHUNK) and chunks == 1 < present.stages:
                raise NoEvidenceError("interleaving needs several model chunks in a stage, and the job has one")
            kept = present.overlapped and chunks > 1 and self.schedule is None
            combined = present.combined or self.schedule == COMBINED
            overlapped = kept or (self.schedule in ("interleaved-overlapped", COMBINED) and chunks > 1)
            split = self.schedule == "zero-bubble"
            result = replace(result, chunks=chunks, combined=combined, overlapped=overlapped, split=split)
        if result.chunks > 1 and result.microbatches % result.stages:
            raise NoEvidenceError(
                f"interleaving needs a multiple of {result.stages} micro-batches, the number of pipeline stages"
            )
        return result


@dataclass(frozen=True, slots=True)
class TimedItem:
    """A forward or backward step in a replay, or both where they run into each other; ns."""

    stage: int
    parts: Key
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Reordered:
    """What a change of the order does.

    Attributes:
        later_ns: how much longer the step is; least_ns, most_ns: what it is at least and at most, where items are made
            of which the measured ones leave that open.
        error: how far the replay with mean items is off, as a share of the step.
        microbatches: before and after.
    """

    later_ns: int
    least_ns: int
    most_ns: int
    error: float
    microbatches: tuple[int, int]


@dataclass(frozen=True)
class Items:
    """All items of a step.

    Attributes:
        ranks: what each rank's took. pipelines: places of the ranks of each pipeline, by stage.
        step_ns: the step that they were measured in.
        layers: of each stage; none where nothing counts them.
        unknown: why it is not known what layers are of the items; None where it is.
        overlapped: whether messages ran beside computation; None where nothing shows it.
        whole: why gradients of weights are not told from those of inputs; None where they are.
        joined: why it is not known what experts' communication takes of the items; None where it is.
        slack: of each rank, as ``MeasuredRank.slack_ns``, where stages have so many layers more; None where unknown.
    """

    ranks: tuple[MeasuredRank, ...]
    pipelines: tuple[tuple[int, ...], ...]
    step_ns: int
    layers: tuple[int, ...] = ()
    unknown: str | None = "nothing shows the layers"
    overlapped: bool | None = None
    whole: str | None = WHOLE
    joined: str | None = NONE_SHOWN
    slack: Callable[[tuple[int, ...]], Sequence[int]] | None = None

    def present(self) -> Order:
        """The order that the items were run in; where two fit and no message shows which, the one whose replay is
        nearer to the step.

        Raises:
            NoEvidenceError: it is none that is known.
        """
        parts = [step for rank in self.ranks for item in rank.items for step in item.parts]
        _, chunks, microbatches = (1 + max(column) for column in zip(*parts, strict=True))
        combined = any(len(item.parts) > 1 for rank in self.ranks for item in rank.items)
        either = (False, True) if self.overlapped is None else (self.overlapped,)
        orders = [
            Order(len(self.pipelines[0]), chunks, microbatches, combined, overlapped)
            for overlapped in (either if chunks > 1 else (False,))
        ]
        fitting = [order for order in orders if self._fit(order)]
        if not fitting:
            raise NoEvidenceError("its micro-batches run in the order of no schedule that is known")
        if len(fitting) == 1:
            return fitting[0]
        return min(fitting, key=lambda order: abs(self.replayed(order, order) - self.step_ns))

    def replayed(
        self, order: Order, present: Order, own: Items | None = None, change: Change | None = None, pairs: int = 0
    ) -> int:
        """The step with mean items in an order, ns.

        Args:
            own: whose items' durations are taken; by default these.
            change: whose layers and recomputation the items get. pairs: as ``_paired``.

        Raises:
            NoEvidenceError: the order has items that a rank did not run.
        """
        chains, values, late = self._laid_out(order, present, own or self, change or Change(), pairs)
        return self.step_ns + int((chains.last_ends(values) - late).max())

    def timed(self, change: Change, ahead: Callable[[], Items] | None = None) -> list[TimedItem]:
        """The items of a change as they are replayed, of the pipeline that ends last; its begin is 0.

        Args:
            ahead: as ``changed``.

        Raises:
            NoEvidenceError: as ``changed``.
        """
        order = change.order(self.now)
        self.check(change, order)
        chains, values, late = self._laid_out(order, self.now, self._run_in(order, ahead), change)
        longest = int((chains.last_ends(values) - late).max(axis=0).argmax())
        return chains.timed(values[:, longest])

    def _laid_out(
        self, order: Order, present: Order, taken: Items, change: Change, pairs: int = 0
    ) -> tuple[_Chains, Int64, Int64]:
        """An order's chains, their values, and when the last items of stages may end without a longer step.

        Returns:
            The last two with a column for each pipeline.
        """
        count = order.stages * order.chunks * order.microbatches
        if max(count, count * len(self.pipelines) // _MOST_PIPELINES) > _MOST_ITEMS:
            count *= len(self.pipelines)
            raise NoEvidenceError(f"{count:,} forward steps are too many to replay; ask for fewer micro-batches")
        chains = _chains_of(order)
        remake = _Remake(order, present, self.layers, change, pairs)
        values = np.zeros((chains.values, len(self.pipelines)), np.int64)
        late = np.zeros((order.stages, len(self.pipelines)), np.int64)
        more = tuple(map(remake.more_layers, range(order.stages)))
        slack = self.slack(more) if any(more) and self.slack is not None else [rank.slack_ns for rank in self.ranks]
        for number, pipeline in enumerate(self.pipelines):
            gather = _gather([taken.taken[place] for place in pipeline])
            links = self._links(pipeline) if order.chunks > 1 == present.chunks and not order.overlapped else []
            for stage, place in enumerate(pipeline):
                mine = self.ranks[place]
                durations = remake.durations(taken.taken[place], stage, gather)
                # Where exchanges get messages of both neighbours at once, each message takes what its link takes.
                message, whole = (links[stage], 0) if links else (0, mine.transfer_ns)
                values[chains.of_stage(stage), number] = [
                    mine.begin_ns, mine.exchange_lag_ns, message, whole, *durations
                ]  # fmt: skip
                late[stage, number] = mine.items[-1].end_ns + slack[place]
        return chains, values, late

    def _links(self, pipeline: Sequence[int]) -> list[int]:
        """What a message to or from each stage's next one takes, ns; none where that is not known.

        The last stage's next is the first: those two are on two nodes where any neighbours are.
        """
        found = [self.ranks[one].transfers.get(other) for one, other in pairwise(pipeline)]
        known = [each for each in found if each is not None]
        return [*known, max(known)] if known and len(known) == len(found) else []

    @cached_property
    def taken(self) -> tuple[Mapping[Kind, _Taken], ...]:
        """What the items of each kind take, rank by rank."""
        result = []
        for rank in self.ranks:
            of_kind: dict[Kind, list[Item]] = defaultdict(list)
            for item in rank.items:
                of_kind[kind_of(item.parts)].append(item)
            result.append({kind: _taken(some) for kind, some in of_kind.items()})
        return tuple(result)

    def changed(self, change: Change, ahead: Callable[[], Items] | None = None) -> Reordered:
        """What a change of the order does.

        Args:
            ahead: the items of a host that waits for no exchange; these by default.

        Raises:
            NoEvidenceError: the order is not known, or cannot be made.
        """
        present = self.now
        order = change.order(present)
        self.check(change, order)
        own = self._run_in(order, ahead)
        apart = order.combined and not present.combined
        later = [
            self.replayed(order, present, own, change, pairs) - self.before_ns
            for pairs in ((0, -1, 1) if apart else (0,))
        ]
        least = min(later) - (round(_BESIDE * self.step_ns) if apart else 0)
        counts = present.microbatches, order.microbatches
        return Reordered(later[0], least, max(later), self.before_ns / self.step_ns - 1, counts)

    def _run_in(self, order: Order, ahead: Callable[[], Items] | None) -> Items:
        """The items as an order's host lets them run: beside exchanges that overlap it launches ahead."""
        return ahead() if ahead is not None and order.overlapped and not self.now.overlapped else self

    @cached_property
    def now(self) -> Order:
        """See ``present``."""
        return self.present()

    @cached_property
    def before_ns(self) -> int:
        """The step with mean items in its own order, ns."""
        return self.replayed(self.now, self.now)

    def check(self, change: Change, order: Order) -> None:
        """Refuse layers and chunks that cannot be, or of which nothing shows what they would take.

        Raises:
            NoEvidenceError: why.
        """
        layers, present = change.layers, self.now
        off = change.no_recompute or ()
        if any(stage not in range(present.stages) for stage in off):
            raise NoEvidenceError(f"the job has {present.stages} pipeline stages, from 0")
        asked = [self.ranks[pipeline[stage]] for pipeline in self.pipelines for stage in off]
        again = (any(item.again for item in rank.items) for rank in asked)
        if not all(again):
            raise NoEvidenceError("not every such stage recomputes anything, or nothing shows what is recomputed")
        if order.split and self.whole is not None:
            raise NoEvidenceError(self.whole)
        if order.combined and not present.combined and self.joined is not None:
            raise NoEvidenceError(self.joined)
        if layers is None and order.chunks in (1, present.chunks):
            return
        if present.combined:
            raise NoEvidenceError(
                "forward and backward steps run into each other, so nothing shows what each takes alone"
            )
        if self.unknown is not None:
            raise NoEvidenceError(self.unknown)
        if layers is not None and (len(layers) != present.stages or sum(layers) != sum(self.layers) or min(layers) < 1):
            now = ", ".join(map(str, self.layers)) if self.layers else "of unknown numbers"
            raise NoEvidenceError(f"the {present.stages} stages must share the layers that they have now: {now}")
        uneven = [count for count in layers or self.layers if count % order.chunks]
        if uneven:
            raise NoEvidenceError(f"{uneven[0]} layers of a stage cannot be split into {order.chunks} equal chunks")

    def _fit(self, order: Order) -> bool:
        return all(
            [item.parts for item in self.ranks[place].items] == _keys(order.actions(stage))
            for pipeline in self.pipelines
            for stage, place in enumerate(pipeline)
        )


def items_of(
    step: StepWork, times: Sequence[Times], stages: Sequence[int], layers: Layers | str = "nothing shows the layers"
) -> Items:
    """Measure the items of a step.

    Args:
        times: of the step, edited or not. stages: stage of each rank; ``MISSING`` where unknown.
        layers: of the step; or why they are not known.

    Raises:
        NoEvidenceError: a rank shows no micro-batches, or a pipeline was not read whole.
    """
    told = isinstance(layers, Layers) and layers.unknown is None
    ranks = measured_ranks(step, times, layers.by_layers if isinstance(layers, Layers) and told else None)
    for number, rank in zip(step.ranks, ranks, strict=True):
        if not rank.items:
            raise NoEvidenceError(f"rank {number} shows no forward and backward steps of micro-batches")
    pipelines = _pipelines(step, stages)
    overlapped = any(messages_beside_work(step.works[place]) for place in pipelines[0])
    ends = step.replay(times)
    kernels = [work.kernels for work in step.works]
    found = Items(
        tuple(ranks),
        pipelines,
        step.step_ns(ends),
        overlapped=overlapped,
        whole=why_whole(kernels),
        joined=why_not_apart(kernels),
    )
    if not isinstance(layers, Layers) or layers.unknown is not None:
        return replace(found, unknown=layers.unknown if isinstance(layers, Layers) else layers)

    @lru_cache(maxsize=8)
    def slack(more: tuple[int, ...]) -> list[int]:
        # Gradients' norm joins the stages: the longest optimizer follows the last item of all.
        spare = latest_ends(step, layers.with_more(times, more), ends) - ends
        return [int(spare[[*rank.last]].min()) for rank in ranks]

    return replace(found, layers=tuple(map(int, layers.of_stage.tolist())), unknown=None, slack=slack)


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
    """A chain of items and exchanges for each stage of a pipeline, tied by their messages.

    Values are what nodes take: of each stage when its step begins, the lag of its exchanges, messages between it and
    the next stage, exchanges beyond their messages, and its items, in order; the last value is 0. All pipelines of a
    job are replayed together.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._value: list[int] = []
        self._edges: list[tuple[int, int]] = []
        self._posted: Counter[tuple[int, int, bool, bool]] = Counter()
        self._messages: dict[tuple[int, int, bool, int], int] = {}
        actions = [order.actions(stage) for stage in range(order.stages)]
        self._low = np.cumsum([0, *(4 + len(_keys(each)) for each in actions)]).tolist()
        self.values = self._low[-1] + 1
        self._items: list[tuple[int, Key, int]] = []
        self._last = [self._add(stage, each) for stage, each in enumerate(actions)]
        waiting, waited_for = np.array(self._edges, np.int64).reshape(-1, 2).T
        self._graph = graph_of(len(self._value), waiting, waited_for)

    def of_stage(self, stage: int) -> slice:
        """The values of a stage."""
        return slice(self._low[stage], self._low[stage + 1])

    def last_ends(self, values: Int64) -> Int64:
        """When the last item of each stage ends, stages × pipelines.

        Args:
            values: see the class; values × pipelines.
        """
        return np.asarray(self._graph.ends(values[self._value])[self._last], dtype=np.int64)

    def timed(self, values: Int64) -> list[TimedItem]:
        """The items of one pipeline.

        Args:
            values: see the class.
        """
        taken = values[self._value]
        ends = self._graph.ends(taken)
        return [TimedItem(stage, key, int(ends[at] - taken[at]), int(ends[at])) for stage, key, at in self._items]

    def _add(self, stage: int, actions: Sequence[Action]) -> int:
        """Add one stage; returns the node of its last item."""
        begin, lag, _, transfer = range(self._low[stage], self._low[stage] + 4)
        now = last = self._node(begin)
        item = transfer
        arrived: dict[bool, int] = {}
        before: dict[Transfer, int] = {}
        for place, action in enumerate(actions):
            if isinstance(action, Await):
                now = self._node(self.values - 1, now, arrived[action.gradient])
            elif not isinstance(action, Exchange):
                item += 1
                now = last = self._node(item, now)
                self._items.append((stage, _key(action), now))
            elif not (self._order.overlapped and place):
                now = self._exchange(stage, action.transfers, lag, transfer, now)
                arrived |= {each.gradient: now for each in action.transfers if not each.sends}
            else:
                # Beside computation each message has a stream of its own; nobody waits for sends.
                for each in action.transfers:
                    follows = [before[each]] if each in before else []
                    before[each] = self._exchange(stage, (each,), lag, transfer, now, *follows)
                    if not each.sends:
                        arrived[each.gradient] = before[each]
        return last

    def _exchange(self, stage: int, transfers: Sequence[Transfer], lag: int, transfer: int, *after: int) -> int:
        """Join the messages of an exchange; returns the node of its end."""
        if not transfers:
            return after[0]
        arrival = self._node(lag, *after)
        joins = []
        for each in transfers:
            peer = each.peer(stage, self._order.stages)
            ends = (stage, peer) if each.sends else (peer, stage)
            side = (*ends, each.gradient, each.sends)
            self._posted[side] += 1
            message = (*ends, each.gradient, self._posted[side])
            if message not in self._messages:
                link = stage if peer == (stage + 1) % self._order.stages else peer
                self._messages[message] = self._node(self._low[link] + 2)
            self._edges.append((self._messages[message], arrival))
            joins.append(self._messages[message])
        return self._node(transfer, *joins)

    def _node(self, value: int, *waits_for: int) -> int:
        node = len(self._value)
        self._value.append(value)
        self._edges += [(node, each) for each in waits_for]
        return node


_chains_of = lru_cache(maxsize=8)(_Chains)
"""Orders are few, and their changes many."""


_KINDS = (Forward, Backward, InputGradient, WeightGradient)
"""The step of each kind."""

_INPUTS, _WEIGHTS = 2, 3


def _key(action: Step | Combined) -> Key:
    parts = (action.forward, action.backward) if isinstance(action, Combined) else (action,)
    return frozenset((_KINDS.index(type(part)), part.chunk, part.microbatch) for part in parts if part is not None)


def _keys(actions: Sequence[Action]) -> list[Key]:
    return [_key(action) for action in actions if isinstance(action, Step | Combined)]


def kind_of(key: Key) -> Kind:
    """What steps an item is of, whatever their micro-batches."""
    return frozenset((kind, chunk) for kind, chunk, _ in key)


def _of_whole(kind: Kind) -> Kind:
    """The kind of the measured steps that those of another kind are part of."""
    return frozenset((min(each, 1), chunk) for each, chunk in kind)


def _is_part(kind: Kind, part: int) -> bool:
    return any(each == part for each, _ in kind)


@lru_cache(maxsize=8)
def _items_of(order: Order, apart: bool) -> list[list[tuple[list[Kind], bool, bool]]]:
    """The items of each stage: the kinds of the measured items that one is made of, whether it is the gradients of
    their weights alone, and whether it is all but these.

    Args:
        apart: whether steps that it runs together were measured one by one.
    """

    def made_of(kind: Kind) -> tuple[list[Kind], bool, bool]:
        measured = [frozenset({step}) for step in sorted(kind)] if apart else [_of_whole(kind)]
        return measured, _is_part(kind, _WEIGHTS), _is_part(kind, _INPUTS)

    kinds = [[*map(kind_of, _keys(order.actions(stage)))] for stage in range(order.stages)]
    of_kind = {kind: made_of(kind) for kind in {kind for of_stage in kinds for kind in of_stage}}
    return [[of_kind[kind] for kind in of_stage] for of_stage in kinds]


class _Remake:
    """What the items of another order take, with other layers or recomputation."""

    def __init__(self, order: Order, present: Order, layers: tuple[int, ...], change: Change, pairs: int = 0) -> None:
        """See the class; ``pairs``: as ``_paired``."""
        self._order, self._present, self._pairs = order, present, pairs
        self._now, self._then = layers, change.layers or layers
        self._no_recompute = change.no_recompute or ()
        # Of a stage, once for all its ranks.
        self._items = _items_of(order, order.combined and not present.combined)
        self._wanted = [
            Counter(each for measured, only_weights, _ in items if not only_weights for each in measured)
            for items in self._items
        ]

    def more_layers(self, stage: int) -> int:
        """How many layers more a stage has."""
        return self._then[stage] - self._now[stage] if self._then else 0

    def durations(self, measured: Mapping[Kind, _Taken], stage: int, gather: int) -> list[int]:
        """What each item of a rank takes, in order.

        Args:
            measured: what its items take now, by kind. gather: see ``_gather``.
        """
        if stage in self._no_recompute:
            measured = {kind: one.less(one.again) for kind, one in measured.items()}
        if self.more_layers(stage):
            share = self._then[stage] / self._now[stage]
            measured = {kind: one.of_layers(share) for kind, one in measured.items()}
        if self._order.chunks != self._present.chunks:
            measured = _as_one_chunk(measured, self._present.chunks)
        if self._order.chunks > 1 and self._order.chunks != self._present.chunks:
            ends = stage == 0, stage == self._order.stages - 1
            measured = _in_chunks(measured, self._present.chunks, self._order.chunks, *ends, gather)
        wanted = self._wanted[stage]
        if wanted.keys() - measured.keys():
            raise NoEvidenceError("the order pairs forward and backward steps that no rank ran together")
        each = {kind: iter(measured[kind].spread(count)) for kind, count in wanted.items()}
        result = []
        for (one, *other), only_weights, no_weights in self._items[stage]:
            weights = measured[one].weights
            own = weights if only_weights else next(each[one])
            own -= weights if no_weights else 0
            if other:
                both = measured[one], measured[other[0]]
                own = _paired((own, next(each[other[0]])), both, self._pairs)
            result.append(own)
        return result


def _paired(steps: tuple[int, int], both: tuple[_Taken, _Taken], end: int) -> int:
    """What a forward and a backward step take together, ns.

    Args:
        steps: what each takes alone; both: what is usual of it.
        end: 0 where the communication of each runs beside the computation of the other's layers; -1 for the least that
            both may take, 1 for the most.
    """
    experts = sum(one.experts for one in both)
    if end:
        return sum(steps) if end > 0 else max(sum(steps) - experts, experts)
    one, other = (whole - each.alone - each.experts for whole, each in zip(steps, both, strict=True))
    return both[0].alone + both[1].alone + max(one, both[1].experts) + max(other, both[0].experts)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What items of a kind take: usually; and the first, the last and those that replicas held up, beyond that.

    Attributes:
        held: place of an item, from the end if below 0, and how much longer it took.
        rest: of ``usual``, what layers do not run. again: of ``usual``, what is recomputed. experts: of ``usual``, what
            waits for communication of experts; alone: what is outside layers with experts, as ``Item.alone``.
        lead: of ``usual``, what passes before the first kernel.
        weights, rest_weights: of ``usual``, as those of ``Item``.
    """

    usual: int
    first: int
    last: int
    held: tuple[tuple[int, int], ...] = ()
    rest: int = 0
    again: int = 0
    lead: int = 0
    weights: int = 0
    rest_weights: int = 0
    experts: int = 0
    alone: int = 0

    def spread(self, count: int) -> list[int]:
        """So many of them: the first, the last and those held up as they were, the others as usual."""
        if count == 1:
            return [max(self.usual + self.first + self.last, 0)]
        result = [self.usual + self.first, *[self.usual] * (count - 2), self.usual + self.last]
        for place, longer in self.held:
            if 1 - count < place < count - 1:
                result[place] += longer
        return result

    def less(self, recomputed: int) -> _Taken:
        """The same without what is recomputed."""
        return replace(self, usual=self.usual - recomputed, again=self.again - recomputed)

    def of_layers(self, share: float) -> _Taken:
        """The same with a share of the layers."""
        layers = round((self.usual - self.rest - self.lead) * share)
        weights = self.rest_weights + round((self.weights - self.rest_weights) * share)
        again, experts = round(self.again * share), round(self.experts * share)
        usual = self.lead + self.rest + layers
        return replace(self, usual=usual, again=again, weights=weights, experts=experts)


SHARES = ("rest", "again", "weights", "rest_weights", "experts", "alone")
"""What both ``Item`` and ``_Taken`` have, there as shares."""


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
    parts = {name: round(usual * sum(getattr(item, name) for item in items) / len(items)) for name in SHARES}
    lead = min((item.lead_ns for item in items), default=0)
    return _Taken(usual, first - usual, last - usual, held, **parts, lead=min(lead, usual - parts["rest"]))


def _as_one_chunk(measured: Mapping[Kind, _Taken], chunks: int) -> dict[Kind, _Taken]:
    """Items that run the layers of all chunks of a stage.

    Gathers of later layers run beside the first ones then, and reductions of later layers beside the last ones: the
    first and the last item take as much longer as that of the one chunk where it is the most, and none between is held
    up by another chunk's.
    """
    result: dict[Kind, _Taken] = {}
    for backward in (0, 1):
        each = [measured[frozenset({(backward, chunk)})] for chunk in range(chunks)]
        sums = {name: sum(getattr(one, name) for one in each) for name in ("usual", "lead", *SHARES)}
        ends = {name: max(getattr(one, name) for one in each) for name in ("first", "last")}
        result[frozenset({(backward, 0)})] = _Taken(**sums, **ends)
    return result


def _gather(pipeline: Sequence[Mapping[Kind, _Taken]]) -> int:
    """What the first forward step of each chunk takes longer on all stages: parameters that it waits for, ns.

    What a stage's first one takes beyond that is its own, as the embedding's parameters.
    """
    firsts = (one.first for rank in pipeline for kind, one in rank.items() if _is_part(kind, 0) and len(kind) == 1)
    return max(min(firsts, default=0), 0)


def _in_chunks(
    measured: Mapping[Kind, _Taken], present: int, chunks: int, first: bool, last: bool, gather: int
) -> dict[Kind, _Taken]:
    """Items of a stage whose layers are split into equal chunks, from those of ``_as_one_chunk``.

    What layers do not run stays where it is in the model: the embedding in the first chunk of the first stage, the
    output layer and the loss in the last one of the last stage; elsewhere each chunk has its share. What passes before
    the first kernel passes in each. Parameters of each chunk are gathered in its first item, which waits for
    ``gather``; gradients are reduced in the last item, which is of the first chunk.
    """
    result: dict[Kind, _Taken] = {}
    for backward in (0, 1):
        one = measured[frozenset({(backward, 0)})]
        whole = one.usual - one.rest - one.lead
        each = [total // chunks for total in (whole, one.again, one.rest, one.experts, one.alone)]
        for chunk in range(chunks):
            is_end = chunk == 0 if first else chunk == chunks - 1
            rest = each[2] if not (first or last) else one.rest if is_end else 0
            head, tail = (one.first, one.last) if chunk == 0 else (0 if backward else gather, 0)
            # What follows the layers with experts, the output layer, is where the model ends.
            alone = each[4] if not last else one.alone if is_end else 0
            lead = one.lead // present
            usual = each[0] + rest + lead
            result[frozenset({(backward, chunk)})] = _Taken(
                usual, head, tail, (), rest, each[1], lead, experts=each[3], alone=alone
            )
    return result
