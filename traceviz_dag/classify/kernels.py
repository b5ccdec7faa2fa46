"""From events to classified kernels: the one place where launch, call stack, process group and name rules meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.classify.categories import MICROBATCH_DIMENSIONS, category_of
from traceviz_dag.classify.columns import coded, integers, labelled
from traceviz_dag.classify.communication import (
    DimensionDecision,
    GroupDimension,
    complete_facts,
    decide_dimensions,
)
from traceviz_dag.classify.cpu_work import CPU_DEVICE_NUMBER, cpu_work, has_device_rows
from traceviz_dag.classify.host_tree import NONE, Bool, take
from traceviz_dag.classify.launches import Launches, call_tree, find_launches
from traceviz_dag.classify.phases import EVIDENCES, PHASES, UNKNOWN_PHASE, Places, read_places
from traceviz_dag.classify.rules import Rules
from traceviz_dag.classify.steps import MicrobatchSteps, ProfilerSteps, nearest_step, profiler_steps, step_at
from traceviz_dag.read.events import KERNEL, MISSING, Int64, TraceEvents
from traceviz_dag.tables import KERNELS
from traceviz_dag.vocabulary import CPU_DEVICE, Category, Evidence, Kind, StepEvidence

_KINDS = tuple(Kind)
_COMPUTATION, _COMMUNICATION, _MEMORY = (
    _KINDS.index(kind) for kind in (Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY)
)
_STEP_EVIDENCES = tuple(StepEvidence)
_CATEGORIES = tuple(Category)
_BETWEEN = "between_neighbours_on_stream"


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


def classify(trace: TraceEvents, rules: Rules, group_dimension: GroupDimension, stage: int | None) -> Classification:
    """Classify every kernel of a trace.

    Args:
        group_dimension: what the topology knows of a process group.
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
    phases = _Phases.of(trace, launches, places)

    communication = kind == _COMMUNICATION
    facts = complete_facts(trace, tree, launches, communication)
    rows = np.flatnonzero(communication)
    frame_rule = take(places.dimension_rule, launches.position)
    decisions, which = decide_dimensions(trace, facts, frame_rule, kernel_rule, rows, rules, group_dimension)
    decision_of = np.full(len(kind), NONE, dtype=np.int64)
    decision_of[rows] = which
    device = trace.device
    step, step_evidence = _steps_of_kernels(trace, launches, profiler)
    part_of_microbatch = np.array([decision.dimension in MICROBATCH_DIMENSIONS for decision in decisions] + [False])
    own_work = ~communication | part_of_microbatch[decision_of]
    microbatch = take(places.steps.microbatch, phases.member, MISSING)
    chunk = take(places.steps.chunk, phases.member, MISSING)
    order = np.lexsort((device.stream, device.device, device.start_ns))

    def pick(values: npt.NDArray[np.int64 | np.int32]) -> Int64:
        return values[order].astype(np.int64, copy=False)

    host_row = take(tree.rows, launches.position)
    host_names = trace.host.name.astype(np.int64)
    strings = trace.strings

    def name_at(position_of_place: Int64) -> Int64:
        return take(host_names, take(tree.rows, take(position_of_place, launches.position)), 0)

    launch_row = launches.row
    columns: dict[str, object] = {
        "kernel_id": np.arange(len(order), dtype=np.int64),
        "name": coded(pick(device.name), strings),
        "start_ns": pick(device.start_ns),
        "duration_ns": pick(device.duration_ns),
        "device": _devices(pick(device.device)),
        "stream": integers(pick(device.stream)),
        "correlation": integers(pick(device.correlation)),
        "kind": labelled(pick(kind), _KINDS),
        "phase": labelled(pick(phases.phase), PHASES),
        "phase_evidence": labelled(pick(phases.evidence), EVIDENCES),
        "phase_rule": labelled(pick(phases.rule), (*places.rule_names, _BETWEEN)),
        "category": labelled(pick(_categories(kind, phases.phase, decisions, decision_of)), _CATEGORIES),
        **_decision_columns(decisions, pick(decision_of)),
        "stage": pa.array([stage] * len(order), type=pa.int32()),
        "chunk": integers(pick(np.where(own_work, chunk, MISSING))),
        "microbatch": integers(pick(np.where(own_work, microbatch, MISSING))),
        "launching_chunk": integers(pick(chunk)),
        "launching_microbatch": integers(pick(microbatch)),
        "module": coded(pick(name_at(places.module)), strings, prefix="nn.Module: "),
        "layer": integers(_suffixes(pick(name_at(places.layer)), strings)),
        "operator": coded(pick(name_at(places.operator)), strings),
        "step": integers(pick(step)),
        "step_evidence": labelled(pick(step_evidence), _STEP_EVIDENCES),
        "launch_name": coded(pick(_launch_names(trace, launch_row, host_row)), strings),
        "launch_start_ns": integers(pick(launches.time_ns)),
        "launch_duration_ns": integers(pick(_launch_durations(trace, launch_row, host_row))),
        "launch_thread": integers(pick(_thread_ids(trace, launches))),
        "shared_memory_bytes": integers(pick(device.shared_memory_bytes)),
        "graph_id": integers(pick(device.graph_id)),
        "graph_node_id": integers(pick(device.graph_node_id)),
        "bytes": integers(pick(device.bytes)),
    }
    for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread"):
        columns[name] = integers(pick(getattr(device, name)))
    for name in ("collective", "group_name", "group_description", "group_ranks", "dtype", "in_split", "out_split"):
        columns[name] = coded(pick(np.where(communication, getattr(facts, name), 0)), strings)
    for name in ("group_size", "in_elements", "out_elements", "sequence", "source_rank", "destination_rank"):
        columns[name] = integers(pick(np.where(communication, getattr(facts, name), MISSING)))
    return Classification(KERNELS.from_columns(columns), places.steps, profiler)


@dataclass(frozen=True, slots=True)
class _Phases:
    """Per kernel: index into PHASES, into EVIDENCES and into the rule names, and its micro-batch step or NONE."""

    phase: Int64
    evidence: Int64
    rule: Int64
    member: Int64

    @classmethod
    def of(cls, trace: TraceEvents, launches: Launches, places: Places) -> _Phases:
        none = EVIDENCES.index(Evidence.NONE)
        phase = take(places.phase, launches.position, UNKNOWN_PHASE)
        evidence = take(places.phase_evidence, launches.position, none)
        rule = take(places.phase_rule, launches.position)
        member = take(places.member, launches.position)
        lost = (launches.position == NONE) & (phase == UNKNOWN_PHASE)
        if lost.any() and not lost.all():
            before, after = _neighbours(trace, ~lost)
            certain = lost & (before >= 0) & (after >= 0)
            certain &= (phase[before] == phase[after]) & (member[before] == member[after])
            certain &= phase[before] != UNKNOWN_PHASE
            phase[certain], member[certain] = phase[before[certain]], member[before[certain]]
            evidence[certain] = EVIDENCES.index(Evidence.STREAM_GROUP)
            rule[certain] = len(places.rule_names)
        return cls(phase, evidence, rule, member)


def _neighbours(trace: TraceEvents, known: Bool) -> tuple[Int64, Int64]:
    """For each device row the last known row before and the first known row after it on its stream, or NONE.

    A stream runs in launch order, so what stands between two kernels of one step was launched between them.
    """
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


def _kernel_rules(trace: TraceEvents, rules: Rules) -> Int64:
    codes = np.unique(trace.device.name)
    by_code = np.full(len(trace.strings), NONE, dtype=np.int64)
    by_code[codes] = rules.match_kernels([trace.strings[code] for code in codes.tolist()])
    return by_code[trace.device.name]


def _kinds(trace: TraceEvents, kernel_rule: Int64, rules: Rules) -> Int64:
    kind_of_rule = np.array([_KINDS.index(rule.kind) for rule in rules.kernels] + [_COMPUTATION])
    kind = np.where(kernel_rule >= 0, kind_of_rule[kernel_rule], _COMPUTATION)
    return np.where(trace.device.category == KERNEL, kind, _MEMORY)


def _steps_of_kernels(trace: TraceEvents, launches: Launches, profiler: ProfilerSteps) -> tuple[Int64, Int64]:
    """The step that launched a kernel, else (without a launch) in which it starts, else the nearest."""
    device = trace.device
    none, nearest_flag = _STEP_EVIDENCES.index(StepEvidence.NONE), _STEP_EVIDENCES.index(StepEvidence.NEAREST)
    if not len(profiler):
        return np.full(len(device), MISSING, dtype=np.int64), np.full(len(device), none, dtype=np.int64)
    launched = launches.time_ns != MISSING
    time_ns = np.where(launched, launches.time_ns, device.start_ns)
    step = step_at(profiler, time_ns)
    evidence = np.where(launched, _STEP_EVIDENCES.index(StepEvidence.LAUNCH), _STEP_EVIDENCES.index(StepEvidence.START))
    outside = step == MISSING
    return np.where(outside, nearest_step(profiler, time_ns), step), np.where(outside, nearest_flag, evidence)


def _categories(kind: Int64, phase: Int64, decisions: list[DimensionDecision], decision_of: Int64) -> Int64:
    keys, which = np.unique(np.stack([kind, phase, decision_of]), axis=1, return_inverse=True)
    category = []
    for kind_code, phase_code, decision_code in keys.T.tolist():
        decision = decisions[decision_code] if decision_code >= 0 else None
        found = category_of(
            _KINDS[kind_code],
            PHASES[phase_code],
            decision.dimension if decision else None,
            decision.candidates if decision else (),
        )
        category.append(_CATEGORIES.index(found))
    return np.array(category, dtype=np.int64)[which.reshape(-1)]


def _decision_columns(decisions: list[DimensionDecision], decision_of: Int64) -> dict[str, object]:
    return {
        "dimension": labelled(decision_of, [decision.dimension for decision in decisions]),
        "dimension_evidence": labelled(decision_of, [decision.evidence for decision in decisions]),
        "dimension_rule": labelled(decision_of, [decision.rule for decision in decisions]),
        "dimension_candidates": labelled(
            decision_of,
            [",".join(decision.candidates) or None for decision in decisions],
        ),
        "role": labelled(decision_of, [decision.role for decision in decisions]),
    }


def _devices(device: Int64) -> pa.Array:
    numbers, which = np.unique(device, return_inverse=True)
    names = [CPU_DEVICE if number == CPU_DEVICE_NUMBER else f"gpu:{number}" for number in numbers.tolist()]
    return labelled(which, names)


def _launch_names(trace: TraceEvents, launch_row: Int64, host_row: Int64) -> Int64:
    by_runtime = take(trace.launches.name.astype(np.int64), launch_row, 0)
    return np.where(launch_row >= 0, by_runtime, take(trace.host.name.astype(np.int64), host_row, 0))


def _launch_durations(trace: TraceEvents, launch_row: Int64, host_row: Int64) -> Int64:
    by_runtime = take(trace.launches.duration_ns, launch_row, MISSING)
    return np.where(launch_row >= 0, by_runtime, take(trace.host.duration_ns, host_row, MISSING))


def _thread_ids(trace: TraceEvents, launches: Launches) -> Int64:
    ids = np.array([thread.thread_id for thread in trace.threads], dtype=np.int64)
    return take(ids, launches.thread.astype(np.int64), MISSING)


def _suffixes(codes: Int64, strings: tuple[str, ...]) -> Int64:
    distinct, which = np.unique(codes, return_inverse=True)
    numbers = [int(strings[code].rsplit("_", 1)[1]) if code else MISSING for code in distinct.tolist()]
    return np.array(numbers, dtype=np.int64)[which]
