"""What the host did at some times is the same, whatever other times are asked about."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.kineto_file import AUTOGRAD, MAIN, KinetoFile
from traceviz_dag.analyze.gaps.host_work import host_of, longest_within
from traceviz_dag.analyze.intervals import Intervals, union
from traceviz_dag.arrays import lookup
from traceviz_dag.read.host_tree import innermost
from traceviz_dag.read.kineto.reader import read_kineto

NAMES = ("train.py(3): step", "torch/nn/functional.py(9): linear", "gc.py(3): gc_collect", "loader.py(4): get_batch")


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_not_open_at_the_times_change_nothing(tmp_path, seed):
    chance = random.Random(seed)
    file = KinetoFile()

    def nest(start: int, end: int, thread: int) -> None:
        # Rounded to microseconds, a row can outlast what called it, by one.
        file.python(chance.choice(NAMES), start, end + chance.choice((0, 0, 1_000)), thread)
        cuts = [*sorted(chance.randrange(start, end, 1_000) for _ in range(3)), end] if end - start > 4_000 else ()
        for begin, stop in zip(cuts[::2], cuts[1::2], strict=True):
            if stop > begin and (begin, stop) != (start, end):
                nest(begin, stop, thread)

    for thread in (MAIN, AUTOGRAD):
        nest(0, 200_000, thread)
        nest(230_000, 400_000, thread)
    for number in range(30):
        start = chance.randrange(0, 400_000, 1_000)
        file.row("cuda_runtime", "cudaMalloc", start, start + chance.randrange(3_000), correlation=number)
    trace = read_kineto(file.write(tmp_path / "rank_0000.json"))
    stacked, main = np.arange(len(trace.host)), next(i for i, one in enumerate(trace.threads) if one.thread_id == MAIN)
    returned = (trace.host.start_ns + trace.host.duration_ns).tolist()
    starts = np.array([chance.choice((chance.randrange(420_000), chance.choice(returned) - 700)) for _ in range(40)])
    ends = starts + np.array([chance.choice((0, 500, 9_000)) for _ in starts])
    thread = np.array([chance.randrange(len(trace.threads)) for _ in starts])
    seen = []
    for times in (union(starts, ends), Intervals(np.array([-1]), np.array([1_000_000]))):
        host = host_of(trace, stacked, main, times)
        row, busy = longest_within(host, thread, starts, ends)
        at = np.where(ends > starts, innermost(host.tree, thread.astype(np.int32), starts), -1)
        told = [lookup(host.tree.rows, each) for each in (row, at, lookup(host.key, at), lookup(host.caller, at))]
        seen.append([*told, busy, lookup(host.work, at)])
    assert np.array_equal(*seen)
