"""How far the ranks' clocks are apart in one step, as far as a replay needs it: communications end together.

A replay compares durations and lags that each rank measured on its own clock; the clocks themselves only say how long
before the others a rank began its step and arrived. That follows from the ends of what ranks did together. A constant
added to a rank's clock shifts its offset by as much, and changes nothing else.
"""

from __future__ import annotations

import numpy as np

from traceviz_dag.analyze.matching.matches import connected
from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import Bool, Int64, number_groups


def rank_offsets(
    ranks: int, rank: Int64, meeting: Int64, end_ns: Int64, kernel: Int64, loose: Bool
) -> tuple[Int64, Int64]:
    """Clock offsets of ranks that met.

    Args:
        ranks: how many there are, numbered from 0.
        rank, meeting, end_ns, kernel: per member of a meeting, its rank, the number of the meeting, when its kernel
            ended on the rank's clock, and a number of the kernel. A kernel in several meetings ends with the last of
            them, so it says little of the others.
        loose: per member, whether it need not end with the others: nothing says less of how the ranks' clocks differ.

    Returns:
        Per rank, what to subtract from its clock; and the lowest rank of those that it met, directly or through others.
        Ranks of different such sets cannot be compared.
    """
    order = np.lexsort((rank, meeting))
    rank, meeting, end_ns, kernel = rank[order], meeting[order], end_ns[order], kernel[order]
    first, number = number_groups(meeting)
    meetings_of = np.bincount(np.unique(kernel, return_inverse=True)[1]) if len(kernel) else kernel
    busiest = np.zeros(len(first), np.int64)
    if len(kernel):
        np.maximum.at(busiest, number, meetings_of[np.unique(kernel, return_inverse=True)[1]])
    size = np.bincount(number, minlength=len(first))
    # A collective ends for all at once, and so does a lone exchange of two; several messages at once end apart.
    doubt = np.where(busiest > 1, _SEVERAL, np.where(size > 2, _COLLECTIVE, _EXCHANGE))
    doubt[number[loose[order]]] = _LOOSE
    lowest = rank[first][number] if len(first) else rank
    other = np.flatnonzero(rank != lowest)
    difference = end_ns[other] - end_ns[first][number[other]] if len(first) else end_ns
    keys = (doubt[number[other]], lowest[other], rank[other])
    pair_first, pair = number_groups(*keys)
    middle = lower_medians(pair.astype(np.int64), difference, len(pair_first))
    count = np.bincount(pair, minlength=len(pair_first))
    pairs = (keys[1][pair_first], keys[2][pair_first]) if len(other) else (rank[:0], rank[:0])
    best = np.lexsort((-count, keys[0][pair_first])) if len(other) else pair_first
    return _spread(ranks, pairs[0][best], pairs[1][best], middle[best]), connected(*pairs, ranks)


_COLLECTIVE, _EXCHANGE, _SEVERAL, _LOOSE = range(4)
"""How sure it is that a meeting ends for its members at the same instant."""


def _spread(ranks: int, a: Int64, b: Int64, difference: Int64) -> Int64:
    """The offset of each rank from the lowest one of its set, over as few and as sure pairs as join all; best first."""
    leader = np.arange(ranks)
    offset = np.zeros(ranks, np.int64)
    for one, two, shift in zip(a.tolist(), b.tolist(), difference.tolist(), strict=True):
        if leader[one] == leader[two]:
            continue
        gone = leader == leader[two]
        offset[gone] += offset[one] + shift - offset[two]
        leader[gone] = leader[one]
    for root in range(ranks):
        together = leader == leader[root]
        offset[together] -= offset[np.flatnonzero(together)[0]]
    return offset
