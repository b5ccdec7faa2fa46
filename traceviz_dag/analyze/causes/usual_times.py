"""What kernels and launches usually take: the healthy times that edits use instead of measured ones.

A kernel has a counterpart on every rank that runs the same program: the same instance, of the same micro-batch and
layer. Healthy GPUs take about the same for it, so a rank that is slow for a part of the time shows against the others:
those of its own stage where there are any, else the other stages, which run the same layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceviz_dag.analyze.causes.rank_kernels import PHASES
from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.step_work import Times
from traceviz_dag.analyze.medians import lower_medians, lower_medians_of_others, lowest_of_others, middles
from traceviz_dag.analyze.slow_stages import same_work
from traceviz_dag.arrays import NONE, Bool, Float64, Int32, Int64, Integers, number_groups, places_of_each
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Phase

PAUSE_NS = 100_000
"""A launch that comes so much later than usual is a pause of the host; less is its ordinary jitter."""

_PAUSE_TIMES = 3
"""And so many times later."""

_PHASES = len(PHASES)
_OPTIMIZER = PHASES.index(Phase.OPTIMIZER)

_FEWEST = 3
"""Launches of a kind that show what is usual."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Which kernels of different ranks are the same instance of work; per rank and kernel, ``NONE`` for communication.

    Attributes:
        kind: equal for kernels of one signature; where no sizes show and the stages' kernels of one signature differ as
            no others do, they do other work there, and each stage's are a kind of their own.
        same: equal for the n-th kernel of a kind in a micro-batch of a chunk, where the ranks run as many of that kind
            there: the same layer, since layers follow one another.
        place: equal for the n-th kernel in a phase of a micro-batch whose inputs have some sizes, or none that are
            known, where the ranks run as many. It shows the counterpart of a kernel that has another name or grid, such
            as that of another algorithm.
        on_stage: the same among the ranks of each stage alone, where kernels count that do other work on other stages;
            None where none do.
    """

    kind: Sequence[Int64]
    same: Sequence[Int32]
    place: Sequence[Int32]
    on_stage: Sequence[Int32] | None = None

    @property
    def numberings(self) -> list[Sequence[Int32]]:
        """Those that show a kernel's counterpart, the surest first."""
        return [each for each in (self.same, self.on_stage, self.place) if each is not None]

    @classmethod
    def of(cls, works: Sequence[RankWork], times: Sequence[Times], stages: Sequence[int]) -> Instances:
        """Number the instances over all ranks; numbers follow the order of the first rank that has them.

        Args:
            times: as measured. stages: of each rank; ``MISSING`` where unknown.
        """
        own = [own_work(work) for work in works]
        other = _other_work(works, times, stages, own)
        kinds = [
            np.where(unlike, work.kernels.signature + stage + 1, work.kernels.signature)
            if (unlike := np.isin(work.kernels.signature, other)).any()
            else work.kernels.signature
            for work, stage in zip(works, stages, strict=True)
        ]
        same = [kind[mine] for kind, mine in zip(kinds, own, strict=True)]
        places = [
            (work.kernels.sizes * _PHASES + work.kernels.phase)[mine] for work, mine in zip(works, own, strict=True)
        ]
        on_stage = None
        if len(other):
            # Another algorithm may stand for the very kernels that do other work elsewhere: left out on the peers
            # alone, these would make the ranks run unlike numbers of kernels, so that none had a counterpart.
            of_stage = [each * (max(stages) + 1) + stage for each, stage in zip(places, stages, strict=True)]
            on_stage = _instances(works, own, of_stage)
            apart = [np.isin(work.kernels.signature[mine], other) for work, mine in zip(works, own, strict=True)]
            places = [each + np.where(marked, kind, 0) for each, marked, kind in zip(places, apart, same, strict=True)]
        return cls(kinds, _instances(works, own, same), _instances(works, own, places), on_stage)


def _other_work(works: Sequence[RankWork], times: Sequence[Times], stages: Sequence[int], own: Sequence[Bool]) -> Int64:
    """The signatures of kernels that do other work on one stage than on another, as ``slow_stages.same_work`` says."""
    known, place = np.unique(stages, return_inverse=True)
    nothing = np.empty(0, np.int64)
    if len(known) < 2 or MISSING in known:
        return nothing
    inside = [mine & (work.kernels.microbatch != MISSING) for work, mine in zip(works, own, strict=True)]
    signature = np.concatenate([work.kernels.signature[mine] for work, mine in zip(works, inside, strict=True)])
    if not len(signature):
        return nothing
    sizes = np.concatenate([work.kernels.sizes[mine] for work, mine in zip(works, inside, strict=True)])
    taken = np.concatenate([each.duration_ns[mine] for each, mine in zip(times, inside, strict=True)])
    stage = np.repeat(place, [int(mine.sum()) for mine in inside])
    kinds, first, number = np.unique(signature, return_index=True, return_inverse=True)
    cell = stage * len(kinds) + number
    shape = len(known), len(kinds)
    kernels: Float64 = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    time: Float64 = np.bincount(cell, weights=taken, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    everywhere = np.asarray((kernels > 0).all(axis=0))
    by_grid = np.concatenate([work.kernels.by_grid[mine] for work, mine in zip(works, inside, strict=True)])
    return kinds[everywhere & ~same_work(kernels, time, np.asarray(sizes[first] != 0), by_grid[first])]


def _instances(works: Sequence[RankWork], own: Sequence[Bool], kinds: Sequence[Int64]) -> list[Int32]:
    """The n-th kernel of a kind in a micro-batch of a chunk, where there are as many."""
    counts = [int(mine.sum()) for mine in own]
    rank = np.repeat(np.arange(len(works)), counts)
    kernels = [(work.kernels, mine) for work, mine in zip(works, own, strict=True)]
    chunk = np.concatenate([each.chunk[mine] for each, mine in kernels])
    microbatch = np.concatenate([each.microbatch[mine] for each, mine in kernels])
    _, kind = number_groups(np.concatenate(kinds), chunk, microbatch)
    _, group = number_groups(rank, kind)
    count = np.bincount(group, minlength=1)
    order = np.argsort(group, kind="stable")
    ordinal = np.empty(len(group), np.int64)
    ordinal[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)[: len(group)]
    first, number = number_groups(kind, count[group], ordinal)
    met = np.empty(len(first), np.int64)
    met[np.argsort(first, kind="stable")] = np.arange(len(first))
    result = []
    for mine, of_rank in zip(own, np.split(met[number], np.cumsum(counts[:-1])), strict=True):
        each = np.full(len(mine), NONE, np.int32)
        each[mine] = of_rank
        result.append(each)
    return result


class Usual:
    """What the kernels of a step take, rank by rank, to be held against one another."""

    def __init__(
        self, works: Sequence[RankWork], times: Sequence[Times], stages: Sequence[int], instances: Instances
    ) -> None:
        """Take the times of all ranks.

        Args:
            stages: stage of each rank; ``MISSING`` where unknown, which counts as one stage of its own.
        """
        self._works, self._times, self._instances = works, times, instances
        self._stage = np.array(stages, np.int64)
        self._own = [own_work(work) for work in works]

    def durations(self, place: int, without: Sequence[int]) -> Int64:
        """Per kernel of a rank, what the same instance takes on its peers; communication as it was.

        A kernel without a counterpart takes what its kind takes there, and one of a kind that no peer runs as much less
        than now as the others of the rank do; no longer, since nothing shows that it is too fast.

        Args:
            without: places of ranks that are no peers, the rank itself among them.
        """
        peers = self._peers(place, without)
        own, duration = self._own[place], self._times[place].duration_ns
        result, left = duration.copy(), own.copy()
        for numbers in self._instances.numberings:
            mine = np.flatnonzero(left)
            usual, found = self._middles(numbers, peers, numbers[place][mine])
            result[mine[found]] = usual[found]
            left[mine[found]] = False
        kinds = self._instances.kind
        rest = np.flatnonzero(left)
        usual, found = self._middles(kinds, peers, kinds[place][rest])
        now, _ = self._middles(kinds, [place], kinds[place][rest])
        result[rest] = np.rint(duration[rest] * (usual / np.maximum(now, 1))).astype(np.int64)
        left[rest[found]] = False
        rest, known = rest[~found], own & ~left
        share = min(int(result[known].sum()) / max(int(duration[known].sum()), 1), 1.0) if known.any() else 1.0
        result[rest] = np.rint(duration[rest] * share).astype(np.int64)
        return result

    def _middles(self, numbers: Sequence[Integers], ranks: Sequence[int], wanted: Integers) -> tuple[Int64, Bool]:
        """Of each number that is wanted, the median over all kernels of some ranks that have it; whether any has it."""
        theirs = np.concatenate([numbers[rank][self._own[rank]] for rank in ranks])
        taken = np.concatenate([self._times[rank].duration_ns[self._own[rank]] for rank in ranks])
        chosen = np.isin(theirs, wanted)
        known, group = np.unique(theirs[chosen], return_inverse=True)
        if not len(known):
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), dtype=bool)
        where = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return middles(group.astype(np.int64), taken[chosen], len(known))[where], known[where] == wanted

    @cached_property
    def excess_ns(self) -> list[int]:
        """Per rank, what its own work takes in all beyond that of the median peer; alone in its stage, beyond what as
        much of the same kinds takes on the other stages."""
        own = zip(self._times, self._own, strict=True)
        total = np.array([mine.duration_ns[those].sum() for mine, those in own], np.int64)
        for those in places_of_each(self._stage):
            if len(those) > 1:
                total[those] -= lower_medians_of_others(total[those])
            else:
                total[those] = self._beyond_other_stages(int(those[0]))
        return total.tolist()

    def _beyond_other_stages(self, place: int) -> int:
        kinds, counts, totals_of_kinds = self._by_kind(place)
        times, runs = np.zeros(len(kinds)), np.zeros(len(kinds))
        for peer in self._peers(place, [place]):
            others, other_counts, other_totals = self._by_kind(peer)
            _, mine, theirs = np.intersect1d(kinds, others, assume_unique=True, return_indices=True)
            times[mine] += other_totals[theirs]
            runs[mine] += other_counts[theirs]
        usual = np.where(runs > 0, times / np.maximum(runs, 1) * counts, totals_of_kinds)
        return int((totals_of_kinds - usual).sum())

    def _by_kind(self, place: int) -> tuple[Int64, Int64, Int64]:
        """Kinds of a rank's own kernels, how many there are of each, and what they take together."""
        own = self._own[place]
        kinds, number = np.unique(self._instances.kind[place][own], return_inverse=True)
        total = np.bincount(number, weights=self._times[place].duration_ns[own], minlength=len(kinds))
        return kinds, np.bincount(number, minlength=len(kinds)), total.astype(np.int64)

    def _peers(self, place: int, without: Sequence[int]) -> list[int]:
        """Ranks of the same stage that are not left out, else of the others."""
        others = np.delete(np.arange(len(self._stage)), without)
        of_stage = others[self._stage[others] == self._stage[place]]
        return (of_stage if len(of_stage) else others).tolist()


def own_work(work: RankWork) -> Bool:
    """Mark kernels whose time is the rank's own: all that wait for no other rank."""
    return np.asarray(~work.is_joined() & ~work.kernels.communicates)


def extra_work(works: Sequence[RankWork], stages: Sequence[int], instances: Instances) -> list[Bool]:
    """Per rank, mark kernels that it runs besides all that its peers of the same stage run.

    Those are of kinds that no peer runs, and of names of which the rank runs as many more than its median peer. What
    runs fewer of a name than all peers does other work instead, and nothing extra. (Of varying sequences all kinds
    differ, but not how many there are of a name; with dynamic context parallelism these differ among peers, too.) The
    optimizer's do not count: where shards of a distributed optimizer end, ranks cut parameters into more or fewer
    pieces.

    Args:
        stages: stage of each rank; ``MISSING`` where unknown, which counts as one stage of its own.
    """
    own = [own_work(work) & (work.kernels.phase != _OPTIMIZER) for work in works]
    names = [work.kernels.name[mine] for work, mine in zip(works, own, strict=True)]
    kinds = [kind[mine] for kind, mine in zip(instances.kind, own, strict=True)]
    result = [np.zeros(len(mine), dtype=bool) for mine in own]
    known = np.unique(np.concatenate(names))
    counts = np.stack([np.bincount(np.searchsorted(known, each), minlength=len(known)) for each in names])
    for stage in np.unique(stages).tolist():
        mine = np.flatnonzero(np.array(stages) == stage)
        if len(mine) < 2:
            continue
        surplus = counts[mine] - lower_medians_of_others(counts[mine])
        fewer = counts[mine] < lowest_of_others(counts[mine])
        more = np.flatnonzero(~fewer.any(axis=1) & (surplus > 0).any(axis=1))
        if not len(more):
            continue
        known_kinds, runners = np.unique(
            np.concatenate([np.unique(kinds[place]) for place in mine]), return_counts=True
        )
        for place, left in zip(mine[more].tolist(), surplus[more], strict=True):
            besides = np.isin(kinds[place], known_kinds[runners == 1]) & (
                left[np.searchsorted(known, names[place])] > 0
            )
            result[place][np.flatnonzero(own[place])] = _within(kinds[place], names[place], known, besides, left)
    return result


def _within(kind: Int64, name: Int64, known: Int64, chosen: Bool, surplus: Int64) -> Bool:
    """Of some kernels the kinds that fit into the surplus of their name, those of which most run first.

    Args:
        kind, name: of each kernel. known: names, ascending. surplus: kernels of each of these names.
    """
    kinds, first, runs = np.unique(kind[chosen], return_index=True, return_counts=True)
    of_name, left, found = np.searchsorted(known, name[chosen][first]), surplus.copy(), []
    for number in np.argsort(-runs, kind="stable").tolist():
        if runs[number] <= left[of_name[number]]:
            left[of_name[number]] -= runs[number]
            found.append(kinds[number])
    return np.asarray(chosen & np.isin(kind, found))


def pauses(works: Sequence[RankWork], stages: Sequence[int]) -> list[Int64]:
    """Per rank and kernel, by how much its launch came later than launches of its kind usually follow the one before.

    A kind that no other rank of the stage launches is held against all launches: its own times would be usual for the
    rank that pauses each time. Where that shows nothing, what is known of pauses counts.

    Args:
        stages: stage of each rank; ``MISSING`` where unknown, which counts as one stage of its own.

    Returns:
        Zero where it is no pause; the kinds are pairs of successive launches, over all ranks.
    """
    keys, alone, gaps, owners, spots = [], [], [], [], []
    for place, work in enumerate(works):
        there, fresh, gap = launch_gaps(work)
        signature = work.kernels.signature[there].view(np.uint64)
        before = np.append(np.uint64(0), signature[:-1])
        before = np.where(fresh, np.uint64(0), before)
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
    usual = np.where(_of_one_peer(np.concatenate(owners), other, stages), int(np.median(gap)) if len(gap) else 0, usual)
    late = np.where((gap - usual > PAUSE_NS) & (gap > _PAUSE_TIMES * usual), gap - usual, 0).astype(np.int64)
    result = [np.zeros(len(work.kernels), np.int64) for work in works]
    of_ranks = np.split(late, np.cumsum([len(spot) for spot in spots[:-1]]))
    for work, each, spot, of_rank in zip(works, result, spots, of_ranks, strict=True):
        each[spot] = of_rank
        known = work.paused_ns
        each[(each == 0) & (known > PAUSE_NS)] = known[(each == 0) & (known > PAUSE_NS)]
    return result


def launch_gaps(work: RankWork) -> tuple[Int64, Bool, Int64]:
    """Kernels with a launch, in its order; whether it is the first of its section; and how long after the one before
    it, or the section's beginning, it comes, ns."""
    launch, section = work.launch_ns, work.section[work.segment]
    there = np.flatnonzero(launch != MISSING)
    there = there[np.lexsort((launch[there], section[there]))]
    fresh = np.diff(section[there], prepend=-1) != 0
    return there, fresh, np.where(fresh, launch[there], np.diff(launch[there], prepend=0))


def _of_one_peer(rank: Int64, kind: Int64, stages: Sequence[int]) -> Bool:
    """Mark launches of kinds that one rank of a stage of several launches, and none of the others."""
    stage = np.array(stages, np.int64)
    _, place, count = np.unique(stage, return_inverse=True, return_counts=True)
    several = count[place] > 1
    pairs, of_stage = number_groups(kind, stage[rank])
    members, _ = number_groups(of_stage.astype(np.int64), rank)
    ranks = np.bincount(of_stage[members], minlength=len(pairs))
    return np.asarray((ranks[of_stage] == 1) & several[rank])
