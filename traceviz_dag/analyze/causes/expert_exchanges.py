"""Communication between experts in micro-batches' steps, which combined 1F1B would run beside computation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceviz_dag.analyze.causes.rank_kernels import MULTI_TOKEN, PHASES, SEVERAL_KINDS, RankKernels
from traceviz_dag.analyze.intervals import clip, measure, measure_within, union
from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Phase

NONE_SHOWN = "nothing shows communication of experts in forward and backward steps"

_NOT_COMBINED = {
    SEVERAL_KINDS: "Megatron-LM does not combine steps of hybrid models",
    MULTI_TOKEN: "nothing shows how many depths of multi-token prediction there are; Megatron-LM takes one at most",
}
"""What Megatron-LM refuses beside it."""


_BARED = 0.5
"""Share of the experts' communication that nothing runs beside, below which something else hides it already."""


_IDLE = 0.1
"""Share of the time of micro-batches in which GPUs run nothing, above which hosts are the slower ones."""


def exchanged_in(kernels: RankKernels, starts: Int64, ends: Int64) -> Int64:
    """How long experts communicate in each of some spans, ns."""
    mine = _between_experts(kernels)
    return measure_within(union(kernels.start_ns[mine], kernels.end_ns[mine]), starts, ends)


def why_not_apart(ranks: Sequence[RankKernels]) -> str | None:
    """Why combined 1F1B cannot be predicted; None where it can."""
    exchanged = bared = passed = idle = 0
    for kernels in ranks:
        mine, steps = _between_experts(kernels), kernels.microbatch != MISSING
        if not mine.any():
            continue
        if (mine & (kernels.phase == PHASES.index(Phase.RECOMPUTE))).any():
            return "experts' communication is recomputed, with which Megatron-LM refuses it"
        computed = union(kernels.start_ns[kernels.computes], kernels.end_ns[kernels.computes])
        lasted = int(kernels.duration_ns[mine].sum())
        exchanged += lasted
        bared += lasted - int(measure_within(computed, kernels.start_ns[mine], kernels.end_ns[mine]).sum())
        begin, end = int(kernels.start_ns[steps].min()), int(kernels.end_ns[steps].max())
        passed += end - begin
        idle += end - begin - measure(clip(union(kernels.start_ns, kernels.end_ns), begin, end))
    if not exchanged:
        return NONE_SHOWN
    for beside, why in _NOT_COMBINED.items():
        if any(kernels.beside_layers == beside for kernels in ranks):
            return why
    if bared < _BARED * exchanged:
        return "most of the experts' communication runs beside computation already"
    if idle > _IDLE * passed:
        return "GPUs wait for their hosts, and nothing shows what hosts take to launch two steps at once"
    return None


def _between_experts(kernels: RankKernels) -> Bool:
    if Dimension.EP.value not in kernels.dimensions:
        return np.zeros(len(kernels), dtype=bool)
    among = kernels.dimension == kernels.dimensions.index(Dimension.EP.value)
    return np.asarray(among & kernels.communicates & (kernels.microbatch != MISSING))
