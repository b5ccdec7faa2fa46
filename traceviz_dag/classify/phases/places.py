"""Which phase and which micro-batch each place in the call stacks belongs to, and which rule says so."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, among, distinct, lookup
from traceviz_dag.classify.autograd_links import AutogradNodes, autograd_nodes
from traceviz_dag.classify.launches import Launches, main_thread
from traceviz_dag.classify.operators import inside_operators, operators_named
from traceviz_dag.classify.phases.marks import ProfilerSteps
from traceviz_dag.classify.phases.passes import Expected
from traceviz_dag.classify.phases.schedule_order import BACKWARD, FORWARD
from traceviz_dag.classify.phases.step_inference import PLACES, LaunchTimes, infer_steps
from traceviz_dag.classify.phases.step_surroundings import Communications
from traceviz_dag.classify.phases.steps import MicrobatchSteps, OpeningFrames, microbatch_steps
from traceviz_dag.classify.rules import OPENS, Rules
from traceviz_dag.read.events import CPU_OP, MISSING, PYTHON_FUNCTION, USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree
from traceviz_dag.vocabulary import Evidence, Phase

PHASES = tuple(Phase)
UNKNOWN_PHASE = PHASES.index(Phase.UNKNOWN)
OTHER_PHASE = PHASES.index(Phase.OTHER)
_SIDES = np.array(
    [{Phase.FORWARD: FORWARD, Phase.BACKWARD: BACKWARD, Phase.RECOMPUTE: BACKWARD}.get(phase, NONE) for phase in PHASES]
)
_OUTSIDE = "outside_microbatch_steps"
EVIDENCES = tuple(Evidence)
_LAYER = re.compile(r"nn\.Module: (?:\w*Transformer|Mamba|MLP)Layer_")
"""Layers of Megatron-core's models; hybrid ones mix them."""
_FURTHER_TOKENS = "nn.Module: MultiTokenPrediction"
_DISCARDING, _RECOMPUTED = "CheckpointWithoutOutputFunction", "checkpoint_recompute"


@dataclass(frozen=True, slots=True)
class Places:
    """What each tree position says of the launches made there.

    Attributes:
        phase: index into PHASES.
        phase_rule: index into ``rule_names``.
        phase_evidence: index into EVIDENCES.
        dimension_rule: nearest frame rule that speaks of communication, or NONE.
        member: index into ``steps``, or NONE.
        named_forward: whether a row's own name says that it runs forward, wherever no other says more.
        module, layer, operator: position of the innermost module, layer of the model and CPU operator, or NONE.
        graph: the nodes of the autograd graph.
        rule_names: names of the rules, then what lies outside all micro-batch steps, then the PLACES inferred without
            call stacks.
    """

    phase: Int64
    phase_rule: Int64
    phase_evidence: Int64
    dimension_rule: Int64
    member: Int64
    module: Int64
    layer: Int64
    operator: Int64
    graph: AutogradNodes
    named_forward: Bool
    steps: MicrobatchSteps
    rule_names: tuple[str, ...]


def read_places(
    trace: TraceEvents, tree: HostTree, rules: Rules, profiler: ProfilerSteps, gaps: Int64, needed: int | None
) -> Places:
    """Apply the frame rules to the call tree.

    The nearest frame that names a phase decides it; a weak frame only where no other does. In a trace of Megatron's
    schedules, what lies in no such frame but on the training thread is outside the micro-batches' steps: other.

    Args:
        gaps: when rows of the host were lost, as ``lost_host_rows`` has them.
        needed: how many micro-batches a training step has; None where nothing states it.
    """
    rule = _rule_of_rows(trace, tree, rules)
    rule[_outranked(tree, rules, rule)] = NONE
    has_rule = rule >= 0
    phase_of_rule = np.array(
        [NONE if frame.phase is None else PHASES.index(frame.phase) for frame in rules.frames] + [NONE]
    )
    weak_rule = np.array([frame.weak for frame in rules.frames] + [False])
    opens = np.array([OPENS.index(frame.opens) if frame.opens else NONE for frame in rules.frames] + [NONE])

    names_phase = has_rule & (phase_of_rule[rule] >= 0)
    strong = tree.nearest(names_phase & ~weak_rule[rule])
    weak = tree.nearest(names_phase & weak_rule[rule])
    decider = np.where(strong >= 0, strong, weak)
    phase = np.where(decider >= 0, phase_of_rule[lookup(rule, decider)], UNKNOWN_PHASE)
    evidence = _evidence(trace, tree, decider)
    phase_rule = lookup(rule, decider)

    opened = opens[rule]
    opening = OpeningFrames(*(np.flatnonzero(opened == OPENS.index(kind)) for kind in OPENS))
    optimizer = np.flatnonzero(names_phase & (phase_of_rule[rule] == PHASES.index(Phase.OPTIMIZER)))
    expected = Expected(gaps, needed, optimizer, trace.report.breaks_off)
    graph = autograd_nodes(trace, tree)
    steps, member = microbatch_steps(trace, tree, graph, opening, _SIDES[phase], profiler, expected)
    if len(steps):
        outside = (decider == NONE) & among(tree.thread, distinct(tree.thread[steps.position]))
        phase = np.where(outside, OTHER_PHASE, phase)
        evidence = np.where(outside, EVIDENCES.index(Evidence.CALL_STACK), evidence)
        phase_rule = np.where(outside, len(rules.frames), phase_rule)

    phase, phase_rule = _with_recomputed_outputs(trace, tree, graph, rules, phase, phase_rule)
    is_module = np.array([name.startswith("nn.Module: ") for name in trace.strings], dtype=bool)
    names = trace.host.name[tree.rows]
    operators = trace.host.category[tree.rows] == CPU_OP
    return Places(
        phase=phase,
        phase_rule=phase_rule,
        phase_evidence=evidence,
        dimension_rule=_dimension_rules(tree, rules, rule),
        member=member,
        module=tree.nearest(is_module.take(names)),
        layer=_layers_around(trace, tree, is_module),
        operator=tree.nearest(operators),
        graph=graph,
        named_forward=names_phase & weak_rule[rule] & (phase_of_rule[rule] == PHASES.index(Phase.FORWARD)) & operators,
        steps=steps,
        rule_names=(*(frame.name for frame in rules.frames), _OUTSIDE, *(name for name, _ in PLACES)),
    )


def _layers_around(trace: TraceEvents, tree: HostTree, is_module: Bool) -> Int64:
    """Position of the innermost of the model's layers, or NONE: what predicts further tokens has a layer of its own."""
    is_layer, predicts = np.zeros((2, len(is_module)), dtype=bool)
    for code in np.flatnonzero(is_module).tolist():
        is_layer[code] = _LAYER.match(trace.strings[code]) is not None
        predicts[code] = trace.strings[code].startswith(_FURTHER_TOKENS)
    names = trace.host.name[tree.rows]
    layer = tree.nearest(is_layer.take(names))
    return np.where(tree.nearest(predicts[names]) == NONE, layer, NONE) if predicts.any() else layer


@dataclass(frozen=True, slots=True)
class LaunchesBetweenRows:
    """Phase (index into PHASES), rule (into ``Places.rule_names``) and step of kernels that the main thread launched
    while no host row was open; UNKNOWN_PHASE and NONE for all others and where nothing shows."""

    phase: Int64
    rule: Int64
    member: Int64


def infer_places(
    trace: TraceEvents,
    tree: HostTree,
    places: Places,
    profiler: ProfilerSteps,
    told: Communications,
    launches: Launches,
    gaps: Int64,
    needed: int | None,
) -> tuple[Places, LaunchesBetweenRows]:
    """Fill in what call stacks would have said, in a trace without them; rules that spoke keep their word.

    Args:
        told: launches that distinguish finalisation and the optimizer.
        gaps, needed: as in ``read_places``.
    """
    main = main_thread(trace)
    rowless = np.flatnonzero((launches.position == NONE) & (launches.thread == main) & (launches.time_ns != MISSING))
    of_graphs = np.unique(launches.time_ns[rowless][trace.device.graph_id[rowless] != MISSING])
    launched = LaunchTimes(launches.time_ns[rowless], of_graphs, launches)
    expected = Expected(gaps, needed, np.array([], dtype=np.int64))
    inferred = infer_steps(trace, tree, main, profiler, told, launched, places.named_forward, expected)
    open_ = (places.phase_evidence == EVIDENCES.index(Evidence.NONE)) & (inferred.place != NONE)
    first_rule = places.rule_names.index(PLACES[0][0])
    phase_of_place = np.array([PHASES.index(phase) for _, phase in PLACES] + [UNKNOWN_PHASE])
    filled = replace(
        places,
        phase=np.where(open_, phase_of_place[inferred.place], places.phase),
        phase_evidence=np.where(open_, EVIDENCES.index(Evidence.STEP_WINDOW), places.phase_evidence),
        phase_rule=np.where(open_, first_rule + inferred.place, places.phase_rule),
        member=inferred.member,
        steps=inferred.steps,
    )
    place, member = np.full((2, len(launches.row)), NONE, dtype=np.int64)
    place[rowless], member[rowless] = inferred.between
    rule = np.where(place != NONE, first_rule + place, NONE)
    return filled, LaunchesBetweenRows(phase_of_place[place], rule, member)


def _rule_of_rows(trace: TraceEvents, tree: HostTree, rules: Rules) -> Int64:
    """Index of the frame rule that matches each position's name and kind, or NONE; each distinct name is tried once."""
    host, count = trace.host, len(trace.strings)
    group = 2 * host.category[tree.rows].astype(np.int64) + inside_operators(trace, tree)
    key = group * count + host.name[tree.rows]
    used = distinct(key)
    by_key = np.full(int(key.max(initial=0)) + 1, NONE, dtype=np.int64)
    for kind in (CPU_OP, PYTHON_FUNCTION, USER_ANNOTATION):
        for outermost in (True, False):
            mine = used[used // count == 2 * kind + (not outermost)]
            names = [trace.strings[code] for code in (mine % count).tolist()]
            by_key[mine] = rules.match_frames(names, kind, outermost=outermost)
    return by_key[key]


def _outranked(tree: HostTree, rules: Rules, rule: Int64) -> Bool:
    """Positions whose rule says nothing, because they lie below a frame whose rule outranks it."""
    names = {frame.name: index for index, frame in enumerate(rules.frames)}
    found = np.zeros(len(tree), dtype=bool)
    for index, frame in enumerate(rules.frames):
        outranked = [names[name] for name in frame.outranks if name in names]
        if outranked and (rule == index).any():
            found |= among(rule, np.array(outranked)) & (tree.nearest(rule == index) != NONE)
    return found


def _dimension_rules(tree: HostTree, rules: Rules, rule: Int64) -> Int64:
    """Per position the nearest frame rule that speaks of communication; one that only names a choice gives way to a
    frame further out that knows."""
    tells = np.array([frame.tells_dimension for frame in rules.frames] + [False])[rule]
    choice = np.array([frame.only_among for frame in rules.frames] + [False])[rule]
    certain = tree.nearest(tells & ~choice)
    return lookup(rule, np.where(certain != NONE, certain, tree.nearest(tells)))


def _with_recomputed_outputs(
    trace: TraceEvents, tree: HostTree, graph: AutogradNodes, rules: Rules, phase: Int64, phase_rule: Int64
) -> tuple[Int64, Int64]:
    """Find output-discarding recomputation without call stacks.

    It runs in a hook of a gradient: inside the engine's frame of a node, but beside the node itself. There it repeats
    operators that ran inside ``CheckpointWithoutOutputFunction``; the engine's own sums of gradients are none of these.
    """
    discards = operators_named(trace, tree, _DISCARDING) & (trace.host.sequence_number[tree.rows] >= 0)
    if not discards.any():
        return phase, phase_rule
    parent, name = tree.parent, trace.host.name[tree.rows]
    operator = operators_named(trace, tree, "")
    discarded = np.zeros(len(trace.strings), dtype=bool)
    discarded[name[operator & (lookup(discards.astype(np.int64), parent, 0) == 1)]] = True
    repeats = operator & discarded[name] & (lookup(graph.node.astype(np.int64), parent, 0) == 1)
    again = tree.nearest(repeats)
    found = (again != NONE) & (lookup(graph.around, again) == graph.around)
    rule = next((index for index, frame in enumerate(rules.frames) if frame.name == _RECOMPUTED), NONE)
    return np.where(found, PHASES.index(Phase.RECOMPUTE), phase), np.where(found, rule, phase_rule)


def _evidence(trace: TraceEvents, tree: HostTree, decider: Int64) -> Int64:
    """Own thread's stack, an annotation, or (from another thread) the window of the main thread's step."""
    decided = decider >= 0
    at = np.where(decided, decider, 0)
    evidence = np.full(len(tree), EVIDENCES.index(Evidence.NONE), dtype=np.int64)
    if not len(tree):
        return evidence
    annotated = trace.host.category[tree.rows[at]] == USER_ANNOTATION
    elsewhere = tree.thread[at] != tree.thread
    found: Bool = decided
    evidence[found] = EVIDENCES.index(Evidence.CALL_STACK)
    evidence[found & annotated] = EVIDENCES.index(Evidence.ANNOTATION)
    evidence[found & elsewhere] = EVIDENCES.index(Evidence.STEP_WINDOW)
    return evidence
