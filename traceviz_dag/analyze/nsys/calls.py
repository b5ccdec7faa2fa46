"""Calls of the host: CUDA's and the operating system's by name, and what held the host up, by NVTX range."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nsys.activity import Clip
from traceviz_dag.analyze.nsys.statistics import Durations, by_group
from traceviz_dag.analyze.nsys.tree import NestedRanges, nested_ranges
from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.read.events import (
    DEVICE_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    OTHER_SYNCHRONIZATION,
    STREAM_SYNCHRONIZE,
    STREAM_WAIT,
)
from traceviz_dag.read.nsys.launching import join_launches, processes_of_ids
from traceviz_dag.read.nsys.profile import NsysProfile

CUDA, SYSTEM = "calls", "system_calls"

_SYNCHRONIZATIONS = {
    EVENT_SYNCHRONIZE: "event synchronization",
    STREAM_SYNCHRONIZE: "stream synchronization",
    DEVICE_SYNCHRONIZE: "device synchronization",
    STREAM_WAIT: "order to a stream to wait",
    OTHER_SYNCHRONIZATION: "other synchronization",
}
_MODULES = re.compile(r"(?:cuModule|cuLibrary|cudaLibrary)Load|cuLink(?!Destroy)")
_ALLOCATIONS = re.compile(
    r"cuda(?:Malloc|Free|HostAlloc|HostRegister|HostUnregister)|"
    r"cuMem(?:Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release|Map|Unmap|SetAccess|Address)"
)
_COLLECTION = re.compile(r"(?<![a-z0-9])gc(?![a-z0-9])|garbage", re.IGNORECASE)
MODULES, ALLOCATIONS, COLLECTION = "module loading", "memory allocation", "garbage collection"


@dataclass(frozen=True, slots=True)
class CallMeasures:
    """All calls of one name that start in a window.

    Attributes:
        threads: how many threads make them.
        share: their total as a share of that of all calls; calls of threads side by side count each.
    """

    name: str
    threads: int
    durations: Durations
    share: float


def calls_by_name(
    profile: NsysProfile, table: str, processes: Sequence[int] | None = None, window: Clip | None = None
) -> list[CallMeasures]:
    """The calls of some processes by name, longest total first.

    Args:
        table: CUDA or SYSTEM.
        processes: None takes all.
        window: calls that start in it; None takes all.
    """
    rows = profile.rows(table, "name", "start_ns", "duration_ns", "thread", of=processes)
    start, name = rows.integers("start_ns"), rows.integers("name")
    kept = (
        np.arange(len(rows)) if window is None else np.flatnonzero((start >= window.start_ns) & (start < window.end_ns))
    )
    duration, thread, code = rows.integers("duration_ns")[kept], rows.integers("thread")[kept], name[kept]
    everything = max(int(duration.sum()), 1)
    names = profile.names(table, "name")
    found = []
    for own, members in by_group(code):
        durations = Durations.of(duration[members])
        threads = len(np.unique(thread[members]))
        found.append(CallMeasures(names[own], threads, durations, durations.total_ns / everything))
    return sorted(found, key=lambda one: (-one.durations.total_ns, one.name))


@dataclass(frozen=True, slots=True)
class Stall:
    """What held the host up in one place.

    Attributes:
        kind: a synchronization, MODULES, ALLOCATIONS or COLLECTION.
        ranges: names of the ranges around it, the outermost first; empty outside all.
        total_ns: sum of the durations inside the window.
    """

    kind: str
    ranges: tuple[str, ...]
    count: int
    total_ns: int
    most_ns: int


def stalls(profile: NsysProfile, processes: Sequence[int] | None = None, window: Clip | None = None) -> list[Stall]:
    """What held the host up, by kind and the NVTX ranges around it, longest total first.

    Synchronisations are those that CUPTI records, placed where their call was made; those whose call is not recorded
    are outside all ranges.
    """
    nested = nested_ranges(profile, processes)
    kinds: list[str] = []
    parts: list[tuple[Int64, Int64, Int64, Int64]] = []
    for word, start, duration, thread in (
        *_synchronizations(profile, processes),
        *_costly_calls(profile, processes),
    ):
        kinds.append(word)
        position = nested.position_of(thread, start)
        parts.append((np.full(len(start), len(kinds) - 1), start, duration, lookup(nested.path, position)))
    collections = _collections(nested)
    kinds.append(COLLECTION)
    around = lookup(nested.path, nested.parent[collections])
    length = (nested.end_ns - nested.start_ns)[collections]
    parts.append((np.full(len(collections), len(kinds) - 1), nested.start_ns[collections], length, around))
    kind, start, duration, path = (np.concatenate([part[place] for part in parts]) for place in range(4))
    end = start + duration
    if window is not None:
        start, end = (np.clip(times, window.start_ns, window.end_ns) for times in (start, end))
        inside = np.flatnonzero(end > start)
        kind, start, end, path = kind[inside], start[inside], end[inside], path[inside]
    texts = path_names(nested)
    found = []
    for _, members in by_group(kind * (len(texts) + 1) + path + 1):
        length, of = (end - start)[members], int(path[members[0]])
        word = kinds[int(kind[members[0]])]
        names = texts[of] if of != NONE else ()
        found.append(Stall(word, names, len(members), int(length.sum()), int(length.max())))
    return sorted(found, key=lambda one: (-one.total_ns, one.kind, one.ranges))


def path_names(nested: NestedRanges) -> list[tuple[str, ...]]:
    """The names of each path, the outermost first."""
    found: list[tuple[str, ...]] = []
    for name, parent in zip(nested.path_name.tolist(), nested.path_parent.tolist(), strict=True):
        found.append((*(found[parent] if parent != NONE else ()), nested.names[name]))
    return found


_Part = tuple[str, Int64, Int64, Int64]
"""Kind; start, duration and thread of each."""


def _synchronizations(profile: NsysProfile, processes: Sequence[int] | None) -> list[_Part]:
    rows = profile.rows("synchronizations", "kind", "start_ns", "duration_ns", "process", "correlation", of=processes)
    if not len(rows):
        return []
    calls = profile.rows("calls", "thread", "correlation", of=processes)
    call = join_launches(
        rows.integers("process"),
        rows.integers("correlation"),
        processes_of_ids(calls.integers("thread")),
        calls.integers("correlation"),
    )
    thread, kind = lookup(calls.integers("thread"), call), rows.integers("kind")
    start, duration = rows.integers("start_ns"), rows.integers("duration_ns")
    return [
        (word, start[mine], duration[mine], thread[mine])
        for code, word in _SYNCHRONIZATIONS.items()
        if len(mine := np.flatnonzero(kind == code))
    ]


def _costly_calls(profile: NsysProfile, processes: Sequence[int] | None) -> list[_Part]:
    names = profile.names("calls", "name")
    found: list[_Part] = []
    for word, pattern in ((MODULES, _MODULES), (ALLOCATIONS, _ALLOCATIONS)):
        wanted = np.array([pattern.match(name) is not None for name in names], dtype=bool)
        if wanted.any():
            calls = profile.rows("calls", "name", "start_ns", "duration_ns", "thread", of=processes)
            mine = np.flatnonzero(wanted[calls["name"]])
            columns = (calls.integers(column)[mine] for column in ("start_ns", "duration_ns", "thread"))
            found.append((word, *columns))  # type: ignore[arg-type]
    return found


def _collections(nested: NestedRanges) -> Int64:
    """Ranges of a garbage collection that are in no other one."""
    wanted = np.array([_COLLECTION.search(name) is not None for name in nested.names], dtype=bool)
    path_wanted = wanted[nested.path_name]
    within = path_wanted.copy()
    for path, parent in enumerate(nested.path_parent.tolist()):
        if parent != NONE and within[parent]:
            within[path], path_wanted[path] = True, False
    return np.flatnonzero(path_wanted[nested.path])
