"""Micro-batch steps of a trace without call stacks, from what operators and threads still show.

The main thread waits while the autograd thread works, so backward steps are the stretches of autograd work that no row
of the main thread interrupts. An autograd node carries the sequence number of the operator that made it, so each
backward step names the operators of its forward step. What lies between two boundaries (a backward step, a
point-to-point call) together with such operators is that forward step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.classify.host_tree import NONE, Bool, HostTree, nearest, take
from traceviz_dag.classify.steps import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    MicrobatchSteps,
    ProfilerSteps,
    step_at,
)
from traceviz_dag.read.events import CPU_OP, MISSING, USER_ANNOTATION, Int64, TraceEvents

FORWARD_SEGMENT, AFTER_BACKWARD, OPTIMIZER_WINDOW = 0, 1, 2
"""Codes of ``InferredSteps.place``: what a row of the main thread lies in, where it lies in any."""

_POINT_TO_POINT = ("nccl:coalesced", "nccl:send", "nccl:recv", "c10d::send", "c10d::recv")
_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class InferredSteps:
    """What the inference found.

    Attributes:
        steps: forward and backward steps, by start.
        member: per tree position the index of its step, or NONE.
        place: per tree position one of the codes above, or NONE.
    """

    steps: MicrobatchSteps
    member: Int64
    place: Int64


@dataclass(frozen=True, slots=True)
class _Windows:
    """Backward steps: start and end of each, and per tree position its window or NONE."""

    start_ns: Int64
    end_ns: Int64
    of_position: Int64


@dataclass(frozen=True, slots=True)
class Communications:
    """When communications were launched from the main thread, ns.

    Attributes:
        norm_ns: those of the gradient norm. other_ns: all others that belong to a step as a whole or to the layers.
    """

    norm_ns: Int64
    other_ns: Int64


def infer_steps(
    trace: TraceEvents, tree: HostTree, main: int, profiler: ProfilerSteps, told: Communications
) -> InferredSteps:
    """Find the steps of micro-batches without call stacks.

    Chunks are told by the order of work: where backward steps run in the order of their forward steps there is one
    chunk; otherwise the chunk numbers are those of the one interleaved schedule that gives exactly this order, and
    MISSING where none or several do.
    """
    nothing = np.full(len(tree), NONE, dtype=np.int64)
    windows = _backward_windows(trace, tree, main)
    maker_window = _window_of_makers(trace, tree, main, windows)
    made = np.flatnonzero(maker_window != NONE)
    if not len(made):
        return InferredSteps(_no_steps(), nothing, nothing)
    spans = _forward_spans(tree, made, maker_window[made], len(windows.start_ns))
    segment = _segments(trace, tree, main, windows)
    forward_of_segment = _forward_of_segments(segment, made, maker_window)
    window_on_main = np.full(len(tree), NONE, dtype=np.int64)
    on_main = np.flatnonzero(np.isin(segment, list(forward_of_segment)) & (tree.thread == main))
    window_on_main[on_main] = [forward_of_segment[number] for number in segment[on_main].tolist()]
    # The first segment of a training step also holds what comes before its first forward step.
    opens = _first_forward(tree, profiler, segment, np.concatenate([spans[0], told.other_ns]))
    window_on_main[on_main[tree.end_ns[on_main] <= opens[on_main]]] = NONE
    _move_first_gradients(trace, tree, main, windows)
    window_on_main[windows.of_position != NONE] = NONE
    return _assemble(trace, tree, main, profiler, windows, spans, window_on_main, told)


def _backward_windows(trace: TraceEvents, tree: HostTree, main: int) -> _Windows:
    node = _operators(trace, tree, AUTOGRAD_NODE) & (tree.thread != main)
    outermost = nearest(node, _parents_on_thread(tree))
    roots = np.flatnonzero(node & (take(outermost, _parents_on_thread(tree)) == NONE))
    roots = roots[np.argsort(tree.start_ns[roots], kind="stable")]
    host = trace.host
    is_step = np.array([name.startswith("ProfilerStep#") for name in trace.strings], dtype=bool)
    interrupting = np.sort(host.start_ns[(host.thread == main) & ~is_step[host.name]])
    stretch = np.searchsorted(interrupting, tree.start_ns[roots])
    first = np.append(True, np.diff(stretch) != 0)[: len(roots)]
    number = np.cumsum(first) - 1
    count = int(number[-1]) + 1 if len(number) else 0
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start, number, tree.start_ns[roots])
    np.maximum.at(end, number, tree.end_ns[roots])
    of_root = np.full(len(tree), NONE, dtype=np.int64)
    of_root[roots] = number
    top = np.zeros(len(tree), dtype=bool)
    top[roots] = True
    return _Windows(start, end, take(of_root, nearest(top, _parents_on_thread(tree))))


def _window_of_makers(trace: TraceEvents, tree: HostTree, main: int, windows: _Windows) -> Int64:
    """Per tree position: the backward window that runs the node which this operator of the main thread made."""
    found = np.full(len(tree), NONE, dtype=np.int64)
    sequence = trace.host.sequence_number[tree.rows]
    is_node = _operators(trace, tree, AUTOGRAD_NODE)
    within = take(nearest(is_node, _parents_on_thread(tree)), _parents_on_thread(tree)) != NONE
    nodes = np.flatnonzero(is_node & ~within & (sequence >= 0) & (windows.of_position != NONE))
    is_operator = trace.host.category[tree.rows] == CPU_OP
    makers = np.flatnonzero(is_operator & ~is_node & (sequence >= 0) & (tree.thread == main))
    if not len(nodes) or not len(makers):
        return found
    makers = makers[np.lexsort((tree.start_ns[makers], sequence[makers]))]
    # The last operator with a sequence number made the node; earlier ones only read the counter.
    makers = makers[np.append(sequence[makers][1:] != sequence[makers][:-1], True)]
    at = np.clip(np.searchsorted(sequence[makers], sequence[nodes]), 0, len(makers) - 1)
    linked = sequence[makers[at]] == sequence[nodes]
    linked &= tree.start_ns[makers[at]] < tree.start_ns[nodes]
    found[makers[at[linked]]] = windows.of_position[nodes[linked]]
    return found


def _forward_spans(tree: HostTree, made: Int64, window: Int64, count: int) -> tuple[Int64, Int64]:
    """First start and last end of each window's forward operators; a span that ends before it starts has none."""
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start, window, tree.start_ns[made])
    np.maximum.at(end, window, tree.end_ns[made])
    return start, end


def _move_first_gradients(trace: TraceEvents, tree: HostTree, main: int, windows: _Windows) -> None:
    """Give the gradient of the loss, which autograd makes on the main thread (``ones_like``) right before it starts the
    engine, to the backward step that follows."""
    makes_ones = _operators(trace, tree, "aten::ones_like") & (tree.thread == main)
    outermost = np.flatnonzero(_operators(trace, tree, "") & (tree.thread == main) & (tree.parent == NONE))
    following = np.searchsorted(windows.start_ns, tree.start_ns[outermost])
    last = np.append(following[1:] != following[:-1], True)[: len(outermost)]
    first_gradients = outermost[last & (following < len(windows.start_ns))]
    first_gradients = first_gradients[makes_ones[first_gradients]]
    head = np.zeros(len(tree), dtype=bool)
    head[first_gradients] = True
    holder = nearest(head, _parents_on_thread(tree))
    inside = np.flatnonzero(holder != NONE)
    windows.of_position[inside] = np.searchsorted(windows.start_ns, tree.start_ns[holder[inside]])


def _segments(trace: TraceEvents, tree: HostTree, main: int, windows: _Windows) -> Int64:
    """Per position of the main thread the number of boundaries before it; NONE inside a point-to-point call."""
    host = trace.host
    is_call = np.array([name.startswith(_POINT_TO_POINT) for name in trace.strings], dtype=bool)
    calls = host.start_ns[(host.thread == main) & is_call[host.name]]
    boundaries = np.sort(np.concatenate([calls, windows.start_ns]))
    segment = np.searchsorted(boundaries, tree.start_ns, side="right").astype(np.int64)
    return np.where(tree.thread == main, segment, NONE)


def _forward_of_segments(segment: Int64, made: Int64, maker_window: Int64) -> dict[int, int]:
    """Segment → the window whose forward step it is; the one with most operators where several claim it."""
    pairs, votes = np.unique(np.stack([segment[made], maker_window[made]]), axis=1, return_counts=True)
    chosen: dict[int, tuple[int, int]] = {}
    for (number, window), count in zip(pairs.T.tolist(), votes.tolist(), strict=True):
        if number not in chosen or count > chosen[number][1]:
            chosen[number] = (window, count)
    return {number: window for number, (window, _) in chosen.items()}


def _first_forward(tree: HostTree, profiler: ProfilerSteps, segment: Int64, signs_ns: Int64) -> Int64:
    """Per position, in the first segment of a training step: when its first forward step shows, ns; 0 elsewhere.

    Signs are operators that a backward step names, and communication: before the first forward step there is none, and
    parameters are gathered by hooks of the forward step.
    """
    opens = np.zeros(len(tree), dtype=np.int64)
    starts = np.sort(signs_ns[signs_ns < np.iinfo(np.int64).max])
    step = step_at(profiler, tree.start_ns)
    for number in np.unique(step[segment != NONE]).tolist():
        mine = (step == number) & (segment != NONE)
        first_segment = mine & (segment == segment[mine].min())
        following = np.searchsorted(starts, tree.start_ns[mine].min())
        if following < len(starts):
            opens[first_segment] = starts[following]
    return opens


def _assemble(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    profiler: ProfilerSteps,
    windows: _Windows,
    spans: tuple[Int64, Int64],
    window_on_main: Int64,
    told: Communications,
) -> InferredSteps:
    used = np.flatnonzero(spans[0] < np.iinfo(np.int64).max)
    direction = np.repeat([FORWARD, BACKWARD], [len(used), len(used)])
    window = np.concatenate([used, used])
    start = np.concatenate([spans[0][used], windows.start_ns[used]])
    end = np.concatenate([spans[1][used], windows.end_ns[used]])
    order = np.lexsort((direction, start))
    direction, window, start, end = direction[order], window[order], start[order], end[order]
    index_of = np.full((2, len(windows.start_ns)), NONE, dtype=np.int64)
    index_of[direction, window] = np.arange(len(order))

    member = np.full(len(tree), NONE, dtype=np.int64)
    forward_rows = np.flatnonzero(window_on_main != NONE)
    member[forward_rows] = index_of[FORWARD, window_on_main[forward_rows]]
    backward_rows = np.flatnonzero(windows.of_position != NONE)
    member[backward_rows] = index_of[BACKWARD, windows.of_position[backward_rows]]

    step = step_at(profiler, start)
    chunk, microbatch = _numbers(step, direction, window)
    first_position = np.full(len(order), NONE, dtype=np.int64)
    members = np.flatnonzero(member != NONE)
    first_position[member[members[::-1]]] = members[::-1]
    steps = MicrobatchSteps(first_position, direction, step, chunk, microbatch, start, end)
    place = np.where(window_on_main != NONE, FORWARD_SEGMENT, NONE)
    return InferredSteps(steps, member, _places_after_backward(trace, tree, main, profiler, windows, place, told))


def _numbers(step: Int64, direction: Int64, window: Int64) -> tuple[Int64, Int64]:
    """Chunk and micro-batch of each step, per training step from the order of its forward and backward steps."""
    chunk = np.full(len(step), MISSING, dtype=np.int64)
    microbatch = chunk.copy()
    for number in np.unique(step).tolist():
        forward = np.flatnonzero((step == number) & (direction == FORWARD))
        backward = np.flatnonzero((step == number) & (direction == BACKWARD))
        place = {value: index for index, value in enumerate(window[forward].tolist())}
        ran = [place.get(value, NONE) for value in window[backward].tolist()]
        if NONE in ran:
            continue
        told = schedule_of_order(ran)
        if told is None:
            continue
        chunk[forward], microbatch[forward] = zip(*told, strict=True)
        chunk[backward], microbatch[backward] = zip(*(told[index] for index in ran), strict=True)
    return chunk, microbatch


def schedule_of_order(ran: list[int]) -> list[tuple[int, int]] | None:
    """(chunk, micro-batch) of each forward step, from the order in which their backward steps ran.

    Args:
        ran: for each backward step in order, the ordinal of its forward step.

    Returns:
        None where no schedule, or several that number differently, give this order. Megatron's interleaved schedule
        runs groups of p micro-batches through its v chunks, forward from the first and backward from the last.
    """
    count = len(ran)
    if ran == list(range(count)):
        return [(0, index) for index in range(count)]
    fitting = set()
    for chunks in range(2, count + 1):
        for group in range(1, count // chunks + 1):
            if count % (chunks * group):
                continue
            numbers = _interleaved(count, chunks, group, backward=False)
            at = {value: index for index, value in enumerate(numbers)}
            if [at[value] for value in _interleaved(count, chunks, group, backward=True)] == ran:
                fitting.add(tuple(numbers))
    return list(fitting.pop()) if len(fitting) == 1 else None


def _interleaved(count: int, chunks: int, group: int, *, backward: bool) -> list[tuple[int, int]]:
    numbers = []
    for ordinal in range(count):
        round_, within = divmod(ordinal, group * chunks)
        chunk, offset = divmod(within, group)
        numbers.append((chunks - 1 - chunk if backward else chunk, round_ * group + offset))
    return numbers


def _places_after_backward(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    profiler: ProfilerSteps,
    windows: _Windows,
    place: Int64,
    told: Communications,
) -> Int64:
    """After a training step's last backward step come finalisation, up to its last communication, and the optimizer,
    from its gradient norm (without one: from its own annotation). What lies between could be either, and stays open."""
    host = trace.host
    is_optimizer = np.array([name.startswith(_OPTIMIZER) for name in trace.strings], dtype=bool)
    annotated = np.sort(host.start_ns[(host.category == USER_ANNOTATION) & is_optimizer[host.name]])
    step_of_window = step_at(profiler, windows.start_ns)
    step_of_position = step_at(profiler, tree.start_ns)
    place = place.copy()
    for number in np.unique(step_of_window).tolist():
        last = int(windows.end_ns[step_of_window == number].max())
        later = (tree.thread == main) & (step_of_position == number) & (tree.start_ns >= last) & (place == NONE)
        if not later.any():
            continue
        end = int(tree.end_ns[later].max())
        signs = [times[(times >= last) & (times <= end)] for times in (told.norm_ns, annotated)]
        sign = next((int(times.min()) for times in signs if len(times)), end)
        before = told.other_ns[(told.other_ns >= last) & (told.other_ns < sign)]
        finished = int(before.max()) if len(before) else last
        place[later & (tree.start_ns <= finished)] = AFTER_BACKWARD
        # The row that launches the norm starts before it does.
        place[later & (tree.end_ns > sign)] = OPTIMIZER_WINDOW
    return place


def _operators(trace: TraceEvents, tree: HostTree, prefix: str) -> Bool:
    named = np.array([name.startswith(prefix) for name in trace.strings], dtype=bool)
    return (trace.host.category[tree.rows] == CPU_OP) & named[trace.host.name[tree.rows]]


def _parents_on_thread(tree: HostTree) -> Int64:
    """Parents, without the links from autograd threads to the main thread."""
    return np.where(take(tree.thread.astype(np.int64), tree.parent) == tree.thread, tree.parent, NONE)


def _no_steps() -> MicrobatchSteps:
    nothing = np.array([], dtype=np.int64)
    return MicrobatchSteps(nothing, nothing, nothing, nothing, nothing, nothing, nothing)
