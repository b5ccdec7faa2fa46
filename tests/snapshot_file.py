"""A snapshot of GPU memory, as ``torch.cuda.memory._dump_snapshot`` writes it."""

from __future__ import annotations

import pickle
from pathlib import Path

from traceviz_dag.simulate.memory.allocator import Allocator
from traceviz_dag.simulate.memory.stage import Stage, StageSettings, one_forward_one_backward


def write_snapshot(path: Path, leak_bytes: int = 0) -> Path:
    """Five steps of the first of two pipeline stages, each of which leaks so much."""
    allocator = Allocator()
    stage = Stage(StageSettings(leak_bytes=leak_bytes), allocator)
    for step in range(5):
        stage.step(step, one_forward_one_backward(0, 2, 2))
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return path
