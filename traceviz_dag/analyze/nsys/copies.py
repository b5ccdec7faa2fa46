"""The memory operations of one GPU by kind: bytes, bandwidth, sizes, and whether the host's memory is pageable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.statistics import by_group, exact_sum
from traceviz_dag.arrays import NONE, Int64, lookup
from traceviz_dag.read.nsys.profile import NsysProfile

_MEMORIES = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown")
"""Kinds of memory by CUDA's codes."""

_FOR_MEMORY = ("cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset")


@dataclass(frozen=True, slots=True)
class CopyMeasures:
    """Memory operations of one kind that start in a window.

    Attributes:
        source, destination: kinds of memory; None where not stated, as of memory sets.
        asynchronous: launched by a call with Async in its name, not by one without; None where the launch is not
            recorded or is no call for memory, such as that of a graph.
        total_ns: sum of the durations.
        bytes: of those that state their size; None where none does. least_bytes, mean_bytes, most_bytes: of these.
        bytes_per_s: these bytes per second of their own durations; None without a time.
    """

    name: str
    source: str | None
    destination: str | None
    asynchronous: bool | None
    count: int
    total_ns: int
    bytes: int | None
    least_bytes: int | None
    mean_bytes: int | None
    most_bytes: int | None
    bytes_per_s: int | None


def copies(profile: NsysProfile, activity: Activity, window: Clip | None = None) -> list[CopyMeasures]:
    """The memory operations of a GPU, longest total first.

    Args:
        window: None takes all.
    """
    chosen = ~activity.kernel
    if window is not None:
        chosen &= activity.started_within(window)
    mine = activity.take(chosen)
    stated = profile.rows("operations", "source_memory", "destination_memory", of=[activity.device])
    place = stated.place(mine.row)
    source, destination = (stated.integers(f"{side}_memory")[place] for side in ("source", "destination"))
    form = _asynchronous(profile, mine)
    key = ((mine.name.astype(np.int64) * 32 + _code(source)) * 32 + _code(destination)) * 4 + form + 1
    found = []
    for _, rows in by_group(key):
        first, length = rows[0], (mine.ends - mine.starts)[rows]
        size = mine.bytes[rows]
        known = size >= 0
        sizes, time = size[known], exact_sum(length[known])
        total = exact_sum(sizes)
        found.append(
            CopyMeasures(
                name=mine.names[mine.name[first]],
                source=_word(int(source[first])),
                destination=_word(int(destination[first])),
                asynchronous=None if form[first] == NONE else bool(form[first]),
                count=len(rows),
                total_ns=exact_sum(length),
                bytes=total if len(sizes) else None,
                least_bytes=int(sizes.min()) if len(sizes) else None,
                mean_bytes=total // len(sizes) if len(sizes) else None,
                most_bytes=int(sizes.max()) if len(sizes) else None,
                bytes_per_s=total * 1_000_000_000 // time if len(sizes) and time else None,
            )
        )
    return sorted(found, key=lambda one: (-one.total_ns, one.name))


def _asynchronous(profile: NsysProfile, activity: Activity) -> Int64:
    """1 where the launching call is an asynchronous one, 0 where it is not, NONE where nothing shows."""
    names = profile.names("calls", "name")
    form = np.array(["Async" in name if name.startswith(_FOR_MEMORY) else NONE for name in names], dtype=np.int64)
    calls = profile.rows("calls", "name", of=processes_of([activity]))
    return lookup(form, lookup(calls.integers("name"), calls.place(activity.launch)))


def _code(kind: Int64) -> Int64:
    return np.where((kind >= 0) & (kind < len(_MEMORIES)), kind, len(_MEMORIES))


def _word(kind: int) -> str | None:
    return _MEMORIES[kind] if 0 <= kind < len(_MEMORIES) else None
