"""Which kernels of backward steps give gradients of weights, where that is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceviz_dag.analyze.causes.rank_kernels import PHASES, RankKernels
from traceviz_dag.analyze.products import OF_WEIGHTS, PRODUCT
from traceviz_dag.arrays import Bool
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Phase

WHOLE = "backward steps were measured whole, not as gradients of inputs and of weights"

_BACKWARD, _PP = PHASES.index(Phase.BACKWARD), Dimension.PP.value

_UNLIKE = 2
"""Gradients of weights and of inputs that differ in time by this factor are not those of the same layers."""


def weight_gradients(kernels: RankKernels) -> Bool:
    """Mark the products of backward steps that give gradients of weights."""
    return np.asarray(_in_backward(kernels) & (kernels.product == OF_WEIGHTS))


def why_whole(ranks: Sequence[RankKernels]) -> str | None:
    """Why gradients of weights cannot be told from those of inputs, or not be moved; None where they can."""
    for kernels in ranks:
        weights = weight_gradients(kernels)
        others = _in_backward(kernels) & (kernels.product == PRODUCT)
        mine, theirs = (int(kernels.duration_ns[each].sum()) for each in (weights, others))
        # Both products of a layer have as many operations.
        if not theirs < _UNLIKE * mine < _UNLIKE**2 * theirs:
            return "names of matrix products do not tell gradients of weights from those of inputs"
        if kernels.in_graph[weights].any():
            return "CUDA graphs run backward steps whole"
        if _beside(kernels, weights):
            return "communication runs beside gradients of weights, and nothing shows what else would hide it"
    return None


def _in_backward(kernels: RankKernels) -> Bool:
    return np.asarray((kernels.phase == _BACKWARD) & (kernels.microbatch != MISSING))


def _beside(kernels: RankKernels, weights: Bool) -> bool:
    """Whether communication other than messages between stages runs while one of some kernels does."""
    other = kernels.communicates
    if _PP in kernels.dimensions:
        other = other & (kernels.dimension != kernels.dimensions.index(_PP))
    starts, ends = np.sort(kernels.start_ns[other]), np.sort(kernels.end_ns[other])
    begun = np.searchsorted(starts, kernels.end_ns[weights], side="left")
    return bool((begun > np.searchsorted(ends, kernels.start_ns[weights], side="right")).any())
