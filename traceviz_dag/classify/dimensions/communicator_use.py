"""What process groups serve that nothing describes: from all that each carries on a rank, and from whom it joins.

Nsight Systems shows NCCL's communicators without a name, and several groups often have the same ranks. But Megatron
creates a communicator per use, and two groups along different axes of its rank grid share one rank at the most. What
these two facts leave open stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traceviz_dag.classify.dimensions.dimension_evidence import (
    MOST_COUNT_ELEMENTS,
    MOST_ELEMENTS_OF_ONE,
    WITHIN_MICROBATCHES,
    DimensionDecision,
    GroupFacts,
    of_shards,
)
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.topology.group_lookup import DEFAULT_GROUP_NAME
from traceviz_dag.vocabulary import Dimension, Evidence, Phase

_GROUPS_OF_ONE_USE = frozenset(
    {Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.PP, Dimension.DP, Dimension.EDP}
)
_GRADIENTS = "gradient_synchronisation"
_MOST_TOKEN_COUNT_ELEMENTS = 16 << 10
"""Elements or bytes of token counts, a number per expert (2,048 of 8 bytes); a bucket of parameters has more."""


@dataclass(frozen=True, slots=True)
class Carried:
    """One kind of communication on one process group of a rank.

    Attributes:
        elements: of the largest such communication, bytes where only these are known; negative where unknown.
        decision: what is known of it so far.
    """

    group: GroupFacts
    collective: str
    phase: Phase
    elements: int
    decision: DimensionDecision

    @property
    def plain(self) -> str:
        """The collective in small letters, without what separates its words."""
        return self.collective.lower().replace("_", "")


@dataclass(slots=True)
class _Communicator:
    """A named process group and all that it carries; ``told`` grows while rules decide."""

    name: str
    members: frozenset[int]
    uses: list[Carried] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    told: set[Dimension] = field(default_factory=set)

    @property
    def only(self) -> Dimension | None:
        """The one dimension that is known of it."""
        return next(iter(self.told)) if len(self.told) == 1 else None

    @property
    def open(self) -> bool:
        """Whether nothing is known of it."""
        return not self.told

    def all_are(self, *words: str) -> bool:
        """Whether it carries nothing but collectives whose names have one of the words."""
        return all(any(word in use.plain for word in words) for use in self.uses)

    def within_microbatches(self) -> bool:
        """Whether all of it belongs to micro-batches."""
        return all(use.phase in WITHIN_MICROBATCHES for use in self.uses)

    def at_most(self, elements: int) -> bool:
        """Whether all of it is known to be so small."""
        return all(0 <= use.elements <= elements for use in self.uses)


def decide_by_use(
    carried: Sequence[Carried],
    rules: Rules,
    known: Mapping[Dimension, Sequence[frozenset[int]]],
    *,
    experts: bool,
) -> list[DimensionDecision]:
    """Decide what is still open of each kind of communication.

    Args:
        carried: everything that one rank communicates.
        known: dimension → the members of its groups, as far as some source lists them.
        experts: whether the job may be a mixture of experts.

    Returns:
        A decision for each of ``carried``; the one that it has where nothing more can be said.
    """
    decisions = [use.decision for use in carried]
    communicators = _communicators(carried)
    steps: list[Callable[[], Iterable[tuple[_Communicator, Dimension, str]]]] = [
        lambda: _same_elsewhere(communicators),
        lambda: _gradient_norms(communicators),
    ]
    if experts:
        steps += [
            lambda: _dense_gradients(communicators, known),
            lambda: _gradients_with_counts(communicators),
            lambda: _expert_gradients(communicators),
            lambda: _expert_tensor(communicators),
            lambda: _token_counts(communicators),
        ]
    steps += [
        lambda: _batches(communicators, known),
        lambda: _along_pipeline(communicators, known),
        lambda: _counts_over_replicas(communicators),
    ]
    for step in steps:
        for communicator, dimension, rule in tuple(step()):
            _apply(communicator, dimension, rule, decisions, rules)
    return decisions


def _communicators(carried: Sequence[Carried]) -> list[_Communicator]:
    found: dict[str, _Communicator] = {}
    for place, use in enumerate(carried):
        name = use.group.name
        if name is None or name == DEFAULT_GROUP_NAME or use.group.certain or len(use.group.members) < 2:
            continue
        communicator = found.setdefault(name, _Communicator(name, frozenset(use.group.members)))
        communicator.uses.append(use)
        communicator.places.append(place)
        if use.decision.evidence is not Evidence.KERNEL_NAME:
            communicator.told |= {use.decision.dimension} & _GROUPS_OF_ONE_USE
    return list(found.values())


def _apply(
    communicator: _Communicator, dimension: Dimension, rule: str, decisions: list[DimensionDecision], rules: Rules
) -> None:
    """Give what is open on a communicator its dimension, where such groups carry such a collective."""
    for use, place in zip(communicator.uses, communicator.places, strict=True):
        before = decisions[place]
        if before.dimension is not Dimension.UNKNOWN or not rules.can_carry(dimension, use.collective):
            continue
        # Where a part of the step is not known, what all others of the communicator serve says more.
        one = 0 < use.elements <= MOST_ELEMENTS_OF_ONE and use.phase is Phase.OPTIMIZER
        norm = of_shards(dimension, use.collective, use.phase, before.role) if one else None
        if norm is not None:
            decisions[place] = norm
            continue
        served = (rules.of_group(dimension, use.collective) or (dimension, ""))[0]
        decisions[place] = DimensionDecision(served, Evidence.PROCESS_GROUP, rule, (), before.role)
    communicator.told.add(dimension)


def _same_elsewhere(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """A communicator serves one dimension: what is known of a part of it holds for the rest."""
    for communicator in communicators:
        dimension = communicator.only
        if dimension is not None:
            yield communicator, dimension, "same_group_elsewhere"


def _gradient_norms(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Nothing but single numbers, summed by the optimizer."""
    for communicator in communicators:
        in_optimizer = all(use.phase is Phase.OPTIMIZER for use in communicator.uses)
        numbers = communicator.all_are("allreduce") and communicator.at_most(MOST_COUNT_ELEMENTS)
        if communicator.open and in_optimizer and numbers:
            yield communicator, Dimension.GRAD_NORM, "numbers_of_the_optimizer"


def _dense_gradients(
    communicators: list[_Communicator], known: Mapping[Dimension, Sequence[frozenset[int]]]
) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Replicas of experts lie across the expert-parallel groups, so gradients that run along one are dense."""
    groups = [*_members(communicators, Dimension.EP), *known.get(Dimension.EP, ())]
    for communicator in communicators:
        along = any(len(group & communicator.members) > 1 for group in groups)
        if communicator.open and along and _carries_gradients(communicator):
            yield communicator, Dimension.DP, "along_the_expert_parallel_group"


def _gradients_with_counts(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Losses and token counts are summed over all replicas, never over those of experts."""
    for communicator in communicators:
        counts = any(
            use.phase is Phase.OTHER and 0 <= use.elements <= MOST_COUNT_ELEMENTS and "allreduce" in use.plain
            for use in communicator.uses
        )
        if communicator.open and counts and _carries_gradients(communicator):
            yield communicator, Dimension.DP, "gradients_and_counts"


def _expert_gradients(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Beside the dense gradients' communicator, another one carries those of experts."""
    dense = [one for one in communicators if one.only is Dimension.DP and _carries_gradients(one)]
    for communicator in communicators:
        if communicator.open and _carries_gradients(communicator) and dense:
            # The levels of partial distributed optimizers carry other collectives than the gradients' own.
            alike = all(_gradient_collectives(one) == _gradient_collectives(communicator) for one in dense)
            if alike:
                yield communicator, Dimension.EDP, "beside_the_dense_gradients"


def _expert_tensor(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """A second communicator along a tensor-parallel group that gathers and scatters in micro-batches; other groups that
    run along one only sum."""
    tensor, expert = _members(communicators, Dimension.TP), _members(communicators, Dimension.EP)
    for communicator in communicators:
        along = any(len(group & communicator.members) > 1 for group in tensor)
        across = expert and all(len(group & communicator.members) < 2 for group in expert)
        if not (communicator.open and along and across and communicator.within_microbatches()):
            continue
        gathers = any("allgather" in use.plain for use in communicator.uses)
        scatters = any("reducescatter" in use.plain for use in communicator.uses)
        if gathers and scatters and communicator.all_are("allgather", "reducescatter"):
            yield communicator, Dimension.ETP, "second_group_of_tensor_ranks"


def _token_counts(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """The dispatcher gathers how many tokens go to which expert, over the experts' tensor and expert ranks."""
    groups = _members(communicators, Dimension.EP)
    for communicator in communicators:
        counts = communicator.all_are("allgather") and communicator.at_most(_MOST_TOKEN_COUNT_ELEMENTS)
        around = any(group <= communicator.members for group in groups)
        if communicator.open and counts and around and communicator.within_microbatches():
            yield communicator, Dimension.EP, "gathers_token_counts"


def _batches(
    communicators: list[_Communicator], known: Mapping[Dimension, Sequence[frozenset[int]]]
) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Within micro-batches only tensor-parallel ranks broadcast: one of them reads the batch."""
    across = [*_members(communicators, Dimension.PP), *_members(communicators, Dimension.DP)]
    across += [*known.get(Dimension.PP, ()), *known.get(Dimension.DP, ())]
    for communicator in communicators:
        broadcasts = any("broadcast" in use.plain and use.phase is Phase.FORWARD for use in communicator.uses)
        apart = all(len(group & communicator.members) < 2 for group in across)
        if communicator.open and broadcasts and apart:
            yield communicator, Dimension.TP, "broadcasts_batches"


def _along_pipeline(
    communicators: list[_Communicator], known: Mapping[Dimension, Sequence[frozenset[int]]]
) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Only groups of stages lie along a pipeline: sums of more than a count there are the embedding's gradients."""
    pipelines = [*_members(communicators, Dimension.PP), *known.get(Dimension.PP, ())]
    # Messages that are not batched have a communicator per pair of stages.
    stages = frozenset[int]().union(*_members(communicators, Dimension.PP))
    for communicator in communicators:
        if not communicator.open or not any(communicator.members <= group for group in (*pipelines, stages)):
            continue
        between = not any(use.phase in (*WITHIN_MICROBATCHES, Phase.OPTIMIZER) for use in communicator.uses)
        large = any(use.elements > MOST_COUNT_ELEMENTS for use in communicator.uses)
        if between and large and communicator.all_are("allreduce"):
            yield communicator, Dimension.EMBEDDING, "summed_between_stages"


def _counts_over_replicas(communicators: list[_Communicator]) -> Iterable[tuple[_Communicator, Dimension, str]]:
    """Losses and token counts are summed over the replicas that have the gradients in common."""
    replicas = _members(communicators, Dimension.DP)
    replicas += [one.members for one in communicators if one.open and _carries_gradients(one)]
    for communicator in communicators:
        between = all(use.phase is Phase.OTHER for use in communicator.uses)
        if communicator.open and between and communicator.all_are("allreduce"):
            within = any(communicator.members <= group for group in replicas)
            if within and communicator.at_most(MOST_COUNT_ELEMENTS):
                yield communicator, Dimension.DP, "counts_over_replicas"


def _members(communicators: Iterable[_Communicator], dimension: Dimension) -> list[frozenset[int]]:
    return [one.members for one in communicators if one.only is dimension]


def _carries_gradients(communicator: _Communicator) -> bool:
    return any(use.decision.role == _GRADIENTS for use in communicator.uses)


def _gradient_collectives(communicator: _Communicator) -> frozenset[str]:
    return frozenset(use.plain for use in communicator.uses if use.decision.role == _GRADIENTS)
