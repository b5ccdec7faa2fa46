"""Weighs what speaks of one communication's dimension: its call stack, its process group, its collective, its name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

from traceviz_dag.classify.rules import FrameRule, KernelRule, Rules
from traceviz_dag.classify.topology.group_lookup import DEFAULT_GROUP_NAME
from traceviz_dag.vocabulary import Dimension, Evidence, Phase

_PARALLEL = frozenset(
    {Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.DP, Dimension.EDP, Dimension.PP}
)
WITHIN_MICROBATCHES = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE})
"""Phases of what belongs to a micro-batch."""

MOST_COUNT_ELEMENTS = 64
"""Elements, or bytes where only these are known, that a count, a norm or a barrier moves at the most."""

MOST_ELEMENTS_OF_ONE = 4
"""Of one number: its element, or the bytes of a float."""

MOST_MAXIMA_ELEMENTS = 4096
"""Of the maxima of all tensors that a rank scales: three for each of four products of a layer, and some more."""

_ALL_REDUCE = re.compile(r"all_?reduce", re.I)
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.I)
_COLLECTIVE = re.compile(r"all_?gather|reduce|broadcast", re.I)
_EXCHANGED = (Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP)
"""What exchanges activations among all members; embedding tables that are spread over ranks do, too, without a word."""

RANKS_AND_USE = "rank_set_and_use"
"""Rule of what ranks leave open and the collective and its place decide."""
OUTSIDE_OPTIMIZER = "norm_group_outside_the_optimizer"
"""Rule of what the gradient norm's group carries elsewhere."""
ONE_NUMBER_OF_SHARDS = "one_number_of_the_optimizers_shards"
"""Rule of what is summed over the ranks that share gradients, in the optimizer."""
_REPLICAS = (Dimension.DP, Dimension.EDP)
_EXPERT_TWINS = {Dimension.TP: Dimension.ETP, Dimension.DP: Dimension.EDP}
_BY_RANKS = "rank_set"
_BETWEEN_MICROBATCHES = frozenset({Dimension.GRAD_NORM, Dimension.EMBEDDING, Dimension.CONTROL})


class Size(IntEnum):
    """How much a communication carries: any amount, one number, or several that are too few to be activations."""

    ANY = 0
    ONE = 1
    FEW = 2


@dataclass(frozen=True, slots=True)
class DimensionDecision:
    """The dimension of a communication and why."""

    dimension: Dimension
    evidence: Evidence
    rule: str
    candidates: tuple[Dimension, ...] = ()
    role: str | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the topology says of one process group.

    Attributes:
        given: whether the kernel names a group at all. members: the group's ranks, where the kernel lists them.
    """

    name: str | None
    dimension: Dimension
    candidates: tuple[Dimension, ...]
    rule: str
    given: bool
    members: tuple[int, ...]

    @property
    def certain(self) -> bool:
        """Whether a name or a description shows the dimension; what ranks show is weighed against the rest."""
        return self.dimension is not Dimension.UNKNOWN and self.rule != _BY_RANKS


@dataclass(frozen=True, slots=True)
class DimensionEvidence:
    """The evidence for one kind of communication besides its group.

    Attributes:
        split, absent: dimensions that the job is known to be split over, and known not to be.
        frame: the nearest frame rule that speaks of communication. kernel: the rule of the kernel's own name.
        collective: name of the collective, or of the kernel where it states none.
        phase: of its launch; unknown where nothing shows.
        size: how much it carries.
        packs: whether the job packs sequences: before the micro-batches they travel between its replicas.
    """

    rules: Rules
    split: frozenset[Dimension]
    absent: frozenset[Dimension]
    frame: FrameRule | None
    kernel: KernelRule | None
    collective: str
    phase: Phase
    size: Size = Size.ANY
    packs: bool = False

    def decide(self, group: GroupFacts) -> DimensionDecision:
        """Weigh frame, group and name, in this order of trust where they speak.

        A rank set that several groups share is narrowed down to the dimensions that have such a collective at such a
        place; where several are left, the dimension stays unknown and they are its candidates.
        """
        reduces = _ALL_REDUCE.search(self.collective) is not None
        if reduces and self.size is Size.FEW and self.frame is not None and self.frame.maxima:
            frame = replace(self.frame, dimension=None, collectives=(), among=self.frame.maxima, role=None)
            return replace(self, frame=frame, size=Size.ANY).decide(group)
        decision = self._weighed(group)
        if self.size is not Size.ONE or decision.evidence is not Evidence.PROCESS_GROUP:
            return decision
        return of_shards(decision.dimension, self.collective, self.phase, decision.role) or decision

    def _weighed(self, group: GroupFacts) -> DimensionDecision:
        frame = self.frame
        candidates = self._candidates(group)
        told = frame.dimension_of(self.collective) if frame is not None else None
        role = frame.role if frame is not None and (told is not None or not frame.collectives) else None
        if frame is not None and told is not None:
            decision = self._by_frame(frame, told, group, candidates, role)
            if decision is not None:
                return decision
        if group.certain:
            dimension, rule = self._use(group.dimension) or (group.dimension, group.rule)
            return DimensionDecision(dimension, Evidence.PROCESS_GROUP, rule, role=role)
        if candidates:
            return self._among_candidates(group, candidates, role)
        return self._by_name(group, role)

    def _use(self, dimension: Dimension) -> tuple[Dimension, str] | None:
        """What the collective serves on a group of that dimension, where that is something else.

        The group that sums gradient norms carries flags and statistics outside the optimizer.
        """
        if dimension is Dimension.GRAD_NORM and self.phase is Phase.OTHER:
            return Dimension.CONTROL, OUTSIDE_OPTIMIZER
        better = self.rules.of_group(dimension, self.collective)
        if better is None or (better[0] in _PARALLEL and better[0] not in self.split):
            return None
        return better

    def _candidates(self, group: GroupFacts) -> tuple[Dimension, ...]:
        """The group's candidates that have such a collective in such a phase, as what it then serves.

        Ranks alone do not distinguish a dense group from one of experts that no source lists.
        """
        if group.certain:
            return group.candidates
        twins = [_EXPERT_TWINS[candidate] for candidate in group.candidates if candidate in _EXPERT_TWINS]
        unlisted = [twin for twin in twins if twin not in self.split and twin not in self.absent]
        found = self._fitting((*group.candidates, *unlisted))
        if group.name not in (None, DEFAULT_GROUP_NAME):
            found.discard(Dimension.WORLD)
        return tuple(dimension for dimension in Dimension if dimension in found)

    def _conceivable(self, group: GroupFacts) -> tuple[Dimension, ...]:
        """The dimensions that a group may serve of which no source says anything; none where it names no members."""
        if not group.members:
            return ()
        found = self._fitting(tuple(_PARALLEL | _BETWEEN_MICROBATCHES))
        return tuple(dimension for dimension in Dimension if dimension in found)

    def _fitting(self, candidates: tuple[Dimension, ...]) -> set[Dimension]:
        """Those of some dimensions that have such a collective in such a phase, as what it then serves."""
        found = {
            (self._use(candidate) or (candidate, ""))[0]
            for candidate in candidates
            if self.rules.can_carry(candidate, self.collective)
        }
        if self._routes() and Dimension.DP in candidates:
            found = {Dimension.DP}
        found -= self.absent & _PARALLEL
        if self.size is Size.FEW:
            # A norm is one number.
            found.discard(Dimension.GRAD_NORM)
        return found - _BETWEEN_MICROBATCHES if self.phase in WITHIN_MICROBATCHES else found

    def _routes(self) -> bool:
        """Whether the collective may send packed sequences to the replicas that run them."""
        outside = self.phase not in WITHIN_MICROBATCHES and self.phase is not Phase.OPTIMIZER
        return self.packs and outside and _ALL_TO_ALL.search(self.collective) is not None

    def _among_candidates(
        self, group: GroupFacts, candidates: tuple[Dimension, ...], role: str | None
    ) -> DimensionDecision:
        if self.frame is not None and self.frame.among:
            fitting = tuple(candidate for candidate in candidates if candidate in self.frame.among)
            if len(fitting) == 1:
                return DimensionDecision(fitting[0], _evidence_of(self.frame), self.frame.name, role=role)
            candidates = fitting or candidates
        if len(candidates) == 1:
            rule = group.rule if candidates == group.candidates else RANKS_AND_USE
            return DimensionDecision(candidates[0], Evidence.PROCESS_GROUP, rule, role=role)
        return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, group.rule, candidates, role)

    def _by_name(self, group: GroupFacts, role: str | None) -> DimensionDecision:
        frame, kernel = self.frame, self.kernel
        of_kernel = kernel.among if kernel is not None else ()
        of_library = (kernel.dimension,) if kernel is not None and kernel.dimension is not None else ()
        conceivable = self._conceivable(group)
        if _ALL_TO_ALL.search(self.collective) and not (group.given or (frame is not None and frame.among)):
            exchanged = (Dimension.DP, *_EXCHANGED) if self._routes() else _EXCHANGED
            return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, "all_to_all", exchanged, role)
        if _COLLECTIVE.search(self.collective):
            of_kernel = ()
        if frame is not None and group.given and (told := set(frame.among) & set(conceivable)):
            return self._one_among(tuple(d for d in Dimension if d in told), _evidence_of(frame), frame.name, role)
        if frame is not None and frame.among and (not group.given or "python_function" in frame.on):
            both = tuple(dimension for dimension in frame.among if dimension in (*of_kernel, *of_library))
            return self._one_among(both or frame.among, _evidence_of(frame), frame.name, role)
        if kernel is not None and kernel.dimension is not None:
            return DimensionDecision(kernel.dimension, Evidence.KERNEL_NAME, kernel.name, role=role)
        if kernel is not None and of_kernel and not group.given:
            return self._one_among(of_kernel, Evidence.KERNEL_NAME, kernel.name, role)
        return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, group.rule, conceivable, role)

    def _by_frame(
        self,
        frame: FrameRule,
        told: Dimension,
        group: GroupFacts,
        candidates: tuple[Dimension, ...],
        role: str | None,
    ) -> DimensionDecision | None:
        overridden = "*" in frame.overrides or (group.certain and group.dimension in frame.overrides)
        fits = not group.certain and (not candidates or told in candidates)
        # A frame says dp for both dense and expert gradients; with both possible only the category is known.
        if not overridden and fits and told is Dimension.DP and self._may_be_experts(candidates):
            both = (Dimension.DP, Dimension.EDP)
            return DimensionDecision(Dimension.UNKNOWN, Evidence.CALL_STACK, frame.name, both, role)
        if overridden or fits:
            return DimensionDecision(told, Evidence.CALL_STACK, frame.name, role=role)
        return None

    def _may_be_experts(self, candidates: tuple[Dimension, ...]) -> bool:
        """Whether a data-parallel group could be that of experts: its ranks say so, or nothing known has its ranks."""
        if candidates:
            return Dimension.EDP in candidates
        return Dimension.EDP not in self.absent

    def _one_among(
        self, among: tuple[Dimension, ...], evidence: Evidence, rule: str, role: str | None
    ) -> DimensionDecision:
        """The one of several dimensions that the job may be split over; unknown where these are none or several."""
        possible = tuple(dimension for dimension in among if dimension not in self.absent)
        if len(possible) == 1:
            return DimensionDecision(possible[0], evidence, rule, role=role)
        return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, rule, possible, role)


def of_shards(dimension: Dimension, collective: str, phase: Phase, role: str | None = None) -> DimensionDecision | None:
    """What one number serves that is summed over the replicas by the optimizer, or may be; None elsewhere.

    Where gradients are sharded, it is their norm, or a count of zeros. Before it, it may be a count of tokens.
    """
    if (
        dimension not in _REPLICAS
        or phase not in (Phase.OPTIMIZER, Phase.UNKNOWN)
        or not _ALL_REDUCE.search(collective)
    ):
        return None
    among = (Dimension.GRAD_NORM, Dimension.CONTROL, *([dimension] if phase is Phase.UNKNOWN else ()))
    return DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, ONE_NUMBER_OF_SHARDS, among, role)


def _evidence_of(frame: FrameRule) -> Evidence:
    return Evidence.ANNOTATION if "user_annotation" in frame.on else Evidence.CALL_STACK
