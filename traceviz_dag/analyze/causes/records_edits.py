"""What edits of a job's recorded operations would gain: those edits of traces of which records show what they change.

T' = T + replay(edit) - replay(no edit), step by step. With the recorded lags between operations the replay without an
edit is T itself; the other end of the error bar is the replay without any, widened by its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from traceviz_dag.analyze.causes.alike import PassTimes, Scaled, scale_of
from traceviz_dag.analyze.causes.gains import MOST_RANKS, error_bar, gain_row, mean_gains
from traceviz_dag.analyze.causes.measured_items import Exchanges, Item, MeasuredRank, measured_rank
from traceviz_dag.analyze.causes.records_path import replayed_ends, slack_of, step_bounds
from traceviz_dag.analyze.causes.records_work import MESSAGES, RecordsWork
from traceviz_dag.analyze.causes.reordered import Change, Items
from traceviz_dag.analyze.causes.what_if import FASTER, WORTH
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.records.pipeline_records import OPERATIONS, Operation
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Dimension

OWN = (Operation.FORWARD, Operation.BACKWARD, Operation.GARBAGE_COLLECTION, Operation.OPTIMIZER)
"""What a rank does by itself."""

_ITEMS = (Operation.FORWARD, Operation.BACKWARD)
SERVES = {
    **dict.fromkeys(MESSAGES, Dimension.PP),
    **dict.fromkeys((Operation.GATHER, Operation.REDUCE_SCATTER), Dimension.DP),
    Operation.LAYERNORM: Dimension.TP,
    Operation.EMBEDDING: Dimension.EMBEDDING,
    Operation.CLIP: Dimension.GRAD_NORM,
}
"""The dimension that each kind of communication serves."""

_MOST_CASES = 32
"""Edits that are replayed at once: 50 MB for 100,000 operations."""


@dataclass(frozen=True, slots=True)
class RecordsEdit:
    """One edit: what it is called, and what it does to the durations of all operations."""

    name: str
    apply: Callable[[Int64], Int64] = lambda own: own
    rank: int | None = None
    ranks: str | None = None
    dimension: str | None = None
    factor: float | None = None
    change: Change | None = None
    untouched: None = None


class RecordsWhatIf:
    """Predictions for all steps of a job's records."""

    def __init__(self, work: RecordsWork) -> None:
        self.work = work

    @property
    def ranks(self) -> list[int]:
        """The ranks that were recorded."""
        return [int(rank) for rank in np.unique(self.work.rank)]

    def predict(self, choices: Sequence[Sequence[RecordsEdit]]) -> list[list[dict[str, Any]]]:
        """What each choice of edits would gain, the edits of a choice together.

        Returns:
            Per choice, a row for each step: the columns that name the edit where it is one, ``step_ns``,
            ``predicted_step_ns``, ``gain_ns`` and the error bar.

        Raises:
            NoEvidenceError: an edit asks for an order of work that cannot be made, or the records show nothing of it.
        """
        result = []
        for low in range(0, len(choices), _MOST_CASES):
            some = choices[low : low + _MOST_CASES]
            owns = [self.work.own_ns, *(self._applied(edits) for edits in some)]
            both = [self._lengths(np.stack(owns, axis=1), free) for free in (False, True)]
            for case, edits in enumerate(some, 1):
                result.append(self._rows(edits, owns[case], *(each[:, [0, case]] for each in both)))
        return result

    def standard(self) -> list[tuple[RecordsEdit]]:
        """The usual edits, without those that the records show nothing of."""
        edits = [self.fix_rank(rank) for rank in (self._suspects() if len(self.ranks) > 1 else [])]
        there = {"equal_stages": self._stages > 1, "equal_ranks": len(self.ranks) > self._stages}
        edits += [edit for edit in self.general() if there.get(edit.name, True)]
        edits += [self.hide(dimension) for dimension in (*self.dimensions(), ALL_DIMENSIONS)]
        edits += [self.faster(dimension, FASTER) for dimension in self.dimensions()]
        return [(edit,) for edit in edits]

    def general(self) -> Iterator[RecordsEdit]:
        """The edits that name neither a rank nor a dimension."""
        yield RecordsEdit("equal_stages", self._equal_stages)
        yield RecordsEdit("equal_ranks", lambda own: self._levelled(own, PassTimes.alike_ranks))
        yield RecordsEdit("no_jitter", lambda own: self._levelled(own, PassTimes.without_jitter))

    def fix_rank(self, rank: int) -> RecordsEdit:
        """Give a rank's own operations what they take on its peers: those of its stage, else those of other stages."""
        return RecordsEdit("fix_rank", lambda own: self._fixed(own, rank), rank=rank)

    def hide(self, dimension: str) -> RecordsEdit:
        """Let transfers of a dimension take no time; their members still wait for one another."""
        return RecordsEdit("hide", lambda own: np.where(self._serves(dimension), 0, own), dimension=dimension)

    def faster(self, dimension: str, factor: float) -> RecordsEdit:
        """Make transfers of a dimension a number of times faster, above the shortest of their kind."""

        def apply(own: Int64) -> Int64:
            result = own.copy()
            for code in np.unique(self.work.operation[self._serves(dimension)]).tolist():
                mine = self.work.operation == code
                above = np.maximum(own[mine] - max(int(own[mine].min()), 0), 0)
                result[mine] -= np.rint(above * (1 - 1 / factor)).astype(np.int64)
            return result

        return RecordsEdit("faster", apply, dimension=dimension, factor=factor)

    def reorder(self, change: Change) -> RecordsEdit:
        """Another number of micro-batches, or another schedule."""
        return RecordsEdit(change.name, change=change)

    def items(self) -> Items:
        """The items of the step whose length is the lower median.

        Raises:
            NoEvidenceError: a stage has no forward and backward steps.
        """
        found = sorted(self._items(self.work.own_ns, self.work.lag_ns), key=lambda items: items.step_ns)
        return found[(len(found) - 1) // 2]

    def gains(self, change: Change) -> tuple[int, int, int, int]:
        """The mean step and what a change gains of it, at least and at most, ns.

        Raises:
            NoEvidenceError: as ``predict``.
        """
        return mean_gains(self.predict([[self.reorder(change)]])[0])

    def dimensions(self) -> list[str]:
        """Dimensions of the recorded communication."""
        return sorted({SERVES[kind].value for kind in self._kinds if kind in SERVES})

    @cached_property
    def _kinds(self) -> list[Operation]:
        return [OPERATIONS[code] for code in np.unique(self.work.operation).tolist()]

    @cached_property
    def _whose(self) -> tuple[Int64, Int64, Int64]:
        """Own operations of one rank, kind and chunk: per operation their number, -1 elsewhere; rank, kind of each."""
        work = self.work
        mine = np.flatnonzero(self._is(*OWN))
        first, number = number_groups(work.rank[mine], work.operation[mine], work.chunk[mine])
        result = np.full(len(work), -1)
        result[mine] = number
        return result, mine[first], np.bincount(number)

    @cached_property
    def _factors(self) -> Float64:
        """Per number of ``_whose``, what such operations take on the peers over what they take there."""
        number, first, count = self._whose
        work, mine = self.work, number >= 0
        mean = np.bincount(number[mine], weights=work.own_ns[mine]) / count
        kind = np.stack([work.operation[first], work.chunk[first]])
        stage, rank = work.stage[first], work.rank[first]
        result = np.ones(len(first))
        for place in range(len(first)):
            alike = (kind == kind[:, [place]]).all(axis=0) & (rank != rank[place])
            peers = alike & (stage == stage[place])
            theirs = mean[peers if peers.any() else alike]
            if len(theirs) and mean[place]:
                result[place] = float(np.median(theirs)) / mean[place]
        return result

    def _fixed(self, own: Int64, rank: int) -> Int64:
        if len(self.ranks) == 1:
            raise NoEvidenceError(f"rank {rank} is the only one in the records, so nothing shows what is usual")
        number = self._whose[0]
        mine = (number >= 0) & (self.work.rank == rank)
        return np.where(mine, np.rint(own * self._factors[number]).astype(np.int64), own)

    def _suspects(self) -> list[int]:
        """Ranks whose own operations take longer than those of their peers, the worst first."""
        number, mine = self._whose[0], self._whose[0] >= 0
        ranks, place = np.unique(self.work.rank[mine], return_inverse=True)
        slower = self.work.own_ns[mine] * (1 - self._factors[number[mine]])
        excess = np.bincount(place, weights=slower)
        total = int(self._lengths(self.work.own_ns[:, None], free=False).sum())
        order = [place for place in np.argsort(-excess).tolist() if excess[place] >= WORTH * total]
        return [int(ranks[place]) for place in order[:MOST_RANKS]]

    @property
    def _stages(self) -> int:
        return len(np.unique(self.work.stage))

    def _equal_stages(self, own: Int64) -> Int64:
        if self._stages == 1:
            raise NoEvidenceError("only one pipeline stage was recorded, so there are none to even out")
        return self._levelled(own, PassTimes.alike_stages)

    def _levelled(self, own: Int64, alike: Callable[[PassTimes], Scaled]) -> Int64:
        """Scale forward and backward steps, so that they are alike."""
        work, chosen = self.work, np.flatnonzero(self._is(*_ITEMS))
        columns = (work.step, work.rank, work.stage, work.chunk, work.operation, own)
        passes = PassTimes(*(column[chosen] for column in columns))
        result = own.copy()
        result[chosen] = np.rint(own[chosen] * scale_of(alike(passes))).astype(np.int64)
        return result

    def _is(self, *kinds: Operation) -> Bool:
        return np.isin(self.work.operation, [OPERATIONS.index(kind) for kind in kinds])

    def _serves(self, dimension: str) -> Bool:
        chosen = [kind for kind, serves in SERVES.items() if dimension in (ALL_DIMENSIONS, serves.value)]
        return self._is(*chosen)

    def _applied(self, edits: Sequence[RecordsEdit]) -> Int64:
        own = self.work.own_ns
        for edit in edits:
            own = edit.apply(own)
        return own

    def _lengths(self, own: Int64, free: bool) -> Int64:
        """Steps × cases."""
        work = self.work
        rest = np.zeros((work.graph.nodes - len(own), own.shape[1]), np.int64)
        ends = work.graph.ends(np.concatenate([own, rest]), None if free else work.lag_ns[:, None])[: len(own)]
        return np.asarray(np.maximum.reduceat(ends, [low for low, _ in step_bounds(work)], axis=0), dtype=np.int64)

    def _rows(self, edits: Sequence[RecordsEdit], own: Int64, kept: Int64, free: Int64) -> list[dict[str, Any]]:
        change = next((edit.change for edit in edits if edit.change is not None), Change())
        steps = len(kept)
        later, order_error = (np.zeros((2, steps)) for _ in range(2))
        counts: list[tuple[int, int] | None] = [None] * steps
        if change != Change():
            for mode, lags in enumerate((self.work.lag_ns, np.zeros_like(self.work.lag_ns))):
                for place, items in enumerate(self._items(own, lags)):
                    order = items.changed(change)
                    later[mode, place], order_error[mode, place] = order.later_ns, order.error
                    counts[place] = order.microbatches
        gain = kept[:, 0] - kept[:, 1] - np.rint(later[0]).astype(np.int64)
        other = free[:, 0] - free[:, 1] - np.rint(later[1]).astype(np.int64)
        error = np.maximum(np.abs(free[:, 0] / kept[:, 0] - 1), np.abs(order_error[0]))
        each = zip(kept[:, 0].tolist(), gain.tolist(), other.tolist(), error.tolist(), counts, strict=True)
        return [
            gain_row(edits, step_ns, won, error_bar(won, free_ns, off, step_ns if change.remakes else 0), microbatches)
            for step_ns, won, free_ns, off, microbatches in each
        ]

    def _items(self, own: Int64, lags: Int64) -> Iterator[Items]:
        """The items of each step."""
        work = self.work
        ends = replayed_ends(work, own, lags)
        arrived = np.zeros(len(work), np.int64)
        real = (work.waited_for < len(work)) | (work.waited_for == work.begin)
        np.maximum.at(arrived, work.waits[real], (ends[work.waited_for] + lags)[real])
        message, item = self._is(*MESSAGES), self._is(*_ITEMS)
        slack = slack_of(work, own, lags, np.isin(work.waiting, len(work) + work.join[message]))
        backward = work.operation == OPERATIONS.index(Operation.BACKWARD)
        for low, high in step_bounds(work):
            ranks: list[MeasuredRank] = []
            pipelines: dict[int, list[int]] = {}
            queue = number_groups(work.data_parallel_rank[low:high], work.stage[low:high])[1]
            for number in range(int(queue.max()) + 1):
                mine = low + np.flatnonzero(queue == number)
                items, messages = mine[item[mine]], mine[message[mine]]
                if not len(items):
                    raise NoEvidenceError("a stage has no forward and backward steps in the records")
                pipelines.setdefault(int(work.data_parallel_rank[mine[0]]), []).append(number)
                items = items[np.argsort(ends[items] - own[items], kind="stable")]
                parts = [
                    frozenset({(bool(backward[one]), max(int(work.chunk[one]), 0), int(work.microbatch[one]))})
                    for one in items.tolist()
                ]
                exchanges = Exchanges(arrived[messages], ends[messages], own[messages])
                start, end = ends[items] - own[items], ends[items]
                ranks.append(
                    measured_rank(
                        parts, start, end, np.zeros(len(parts), dtype=bool), exchanges, 0, int(slack[items[-1]])
                    )
                )
            step_ns = int(ends[low:high].max())
            yield _split(Items(tuple(ranks), tuple(map(tuple, pipelines.values())), step_ns))


def _split(items: Items) -> Items:
    """The same with what layers do not run of the first and the last stage: what these take beyond the others' mean.

    Records name no layers, so every stage counts as having as many.
    """
    stages = len(items.pipelines[0])
    if stages < 3:
        return replace(items, unknown="no stage between the first and the last one shows what layers take alone")
    ranks = list(items.ranks)
    for pipeline in items.pipelines:
        for place in (pipeline[0], pipeline[-1]):
            share: dict[bool, float] = {}
            for backward in (False, True):
                ends, between = (
                    [item.own_ns for one in places for item in items.ranks[one].items if _is_backward(item) == backward]
                    for places in ([place], pipeline[1:-1])
                )
                share[backward] = max(1 - float(np.median(between)) / max(float(np.median(ends)), 1.0), 0.0)
            mine = items.ranks[place]
            told = tuple(replace(item, rest=share[_is_backward(item)]) for item in mine.items)
            ranks[place] = replace(mine, items=told)
    return replace(items, ranks=tuple(ranks), unknown=None)


def _is_backward(item: Item) -> bool:
    return any(backward for backward, _, _ in item.parts)
