"""Nests the NVTX ranges of a profile once, when it is read: parents, paths of names, the range around each launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.arrays import NONE, Int64, distinct
from traceviz_dag.read.host_tree import HostTree, build_tree, innermost
from traceviz_dag.read.nsys.rows import Runs, array_of

DEEPEST = 128
"""Levels of nesting that are followed; a range below them holds nothing. Ranges that a program never ends nest without
end."""


@dataclass(frozen=True, slots=True)
class NestingColumns:
    """What nesting needs of the ranges; ``holds`` says which take part: no marks, none that end on another thread."""

    name: npt.NDArray[np.int32]
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    holds: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Launches:
    """Process, thread and start of the call that launched each operation; a process without ranges where none did."""

    process: Int64
    thread: Int64
    start_ns: Int64


@dataclass(frozen=True, slots=True)
class Nesting:
    """How the ranges of a profile nest.

    Attributes:
        parent: per range the row of the range around it, or NONE.
        path: per range its path, or NONE.
        too_deep: how many ranges nest more deeply than is followed.
        path_name, path_parent, path_depth: per path, outermost first, by (parent, name).
        launch_range: per operation the row of the innermost range around its launch, or NONE.
    """

    parent: Int64
    path: Int64
    path_name: Int64
    path_parent: Int64
    path_depth: Int64
    launch_range: Int64
    too_deep: int


@dataclass(frozen=True, slots=True)
class _Paths:
    """Paths of one process, numbered by themselves."""

    name: Int64
    parent: Int64
    depth: Int64


def nest(ranges: NestingColumns, runs: Runs, launches: Launches) -> Nesting:
    """Nest the ranges process by process.

    Args:
        ranges: by process.
        runs: where each process begins among them.
    """
    parent = np.full(len(ranges.thread), NONE, dtype=np.int64)
    path = np.full(len(ranges.thread), NONE, dtype=np.int64)
    launch_range = np.full(len(launches.thread), NONE, dtype=np.int64)
    order = np.argsort(launches.process, kind="stable")
    process = launches.process[order]
    paths: list[_Paths] = []
    parts: list[slice] = []
    for key, first, count in zip(runs.keys.tolist(), runs.first.tolist(), runs.count.tolist(), strict=True):
        part = slice(first, first + count)
        threads, tree = _tree(ranges, part)
        row = tree.rows + first
        parent[row] = np.where(tree.parent == NONE, NONE, row[tree.parent]) if len(row) else NONE
        own, path[row] = _paths(tree, ranges.name[row])
        paths.append(own)
        parts.append(part)
        mine = order[slice(*np.searchsorted(process, [key, key + 1]))]
        position = _innermost(tree, threads, launches.thread[mine], launches.start_ns[mine])
        launch_range[mine] = np.where(position == NONE, NONE, row[position]) if len(row) else NONE
    merged, numbers = _merged(paths)
    for part, number in zip(parts, numbers, strict=True):
        path[part] = np.append(number, NONE)[path[part]]
    too_deep = int(ranges.holds.sum()) - int((path != NONE).sum())
    return Nesting(parent, path, merged.name, merged.parent, merged.depth, launch_range, too_deep)


def _tree(ranges: NestingColumns, part: slice) -> tuple[Int64, HostTree]:
    """The threads of one process and its tree; the tree's threads are places among them."""
    thread, start = ranges.thread[part], ranges.start_ns[part]
    threads = distinct(thread)
    number = np.searchsorted(threads, thread).astype(np.int32)
    length = ranges.end_ns[part] - start
    tree = build_tree(np.flatnonzero(ranges.holds[part]), number, start, length)
    levels = tree.levels()
    if len(levels) > DEEPEST:
        # What is left out is never around what stays, so the others keep their parents.
        kept = np.sort(tree.rows[np.concatenate(levels[:DEEPEST])])
        tree = build_tree(kept, number, start, length)
    return threads, tree


def _innermost(tree: HostTree, threads: Int64, thread: Int64, time_ns: Int64) -> Int64:
    place = np.minimum(np.searchsorted(threads, thread), max(len(threads) - 1, 0))
    known = threads[place] == thread if len(threads) else np.zeros(len(thread), dtype=bool)
    position = np.full(len(thread), NONE, dtype=np.int64)
    position[known] = innermost(tree, place[known].astype(np.int32), time_ns[known])
    return position


def _paths(tree: HostTree, name: npt.NDArray[np.int32]) -> tuple[_Paths, Int64]:
    """The distinct paths of a tree, level by level, and the path of each position."""
    path = np.full(len(tree), NONE, dtype=np.int64)
    names, parents, depths = ([np.empty(0, dtype=np.int64)] for _ in range(3))
    width = int(name.max(initial=0)) + 1
    count = 0
    for depth, level in enumerate(tree.levels()):
        above = path[tree.parent[level]] if depth else np.full(len(level), NONE, dtype=np.int64)
        keys, which = _numbered((above + 1) * width + name[level])
        path[level] = count + which
        names.append(keys % width)
        parents.append(keys // width - 1)
        depths.append(np.full(len(keys), depth, dtype=np.int64))
        count += len(keys)
    return _Paths(np.concatenate(names), np.concatenate(parents), np.concatenate(depths)), path


def _numbered(keys: Int64) -> tuple[Int64, Int64]:
    """The distinct keys, ascending, and the place of each key among them; hashed, because few are distinct."""
    found = pa.array(keys).dictionary_encode()
    values = array_of(found.dictionary).astype(np.int64)
    order = np.argsort(values)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return values[order], place[array_of(found.indices)]


def _merged(parts: list[_Paths]) -> tuple[_Paths, list[Int64]]:
    """One list of the paths of all processes, and for each process the new numbers of its paths."""
    numbers = [np.full(len(part.name), NONE, dtype=np.int64) for part in parts]
    names, parents, depths = ([np.empty(0, dtype=np.int64)] for _ in range(3))
    width = max((int(part.name.max(initial=0)) for part in parts), default=0) + 1
    count = 0
    for depth in range(max((int(part.depth.max(initial=-1)) for part in parts), default=-1) + 1):
        here = [np.flatnonzero(part.depth == depth) for part in parts]
        keys = [
            (np.append(number, NONE)[part.parent[rows]] + 1) * width + part.name[rows]
            for part, number, rows in zip(parts, numbers, here, strict=True)
        ]
        values = distinct(np.concatenate(keys))
        for number, rows, key in zip(numbers, here, keys, strict=True):
            number[rows] = count + np.searchsorted(values, key)
        names.append(values % width)
        parents.append(values // width - 1)
        depths.append(np.full(len(values), depth, dtype=np.int64))
        count += len(values)
    return _Paths(np.concatenate(names), np.concatenate(parents), np.concatenate(depths)), numbers
