"""The kind of what slows a rank: found for each fault, none in healthy jobs, and when a GPU is throttled."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.slow_kinds import cases, found
from tests.analyze.across_ranks import SMALL, analysed_here
from tests.sets import fast
from traceviz_dag.analyze.slow_times import KERNEL_COLUMNS, slow_time
from traceviz_dag.pipeline.across_ranks import analyse_across_ranks
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults

CASES = {name: (kind, settings) for name, kind, settings in cases()}
SHOWN = ("memory dp4 ep2 seed 2", "healthy tp2 pp2 dp2 seed 1", "link tp2 pp2 dp2 seed 1")


@pytest.mark.parametrize("name", fast(CASES, *SHOWN))
def test_each_fault_has_its_kind_and_a_healthy_job_none(name):
    kind, settings = CASES[name]
    assert found(settings) == ({} if kind is None else {1: kind.value})


def test_ranks_on_another_model_of_gpu_are_no_peers(tmp_path):
    job = JobSettings(**SMALL, dp=4, microbatches=2, faults=Faults(slow_gpu=1))
    simulate(job, tmp_path / "job", workers=1)
    (path,) = (tmp_path / "job").rglob("rank_0001*.json.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"NVIDIA H100", b"NVIDIA B200"), 1))
    tables = analyse_across_ranks(analysed_here(tmp_path / "job", tmp_path / "home"))
    rows = {row["rank"]: row for row in tables["rank_speeds"].to_pylist()}
    assert {rank: (row["peers"], row["stage"]) for rank, row in rows.items()} == {
        0: (2, 0),
        1: (0, 0),
        2: (2, 0),
        3: (2, 0),
    }
    assert {row["slow_in"] for row in rows.values()} == {None} and rows[1]["ratio"] is None
    assert tables["group_speeds"].num_rows == tables["stage_speeds"].num_rows == 0


def _kernels(factor: np.ndarray, blocks: np.ndarray | None = None, sizes: str | None = None) -> pa.Table:
    """Kernels of 10 us each, one after the other, each so many times as long."""
    durations = (10_000 * factor).astype(np.int64)
    count = len(factor)
    told = {
        **{"kind": ["computation"] * count, "step": [3] * count, "step_evidence": ["launch"] * count},
        **{"phase": ["forward"] * count, "operator": [None] * count, "input_sizes": [sizes] * count},
        "name": [("gemm", "elementwise")[number % 2] for number in range(count)],
        "start_ns": np.concatenate(([0], np.cumsum(durations)[:-1])) + 5_000,
        "duration_ns": durations,
        "grid_x": blocks if blocks is not None else [(132, 700)[number % 2] for number in range(count)],
        **{"grid_y": [1] * count, "grid_z": [1] * count},
    }
    table = pa.table({name: told[name] for name in KERNEL_COLUMNS})
    for name in ("kind", "step_evidence", "phase", "name", "operator", "input_sizes"):
        table = table.set_column(KERNEL_COLUMNS.index(name), name, table[name].cast(pa.string()).dictionary_encode())
    return table


def _found(factor: np.ndarray, **told):
    usual = np.random.default_rng(1).normal(1.0, 0.02, (3, len(factor)))
    tables = [_kernels(factor * usual[0], **told), *(_kernels(each) for each in usual[1:])]
    return slow_time(tables.__getitem__, 0, [1, 2])


def test_a_gpu_that_is_throttled_for_a_part_of_the_step_is_slow_from_then_to_then():
    factor = np.ones(1000)
    factor[300:500] = 1.4
    part = _found(factor)
    assert part is not None and part.step == 3
    assert part.ratio == pytest.approx(1.4, abs=0.02) and part.outside == pytest.approx(1.0, abs=0.01)
    # To one of 64 pieces of the step.
    assert part.from_ns == pytest.approx(3_000_000, abs=170_000)
    assert part.to_ns == pytest.approx(3_000_000 + 2_800_000, abs=220_000)


@pytest.mark.parametrize(
    "factor",
    [np.ones(1000), np.full(1000, 1.4), np.where(np.arange(1000) == 500, 40.0, 1.0), np.full(10, 1.0)],
    ids=["healthy", "all the time", "one long kernel", "too few kernels"],
)
def test_nothing_else_is_throttling(factor):
    assert _found(factor) is None


def test_more_work_for_a_part_of_the_step_is_no_throttling():
    factor = np.ones(1000)
    factor[300:500] = 1.4
    blocks = np.where(np.arange(1000) % 2 == 0, 132, (700 * factor).astype(int))
    assert _found(factor, blocks=blocks) is None
    # Of recorded sizes each is work of its own, which no peer has.
    assert _found(factor, sizes="[[7]]") is None
