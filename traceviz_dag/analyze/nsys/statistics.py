"""What many durations come to: count, total, quantiles; of all of them, or of each group."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Int64


@dataclass(frozen=True, slots=True)
class Durations:
    """Some durations, ns; quantiles are members: the smallest that so many are not longer than. None without any."""

    count: int
    total_ns: int
    mean_ns: int | None
    least_ns: int | None
    median_ns: int | None
    p90_ns: int | None
    most_ns: int | None

    @classmethod
    def of(cls, values: Int64) -> Durations:
        """What some durations come to."""
        if not len(values):
            return cls(0, 0, None, None, None, None, None)
        # Only two places of the order are needed, which takes less than half of sorting.
        places = [_place(len(values), percent) for percent in (50, 90)]
        median, p90 = np.partition(values, places)[places].tolist()
        total = exact_sum(values)
        return cls(len(values), total, total // len(values), int(values.min()), median, p90, int(values.max()))


def exact_sum(values: Int64) -> int:
    """The sum of up to 2^31 integers, also beyond 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def quantile(ordered: Int64, percent: int) -> int:
    """The smallest value that ``percent`` of all are not above, of ascending values."""
    return int(ordered[_place(len(ordered), percent)])


def _place(count: int, percent: int) -> int:
    return -(-count * percent // 100) - 1


def by_group(groups: npt.NDArray[np.integer]) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """Each group that occurs, ascending, with the positions of its members in order."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    return [(int(ordered[low]), order[low:high]) for low, high in pairwise(bounds) if high > low]
