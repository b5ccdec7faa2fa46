"""Where one forward step ends and the next begins, in a trace without call stacks whose steps run into each other.

Under combined 1F1B no backward step lies between two forward steps, and an exchange between stages may lie inside one.
After each forward step the schedule adds its tokens to a counter: the one ``add_`` of the main thread, in no other
operator, between the operators of two forward steps that autograd knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.operators import operators_named, outermost_operators
from traceviz_dag.classify.phases.backward_inference import BackwardSteps
from traceviz_dag.classify.phases.marks import ProfilerSteps, step_at
from traceviz_dag.read.events import TraceEvents
from traceviz_dag.read.host_tree import HostTree


def runs_into_each_other(tree: HostTree, backward: BackwardSteps, made: Int64) -> bool:
    """Whether forward work runs inside a backward step.

    Args:
        made: tree positions of the operators that autograd knows.
    """
    holder = np.searchsorted(backward.start_ns, tree.start_ns[made], side="right") - 1
    return bool(((holder >= 0) & (tree.start_ns[made] < lookup(backward.end_ns, holder))).any())


def divided_by_counters(
    trace: TraceEvents,
    tree: HostTree,
    main: int,
    own: Bool,
    profiler: ProfilerSteps,
    backward: BackwardSteps,
    spans: tuple[Int64, Int64],
    forward: Int64,
) -> Int64:
    """The forward step of each position, where steps run into each other.

    What lies between the operators of two forward steps belongs to the one before the counter or to the one after it;
    to neither for certain where there is no counter, or more than one ``add_``.

    Args:
        own: tree positions of the main thread that are part of no exchange between stages.
        spans: first start and last end of the operators of each backward step's forward step.
        forward: per tree position the backward step whose forward step it seems to belong to, or NONE.
    """
    divided = forward.copy()
    counters = _unmade_additions(trace, tree, main, backward)
    for before, after, end, begin in _gaps(profiler, backward, spans):
        inside = own & (tree.start_ns >= end) & (tree.start_ns < begin)
        found = counters[(counters >= end) & (counters < begin)]
        if len(found) == 1:
            divided[inside & (tree.start_ns <= found[0])] = before
            if after != NONE:
                divided[inside & (tree.start_ns > found[0])] = after
        elif after != NONE:
            divided[inside] = NONE
    return divided


def _gaps(
    profiler: ProfilerSteps, backward: BackwardSteps, spans: tuple[Int64, Int64]
) -> Iterator[tuple[int, int, int, int]]:
    """(forward step, the next one or NONE, end of the first, start of the next or end of all backward work) of each
    forward step, training step by training step."""
    known = np.flatnonzero(spans[0] <= spans[1])
    order = known[np.argsort(spans[0][known], kind="stable")]
    training = step_at(profiler, spans[0][order])
    for number in np.unique(training).tolist():
        mine = order[training == number]
        for before, after in zip(mine[:-1].tolist(), mine[1:].tolist(), strict=True):
            yield before, after, int(spans[1][before]), int(spans[0][after])
        last = int(mine[-1])
        yield last, NONE, int(spans[1][last]), int(backward.end_ns[mine].max())


def _unmade_additions(trace: TraceEvents, tree: HostTree, main: int, backward: BackwardSteps) -> Int64:
    """Starts of ``add_`` in no other operator whose node no backward step runs."""
    outermost = outermost_operators(trace, tree, main)
    added: Bool = operators_named(trace, tree, "aten::add_")[outermost]
    return tree.start_ns[outermost[added & (backward.maker_step[outermost] == NONE)]]
