"""From events to classified kernels: the one place where launch, call stack, process group and name rules meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.cpu_work import cpu_work, has_device_rows
from traceviz_dag.classify.dimensions.communication import (
    JobGroups,
    complete_facts,
    decide_dimensions,
    stated_operations,
)
from traceviz_dag.classify.dimensions.dimension_evidence import DimensionDecision
from traceviz_dag.classify.kernel_table import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    KernelFacts,
    kernel_order,
    kernels_table,
)
from traceviz_dag.classify.launches import Launches, call_tree, find_launches
from traceviz_dag.classify.operators import LaunchingOperators, launching_operators
from traceviz_dag.classify.phases.kernel_phases import KernelNames, kernel_phases
from traceviz_dag.classify.phases.marks import ProfilerSteps, profiler_steps
from traceviz_dag.classify.phases.passes import lost_host_rows
from traceviz_dag.classify.phases.places import PHASES, UNKNOWN_PHASE, infer_places, read_places
from traceviz_dag.classify.phases.step_surroundings import Communications
from traceviz_dag.classify.phases.steps import MicrobatchSteps
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.synchronizations.table import synchronizations_table
from traceviz_dag.read.events import KERNEL, MISSING, TraceEvents
from traceviz_dag.tables import SYNCHRONIZATIONS
from traceviz_dag.vocabulary import Dimension, Phase


@dataclass(frozen=True, slots=True)
class Classification:
    """One trace, classified.

    Attributes:
        kernels: table ``kernels``, all training steps of the file, by start.
        steps: forward and backward steps of micro-batches on the host.
        profiler_steps: the ProfilerStep annotations.
        synchronizations: table ``synchronizations``, all training steps of the file, by start.
        stacked: rows of ``HostRows`` that call stacks are made of, ascending; of a trace without a GPU, too.
        operators: of each row of ``kernels``, the operation that launched it.
    """

    kernels: pa.Table
    steps: MicrobatchSteps
    profiler_steps: ProfilerSteps
    synchronizations: pa.Table
    stacked: Int64
    operators: LaunchingOperators


def classify(
    trace: TraceEvents, rules: Rules, groups: JobGroups, stage: int | None, needed: int | None = None
) -> Classification:
    """Classify every kernel of a trace.

    Args:
        groups: what the topology knows of the job's process groups.
        stage: the rank's position in its pipeline group; None where unknown.
        needed: how many micro-batches a training step has; None where nothing states it.
    """
    tree = call_tree(trace)
    profiler = profiler_steps(trace)
    on_gpu = has_device_rows(trace)
    if on_gpu:
        launches = find_launches(trace, tree)
    else:
        trace, launches = cpu_work(trace, tree)
    gaps = lost_host_rows(trace, launches)
    places = read_places(trace, tree, rules, profiler, gaps, needed)
    kernel_rule = _kernel_rules(trace, rules)
    kind = _kinds(trace, kernel_rule, rules)
    communication = kind == COMMUNICATION
    facts = complete_facts(trace, tree, launches, communication)
    operation = stated_operations(trace, tree, launches, facts)
    rows = np.flatnonzero(communication)
    frame_rule = lookup(places.dimension_rule, launches.position)

    def decide(phase: Int64) -> tuple[list[DimensionDecision], Int64]:
        decisions, which = decide_dimensions(
            trace, facts, operation, frame_rule, kernel_rule, phase, rows, rules, groups
        )
        decision_of = np.full(len(kind), NONE, dtype=np.int64)
        decision_of[rows] = which
        return decisions, decision_of

    decisions, decision_of = decide(lookup(places.phase, launches.position, UNKNOWN_PHASE))
    between = None
    if not len(places.steps):
        told = _communications(launches, rules, kernel_rule, decisions, decision_of)
        places, between = infer_places(trace, tree, places, profiler, told, launches, gaps, needed)
        decisions, decision_of = decide(lookup(places.phase, launches.position, UNKNOWN_PHASE))
    named = np.array([PHASES.index(rule.phase or Phase.UNKNOWN) for rule in rules.kernels] + [UNKNOWN_PHASE])
    kernel_names = KernelNames(named[kernel_rule], kernel_rule, tuple(rule.name for rule in rules.kernels))
    phases = kernel_phases(trace, launches, places, between, kernel_names, decisions, decision_of, gaps)
    order = kernel_order(trace)
    facts_of_kernels = KernelFacts(kind, phases, tuple(decisions), decision_of, facts, launches, stage, order)
    kernels = kernels_table(trace, tree, places, profiler, facts_of_kernels)
    if on_gpu:
        synchronizations = synchronizations_table(trace, launches, profiler, np.argsort(order))
    else:
        synchronizations = SYNCHRONIZATIONS.schema.empty_table()
    operators = launching_operators(trace, tree, places.operator, launches.position[order])
    # Each row is there once: ascending without a sort.
    stacked = np.flatnonzero(np.bincount(tree.rows))
    return Classification(kernels, places.steps, profiler, synchronizations, stacked, operators)


def _communications(
    launches: Launches, rules: Rules, kernel_rule: Int64, decisions: list[DimensionDecision], decision_of: Int64
) -> Communications:
    """When communication was launched that distinguishes finalisation and the optimizer.

    What could be anything, a gradient norm included, shows neither: an undecided communication is of the second kind
    only where it has candidates and the gradient norm is none of them.
    """
    norm = [decision.dimension is Dimension.GRAD_NORM for decision in decisions]
    other = [
        decision.dimension is not Dimension.GRAD_NORM
        if decision.dimension is not Dimension.UNKNOWN
        else bool(decision.candidates) and Dimension.GRAD_NORM not in decision.candidates
        for decision in decisions
    ]
    opens = np.array([rule.opens == "optimizer" for rule in rules.kernels] + [False])
    launched = launches.time_ns != MISSING
    optimizer = launched & (np.array([*norm, False])[decision_of] | opens[kernel_rule])
    return Communications(
        launches.time_ns[optimizer], launches.time_ns[launched & np.array([*other, False])[decision_of]]
    )


def _kernel_rules(trace: TraceEvents, rules: Rules) -> Int64:
    codes = np.unique(trace.device.name)
    by_code = np.full(len(trace.strings), NONE, dtype=np.int64)
    by_code[codes] = rules.match_kernels([trace.strings[code] for code in codes.tolist()])
    return by_code[trace.device.name]


def _kinds(trace: TraceEvents, kernel_rule: Int64, rules: Rules) -> Int64:
    kind_of_rule = np.array([KINDS.index(rule.kind) for rule in rules.kernels] + [COMPUTATION])
    kind = np.where(kernel_rule >= 0, kind_of_rule[kernel_rule], COMPUTATION)
    return np.where(trace.device.category == KERNEL, kind, MEMORY)
