"""Which streams carry a rank's chain of steps, and which run beside it: communications, copies and reductions.

What runs beside the chain is launched in *visits*: between two launches on the chain, a thread launches some kernels on
a side stream. The first of them waits for the chain, the last is what something waits for later, or nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.causes.rank_kernels import PHASES, RankKernels
from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Phase


@dataclass(frozen=True, slots=True)
class SideStreams:
    """What runs beside a rank's chain of steps; one entry per kernel.

    Attributes:
        order: kernels whose launch is known, in the order of launch: a thread that launches waits while another does.
        work: those of ``order`` that are not ``apart``.
        chain: streams that compute part of the chain of steps.
        apart: whether it is on a stream beside the chain: on one that computes nothing of it.
        visit: number of the visit on its stream; ``MISSING`` on streams that are part of the chain or communicate only.
        opens: whether it may wait for the chain: a communication on a stream of its own, or the first of a visit.
        closes: whether something may wait for it: such a communication, or the last of a visit.
        inside: whether it is a communication on a stream of its own between two kernels of a visit to another one.
        computes: whether it is on a stream that computes beside the chain.
    """

    order: Int64
    work: Int64
    chain: Int64
    apart: Bool
    visit: Int64
    opens: Bool
    closes: Bool
    inside: Bool
    computes: Bool

    @property
    def several(self) -> bool:
        """Whether several streams compute the chain: steps of micro-batches run into each other, each of its own."""
        return len(self.chain) > 1


def _on_chain(kernels: RankKernels, order: Int64) -> Bool:
    """Per stream, whether it computes part of the chain of steps.

    A stream that computes is beside the chain if it only prepares or uses what data-parallel ranks exchange: each visit
    to it comes with such a communication (Megatron-FSDP scales, scatters and adds gradients on a stream of their own).
    """
    streams = int(kernels.stream.max(initial=-1)) + 1
    count = np.bincount(kernels.stream[kernels.computes], minlength=streams)
    chain = count > 0
    dimensions = [number for number, name in enumerate(kernels.dimensions) if name in _DATA_PARALLEL]
    exchanges = kernels.communicates & among(kernels.dimension, np.array(dimensions, np.int64))
    if chain.sum() < _TWO or not exchanges.any():
        return chain
    for stream in np.flatnonzero(chain & (count < count.max())).tolist():
        mine = kernels.stream == stream
        visit = _visits(kernels, order, kernels.computes & ~mine)
        chain[stream] = not np.isin(visit[mine & kernels.computes], visit[exchanges & (visit != MISSING)]).all()
    return chain


_DATA_PARALLEL = (Dimension.DP.value, Dimension.EDP.value)
_TWO = 2


def side_streams(kernels: RankKernels) -> SideStreams:
    """Tell what runs beside the chain of steps."""
    places = np.flatnonzero(kernels.launch_ns != MISSING)
    order = places[np.lexsort((kernels.start_ns[places], kernels.launch_ns[places]))]
    chain = _on_chain(kernels, order)
    streams = len(chain)
    communicating = np.bincount(kernels.stream[kernels.communicates], minlength=streams) > 0
    computing = np.bincount(kernels.stream[kernels.computes], minlength=streams) > 0
    beside = ~chain & computing
    copying = np.bincount(kernels.stream[kernels.to_host | kernels.from_host], minlength=streams) > 0
    copying &= ~computing & ~communicating
    visited = (beside | copying)[kernels.stream]
    alone = kernels.communicates & ~computing[kernels.stream]
    apart = alone | visited
    number = _visits(kernels, order, ~apart)
    visit = np.where(visited, number, MISSING)
    own = order[visited[order]]
    own = own[np.argsort(kernels.stream[own], kind="stable")]
    same = np.zeros(len(own) + 1, dtype=bool)
    same[1:-1] = (kernels.stream[own[1:]] == kernels.stream[own[:-1]]) & (visit[own[1:]] == visit[own[:-1]])
    opens, closes = alone.copy(), alone.copy()
    opens[own], closes[own] = ~same[:-1], ~same[1:]
    inside = np.zeros(len(kernels), dtype=bool)
    for thread in distinct(kernels.thread[order[beside[kernels.stream[order]]]]).tolist():
        queue = order[kernels.thread[order] == thread]
        before, this, after = queue[:-2], queue[1:-1], queue[2:]
        between = alone[this] & beside[kernels.stream[before]] & (kernels.stream[before] == kernels.stream[after])
        inside[this[between & (number[before] == number[after])]] = True
    opens, closes, work = opens & ~inside, closes & ~inside, order[~apart[order]]
    return SideStreams(order, work, np.flatnonzero(chain), apart, visit, opens, closes, inside, beside[kernels.stream])


def steps(kernels: RankKernels, places: Int64) -> tuple[Int64, Int64, Int64]:
    """Phase, chunk and micro-batch of the step that kernels are part of; what runs forward again runs backward."""
    phase = kernels.phase[places]
    again = phase == PHASES.index(Phase.RECOMPUTE)
    return np.where(again, PHASES.index(Phase.BACKWARD), phase), kernels.chunk[places], kernels.microbatch[places]


def following_work(kernels: RankKernels, sides: SideStreams, places: Int64) -> Int64:
    """What is launched next on the chain after each of some kernels; ``NONE`` where nothing is."""
    at = np.searchsorted(kernels.launch_ns[sides.work], kernels.launch_ns[places], side="right")
    return lookup(sides.work, np.where(at < len(sides.work), at, NONE))


def at_ends_of_steps(kernels: RankKernels, sides: SideStreams) -> Bool:
    """Mark what closes a visit that computes, where the chain's next work is another step's than its thread's last."""
    result = np.zeros(len(kernels), dtype=bool)
    places = np.flatnonzero(sides.closes & sides.computes & (kernels.launch_ns != MISSING))
    work = sides.work
    for thread in distinct(kernels.thread[places]).tolist():
        mine, own = places[kernels.thread[places] == thread], work[kernels.thread[work] == thread]
        before = lookup(own, np.searchsorted(kernels.launch_ns[own], kernels.launch_ns[mine]) - 1)
        after = following_work(kernels, sides, mine)
        known = (before >= 0) & (after >= 0)
        pairs = zip(steps(kernels, before), steps(kernels, after), strict=True)
        result[mine] = known & np.logical_or.reduce([one != other for one, other in pairs])
    return result


def _visits(kernels: RankKernels, order: Int64, chain: Bool) -> Int64:
    """Per kernel a number that it shares with what its thread launched between the same two launches of some."""
    order = order[np.argsort(kernels.thread[order], kind="stable")]
    passed = np.cumsum(chain[order]).astype(np.int64)
    result = np.full(len(kernels), MISSING, np.int64)
    result[order] = number_groups(kernels.thread[order], passed)[1]
    return result
