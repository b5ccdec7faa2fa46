"""The training iterations of the processes of a profile, and what each GPU did in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.overlap import GpuOverlap, gpu_overlap
from traceviz_dag.analyze.nsys.summary import by_name
from traceviz_dag.analyze.step_windows import gpu_windows, windows_of_kernels
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
from traceviz_dag.classify.rules import Rules
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.iterations import WHOLE, Iterations, NamedRanges, find_iterations
from traceviz_dag.read.nsys.profile import MARK, NsysProfile
from traceviz_dag.vocabulary import Dimension, WindowFrom


@dataclass(frozen=True, slots=True)
class IterationMeasures:
    """One iteration on one GPU: its number, what it was read from, what its window is, and its overlap inside it."""

    number: int
    source: str
    window_from: str
    overlap: GpuOverlap


def iterations_of(profile: NsysProfile, activity: Activity, rules: Rules) -> Iterations:
    """The iterations of the process that used a GPU most."""
    mine, times_ns, _ = _of_main_process(profile, activity)
    kernels, times_ns = mine.take(mine.kernel), times_ns[mine.kernel]
    order = np.argsort(times_ns, kind="stable")
    return find_iterations(
        ranges_of_process(profile, int(mine.process[0])),
        int(times_ns.min(initial=mine.starts.min())),
        int(mine.ends.max()),
        times_ns[order],
        _updates_parameters(kernels, rules)[order],
        kernels.name[order],
    )


def windows_on_gpu(profile: NsysProfile, activity: Activity, rules: Rules) -> tuple[Iterations, WindowFrom]:
    """The iterations of a GPU with their windows, and what these are."""
    found = iterations_of(profile, activity, rules)
    mine, times_ns, launched = _of_main_process(profile, activity)
    place = np.searchsorted(found.start_ns, times_ns, side="right") - 1
    step = np.where((place >= 0) & (times_ns < lookup(found.end_ns, place)), place, NONE)
    start, end, source = gpu_windows(mine.starts, mine.ends, step, launched, found.start_ns, found.end_ns)
    leading = int(found.start_ns.argmin())
    before = launched & (times_ns < found.start_ns[leading]) & (mine.ends > found.start_ns[leading])
    if source != WindowFrom.LAUNCHES and found.number[leading] != 0 and before.any():
        start = _starts_behind_cut(profile, int(mine.process[0]), activity.device, found, rules)
    if found.source.startswith(WHOLE):
        # Several processes may use the GPU, and the capture is that of all.
        start, end = np.minimum(start, activity.starts.min()), np.maximum(end, activity.ends.max())
    return replace(found, start_ns=start, end_ns=end), source


def _starts_behind_cut(profile: NsysProfile, process: int, device: int, found: Iterations, rules: Rules) -> Int64:
    """The starts of the windows, the first one behind what a step without a mark still runs in it.

    What shows that is the phase of kernels; it takes a classification, so only what runs into the first mark asks.
    """
    # Imported here because few captures start within a step, and it takes as long to import as most commands.
    from traceviz_dag.classify.dimensions.communication import JobGroups
    from traceviz_dag.classify.kernels import classify
    from traceviz_dag.classify.nsys.trace import NsysPart, trace_events
    from traceviz_dag.read.events import TraceHeader

    base = profile.facts.utc_start_ns or 0
    events = trace_events(profile, NsysPart(process, device), TraceHeader(base_time_ns=base), found, rules)
    nothing_known = JobGroups(lambda *_: (Dimension.UNKNOWN, (), ""), frozenset(), frozenset())
    kernels = classify(events, rules, nothing_known, None).kernels
    rows = zip(found.number.tolist(), (found.start_ns + base).tolist(), (found.end_ns + base).tolist(), strict=True)
    windows, _ = windows_of_kernels(kernels, list(rows))
    return np.array([start - base for _, start, _ in windows], dtype=np.int64)


def _of_main_process(profile: NsysProfile, activity: Activity) -> tuple[Activity, Int64, Bool]:
    """What the process that used a GPU most did on it, the host's time of each operation, and whether that is known.

    Iterations are times of the host: an operation counts where it was launched, else where it ran.
    """
    processes, counts = np.unique(activity.process, return_counts=True)
    mine = activity.take(activity.process == int(processes[counts.argmax()]))
    calls = profile.rows("calls", "start_ns", of=processes_of([mine]))
    call = calls.place(mine.launch)
    return mine, np.where(call == NONE, mine.starts, lookup(calls.integers("start_ns"), call)), call != NONE


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
    """Each iteration of a GPU, measured in its window.

    Args:
        window: iterations are cut at its edges, and those outside are left out; None takes all.
    """
    found, window_from = windows_on_gpu(profile, activity, rules)
    measures = []
    for number, start, end in zip(found.number.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True):
        low = start if window is None else max(start, window.start_ns)
        high = end if window is None else min(end, window.end_ns)
        if high > low:
            measures.append(
                IterationMeasures(number, found.source, window_from, gpu_overlap(activity, Clip(low, high)))
            )
    return measures


@dataclass(frozen=True, slots=True)
class NameInIteration:
    """The operations of one name in one iteration, beside the others.

    Attributes:
        count, total_ns: in the iteration; as ``NameMeasures`` has them.
        usual_ns: median of the totals in the other iterations of the GPU; None where there is no other.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    usual_ns: int | None


def names_in_iteration(
    profile: NsysProfile, activity: Activity, rules: Rules, number: int, window: Clip | None = None
) -> list[NameInIteration]:
    """What ran in one iteration of a GPU by name, longest total first; names that only others have are in it, too.

    Args:
        window: as ``iteration_measures`` takes it.

    Raises:
        UsageError: there is no iteration of that number.
    """
    every = iteration_measures(profile, activity, rules, window)
    mine = [one for one in every if one.number == number]
    if not mine:
        raise _no_iteration(profile, activity, number, [one.number for one in every])
    own, *others = [
        {row.name: row for row in by_name(activity, Clip(one.overlap.window_start_ns, one.overlap.window_end_ns))}
        for one in [mine[0], *(one for one in every if one is not mine[0])]
    ]
    found = []
    for name in dict.fromkeys([*own, *(name for other in others for name in other)]):
        totals = [other[name].total_ns if name in other else 0 for other in others]
        usual = lower_median(totals) if totals else None
        row = own.get(name)
        kind = next(side[name].kind for side in (own, *others) if name in side)
        found.append(NameInIteration(name, kind, row.count if row else 0, row.total_ns if row else 0, usual))
    return sorted(found, key=lambda one: (-one.total_ns, -(one.usual_ns or 0), one.name))


def _no_iteration(profile: NsysProfile, activity: Activity, number: int, there: Sequence[int]) -> UsageError:
    words = f"there are {min(there)} to {max(there)}" if there else "there is none"
    return UsageError(f"{profile.path}: no iteration {number} on GPU {activity.device}; {words}")


def window_on_gpu(profile: NsysProfile, activity: Activity, rules: Rules, number: int) -> Clip:
    """The window of one iteration on a GPU, as ``iteration_measures`` measures it.

    Raises:
        UsageError: there is no iteration of that number.
    """
    found, _ = windows_on_gpu(profile, activity, rules)
    place = np.flatnonzero(found.number == number)
    if not len(place):
        raise _no_iteration(profile, activity, number, found.number.tolist())
    return Clip(int(found.start_ns[place[0]]), int(found.end_ns[place[0]]))


def iteration_window(profile: NsysProfile, activity: Activity, rules: Rules, number: int | None) -> Clip:
    """The window of one iteration of a GPU on the host; None takes the first.

    Raises:
        UsageError: there is no iteration of that number.
    """
    found = iterations_of(profile, activity, rules)
    place = np.flatnonzero(found.number == (found.number[0] if number is None else number))
    if not len(place):
        raise _no_iteration(profile, activity, number or 0, found.number.tolist())
    return Clip(int(found.start_ns[place[0]]), int(found.end_ns[place[0]]))


def _updates_parameters(activity: Activity, rules: Rules) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    rule = rules.match_kernels(activity.names)
    of_name: Int64 = np.array([index >= 0 and rules.kernels[index].phase == "optimizer" for index in rule])
    return of_name.astype(bool)[activity.name]
