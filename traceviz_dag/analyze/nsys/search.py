"""Where a word occurs among the names of a profile: kernels, calls and NVTX ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate

import numpy as np

from traceviz_dag.analyze.nsys.activity import Clip
from traceviz_dag.analyze.nsys.summary import sums
from traceviz_dag.read.nsys.profile import NsysProfile

TABLES = ("operations", "calls", "ranges")


@dataclass(frozen=True, slots=True)
class Found:
    """All rows of one name in one table: how many, their total duration, and where the first one starts."""

    table: str
    name: str
    count: int
    total_ns: int
    first_start_ns: int


def search(profile: NsysProfile, pattern: str, gpus: Sequence[int] = (), window: Clip | None = None) -> list[Found]:
    """Names that hold a word, whatever its case; a pattern with * or ? must match the whole name.

    Args:
        gpus: kernels of these GPUs only; calls and ranges are not bound to one.
        window: rows that start in it; None takes all.
    """
    glob = any(sign in pattern for sign in "*?[")
    expression = re.compile(translate(pattern) if glob else re.escape(pattern), re.IGNORECASE)
    found = []
    for table in TABLES:
        end = "end_ns" if table == "ranges" else "duration_ns"
        names = profile.names(table, "name")
        wanted = np.array([(expression.match if glob else expression.search)(name) is not None for name in names])
        if not wanted.any():
            continue
        rows = profile.rows(table, "name", "start_ns", end, of=gpus if table == "operations" and gpus else None)
        kept = wanted[rows["name"]]
        start = rows.integers("start_ns")
        if window is not None:
            kept &= (start >= window.start_ns) & (start < window.end_ns)
        kept = np.flatnonzero(kept)
        codes, start, duration = rows.integers("name")[kept], start[kept], rows.integers(end)[kept]
        duration = duration - start if table == "ranges" else duration
        total, count = sums(duration, codes, len(names)), np.bincount(codes, minlength=len(names))
        first = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(first, codes, start)
        found += [
            Found(table, names[code], int(count[code]), int(total[code]), int(first[code]))
            for code in np.flatnonzero(count).tolist()
        ]
    return sorted(found, key=lambda one: (TABLES.index(one.table), -one.total_ns, one.name))
