"""Critical imbalance: what of a category runs on the critical path beyond what the mean rank runs of it.

After Böhme et al., *Scalable Critical-Path Based Performance Analysis*, IPDPS 2012 (Scalasca): of a category c, max(0,
time of c on the path - mean over ranks of the time of c). Work that is split evenly takes as long on
the path as on the mean rank; the rest is what the path takes longer because some ranks have more of it than others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.causes.critical_path import CAUSES, RUN_CAUSES, CriticalPath
from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.intervals import measure, union
from traceviz_dag.analyze.matching.communications import nullable
from traceviz_dag.tables import CRITICAL_IMBALANCE

_RUNS = [CAUSES.index(cause) for cause in RUN_CAUSES]


def critical_imbalance(step: StepWork, times: Sequence[Times], path: CriticalPath, number: int) -> pa.Table:
    """The categories of a step: the table ``critical_imbalance``.

    Args:
        times: of the step as measured. path: its critical path. number: of the ProfilerStep; ``MISSING`` for none.
    """
    mine = [_time_by_category(work, own) for work, own in zip(step.works, times, strict=True)]
    names = sorted({name for each in mine for name in each})
    on_path = _path_by_category(step, path)
    told = [imbalance(on_path.get(name, 0), [each.get(name, 0) for each in mine]) for name in names]
    return CRITICAL_IMBALANCE.from_columns(
        {
            "step": nullable(np.full(len(names), number)),
            "category": names,
            "path_ns": [on_path.get(name, 0) for name in names],
            "mean_ns": [mean_ns for mean_ns, _ in told],
            "ranks": np.full(len(names), len(mine)),
            "imbalance_ns": [imbalance_ns for _, imbalance_ns in told],
        }
    )


def imbalance(path_ns: int, by_rank: Sequence[int]) -> tuple[int, int]:
    """The mean of the ranks' times, rounded down, and what the path has beyond it; ns."""
    mean = sum(by_rank) // len(by_rank)
    return mean, max(path_ns - mean, 0)


def _time_by_category(work: RankWork, times: Times) -> dict[str, int]:
    """In how much time a rank runs kernels of each category; of communication that is matched, the transfer alone.

    Kernels that run side by side count once, as they do on the path.
    """
    kernels = work.kernels
    starts = kernels.end_ns - np.maximum(times.duration_ns, 0)
    result = {}
    for code in np.unique(kernels.category[kernels.category >= 0]).tolist():
        own = kernels.category == code
        result[kernels.categories[code]] = measure(union(starts[own], kernels.end_ns[own]))
    return result


def _path_by_category(step: StepWork, path: CriticalPath) -> dict[str, int]:
    result: dict[str, int] = {}
    runs = (path.kernel >= 0) & np.isin(path.cause, _RUNS)
    for place in np.unique(path.rank[runs]).tolist():
        kernels = step.works[place].kernels
        mine = np.flatnonzero(runs & (path.rank == place))
        category = kernels.category[path.kernel[mine]]
        for code in np.unique(category[category >= 0]).tolist():
            length = int(path.duration_ns[mine[category == code]].sum())
            result[kernels.categories[code]] = result.get(kernels.categories[code], 0) + length
    return result
