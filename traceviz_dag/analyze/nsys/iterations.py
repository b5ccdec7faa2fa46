"""The training iterations of the processes of a profile, and what each GPU did in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.overlap import GpuOverlap, gpu_overlap
from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.rules import Rules
from traceviz_dag.read.nsys.iterations import Iterations, NamedRanges, find_iterations
from traceviz_dag.read.nsys.profile import MARK, NsysProfile


@dataclass(frozen=True, slots=True)
class IterationMeasures:
    """One iteration on one GPU: its number, what it was read from, and its overlap inside the window."""

    number: int
    source: str
    overlap: GpuOverlap


def iterations_of(profile: NsysProfile, activity: Activity, rules: Rules) -> Iterations:
    """The iterations of the process that used a GPU most."""
    processes, counts = np.unique(activity.process, return_counts=True)
    process = int(processes[counts.argmax()])
    mine = activity.take(activity.process == process)
    kernels = mine.take(mine.kernel)
    # Iterations are times of the host: a kernel counts where it was launched, as far as that is known.
    calls = profile.rows("calls", "start_ns", of=processes_of([mine]))
    call = calls.place(kernels.launch)
    times_ns = np.where(call == NONE, kernels.starts, lookup(calls.integers("start_ns"), call))
    order = np.argsort(times_ns, kind="stable")
    return find_iterations(
        ranges_of_process(profile, process),
        int(times_ns.min(initial=mine.starts.min())),
        int(mine.ends.max()),
        times_ns[order],
        _updates_parameters(kernels, rules)[order],
    )


def ranges_of_process(profile: NsysProfile, process: int) -> NamedRanges:
    """The NVTX ranges of one process."""
    ranges = profile.rows("ranges", "name", "kind", "start_ns", "end_ns", of=[process])
    rows = np.flatnonzero(ranges["kind"] != MARK)
    return NamedRanges(
        profile.names("ranges", "name"),
        ranges["name"][rows].astype(np.int32, copy=False),
        *(ranges.integers(name)[rows] for name in ("start_ns", "end_ns")),
    )


def iteration_measures(
    profile: NsysProfile, activity: Activity, rules: Rules, window: Clip | None = None
) -> list[IterationMeasures]:
    """Each iteration of a GPU, measured between its start and end on the host.

    Args:
        window: iterations are cut at its edges, and those outside are left out; None takes all.
    """
    found = iterations_of(profile, activity, rules)
    measures = []
    for number, start, end in zip(found.number.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True):
        low = start if window is None else max(start, window.start_ns)
        high = end if window is None else min(end, window.end_ns)
        if high > low:
            measures.append(IterationMeasures(number, found.source, gpu_overlap(activity, Clip(low, high))))
    return measures


def _updates_parameters(activity: Activity, rules: Rules) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    rule = rules.match_kernels(activity.names)
    of_name: Int64 = np.array([index >= 0 and rules.kernels[index].phase == "optimizer" for index in rule])
    return of_name.astype(bool)[activity.name]
