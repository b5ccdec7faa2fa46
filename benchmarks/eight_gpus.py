"""The job on a node of eight GPUs whose Nsight Systems export several benchmarks read: tensor, pipeline and data 2."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format


def eight_gpus(folder: Path, *, layers: int, microbatches: int, iterations: int) -> Path:
    """Simulate it into a folder; returns the export."""
    job = JobSettings(
        layers=layers,
        microbatches=microbatches,
        hidden=4096,
        heads=32,
        feed_forward=16384,
        sequence=4096,
        vocabulary=32768,
        node_size=8,
        tp=2,
        pp=2,
        dp=2,
        iterations=iterations,
        format=Format.NSYS,
    )
    return simulate(job, folder, workers=2) / "node0.sqlite"
