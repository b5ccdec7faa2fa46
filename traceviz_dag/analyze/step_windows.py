"""The windows of training steps: the host's, or where the host runs ahead, those of the kernels launched in them.

A host that waits for its GPU in each step marks when the GPU works on it. One that does not wait marks when it
launches: its step may be over before the first of its kernels starts, so that its window holds kernels of other steps.
A step without a mark, in which the profiler started, may run on into the first mark: that step begins behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import holds, integers, numbers
from traceviz_dag.arrays import NONE, Bool, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Kind, StepEvidence, WindowFrom

AHEAD_SHARE = 0.1
"""A host runs ahead where more than this share of a step's kernel time starts after its end on the host."""


Step = tuple[int, int, int]
"""Number, start and end, ns."""


def gpu_windows(
    start_ns: Int64, end_ns: Int64, step: Int64, launched: Bool, steps_start_ns: Int64, steps_end_ns: Int64
) -> tuple[Int64, Int64, WindowFrom]:
    """Starts and ends of the windows of the steps of one GPU, and what they are.

    Args:
        start_ns, end_ns: of each kernel. step: index of its step, or NONE. launched: whether the step is that of its
            launch.
        steps_start_ns, steps_end_ns: of each step on the host.
    """
    mine = np.flatnonzero(launched & (step != NONE))
    # What ended before a step began was not launched in it: its correlation belongs to another launch.
    mine = mine[end_ns[mine] > steps_start_ns[step[mine]]]
    if not len(mine):
        unknown = bool((step != NONE).any())
        return steps_start_ns, steps_end_ns, WindowFrom.UNKNOWN_LAUNCHES if unknown else WindowFrom.HOST
    of, starts, ends = step[mine], start_ns[mine], end_ns[mine]
    count = len(steps_start_ns)
    total = np.bincount(of, weights=ends - starts, minlength=count)
    after = np.bincount(of, weights=np.where(starts >= steps_end_ns[of], ends - starts, 0), minlength=count)
    if not (after > AHEAD_SHARE * total).any():
        return steps_start_ns, steps_end_ns, WindowFrom.HOST
    first, last = steps_start_ns.copy(), steps_end_ns.copy()
    held = np.unique(of)
    first[held], last[held] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(first, of, starts)
    np.maximum.at(last, of, ends)
    return first, last, WindowFrom.LAUNCHES


def windows_of_kernels(kernels: pa.Table, steps: Sequence[Step]) -> tuple[list[Step], WindowFrom]:
    """The windows of a trace's training steps, and what they are.

    A window that the host marks begins where the kernels of a cut step before it have ended, at the latest with the
    first kernel launched in it.

    Args:
        kernels: table ``kernels`` of the whole file. steps: its ProfilerSteps, as the host marks them.
    """
    if not steps or not kernels.num_rows:
        return list(steps), WindowFrom.HOST
    number = numbers(kernels["step"], MISSING)
    index = np.full(len(number), NONE)
    # Backwards: the first of equal ones counts.
    for place in reversed(range(len(steps))):
        index[number == steps[place][0]] = place
    start = integers(kernels, "start_ns")
    first, last, source = gpu_windows(
        start,
        start + integers(kernels, "duration_ns"),
        index,
        holds(kernels, "step_evidence", StepEvidence.LAUNCH.value),
        np.array([begin for _, begin, _ in steps], dtype=np.int64),
        np.array([end for _, _, end in steps], dtype=np.int64),
    )
    if source != WindowFrom.LAUNCHES:
        leading = int(first.argmin())
        first[leading] = max(first[leading], min(last[leading], _begin_behind_cut(kernels, index == leading)))
    rows = zip((number for number, _, _ in steps), first.tolist(), last.tolist(), strict=True)
    return list(rows), source


def _begin_behind_cut(kernels: pa.Table, of_leading: Bool) -> int:
    """The last end of what a cut step runs ahead of the leading step, at most the first start of that step's kernels,
    copies apart; 0 where nothing was cut."""
    start = integers(kernels, "start_ns")
    own = of_leading & ~holds(kernels, "kind", Kind.MEMORY.value)
    own_first = int(start[own].min(initial=np.iinfo(np.int64).max))
    cut = holds(kernels, "step_evidence", StepEvidence.CUT.value) & (start < own_first)
    return min(own_first, int((start + integers(kernels, "duration_ns"))[cut].max(initial=0)))
