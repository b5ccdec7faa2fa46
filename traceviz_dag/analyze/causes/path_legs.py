"""The critical path as legs, each on one rank's work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, integers
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import number_groups

_LEG = ("rank", "stage", "chunk", "microbatch")
_LEG_WORDS = ("phase", "cause", "category", "dimension")


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
