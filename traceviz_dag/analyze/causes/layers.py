"""What of a step's work grows with the layers of a pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.causes.step_work import Times
from traceviz_dag.arrays import Bool, Float64, Int64


@dataclass(frozen=True, slots=True)
class Layers:
    """What of a step's work grows with the layers of a stage.

    Attributes:
        of_stage: how many layers each stage has. group: of each rank, the place of its stage in ``of_stage``.
        by_layers: per rank and kernel, the share of it that layers run by themselves.
        factor: per rank and kernel, where layers run it, what it takes with even layers over what it takes now.
        others: sets of kernels, per rank, each of which as a whole takes longer for each layer; the last set counts
            where several hold a kernel, and before ``factor``.
        of_last: share of the last stage's forward steps that layers run, its output layer the rest.
        unknown: why numbers of layers, or what of steps they run, are not known; None where they are. Then
            ``of_stage`` has proportions.
    """

    of_stage: Float64
    group: Int64
    by_layers: Sequence[Float64]
    factor: Sequence[Float64]
    others: Sequence[Sequence[Bool]]
    of_last: float = 1.0
    unknown: str | None = None

    def with_more(self, times: Sequence[Times], more: Sequence[int]) -> tuple[Times, ...]:
        """The times with more layers of stages in the work after their micro-batches: gradients and optimizer.

        Args:
            more: layers of each stage; fewer below 0.
        """
        longer = [mine.duration_ns for mine in times]
        # Of two stages with as many layers none is without a vocabulary. It has about as much of a stage's parameters
        # as its output layer has of forward steps.
        inside = self.of_last if len(self.of_stage) == 2 and self.of_stage[0] == self.of_stage[1] else 1.0
        for masks in (self.others[-3], self.others[-1]):
            total = np.array([mine.duration_ns[mask].sum() for mask, mine in zip(masks, times, strict=True)])
            of_layer = inside * of_a_layer(total, self.of_stage, self.group)
            share = 1 + np.array(more)[self.group] * of_layer / np.maximum(total, 1)
            longer = [
                np.where(mask, np.rint(each * times_as_long).astype(np.int64), each)
                for mask, each, times_as_long in zip(masks, longer, share.tolist(), strict=True)
            ]
        return tuple(replace(mine, duration_ns=each) for mine, each in zip(times, longer, strict=True))


def of_a_layer(total: Int64, layers: Float64, stage: Int64) -> float:
    """What one layer takes of work that grows with the layers of a stage.

    The first and the last stage run more than layers. So between them there is a stage where a layer takes least; of
    two stages, whose vocabularies are similar, the difference is what they have more or fewer layers.

    Args:
        total: of each rank. layers: of each stage. stage: of each rank.
    """
    least = float((total / layers[stage]).min())
    if len(layers) > 2 or layers[0] == layers[1]:
        return least
    first, last = (float(total[stage == number].mean()) for number in (0, 1))
    slope = (first - last) / float(layers[0] - layers[1])
    return slope if 0 < slope < least else least
