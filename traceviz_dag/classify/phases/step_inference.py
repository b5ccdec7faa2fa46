"""Micro-batch steps of a trace without call stacks, from what operators and threads still show.

An autograd node carries the sequence number of the operator that made it, so each backward step names the operators of
its forward step. What the main thread does between two boundaries (autograd work, an exchange between stages) together
with such operators is that forward step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.autograd_links import autograd_nodes
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.operators import exchanges_between_steps, operators_named, outermost_operators
from traceviz_dag.classify.phases.backward_inference import BackwardSteps, find_backward_steps
from traceviz_dag.classify.phases.forward_borders import divided_by_counters, runs_into_each_other
from traceviz_dag.classify.phases.marks import ProfilerSteps, step_at
from traceviz_dag.classify.phases.passes import Expected, OrderedSteps, repeated_numbers, steps_without_forward
from traceviz_dag.classify.phases.schedule_order import BACKWARD, FORWARD, numbers_by_order
from traceviz_dag.classify.phases.step_surroundings import (
    Communications,
    Surroundings,
    around_steps,
    opens_by_zeroing,
)
from traceviz_dag.classify.phases.steps import MicrobatchSteps
from traceviz_dag.classify.phases.training_windows import (
    GRADIENTS_TO_ZERO,
    OPTIMIZER_STEP,
    Edges,
    TrainingWindows,
    busy_at_start,
    cuts_without_steps,
    passes_of_windows,
    stopped_in_a_call,
    training_windows,
)
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.read.host_tree import HostTree
from traceviz_dag.vocabulary import Phase

PLACES = (
    ("forward_of_a_backward_step", Phase.FORWARD),
    ("between_forward_operators", Phase.FORWARD),
    ("first_gradient_of_a_backward_step", Phase.BACKWARD),
    ("zeroed_before_the_first_forward_step", Phase.OTHER),
    ("counted_beside_a_forward_step", Phase.OTHER),
    ("after_the_last_backward_step", Phase.OTHER),
    ("around_the_optimizer", Phase.OPTIMIZER),
    ("reported_after_the_optimizer", Phase.OTHER),
    ("amid_a_forward_only_step", Phase.FORWARD),
    ("after_the_nodes_of_a_backward_step", Phase.BACKWARD),
)
"""Rule and phase of each kind of place on the main thread."""

_FORWARD, _BETWEEN_FORWARD, _FIRST_GRADIENT, _ZEROED, _COUNTED, _FINALISED, _OPTIMIZER, _REPORTED = range(8)
_FORWARD_ONLY, _ENDS_BACKWARD = 8, 9
_MODEL_PARALLEL = "MODEL_PARALLEL_GROUP"
"""In the descriptions of the process groups of Megatron's model parallelism, which every job of it has."""

_NEVER = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """When and where kernels were launched.

    Attributes:
        between_ns: launches of the main thread outside all host rows, ns. graph_ns: those of CUDA graphs, ascending.
        all: of every kernel.
    """

    between_ns: Int64
    graph_ns: Int64
    all: Launches


@dataclass(frozen=True, slots=True)
class InferredSteps:
    """What the inference found.

    Attributes:
        steps: forward and backward steps, by start.
        member: per tree position the index of its step, or NONE.
        place: per tree position an index into PLACES, or NONE.
        between: (place, member) of the launches outside all host rows, in the order of ``LaunchTimes.between_ns``.
    """

    steps: MicrobatchSteps
    member: Int64
    place: Int64
    between: tuple[Int64, Int64]


def infer_steps(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    profiler: ProfilerSteps,
    told: Communications,
    launched: LaunchTimes,
    forward_signs: Bool,
    expected: Expected,
) -> InferredSteps:
    """Find the steps of micro-batches without call stacks.

    Chunks are known from the order of work: where backward steps run in the order of their forward steps there is one
    chunk; otherwise the chunk numbers are those of the one interleaved schedule that gives exactly this order, and
    MISSING where none or several do.

    Where one CUDA graph holds the whole forward-backward pass, only what lies around it is known. Training steps that
    only run forward have no steps of micro-batches: what distinguishes these is the backward pass.

    Args:
        profiler: its marks, which need not begin where training steps do.
        forward_signs: per tree position, whether its own name says that it runs forward.
    """
    marks, training = profiler, training_windows(trace, tree, main, profiler, told.optimizer_ns)
    profiler = training.windows
    nothing = np.full(len(tree), NONE, dtype=np.int64)
    exchanging = exchanges_between_steps(trace, tree, main)
    exchanges = np.sort(tree.start_ns[exchanging])
    backward = find_backward_steps(trace, tree, main, profiler, exchanges)
    made = np.flatnonzero(backward.maker_step != NONE)
    if not len(made):
        graphs = launched.graph_ns
        if not len(graphs):
            place = np.where(_forward_only(trace, tree, main, profiler, told, forward_signs), _FORWARD_ONLY, NONE)
            between = _as_beside(tree, main, place, nothing, launched.between_ns)
            orphans = _orphans(trace, tree, main, backward)
            zeroed, stopped = opens_by_zeroing(trace, tree, main), stopped_in_a_call(trace, tree, main, marks)
            cuts = cuts_without_steps(trace, tree, training, marks, orphans, zeroed, stopped)
            return InferredSteps(replace(_no_steps(), cuts=cuts), nothing, place, between)
        surroundings = around_steps(trace, tree, main, profiler, graphs, graphs + 1, told)
        place = np.where(surroundings.zeroed, _ZEROED, NONE)
        _add_after(tree, main, surroundings, place)
        return InferredSteps(_no_steps(), nothing, place, _between(tree, main, place, nothing, surroundings, launched))
    first, last = _forward_spans(tree, made, backward)
    forward = _forward_of_positions(tree, main, profiler, exchanges, backward, made)
    surroundings = around_steps(trace, tree, main, profiler, first, backward.end_ns, told)

    forward[tree.nearest(exchanging) != NONE] = NONE
    place = np.where(forward != NONE, _FORWARD, NONE)
    if runs_into_each_other(tree, backward, made):
        own = (tree.thread == main) & (tree.nearest(exchanging) == NONE)
        forward = divided_by_counters(trace, tree, main, own, profiler, backward, (first, last), forward)
        place[forward != NONE] = _FORWARD
    apart = surroundings.zeroed | surroundings.unclear
    counted = _counted(trace, tree, main, backward, forward, first, last) & ~apart
    forward[apart | counted] = NONE
    place[apart] = NONE
    place[counted] = _COUNTED
    place[surroundings.zeroed] = _ZEROED
    first_gradient = (backward.of_position != NONE) & (tree.thread == main)
    place[first_gradient] = _FIRST_GRADIENT
    place[(backward.of_position != NONE) & (tree.thread != main)] = _ENDS_BACKWARD
    forward[backward.of_position != NONE] = NONE
    _add_after(tree, main, surroundings, place)
    numbered = _recording(trace, tree, main) & ~apart & (tree.nearest(exchanging) == NONE)
    place[numbered & (place == NONE) & _amid(tree, profiler, made)] = _BETWEEN_FORWARD
    place[(place == NONE) & _forward_only(trace, tree, main, profiler, told, forward_signs)] = _FORWARD_ONLY
    zeroing = np.zeros(len(tree), dtype=bool)
    zeroing[outermost_operators(trace, tree, main)] = True
    zeroing &= surroundings.zeroed & operators_named(trace, tree, *GRADIENTS_TO_ZERO)
    of_step = (forward != NONE) | (backward.of_position != NONE)
    edges = Edges(
        zeroed_ns=tree.start_ns[zeroing],
        zeroed_first=opens_by_zeroing(trace, tree, main),
        orphans_ns=_orphans(trace, tree, main, backward),
        counts=bool(counted.any() or len(exchanges))
        or any(_MODEL_PARALLEL in (group.description or "") for group in trace.header.process_groups),
        busy=busy_at_start(trace, launched.all, lookup(of_step.astype(np.int64), launched.all.position, 0) == 1),
        stopped=stopped_in_a_call(trace, tree, main, marks),
        expected=expected,
    )
    steps, member = _assemble(marks, training, edges, backward, (first, last), forward)
    return InferredSteps(steps, member, place, _between(tree, main, place, member, surroundings, launched))


def _forward_spans(tree: HostTree, made: Int64, backward: BackwardSteps) -> tuple[Int64, Int64]:
    """First start and last end of the operators of each backward step's forward step."""
    first, last = np.full(len(backward), _NEVER.max), np.full(len(backward), _NEVER.min)
    np.minimum.at(first, backward.maker_step[made], tree.start_ns[made])
    np.maximum.at(last, backward.maker_step[made], tree.end_ns[made])
    return first, last


def _forward_of_positions(
    tree: HostTree, main: int, profiler: ProfilerSteps, exchanges: Int64, backward: BackwardSteps, made: Int64
) -> Int64:
    """Per position of the main thread the backward step whose forward step it belongs to, or NONE.

    The operators between two boundaries vote. Where nobody votes, but all forward work between two exchanges is of one
    step, it is that step's as well, up to the last sign of it.
    """
    cuts = np.sort(np.concatenate([exchanges, profiler.start_ns]))
    boundaries = np.sort(np.concatenate([cuts, backward.pauses_ns]))
    segment = np.searchsorted(boundaries, tree.start_ns, side="right")
    winner = _most_votes(segment[made], backward.maker_step[made], len(boundaries) + 1)
    stretch = np.searchsorted(cuts, tree.start_ns, side="right")
    pairs = np.unique(np.stack([stretch[made], backward.maker_step[made]]), axis=1)
    only = np.full(len(cuts) + 1, NONE, dtype=np.int64)
    only[pairs[0]] = pairs[1]
    stretches, votes = np.unique(pairs[0], return_counts=True)
    only[stretches[votes > 1]] = NONE
    reach = np.full(len(cuts) + 1, _NEVER.min)
    np.maximum.at(reach, stretch[made], tree.end_ns[made])
    np.maximum.at(reach, np.searchsorted(cuts, backward.pauses_ns, side="right"), backward.pauses_ns)
    by_segment = winner[segment]
    by_stretch = np.where(tree.start_ns < reach[stretch], only[stretch], NONE)
    return np.where(tree.thread == main, np.where(by_segment != NONE, by_segment, by_stretch), NONE)


def _most_votes(group: Int64, vote: Int64, groups: int) -> Int64:
    """The most frequent vote in each group; NONE in a group without votes."""
    pairs, counts = np.unique(np.stack([group, vote]), axis=1, return_counts=True)
    order = np.argsort(counts, kind="stable")
    winner = np.full(groups, NONE, dtype=np.int64)
    winner[pairs[0][order]] = pairs[1][order]
    return winner


def _counted(
    trace: TraceEvents, tree: HostTree, main: int, backward: BackwardSteps, forward: Int64, first: Int64, last: Int64
) -> Bool:
    """Where the schedule adds a micro-batch's tokens to its counter: one ``add_`` in no other operator, before or after
    all operators of a forward step that autograd knows. Several in a row are the model's own."""
    outermost = outermost_operators(trace, tree, main)
    adds = operators_named(trace, tree, "aten::add_")[outermost]
    added = outermost[adds & ~np.append(False, adds[:-1]) & ~np.append(adds[1:], False)]
    added = added[backward.maker_step[added] == NONE]
    before = tree.start_ns[added] < lookup(first, forward[added], _NEVER.max)
    after = tree.start_ns[added] >= lookup(last, forward[added], _NEVER.min)
    counts = np.zeros(len(tree), dtype=bool)
    counts[added[(before | after) & (tree.start_ns[added] < backward.end_ns.max())]] = True
    return (tree.nearest(counts) != NONE) & (tree.thread == main)


def _recording(trace: TraceEvents, tree: HostTree, main: int) -> Bool:
    """What lies in an operator that read autograd's counter: the main thread does so in forward steps and around the
    schedule, never on behalf of a backward step."""
    outermost = outermost_operators(trace, tree, main)
    records = np.zeros(len(tree), dtype=bool)
    records[outermost[trace.host.sequence_number[tree.rows[outermost]] >= 0]] = True
    return (tree.nearest(records) != NONE) & (tree.thread == main)


def _amid(tree: HostTree, profiler: ProfilerSteps, made: Int64) -> Bool:
    """Whether a position lies between the first and the last forward operator of its training step."""
    step, of_made = step_at(profiler, tree.start_ns), step_at(profiler, tree.start_ns[made])
    numbers, which = np.unique(of_made, return_inverse=True)
    first, last = np.full(len(numbers), _NEVER.max), np.full(len(numbers), _NEVER.min)
    np.minimum.at(first, which, tree.start_ns[made])
    np.maximum.at(last, which, tree.end_ns[made])
    at = np.clip(np.searchsorted(numbers, step), 0, len(numbers) - 1)
    return (numbers[at] == step) & (tree.start_ns >= first[at]) & (tree.start_ns < last[at])


def _forward_only(
    trace: TraceEvents, tree: HostTree, main: int, profiler: ProfilerSteps, told: Communications, signs: Bool
) -> Bool:
    """What the main thread runs from the first to the last forward operator of a training step that runs no backward
    pass and no optimizer: an evaluation, or a forward pass alone.

    Forward operators are those whose name says so, and those that read autograd's counter: with nothing else in such a
    step, it counts nodes of the forward pass. The counter alone is enough in a trace that records backward passes.
    """
    own = tree.thread == main
    numbered = own & (trace.host.sequence_number[tree.rows] >= 0)
    forward = own & signs
    node = autograd_nodes(trace, tree).node
    optimizing = np.array([name.startswith(OPTIMIZER_STEP) for name in trace.strings], dtype=bool)
    others = np.concatenate([tree.start_ns[node | optimizing[trace.host.name[tree.rows]]], told.optimizer_ns])
    step, step_of_others = step_at(profiler, tree.start_ns), step_at(profiler, others)
    amid = np.zeros(len(tree), dtype=bool)
    told_by = forward | numbered if node.any() else forward
    for number in np.setdiff1d(step[told_by], step_of_others).tolist():
        if number == MISSING and len(profiler):
            continue
        inside = np.flatnonzero(own & (step == number))
        counted = inside[forward[inside] | numbered[inside] | _recording(trace, tree, main)[inside]]
        first, last = int(tree.start_ns[counted].min()), int(tree.end_ns[counted].max())
        amid[inside[(tree.start_ns[inside] >= first) & (tree.end_ns[inside] <= last)]] = True
    return amid


def _add_after(tree: HostTree, main: int, surroundings: Surroundings, place: Int64) -> None:
    for mask, kind in _after(surroundings, tree.start_ns, tree.end_ns):
        place[mask & (tree.thread == main) & (place == NONE)] = kind


def _after(surroundings: Surroundings, start_ns: Int64, end_ns: Int64) -> list[tuple[Bool, int]]:
    """What lies after a training step's last backward step; later kinds come first."""
    return [
        (surroundings.reported(start_ns), _REPORTED),
        (surroundings.optimized(end_ns), _OPTIMIZER),
        (surroundings.finalised(start_ns), _FINALISED),
    ]


def _orphans(trace: TraceEvents, tree: HostTree, main: int, backward: BackwardSteps) -> Int64:
    """Starts of the backward steps whose forward step the trace does not hold."""
    step = np.where(tree.thread == main, NONE, backward.of_position)
    return backward.start_ns[steps_without_forward(trace, tree, autograd_nodes(trace, tree), step, len(backward))]


def _assemble(
    marks: ProfilerSteps,
    training: TrainingWindows,
    edges: Edges,
    backward: BackwardSteps,
    spans: tuple[Int64, Int64],
    forward: Int64,
) -> tuple[MicrobatchSteps, Int64]:
    """The steps by start, and the step of each position."""
    used = np.flatnonzero(spans[0] < _NEVER.max)
    direction = np.repeat([FORWARD, BACKWARD], [len(used), len(used)])
    number = np.concatenate([used, used])
    start = np.concatenate([spans[0][used], backward.start_ns[used]])
    end = np.concatenate([spans[1][used], backward.end_ns[used]])
    order = np.lexsort((direction, start))
    direction, number, start, end = direction[order], number[order], start[order], end[order]
    index_of = np.full((2, len(backward)), NONE, dtype=np.int64)
    index_of[direction, number] = np.arange(len(order))
    member = np.maximum(lookup(index_of[FORWARD], forward), lookup(index_of[BACKWARD], backward.of_position))

    window = step_at(training.windows, start)
    source = np.where(direction == BACKWARD, index_of[FORWARD, number], NONE)
    passes = passes_of_windows(training, marks, OrderedSteps(number, direction, source, start, end), window, edges)
    chunk, microbatch = numbers_by_order(window, direction, source)
    chunk[~passes.counted], microbatch[~passes.counted] = MISSING, MISSING
    step = step_at(marks, start)
    microbatch[repeated_numbers(step, direction, chunk, microbatch, window)] = MISSING
    first_position = np.full(len(order), NONE, dtype=np.int64)
    members = np.flatnonzero(member != NONE)
    first_position[member[members[::-1]]] = members[::-1]
    return MicrobatchSteps(first_position, direction, step, chunk, microbatch, start, end, passes.cuts), member


def _between(
    tree: HostTree, main: int, place: Int64, member: Int64, surroundings: Surroundings, launched: LaunchTimes
) -> tuple[Int64, Int64]:
    """(place, member) of moments between host rows: what the rows before and after agree on, else what follows from
    the time alone."""
    times_ns = launched.between_ns
    found, of_step = _as_beside(tree, main, place, member, times_ns)
    for mask, kind in _after(surroundings, times_ns, times_ns):
        found[mask & (found == NONE)] = kind
    return found, of_step


def _as_beside(tree: HostTree, main: int, place: Int64, member: Int64, times_ns: Int64) -> tuple[Int64, Int64]:
    """(place, member) of moments between host rows, where the rows before and after agree."""
    rows = np.flatnonzero((tree.thread == main) & (tree.parent == NONE))
    found, of_step = np.full(len(times_ns), NONE, dtype=np.int64), np.full(len(times_ns), NONE, dtype=np.int64)
    if len(rows):
        after = np.searchsorted(tree.start_ns[rows], times_ns, side="right")
        inner = (after > 0) & (after < len(rows))
        left, right = rows[np.clip(after - 1, 0, None)], rows[np.clip(after, 0, len(rows) - 1)]
        agree = inner & (place[left] == place[right]) & (member[left] == member[right])
        found[agree], of_step[agree] = place[left[agree]], member[left[agree]]
    return found, of_step


def _no_steps() -> MicrobatchSteps:
    nothing = np.array([], dtype=np.int64)
    return MicrobatchSteps(nothing, nothing, nothing, nothing, nothing, nothing, nothing)
