"""Advice on a measured step: allowed changes of its order, layers and recomputation, the shortest predicted step first.

Each change is predicted as ``traceviz what-if`` predicts it. Changes that Megatron-LM refuses are left out; those that
do not fit in memory come last. More micro-batches of the same size are another global batch: such changes are compared
by the step for each micro-batch, and are no gain of a job whose batch is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from traceviz_dag.analyze.advice.flags import ONE, flags
from traceviz_dag.analyze.advice.memory import StageUse, fits, in_flight
from traceviz_dag.analyze.advice.placement import Placed
from traceviz_dag.analyze.causes.gains import LEAST_GAIN
from traceviz_dag.analyze.causes.reordered import COMBINED, Change, Items
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import Order

KEEPS = ("vpp", "layers", "microbatches", "schedule", "recompute", "order")
"""What may be kept as it is."""

_MOST_CHUNKS = 8
_SHARES = 3
"""Ways to share layers out that are tried: those whose busiest stage has least to do."""


class Predicts(Protocol):
    """One measured step, or several of records."""

    def gains(self, change: Change) -> tuple[int, int, int, int]:
        """The step and what a change gains of it, at least and at most, ns.

        Raises:
            NoEvidenceError: nothing shows what it would take.
        """


class Beside(Protocol):
    """The step together with one of micro-batches of another size."""

    @property
    def sizes(self) -> Sequence[Fraction]:
        """Sizes of micro-batches of which both together tell, over that of now."""

    def gains(self, change: Change, size: Fraction) -> tuple[int, int, int, int]:
        """As ``Predicts``, with micro-batches of a size."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change and its predicted step.

    Attributes:
        step_ns: as it was. predicted_ns, low_ns, high_ns: with the change. microbatches: before and after.
        size: of the latter, over that of now.
        fits: whether it fits in memory, None where unknown; why: why not, or why that is unknown.
        in_flight: per stage, as ``memory.in_flight``. flags, assumptions: lines.
        rank_order: of the ranks, where that is what changes; None elsewhere.
    """

    change: Change
    step_ns: int
    predicted_ns: int
    low_ns: int
    high_ns: int
    microbatches: tuple[int, int]
    fits: bool | None
    why: str | None
    in_flight: tuple[float, ...]
    flags: Mapping[str, list[str]]
    assumptions: tuple[str, ...]
    size: Fraction = ONE
    rank_order: str | None = None

    @property
    def same_batch(self) -> bool:
        """Whether the global batch stays."""
        return self.microbatches[0] == self.microbatches[1] * self.size

    @property
    def speed(self) -> float:
        """Tokens per second, relative to now."""
        before, after = self.microbatches
        return self.step_ns / self.predicted_ns * float(after * self.size / before)

    @property
    def wins(self) -> bool:
        """Whether it is worth being advised: it gains over 1 %, the batch is the same, and it does not lack memory."""
        return self.same_batch and self.fits is not False and self.speed > 1 + LEAST_GAIN

    def as_row(self) -> dict[str, Any]:
        """It as ``--json`` prints it."""
        size = None if self.size == ONE else float(self.size)
        every = {"microbatch_size": size, "rank_order": self.rank_order, **self.change.as_row()}
        return {
            "change": {name: value for name, value in every.items() if value is not None},
            "step_ns": self.step_ns,
            "predicted_step_ns": self.predicted_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "tokens_per_second": round(self.speed, 4),
            "same_batch": self.same_batch,
            "wins": self.wins,
            "fits": self.fits,
            "fits_reason": self.why,
            "in_flight": list(self.in_flight),
            "flags": dict(self.flags),
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True)
class Advisor:
    """Advice on one step.

    Attributes:
        items: of the step. predicts: its predictions. uses: what GPUs hold, by stage; none unknown.
        keep: of ``KEEPS``. beside: a capture of micro-batches of another size; None: there is none.
        placed: what another order of the ranks would make, or why that is not predicted.
    """

    items: Items
    predicts: Predicts
    uses: Mapping[int, StageUse]
    keep: frozenset[str] = frozenset()
    beside: Beside | None = None
    placed: Placed | str = "nothing shows which node each rank of the job runs on"

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """All allowed changes: those of the same batch first, those that lack memory last, then the fastest first."""
        found = []
        for change, size in [*((change, ONE) for change in self.changes()), *self._sized()]:
            try:
                found.append(self._advice(change, size))
            except NoEvidenceError:
                continue
        if isinstance(self.placed, Placed) and "order" not in self.keep:
            found.append(self._of(Change(), ONE, self.placed.gains, self.placed.order))
        return tuple(sorted(found, key=lambda one: (one.fits is False, not one.same_batch, -one.speed)))

    def changes(self) -> Iterator[Change]:
        """The allowed changes, each another job."""
        now = self.items.now
        seen: set[tuple[object, ...]] = {(now, self.items.layers, None)}
        counts = [None] if "microbatches" in self.keep else [None, now.microbatches * 2]
        for (chunks, schedule), off, count in product(self._orders(), self._recompute_off(), counts):
            of_some = off is not None and len(off) < now.stages
            for layers in self._shares(chunks):
                # Another batch is asked of the orders, not of each way to share the layers out; and of the order and
                # layers as they are, whether some stages recompute.
                if (count and layers) or (of_some and (count or layers or schedule)):
                    continue
                change = self._allowed(Change(count, schedule, chunks if chunks != now.chunks else None, layers, off))
                if change is None:
                    continue
                key = (change.order(now), layers or self.items.layers, off)
                if key not in seen:
                    seen.add(key)
                    yield change

    def _recompute_off(self) -> list[tuple[int, ...] | None]:
        """Stages to recompute nothing: None; all; the last half and the last, which keep the fewest micro-batches."""
        if "recompute" in self.keep or not any(item.again for rank in self.items.ranks for item in rank.items):
            return [None]
        stages = self.items.now.stages
        return [None, *(tuple(range(first, stages)) for first in sorted({0, stages // 2, stages - 1}))]

    def _sized(self) -> Iterator[tuple[Change, Fraction]]:
        """Allowed orders with micro-batches of another size and the same batch."""
        now, seen = self.items.now, set[tuple[Order, Fraction]]()
        sizes = () if self.beside is None or "microbatches" in self.keep else self.beside.sizes
        for size, (chunks, schedule) in product(sizes, self._orders()):
            if schedule == COMBINED:
                continue
            count = now.microbatches / size
            change = Change(int(count), schedule, chunks if chunks != now.chunks else None)
            allowed = self._allowed(change) if count.denominator == 1 else None
            if allowed is not None and (key := (allowed.order(now), size)) not in seen:
                seen.add(key)
                yield allowed, size

    def _allowed(self, change: Change) -> Change | None:
        """A change with no more than it needs to say; None where Megatron-LM refuses it."""
        now, implied = self.items.now, replace(change, schedule=None)
        try:
            order = change.order(now)
            change = implied if implied.order(now) == order else change
        except NoEvidenceError:
            return None
        if order.combined and order.microbatches == 1:
            return None
        # Without overlap Megatron-LM refuses two stages: both would send to and receive from the same rank.
        return None if order.chunks > 1 and order.stages == 2 and not order.overlapped else change

    def _orders(self) -> Iterator[tuple[int, str | None]]:
        """Chunks and schedule of each allowed order."""
        now = self.items.now
        yield now.chunks, None
        if now.combined:
            return
        joins = self.items.joined is None and "schedule" not in self.keep
        if now.stages == 1:
            yield from [(1, COMBINED)] if joins else []
            return
        fewest = min(self.items.layers) if self.items.layers else 2 * now.chunks
        for chunks in [now.chunks] if "vpp" in self.keep else range(1, min(fewest, _MOST_CHUNKS) + 1):
            if "schedule" in self.keep and (chunks > 1) != (now.chunks > 1):
                continue
            both = ("interleaved", "interleaved-overlapped")
            # How long hosts would wait for exchanges that overlap now, nothing shows.
            kept = both[1:] if now.overlapped else both[:1] if "schedule" in self.keep else both
            several = (*kept, COMBINED) if joins else kept
            plain = ("1f1b",) if "schedule" in self.keep else ("1f1b", "zero-bubble")
            yield from ((chunks, each) for each in (plain if chunks == 1 else several))

    def _shares(self, chunks: int) -> list[tuple[int, ...] | None]:
        """Ways to share the layers out; None: as they are."""
        layers, stages = self.items.layers, self.items.now.stages
        if "layers" in self.keep or not layers or stages == 1 or self.items.now.combined:
            return [None]
        total, found = sum(layers), list[tuple[int, ...]]()
        for first in range(chunks, total, chunks):
            for last in [total - first] if stages == 2 else range(chunks, total - first, chunks):
                each, left = divmod(total - first - last, max(stages - 2, 1))
                if left == 0 and last % chunks == 0 and (stages == 2 or (each and each % chunks == 0)):
                    found.append((first, *[each] * (stages - 2), last))
        found.append(self._levelled(chunks))
        best = sorted({one for one in found if one != layers}, key=lambda one: (self._busiest(one), one))
        return [None, *best[:_SHARES]]

    def _levelled(self, unit: int) -> tuple[int, ...]:
        """Layers shared out one unit after the other, each to the stage that then has least to do."""
        counts = [unit] * self.items.now.stages
        for _ in range(unit * len(counts), sum(self.items.layers), unit):
            ends = [rest + (count + unit) * each for count, (rest, each) in zip(counts, self._of_stages, strict=True)]
            counts[ends.index(min(ends))] += unit
        return tuple(counts)

    def _busiest(self, layers: Sequence[int]) -> float:
        """What a micro-batch takes on the stage that has most to do."""
        return max(rest + count * each for count, (rest, each) in zip(layers, self._of_stages, strict=True))

    @cached_property
    def _of_stages(self) -> list[tuple[float, float]]:
        """Per stage, what a micro-batch takes without layers and for each layer, mean of the pipelines, ns."""
        found = []
        for stage in range(self.items.now.stages):
            places = [pipeline[stage] for pipeline in self.items.pipelines]
            taken = [one for place in places for one in self.items.taken[place].values()]
            rest = sum(one.rest for one in taken) / len(places)
            whole = sum(one.usual for one in taken) / len(places)
            found.append((rest, (whole - rest) / self.items.layers[stage]))
        return found

    def _advice(self, change: Change, size: Fraction) -> Advice:
        sized = self.beside if size != ONE else None
        return self._of(change, size, self.predicts.gains(change) if sized is None else sized.gains(change, size))

    def _of(
        self, change: Change, size: Fraction, gains: tuple[int, int, int, int], rank_order: str | None = None
    ) -> Advice:
        now = self.items.now
        order = change.order(now)
        step_ns, gain, low, high = gains
        layers = change.layers or self.items.layers
        room, why = fits(change, now, order, (self.items.layers, layers), self.uses, float(size))
        return Advice(
            change,
            step_ns,
            step_ns - gain,
            step_ns - high,
            step_ns - low,
            (now.microbatches, order.microbatches),
            room,
            why,
            tuple(held * float(size) for held in in_flight(order)),
            flags(change, now, order, self.items.layers, size, rank_order),
            tuple(_assumptions(change, now, order, size, rank_order)),
            size,
            rank_order,
        )


def _assumptions(change: Change, now: Order, order: Order, size: Fraction, rank_order: str | None) -> Iterator[str]:
    if rank_order is not None:
        yield "links inside nodes and across them carry as much for each group as they do now"
    if size != ONE:
        yield "what takes t1 and t2 at the two sizes takes what lies between at a size between; sequences stay as long"
    if order.chunks != now.chunks and order.chunks > 1:
        yield "layers of a stage take the same time, and messages as long as now"
    if order.chunks > 1 == now.chunks and not order.overlapped:
        yield "messages between the last and the first stage take as long as the slowest between neighbours"
    if order.split:
        yield "gradients of weights take the same time later: the order is ZB-H1's, and all linear layers leave them"
    if order.combined and not now.combined:
        yield (
            "communication of experts in a forward step runs beside computation of a backward step and the other way "
            "round, and neither slows the other; the error bar reaches to none of it beside computation"
        )
    if order.overlapped and not now.overlapped:
        yield "exchanges beside computation do not slow it down"
    if now.overlapped and not order.overlapped and order.chunks > 1:
        yield "the host waits for no exchange longer than now: the step may be longer by over 1 %"
    if change.layers is not None:
        yield "a layer takes what the layers of its stage take now; a rank that is slow stays slow"
    if change.no_recompute is not None:
        yield "only the recomputed work goes; what it kept out of memory must fit"
    if order.microbatches * size != now.microbatches:
        yield "micro-batches of the same size, so another global batch"


_SIZE = {
    False: "micro-batch size, or fewer micro-batches of the same batch: kernels of another size were not measured; "
    "capture the job with another size, too, and name it with --beside",
    True: "micro-batch sizes below or above those of both captures: kernels of these sizes were not measured",
}


def not_predictable(advisor: Advisor, dimensions: Sequence[str]) -> list[str]:
    """What the capture cannot tell, with the reasons, as lines.

    Args:
        dimensions: of the step's communication.
    """
    items = advisor.items
    lines = [
        "tensor, context and expert parallel sizes: kernels and messages of other sizes were not measured",
        _SIZE[advisor.beside is not None],
        *([f"order of ranks on nodes: {advisor.placed}"] if isinstance(advisor.placed, str) else []),
    ]
    if items.now.stages > 1 and not items.now.combined and items.whole is not None:
        lines.append(f"zero-bubble schedules: {items.whole}")
    if "ep" in dimensions and not items.now.combined and items.joined is not None:
        lines.append(f"combined 1F1B (--overlap-moe-expert-parallel-comm): {items.joined}")
    if items.now.overlapped and not items.now.combined:
        lines.append("interleaving without overlap: nothing shows how long hosts would wait for exchanges")
    if items.now.combined:
        lines.append("other schedules: forward and backward steps run into each other, so none was measured alone")
    elif items.unknown is not None and items.now.stages > 1:
        lines.append(f"more chunks and other layers: {items.unknown}")
    return lines
