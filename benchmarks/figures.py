"""How long figures take to draw and to save, against the number of kernels and of ranks.

Run: ``python benchmarks/figures.py [--kernels 1000 100000] [--ranks 4 64 1024]``. Tables are made in memory,
so that nothing but drawing is timed; the first figure of a process also pays for loading matplotlib, which is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from tests.show.job import empty_table
from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.show.figures.model_replica import draw_model_replica
from traceviz_dag.show.figures.overlap_bars import draw_overlap_bars
from traceviz_dag.show.figures.pipeline_group import draw_pipeline_group
from traceviz_dag.show.figures.rank_timeline import draw_rank_timeline
from traceviz_dag.show.page.rendering import encode
from traceviz_dag.tables import TABLES

SEED = 20260801
STAGES = 8
KERNELS_A_RANK = 3_000


@dataclass(frozen=True)
class Job:
    """A job whose ranks share the tables of one rank, moved by a little for each stage."""

    ranks: int
    kernels: pa.Table
    microbatches: pa.Table
    overlap: pa.Table
    run: str = "benchmark"
    iteration: int = 0

    def table(self, name: str, columns: Sequence[str], rank: int | None = None) -> pa.Table:
        if name == "topology":
            return pa.table({column: self._coordinates(column) for column in columns})
        if name in ("kernels", "microbatches"):
            return getattr(self, name).select(list(columns))
        if name == "overlap":
            return self._overlap(rank).select(list(columns))
        if name == "traces" and rank is not None:
            return pa.table({"status": ["read"]}).select(list(columns))
        return empty_table(name, columns)

    def _coordinates(self, column: str) -> pa.Array:
        rank = np.arange(self.ranks)
        stages = min(STAGES, self.ranks)
        pipelines = self.ranks // stages
        values = {"rank": rank, "stage": rank // pipelines, "pipeline": rank % pipelines, "model_replica": rank * 0}
        return pa.array(values.get(column, rank * 0 + stages))

    def _overlap(self, rank: int | None) -> pa.Table:
        each = self.overlap
        if rank is not None:
            return each
        return pa.concat_tables(
            [each.append_column("rank", pa.array(np.full(len(each), number))) for number in range(self.ranks)]
        )


def make_job(kernels: int, ranks: int) -> Job:
    """Kernels in forward and backward steps, a quarter of them communication, in the proportions of a real step."""
    generator = np.random.default_rng(SEED)
    starts = np.cumsum(generator.integers(1_000, 60_000, kernels)) + 1_770_000_000_000_000_000
    category = generator.choice(5, kernels, p=[0.3, 0.45, 0.15, 0.05, 0.05])
    names = ["fwd_computation", "bwd_computation", "fwd_communication", "pp_communication", "dp_communication"]
    kinds = np.array(["computation", "computation", "communication", "communication", "communication"])
    unit = np.arange(kernels) * 32 // kernels
    own = category < 3
    columns = {column.name: pa.nulls(kernels, column.type) for column in TABLES["kernels"].columns}
    columns |= {
        "kernel_id": np.arange(kernels),
        "start_ns": starts,
        "duration_ns": generator.integers(500, 50_000, kernels),
        "device": ["gpu:0"] * kernels,
        "kind": kinds[category].tolist(),
        "phase": np.where(unit % 2, "backward", "forward").tolist(),
        "dimension": pa.array(np.array([None, None, "tp", "pp", "dp"], dtype=object)[category]),
        "category": [names[each] for each in category],
        "chunk": pa.array(np.zeros(kernels, np.int32), mask=~own),
        "microbatch": pa.array((unit // 2).astype(np.int32), mask=~own),
    }
    table = TABLES["kernels"].from_columns(columns)
    return Job(ranks, table, microbatches_table(table), overlap_table(table))


def seconds(work: Callable[[], object]) -> tuple[float, object]:
    """Time of one call, and its result."""
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def report(name: str, intervals: int, ranks: int, draw: Callable[[], Figure | None]) -> None:
    """Draw, save in every format, and print the times."""
    drawing, figure = seconds(draw)
    assert isinstance(figure, Figure)
    saved = {kind: seconds(lambda kind=kind: encode(figure, kind)) for kind in ("png", "svg", "pdf")}
    times = " ".join(f"{taken:>6.2f}" for taken, _ in saved.values())
    sizes = " ".join(f"{len(data) / 1000:>7.0f}" for _, data in saved.values())
    print(f"{name:<16} {ranks:>5} {intervals:>10,} {drawing:>7.2f} {times} {sizes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    options = parser.parse_args()
    warm = make_job(1_000, 4)
    for kind in ("png", "svg", "pdf"):
        encode(draw_pipeline_group(warm, 0), kind)
    print(f"{'figure':<16} {'ranks':>5} {'kernels':>10} {'draw s':>7} {'png s':>6} {'svg s':>6} {'pdf s':>6}", end=" ")
    print(f"{'png kB':>7} {'svg kB':>7} {'pdf kB':>7}")
    for kernels in options.kernels:
        job = make_job(kernels, 1)
        report("rank timeline", kernels, 1, lambda job=job: draw_rank_timeline(job, 0))
        report("overlap bars", kernels, 1, lambda job=job: draw_overlap_bars(job, 0))
    for ranks in options.ranks:
        job = make_job(KERNELS_A_RANK, ranks)
        stages = min(STAGES, ranks)
        report("pipeline group", stages * KERNELS_A_RANK, stages, lambda job=job: draw_pipeline_group(job, 0))
        report("model replica", ranks * KERNELS_A_RANK, ranks, lambda job=job: draw_model_replica(job, 0))


if __name__ == "__main__":
    main()
