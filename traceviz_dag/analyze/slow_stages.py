"""What makes a pipeline stage longer than the others: more of the same work, work of its own, or slower kernels.

Kernels are the same where their name, phase and grid are, and their times differ between stages as those of most
kernels do: a factor of ``ALIKE`` more is other work under the same name. Of a stage s and a kernel that all stages run,
let n be how often a step runs it and d what it takes in the mean. Then

    n_s d_s - mean(n d) = (n_s - mean(n)) mean(d)     it runs more often: ``more_work_ns``
                        + the rest                    it takes longer:    ``slower_ns``

and the rest is ``own_work_ns``: the embedding of the first stage, the loss of the last one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import Bool, Float64, Int64
from traceviz_dag.tables import STAGE_SPEEDS

ALIKE = 1.25
"""Kernels whose time differs by more than this factor from how a stage's other kernels differ do other work."""


def stage_speeds(work: pa.Table, ranks_of_stage: dict[int, tuple[int, ...]]) -> pa.Table:
    """Part each stage's excess over the mean stage.

    Args:
        work: ``lake.summaries.stage_work``.
        ranks_of_stage: stage → its ranks that are counted.

    Returns:
        The table ``stage_speeds``, by stage; no rows where fewer than two stages ran micro-batches.
    """
    stages, place = np.unique(optional_integers(work, "stage"), return_inverse=True)
    if len(stages) < 2:
        return STAGE_SPEEDS.schema.empty_table()
    keys = [codes(work, name)[0].astype(np.int64) for name in ("phase", "name")]
    _, item = number_groups(*keys, *(optional_integers(work, f"grid_{axis}") for axis in "xyz"))
    steps = np.zeros(len(stages), np.int64)
    steps[place] = optional_integers(work, "steps")
    kernels, time = np.zeros((len(stages), item.max() + 1)), np.zeros((len(stages), item.max() + 1))
    kernels[place, item] = optional_integers(work, "kernels")
    time[place, item] = optional_integers(work, "time_ns")
    kernels, time = kernels / steps[:, None], time / steps[:, None]
    shared = _same_work(kernels, time)
    excess = time - time.mean(axis=0)
    usual = np.where(shared, time.sum(axis=0) / np.maximum(kernels.sum(axis=0), 1e-9), 0.0)
    more = ((kernels - kernels.mean(axis=0)) * usual)[:, shared].sum(axis=1)
    own = excess[:, ~shared].sum(axis=1)
    compute, mean = _rounded(time.sum(axis=1)), round(time.sum() / len(stages))
    more_ns, own_ns = _rounded(more), _rounded(own)
    alone = [ranks_of_stage.get(stage, ()) for stage in stages.tolist()]
    return STAGE_SPEEDS.from_columns(
        {
            "stage": stages,
            "stages": np.full(len(stages), len(stages)),
            "ranks": [len(each) for each in alone],
            "rank": [each[0] if len(each) == 1 else None for each in alone],
            "compute_ns": compute,
            "mean_ns": np.full(len(stages), mean),
            "more_work_ns": more_ns,
            "own_work_ns": own_ns,
            "slower_ns": compute - mean - more_ns - own_ns,
            "ratio": _ratios(kernels[:, shared], time[:, shared]),
        }
    )


def _same_work(kernels: Float64, time: Float64) -> Bool:
    """Mark the kernels that all stages run and that each takes as much longer as most of its others."""
    everywhere = (kernels > 0).all(axis=0)
    each = np.where(everywhere, time / np.where(everywhere, kernels, 1.0), 1.0)
    usual = np.sort(each, axis=0)[(len(each) - 1) // 2]
    factor = each / np.maximum(usual, 1.0)
    same = everywhere.copy()
    for stage in range(len(each)):
        weight = np.where(everywhere, kernels[stage] * usual, 0.0)
        order = np.argsort(factor[stage])
        reached = np.cumsum(weight[order])
        if not reached[-1]:
            continue
        middle = factor[stage][order][np.searchsorted(reached, reached[-1] / 2)]
        same &= (factor[stage] <= ALIKE * middle) & (factor[stage] * ALIKE >= middle)
    return np.asarray(same)


def _ratios(kernels: Float64, time: Float64) -> list[float | None]:
    """Per stage, what its kernels take to what as many of the same take on the other stages."""
    result: list[float | None] = []
    for stage in range(len(kernels)):
        others = np.arange(len(kernels)) != stage
        usual = (time[others].sum(axis=0) / np.maximum(kernels[others].sum(axis=0), 1e-9) * kernels[stage]).sum()
        result.append(float(time[stage].sum() / usual) if usual else None)
    return result


def _rounded(values: Float64) -> Int64:
    return np.rint(values).astype(np.int64)
