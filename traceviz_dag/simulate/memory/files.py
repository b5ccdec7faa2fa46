"""Snapshots of GPU memory beside the traces of a simulated job, which fit them in time, and their truth."""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traceviz_dag.simulate.files.identity import BASE_NS, Clock
from traceviz_dag.simulate.layouts import trace_path
from traceviz_dag.simulate.memory.allocator import Allocator
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, Work
from traceviz_dag.simulate.rank_grids import RankGrids
from traceviz_dag.simulate.settings import JobSettings, Layout, Recompute
from traceviz_dag.system.whole_files import whole_file, write_atomically
from traceviz_dag.vocabulary import MemoryCategory, Phase

MEMORY_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("rank", "step", "stage", "in_flight", "layer_bytes", "peak_bytes")),
        *((str(category), pa.int64()) for category in MemoryCategory),
        ("reserved_bytes", pa.int64()),
    ]
)
"""The truth: the peak of requested bytes since the job began, by category, and the most chunks of micro-batches at once
whose activations were kept; layer_bytes: what a layer keeps of a micro-batch; reserved_bytes: all segments at the end
of the step, since none is given back."""

_OPTIMIZER = re.compile(
    r'"cat": "user_annotation", "name": "Optimizer\.step[^"]*"[^\n]*\n?\s*"ts": ([\d.]+), "dur": ([\d.]+)'
)


def write_snapshots(settings: JobSettings, out: Path, truth: Path) -> None:
    """Write a snapshot per trace, of a dense model, and the truth of all, from the truth of the traces.

    Args:
        out: the folder of the traces. truth: that of the truth.

    The recording begins with the job, with Python stacks alone; each snapshot holds all events up to the end of its
    trace.
    """
    grids = RankGrids.of(settings)
    spans = pq.read_table(truth / "microbatches.parquet")
    rows: list[dict[str, int]] = []
    for rank in settings.ranks_with_files:
        mine = spans.filter(pc.equal(spans["rank"], rank))
        rows += _write_rank(settings, rank, grids.coordinates(rank)["pp"], mine, out)
    with whole_file(truth / "memory.parquet") as file:
        pq.write_table(pa.Table.from_pylist(rows, MEMORY_SCHEMA), file)


def snapshot_name(settings: JobSettings, rank: int, step: int) -> str:
    """The name of a snapshot, beside its trace."""
    if settings.layout is Layout.ITERATION:
        return f"rank_{rank:04d}_iter_{step}.memory.pickle"
    return f"rank-{rank}.memory.pickle"


def snapshots_of_ranks(settings: JobSettings, out: Path) -> dict[int, Path]:
    """Rank → its last snapshot, where all steps of a rank share a trace."""
    first, last = settings.first_iteration, settings.first_iteration + settings.iterations - 1
    return {
        rank: (out / trace_path(settings, rank, first)).with_name(snapshot_name(settings, rank, last))
        for rank in settings.ranks_with_files
    }


def _write_rank(settings: JobSettings, rank: int, place: int, spans: pa.Table, out: Path) -> list[dict[str, int]]:
    layers = settings.layers_of_stages[place :: settings.pp]
    of_stage = StageSettings(
        hidden=settings.hidden,
        sequence=settings.sequence // settings.cp,
        batch=settings.batch,
        heads=settings.heads,
        tensor=settings.tp,
        recompute=settings.recompute is Recompute.FULL,
        cpp=False,
    )
    allocator = Allocator(device=rank % settings.node_size)
    first = settings.first_iteration
    allocator.now_us = int(_epoch(settings, rank, spans["host_start_ns"].to_numpy()).min()) // 1000 - 10_000
    stage = Stage(of_stage, allocator, layers)
    rows = []
    for step in range(first, first + settings.iterations):
        of_step = spans.filter(pc.equal(spans["step"], step)).to_pylist()
        trace = out / trace_path(settings, rank, step if settings.layout is Layout.ITERATION else first)
        stage.step(step, [*_passes(settings, rank, of_step), _optimizer(trace, step - first, settings.layout)])
        rows.append(
            {
                **{"rank": rank, "step": step, "stage": place, "in_flight": stage.truth.in_flight},
                **{"layer_bytes": of_stage.layer_bytes, "peak_bytes": stage.truth.peak_bytes},
                "reserved_bytes": allocator.reserved(),
                **{str(category): stage.truth.peak[category] for category in MemoryCategory},
            }
        )
        if settings.layout is Layout.ITERATION or step == first + settings.iterations - 1:
            content = pickle.dumps(allocator.snapshot(), protocol=4)
            write_atomically(trace.parent / snapshot_name(settings, rank, step), content)
    return rows


def _passes(settings: JobSettings, rank: int, rows: list[dict[str, object]]) -> list[Work]:
    found = []
    for row in rows:
        if row["phase"] in (Phase.FORWARD, Phase.BACKWARD):
            times = _epoch(settings, rank, np.array([row["host_start_ns"], row["host_end_ns"]], np.int64))
            chunk, microbatch = int(str(row["chunk"])), int(str(row["microbatch"]))
            found.append(Work(Phase(str(row["phase"])), chunk, microbatch, *times.tolist()))
    return sorted(found, key=lambda work: work.start_ns)


def _epoch(settings: JobSettings, rank: int, true_ns: np.ndarray) -> np.ndarray:
    return BASE_NS + Clock.of(settings, rank).local(true_ns)


def _optimizer(trace: Path, index: int, layout: Layout) -> Work:
    """The optimizer's step as the trace has it."""
    data = trace.read_bytes()
    text = (gzip.decompress(data) if trace.suffix == ".gz" else data).decode()
    found = _OPTIMIZER.findall(text)
    start, duration = found[0 if layout is Layout.ITERATION else index]
    base = BASE_NS if f'"baseTimeNanoseconds": {BASE_NS}' in text else 0
    start_ns = base + _nanoseconds(start)
    return Work(Phase.OPTIMIZER, start_ns=start_ns, end_ns=start_ns + _nanoseconds(duration))


def _nanoseconds(microseconds: str) -> int:
    whole, _, part = microseconds.partition(".")
    return int(whole) * 1000 + int(part.ljust(3, "0")[:3])
