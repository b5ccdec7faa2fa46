"""What makes a pipeline stage longer than the others: more of the same work, work of its own, or slower kernels.

Kernels are the same where their name, phase, grid and operator are, and the sizes of their inputs. Where no sizes
were recorded, their module and the kernels around them show which of a layer they are, and they are the same only if
their times differ between stages as those of nearly all others do: a slow GPU is slower in all it does, and what alone
takes a factor of ``ALIKE`` longer is other work under the same name. Slow memory is slower in all that it bounds: there
the kernels whose grids show as much to do differ alike. Of a stage s and a kernel that all stages run, let n be how
often a step runs it and d what it takes in the mean. Then

    n_s d_s - mean(n d) = (n_s - mean(n)) mean(d)     it runs more often: ``more_work_ns``
                        + the rest                    it takes longer:    ``slower_ns``

and the rest is ``own_work_ns``: the embedding of the first stage, the loss of the last one. ``unsure_ns`` of that are
kernels that all stages run and that differ alone: without sizes, other work under one name looks like slow products.
A kernel that an unlike share of the stages' ranks runs is not compared: there another rank runs the same work by
another name, and n says nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.medians import lower_medians_of_others
from traceviz_dag.analyze.slow_words import LEAST_ITEMS, SLOWER_THAN_FEW
from traceviz_dag.analyze.work_evidence import bound_by_memory, plain_codes, sizes_of, work_by_grid
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.tables import STAGE_SPEEDS

ALIKE = 1.25
"""Kernels whose time differs by more than this factor from how nearly all of a stage's kernels differ do other work."""

_LEAST_WEIGHT = 0.002
"""Kernels that take less of what all stages run do not show how a stage's kernels differ."""


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
    keys += [plain_codes(work, name) for name in ("operator", "module")]
    keys += [optional_integers(work, name) for name in ("grid_x", "grid_y", "grid_z", "around")]
    sizes = sizes_of(work)[0]
    first, item = number_groups(*keys, sizes)
    sized = sizes[first] >= 0
    steps = np.zeros(len(stages), np.int64)
    steps[place] = optional_integers(work, "steps")
    kernels, time = np.zeros((len(stages), item.max() + 1)), np.zeros((len(stages), item.max() + 1))
    np.add.at(kernels, (place, item), optional_integers(work, "kernels"))
    np.add.at(time, (place, item), optional_integers(work, "time_ns"))
    kernels, time = kernels / steps[:, None], time / steps[:, None]
    code, names = codes(work, "name")
    of_memory = bound_by_memory(code[first], names)
    blocks = np.prod([optional_integers(work, name)[first] for name in ("grid_x", "grid_y", "grid_z")], axis=0)
    alike = _run_alike(work["ranks"], place, item, kernels.shape)
    shared = alike & same_work(kernels, time, sized, work_by_grid(code[first], names, blocks))
    memory, arithmetic = shared & of_memory, shared & ~of_memory
    excess = time - time.mean(axis=0)
    usual = np.where(shared, time.sum(axis=0) / np.maximum(kernels.sum(axis=0), 1e-9), 0.0)
    more = ((kernels - kernels.mean(axis=0)) * usual)[:, shared].sum(axis=1)
    own = excess[:, ~shared].sum(axis=1)
    unsure = excess[:, alike & ~shared & (kernels > 0).all(axis=0)].sum(axis=1)
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
            "unsure_ns": _rounded(unsure),
            "slower_ns": compute - mean - more_ns - own_ns,
            "ratio": _ratios(kernels[:, shared], time[:, shared]),
            "slower_items": _slower_items(kernels[:, shared], time[:, shared]),
            "memory_ratio": _ratios(kernels[:, memory], time[:, memory]),
            "memory_slower_items": _slower_items(kernels[:, memory], time[:, memory]),
            "arithmetic_ratio": _ratios(kernels[:, arithmetic], time[:, arithmetic]),
        }
    )


def same_work(kernels: Float64, time: Float64, sized: Bool, by_grid: Bool) -> Bool:
    """Mark the kernels that all stages run; without sizes, those that each takes as much longer as nearly all others.

    Args:
        kernels: how often each stage (rows) runs each kernel (columns). time: what they take together.
        sized: kernels whose sizes are known. by_grid: those bound by memory whose grids show how much they have to do:
            they are also the same where they differ as nearly all of these do.
    """
    everywhere = (kernels > 0).all(axis=0)
    each = np.where(everywhere, time / np.where(everywhere, kernels, 1.0), 1.0)
    usual = np.sort(each, axis=0)[(len(each) - 1) // 2]
    factor = each / np.maximum(usual, 1.0)
    same = everywhere.copy()
    for stage in range(len(each)):
        weight = np.where(everywhere, kernels[stage] * usual, 0.0)
        heavy = weight >= _LEAST_WEIGHT * weight.sum()
        if not weight.any():
            continue
        alike = sized | _as_nearly_all(factor[stage], heavy)
        if (heavy & by_grid).any():
            alike |= by_grid & _as_nearly_all(factor[stage], heavy & by_grid)
        same &= alike
    return np.asarray(same & everywhere)


def _run_alike(ranks: pa.ChunkedArray, place: Int64, item: Int64, shape: tuple[int, int]) -> Bool:
    """Mark kernels that the same share of the ranks of each stage runs that runs them at all.

    Args:
        ranks: per row, those that ran it. place, item: per row, its stage and kernel. shape: stages × kernels.
    """
    lengths = pc.list_value_length(ranks).to_numpy().astype(np.int64)
    rank = np.asarray(pc.list_flatten(ranks.combine_chunks()), np.int64)
    first, _ = number_groups(np.repeat(place, lengths), np.repeat(item, lengths), rank)
    running = np.zeros(shape, np.int64)
    np.add.at(running, (np.repeat(place, lengths)[first], np.repeat(item, lengths)[first]), 1)
    one, _ = number_groups(np.repeat(place, lengths), rank)
    size = np.bincount(np.repeat(place, lengths)[one], minlength=shape[0])
    share = running / size[:, None]
    return np.asarray(share.max(axis=0) == np.where(share > 0, share, 1.0).min(axis=0))


def _as_nearly_all(factor: Float64, of: Bool) -> Bool:
    """Mark kernels whose factor is that of nearly all of some."""
    least = np.sort(factor[of])[int((1 - LEAST_ITEMS) * int(of.sum()))]
    return np.asarray((factor <= ALIKE * least) & (factor * ALIKE >= least))


def _ratios(kernels: Float64, time: Float64) -> list[float | None]:
    """Per stage, what its kernels take to what as many of the same take on the median of the other stages: another slow
    one does not hide how slow it is."""
    usual = (lower_medians_of_others(time / np.maximum(kernels, 1e-9)) * kernels).sum(axis=1)
    return [float(own / other) if other else None for own, other in zip(time.sum(axis=1), usual, strict=True)]


def _slower_items(kernels: Float64, time: Float64) -> list[float | None]:
    """Per stage, the share of its kernels that take longer than on the median of the other stages, small ones aside."""
    result: list[float | None] = []
    each = time / np.maximum(kernels, 1e-9)
    slower = each > (1 + SLOWER_THAN_FEW) * lower_medians_of_others(each)
    for stage in range(len(kernels)):
        heavy = time[stage] >= _LEAST_WEIGHT * time[stage].sum()
        result.append(float(slower[stage][heavy].mean()) if heavy.any() else None)
    return result


def _rounded(values: Float64) -> Int64:
    return np.rint(values).astype(np.int64)
