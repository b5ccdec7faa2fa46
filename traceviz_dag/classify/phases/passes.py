"""Which training step each step of a micro-batch is part of, and where the recorded window does not hold it whole.

A micro-batch's number is its ordinal in its training step. Counting shows it only where the beginning of that step is
recorded and no rows of the host are lost since. A window can start or stop anywhere, and ``ProfilerStep`` marks need
not begin where training steps do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.autograd_links import AutogradNodes, makers_of_nodes, numbered_nodes
from traceviz_dag.classify.launches import Launches
from traceviz_dag.classify.phases.marks import PROFILER_STEP, ProfilerSteps, step_at
from traceviz_dag.classify.phases.schedule_order import BACKWARD, FORWARD
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.read.host_tree import HostTree

STARTS_AMID = "the window starts in the middle of it"
STOPS_AMID = "the window stops in the middle of it"
BEGINS_UNMARKED = "no ProfilerStep mark, and nothing else, shows where it begins"
ENDS_UNMARKED = "no ProfilerStep mark, and nothing else, shows where it ends"
SEVERAL = "its mark holds parts of several training steps"

_ROUNDED_NS = 1_000
"""Rows that are open as the profiler stops end together, but for the rounding of starts and durations."""

_FEWEST_LOST = 8
"""So many kernels in a row without a launch can mean that rows of the host are lost; fewer may be lost launches."""


@dataclass(frozen=True, slots=True)
class OrderedSteps:
    """Forward and backward steps by start, before they are numbered.

    Attributes:
        position: tree position. source: of a backward step its forward step, or NONE.
    """

    position: Int64
    direction: Int64
    source: Int64
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward-backward passes.

    Attributes:
        of_step: per step the number of its pass.
        counted: per step whether counting from the beginning of its pass shows its number.
        cuts: (number of the ProfilerStep, or MISSING; why it does not hold one whole training step).
    """

    of_step: Int64
    counted: Bool
    cuts: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What a whole training step has, and what is known to be lost.

    Attributes:
        gaps: as ``lost_host_rows`` has them.
        microbatches: how many micro-batches a pipeline runs in a training step; None where nothing states it.
        optimizer: tree positions of rows that only an optimizer has; empty without call stacks.
        breaks_off: whether the file does: what is missing of a step is its end.
    """

    gaps: Int64
    microbatches: int | None
    optimizer: Int64
    breaks_off: bool = False


def lost_host_rows(trace: TraceEvents, launches: Launches) -> Int64:
    """(start, end) of each stretch of time in which the profiler lost what the host did, ns.

    Many kernels of a stream follow each other there without a launch, although kernels of the same names have one
    elsewhere, and less than half of the rows start meanwhile that the host has for so many: lost launches alone leave
    the operators around them.
    """
    device, host = trace.device, trace.host
    known = launches.time_ns != MISSING
    if known.all() or not known.any():
        return np.empty((0, 2), dtype=np.int64)
    launched_names = np.zeros(len(trace.strings), dtype=bool)
    launched_names[device.name[known]] = True
    # A mark can outlive the rows around it, and is no work of the host.
    is_mark = np.array([PROFILER_STEP.match(name) is not None for name in trace.strings], dtype=bool)
    starts = np.sort(np.concatenate([host.start_ns[~is_mark[host.name]], trace.launches.start_ns]))
    order = np.lexsort((device.start_ns, device.stream, device.device))
    lanes = np.flatnonzero((np.diff(device.stream[order]) != 0) | (np.diff(device.device[order]) != 0)) + 1
    usual = len(starts) / int(known.sum())
    each_ns = float(np.median(np.diff(np.sort(launches.time_ns[known])))) if known.sum() > 1 else 0.0
    first_ns = int(host.start_ns.min(initial=starts[0]))
    last_ns = int((host.start_ns + host.duration_ns).max(initial=starts[-1]))
    running = bool((device.start_ns[~known] < first_ns).any())
    found: list[tuple[int, int]] = []
    for mine in np.split(np.arange(len(order)), lanes):
        at = np.concatenate([mine[:1] - 1, mine[known[order[mine]]], mine[-1:] + 1])
        for place in np.flatnonzero(np.diff(at) > _FEWEST_LOST).tolist() if len(at) > 2 else ():
            before, after = at[place : place + 2].tolist()
            count = after - before - 1
            begin = int(launches.time_ns[order[before]]) if before >= mine[0] else first_ns
            end = int(launches.time_ns[order[after]]) if after <= mine[-1] else last_ns
            inside = starts[np.searchsorted(starts, begin) : np.searchsorted(starts, end, side="right")]
            between = order[before + 1 : after]
            if len(inside) > count * usual / 2 or not launched_names[device.name[between]].mean() > 0.5:
                continue
            times = np.unique(np.concatenate([[begin], inside, [end]]))
            pauses = np.diff(times)
            if not len(pauses):
                continue
            if before < mine[0]:
                # What was launched before the profiler started took its host no time since, and may be running by then.
                pauses = pauses[:1]
                if running or 2 * pauses.sum() < count * each_ns:
                    continue
            quiet = np.flatnonzero(2 * pauses >= pauses.max())
            found.append((int(times[quiet[0]]), int(times[quiet[-1] + 1])))
    return np.array(sorted(set(found)), dtype=np.int64).reshape(-1, 2)


def steps_without_forward(trace: TraceEvents, tree: HostTree, graph: AutogradNodes, step: Int64, count: int) -> Bool:
    """Per step whether it runs backward through operators of which the trace holds none.

    Args:
        step: per tree position the backward step that it belongs to, or NONE; there are ``count``.
    """
    mine = graph.outermost & (step != NONE)
    # Operators inside a node read the counter of another thread.
    nodes, makers = makers_of_nodes(trace, tree, mine, graph.around == NONE)
    nodes = nodes[tree.start_ns[makers] < tree.start_ns[nodes]]
    numbered = np.zeros(count, dtype=bool)
    numbered[step[numbered_nodes(trace, tree, mine)]] = True
    numbered[step[nodes]] = False
    return numbered


def passes_of_frames(
    tree: HostTree,
    schedules: Int64,
    steps: OrderedSteps,
    orphan: Bool,
    profiler: ProfilerSteps,
    expected: Expected,
) -> Passes:
    """The passes of steps that call stacks show.

    Each runs in a frame of a schedule's function, whose beginning is recorded if the thread did something before. Where
    each mark holds whole passes, all of a mark count as one, as they do where there are no such frames.

    Args:
        schedules: tree positions of schedules' functions. orphan: as ``steps_without_forward`` has it.
    """
    gaps, optimizer = expected.gaps, expected.optimizer
    mark = step_at(profiler, steps.start_ns)
    frame = _outermost(tree, schedules, steps.position)
    frames = np.unique(frame[frame != NONE])
    begun = {each: _follows_something(tree, profiler, each) for each in frames.tolist()}
    ended = {each: _is_followed(tree, profiler, each) for each in frames.tolist()}
    split = {int(each) for each in frames if len(np.unique(mark[frame == each])) > 1}
    optimizer_ns = tree.start_ns[optimizer]
    unbegun, unended = (STARTS_AMID, STOPS_AMID) if len(profiler) else (BEGINS_UNMARKED, ENDS_UNMARKED)
    cuts: dict[tuple[int, str], None] = {}
    for each in frames.tolist():
        marks = np.unique(mark[frame == each]).tolist()
        first, last = marks[0], marks[-1]
        if not begun[each]:
            cuts[(first, unbegun)] = None
        if each in split:
            cuts |= {(number, SEVERAL): None for number in marks}
        backward_ns = steps.end_ns[(frame == each) & (steps.direction == BACKWARD)]
        stops = bool(len(backward_ns)) and not (optimizer_ns >= backward_ns.max()).any()
        if stops or not ended[each]:
            cuts[(last, STOPS_AMID if stops else unended)] = None
    if len(frames) and len(optimizer):
        last = int(optimizer[tree.end_ns[optimizer].argmax()])
        number = int(step_at(profiler, tree.start_ns[[last]])[0])
        if not _is_followed(tree, profiler, last) and number in mark:
            cuts[(number, unended)] = None
    for number in np.unique(mark).tolist() if len(frames) else ():
        first = int(steps.start_ns[mark == number].min())
        if (step_at(profiler, optimizer_ns[optimizer_ns < first]) == number).any() and number != MISSING:
            cuts[(number, SEVERAL)] = None
    start = lookup(tree.start_ns, frame, int(np.iinfo(np.int64).min))
    start = np.where(frame == NONE, _starts_of_marks(profiler, mark), start)
    if split or not all(begun.values()):
        # Without its schedule's frame nothing shows where a step's pass begins.
        of_step = np.where(frame == NONE, -2 - np.searchsorted(np.unique(mark), mark), frame)
        counted = np.array([begun.get(each, False) for each in frame.tolist()], dtype=bool)
    else:
        of_step, counted = mark, np.ones(len(mark), dtype=bool)
    for number in np.unique(of_step).tolist() if not len(frames) else ():
        mine = of_step == number
        if (orphan & mine).any():
            cuts[(number, STARTS_AMID)] = None
            counted[mine & ~_after_gap(gaps, start, steps.end_ns)] = False
    counted &= ~_after_gap(gaps, start, steps.start_ns)
    cuts |= dict.fromkeys(cut_by_gaps(gaps, steps, mark, profiler))
    short = dict(cut_by_number(expected.microbatches, steps, of_step, mark))
    # Neither frame nor mark shows where it begins, and steps are missing: those before it, as far as anything shows.
    unshown = (frame == NONE) & (mark == MISSING) & (not expected.breaks_off)
    counted &= ~(np.isin(of_step, list(short)) & unshown)
    cuts |= dict.fromkeys(short.values())
    return Passes(of_step, counted, tuple(cuts))


def repeated_numbers(step: Int64, direction: Int64, chunk: Int64, microbatch: Int64, of_step: Int64) -> Int64:
    """Steps that have the number of one before of another pass, under the same mark: a mark holds each number once."""
    seen: dict[tuple[int, ...], int] = {}
    repeated = []
    columns = (step, direction, chunk, microbatch, of_step)
    for index, (*key, in_pass) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if key[-1] >= 0 and seen.setdefault(tuple(key), in_pass) != in_pass:
            repeated.append(index)
    return np.array(repeated, dtype=np.int64)


def _outermost(tree: HostTree, marked: Int64, position: Int64) -> Int64:
    """The outermost marked position around each position, or NONE."""
    is_marked = np.zeros(len(tree), dtype=bool)
    is_marked[marked] = True
    nearest = tree.nearest(is_marked)
    found = lookup(nearest, position)
    while True:
        around = lookup(nearest, lookup(tree.parent, found))
        if (around == NONE).all():
            return found
        found = np.where(around == NONE, found, around)


def _follows_something(tree: HostTree, profiler: ProfilerSteps, position: int) -> bool:
    """Whether the thread of a row did something that ended before it, or something began earlier, a mark or a row
    around it: else the row itself was open as the profiler started, which opens the first mark after that."""
    first = int(np.searchsorted(tree.thread, tree.thread[position]))
    start = tree.start_ns[position]
    earlier = (profiler.start_ns < start).any() or tree.start_ns[first] < start - _ROUNDED_NS
    return bool(earlier or (tree.end_ns[first:position] <= start).any())


def _is_followed(tree: HostTree, profiler: ProfilerSteps, position: int) -> bool:
    """Whether the thread of a row did something after it, or something outlasted it, a mark or a row around it: else
    the row itself was open as the profiler stopped, which closes the last mark before that, and all rows together."""
    first, last = (int(np.searchsorted(tree.thread, tree.thread[position], side)) for side in ("left", "right"))
    end = tree.end_ns[position]
    later = position + 1 < last and tree.start_ns[last - 1] >= end
    outlasted = later or (profiler.end_ns > end + _ROUNDED_NS).any()
    return bool(outlasted or (tree.end_ns[first:last] > end + _ROUNDED_NS).any())


def _starts_of_marks(profiler: ProfilerSteps, mark: Int64) -> Int64:
    order = np.argsort(profiler.number)
    at = np.searchsorted(profiler.number[order], mark)
    starts = np.append(profiler.start_ns[order], np.iinfo(np.int64).min)
    return np.where(mark == MISSING, np.iinfo(np.int64).min, starts[np.where(mark == MISSING, len(profiler), at)])


def _after_gap(gaps: Int64, begin_ns: Int64, time_ns: Int64) -> Bool:
    """Whether rows of the host are lost somewhere from each begin to each time."""
    found = np.zeros(len(time_ns), dtype=bool)
    for start, end in gaps.tolist():
        found |= (end > begin_ns) & (start < time_ns)
    return found


def cut_by_gaps(gaps: Int64, steps: OrderedSteps, mark: Int64, profiler: ProfilerSteps) -> Iterator[tuple[int, str]]:
    """Marks with steps in which the host's rows are lost for a part; without one, from the first step to the last."""
    for number in np.unique(mark).tolist():
        of_mark, mine = profiler.number == number, mark == number
        first = min([int(steps.start_ns[mine].min()), *profiler.start_ns[of_mark].tolist()])
        last = max([int(steps.end_ns[mine].max()), *profiler.end_ns[of_mark].tolist()])
        lost = sum(max(0, min(end, last) - max(start, first)) for start, end in gaps.tolist())
        if lost:
            yield number, f"what its host did for {lost / 1e6:,.3g} ms is missing"


def cut_by_number(
    needed: int | None, steps: OrderedSteps, of_step: Int64, mark: Int64
) -> Iterator[tuple[int, tuple[int, str]]]:
    """Passes with fewer forward steps than all chunks need for all micro-batches; of each, its mark, and why."""
    for number in np.unique(of_step).tolist() if needed else ():
        mine = of_step == number
        forward = int((mine & (steps.direction == FORWARD)).sum())
        if needed and forward % needed and (steps.direction[mine] == BACKWARD).any():
            last = mark[mine].tolist()[-1]
            yield number, (last, f"it has {forward} forward steps, and the batch sizes give {needed} micro-batches")
