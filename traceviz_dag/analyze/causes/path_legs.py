"""The critical path as legs, each on one rank's work."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pyarrow as pa

_LEG = ("step", "rank", "stage", "chunk", "microbatch", "phase", "cause", "category", "dimension")


def path_legs(segments: pa.Table) -> list[dict[str, Any]]:
    """The path as legs: successive segments of one rank, micro-batch, phase, cause and category are one.

    Returns:
        Rows in the order of the path: these columns, ``start_ns`` on the rank's clock, ``duration_ns`` and
        ``segments``.
    """
    rows = segments.select([*_LEG, "start_ns", "duration_ns"]).to_pylist()
    legs = (list(leg) for _, leg in groupby(rows, key=lambda row: [row[name] for name in _LEG]))
    return [{**leg[0], "duration_ns": sum(row["duration_ns"] for row in leg), "segments": len(leg)} for leg in legs]
