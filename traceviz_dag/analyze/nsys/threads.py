"""Which threads of the host use its processors, from samples of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nsys.activity import Clip
from traceviz_dag.analyze.nsys.statistics import by_group, exact_sum
from traceviz_dag.read.nsys.launching import processes_of_ids
from traceviz_dag.read.nsys.profile import PROCESS_BITS, NsysProfile

_THREAD = (1 << PROCESS_BITS) - 1


@dataclass(frozen=True, slots=True)
class ThreadMeasures:
    """One thread of the host in a window.

    Attributes:
        process, thread: ids of the operating system. name: None where the export has none.
        samples: how many say that it ran.
        cycles: of a processor, counted by these. share: of the cycles of all threads sampled in the window.
    """

    process: int
    thread: int
    name: str | None
    samples: int
    cycles: int
    share: float | None


def threads_by_cycles(
    profile: NsysProfile, processes: Sequence[int] | None = None, window: Clip | None = None
) -> list[ThreadMeasures]:
    """The threads that samples name, those with the most cycles first.

    Args:
        processes: None takes all.
        window: samples taken in it; None takes all.
    """
    rows = profile.rows("samples", "time_ns", "thread", "cycles")
    time, thread, cycles = (rows.integers(name) for name in ("time_ns", "thread", "cycles"))
    if window is not None:
        inside = (time >= window.start_ns) & (time < window.end_ns)
        thread, cycles = thread[inside], cycles[inside]
    stated = profile.table("threads").to_pylist()
    names = {row["thread"]: row["name"] for row in stated}
    everything = exact_sum(cycles)
    found = []
    for own, members in by_group(thread):
        process = int(processes_of_ids(np.array([own]))[0])
        if processes is None or process in processes:
            total = exact_sum(cycles[members])
            share = total / everything if everything else None
            found.append(ThreadMeasures(process & _THREAD, own & _THREAD, names.get(own), len(members), total, share))
    return sorted(found, key=lambda one: (-one.cycles, one.process, one.thread))
