"""The graph of a step from real files: it gives the trace back, its path is the step, and its predictions come true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.what_if import cases, outcome
from tests.simulate.conftest import small
from traceviz_dag.analyze.causes.critical_path import critical_path, slacks
from traceviz_dag.analyze.causes.graph import CircleError
from traceviz_dag.analyze.causes.kernel_edges import HOLDS_IN, SLACK_NS
from traceviz_dag.analyze.causes.rank_work import EdgeKind
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.pipeline.across_ranks import StoredIteration, iterations_at
from traceviz_dag.pipeline.causes import RankedStep, causes_tables, ranked_steps
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import ContextExchange, Era, Graphs, Recompute

JOBS = {
    "1f1b": small(pp=2, dp=2, layers=4),
    "interleaved": small(tp=2, pp=2, vpp=2, layers=4, recompute=Recompute.FULL),
    "combined experts": small(pp=2, vpp=2, dp=2, ep=2, layers=4, overlap_expert=True),
    "context ring": small(cp=2, dp=2, context_exchange=ContextExchange.P2P),
    "data alone": small(dp=4),
    "one rank": small(),
    "graphs": small(tp=2, pp=2, cuda_graphs=Graphs.LAYER),
    "old": small(tp=2, dp=2, era=Era.OLD),
    "without stacks": small(pp=2, dp=2, stacks=False),
    "clocks apart": small(pp=2, dp=2, clock_skew_ms=30.0, clock_drift_ppm=20.0, node_size=2),
    "lost launches": small(pp=2, dp=2),
}


@contextmanager
def analysed(job: JobSettings, folder: Path) -> Iterator[StoredIteration]:
    """A simulated job, analysed."""
    simulate(job, folder / "job", workers=1)
    with iterations_at(folder / "job", folder / "home") as iterations:
        yield iterations[0]


def steps_of(iteration: StoredIteration) -> list[RankedStep]:
    """The graphs of an iteration's steps."""
    return list(ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages")))


@pytest.mark.parametrize("name", JOBS)
def test_the_replay_gives_every_kernel_back_and_the_path_is_the_step(name, tmp_path):
    with analysed(JOBS[name], tmp_path) as iteration:
        for ranked in steps_of(iteration):
            step, times = ranked.step, ranked.step.times()
            ends = step.replay(times)
            for place, work in enumerate(step.works):
                last = np.append(work.first[1:], len(work.kernels)) - 1
                low = step.base[place]
                replayed = ends[low : low + work.segments] + step.begin_ns[place] + step.offset_ns[place]
                np.testing.assert_array_equal(replayed, work.kernels.end_ns[last])
                assert ends[low + work.end] + step.begin_ns[place] + step.offset_ns[place] == work.end_ns
            path = critical_path(step, times)
            assert path.duration_ns.sum() == step.step_ns(ends)
            assert (path.duration_ns > 0).all()
            slack = slacks(step, times)
            assert min(each.min() for each in slack) == 0
            for place, kernel in zip(path.rank.tolist(), path.kernel.tolist(), strict=True):
                assert kernel < 0 or slack[place][kernel] <= 0
