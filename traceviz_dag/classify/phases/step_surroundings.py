"""What the main thread does around the micro-batches of a training step, in a trace without call stacks.

First gradients are set to zero. After the last backward step come finalisation, the optimizer and the report of the
loss. The optimizer works without autograd, so its operators carry no sequence numbers, while those around it do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.classify.operators import operators_named, outermost_operators, packs_sequences
from traceviz_dag.classify.phases.marks import ProfilerSteps, step_at
from traceviz_dag.classify.phases.training_windows import GRADIENTS_TO_ZERO, OPTIMIZER_STEP
from traceviz_dag.read.events import USER_ANNOTATION, TraceEvents
from traceviz_dag.read.host_tree import HostTree

_GATHERING = ("c10d::allgather", "c10d::_allgather_base")
_ZEROING = ("aten::zero_", "aten::zeros", "aten::_foreach_zero_", "aten::fill_", "aten::empty")
_ROUTING = ("c10d::alltoall",)
_COUNTER = ("aten::zeros",)
_PARALLEL = "PARALLEL_GROUP"
"""In the descriptions of Megatron's process groups, which every job of it has."""

_NEVER = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Communications:
    """When kernels were launched that distinguish the parts of a training step, ns.

    Attributes:
        optimizer_ns: communication of the gradient norm, and kernels that only an optimizer runs.
        other_ns: all communication that is not the optimizer's.
    """

    optimizer_ns: Int64
    other_ns: Int64


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of each training step around its micro-batches.

    Attributes:
        zeroed, unclear: tree positions that set gradients to zero before the first forward step; and those before it
            of which nothing shows whether they are part of it.
        number: training steps, ascending; the rest by these.
        backward_end_ns, finished_ns, opens_ns, report_ns: end of the last backward step; start of the last sign of
            finalisation; start of the optimizer; start of what follows it.
    """

    zeroed: Bool
    unclear: Bool
    profiler: ProfilerSteps
    number: Int64
    backward_end_ns: Int64
    finished_ns: Int64
    opens_ns: Int64
    report_ns: Int64

    def finalised(self, start_ns: Int64) -> Bool:
        """Whether what starts then is part of finalisation."""
        at, known = self._index(start_ns)
        return known & (start_ns >= self.backward_end_ns[at]) & (start_ns <= self.finished_ns[at])

    def optimized(self, end_ns: Int64) -> Bool:
        """Whether what ends then (or happens then) is part of the optimizer, given that it starts before the report."""
        at, known = self._index(end_ns - 1)
        return known & (end_ns > self.opens_ns[at])

    def reported(self, start_ns: Int64) -> Bool:
        """Whether what starts then follows the optimizer."""
        at, known = self._index(start_ns)
        return known & (start_ns >= self.report_ns[at])

    def _index(self, time_ns: Int64) -> tuple[Int64, Bool]:
        step = step_at(self.profiler, time_ns)
        at = np.clip(np.searchsorted(self.number, step), 0, len(self.number) - 1)
        return at, self.number[at] == step


def around_steps(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    profiler: ProfilerSteps,
    forward_start_ns: Int64,
    backward_end_ns: Int64,
    told: Communications,
) -> Surroundings:
    """Find what lies around the micro-batches' steps.

    Args:
        forward_start_ns, backward_end_ns: first sign of each forward step, last of each backward step.
    """
    outermost = outermost_operators(trace, tree, main)
    zeroed, unclear = _before(trace, tree, main, profiler, outermost, forward_start_ns, told)
    step = step_at(profiler, backward_end_ns - 1)
    rows = []
    for number in np.unique(step).tolist():
        last = int(backward_end_ns[step == number].max())
        inside = outermost[tree.start_ns[outermost] >= last]
        inside = inside[step_at(profiler, tree.start_ns[inside]) == number]
        end = int(tree.end_ns[inside].max()) if len(inside) else last
        rows.append((number, last, *_after(trace, tree, main, inside, (last, end), told)))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Surroundings(zeroed, unclear, profiler, *columns)


def _before(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    profiler: ProfilerSteps,
    outermost: Int64,
    forward_start_ns: Int64,
    told: Communications,
) -> tuple[Bool, Bool]:
    """(zeroed, unclear) positions before the first forward step of each training step.

    A step begins by setting gradients and counters to zero, then loads its first micro-batch. Parameters that are
    gathered in between are the schedule's: a module's hook gathers them once the micro-batch is loaded. Sharded
    training without Megatron loads it unseen, and what it gathers there is its first layer's. Where a step does not
    begin like that, what comes before the first operator that autograd knows and the first communication stays open.

    Packed sequences are sent to the ranks that run them before the schedule sets its counter of tokens to zero.
    """
    step_of_outermost = step_at(profiler, tree.start_ns[outermost])
    zeroing = operators_named(trace, tree, *_ZEROING)[outermost]
    gathering = operators_named(trace, tree, *_GATHERING)[outermost]
    groups = trace.header.process_groups
    if groups and not any(_PARALLEL in (group.description or "") for group in groups):
        gathering[:] = False
    packs = packs_sequences(trace)
    routing, counter = (operators_named(trace, tree, *names)[outermost] for names in (_ROUTING, _COUNTER))
    begins = np.zeros(len(tree), dtype=bool)
    unclear = np.zeros(len(tree), dtype=bool)
    step_of_position = step_at(profiler, tree.start_ns)
    forward_starts = forward_start_ns[forward_start_ns < _NEVER.max]
    signs = np.sort(np.concatenate([forward_starts, told.other_ns]))
    for number in np.unique(step_at(profiler, forward_starts)).tolist():
        mine = np.flatnonzero(step_of_outermost == number)
        run = np.minimum.accumulate(zeroing[mine] | gathering[mine])
        early = tree.start_ns[outermost[mine]] < forward_starts[step_at(profiler, forward_starts) == number].min()
        if packs or (routing[mine] & early).any():
            counted = np.flatnonzero(counter[mine] & early)
            run[: counted.max(initial=-1) + 1] = True
        if run.any() and zeroing[mine[0]]:
            begins[outermost[mine[run]]] = True
            continue
        of_step = (step_of_position == number) & (tree.thread == main)
        following = np.searchsorted(signs, tree.start_ns[of_step].min())
        unclear |= of_step & (tree.end_ns <= signs[min(following, len(signs) - 1)])
    return (tree.nearest(begins) != NONE) & (tree.thread == main), unclear


def opens_by_zeroing(trace: TraceEvents, tree: HostTree, main: int) -> bool:
    """Whether the first that the main thread does is to set gradients to zero."""
    outermost = outermost_operators(trace, tree, main)
    leading = np.minimum.accumulate(operators_named(trace, tree, *_ZEROING, *_GATHERING)[outermost])
    return bool((leading & operators_named(trace, tree, *GRADIENTS_TO_ZERO)[outermost]).any())


def _after(
    trace: TraceEvents, tree: HostTree, main: int, inside: Int64, span: tuple[int, int], told: Communications
) -> tuple[int, int, int]:
    """(finished, optimizer opens, report), ns, of one training step.

    Args:
        inside: outermost operators of the main thread after the last backward step.
        span: end of the last backward step, end of the last of these operators.
    """
    last, end = span
    host = trace.host
    is_optimizer = np.array([name.startswith(OPTIMIZER_STEP) for name in trace.strings], dtype=bool)
    rows = np.flatnonzero((host.category == USER_ANNOTATION) & is_optimizer[host.name] & (host.thread == main))
    rows = rows[(host.start_ns[rows] >= last) & (host.start_ns[rows] <= end)]
    signs = np.concatenate([host.start_ns[rows], told.optimizer_ns])
    signs = signs[(signs >= last) & (signs <= end)]
    sign = int(signs.min()) if len(signs) else end

    numbered = inside[host.sequence_number[tree.rows[inside]] >= 0]
    before = numbered[tree.start_ns[numbered] < sign]
    communicated = told.other_ns[(told.other_ns >= last) & (told.other_ns < sign)]
    finished = int(max([last, *communicated.tolist(), *tree.start_ns[before].tolist()]))
    if len(before) and len(signs):
        sign = min(sign, max([finished, *tree.end_ns[inside[tree.start_ns[inside] <= finished]].tolist()]))

    annotated_until = int((host.start_ns[rows] + host.duration_ns[rows]).max()) if len(rows) else _NEVER.max
    later = numbered[tree.start_ns[numbered] >= annotated_until]
    return finished, sign, int(tree.start_ns[later].min()) if len(later) else int(_NEVER.max)
