"""The table ``kernels`` of one trace, built from what each step of the classification found."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Bool, Int64, among, lookup, number_groups, rows_at
from traceviz_dag.classify.categories import MICROBATCH_DIMENSIONS, category_of
from traceviz_dag.classify.columns import coded, integers, labelled
from traceviz_dag.classify.cpu_work import CPU_DEVICE_NUMBER
from traceviz_dag.classify.dimensions.dimension_evidence import DimensionDecision
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.module_paths import module_paths
from traceviz_dag.classify.phases.kernel_phases import KernelPhases
from traceviz_dag.classify.phases.marks import ProfilerSteps, nearest_step, step_at
from traceviz_dag.classify.phases.places import EVIDENCES, PHASES, Places
from traceviz_dag.read.events import COLLECTIVE_NUMBERS, MISSING, CollectiveFacts, TraceEvents
from traceviz_dag.read.host_tree import HostTree
from traceviz_dag.tables import KERNELS
from traceviz_dag.vocabulary import CPU_DEVICE, Category, Dimension, Kind, Phase, StepEvidence

KINDS = tuple(Kind)
COMPUTATION, COMMUNICATION, MEMORY = (KINDS.index(kind) for kind in (Kind.COMPUTATION, Kind.COMMUNICATION, Kind.MEMORY))
_STEP_EVIDENCES = tuple(StepEvidence)
_CATEGORIES = tuple(Category)
_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread")
_COPIED = (*_GEOMETRY, "shared_memory_bytes", "graph_id", "graph_node_id", "bytes")
_SHORT = frozenset(column.name for column in KERNELS.columns if column.type == pa.int32())
_FACT_NAMES = ("collective", "group_name", "group_description", "group_ranks", "dtype", "in_split", "out_split")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the classification found, one entry per device row.

    Attributes:
        kind: index into KINDS.
        decision_of: index into ``decisions``, or NONE for what is no communication.
        stage: the rank's position in its pipeline group; None where unknown.
        order: the device rows by kernel_id.
    """

    kind: Int64
    phases: KernelPhases
    decisions: tuple[DimensionDecision, ...]
    decision_of: Int64
    collectives: CollectiveFacts
    launches: Launches
    stage: int | None
    order: Int64


_LAYER = re.compile(r"_([0-9]{1,9})\Z")
"""The number of a layer; more digits would not fit the column, and no model has so many."""


def kernel_order(trace: TraceEvents) -> Int64:
    """The device rows in the order of table ``kernels``: by start, device and stream."""
    device = trace.device
    return np.lexsort((device.stream, device.device, device.start_ns))


def kernels_table(
    trace: TraceEvents, tree: HostTree, places: Places, profiler: ProfilerSteps, facts: KernelFacts
) -> pa.Table:
    """The table ``kernels``, by start, device and stream."""
    device = trace.device
    order = facts.order

    def pick(values: npt.NDArray[np.int64 | np.int32]) -> Int64:
        return values.take(order).astype(np.int64, copy=False)

    step, step_evidence = _steps_of_kernels(trace, facts, profiler)
    communication = facts.kind == COMMUNICATION
    columns: dict[str, object] = {
        "kernel_id": np.arange(len(order), dtype=np.int64),
        "name": coded(pick(device.name), trace.strings),
        "start_ns": pick(device.start_ns),
        "duration_ns": pick(device.duration_ns),
        "device": _devices(pick(device.device)),
        "stream": integers(pick(device.stream)),
        "correlation": integers(pick(device.correlation)),
        "kind": labelled(pick(facts.kind), KINDS),
        "phase": labelled(pick(facts.phases.phase), PHASES),
        "phase_evidence": labelled(pick(facts.phases.evidence), EVIDENCES),
        "phase_rule": labelled(pick(facts.phases.rule), facts.phases.rule_names),
        "category": labelled(pick(_categories(facts)), _CATEGORIES),
        "stage": pa.array([facts.stage] * len(order), type=pa.int32()),
        "step": integers(pick(step)),
        "step_evidence": labelled(pick(step_evidence), _STEP_EVIDENCES),
        "beside_ns": pa.nulls(len(order), pa.list_(pa.int64())),
        "operation_id": pa.nulls(len(order), pa.int32()),
        **_decision_columns(facts.decisions, pick(facts.decision_of)),
        **{name: _numbers(name, pick(values)) for name, values in _microbatch_columns(places, facts).items()},
        **_place_columns(trace, tree, places, facts.launches, order),
        **_launch_columns(trace, tree, facts.launches, order),
    }
    for name in _COPIED:
        columns[name] = _numbers(name, pick(getattr(device, name)))
    for name in _FACT_NAMES:
        columns[name] = coded(pick(np.where(communication, getattr(facts.collectives, name), 0)), trace.strings)
    for name in COLLECTIVE_NUMBERS:
        columns[name] = _numbers(name, pick(np.where(communication, getattr(facts.collectives, name), MISSING)))
    return KERNELS.from_columns(columns)


def _numbers(name: str, values: Int64) -> pa.Array:
    """An integer column; NULL for MISSING, and for what it cannot hold: no kernel has it, so the trace does not show
    it."""
    if name not in _SHORT:
        return integers(values)
    bounds = np.iinfo(np.int32)
    # Not by their magnitude: that of the least int64 is no int64.
    return pa.array(values.astype(np.int32), mask=(values < bounds.min) | (values > bounds.max))


def _microbatch_columns(places: Places, facts: KernelFacts) -> dict[str, Int64]:
    """A communication that belongs to the whole step is launched by a micro-batch's code, but is not part of it."""
    part = np.array([_within_microbatches(decision) for decision in facts.decisions] + [False])
    own_work = (facts.kind != COMMUNICATION) | part[facts.decision_of]
    microbatch = lookup(places.steps.microbatch, facts.phases.member, MISSING)
    chunk = lookup(places.steps.chunk, facts.phases.member, MISSING)
    return {
        "microbatch": np.where(own_work, microbatch, MISSING),
        "chunk": np.where(own_work, chunk, MISSING),
        "launching_microbatch": microbatch,
        "launching_chunk": chunk,
    }


def _within_microbatches(decision: DimensionDecision) -> bool:
    """Whether a communication is part of a micro-batch's own work; of an unknown one only if all it could be is."""
    if decision.dimension is not Dimension.UNKNOWN:
        return decision.dimension in MICROBATCH_DIMENSIONS
    return bool(decision.candidates) and MICROBATCH_DIMENSIONS.issuperset(decision.candidates)


def _place_columns(
    trace: TraceEvents, tree: HostTree, places: Places, launches: Launches, order: Int64
) -> dict[str, pa.Array]:
    """Module, layer and operator around the launch, and what sizes an operator states."""
    names = trace.host.name.astype(np.int64)
    position = launches.position[order]

    def name_at(of_position: Int64) -> Int64:
        return lookup(names, lookup(tree.rows, lookup(of_position, position)), 0)

    sizes = trace.host.input_sizes.astype(np.int64)
    sized = tree.nearest(sizes[tree.rows] > 0) if sizes.any() else np.full(len(tree), NONE)
    path, paths = module_paths(trace, tree, places.graph, places.module, position)
    return {
        "module": coded(name_at(places.module), trace.strings, prefix="nn.Module: "),
        "module_path": labelled(path, paths),
        "layer": integers(_layers(name_at(places.layer), trace.strings)),
        "operator": coded(name_at(places.operator), trace.strings),
        "input_sizes": coded(lookup(sizes, lookup(tree.rows, lookup(sized, position)), 0), trace.strings),
    }


def _launch_columns(trace: TraceEvents, tree: HostTree, launches: Launches, order: Int64) -> dict[str, pa.Array]:
    """The runtime call that launched a kernel; the host row around the launch where there is no such call."""
    row = launches.row[order]
    host_row = lookup(tree.rows, launches.position[order])
    threads = np.array([thread.thread_id for thread in trace.threads], dtype=np.int64)
    own_name = lookup(trace.launches.name.astype(np.int64), row, 0)
    host_name = lookup(trace.host.name.astype(np.int64), host_row, 0)
    own_duration = lookup(trace.launches.duration_ns, row, MISSING)
    host_duration = lookup(trace.host.duration_ns, host_row, MISSING)
    return {
        "launch_name": coded(np.where(row >= 0, own_name, host_name), trace.strings),
        "launch_start_ns": integers(launches.time_ns[order]),
        "launch_duration_ns": integers(np.where(row >= 0, own_duration, host_duration)),
        "launch_thread": integers(lookup(threads, launches.thread[order].astype(np.int64), MISSING)),
    }


def _steps_of_kernels(trace: TraceEvents, facts: KernelFacts, profiler: ProfilerSteps) -> tuple[Int64, Int64]:
    """The step that launched a kernel, else (without a launch) in which it starts, else the nearest; none where its own
    step was cut."""
    device, launches = trace.device, facts.launches
    none, nearest_flag = _STEP_EVIDENCES.index(StepEvidence.NONE), _STEP_EVIDENCES.index(StepEvidence.NEAREST)
    if not len(profiler):
        return np.full(len(device), MISSING, dtype=np.int64), np.full(len(device), none, dtype=np.int64)
    launched = launches.time_ns != MISSING
    time_ns = np.where(launched, launches.time_ns, device.start_ns)
    step = step_at(profiler, time_ns)
    evidence = np.where(launched, _STEP_EVIDENCES.index(StepEvidence.LAUNCH), _STEP_EVIDENCES.index(StepEvidence.START))
    outside = step == MISSING
    step, evidence = np.where(outside, nearest_step(profiler, time_ns), step), np.where(outside, nearest_flag, evidence)
    cut = _before_all_steps(trace, facts, profiler) | _after_all_steps(facts, profiler)
    step[cut], evidence[cut] = MISSING, _STEP_EVIDENCES.index(StepEvidence.CUT)
    return step, evidence


_OF_STEPS = np.array([PHASES.index(each) for each in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER)])
"""Phases that every training step has, and nothing else."""


def _before_all_steps(trace: TraceEvents, facts: KernelFacts, profiler: ProfilerSteps) -> Bool:
    """What the step before the first mark launched, if something is named as only work of training steps is.

    Without a launch, that is what started before the mark, right behind such work on its stream (the GPU can lag), or
    first on a stream that is otherwise launched: a stream runs in order.
    """
    device, time_ns, begin = trace.device, facts.launches.time_ns, int(profiler.start_ns.min())
    launched = time_ns != MISSING
    if not launched.any() or int(profiler.number[profiler.start_ns.argmin()]) == 0:
        return np.zeros(len(device), dtype=bool)
    before = np.where(launched, time_ns, device.start_ns) < begin
    _, lane = number_groups(device.device, device.stream)
    lanes = int(lane.max(initial=0)) + 1
    first, busy = np.full(lanes, np.iinfo(np.int64).max), np.bincount(lane, weights=before, minlength=lanes) > 0
    np.minimum.at(first, lane[launched & ~before], device.start_ns[launched & ~before])
    bound = np.where(first < np.iinfo(np.int64).max, first, first.min())
    late = np.bincount(lane, weights=~launched & (device.start_ns >= bound[lane]), minlength=lanes) > 0
    before |= ~launched & np.where(busy[lane], device.start_ns < first[lane], ~late[lane])
    names, others = (np.zeros(len(trace.strings), dtype=bool) for _ in range(2))
    of_steps = among(facts.phases.phase, _OF_STEPS)
    names[device.name[~before & of_steps]] = True
    others[device.name[~before & ~of_steps]] = True
    return before if (names & ~others)[device.name[before]].any() else np.zeros(len(device), dtype=bool)


def _after_all_steps(facts: KernelFacts, profiler: ProfilerSteps) -> Bool:
    """What was launched after the last mark, if some of it is work of a training step."""
    time_ns = facts.launches.time_ns
    after = (time_ns != MISSING) & (time_ns >= int(profiler.end_ns.max()))
    return after & bool(among(facts.phases.phase[after], _OF_STEPS).any())


def _categories(facts: KernelFacts) -> Int64:
    keys = [facts.kind, facts.phases.phase, facts.decision_of]
    first, which = number_groups(*keys)
    category = []
    for kind, phase, number in rows_at(first, keys):
        decision = facts.decisions[number] if number >= 0 else None
        found = category_of(
            KINDS[kind],
            PHASES[phase],
            decision.dimension if decision else None,
            decision.candidates if decision else (),
        )
        category.append(_CATEGORIES.index(found))
    return np.array(category, dtype=np.int64)[which]


def _decision_columns(decisions: tuple[DimensionDecision, ...], decision_of: Int64) -> dict[str, object]:
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
    first, which = number_groups(device)
    names = [CPU_DEVICE if number == CPU_DEVICE_NUMBER else f"gpu:{number}" for number in device[first].tolist()]
    return labelled(which, names)


def _layers(codes: Int64, strings: tuple[str, ...]) -> Int64:
    """The numbers that the names of layers end with; MISSING for a name that ends otherwise.

    The profiler numbers the layers of each class from 0, so where there are several classes, layers are numbered in the
    order in which they come.
    """
    first, which = number_groups(codes)
    matches = [_LAYER.search(strings[code]) for code in codes[first].tolist()]
    numbers = np.array([MISSING if match is None else int(match[1]) for match in matches], dtype=np.int64)
    classes = {match.string[: match.start()] for match in matches if match is not None}
    if len(classes) > 1:
        layers = np.flatnonzero(numbers != MISSING)
        numbers[layers[np.argsort(first[layers])]] = np.arange(len(layers))
    return numbers[which]
