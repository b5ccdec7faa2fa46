"""The operations of a GPU as rows that people and other programs read: names instead of codes, ranges as paths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys.activity import Activity, Clip, processes_of
from traceviz_dag.analyze.nsys.tree import NestedRanges, launch_positions, nested_ranges
from traceviz_dag.arrays import NONE, lookup
from traceviz_dag.classify.columns import integers
from traceviz_dag.read.nsys.profile import NsysProfile

SEPARATOR = " / "
"""Separates the names of nested ranges."""


def operation_rows(profile: NsysProfile, activity: Activity, window: Clip | None = None) -> pa.Table:
    """One row an operation, by start.

    Args:
        window: operations that run inside it, uncut; None takes all.

    Returns:
        gpu, stream, name, kind, start_ns, duration_ns, correlation, bytes, launch, launch_start_ns,
        launch_duration_ns, ranges (names from the outermost to the innermost, joined by SEPARATOR); NULL where unknown.
    """
    if window is not None:
        activity = activity.take((activity.starts < window.end_ns) & (activity.ends > window.start_ns))
    nested = nested_ranges(profile, processes_of([activity]))
    position = launch_positions(profile, activity, nested)
    calls = profile.rows("calls", "name", "start_ns", "duration_ns", of=processes_of([activity]))
    call = calls.place(activity.launch)
    correlation = profile.rows("operations", "correlation", of=[activity.device])
    paths = pa.array(path_texts(nested), pa.string())
    path = pa.array(nested.path[np.maximum(position, 0)], mask=position == NONE) if len(nested) else None
    return pa.table(
        {
            "gpu": pa.array(np.full(len(activity), activity.device)),
            "stream": integers(activity.stream),
            "name": pa.array(activity.names, pa.string()).take(pa.array(activity.name)),
            "kind": pa.array(KINDS, pa.string()).take(pa.array(activity.intervals.kind)),
            "start_ns": pa.array(activity.starts),
            "duration_ns": pa.array(activity.ends - activity.starts),
            "correlation": integers(correlation.integers("correlation")[correlation.place(activity.row)]),
            "bytes": integers(activity.bytes),
            "launch": profile.texts("calls", "name", lookup(calls.integers("name"), call)).dictionary_decode(),
            "launch_start_ns": pa.array(lookup(calls.integers("start_ns"), call), mask=call == NONE),
            "launch_duration_ns": pa.array(lookup(calls.integers("duration_ns"), call), mask=call == NONE),
            "ranges": paths.take(path) if path is not None else pa.nulls(len(activity), pa.string()),
        }
    )


def path_texts(nested: NestedRanges) -> list[str]:
    """The names of each path from the outermost range to the innermost."""
    texts: list[str] = []
    for name, parent in zip(nested.path_name.tolist(), nested.path_parent.tolist(), strict=True):
        own = nested.names[name]
        texts.append(own if parent == NONE else f"{texts[parent]}{SEPARATOR}{own}")
    return texts
