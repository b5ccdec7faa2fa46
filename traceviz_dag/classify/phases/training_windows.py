"""Where training steps lie in a trace without call stacks, whatever its ``ProfilerStep`` marks say.

The optimizer ends a training step. Where a mark holds autograd work on both sides of it, or one mark the forward and
another the backward pass of a micro-batch, the marks are shifted, and the optimizer alone divides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import Bool, Int64
from traceviz_dag.classify.autograd_links import autograd_nodes, makers_of_nodes
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.operators import operators_named, outermost_operators
from traceviz_dag.classify.phases.marks import PROFILER_STEP, ProfilerSteps, step_at
from traceviz_dag.classify.phases.passes import (
    SEVERAL,
    STARTS_AMID,
    STOPS_AMID,
    Expected,
    OrderedSteps,
    Passes,
    cut_by_gaps,
    cut_by_number,
)
from traceviz_dag.classify.phases.schedule_order import FORWARD
from traceviz_dag.read.events import CPU_OP, MISSING, USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree

OPTIMIZER_STEP = "Optimizer.step#"
"""How the annotation of an optimizer's step begins."""

GRADIENTS_TO_ZERO = ("aten::zero_", "aten::_foreach_zero_")
"""Operators that set what is there to zero, as gradients are before a training step; others make new tensors."""

BEGINS_UNSEEN = "nothing shows where it begins"
ENDS_UNSEEN = "nothing shows where it ends"

_NEVER = np.iinfo(np.int64)

_ROUNDED_NS = 2
"""By so much the ends of rows can differ that end at the same moment, as starts and durations are rounded."""


@dataclass(frozen=True, slots=True)
class TrainingWindows:
    """Training steps on the host.

    Attributes:
        windows: as marks, with numbers of their own where ``shifted``.
        optimizer_ns: starts of what only an optimizer does, ascending.
        shifted: the marks do not hold training steps.
    """

    windows: ProfilerSteps
    optimizer_ns: Int64
    shifted: bool


def training_windows(
    trace: TraceEvents, tree: HostTree, main: int, profiler: ProfilerSteps, optimizer_ns: Int64
) -> TrainingWindows:
    """Find them.

    Args:
        optimizer_ns: when kernels were launched that only an optimizer runs.
    """
    named = np.array([name.startswith(OPTIMIZER_STEP) for name in trace.strings], dtype=bool)
    annotated = (trace.host.category == USER_ANNOTATION) & named[trace.host.name]
    starts = trace.host.start_ns[annotated]
    signs = np.sort(np.concatenate([starts, starts + trace.host.duration_ns[annotated], optimizer_ns]))
    node, outermost, _ = autograd_nodes(trace, tree)
    outermost &= tree.thread != main
    nodes, makers = makers_of_nodes(trace, tree, outermost, ~node & (tree.thread == main))
    crossing = step_at(profiler, tree.start_ns[nodes]) != step_at(profiler, tree.start_ns[makers])
    backward = np.sort(tree.start_ns[outermost])
    if not crossing.any() and not _amid(profiler, backward, signs):
        return TrainingWindows(profiler, signs, shifted=False)
    # A training step has several optimizers where experts have their own: no autograd work lies between them.
    following = np.searchsorted(backward, signs)
    last = np.append(following[1:] != following[:-1], True)[: len(signs)]
    borders = _begins(trace, tree, main, signs[last & (following > 0)], tree.start_ns[makers])
    first, end = int(trace.host.start_ns.min()), int(tree.end_ns.max()) + 1
    edges = np.concatenate([[first], borders[borders > first], [max(end, first + 1)]])
    numbers = np.arange(len(edges) - 1, dtype=np.int64)
    return TrainingWindows(ProfilerSteps(numbers, edges[:-1], edges[1:]), signs, shifted=True)


def _begins(trace: TraceEvents, tree: HostTree, main: int, optimized_ns: Int64, forward_ns: Int64) -> Int64:
    """Where the next training step begins after the last sign of each optimizer: where gradients are set to zero before
    its first forward work, so that what reports the loss is left to the step before; else right after the optimizer."""
    outermost = outermost_operators(trace, tree, main)
    zeroed = tree.start_ns[outermost[operators_named(trace, tree, *GRADIENTS_TO_ZERO)[outermost]]]
    zeroed, forward = (np.append(np.sort(times), _NEVER.max) for times in (zeroed, forward_ns))
    begins = zeroed[np.searchsorted(zeroed, optimized_ns, side="right")]
    before = begins < forward[np.searchsorted(forward, optimized_ns, side="right")]
    return np.where(before, begins, optimized_ns + 1)


def _amid(profiler: ProfilerSteps, backward_ns: Int64, optimizer_ns: Int64) -> bool:
    """Whether an optimizer precedes all autograd work of one mark, or lies between it and no optimizer follows."""
    marks = list(zip(profiler.start_ns.tolist(), profiler.end_ns.tolist(), strict=True)) or [(_NEVER.min, _NEVER.max)]
    for start, end in marks:
        nodes = backward_ns[(backward_ns >= start) & (backward_ns < end)]
        signs = optimizer_ns[(optimizer_ns >= start) & (optimizer_ns < end)]
        if len(nodes) and len(signs) and (signs[0] < nodes[0] or signs[-1] < nodes[-1]):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Edges:
    """What a trace without call stacks shows of where its training steps begin and end.

    Attributes:
        zeroed_ns: when gradients were set to zero before a window's first forward step. zeroed_first: the trace begins
            with that, though its first mark may not. orphans_ns: backward steps whose forward step is not in the trace.
        counts: whether the job adds up the tokens of micro-batches, sends to other stages between them, or has process
            groups of model parallelism.
        busy: whether the GPU was running kernels of forward and backward steps as the profiler started.
        stopped: numbers of marks in which the main thread was still in a call as the profiler stopped.
    """

    zeroed_ns: Int64
    zeroed_first: bool
    orphans_ns: Int64
    counts: bool
    busy: bool
    stopped: tuple[int, ...]
    expected: Expected


def passes_of_windows(
    found: TrainingWindows, profiler: ProfilerSteps, steps: OrderedSteps, window: Int64, edges: Edges
) -> Passes:
    """The passes of steps that the order of work shows: a window each.

    Numbers are counted where the window is recorded from its beginning to its end and no rows of the host are lost in
    it, since without call stacks the order of all its steps shows chunks. Training that knows no micro-batches needs
    less: it does not always zero gradients first, and its GPU can lag behind its host by a step.

    Args:
        window: of each step the number of its training window, or MISSING.
    """
    mark = step_at(profiler, steps.start_ns)
    counted = np.zeros(len(window), dtype=bool)
    cuts: dict[tuple[int, str], None] = {}
    order = sorted(np.unique(window).tolist(), key=lambda number: int(steps.start_ns[window == number].min()))
    forward = window[steps.direction == FORWARD].tolist()
    one_each = len(set(forward)) == len(forward)
    # The last of several that an optimizer follows is whole: it shows how many micro-batches a training step has.
    whole = len(order) > 1 and bool((found.optimizer_ns >= int(steps.end_ns[window == order[-1]].max())).any())
    single = one_each and (whole or (len(order) == 1 and not edges.counts))
    for place, number in enumerate(order):
        mine = window == number
        marks = list(dict.fromkeys(mark[mine].tolist()))
        first, last = int(steps.start_ns[mine].min()), int(steps.end_ns[mine].max())
        orphans = edges.orphans_ns[step_at(found.windows, edges.orphans_ns) == number]
        before = place > 0 or bool((found.optimizer_ns < first).any())
        zeroed = bool((step_at(found.windows, edges.zeroed_ns[edges.zeroed_ns < first]) == number).any())
        begun = before or zeroed or edges.zeroed_first or (single and (whole or not edges.busy))
        after = place + 1 < len(order) or bool((found.optimizer_ns >= last).any())
        if len(orphans) or not begun:
            cuts[(marks[0], STARTS_AMID if len(orphans) or edges.busy else BEGINS_UNSEEN)] = None
        if not (after or single):
            cuts[(marks[-1], ENDS_UNSEEN)] = None
        if len(marks) > 1 or (found.shifted and len(set(window[np.isin(mark, marks)].tolist())) > 1):
            cuts |= {(each, SEVERAL): None for each in marks}
        counted[mine] = begun and (after or single) and not len(orphans)
    for start, end in edges.expected.gaps.tolist():
        held = np.unique(np.concatenate([step_at(found.windows, np.array([start, end])), [MISSING]]))
        counted &= ~np.isin(window, held if len(found.windows) else window)
    for number in np.unique(mark[mark != MISSING]).tolist():
        earlier = found.optimizer_ns[found.optimizer_ns < int(steps.start_ns[mark == number].min())]
        if (step_at(profiler, earlier) == number).any():
            cuts[(number, SEVERAL)] = None
    cuts |= {(number, STOPS_AMID): None for number in edges.stopped}
    cuts |= {(number, STARTS_AMID): None for number in step_at(profiler, edges.orphans_ns).tolist()}
    cuts |= dict.fromkeys(cut_by_gaps(edges.expected.gaps, steps, mark, profiler))
    few = dict(dict(cut_by_number(edges.expected.microbatches, steps, window, mark)).values())
    counted &= ~np.isin(mark, list(few))
    return Passes(window, counted, (*cuts, *few.items()))


def cuts_without_steps(
    trace: TraceEvents,
    tree: HostTree,
    found: TrainingWindows,
    profiler: ProfilerSteps,
    orphans_ns: Int64,
    zeroed: bool,
    stopped: tuple[int, ...],
) -> tuple[tuple[int, str], ...]:
    """What ``Passes`` calls cuts, of a trace in which no forward step has a backward step: there is an optimizer, a
    backward pass without its forward pass or one still to come, although operators are recorded and no graph runs.

    Args:
        zeroed: whether the trace begins with setting gradients to zero, which only training does.
        stopped: as ``Edges`` has it.
    """
    node = autograd_nodes(trace, tree).node
    if not (trace.host.category[tree.rows] == CPU_OP).any() or (trace.device.graph_node_id != MISSING).any():
        return ()
    late = np.concatenate([orphans_ns, found.optimizer_ns if not node.any() else orphans_ns])
    cuts = [(number, STARTS_AMID) for number in np.unique(step_at(profiler, late)).tolist()]
    if zeroed and not node.any() and not len(found.optimizer_ns):
        cuts.append((int(profiler.number[profiler.start_ns.argmin()]) if len(profiler) else MISSING, STOPS_AMID))
    return (*cuts, *((number, STOPS_AMID) for number in stopped))


def stopped_in_a_call(trace: TraceEvents, tree: HostTree, main: int, profiler: ProfilerSteps) -> tuple[int, ...]:
    """The mark that was open as the profiler stopped, if a row of the main thread was open, too: both end there, where
    a mark that its own loop closes outlasts the calls in it."""
    if not len(profiler):
        return ()
    last = int(profiler.end_ns.argmax())
    is_mark = np.array([PROFILER_STEP.match(name) is not None for name in trace.strings], dtype=bool)
    mine = (tree.thread == main) & ~is_mark[trace.host.name[tree.rows]] & (tree.start_ns > profiler.start_ns[last])
    together = np.abs(tree.end_ns[mine] - profiler.end_ns[last]) <= _ROUNDED_NS
    return (int(profiler.number[last]),) if together.any() else ()


def busy_at_start(trace: TraceEvents, launches: Launches, in_steps: Bool) -> bool:
    """Whether a stream first runs kernels without a launch whose names forward and backward steps launch as well.

    Args:
        in_steps: per device row, whether a step of a micro-batch launched it.
    """
    device = trace.device
    known = launches.time_ns != MISSING
    if known.all() or not known.any():
        return False
    names = np.zeros(len(trace.strings), dtype=bool)
    names[device.name[in_steps]] = True
    others = np.zeros(len(trace.strings), dtype=bool)
    others[device.name[known & ~in_steps]] = True
    first = int(device.start_ns[known].min())
    early = ~known & (device.start_ns < first)
    return bool((names & ~others)[device.name[early]].any())
