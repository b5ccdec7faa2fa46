"""Small steps of a few ranks, drawn at random: kernels on streams, waits between them, calls that wait, meetings."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from traceviz_dag.analyze.causes.kernel_edges import INFERRED, KernelEdges
from traceviz_dag.analyze.causes.rank_kernels import PHASES, RankKernels
from traceviz_dag.analyze.causes.rank_work import HostWaits, RankWork, rank_work
from traceviz_dag.analyze.causes.step_work import Members, StepWork, step_work
from traceviz_dag.read.events import MISSING

END = 3_000
DIMENSIONS = ("tp", "pp")


def kernels_drawn(draw: np.random.Generator, count: int, streams: int) -> RankKernels:
    """Kernels of a rank that follow one another on their streams, with gaps, and launched before they start."""
    stream = np.sort(draw.integers(0, streams, count))
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for one in range(streams):
        mine = np.flatnonzero(stream == one)
        bounds = np.sort(draw.integers(50, END, 2 * len(mine)))
        touching = draw.random(len(mine)) < 0.4
        start[mine], end[mine] = bounds[::2], bounds[1::2]
        start[mine[1:]] = np.where(touching[1:], end[mine[:-1]], start[mine[1:]])
    launch = np.maximum(start - draw.integers(1, 200, count), 0)
    communicates = draw.random(count) < 0.4
    microbatch = draw.integers(0, 2, count)
    none, no = np.full(count, MISSING), np.zeros(count, dtype=bool)
    return RankKernels(
        np.arange(count), start, end, stream, stream, np.where(draw.random(count) < 0.1, MISSING, launch), launch + 1,
        np.zeros(count, np.int64), communicates, ~communicates, np.where(communicates, draw.integers(0, 2, count), -1),
        np.full(count, -1), draw.integers(0, 2, count) + PHASES.index("forward"), np.zeros(count, np.int64),
        np.where(draw.random(count) < 0.2, MISSING, microbatch), none, np.zeros(count, np.int64),
        np.full(count, -1), np.zeros(count, np.int64), no, draw.integers(0, 4, count),
        draw.integers(0, 2, count), no, none, none, no, no, int(draw.integers(0, 5)), DIMENSIONS, (),
    )  # fmt: skip


def edges_drawn(draw: np.random.Generator, kernels: RankKernels) -> KernelEdges:
    """Some waits for kernels that started before; of some the kernel ends later than the one that is said to wait."""
    count = len(kernels)
    one, other = draw.integers(0, count, (2, 3 * count))
    fits = (kernels.start_ns[one] > kernels.start_ns[other]) & (kernels.stream[one] != kernels.stream[other])
    fits &= (kernels.start_ns[one] >= kernels.end_ns[other]) | (draw.random(len(one)) < 0.05)
    none = np.empty(0, np.int64)
    return KernelEdges(one[fits], other[fits], np.full(int(fits.sum()), INFERRED), none, none)


def waits_drawn(draw: np.random.Generator, kernels: RankKernels) -> HostWaits:
    """Calls that end after the kernels that they wait for."""
    waits = int(draw.integers(0, 3))
    ends = np.sort(draw.choice(np.arange(200, END), waits, replace=False)).astype(np.int64)
    call, kernel = [], []
    for number, end in enumerate(ends.tolist()):
        ready = np.flatnonzero(kernels.end_ns <= end)
        for place in ready[draw.random(len(ready)) < 0.3].tolist():
            call.append(number)
            kernel.append(place)
    return HostWaits(ends - 1, ends, draw.integers(0, 2, waits), np.array(call, np.int64), np.array(kernel, np.int64))


@st.composite
def small_steps(draw: st.DrawFn) -> StepWork:
    """A step of one to three ranks, whose joined kernels meet in the order of their starts."""
    ranks, count = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kernels = [kernels_drawn(numbers, count, draw(st.integers(1, 3))) for _ in range(ranks)]
    meetings = draw(st.integers(0, 4)) if ranks > 1 else 0
    meetings = min([meetings, *(int(each.communicates.sum()) for each in kernels)])
    joined = []
    for each in kernels:
        chosen = np.flatnonzero(each.communicates)[:meetings]
        joined.append(chosen[np.argsort(each.start_ns[chosen], kind="stable")])
    works: list[RankWork] = [
        rank_work(
            each,
            edges_drawn(numbers, each),
            np.sort(mine),
            waits_drawn(numbers, each),
            (0, END + draw(st.integers(0, 50))),
            hidden=[1],
        )
        for each, mine in zip(kernels, joined, strict=True)
    ]
    members = Members(
        np.repeat(np.arange(ranks), meetings), np.concatenate(joined), np.tile(np.arange(meetings), ranks)
    )
    return step_work(range(ranks), works, members)
