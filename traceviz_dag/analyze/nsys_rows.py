"""The operations of a GPU as rows that people and other programs read: names instead of codes, ranges as paths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import KINDS
from traceviz_dag.analyze.nsys_activity import Activity, Clip
from traceviz_dag.analyze.nsys_tree import NestedRanges, launch_positions, nested_ranges
from traceviz_dag.classify.host_tree import NONE
from traceviz_dag.read.events import MISSING, Int64
from traceviz_dag.read.nsys_profile import NsysProfile

SEPARATOR = " / "
"""Stands between the names of nested ranges."""


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
    nested = nested_ranges(profile, np.unique(activity.process))
    position = launch_positions(profile, activity, nested)
    launched = pa.array(np.maximum(activity.launch, 0), mask=activity.launch < 0)
    calls = profile.table("calls", "name", "start_ns", "duration_ns")
    operations = profile.table("operations", "correlation")
    paths = pa.array(path_texts(nested), pa.string())
    path = pa.array(nested.path[np.maximum(position, 0)], mask=position == NONE) if len(nested.tree) else None
    return pa.table(
        {
            "gpu": pa.array(np.full(len(activity), activity.device)),
            "stream": _known(activity.stream),
            "name": pa.array(activity.names, pa.string()).take(pa.array(activity.name)),
            "kind": pa.array(KINDS, pa.string()).take(pa.array(activity.intervals.kind)),
            "start_ns": pa.array(activity.starts),
            "duration_ns": pa.array(activity.ends - activity.starts),
            "correlation": _known(np.asarray(operations["correlation"].to_numpy())[activity.row]),
            "bytes": _known(activity.bytes),
            "launch": pc.take(calls["name"], launched).cast(pa.string()),
            "launch_start_ns": pc.take(calls["start_ns"], launched),
            "launch_duration_ns": pc.take(calls["duration_ns"], launched),
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


def _known(values: Int64) -> pa.Array:
    return pa.array(values, mask=values == MISSING)
