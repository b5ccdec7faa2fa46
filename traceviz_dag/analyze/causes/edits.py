"""Edits of a step: the times that its work would take if something were fixed, for the replay to predict the step.

An edit changes durations of kernels, transfers of communications or delays of the host; never waits, which follow from
these in the replay. So faster communication does not shorten a wait for a rank that is late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from traceviz_dag.analyze.causes.alike import PassTimes, Scaled, scale_of
from traceviz_dag.analyze.causes.balanced_experts import Experts, balanced_experts, experts_of
from traceviz_dag.analyze.causes.contended import factors_without_waits
from traceviz_dag.analyze.causes.gains import CONGESTED_TIMES, FEWEST_ALIKE, LEAST_CONGESTED_NS
from traceviz_dag.analyze.causes.inferred_waits import lacks_launches
from traceviz_dag.analyze.causes.layers import Layers, of_a_layer
from traceviz_dag.analyze.causes.measured_items import direction
from traceviz_dag.analyze.causes.rank_work import RankWork
from traceviz_dag.analyze.causes.side_streams import side_streams
from traceviz_dag.analyze.causes.step_work import StepWork, Times
from traceviz_dag.analyze.causes.usual_times import Instances, Usual, extra_work, launch_gaps, own_work, pauses
from traceviz_dag.analyze.matching.message_schedule import BACKWARD, FORWARD
from traceviz_dag.analyze.medians import lower_medians, lower_medians_of_others
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.arrays import NONE, Bool, Float64, Int64, number_groups, places_of_each
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Category, Dimension

AllTimes = tuple[Times, ...]

_IN_PROPORTION = 0.8
"""Share of the time of kernels of all stages that runs in one proportion where that is the proportion of layers."""

_OF_ITS_OWN = 0.1
"""Share of the time of a layer that kernels may take which other layers do not run, if it is like them."""

_WITHIN_LAYERS = (Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP)
"""Dimensions whose communication layers run."""


@dataclass(frozen=True, slots=True)
class _SharedTransfers:
    """Per member of a meeting.

    Attributes:
        shared: whether all of some ranks take part. alike: whether others transfer the same without them, too.
        dimension: code, of all ranks together. transfer_ns: what it takes; usual_ns: what that of others usually takes.
    """

    shared: Bool
    alike: Bool
    dimension: Int64
    transfer_ns: Int64
    usual_ns: Int64


@dataclass(frozen=True)
class StepEdits:
    """What edits need to know of a step.

    Attributes:
        step: the step. stages: stage of each rank, ``MISSING`` where unknown.
    """

    step: StepWork
    stages: tuple[int, ...]

    @cached_property
    def pauses(self) -> Sequence[Int64]:
        """Per rank and kernel, by how much the host paused before its launch."""
        return pauses(self.step.works, self.stages)

    @cached_property
    def extra(self) -> Sequence[Bool]:
        """Per rank and kernel, whether it is work that no peer runs."""
        return extra_work(self.step.works, self.stages, self.instances)

    def extra_launches(self, place: int) -> Int64:
        """Per kernel of a rank, what the host took to launch it where it is extra work; 0 elsewhere."""
        there, _, gap = launch_gaps(self.step.works[place])
        taken = np.zeros(len(self.extra[place]), np.int64)
        taken[there] = gap
        return np.where(self.extra[place], taken, 0)

    @cached_property
    def _begins(self) -> Int64:
        """Per rank, how long after the first rank it begins its step, ns."""
        return np.array([mine.section_ns[0] for mine in self.step.times()], np.int64)

    @cached_property
    def instances(self) -> Instances:
        """Which kernels of different ranks are the same instance of work."""
        return Instances.of(self.step.works, self.step.times(), self.stages)

    def usual(self, times: AllTimes) -> Usual:
        """What kernels take on other ranks."""
        return Usual(self.step.works, times, self.stages, self.instances)

    def fix_rank(self, times: AllTimes, rank: int) -> AllTimes:
        """Give a rank's kernels the times that ``fix_gpus`` gives them; take its extra work and its host's pauses away,
        and let it begin its step when the others usually do.

        Raises:
            ValueError: no such rank.
            NoEvidenceError: there is no other rank.
        """
        place, result = self.step.ranks.index(rank), list(self.fix_gpus(times, [rank]))
        mine, extra = result[place], self.extra[place]
        duration = np.where(extra, 0, mine.duration_ns)
        # Work that is gone starts no later than what is before it ends.
        mine = replace(mine, duration_ns=duration, lag_ns=np.where(extra, np.minimum(mine.lag_ns, 0), mine.lag_ns))
        late = np.maximum(self.pauses[place], self.extra_launches(place))
        result[place] = self._on_time(place, _launched_earlier(self.step.works[place], mine, late))
        return tuple(result)

    def _on_time(self, place: int, mine: Times) -> Times:
        """Let a rank begin its step when the others usually do; once, whatever edits name it."""
        if mine.section_ns[0] != self._begins[place]:
            return mine
        section = mine.section_ns.copy()
        section[0] -= self.late_begin[place]
        return replace(mine, section_ns=section)

    def fix_gpus(self, times: AllTimes, ranks: Sequence[int]) -> AllTimes:
        """Give the kernels of some ranks the times that the same ones take on the others of their stage, else of other
        stages; what their hosts do stays.

        Raises:
            ValueError: no such rank.
            NoEvidenceError: there is no other rank.
        """
        places = [self.step.ranks.index(rank) for rank in ranks]
        if len(self.step.ranks) == len(places):
            every = f"rank {ranks[0]} is the only one that was" if len(ranks) == 1 else "they are all ranks that were"
            raise NoEvidenceError(f"{every} read, so nothing shows what is usual")
        usual, result = self.usual(times), list(times)
        for place in places:
            result[place] = replace(times[place], duration_ns=usual.durations(place, places))
        return tuple(result)

    @cached_property
    def without_waits(self) -> Sequence[Float64] | None:
        """See ``factors_without_waits``."""
        return factors_without_waits(self.step.works, self.step.times())

    def beside_no_waits(self, times: AllTimes) -> AllTimes:
        """Let computation take as long as it does where no communication waits beside it."""
        return tuple(_scaled(*each) for each in zip(times, self.without_waits or (), strict=True))

    @cached_property
    def late_begin(self) -> Int64:
        """Per rank, by how much it begins its step later than the median of the others that it can be compared with,
        ns."""
        late = np.zeros(len(self._begins), np.int64)
        for those in places_of_each(self.step.together):
            if len(those) > 1:
                late[those] = np.maximum(self._begins[those] - lower_medians_of_others(self._begins[those]), 0)
        return late

    def fix_links(self, times: AllTimes, ranks: Sequence[int], most: bool = False) -> AllTimes:
        """Give what some ranks transfer the time that like transfers without them take, where that is shorter.

        Similar are transfers of the same operation, dimension, phase and size that both only send, only receive or do
        both. Where none is without the ranks, a transfer becomes as much shorter as the others of its dimension do
        together; of other dimensions it stays as it is. Of several ranks, those are meant that all of them are members
        of: the group's own.

        Args:
            most: let what would stay as it is become as much shorter as all others do together, too, and communications
                that are not matched take no longer than the shortest transfer: any may be of these ranks.

        Raises:
            NoEvidenceError: no transfer is similar.
        """
        members, found = self.step.members, self._shared_transfers(times, ranks)
        with_it, alike, dimension, transfer = found.shared, found.alike, found.dimension, found.transfer_ns
        if not alike.any():
            whose = f"rank {ranks[0]} is similar to its own" if len(ranks) == 1 else "these ranks is similar to theirs"
            raise NoEvidenceError(f"no transfer without {whose}")
        fixed = np.where(alike, np.minimum(transfer, found.usual_ns), transfer)
        for one in np.unique(dimension[with_it & ~alike]).tolist():
            of_it = alike & (dimension == one)
            basis = of_it if of_it.any() or not most else alike
            share = fixed[basis].sum() / max(int(transfer[basis].sum()), 1) if basis.any() else 1.0
            left = with_it & ~alike & (dimension == one)
            fixed[left] = np.rint(transfer[left] * share).astype(np.int64)
        result, shortest = list(times), self._shortest(times) if most else 0
        for number, mine in enumerate(times):
            own = members.of(number)
            own = own[with_it[own]]
            duration = mine.duration_ns.copy()
            duration[members.kernel[own]] = fixed[own]
            if most:
                unmet = self.step.works[number].kernels.communicates & ~self.step.is_met(number)
                duration[unmet] = np.minimum(duration[unmet], shortest)
            result[number] = replace(mine, duration_ns=duration)
        return tuple(result)

    def untouched_by_links(self, ranks: Sequence[int]) -> float:
        """Share of the time of what some ranks transfer together that ``fix_links`` leaves as it is: nothing shows what
        is usual in its dimensions."""
        found = self._shared_transfers(self.step.times(), ranks)
        known = np.isin(found.dimension, np.unique(found.dimension[found.alike]))
        total = int(found.transfer_ns[found.shared].sum())
        return int(found.transfer_ns[found.shared & ~known].sum()) / total if total > 0 else 0.0

    def _shared_transfers(self, times: AllTimes, ranks: Sequence[int]) -> _SharedTransfers:
        """What some ranks transfer together, beside what others transfer without them; see ``fix_links``."""
        places = [self.step.ranks.index(rank) for rank in ranks]
        members = self.step.members
        _, meeting = np.unique(members.meeting, return_inverse=True)
        count = np.bincount(meeting[np.isin(members.rank, places)], minlength=int(meeting.max(initial=-1)) + 1)
        with_it = count[meeting] == len(places)
        words = sorted({word for work in self.step.works for word in work.kernels.dimensions})
        signature, transfer, dimension = (np.empty(len(members.rank), np.int64) for _ in range(3))
        for number, (work, mine) in enumerate(self._parts(times)):
            own = members.of(number)
            signature[own] = work.kernels.signature[members.kernel[own]]
            # Codes of dimensions are each rank's own.
            codes = np.array([*map(words.index, work.kernels.dimensions), NONE], np.int64)
            dimension[own] = codes[work.kernels.dimension[members.kernel[own]]]
            transfer[own] = mine.duration_ns[members.kernel[own]]
        signature = number_groups(signature, members.roles)[1]
        known, group = np.unique(signature[~with_it], return_inverse=True)
        usual = np.append(lower_medians(group.astype(np.int64), transfer[~with_it], len(known)), 0).astype(np.int64)
        where = np.searchsorted(known, signature)
        alike = with_it & (np.append(known, NONE)[where] == signature)
        return _SharedTransfers(with_it, alike, dimension, transfer, usual[where])

    def no_congestion(self, times: AllTimes, unjudged: bool = False) -> AllTimes:
        """Let transfers that took far longer than like ones of their rank take as long as these usually do.

        Args:
            unjudged: let transfers with too few like ones to be judged take no longer than the shortest of the step:
                all beyond that may be congestion.

        Raises:
            NoEvidenceError: none took so much longer.
        """
        if not any(len(kernel) for kernel, _, _ in self._congested):
            raise NoEvidenceError(
                f"no transfer takes {CONGESTED_TIMES:g} times what {FEWEST_ALIKE} or more like it usually take"
            )
        result, shortest = [], self._shortest(times) if unjudged else 0
        for mine, (kernel, usual, few) in zip(times, self._congested, strict=True):
            duration = mine.duration_ns.copy()
            duration[kernel] = np.minimum(duration[kernel], usual)
            if unjudged:
                duration[few] = np.minimum(duration[few], shortest)
            result.append(replace(mine, duration_ns=duration))
        return tuple(result)

    @cached_property
    def _congested(self) -> list[tuple[Int64, Int64, Int64]]:
        """Per rank, the transfers that took far longer than like ones, what these usually take, ns, and the transfers
        that have too few like ones.

        Similar are transfers of one rank, operation, dimension, phase and size with the same others, known by the
        lowest and the highest of them, that all only send, only receive or do both; the usual time is their lower
        median.
        """
        members, found = self.step.members, []
        meetings = int(members.meeting.max(initial=-1)) + 1
        lowest, highest = np.full(meetings, len(self.step.ranks)), np.zeros(meetings, np.int64)
        np.minimum.at(lowest, members.meeting, members.rank)
        np.maximum.at(highest, members.meeting, members.rank)
        for number, (work, mine) in enumerate(self._parts(self.step.times())):
            here = members.of(number)
            own, first, place = np.unique(members.kernel[here], return_index=True, return_inverse=True)
            transfer = mine.duration_ns[own]
            low, high = np.full(len(own), len(self.step.ranks)), np.zeros(len(own), np.int64)
            np.minimum.at(low, place, lowest[members.meeting[here]])
            np.maximum.at(high, place, highest[members.meeting[here]])
            signatures = np.stack((work.kernels.signature[own], members.roles[here[first]], low, high), axis=1)
            known, kind = np.unique(signatures, axis=0, return_inverse=True)
            usual = lower_medians(kind.astype(np.int64), transfer, len(known)).astype(np.int64)[kind]
            judged = np.bincount(kind, minlength=len(known))[kind] >= FEWEST_ALIKE
            late = judged & (transfer >= CONGESTED_TIMES * usual) & (transfer - usual >= LEAST_CONGESTED_NS)
            found.append((own[late], usual[late], own[~judged]))
        return found

    def even_layers(self, times: AllTimes) -> AllTimes:
        """Give every stage the same number of layers: what layers and their parameters take grows with their number.

        So do launches of layers, and what the host takes before each.

        Forward kernels name their layer, or the numbers of their kinds show how many there are (``_layers_by_kinds``).
        Of the others in steps of micro-batches see ``_run_by_layer``, of the rest ``layers.of_a_layer``.

        Raises:
            NoEvidenceError: the traces show no layers, or there are not several stages.
        """
        layers = self.layers
        group = layers.group
        mean = layers.of_stage.mean()
        factor = list(layers.factor)
        for masks in layers.others:
            total = np.array([mine.duration_ns[mask].sum() for mask, mine in zip(masks, times, strict=True)])
            longer = (mean - layers.of_stage[group]) * of_a_layer(total, layers.of_stage, group)
            for place, mask in enumerate(masks):
                if total[place]:
                    factor[place] = np.where(mask, max(1 + longer[place] / total[place], 0.0), factor[place])
        launched = (
            _launched_as_often(work, mine, each)
            for (work, mine), each in zip(self._parts(times), layers.factor, strict=True)
        )
        return tuple(_scaled(mine, each) for mine, each in zip(launched, factor, strict=True))

    @cached_property
    def layers(self) -> Layers:
        """Which kernels take as much longer as their stage has more layers, and which share what more layers take.

        Raises:
            NoEvidenceError: the traces show no layers, or there are not several stages.
        """
        self._check_stages()
        works = self.step.works
        counts = np.array([_layers(work) for work in works], np.float64)
        stages, group = np.unique(self.stages, return_inverse=True)
        of_stage = np.array([counts[group == number].max() for number in range(len(stages))])
        beside = next((work.kernels.beside_layers for work in works if work.kernels.beside_layers), None)
        if not of_stage.any():
            if beside is not None:
                raise NoEvidenceError(f"{beside}: kernels alone do not show the layers; capture call stacks")
            of_stage = _layers_by_kinds(works, self.step.times(), np.asarray(group, np.int64))
        elif not _of_one_kind(works, self.step.times()):
            raise NoEvidenceError("layers of several kinds: as many in each stage are not as much work")
        elif beside is not None and (of_stage == of_stage[0]).all():
            raise NoEvidenceError(f"each stage has as many layers already; nothing shows how to share out {beside}")
        if (of_stage == 0).any():
            raise NoEvidenceError("layers are not known of every stage; capture call stacks, which show them")
        named = [work.kernels.layer != MISSING for work in works]
        ways = (BACKWARD,) if any(mask.any() for mask in named) else (FORWARD, BACKWARD)
        inside = [
            np.logical_or.reduce([_runs(work, way) | _exchanges(work, way) for way in ways]) & ~mask
            for work, mask in zip(works, named, strict=True)
        ]
        by_layer = _run_by_layer(works, self.step.times(), inside, of_stage[group])
        found = any(each.any() for each in by_layer)
        others = [
            [chosen(work) & ~mask for work, mask in zip(works, named, strict=True)]
            for chosen in (*([] if found else [_runs_backward]), _optimizes, _synchronises, _runs_outside)
        ]
        share = of_stage.mean() / of_stage[group]
        run = [np.where(mask, 1.0, each) for mask, each in zip(named, by_layer, strict=True)]
        factor = [1 + each * (share[place] - 1) for place, each in enumerate(run)]
        unknown = None
        if not counts.any():
            unknown = "nothing names the layers, so their number is not known; capture call stacks"
        elif not found:
            unknown = "nothing shows which kernels of backward steps layers run"
        last = [place for place in range(len(works)) if group[place] == len(stages) - 1]
        passed = [works[place].kernels.duration_ns * _runs(works[place], FORWARD) for place in last]
        inside_layers = sum(float((ns * run[place]).sum()) for ns, place in zip(passed, last, strict=True))
        of_last = inside_layers / max(sum(float(ns.sum()) for ns in passed), 1.0)
        return Layers(of_stage, np.asarray(group, np.int64), run, factor, others, of_last, unknown)

    def no_pauses(self, times: AllTimes, rank: int | None = None) -> AllTimes:
        """Remove the pauses of all hosts; or those of one rank's, which then begins its step when others usually do.

        Raises:
            NoEvidenceError: no launches are known, or not those of communication.
        """
        self._check_launches(self.step.ranks if rank is None else (rank,))
        result = [_launched_earlier(*each) for each in zip(self.step.works, times, self.pauses, strict=True)]
        if rank is None:
            return tuple(result)
        place = self.step.ranks.index(rank)
        return (*times[:place], self._on_time(place, result[place]), *times[place + 1 :])

    def no_hidden_waits(self, times: AllTimes) -> AllTimes:
        """Let no host wait for its GPU where neither Megatron nor its data loader does.

        Raises:
            NoEvidenceError: no such wait is known.
        """
        if not any(work.section_hidden.any() for work in self.step.works):
            raise NoEvidenceError(
                "no host waits for its GPU except where Megatron does, or nothing shows where (capture call stacks)"
            )
        return tuple(replace(mine, waits=mine.waits & ~work.section_hidden) for work, mine in self._parts(times))

    def equal_stages(self, times: AllTimes) -> AllTimes:
        """Let the typical ranks of all stages compute equally long; see ``PassTimes.alike_stages``.

        Raises:
            NoEvidenceError: no micro-batches are known, or there are not several stages.
        """
        self._check_stages()
        return self._scaled_items(times, PassTimes.alike_stages)

    def equal_ranks(self, times: AllTimes) -> AllTimes:
        """Let all ranks of a stage compute equally long; see ``PassTimes.alike_ranks``.

        Raises:
            NoEvidenceError: no micro-batches are known, the stages are not, or none has several ranks.
        """
        return self._scaled_items(times, PassTimes.alike_ranks)

    def no_jitter(self, times: AllTimes) -> AllTimes:
        """Let all micro-batches of a rank compute equally long; see ``PassTimes.without_jitter``.

        Raises:
            NoEvidenceError: no micro-batches are known.
        """
        return self._scaled_items(times, PassTimes.without_jitter)

    def faster(self, times: AllTimes, dimension: str, factor: float, unmatched: bool = False) -> AllTimes:
        """Make the transfers of a dimension a number of times faster, above the shortest transfer of the step.

        Args:
            unmatched: take communications that are not matched as transfers, too.
        """
        floor = self._shortest(times)
        result = []
        for work, mine in self._parts(times):
            chosen = _may_be_of(work, dimension) if unmatched else _of_dimension(work, dimension) & work.is_joined()
            above = np.maximum(mine.duration_ns - floor, 0)
            shorter = mine.duration_ns - np.rint(above * (1 - 1 / factor)).astype(np.int64)
            result.append(replace(mine, duration_ns=np.where(chosen, shorter, mine.duration_ns)))
        return tuple(result)

    def hidden(self, times: AllTimes, dimension: str, unmatched: bool = False) -> AllTimes:
        """Let the transfers of a dimension take no time; their members still wait for one another.

        Args:
            unmatched: take communications that are not matched as transfers, too.
        """
        result = []
        for work, mine in self._parts(times):
            chosen = _may_be_of(work, dimension) if unmatched else _of_dimension(work, dimension) & work.is_joined()
            # What ends before its last member comes contradicts itself; to take that for none would make it longer.
            result.append(
                replace(mine, duration_ns=np.minimum(mine.duration_ns, np.where(chosen, 0, mine.duration_ns)))
            )
        return tuple(result)

    def without_unmet(self, times: AllTimes) -> AllTimes:
        """Let communications that are not matched with all their members take no time: no wait for an unknown peer
        is longer than that."""
        result = []
        for place, (work, mine) in enumerate(self._parts(times)):
            unmet = work.kernels.communicates & ~self.step.is_met(place)
            result.append(replace(mine, duration_ns=np.where(unmet, 0, mine.duration_ns)))
        return tuple(result)

    @cached_property
    def unmet(self) -> tuple[Int64, Int64]:
        """Per rank, how many communications are not matched with all their members, and how many there are."""
        counts = [
            (int((work.kernels.communicates & ~self.step.is_met(place)).sum()), int(work.kernels.communicates.sum()))
            for place, work in enumerate(self.step.works)
        ]
        unmet, every = np.array(counts, np.int64).reshape(-1, 2).T
        return unmet, every

    @cached_property
    def untied(self) -> list[int]:
        """Ranks that lack launches, see ``lacks_launches``."""
        both = zip(self.step.ranks, self.step.works, strict=True)
        return [rank for rank, work in both if lacks_launches(work.kernels, side_streams(work.kernels))]

    def has_unmatched(self, dimension: str) -> bool:
        """Whether communications of a dimension are not matched, so that nothing shows their waits from transfers."""
        return any((_may_be_of(work, dimension) & ~work.is_joined()).any() for work in self.step.works)

    def balanced_experts(self, times: AllTimes) -> AllTimes:
        """Let tokens spread evenly over the experts; see ``balanced_experts``."""
        return balanced_experts(self.step, self.experts, times, self._shortest(times))

    @cached_property
    def experts(self) -> Experts:
        """The experts' work.

        Raises:
            NoEvidenceError: no messages show experts whose load differs.
        """
        return experts_of(self.step)

    def host_free(self, times: AllTimes, rank: int | None = None) -> AllTimes:
        """Let the hosts take no time, as if whole steps were captured in CUDA graphs. They still wait for their GPUs.

        Args:
            rank: whose host; None: all.

        Raises:
            NoEvidenceError: no launches are known, or not those of communication.
        """
        self._check_launches(self.step.ranks if rank is None else [rank])
        result = []
        for place, mine in enumerate(times):
            if rank is not None and self.step.ranks[place] != rank:
                result.append(mine)
                continue
            section = np.zeros_like(mine.section_ns)
            # When a rank begins is not the step's own doing.
            section[:1] = mine.section_ns[:1]
            lag, launch = np.minimum(mine.lag_ns, 0), np.full_like(mine.launch_ns, MISSING)
            end = min(mine.host_end_ns, 0)
            result.append(replace(mine, lag_ns=lag, launch_ns=launch, section_ns=section, host_end_ns=end))
        return tuple(result)

    def _check_stages(self) -> None:
        if MISSING in self.stages:
            raise NoEvidenceError("the pipeline stages of the ranks are not known")
        read = set(self.stages)
        lost = sorted(set(range(max(read))) - read)
        if lost:
            raise NoEvidenceError(
                f"no rank of pipeline stage {lost[0]} was read, so nothing shows the mean of all stages"
            )
        if len(read) == 1:
            raise NoEvidenceError("only one pipeline stage was read, so there are none to even out")

    def _check_launches(self, ranks: Sequence[int]) -> None:
        if all((work.launch_ns == MISSING).all() for work in self.step.works):
            raise NoEvidenceError("the traces hold no launches")
        if lacking := sorted(set(ranks).intersection(self.untied)):
            raise NoEvidenceError(untied_words(lacking))

    def _shortest(self, times: AllTimes) -> int:
        """The shortest transfer of the step."""
        found = (int(mine.duration_ns[work.joined].min()) for work, mine in self._parts(times) if len(work.joined))
        return max(min(found, default=0), 0)

    def _parts(self, times: AllTimes) -> Sequence[tuple[RankWork, Times]]:
        return list(zip(self.step.works, times, strict=True))

    def _scaled_items(self, times: AllTimes, alike: Callable[[PassTimes], Scaled]) -> AllTimes:
        """Scale the computation of forward and backward steps, so that they are alike."""
        items = [step_items(work) for work in self.step.works]
        columns = []
        for place, ((work, mine), (first, number)) in enumerate(zip(self._parts(times), items, strict=True)):
            total, own = np.zeros(len(first), np.int64), own_work(work) & (number >= 0)
            np.add.at(total, number[own], mine.duration_ns[own])
            place_and_stage = (np.full(len(first), value) for value in (0, place, self.stages[place]))
            columns.append((*place_and_stage, work.kernels.chunk[first], direction(work)[first], total))
        factor = scale_of(alike(PassTimes(*map(np.concatenate, zip(*columns, strict=True)))))
        result, low = [], 0
        for (work, mine), (first, number) in zip(self._parts(times), items, strict=True):
            of_kernel = np.append(factor[low : low + len(first)], 1.0)[number]
            result.append(_scaled(mine, np.where(own_work(work), of_kernel, 1.0)))
            low += len(first)
        return tuple(result)


def untied_words(ranks: Sequence[int]) -> str:
    """Why what communication and hosts of some ranks held up is not known, see ``StepEdits.untied``."""
    return (
        f"{numbered('rank', ranks)} recorded no launches of communication, or not of all, so what waits for it is not "
        "known; also record the host, from before the step on (ProfilerActivity.CPU)"
    )


def _layers(work: RankWork) -> int:
    """How many transformer layers a rank runs, over all its chunks."""
    kernels = work.kernels
    there = kernels.layer != MISSING
    # Work of a layer that is outside its micro-batches, such as gathering its parameters, may not show the chunk.
    if (kernels.chunk[there] != MISSING).any():
        there &= kernels.chunk != MISSING
    return len(np.unique(np.stack([kernels.chunk[there], kernels.layer[there]]), axis=1).T) if there.any() else 0


def _of_one_kind(works: Sequence[RankWork], times: AllTimes) -> bool:
    """Whether all layers run the same kernels forward, but for ``_OF_ITS_OWN`` of the time of each."""
    masks = [_runs(work, FORWARD) & (work.kernels.layer != MISSING) for work in works]
    place = np.repeat(np.arange(len(works)), [int(mask.sum()) for mask in masks])
    name, chunk, number, taken = (
        np.concatenate([column[mask] for column, mask in zip(columns, masks, strict=True)])
        for columns in (
            [work.kernels.name for work in works],
            [work.kernels.chunk for work in works],
            [work.kernels.layer for work in works],
            [mine.duration_ns for mine in times],
        )
    )
    first, layer = number_groups(place, chunk, number)
    known, kind = np.unique(name, return_inverse=True)
    time = np.zeros((len(first), len(known)))
    np.add.at(time, (layer, kind), taken)
    common = (time > 0).all(axis=0)
    return bool((time[:, ~common].sum(axis=1) <= _OF_ITS_OWN * time.sum(axis=1)).all())


def _layers_by_kinds(works: Sequence[RankWork], times: AllTimes, stage: Int64) -> Float64:
    """How many layers each stage runs for each of the stage that has fewest, where no call stack names layers.

    Layers run the same kinds of kernels, each as often. So most of the time of forward steps, of kinds that all ranks
    run, is that of kinds of which the stages run numbers in one proportion: that of their layers. Where less than
    ``_IN_PROPORTION`` of it is, nothing shows the layers.

    Returns:
        Of each stage; zeros where nothing shows them.
    """
    masks = [_runs(work, FORWARD) for work in works]
    signature = np.concatenate([work.kernels.signature[mask] for work, mask in zip(works, masks, strict=True)])
    known, kind = np.unique(signature, return_inverse=True)
    owner = np.repeat(np.arange(len(works)), [int(mask.sum()) for mask in masks])
    counts = np.zeros((len(works), len(known)), np.int64)
    np.add.at(counts, (owner, kind), 1)
    taken = np.bincount(
        kind,
        weights=np.concatenate([mine.duration_ns[mask] for mine, mask in zip(times, masks, strict=True)]),
        minlength=len(known),
    )
    stages = np.unique(stage)
    of_stage = np.stack([counts[stage == number].max(axis=0) for number in stages])
    shared = np.flatnonzero((counts > 0).all(axis=0))
    if not len(shared):
        return np.zeros(len(stages))
    proportions = of_stage[:, shared] // np.gcd.reduce(of_stage[:, shared], axis=0)
    different, which = np.unique(proportions, axis=1, return_inverse=True)
    time = np.bincount(which.reshape(-1), weights=taken[shared], minlength=different.shape[1])
    if time.max() < _IN_PROPORTION * time.sum():
        return np.zeros(len(stages))
    return np.asarray(different[:, int(time.argmax())], np.float64)


def _run_by_layer(works: Sequence[RankWork], times: AllTimes, masks: Sequence[Bool], layers: Float64) -> list[Float64]:
    """Of some kernels the share that layers run: of a kind, each layer runs as many in each micro-batch.

    What a stage runs beyond that, such as the output layer's product by a kernel of the same name and grid, no layer
    does: those that take the least like what the kind takes where layers run all of it.

    Args:
        masks: which kernels of each rank are asked about. layers: how many each rank has.
    """
    signature = np.concatenate([work.kernels.signature[mask] for work, mask in zip(works, masks, strict=True)])
    duration = np.concatenate([mine.duration_ns[mask] for mine, mask in zip(times, masks, strict=True)])
    known, kind = np.unique(signature, return_inverse=True)
    owner = np.repeat(np.arange(len(works)), [int(mask.sum()) for mask in masks])
    counts = np.zeros((len(works), len(known)))
    np.add.at(counts, (owner, kind), 1)
    batches = max(
        (len(np.unique(work.kernels.microbatch[mask])) for work, mask in zip(works, masks, strict=True)), default=0
    )
    each = counts / (layers[:, None] * max(batches, 1))
    of_layers = np.floor(each.min(axis=0, initial=np.inf)) / np.maximum(each, 1e-9)
    share = of_layers[owner, kind]
    whole = share == 1
    for one in np.unique(kind[(share > 0) & (share < 1)]).tolist():
        shown = np.sort(duration[whole & (kind == one)])
        for rank in np.unique(owner[(kind == one) & (share < 1)]).tolist() if len(shown) else ():
            mine = np.flatnonzero((kind == one) & (owner == rank))
            nearest = np.argsort(np.abs(duration[mine] - shown[(len(shown) - 1) // 2]), kind="stable")
            share[mine] = 0
            share[mine[nearest[: round(of_layers[rank, one] * len(mine))]]] = 1
    result = []
    for place, mask in enumerate(masks):
        found = np.zeros(len(mask))
        found[mask] = share[owner == place]
        result.append(found)
    return result


def _runs(work: RankWork, way: int) -> Bool:
    """Mark a rank's own work in forward or backward steps."""
    return np.asarray((direction(work) == way) & (work.kernels.microbatch != MISSING) & own_work(work))


def _runs_backward(work: RankWork) -> Bool:
    return _runs(work, BACKWARD)


def _exchanges(work: RankWork, way: int) -> Bool:
    """Mark communication within layers in forward or backward steps."""
    inside = np.logical_or.reduce([_of_dimension(work, dimension.value) for dimension in _WITHIN_LAYERS])
    return np.asarray((direction(work) == way) & (work.kernels.microbatch != MISSING) & inside)


def _optimizes(work: RankWork) -> Bool:
    return _of_category(work, Category.OPTIMIZER_COMPUTATION)


def _synchronises(work: RankWork) -> Bool:
    return _of_category(work, Category.DP_COMMUNICATION)


def _runs_outside(work: RankWork) -> Bool:
    """Mark what a rank does outside micro-batches and optimizer: its gradients are zeroed and finished there."""
    return np.asarray((work.kernels.microbatch == MISSING) & own_work(work) & ~_optimizes(work))


def _of_category(work: RankWork, category: Category) -> Bool:
    words = work.kernels.categories
    found = words.index(category.value) if category.value in words else NONE
    return np.asarray((work.kernels.category == found) & (found != NONE))


def _scaled(times: Times, factor: np.ndarray) -> Times:
    return replace(times, duration_ns=np.rint(times.duration_ns * factor).astype(np.int64))


def _of_dimension(work: RankWork, dimension: str) -> Bool:
    kernels = work.kernels
    if dimension == "all":
        return kernels.communicates
    if dimension not in kernels.dimensions:
        return np.zeros(len(kernels), dtype=bool)
    return np.asarray(kernels.communicates & (kernels.dimension == kernels.dimensions.index(dimension)))


def _may_be_of(work: RankWork, dimension: str) -> Bool:
    """Mark communications of a dimension, and those that are not matched whose dimension nobody knows."""
    unknown = _of_dimension(work, Dimension.UNKNOWN.value) | (work.kernels.communicates & (work.kernels.dimension < 0))
    return np.asarray(_of_dimension(work, dimension) | unknown & ~work.is_joined())


def step_items(work: RankWork) -> tuple[Int64, Int64]:
    """Forward and backward steps of micro-batches: a kernel of each, and each kernel's number; -1 outside."""
    kernels, steps = work.kernels, direction(work)
    inside = np.flatnonzero((steps != MISSING) & (kernels.microbatch != MISSING))
    number = np.full(len(kernels), -1)
    if not len(inside):
        return inside, number
    first, number[inside] = number_groups(kernels.chunk[inside], kernels.microbatch[inside], steps[inside])
    return inside[first], number


def _launched_earlier(work: RankWork, times: Times, by: Int64) -> Times:
    """Bring forward what the host launches from each kernel on, within its section; and the call that ends the section.

    Where another edit has changed the launches, what they were is gone already.

    Args:
        by: how much earlier each kernel is launched than before, ns, besides what those before it are; later below 0.
    """
    if times.launch_ns is not work.launch_ns:
        return times
    launch, own, host_end = times.launch_ns.copy(), times.section_ns.copy(), times.host_end_ns
    if by.any():
        order, section = _launches(work)
        total = np.append(0, np.cumsum(by[order]))
        begin = total[np.searchsorted(section, np.arange(len(own) + 1))]
        launch[order] -= total[1:] - begin[section]
        *later, last = np.diff(begin).tolist()
        own[1:] -= np.array(later, np.int64)
        host_end -= last
    return replace(times, launch_ns=launch, section_ns=own, host_end_ns=host_end)


def _launches(work: RankWork) -> tuple[Int64, Int64]:
    """The kernels whose launch is known, by section of the host, then in the order of launch; and their sections."""
    section = work.section[work.segment]
    mine = np.flatnonzero((section >= 0) & (work.launch_ns != MISSING))
    order = mine[np.lexsort((work.launch_ns[mine], section[mine]))]
    return order, section[order]


def _launched_as_often(work: RankWork, times: Times, factor: Float64) -> Times:
    """Let the host take ``factor`` times as long from the launch before to that of each kernel."""
    earlier = np.zeros(len(work.kernels), np.int64)
    order, section = _launches(work)
    before = work.launch_ns[order]
    before[1:] -= np.where(section[1:] == section[:-1], work.launch_ns[order[:-1]], 0)
    earlier[order] = before - np.rint(before * factor[order]).astype(np.int64)
    return _launched_earlier(work, times, earlier)
