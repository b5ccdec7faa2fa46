"""Which GPU and which iteration represent a profile: those whose measures are nearest to the median of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.iterations import IterationMeasures, iteration_measures
from traceviz_dag.analyze.nsys.overlap import GpuOverlap, gpu_overlap
from traceviz_dag.classify.rules import Rules
from traceviz_dag.read.nsys.profile import NsysProfile

_MEASURES = ("compute_ns", "exposed_ns", "memory_alone_ns", "idle_ns")


@dataclass(frozen=True, slots=True)
class Representative:
    """What to look at first.

    Attributes:
        gpu: the one whose computation, exposed communication, memory operations alone and idle time are nearest to the
            medians over the GPUs; distance_ns: the sum of its differences from these. gpus: how many there are.
        iteration: of this GPU, the one whose length is nearest to the median of all but the first, and of all where
            there are no more than two. iterations: how many there are.
    """

    gpu: GpuOverlap
    distance_ns: int
    gpus: int
    iteration: IterationMeasures
    iterations: int


def representative(
    profile: NsysProfile, gpus: Sequence[Activity], rules: Rules, window: Clip | None = None
) -> Representative | None:
    """What represents these GPUs; None where no iteration is in the window."""
    overlaps = [gpu_overlap(one, window) for one in gpus]
    values = np.array([[getattr(one, name) for name in _MEASURES] for one in overlaps], dtype=np.int64)
    middle = np.sort(values, axis=0)[(len(values) - 1) // 2]
    distance = np.abs(values - middle).sum(axis=1)
    place = int(distance.argmin())
    iterations = iteration_measures(profile, gpus[place], rules, window)
    if not iterations:
        return None
    counted = iterations[1:] if len(iterations) > 2 else iterations
    lengths = [one.overlap.span_ns for one in counted]
    usual = lower_median(lengths)
    return Representative(
        overlaps[place], int(distance[place]), len(gpus), counted[lengths.index(usual)], len(iterations)
    )
