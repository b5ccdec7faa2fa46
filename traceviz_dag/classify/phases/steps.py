"""Training steps and the forward and backward steps of micro-batches, as the host's call stacks show them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Int64, distinct, lookup, number_groups
from traceviz_dag.classify.autograd_links import AutogradNodes, makers_of_nodes
from traceviz_dag.classify.phases.chunks import chunks_of_forward_steps
from traceviz_dag.classify.phases.marks import ProfilerSteps, step_at
from traceviz_dag.classify.phases.passes import (
    Expected,
    OrderedSteps,
    passes_of_frames,
    repeated_numbers,
    steps_without_forward,
)
from traceviz_dag.classify.phases.schedule_order import BACKWARD, FORWARD, numbers_by_order
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.read.host_tree import HostTree


@dataclass(frozen=True, slots=True)
class MicrobatchSteps:
    """One row per forward or backward step of a micro-batch, by start.

    Attributes:
        position: tree position of the frame that holds the step.
        direction: FORWARD or BACKWARD.
        step: number of the ProfilerStep it lies in, or MISSING.
        chunk, microbatch: from 0, or MISSING where the evidence does not say.
        start_ns, end_ns: of that frame, on the host.
        cuts: as ``Passes`` has them.
    """

    position: Int64
    direction: Int64
    step: Int64
    chunk: Int64
    microbatch: Int64
    start_ns: Int64
    end_ns: Int64
    cuts: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class OpeningFrames:
    """Tree positions of the frames that hold steps; combined frames hold one of each direction, schedules many."""

    forward: Int64
    backward: Int64
    combined: Int64
    schedule: Int64


def microbatch_steps(
    trace: TraceEvents,
    tree: HostTree,
    graph: AutogradNodes,
    opening: OpeningFrames,
    side: Int64,
    profiler: ProfilerSteps,
    expected: Expected,
) -> tuple[MicrobatchSteps, Int64]:
    """Number the micro-batches of all forward and backward steps.

    A forward step's chunk follows from the module instances that it runs; its index counts the forward steps of that
    chunk in the training step, where counting shows it. A backward step inherits both from the forward step whose
    autograd nodes it runs. Without that link, backward steps are counted per chunk where there is only one chunk. Where
    modules do not show the chunks, the one schedule that has this order of steps does.

    Args:
        side: per tree position FORWARD, BACKWARD (recompute included) or NONE, by its phase; it shows the two halves
            of a combined step apart.

    Returns:
        The steps, and per tree position the index of the step that it belongs to (or NONE).
    """
    position, direction, member = _opened(tree, opening, side)
    start, end = tree.start_ns[position], tree.end_ns[position]
    found = _with_lost_frames(trace, tree, graph, _Found(position, direction, member, start, end))
    position, direction, member = found.position, found.direction, found.member
    step = step_at(profiler, found.start_ns)
    chunk = np.full(len(position), MISSING, dtype=np.int64)
    microbatch = chunk.copy()
    forward = np.flatnonzero(direction == FORWARD)
    backward = np.flatnonzero(direction == BACKWARD)
    source = _forward_of_backward(trace, tree, graph, member, direction)
    orphan = steps_without_forward(
        trace, tree, graph, np.where(lookup(direction, member) == BACKWARD, member, NONE), len(direction)
    )
    hosted = OrderedSteps(position, direction, source, found.start_ns, found.end_ns)
    passes = passes_of_frames(tree, opening.schedule, hosted, orphan, profiler, expected)
    counted = passes.counted
    chunk[forward] = chunks_of_forward_steps(trace, tree, member, forward, counted[forward])
    microbatch[forward] = _count_within(passes.of_step[forward], chunk[forward])
    microbatch[forward[~counted[forward]]] = MISSING
    linked = backward[source[backward] >= 0]
    chunk[linked], microbatch[linked] = chunk[source[linked]], microbatch[source[linked]]
    # Where rows of the host are lost, the frame of one backward step can seem to hold the next one's work, too.
    shared = linked[(np.bincount(source[linked], minlength=len(source))[source[linked]] > 1) & ~counted[linked]]
    chunk[shared], microbatch[shared] = MISSING, MISSING
    unlinked = backward[source[backward] < 0]
    if len(unlinked) and len(np.unique(chunk[forward])) == 1 and (chunk[forward] >= 0).all():
        chunk[unlinked] = chunk[forward[0]]
        ordinal = _count_within(passes.of_step[backward], chunk[backward])
        microbatch[unlinked] = np.where(counted[backward], ordinal, MISSING)[np.isin(backward, unlinked)]
    if (chunk[forward] == MISSING).any():
        by_order = numbers_by_order(passes.of_step, direction, source)
        told = (by_order[0] != MISSING) & np.isin(passes.of_step, passes.of_step[forward][chunk[forward] == MISSING])
        told &= ~np.isin(passes.of_step, passes.of_step[~counted])
        chunk[told], microbatch[told] = by_order[0][told], by_order[1][told]
    microbatch[repeated_numbers(step, direction, chunk, microbatch, passes.of_step)] = MISSING
    steps = MicrobatchSteps(position, direction, step, chunk, microbatch, found.start_ns, found.end_ns, passes.cuts)
    return steps, member


@dataclass(frozen=True, slots=True)
class _Found:
    """Steps before they are numbered, by start; ``member`` is the step of each tree position, or NONE."""

    position: Int64
    direction: Int64
    member: Int64
    start_ns: Int64
    end_ns: Int64


def _opened(tree: HostTree, opening: OpeningFrames, side: Int64) -> tuple[Int64, Int64, Int64]:
    """Position and direction of the steps that frames hold, by start, and the step of each tree position."""
    position = np.concatenate([opening.forward, opening.combined, opening.backward, opening.combined])
    direction = np.repeat(
        [FORWARD, BACKWARD],
        [len(opening.forward) + len(opening.combined), len(opening.backward) + len(opening.combined)],
    )
    order = np.lexsort((direction, tree.start_ns[position]))
    position, direction = position[order], direction[order]
    member = _membership(tree, position, direction, side)
    # A combined frame in warm-up or cool-down holds one half only.
    occupied = np.zeros(len(position), dtype=bool)
    occupied[member[member >= 0]] = True
    occupied |= ~np.isin(position, opening.combined)
    return position[occupied], direction[occupied], lookup(np.cumsum(occupied) - 1, member)


def _with_lost_frames(trace: TraceEvents, tree: HostTree, graph: AutogradNodes, found: _Found) -> _Found:
    """Add the backward steps whose own frame is not there (a file that breaks off, a function that no rule names): the
    nodes outside all steps that one forward step's operators made, where no other backward step runs that one's."""
    of_forward = (found.member >= 0) & (lookup(found.direction, found.member) == FORWARD)
    nodes, makers = makers_of_nodes(trace, tree, graph.outermost & (found.member == NONE), ~graph.node & of_forward)
    source = found.member[makers]
    if not len(nodes):
        return found
    linked = _forward_of_backward(trace, tree, graph, found.member, found.direction)
    lost = np.setdiff1d(source, linked[found.direction == BACKWARD])
    mine = np.isin(source, lost)
    nodes, which = nodes[mine], np.searchsorted(lost, source[mine])
    if not len(nodes):
        return found
    position = np.full(len(lost), len(tree), dtype=np.int64)
    end = np.full(len(lost), np.iinfo(np.int64).min)
    np.minimum.at(position, which, nodes)
    np.maximum.at(end, which, tree.end_ns[nodes])
    holds = np.zeros(len(tree), dtype=bool)
    holds[nodes] = True
    step_of_node = np.full(len(tree), NONE, dtype=np.int64)
    step_of_node[nodes] = which + len(found.position)
    member = np.where(found.member == NONE, lookup(step_of_node, tree.nearest(holds)), found.member)
    position = np.concatenate([found.position, position])
    direction = np.concatenate([found.direction, np.full(len(lost), BACKWARD)])
    start, end = tree.start_ns[position], np.concatenate([found.end_ns, end])
    order = np.lexsort((direction, start))
    renumbered = np.empty(len(order), dtype=np.int64)
    renumbered[order] = np.arange(len(order))
    return _Found(position[order], direction[order], lookup(renumbered, member), start[order], end[order])


def _membership(tree: HostTree, position: Int64, direction: Int64, side: Int64) -> Int64:
    """Per tree position: the step it belongs to. In a combined frame its side chooses between the two."""
    if not len(position):
        return np.full(len(tree), NONE, dtype=np.int64)
    frames = distinct(position)
    of_frame = np.full(len(tree), NONE, dtype=np.int64)
    of_frame[frames] = np.arange(len(frames))
    # The last row is for what has no side, the last column for what lies in no frame.
    steps = np.full((3, len(frames) + 1), NONE, dtype=np.int64)
    steps[direction, of_frame[position]] = np.arange(len(position))
    # A plain step's frame holds one direction only, whatever phase a row inside it has.
    plain = (steps[FORWARD] == NONE) | (steps[BACKWARD] == NONE)
    steps[:, plain] = steps[:, plain].max(axis=0)
    return steps[side, lookup(of_frame, tree.nearest(of_frame != NONE))]


def _count_within(step: Int64, chunk: Int64) -> Int64:
    """Ordinal of each row among the earlier rows of the same training step and chunk; MISSING without a chunk."""
    counts: dict[tuple[int, int], int] = {}
    ordinals = []
    for key in zip(step.tolist(), chunk.tolist(), strict=True):
        ordinals.append(counts.get(key, 0) if key[1] >= 0 else MISSING)
        counts[key] = counts.get(key, 0) + 1
    return np.array(ordinals, dtype=np.int64)


def _forward_of_backward(
    trace: TraceEvents, tree: HostTree, graph: AutogradNodes, member: Int64, direction: Int64
) -> Int64:
    """For each step the forward step whose operators made the autograd nodes that it runs, or NONE."""
    source = np.full(len(direction), NONE, dtype=np.int64)
    step_direction = lookup(direction, member)
    nodes, makers = makers_of_nodes(
        trace, tree, graph.outermost & (step_direction == BACKWARD), ~graph.node & (step_direction == FORWARD)
    )
    if len(nodes):
        first, number = number_groups(member[nodes], member[makers])
        links = first[np.argsort(np.bincount(number), kind="stable")]
        for backward, forward in zip(member[nodes[links]].tolist(), member[makers[links]].tolist(), strict=True):
            source[backward] = forward
    return source
