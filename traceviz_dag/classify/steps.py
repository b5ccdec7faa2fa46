"""Training steps and the forward and backward steps of micro-batches, as the host's call stacks show them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceviz_dag.classify.host_tree import NONE, HostTree, nearest, take
from traceviz_dag.read.events import CPU_OP, MISSING, USER_ANNOTATION, Int64, TraceEvents

PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
FORWARD, BACKWARD = 0, 1
"""Codes of ``MicrobatchSteps.direction``."""

_MODULE = re.compile(r"nn\.Module: (.+)_(\d+)$")


@dataclass(frozen=True, slots=True)
class ProfilerSteps:
    """The ProfilerStep annotations of one trace, by start."""

    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class MicrobatchSteps:
    """One row per forward or backward step of a micro-batch, by start.

    Attributes:
        position: tree position of the frame that holds the step.
        direction: FORWARD or BACKWARD.
        step: number of the ProfilerStep it lies in, or MISSING.
        chunk, microbatch: from 0, or MISSING where the evidence does not say.
        start_ns, end_ns: of that frame, on the host.
    """

    position: Int64
    direction: Int64
    step: Int64
    chunk: Int64
    microbatch: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class OpeningFrames:
    """Tree positions of the frames that hold steps; combined frames hold one of each direction."""

    forward: Int64
    backward: Int64
    combined: Int64


def profiler_steps(trace: TraceEvents) -> ProfilerSteps:
    """The ProfilerStep annotations on the host; the longest where a number occurs twice."""
    numbers = _numbers_of_names(trace.strings, PROFILER_STEP)
    host = trace.host
    rows = np.flatnonzero((host.category == USER_ANNOTATION) & (numbers[host.name] != MISSING))
    number, start = numbers[host.name[rows]], host.start_ns[rows]
    end = start + host.duration_ns[rows]
    longest_first = np.lexsort((start - end, number))
    number, start, end = number[longest_first], start[longest_first], end[longest_first]
    first = np.ones(len(number), dtype=bool)
    first[1:] = number[1:] != number[:-1]
    number, start, end = number[first], start[first], end[first]
    order = np.argsort(start, kind="stable")
    return ProfilerSteps(number[order], start[order], end[order])


def step_at(steps: ProfilerSteps, time_ns: Int64) -> Int64:
    """Number of the ProfilerStep that is open at each time, or MISSING."""
    if not len(steps):
        return np.full(len(time_ns), MISSING, dtype=np.int64)
    index = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
    inside = (index >= 0) & (time_ns < steps.end_ns[index])
    return np.where(inside, steps.number[index], MISSING)


def nearest_step(steps: ProfilerSteps, time_ns: Int64) -> Int64:
    """Number of the ProfilerStep nearest to each time, or MISSING where there is none."""
    if not len(steps):
        return np.full(len(time_ns), MISSING, dtype=np.int64)
    after = np.clip(np.searchsorted(steps.start_ns, time_ns), 0, len(steps) - 1)
    before = np.clip(after - 1, 0, None)
    gap_before = np.maximum(time_ns - steps.end_ns[before], 0)
    gap_after = np.maximum(steps.start_ns[after] - time_ns, 0)
    return np.where(gap_before <= gap_after, steps.number[before], steps.number[after])


def microbatch_steps(
    trace: TraceEvents, tree: HostTree, opening: OpeningFrames, side: Int64, profiler: ProfilerSteps
) -> tuple[MicrobatchSteps, Int64]:
    """Number the micro-batches of all forward and backward steps.

    A forward step's chunk is the ordinal of the outermost module instance that it runs (chunk 0 runs first, so its
    instance is the first that the profiler names); its index counts the forward steps of that chunk in the training
    step. A backward step inherits both from the forward step whose autograd nodes it runs: a node carries the sequence
    number of the operator that made it. Without that link, backward steps are counted per chunk where there is only
    one chunk, and stay unknown where there are several.

    Args:
        side: per tree position FORWARD, BACKWARD (recompute included) or NONE, by its phase; it tells the two halves
            of a combined step apart.

    Returns:
        The steps, and per tree position the index of the step that it belongs to (or NONE).
    """
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
    renumbered = np.cumsum(occupied) - 1
    member = take(renumbered, member)
    position, direction = position[occupied], direction[occupied]

    start, end = tree.start_ns[position], tree.end_ns[position]
    step = step_at(profiler, start)
    chunk = np.full(len(position), MISSING, dtype=np.int64)
    microbatch = chunk.copy()
    forward = np.flatnonzero(direction == FORWARD)
    backward = np.flatnonzero(direction == BACKWARD)
    chunk[forward] = _chunks(trace, tree, member, forward)
    microbatch[forward] = _count_within(step[forward], chunk[forward])
    source = _forward_of_backward(trace, tree, member, direction)
    linked = backward[source[backward] >= 0]
    chunk[linked], microbatch[linked] = chunk[source[linked]], microbatch[source[linked]]
    unlinked = backward[source[backward] < 0]
    if len(unlinked) and len(np.unique(chunk[forward])) == 1 and (chunk[forward] >= 0).all():
        chunk[unlinked] = chunk[forward[0]]
        counted = _count_within(step[backward], chunk[backward])
        microbatch[unlinked] = counted[np.isin(backward, unlinked)]
    return MicrobatchSteps(position, direction, step, chunk, microbatch, start, end), member


def _membership(tree: HostTree, position: Int64, direction: Int64, side: Int64) -> Int64:
    """Per tree position: the step it belongs to. In a combined frame its side chooses between the two."""
    if not len(position):
        return np.full(len(tree), NONE, dtype=np.int64)
    by_direction = np.full((2, len(tree)), NONE, dtype=np.int64)
    by_direction[direction, position] = np.arange(len(position))
    opens = (by_direction[FORWARD] >= 0) | (by_direction[BACKWARD] >= 0)
    combined = (by_direction[FORWARD] >= 0) & (by_direction[BACKWARD] >= 0)
    # A plain step's frame holds one direction only, whatever phase a row inside it has.
    plain = np.where(combined, NONE, np.maximum(by_direction[FORWARD], by_direction[BACKWARD]))
    holder = nearest(opens, tree.parent)
    chosen = np.where(
        take(combined.astype(np.int64), holder, 0) == 1,
        np.where(side >= 0, by_direction[np.maximum(side, 0), np.maximum(holder, 0)], NONE),
        take(plain, holder),
    )
    return np.where(holder >= 0, chosen, NONE)


def _chunks(trace: TraceEvents, tree: HostTree, member: Int64, forward: Int64) -> Int64:
    """Chunk of each forward step, from the outermost module instance inside it."""
    instances = [_MODULE.match(name) for name in trace.strings]
    is_module_name = np.array([match is not None for match in instances], dtype=bool)
    names = trace.host.name[tree.rows]
    outermost: dict[int, str] = {}
    in_forward = np.flatnonzero(is_module_name[names] & np.isin(member, forward))
    for at in in_forward[np.argsort(tree.start_ns[in_forward], kind="stable")].tolist():
        outermost.setdefault(int(member[at]), trace.strings[names[at]])
    if not outermost:
        single = not any("interleaving" in name and "without" not in name for name in trace.strings)
        return np.full(len(forward), 0 if single else MISSING, dtype=np.int64)
    by_class: dict[str, set[int]] = {}
    for name in outermost.values():
        match = _MODULE.match(name)
        assert match is not None
        by_class.setdefault(match[1], set()).add(int(match[2]))
    if len(by_class) > 1:
        return np.full(len(forward), MISSING, dtype=np.int64)
    ordinal = {suffix: index for index, suffix in enumerate(sorted(next(iter(by_class.values()))))}
    suffix_of = {at: ordinal[int(name.rsplit("_", 1)[1])] for at, name in outermost.items()}
    return np.array([suffix_of.get(at, MISSING) for at in forward.tolist()], dtype=np.int64)


def _count_within(step: Int64, chunk: Int64) -> Int64:
    """Ordinal of each row among the earlier rows of the same training step and chunk; MISSING without a chunk."""
    counts: dict[tuple[int, int], int] = {}
    ordinals = []
    for key in zip(step.tolist(), chunk.tolist(), strict=True):
        ordinals.append(counts.get(key, 0) if key[1] >= 0 else MISSING)
        counts[key] = counts.get(key, 0) + 1
    return np.array(ordinals, dtype=np.int64)


def _forward_of_backward(trace: TraceEvents, tree: HostTree, member: Int64, direction: Int64) -> Int64:
    """For each step the forward step whose operators made the autograd nodes that it runs, or NONE.

    Only outermost nodes count: those inside a recomputation belong to the recomputed operators.
    """
    source = np.full(len(direction), NONE, dtype=np.int64)
    host = trace.host
    rows = tree.rows
    sequence = host.sequence_number[rows]
    is_node_name = np.array([name.startswith(AUTOGRAD_NODE) for name in trace.strings], dtype=bool)
    is_operator = host.category[rows] == CPU_OP
    is_node = is_operator & is_node_name[host.name[rows]]
    parent_node = nearest(is_node, tree.parent)
    above = np.where(tree.parent >= 0, parent_node[tree.parent], NONE)
    usable = is_operator & (sequence >= 0) & (member >= 0)
    step_direction = np.where(member >= 0, direction[member], NONE) if len(direction) else member
    nodes = np.flatnonzero(usable & is_node & (above == NONE) & (step_direction == BACKWARD))
    operators = np.flatnonzero(usable & ~is_node & (above == NONE) & (step_direction == FORWARD))
    if not len(nodes) or not len(operators):
        return source
    # The last operator with a sequence number is the one that made the node; earlier ones only read the counter.
    operators = operators[np.lexsort((tree.start_ns[operators], sequence[operators]))]
    last = np.append(sequence[operators][1:] != sequence[operators][:-1], True)
    makers = operators[last]
    at = np.searchsorted(sequence[makers], sequence[nodes])
    at = np.clip(at, 0, len(makers) - 1)
    known = sequence[makers[at]] == sequence[nodes]
    pairs = np.stack([member[nodes[known]], member[makers[at[known]]]])
    links, votes = np.unique(pairs, axis=1, return_counts=True)
    for index in np.argsort(votes, kind="stable").tolist():
        source[links[0, index]] = links[1, index]
    return source


def _numbers_of_names(strings: tuple[str, ...], pattern: re.Pattern[str]) -> Int64:
    matches = (pattern.match(name) for name in strings)
    return np.array([MISSING if match is None else int(match[1]) for match in matches], dtype=np.int64)
