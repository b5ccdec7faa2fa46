"""The phase and the micro-batch step of each kernel: from its launch, its neighbours or its dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.dimensions.dimension_evidence import DimensionDecision
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.phases.places import EVIDENCES, PHASES, UNKNOWN_PHASE, LaunchesBetweenRows, Places
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.vocabulary import Dimension, Evidence, Phase

_BETWEEN, _BY_DIMENSION = "between_neighbours_on_stream", "phase_of_its_dimension"
_ANY_GRAPH = "graph_launched_outside_microbatches"

_PHASE_OF_DIMENSION = {
    Dimension.PP: Phase.OTHER,
    Dimension.EMBEDDING: Phase.OTHER,
    Dimension.CONTROL: Phase.OTHER,
    Dimension.GRAD_NORM: Phase.OPTIMIZER,
}
"""Communication of these dimensions happens in one phase only, wherever it was launched."""


@dataclass(frozen=True, slots=True)
class KernelPhases:
    """Per kernel: index into PHASES, into EVIDENCES and into ``rule_names``, and its micro-batch step or NONE."""

    phase: Int64
    evidence: Int64
    rule: Int64
    member: Int64
    rule_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelNames:
    """What kernels' own names say: per kernel an index into PHASES and one into ``rules``, or NONE."""

    phase: Int64
    rule: Int64
    rules: tuple[str, ...]


def kernel_phases(
    trace: TraceEvents,
    launches: Launches,
    places: Places,
    between: LaunchesBetweenRows | None,
    kernel_names: KernelNames,
    decisions: Sequence[DimensionDecision],
    decision_of: Int64,
    gaps: Int64,
) -> KernelPhases:
    """Take each kernel's phase from where it was launched.

    One without a launch lies between two neighbours of its stream: where these agree, it is theirs, since a stream runs
    in launch order. A communication whose phase is still open, or only inferred, has the phase of its dimension. Where
    all this says nothing, the kernel's own name may. A CUDA graph that is launched outside the steps of micro-batches
    can hold all of them: nothing shows its kernels apart.

    Args:
        between: what is inferred of launches outside all host rows; None where call stacks speak.
        decision_of: per kernel the index of its dimension's decision, or NONE.
        gaps: when rows of the host were lost, as ``lost_host_rows`` has them: there neighbours show nothing.
    """
    none = EVIDENCES.index(Evidence.NONE)
    phase = lookup(places.phase, launches.position, UNKNOWN_PHASE)
    evidence = lookup(places.phase_evidence, launches.position, none)
    rule = lookup(places.phase_rule, launches.position)
    member = lookup(places.member, launches.position)
    names = (*places.rule_names, _BETWEEN, _BY_DIMENSION, *kernel_names.rules, _ANY_GRAPH)
    whole_graph = (trace.device.graph_id != MISSING) & (phase == PHASES.index(Phase.OTHER)) & (member == NONE)
    phase[whole_graph], evidence[whole_graph], rule[whole_graph] = UNKNOWN_PHASE, none, len(names) - 1

    lost = (launches.position == NONE) & (phase == UNKNOWN_PHASE)
    if between is not None:
        told = lost & (between.phase != UNKNOWN_PHASE)
        phase[told], rule[told], member[told] = between.phase[told], between.rule[told], between.member[told]
        evidence[told] = EVIDENCES.index(Evidence.STEP_WINDOW)
        lost &= launches.time_ns == MISSING
    if lost.any() and not lost.all():
        before, after = _neighbours(trace, ~lost)
        certain = lost & (before >= 0) & (after >= 0)
        certain &= (phase[before] == phase[after]) & (member[before] == member[after])
        certain &= phase[before] != UNKNOWN_PHASE
        for start, end in gaps.tolist():
            certain &= (launches.time_ns[after] < end) | (launches.time_ns[before] > start)
        phase[certain], member[certain] = phase[before[certain]], member[before[certain]]
        evidence[certain] = EVIDENCES.index(Evidence.STREAM_GROUP)
        rule[certain] = names.index(_BETWEEN)

    of_dimension = np.array(
        [PHASES.index(_PHASE_OF_DIMENSION.get(decision.dimension, Phase.UNKNOWN)) for decision in decisions]
        + [UNKNOWN_PHASE]
    )[decision_of]
    uncertain = (phase == UNKNOWN_PHASE) | (evidence == EVIDENCES.index(Evidence.STEP_WINDOW))
    implied = uncertain & (of_dimension != UNKNOWN_PHASE) & (of_dimension != phase)
    phase[implied] = of_dimension[implied]
    decided_by = np.array([EVIDENCES.index(decision.evidence) for decision in decisions] + [none])[decision_of]
    evidence[implied] = decided_by[implied]
    rule[implied] = names.index(_BY_DIMENSION)

    named = (phase == UNKNOWN_PHASE) & (kernel_names.phase != UNKNOWN_PHASE)
    phase[named] = kernel_names.phase[named]
    evidence[named] = EVIDENCES.index(Evidence.KERNEL_NAME)
    rule[named] = names.index(_BY_DIMENSION) + 1 + kernel_names.rule[named]
    return KernelPhases(phase, evidence, rule, member, names)


def _neighbours(trace: TraceEvents, known: Bool) -> tuple[Int64, Int64]:
    """For each device row the last known row before and the first known row after it on its stream, or NONE."""
    device = trace.device
    order = np.lexsort((device.start_ns, device.stream, device.device))
    boundary = np.zeros(len(order), dtype=bool)
    boundary[1:] = (np.diff(device.stream[order]) != 0) | (np.diff(device.device[order]) != 0)
    lane = np.cumsum(boundary)
    slots = np.arange(len(order))
    known_slot = known[order]
    last = np.maximum.accumulate(np.where(known_slot, slots, NONE))
    following = np.minimum.accumulate(np.where(known_slot, slots, len(order))[::-1])[::-1]
    before, after = np.full(len(order), NONE), np.full(len(order), NONE)
    same_before = (last >= 0) & (lane[np.maximum(last, 0)] == lane)
    clipped = np.minimum(following, len(order) - 1)
    same_after = (following < len(order)) & (lane[clipped] == lane)
    before[order] = np.where(same_before, order[np.maximum(last, 0)], NONE)
    after[order] = np.where(same_after, order[clipped], NONE)
    return before, after
