"""Where a word occurs among the names of a profile: kernels, calls and NVTX ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate

import numpy as np

from traceviz_dag.analyze.nsys.activity import Clip
from traceviz_dag.analyze.nsys.summary import sums
from traceviz_dag.analyze.nsys.tree import nested_ranges, paths_within
from traceviz_dag.arrays import NONE, Bool, Int64, lookup
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


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name holds a word, whatever its case; a pattern with * or ? must match the whole name."""
    glob = any(sign in pattern for sign in "*?[")
    expression = re.compile(translate(pattern) if glob else re.escape(pattern), re.IGNORECASE)
    return lambda name: (expression.match if glob else expression.search)(name) is not None


def search(
    profile: NsysProfile,
    pattern: str,
    gpus: Sequence[int] = (),
    window: Clip | None = None,
    parent: str | None = None,
) -> list[Found]:
    """Names that match a pattern, as ``matcher`` has it.

    Args:
        gpus: kernels of these GPUs only; calls and ranges are not bound to one.
        window: rows that start in it; None takes all.
        parent: a pattern; only ranges and calls inside ranges of such names, and what these calls launched.
    """
    matches = matcher(pattern)
    inside = _Inside(profile, parent) if parent is not None else None
    found = []
    for table in TABLES:
        end = "end_ns" if table == "ranges" else "duration_ns"
        names = profile.names(table, "name")
        wanted = np.array([matches(name) for name in names])
        keys = gpus if table == "operations" and gpus else None
        if not wanted.any():
            profile.rows(table, of=keys)  # Rows that cannot be used may have such names.
            continue
        rows = profile.rows(table, "name", "start_ns", end, of=keys)
        kept = wanted[rows["name"]]
        start = rows.integers("start_ns")
        if window is not None:
            kept &= (start >= window.start_ns) & (start < window.end_ns)
        kept = np.flatnonzero(kept)
        if inside is not None:
            kept = kept[inside.holds(table, kept, keys)]
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


class _Inside:
    """Which rows are inside ranges of names that match a pattern: their own range, or that around their launch."""

    def __init__(self, profile: NsysProfile, parent: str) -> None:
        matches = matcher(parent)
        self.profile = profile
        # Of a path: whether a range of it matches; whether one matches that is around its innermost range.
        self.within = paths_within(profile, {name for name in profile.names("ranges", "name") if matches(name)})
        above = profile.rows("paths", "parent").integers("parent")
        self.around = np.where(above == NONE, False, np.append(self.within, False)[above])

    def holds(self, table: str, rows: Int64, keys: Sequence[int] | None) -> Bool:
        """Whether each of these rows, as ``profile.rows`` gives them for ``keys``, is inside."""
        profile = self.profile
        if table == "ranges":
            path = profile.rows("ranges", "path").integers("path")[rows]
            return np.where(path == NONE, False, np.append(self.around, False)[path])
        if table == "operations":
            launched = profile.rows("launch_ranges", "range", of=keys).integers("range")[rows]
            path = lookup(profile.rows("ranges", "path").integers("path"), launched)
        else:
            calls = profile.rows("calls", "start_ns", "thread")
            nested = nested_ranges(profile, None)
            position = nested.position_of(calls.integers("thread")[rows], calls.integers("start_ns")[rows])
            path = lookup(nested.path, position)
        return np.where(path == NONE, False, np.append(self.within, False)[path])
