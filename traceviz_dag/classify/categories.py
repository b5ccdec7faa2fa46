"""The category of a kernel follows from its kind, phase and dimension, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from traceviz_dag.vocabulary import Category, Dimension, Kind, Phase

_COMPUTATION = {
    Phase.FORWARD: Category.FWD_COMPUTATION,
    Phase.BACKWARD: Category.BWD_COMPUTATION,
    Phase.RECOMPUTE: Category.BWD_COMPUTATION_RECOMPUTE,
    Phase.OPTIMIZER: Category.OPTIMIZER_COMPUTATION,
    Phase.OTHER: Category.OTHER_COMPUTATION,
    Phase.UNKNOWN: Category.UNCLASSIFIED,
}

_BY_PHASE = {
    Phase.FORWARD: Category.FWD_COMMUNICATION,
    Phase.BACKWARD: Category.BWD_COMMUNICATION,
    Phase.RECOMPUTE: Category.BWD_COMMUNICATION_RECOMPUTE,
    Phase.OPTIMIZER: Category.OTHER_COMMUNICATION,
    Phase.OTHER: Category.OTHER_COMMUNICATION,
    Phase.UNKNOWN: Category.UNCLASSIFIED,
}

_BY_DIMENSION = {
    Dimension.DP: Category.DP_COMMUNICATION,
    Dimension.EDP: Category.DP_COMMUNICATION,
    Dimension.PP: Category.PP_COMMUNICATION,
    Dimension.EMBEDDING: Category.OTHER_COMMUNICATION,
    Dimension.GRAD_NORM: Category.OTHER_COMMUNICATION,
    Dimension.CONTROL: Category.OTHER_COMMUNICATION,
    Dimension.WORLD: Category.OTHER_COMMUNICATION,
}

MICROBATCH_DIMENSIONS = frozenset({Dimension.TP, Dimension.CP, Dimension.EP, Dimension.ETP, Dimension.UNKNOWN})
"""Communication that is part of a micro-batch's own work; the other dimensions belong to the whole step."""


def category_of(
    kind: Kind, phase: Phase, dimension: Dimension | None, candidates: Iterable[Dimension] = ()
) -> Category:
    """The category of one kernel.

    Args:
        dimension: of a communication; ignored for other kinds.
        candidates: the possible dimensions of an unknown one; where all of them lead to the same category, that
            category is known although the dimension is not.
    """
    if kind is Kind.MEMORY:
        return Category.MEMORY
    if kind is Kind.COMPUTATION:
        return _COMPUTATION[phase]
    if dimension is None or dimension is Dimension.UNKNOWN:
        possible = {category_of(kind, phase, candidate) for candidate in candidates}
        return possible.pop() if len(possible) == 1 else Category.UNCLASSIFIED
    return _BY_DIMENSION.get(dimension) or _BY_PHASE[phase]
