"""Where ranks are analysed side by side: in how many processes of this machine, or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from traceviz_dag.system import control_groups

IMPORTED_ONCE: Sequence[str] = ("traceviz_dag.system.without_pandas", "traceviz_dag.pipeline.workers")
"""What processes that analyse find imported."""
_WORKER_BYTES = 600 << 20
"""What a worker takes for a trace of 200 MB (docs/benchmarks.md), and half as much again."""


class Engine(Protocol):
    """Where ranks, or shards of all, are analysed side by side, instead of in processes of this machine.

    Attributes:
        keeps_workers: from one call to the next; else each call waits for its own, as only ranks are worth.
    """

    keeps_workers: bool

    def spread(
        self,
        work: Callable[..., Any],
        items: Sequence[Any],
        workers: int | None,
        arguments: tuple[Any, ...],
    ) -> Iterator[tuple[int, Any]]:
        """As ``processes.spread``; ``workers`` bounds how many items are worked on at once."""


def default_workers() -> int:
    """Processes to use where nobody says: one per core that this process may use, no more than its memory allows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = control_groups.memory_bytes()
    room = cores if memory is None else max(memory // _WORKER_BYTES, 1)
    # Slurm's share of a task shows neither as affinity nor as a quota where it confines nothing.
    share = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(cores, control_groups.processors() or cores, room, max(int(share), 1) if share.isdecimal() else cores)
