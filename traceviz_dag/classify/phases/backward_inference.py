"""Backward steps of a trace without call stacks: autograd work, cut where the main thread moves on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.autograd_links import autograd_nodes, makers_of_nodes
from traceviz_dag.classify.operators import operators_named, outermost_operators
from traceviz_dag.classify.phases.marks import ProfilerSteps, step_at
from traceviz_dag.read.events import TraceEvents
from traceviz_dag.read.host_tree import HostTree

_NOTHING = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class BackwardSteps:
    """Backward steps in the order in which they ran.

    Attributes:
        start_ns, end_ns: of each step's first and last autograd node.
        of_position: tree position → the step that it belongs to, or NONE.
        maker_step: tree position → the step that runs the node which this operator made, or NONE.
        pauses_ns: when the main thread began to wait for autograd work, ascending; more than one per step where forward
            work runs in between.
    """

    start_ns: Int64
    end_ns: Int64
    of_position: Int64
    maker_step: Int64
    pauses_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def find_backward_steps(
    trace: TraceEvents, tree: HostTree, main: int, profiler: ProfilerSteps, exchanges_ns: Int64
) -> BackwardSteps:
    """Find the backward steps.

    The main thread waits while the autograd thread works, so stretches of autograd work that no row of the main thread
    interrupts lie in one backward step. Under combined 1F1B one step has many stretches: those that follow each other
    and go on, by sequence number, to ever older operators of one forward step. Overlapped exchanges between stages can
    lie among them.

    Args:
        main: the thread that runs the training loop.
        exchanges_ns: when stages exchanged messages, ascending.
    """
    node, outermost, _ = autograd_nodes(trace, tree)
    roots = np.flatnonzero(outermost & (tree.thread != main))
    roots = roots[np.argsort(tree.start_ns[roots], kind="stable")]
    stretch = _stretches(trace, tree, main, roots)
    count = int(stretch[-1]) + 1 if len(stretch) else 0
    start, end = _spans(tree, roots, stretch, count)
    stretch_of = np.full(len(tree), NONE, dtype=np.int64)
    stretch_of[roots] = stretch

    nodes, makers = makers_of_nodes(trace, tree, stretch_of != NONE, ~node & (tree.thread == main))
    earlier = tree.start_ns[makers] < tree.start_ns[nodes]
    nodes, makers = nodes[earlier], makers[earlier]
    links = _Links(trace.host.sequence_number[tree.rows[makers]], stretch_of[nodes], count)
    gradients, begins = _first_gradients(trace, tree, main, start)
    step = _merged(links, begins, np.searchsorted(exchanges_ns, start), step_at(profiler, start))

    marked = np.zeros(len(tree), dtype=bool)
    marked[roots] = True
    on_thread = np.where(lookup(tree.thread.astype(np.int64), tree.parent) == tree.thread, tree.parent, NONE)
    of_position = lookup(step, lookup(stretch_of, replace(tree, parent=on_thread).nearest(marked)))
    _add_first_gradients(tree, main, gradients, step[begins], of_position)
    end = _with_callbacks(trace, tree, main, roots, stretch, step, of_position, end)
    maker_step = np.full(len(tree), NONE, dtype=np.int64)
    maker_step[makers] = step[stretch_of[nodes]]
    steps = int(step.max()) + 1 if count else 0
    step_start, step_end = np.full(steps, _NOTHING.max), np.full(steps, _NOTHING.min)
    np.minimum.at(step_start, step, start)
    np.maximum.at(step_end, step, end)
    return BackwardSteps(step_start, step_end, of_position, maker_step, start)


def _stretches(trace: TraceEvents, tree: HostTree, main: int, roots: Int64) -> Int64:
    """Ordinal of the uninterrupted stretch of autograd work that each root lies in; roots are by start."""
    host = trace.host
    is_step = np.array([name.startswith("ProfilerStep#") for name in trace.strings], dtype=bool)
    interrupting = np.sort(host.start_ns[(host.thread == main) & ~is_step[host.name]])
    before = np.searchsorted(interrupting, tree.start_ns[roots])
    first = np.append(True, np.diff(before) != 0)[: len(roots)]
    return (np.cumsum(first) - 1).astype(np.int64)


def _with_callbacks(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    roots: Int64,
    stretch: Int64,
    step: Int64,
    of_position: Int64,
    end: Int64,
) -> Int64:
    """Give what the engine calls after its last node, such as sharded data parallelism's last reduction, to the
    backward step that runs until the main thread goes on; returns the ends of the stretches with that.

    Args:
        roots, stretch: outermost nodes by start, and the stretch of each. step: of each stretch.
    """
    threads = np.unique(tree.thread[roots])
    outermost = lookup(tree.thread.astype(np.int64), tree.parent) != tree.thread
    free = np.flatnonzero(outermost & np.isin(tree.thread, threads) & (of_position == NONE))
    before = np.searchsorted(tree.start_ns[roots], tree.start_ns[free], side="right") - 1
    free, before = free[before >= 0], before[before >= 0]
    if not len(free):
        return end
    both = np.concatenate([roots[before], free])
    order = np.argsort(tree.start_ns[both], kind="stable")
    ordinal = np.empty(len(both), dtype=np.int64)
    ordinal[order] = _stretches(trace, tree, main, both[order])
    goes_on = ordinal[: len(free)] == ordinal[len(free) :]
    called = np.full(len(tree), NONE, dtype=np.int64)
    called[free[goes_on]] = stretch[before[goes_on]]
    inside = (lookup(called, tree.nearest(called != NONE)) != NONE) & np.isin(tree.thread, threads)
    inside &= of_position == NONE
    of_position[inside] = step[lookup(called, tree.nearest(called != NONE))[inside]]
    end = end.copy()
    np.maximum.at(end, stretch[before[goes_on]], tree.end_ns[free[goes_on]])
    return end


def _spans(tree: HostTree, roots: Int64, group: Int64, count: int) -> tuple[Int64, Int64]:
    start, end = np.full(count, _NOTHING.max), np.full(count, _NOTHING.min)
    np.minimum.at(start, group, tree.start_ns[roots])
    np.maximum.at(end, group, tree.end_ns[roots])
    return start, end


@dataclass(frozen=True, slots=True)
class _Links:
    """Operators that made nodes: their sequence numbers and the stretches that run the nodes.

    Attributes:
        count: number of stretches.
    """

    sequence: Int64
    stretch: Int64
    count: int


def _merged(links: _Links, begins: Int64, place: Int64, training_step: Int64) -> Int64:
    """The backward step of each stretch.

    A stretch goes on with the step before it where it runs the operators right below those that the step has reached:
    none in between has a node that another stretch runs. One whose nodes no operator made adds up gradients at the end
    of a step.

    Args:
        begins: stretches that start from the gradient of a loss.
        place: number of exchanges before each stretch.
        training_step: the one that it lies in.
    """
    lowest, highest = np.full(links.count, _NOTHING.max), np.full(links.count, _NOTHING.min)
    np.minimum.at(lowest, links.stretch, links.sequence)
    np.maximum.at(highest, links.stretch, links.sequence)
    numbers = np.unique(links.sequence)
    rank_low, rank_high = np.searchsorted(numbers, lowest), np.searchsorted(numbers, highest)
    rows = zip(
        place.tolist(),
        training_step.tolist(),
        (highest != _NOTHING.min).tolist(),
        rank_low.tolist(),
        rank_high.tolist(),
        strict=True,
    )
    first = set(begins.tolist())
    step: list[int] = []
    here: tuple[int, int] = (NONE, NONE)
    reached: int | None = None
    for index, (where, training, linked, low, high) in enumerate(rows):
        goes_on = bool(step) and index not in first and training == here[1]
        if linked and goes_on:
            goes_on = where == here[0] if reached is None else high == reached - 1
        if not goes_on:
            step.append(step[-1] + 1 if step else 0)
            reached = None
        else:
            step.append(step[-1])
        here = (where, training)
        reached = low if linked else reached
    return np.array(step, dtype=np.int64)


def _first_gradients(trace: TraceEvents, tree: HostTree, main: int, pauses_ns: Int64) -> tuple[Int64, Int64]:
    """(operators, stretches): where autograd makes the gradient of the loss (``ones_like``), on the main thread right
    before it starts the engine, and the stretch that follows."""
    outermost = outermost_operators(trace, tree, main)
    following = np.searchsorted(pauses_ns, tree.start_ns[outermost])
    last = np.append(following[1:] != following[:-1], True)[: len(outermost)]
    found = last & (following < len(pauses_ns)) & operators_named(trace, tree, "aten::ones_like")[outermost]
    return outermost[found], following[found]


def _add_first_gradients(tree: HostTree, main: int, operators: Int64, step: Int64, of_position: Int64) -> None:
    """Give first gradients, with what lies in them, to their backward steps."""
    first = np.full(len(tree), NONE, dtype=np.int64)
    first[operators] = step
    inside = lookup(first, tree.nearest(first != NONE))
    added = (inside != NONE) & (tree.thread == main)
    of_position[added] = inside[added]
