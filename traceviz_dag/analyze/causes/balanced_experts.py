"""Experts that are evenly loaded: what every expert-parallel rank computes and receives if tokens spread evenly.

Tokens reach the experts by an all-to-all and leave them by another. Of the first, what its members receive differs, of
the second, what they send; in between each rank's experts compute. So the experts are known by the sizes of messages,
in the forward and in the backward step, and without call stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.causes.measured_items import direction
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.causes.usual_times import own_work
from traceviz_dag.arrays import NONE, Bool, Float64, Int64, number_groups
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension


@dataclass(frozen=True, slots=True)
class Experts:
    """The work of a step's experts.

    Attributes:
        exchanges: places, in the step's ``Members``, of those of all-to-alls that carry an uneven load.
        share: per such member, the mean number of tokens over that of the busiest member of its meeting.
        meeting: per rank and kernel, the meeting that brought the tokens that it works on; ``NONE`` outside experts.
    """

    exchanges: Int64
    share: Float64
    meeting: Sequence[Int64]


def experts_of(step: StepWork) -> Experts:
    """Find the experts' work.

    Raises:
        NoEvidenceError: no messages show experts whose load differs.
    """
    side, share = _exchanges(step)
    exchanges = np.flatnonzero(side != _EVEN)
    if not len(exchanges):
        raise NoEvidenceError("no all-to-alls show experts whose load differs")
    return Experts(exchanges, share[exchanges], [_windows(step, place, side) for place in range(len(step.works))])


def balanced_experts(step: StepWork, experts: Experts, times: Sequence[Times], shortest_ns: int) -> tuple[Times, ...]:
    """Give every rank's experts the mean of their expert-parallel group, by micro-batch and layer.

    The all-to-alls that carry the tokens take as much less, above the shortest transfer, as their busiest member has
    less to carry.

    Args:
        shortest_ns: the shortest transfer of the step.
    """
    members = step.members
    meetings = int(members.meeting.max(initial=-1)) + 2
    total, count = np.zeros(meetings), np.zeros(meetings, np.int64)
    taken = []
    for mine, meeting in zip(times, experts.meeting, strict=True):
        inside = np.flatnonzero(meeting != NONE)
        own, number = np.unique(meeting[inside], return_inverse=True)
        taken.append((own, np.bincount(number, weights=mine.duration_ns[inside], minlength=len(own))))
        total[own] += taken[-1][1]
        count[own] += taken[-1][1] > 0
    mean = total / np.maximum(count, 1)
    share = np.ones(len(members.rank))
    share[experts.exchanges] = experts.share
    carries = np.zeros(len(members.rank), dtype=bool)
    carries[experts.exchanges] = True
    result = []
    for place, (mine, meeting, (own, sums)) in enumerate(zip(times, experts.meeting, taken, strict=True)):
        usual = np.append(mean[own] / np.maximum(sums, 1), 1.0)
        factor = usual[np.where(meeting != NONE, np.searchsorted(own, meeting), len(own))]
        duration = np.rint(mine.duration_ns * factor).astype(np.int64)
        carried = members.of(place)
        carried = carried[carries[carried]]
        kernel = members.kernel[carried]
        above = np.maximum(duration[kernel] - shortest_ns, 0)
        duration[kernel] -= np.rint(above * (1 - share[carried])).astype(np.int64)
        result.append(replace(mine, duration_ns=duration))
    return tuple(result)


_EVEN, _DISPATCH, _COMBINE = range(3)
"""What an all-to-all does: nothing uneven, or it brings tokens to the experts, or takes them back."""


def _exchanges(step: StepWork) -> tuple[Int64, np.ndarray]:
    """Per member of a meeting, what the meeting does, and the mean number of tokens over that of the busiest member."""
    members = step.members
    received, sent = (np.full(len(members.rank), MISSING) for _ in range(2))
    expert = np.zeros(len(members.rank), dtype=bool)
    for place, work in enumerate(step.works):
        mine = members.of(place)
        kernel = members.kernel[mine]
        sent[mine], received[mine] = work.kernels.in_elements[kernel], work.kernels.out_elements[kernel]
        if Dimension.EP.value in work.kernels.dimensions:
            expert[mine] = work.kernels.dimension[kernel] == work.kernels.dimensions.index(Dimension.EP.value)
    known = expert & (sent != MISSING) & (received != MISSING)
    side, share = np.full(len(members.rank), _EVEN), np.ones(len(members.rank))
    meetings = int(members.meeting.max(initial=-1)) + 1
    spread, evenness = {}, {}
    for name, size in ((_DISPATCH, received), (_COMBINE, sent)):
        high, low = np.zeros(meetings, np.int64), np.full(meetings, np.iinfo(np.int64).max)
        np.maximum.at(high, members.meeting[known], size[known])
        np.minimum.at(low, members.meeting[known], size[known])
        of_all = np.bincount(members.meeting[known], weights=size[known], minlength=meetings)
        number = np.maximum(np.bincount(members.meeting[known], minlength=meetings), 1)
        spread[name], evenness[name] = high - low, of_all / number / np.maximum(high, 1)
    for name, other in ((_DISPATCH, _COMBINE), (_COMBINE, _DISPATCH)):
        chosen = known & (spread[name] > np.maximum(spread[other], 0))[members.meeting]
        side[chosen], share[chosen] = name, evenness[name][members.meeting[chosen]]
    return side, share


def _windows(step: StepWork, place: int, side: Int64) -> Int64:
    """Per kernel of a rank, the all-to-all that brought the tokens that it works on; ``NONE`` outside the experts."""
    work, members = step.works[place], step.members
    kernels = work.kernels
    of_kernel, meeting = np.full(len(kernels), _EVEN), np.full(len(kernels), NONE)
    mine = members.of(place)
    of_kernel[members.kernel[mine]], meeting[members.kernel[mine]] = side[mine], members.meeting[mine]
    if not (of_kernel != _EVEN).any():
        return np.full(len(kernels), NONE)
    when = np.where(kernels.launch_ns != MISSING, kernels.launch_ns, kernels.start_ns)
    _, item = number_groups(kernels.chunk, kernels.microbatch, direction(work))
    order = np.lexsort((kernels.start_ns, when, item))
    # The last exchange at or before each kernel of its item says whether it is between the two.
    event = np.where(of_kernel[order] != _EVEN, np.arange(len(order)), 0)
    event = np.where(np.diff(item[order], prepend=-1) != 0, np.arange(len(order)), event)
    last = np.maximum.accumulate(event)
    inside: Bool = of_kernel[order][last] == _DISPATCH
    result = np.full(len(kernels), NONE)
    result[order] = np.where(inside & own_work(work)[order], meeting[order][last], NONE)
    return result
