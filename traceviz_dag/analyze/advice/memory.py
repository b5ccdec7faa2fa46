"""Whether a change fits in memory: micro-batches in flight with it, by what a stage's activations take now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.schedules import Backward, Combined, Forward, Order, WeightGradient


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage's GPU holds, bytes; of its rank that holds most.

    Attributes:
        peak: the most reserved. in_flight: of it, what activations of micro-batches held at most. gpu: memory of the
            GPU; None where unknown. counted: ``in_flight`` is by how much allocations rose in micro-batches, as
            counters tell it: activations hold that much or less.
    """

    peak: int
    in_flight: int
    gpu: int | None
    counted: bool = False


NO_SNAPSHOTS = "no memory snapshot beside the traces, and no memory events in them"


def in_flight(order: Order) -> tuple[float, ...]:
    """Per stage, the most micro-batches whose activations it keeps at once, each of all its layers.

    Of one whose gradients of weights are left for later they count whole until then.
    """
    found = []
    for stage in range(order.stages):
        now = most = 0
        for action in order.actions(stage):
            steps = (action.forward, action.backward) if isinstance(action, Combined) else (action,)
            now += sum(isinstance(each, Forward) for each in steps)
            most = max(most, now)
            now -= sum(isinstance(each, Backward | WeightGradient) for each in steps)
        found.append(most / order.chunks)
    return tuple(found)


def fits(
    change: Change,
    present: Order,
    order: Order,
    layers: tuple[Sequence[int], Sequence[int]],
    uses: Mapping[int, StageUse],
    size: float = 1.0,
) -> tuple[bool | None, str | None]:
    """Whether every stage has room for a change; None where nothing shows it, with the reason.

    What micro-batches do not hold grows with the layers at most; it stays at least where there are fewer.

    Args:
        layers: of each stage, now and then; none where unknown. uses: by stage. size: of a micro-batch, over now.
    """
    if not uses:
        return None, NO_SNAPSHOTS
    now, then = in_flight(present), in_flight(order)
    # Without recomputation activations take more than these, so what lacks memory with it lacks more without.
    open_ = None if change.no_recompute is None else "nothing shows what activations take that are recomputed now"
    for stage in range(order.stages):
        use = uses.get(stage)
        if use is None or use.gpu is None:
            open_ = open_ or f"the memory of stage {stage} is not known"
            continue
        share = layers[1][stage] / layers[0][stage] if layers[0] else 1.0
        grown = share * size * then[stage] / now[stage]
        held = (0, use.in_flight) if use.counted else (use.in_flight,)
        rests = min(share, 1.0), max(share, 1.0)
        needs = [(use.peak - each) * rest + each * grown for each in held for rest in rests]
        if min(needs) > use.gpu:
            return False, f"stage {stage} would need {min(needs) / use.gpu:.0%} of its GPU's memory"
        if max(needs) > use.gpu and use.counted:
            most = f"stage {stage} would need {max(needs) / use.gpu:.0%} of its GPU's memory at most"
            open_ = open_ or f"{most}, and counters do not tell activations from the rest"
        elif max(needs) > use.gpu:
            open_ = open_ or f"nothing shows whether what stage {stage} holds besides activations grows with its layers"
    return (True, None) if open_ is None else (None, open_)
