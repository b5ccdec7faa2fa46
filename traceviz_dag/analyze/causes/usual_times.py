"""What kernels and launches usually take: the healthy times that edits put in place of measured ones.

Kernels that do the same (name, operator, phase and grid) take about the same on every healthy GPU, so a slow one shows
against the others: those of its own stage where there are any, else the other stages, which run the same layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceviz_dag.analyze.causes.medians import lower_medians
from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.step_work import Times
from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.arrays import Bool, Float64, Int64
from traceviz_dag.read.events import MISSING

PAUSE_NS = 100_000
"""A launch that comes so much later than usual is a pause of the host; less is its ordinary jitter."""

_PAUSE_TIMES = 3
"""And so many times later."""

_FEWEST = 3
"""Launches of a kind that tell what is usual."""


class Usual:
    """Medians by kind of kernel and rank."""

    def __init__(self, works: Sequence[RankWork], times: Sequence[Times], stages: Sequence[int]) -> None:
        """Take the medians of all ranks.

        Args:
            stages: stage of each rank; ``MISSING`` where unknown, which counts as one stage of its own.
        """
        self._stage = np.array(stages, np.int64)
        signature, rank, middle, total = [], [], [], []
        for place, (work, mine) in enumerate(zip(works, times, strict=True)):
            counted = own_work(work)
            first, number = number_groups(work.kernels.signature[counted])
            signature.append(work.kernels.signature[counted][first])
            rank.append(np.full(len(first), place))
            durations = mine.duration_ns[counted]
            middle.append(lower_medians(number.astype(np.int64), durations, len(first)))
            total.append(np.bincount(number, weights=durations, minlength=len(first)))
        self._signature, self._rank = np.concatenate(signature), np.concatenate(rank)
        self._middle, self._total = np.concatenate(middle), np.concatenate(total)

    def factor(self, place: int, signatures: Int64) -> Float64:
        """Per kernel of a rank, what its kind takes on the peers, over what it takes on this rank.

        A kind that no peer runs counts as the others of the rank do on average.
        """
        mine = np.flatnonzero(self._rank == place)
        if not len(mine):
            return np.ones(len(signatures))
        peers = (self._stage == self._stage[place]) & (np.arange(len(self._stage)) != place)
        if not peers.any():
            peers = np.arange(len(self._stage)) != place
        theirs = np.flatnonzero(peers[self._rank])
        known, number = np.unique(self._signature[theirs], return_inverse=True)
        usual = lower_medians(number.astype(np.int64), self._middle[theirs], len(known))
        where = np.searchsorted(known, self._signature[mine])
        found = where < len(known)
        found[found] = known[where[found]] == self._signature[mine][found]
        own = np.maximum(self._middle[mine], 1)
        ratio = np.where(found, usual[np.minimum(where, max(len(known) - 1, 0))] / own if len(known) else 1.0, np.nan)
        weight = np.where(found, self._total[mine], 0)
        # One after the other: the page of a report adds them up in this order, too.
        rest = float(np.cumsum(np.nan_to_num(ratio) * weight)[-1] / weight.sum()) if weight.sum() else 1.0
        ratio = np.where(found, ratio, rest)
        order = np.argsort(self._signature[mine])
        place_of = order[np.minimum(np.searchsorted(self._signature[mine][order], signatures), len(order) - 1)]
        return np.asarray(ratio[place_of])


def own_work(work: RankWork) -> Bool:
    """Mark kernels whose time is the rank's own: all that wait for no other rank."""
    return np.asarray(~work.is_joined() & ~work.kernels.communicates)


def pauses(works: Sequence[RankWork]) -> list[Int64]:
    """Per rank and kernel, by how much its launch came later than launches of its kind usually follow the one before.

    Where that tells nothing, for example since the host pauses there each time, what is known of pauses counts.

    Returns:
        Zero where it is no pause; the kinds are pairs of successive launches, over all ranks.
    """
    keys, alone, gaps, owners, spots = [], [], [], [], []
    for place, work in enumerate(works):
        launch = np.where(work.launch_ns == MISSING, MISSING, work.launch_ns)
        section = work.section[work.segment]
        there = np.flatnonzero(launch != MISSING)
        there = there[np.lexsort((launch[there], section[there]))]
        signature = work.kernels.signature[there].view(np.uint64)
        before = np.append(np.uint64(0), signature[:-1])
        fresh = np.diff(section[there], prepend=-1) != 0
        before = np.where(fresh, np.uint64(0), before)
        gap = np.diff(launch[there], prepend=0)
        gap = np.where(fresh, launch[there], gap)
        keys.append((before * np.uint64(3) + signature).view(np.int64))
        alone.append(signature.view(np.int64))
        gaps.append(gap)
        owners.append(np.full(len(there), place))
        spots.append(there)
    first, number = number_groups(np.concatenate(keys))
    gap = np.concatenate(gaps)
    usual = lower_medians(number.astype(np.int64), gap, len(first))[number]
    # A pair that is seen once or twice says nothing of what is usual; then the launch itself does, whatever it follows.
    other_first, other = number_groups(np.concatenate(alone))
    rare = np.bincount(number)[number] < _FEWEST
    usual = np.where(rare, lower_medians(other.astype(np.int64), gap, len(other_first))[other], usual)
    late = np.where((gap - usual > PAUSE_NS) & (gap > _PAUSE_TIMES * usual), gap - usual, 0).astype(np.int64)
    owner, spot = np.concatenate(owners), np.concatenate(spots)
    result = [np.zeros(len(work.kernels), np.int64) for work in works]
    for place, each in enumerate(result):
        mine = owner == place
        each[spot[mine]] = late[mine]
        known = works[place].paused_ns
        each[(each == 0) & (known > PAUSE_NS)] = known[(each == 0) & (known > PAUSE_NS)]
    return result
