"""The critical path summed up: by rank, stage, category or cause, and as legs on one rank's work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.intervals import number_groups
from traceviz_dag.analyze.kernel_intervals import codes, integers
from traceviz_dag.analyze.matching.communications import optional_integers

_LEG = ("rank", "stage", "chunk", "microbatch")
_LEG_WORDS = ("phase", "cause", "category", "dimension")


def path_profile(segments: pa.Table, by: str) -> list[dict[str, Any]]:
    """Time on the critical path by one column of ``path_segments``, the longest first; the times add up to the step.

    Returns:
        Rows of that column (None where it has no value), ``path_ns`` and ``share`` of the whole.
    """
    column = segments[by].cast(pa.string()) if pa.types.is_dictionary(segments[by].type) else segments[by]
    summed = pa.table({by: column, "path_ns": segments["duration_ns"]}).group_by(by).aggregate([("path_ns", "sum")])
    total = pc.sum(segments["duration_ns"]).as_py() or 0
    rows = summed.select([by, "path_ns_sum"]).rename_columns([by, "path_ns"]).to_pylist()
    rows.sort(key=lambda row: (-row["path_ns"], str(row[by])))
    return [{**row, "share": row["path_ns"] / total} for row in rows]


def path_legs(segments: pa.Table) -> list[dict[str, Any]]:
    """The path as legs: successive segments of one rank, micro-batch, phase, cause and category are one.

    Returns:
        Rows in the order of the path: these columns, ``start_ns`` on the rank's clock, ``duration_ns`` and
        ``segments``.
    """
    if not segments.num_rows:
        return []
    keys = [optional_integers(segments, name) for name in ("step", *_LEG)]
    keys += [codes(segments, name)[0].astype(np.int64) for name in _LEG_WORDS]
    _, same = number_groups(*keys)
    first = np.flatnonzero(np.diff(same, prepend=-1))
    duration = np.add.reduceat(integers(segments, "duration_ns"), first)
    count = np.diff(first, append=segments.num_rows)
    rows = segments.select(["step", *_LEG, *_LEG_WORDS, "start_ns"]).take(pa.array(first)).to_pylist()
    return [
        {**row, "duration_ns": length, "segments": number}
        for row, length, number in zip(rows, duration.tolist(), count.tolist(), strict=True)
    ]
