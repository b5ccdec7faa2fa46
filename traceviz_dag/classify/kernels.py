"""From events to classified kernels: the one place where launch, call stack, process group and name rules meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.classify.communication import DimensionDecision, JobGroups, complete_facts, decide_dimensions
from traceviz_dag.classify.cpu_work import cpu_work, has_device_rows
from traceviz_dag.classify.host_tree import NONE, take
from traceviz_dag.classify.kernel_phases import kernel_phases
from traceviz_dag.classify.kernel_table import COMMUNICATION, COMPUTATION, KINDS, MEMORY, KernelFacts, kernels_table
from traceviz_dag.classify.launches import Launches, call_tree, find_launches
from traceviz_dag.classify.phases import infer_places, read_places
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.step_inference import Communications
from traceviz_dag.classify.steps import MicrobatchSteps, ProfilerSteps, profiler_steps
from traceviz_dag.read.events import KERNEL, MISSING, Int64, TraceEvents
from traceviz_dag.vocabulary import Dimension


@dataclass(frozen=True, slots=True)
class Classification:
    """One trace, classified.

    Attributes:
        kernels: table ``kernels``, all training steps of the file, by start.
        steps: forward and backward steps of micro-batches on the host.
        profiler_steps: the ProfilerStep annotations.
    """

    kernels: pa.Table
    steps: MicrobatchSteps
    profiler_steps: ProfilerSteps


def classify(trace: TraceEvents, rules: Rules, groups: JobGroups, stage: int | None) -> Classification:
    """Classify every kernel of a trace.

    Args:
        groups: what the topology knows of the job's process groups.
        stage: the rank's position in its pipeline group; None where unknown.
    """
    tree = call_tree(trace)
    profiler = profiler_steps(trace)
    if has_device_rows(trace):
        launches = find_launches(trace, tree)
    else:
        trace, launches = cpu_work(trace, tree)
    places = read_places(trace, tree, rules, profiler)
    kernel_rule = _kernel_rules(trace, rules)
    kind = _kinds(trace, kernel_rule, rules)
    communication = kind == COMMUNICATION
    facts = complete_facts(trace, tree, launches, communication)
    rows = np.flatnonzero(communication)
    frame_rule = take(places.dimension_rule, launches.position)
    decisions, which = decide_dimensions(trace, facts, frame_rule, kernel_rule, rows, rules, groups)
    decision_of = np.full(len(kind), NONE, dtype=np.int64)
    decision_of[rows] = which
    if not len(places.steps):
        places = infer_places(trace, tree, places, profiler, _communications(launches, decisions, decision_of))
    phases = kernel_phases(trace, launches, places, decisions, decision_of)
    facts_of_kernels = KernelFacts(kind, phases, tuple(decisions), decision_of, facts, launches, stage)
    return Classification(kernels_table(trace, tree, places, profiler, facts_of_kernels), places.steps, profiler)


def _communications(launches: Launches, decisions: list[DimensionDecision], decision_of: Int64) -> Communications:
    norm = np.array([decision.dimension is Dimension.GRAD_NORM for decision in decisions] + [False])
    other = np.array([decision.dimension is not Dimension.GRAD_NORM for decision in decisions] + [False])
    launched = launches.time_ns != MISSING
    return Communications(
        launches.time_ns[launched & norm[decision_of]], launches.time_ns[launched & other[decision_of]]
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
