"""Contention: computation takes longer while its rank communicates.

When a kernel starts, the model does not know yet how long the communications beside it will run. So the job is run
several times: each time a kernel takes as much longer as communication covered it on the mean of the times before,
until hardly any kernel's share changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceviz_dag.arrays import Float64
from traceviz_dag.simulate.covering import uncovered
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.simulate.timing.model import Model
from traceviz_dag.simulate.timing.streams import StepTimes

_RUNS = 6


def slower_kernels(
    settings: JobSettings, steps: Sequence[tuple[int, bool]]
) -> Mapping[tuple[int, int], Sequence[float]]:
    """(Step, rank) → how much longer each of its kernels takes, in launch order; empty without contention.

    Args:
        steps: of the job, as ``Model.step`` takes them.
    """
    found: dict[tuple[int, int], Sequence[float]] = {}
    for run in range(_RUNS if settings.contention > 1 else 0):
        model, now = Model(settings, found), {}
        for number, synchronised in steps:
            for rank, times in enumerate(model.step(number, synchronised)):
                now[number, rank] = _slower(times, settings.contention)
        # A kernel that is longer than what covers it would else be covered in turns.
        found = {of: ((np.array(found[of]) + slower) / 2 if run else slower).tolist() for of, slower in now.items()}
    return found


def _slower(times: StepTimes, contention: float) -> Float64:
    communicates = np.array([bool(match) for match in times.match])
    length = times.ends - times.starts
    covered = length - uncovered(times.starts, times.ends, communicates)
    share = np.where(communicates, 0.0, covered / np.maximum(length, 1))
    return np.asarray(1.0 + (contention - 1.0) * share)
