"""The table ``nvtx_ranges`` of one rank: every NVTX range with its place in the nesting and what the GPU did for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals
from traceviz_dag.analyze.nsys.activity import Activity, processes_of
from traceviz_dag.analyze.nsys.summary import busy_by_group
from traceviz_dag.analyze.nsys.tree import NestedRanges, launch_positions, nested_ranges
from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.classify.columns import integers
from traceviz_dag.read.nsys.profile import NsysProfile
from traceviz_dag.tables import NVTX_RANGES

_LOW_BITS = (1 << 24) - 1


def ranges_table(
    profile: NsysProfile, activity: Activity, windows: Sequence[tuple[int, int, int]], shift_ns: int
) -> pa.Table:
    """The ranges of the processes of a rank that begin in some windows; all of them without windows.

    Args:
        activity: the rank's operations.
        windows: (number, start_ns, end_ns), on the rank's clock.
        shift_ns: what is added to the capture's clock to make the rank's.

    Returns:
        The table ``nvtx_ranges``, by start.
    """
    nested = nested_ranges(profile, processes_of([activity]))
    launched, busy = _gpu_measures(nested, activity, launch_positions(profile, activity, nested))
    start = nested.start_ns + shift_ns
    inside = np.full(len(nested), not windows)
    for _, low, high in windows:
        inside |= (start >= low) & (start < high)
    positions = np.flatnonzero(inside)
    positions = positions[np.lexsort((nested.thread[positions], nested.depth[positions], start[positions]))]
    number = np.full(len(nested) + 1, NONE, dtype=np.int64)
    number[positions] = np.arange(len(positions))
    parent = number[nested.parent[positions]]
    ranges = profile.rows("ranges", "domain", "communicator", "message_bytes", of=processes_of([activity]))
    rows = ranges.place(nested.row[positions])
    names = pa.DictionaryArray.from_arrays(pa.array(nested.name[positions]), pa.array(nested.names, pa.string()))
    return NVTX_RANGES.from_columns(
        {
            "range_id": np.arange(len(positions)),
            "parent_id": pa.array(parent, mask=parent == NONE),
            "depth": nested.depth[positions],
            "name": names,
            "domain": integers(ranges.integers("domain")[rows]),
            "thread": nested.thread[positions] & _LOW_BITS,
            "start_ns": start[positions],
            "duration_ns": (nested.end_ns - nested.start_ns)[positions],
            "communicator": profile.texts("ranges", "communicator", ranges["communicator"][rows]),
            "bytes": integers(ranges.integers("message_bytes")[rows]),
            "launched": launched[positions],
            "busy_ns": busy[positions],
        }
    )


def _gpu_measures(nested: NestedRanges, activity: Activity, position: Int64) -> tuple[Int64, Int64]:
    """Per range: operations that calls inside it launched, and their union on the GPU."""
    depth = nested.depth
    launched, busy = np.zeros((2, len(nested)), dtype=np.int64)
    rows = np.flatnonzero(position != NONE)
    at, starts, ends = position[rows], activity.starts[rows], activity.ends[rows]
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = np.flatnonzero((at != NONE) & (depth[at] == level))
        distinct, group = np.unique(at[here], return_inverse=True)
        launched[distinct] = np.bincount(group, minlength=len(distinct))
        busy[distinct] = busy_by_group(Intervals(starts[here], ends[here]), group, len(distinct))
        at[here] = nested.parent[at[here]]
    return launched, busy
