"""What forward and backward steps of micro-batches would take if they were alike: on a rank, over ranks, over stages.

Each of the three leaves the other two differences as they are, so that a slow rank is no jitter and no slow stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING

Scaled = tuple[Int64, Int64]
"""Of each step what it takes then, and what it takes that for now, ns: it is scaled by the quotient."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Forward and backward steps of micro-batches of all ranks.

    Attributes:
        training_step, rank, stage, chunk, direction: whose each is; ``MISSING`` where a stage is not known.
        own_ns: what its computation takes.
    """

    training_step: Int64
    rank: Int64
    stage: Int64
    chunk: Int64
    direction: Int64
    own_ns: Int64

    def __post_init__(self) -> None:
        if not len(self.own_ns):
            raise NoEvidenceError("no micro-batches are known")

    def without_jitter(self) -> Scaled:
        """Every micro-batch takes the mean of its rank, chunk and direction."""
        mean, _, of_rank = self._ranks()
        return mean[of_rank], self.own_ns

    def alike_ranks(self) -> Scaled:
        """Every rank takes the lower median of the ranks of its stage, chunk by chunk, each direction for itself.

        Raises:
            NoEvidenceError: no stage has two ranks that were read, or the stages are not known.
        """
        if (self.stage == MISSING).any():
            raise NoEvidenceError("the pipeline stages of the ranks are not known")
        if len(np.unique(self.rank)) == len(np.unique(self.stage)):
            raise NoEvidenceError("no pipeline stage has two ranks that were read, so there are none to even out")
        mean, typical, of_rank = self._ranks()
        return typical[of_rank], mean[of_rank]

    def alike_stages(self) -> Scaled:
        """The lower median of the ranks of each stage takes the mean of all stages, each direction for itself."""
        _, typical, of_rank = self._ranks()
        _, way = number_groups(self.training_step, self.direction)
        return _means(typical[of_rank], way)[way], typical[of_rank]

    def _ranks(self) -> tuple[Int64, Int64, Int64]:
        """Means of each rank, chunk and direction; lower medians of those of a stage; and of each step its place."""
        first, of_rank = number_groups(self.training_step, self.rank, self.chunk, self.direction)
        mean = _means(self.own_ns, of_rank)
        keys = (self.training_step, self.stage, self.chunk, self.direction)
        kinds, kind = number_groups(*(each[first] for each in keys))
        typical = lower_medians(kind.astype(np.int64), mean, len(kinds)).astype(np.int64)[kind]
        return mean, typical, of_rank


def _means(values: Int64, group: Int64) -> Int64:
    """Whole nanoseconds, so that the same sums in another order, or language, give the same."""
    total = np.zeros(int(group.max()) + 1, np.int64)
    np.add.at(total, group, values)
    return np.asarray(total // np.bincount(group), np.int64)


def scale_of(scaled: Scaled) -> np.ndarray:
    """The factor of each step; 1 where it takes no time now."""
    then, now = scaled
    return np.where(now > 0, then / np.maximum(now, 1), 1.0)
