"""The communication of one GPU of a profile by operation and communicator: how long, how much of it hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, clip, intersect, measure, union
from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.statistics import by_group, exact_sum, quantile
from traceviz_dag.analyze.nsys.tree import paths_within
from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.classify.nsys.calls import ALL_TO_ALL_RANGES, RangeColumns, nccl_calls_of, operation_in_name
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.vocabulary import Kind

_SENDS_AND_RECEIVES, _ALL_TO_ALL = "SendRecv", "AllToAll"
_COLUMNS = ("name", "kind", "thread", "start_ns", "end_ns", "communicator", "message_bytes")


@dataclass(frozen=True, slots=True)
class CommunicationMeasures:
    """Communication kernels of one operation on one communicator, in one window.

    Attributes:
        communicator: None where NCCL's payload was not exported or the launch not recorded.
        count: kernels that start in the window.
        total_ns: sum of the durations inside the window. busy_ns: their union. hidden_ns: of that, beside computation.
        mean_ns, most_ns: of the whole durations of those counted; None where none is.
        bytes: sum of the message sizes of those counted, of sends and receives in a group what is sent; None where not
            recorded.
    """

    operation: str
    communicator: str | None
    count: int
    total_ns: int
    busy_ns: int
    hidden_ns: int
    exposed_ns: int
    mean_ns: int | None
    most_ns: int | None
    bytes: int | None


def communication(profile: NsysProfile, activity: Activity, window: Clip | None = None) -> list[CommunicationMeasures]:
    """The communication of a GPU, longest total first; the time of a kernel holds its waiting for the others."""
    chosen = activity.window(window)
    time = activity.intervals
    computes = union(time.time.starts[time.computes()], time.time.ends[time.computes()])
    rows = np.flatnonzero(
        (time.kind == KINDS.index(Kind.COMMUNICATION))
        & (activity.starts < chosen.end_ns)
        & (activity.ends > chosen.start_ns)
    )
    if not len(rows):
        return []
    distinct, operation = _operations(profile, activity, rows)
    communicators, communicator, size = _facts(profile, activity, rows)
    keys, which = np.unique(np.stack([operation, communicator]), axis=1, return_inverse=True)
    counted = activity.started_within(chosen)[rows]
    found = []
    for group, (of_operation, of_communicator) in enumerate(keys.T.tolist()):
        mine = which.reshape(-1) == group
        starts, ends = activity.starts[rows[mine]], activity.ends[rows[mine]]
        inside = clip(Intervals(starts, ends), chosen.start_ns, chosen.end_ns)
        whole, sizes = (ends - starts)[counted[mine]], size[mine & counted]
        busy, hidden = measure(inside), measure(intersect(inside, computes))
        known = len(sizes) > 0 and bool((sizes != MISSING).all())
        found.append(
            CommunicationMeasures(
                operation=distinct[of_operation],
                communicator=communicators[of_communicator] if of_communicator != NONE else None,
                count=len(whole),
                total_ns=int((inside.ends - inside.starts).sum()),
                busy_ns=busy,
                hidden_ns=hidden,
                exposed_ns=busy - hidden,
                mean_ns=int(whole.sum()) // len(whole) if len(whole) else None,
                most_ns=int(whole.max()) if len(whole) else None,
                bytes=exact_sum(sizes) if known else None,
            )
        )
    return sorted(found, key=lambda measures: (-measures.total_ns, measures.operation))


@dataclass(frozen=True, slots=True)
class SlowCommunication:
    """One communication kernel that took long beside the others of its operation, communicator and size.

    Attributes:
        usual_ns: median of these. times: how often that median its duration is.
        alike: how many there are, itself included.
    """

    operation: str
    communicator: str | None
    bytes: int | None
    start_ns: int
    duration_ns: int
    usual_ns: int
    alike: int

    @property
    def times(self) -> float:
        """Duration as a multiple of the usual one."""
        return self.duration_ns / self.usual_ns


FEWEST_ALIKE = 5
"""With fewer communications that are similar nothing is usual."""


def slow_communication(
    profile: NsysProfile, activity: Activity, window: Clip | None = None, times: float = 3
) -> list[SlowCommunication]:
    """Communication kernels that start in a window and take ``times`` the median of similar ones, worst first."""
    chosen = activity.window(window)
    communicates = activity.intervals.kind == KINDS.index(Kind.COMMUNICATION)
    rows = np.flatnonzero(communicates & activity.started_within(chosen))
    if not len(rows):
        return []
    distinct, operation = _operations(profile, activity, rows)
    communicators, communicator, size = _facts(profile, activity, rows)
    length = (activity.ends - activity.starts)[rows]
    _, which = np.unique(np.stack([operation, communicator, size]), axis=1, return_inverse=True)
    found = []
    for _, members in by_group(which.reshape(-1)):
        usual = quantile(np.sort(length[members]), 50)
        if len(members) < FEWEST_ALIKE or usual <= 0:
            continue
        first = members[0]
        found += [
            SlowCommunication(
                operation=distinct[operation[first]],
                communicator=communicators[communicator[first]] if communicator[first] != NONE else None,
                bytes=int(size[first]) if size[first] != MISSING else None,
                start_ns=int(activity.starts[rows[member]]),
                duration_ns=int(length[member]),
                usual_ns=usual,
                alike=len(members),
            )
            for member in members[length[members] >= times * usual].tolist()
        ]
    return sorted(found, key=lambda one: (one.usual_ns - one.duration_ns, one.start_ns))


def _operations(profile: NsysProfile, activity: Activity, rows: Int64) -> tuple[list[str], Int64]:
    """Names of operations, and the index of each kernel's own.

    Kernels show their operation, but for an all-to-all: it is sends and receives, and only PyTorch's ranges around its
    launch show that.
    """
    of_name = [operation_in_name(name) for name in activity.names]
    distinct = sorted({*of_name, _ALL_TO_ALL})
    operation = np.array([distinct.index(name) for name in of_name])[activity.name[rows]]
    if _SENDS_AND_RECEIVES in of_name:
        sent = np.flatnonzero(operation == distinct.index(_SENDS_AND_RECEIVES))
        ranges = profile.rows("launch_ranges", "range", of=[activity.device])
        row = lookup(ranges.integers("range"), ranges.place(activity.row[rows[sent]]))
        paths = profile.rows("ranges", "path", of=processes_of([activity]))
        path = lookup(paths.integers("path"), paths.place(row))
        within = paths_within(profile, ALL_TO_ALL_RANGES)
        named = (row != NONE) & (path != NONE) & np.append(within, False)[path]
        operation[sent[named]] = distinct.index(_ALL_TO_ALL)
    return distinct, operation


def _facts(profile: NsysProfile, activity: Activity, rows: Int64) -> tuple[tuple[str, ...], Int64, Int64]:
    """Names of communicators; per kernel the index of its own, or NONE, and its message size, or MISSING."""
    processes = processes_of([activity])
    ranges = profile.rows("ranges", *_COLUMNS, of=processes)
    names = profile.names("ranges", "name")
    of_nccl = np.array([name.startswith("nccl") for name in names], dtype=bool)
    own = np.flatnonzero(of_nccl[ranges["name"]])
    columns = RangeColumns(
        names,
        ranges["name"][own].astype(np.int32, copy=False),
        *(ranges.integers(name)[own] for name in ("kind", "thread", "start_ns", "end_ns")),
    )
    calls = profile.rows("calls", "thread", "start_ns", of=processes)
    place = calls.place(activity.launch[rows])
    thread, start = (lookup(calls.integers(name), place) for name in ("thread", "start_ns"))
    nccl, call = nccl_calls_of(columns, thread, start)
    if not len(nccl.row):
        return (), np.full(len(rows), NONE, dtype=np.int64), np.full(len(rows), MISSING, dtype=np.int64)
    known = profile.names("ranges", "communicator")
    row = own[nccl.row[np.maximum(call, 0)]]
    communicator, nothing = ranges.integers("communicator")[row], len(known) - 1
    of_kernel = np.where((call == NONE) | (communicator == nothing), NONE, communicator)
    size = nccl.bytes_of(ranges.integers("message_bytes")[own])
    return known, of_kernel, np.where(call == NONE, MISSING, size[np.maximum(call, 0)])
