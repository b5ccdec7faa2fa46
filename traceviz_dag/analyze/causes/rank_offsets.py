"""How far the ranks' clocks are apart in one step, as far as a replay needs it: communications end together.

A replay compares durations and lags that each rank measured on its own clock; the clocks themselves only say how long
before the others a rank began its step and arrived. That follows from the ends of what ranks did together. A constant
added to a rank's clock shifts its offset by as much, and changes nothing else.
"""

from __future__ import annotations

import numpy as np

from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.matching.matches import connected
from traceviz_dag.arrays import Int64


def rank_offsets(ranks: int, rank: Int64, meeting: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Clock offsets of ranks that met.

    Args:
        ranks: how many there are, numbered from 0. rank, meeting, end_ns: per member of a meeting, its rank, the number
            of the meeting, and when its kernel ended on the rank's clock.

    Returns:
        Per rank, what to subtract from its clock; and the lowest rank of those that it met, directly or through others.
        Ranks of different such sets cannot be compared.
    """
    order = np.lexsort((rank, meeting))
    rank, meeting, end_ns = rank[order], meeting[order], end_ns[order]
    first, number = number_groups(meeting) if len(meeting) else (np.empty(0, np.intp), np.empty(0, np.intp))
    low = rank[first][number] if len(first) else rank
    other = rank != low
    difference = (end_ns - (end_ns[first][number] if len(first) else end_ns))[other]
    pair_first, pair = number_groups(low[other], rank[other]) if other.any() else (first[:0], first[:0])
    middle, count = _lower_medians(pair.astype(np.int64), difference, len(pair_first))
    a, b = low[other][pair_first], rank[other][pair_first]
    return _spread(ranks, a, b, middle, count), connected(a, b, ranks)


def _lower_medians(group: Int64, values: Int64, groups: int) -> tuple[Int64, Int64]:
    """The lower median of each group, which a constant added to all shifts exactly; and the sizes."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    begin = np.cumsum(count) - count
    return values[order][begin + (count - 1) // 2] if groups else values[:0], count


def _spread(ranks: int, a: Int64, b: Int64, difference: Int64, count: Int64) -> Int64:
    """Walk from the lowest rank of each set to all others, over the pairs that met most often."""
    offset, seen = np.zeros(ranks, np.int64), np.zeros(ranks, dtype=bool)
    neighbours: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    for one, two, shift, met in zip(a.tolist(), b.tolist(), difference.tolist(), count.tolist(), strict=True):
        neighbours[one].append((-met, two, shift))
        neighbours[two].append((-met, one, -shift))
    for root in range(ranks):
        if seen[root]:
            continue
        seen[root] = True
        open_ranks = [root]
        while open_ranks:
            one = open_ranks.pop(0)
            for _, two, shift in sorted(neighbours[one]):
                if not seen[two]:
                    seen[two], offset[two] = True, offset[one] + shift
                    open_ranks.append(two)
    return offset
