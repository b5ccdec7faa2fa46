"""What a rank's host did at given times: the host row that was open, and the kind of work that it belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, clip, union
from traceviz_dag.arrays import NONE, Bool, Int32, Int64, distinct, lookup, number_groups, ranges
from traceviz_dag.read.events import PYTHON_FUNCTION, TraceEvents
from traceviz_dag.read.host_tree import HostTree, build_tree, innermost
from traceviz_dag.vocabulary import HostWork

_NAMES: tuple[tuple[HostWork, str], ...] = (
    (HostWork.DATA_LOADING, r"enumerate\(DataLoader\)|(^|/)torch/utils/data/|dataloader\.py\(|(^|: )get_batch\b"),
    (HostWork.GARBAGE_COLLECTION, r"^<built-in function collect>|(^|/)gc\.py\(|: gc_collect\b"),
    (
        HostWork.COMPILATION,
        r"torch/_(dynamo|inductor|functorch)/.*: (_compile(_inner)?|convert_frame\w*|compile_(fx|inner)\w*)$",
    ),
    (HostWork.GRAPH_BREAK, r": torch_dynamo_resume_in_\w+$"),
    (
        HostWork.ALLOCATION,
        r"^cuda(Malloc|Free|HostAlloc|FreeHost|MallocHost)(Async)?$|^cuMem(Alloc|Free|Create|Release)",
    ),
    (
        HostWork.SYNCHRONISATION,
        r"^(cuda|cu)(Device|Stream|Event|Ctx)Synchronize|^aten::(item|_local_scalar_dense)$|: synchronize$",
    ),
)
"""What rows are called whose work is of a kind; their names are those that PyTorch and CUDA give."""

_OF_THE_FRAMEWORK = re.compile(
    r"(.*/)?megatron/(core/(pipeline_parallel/p2p_communication|optimizer/|distributed/|timers"
    r"|transformer/moe/token_dispatcher)"
    r"|(bridge/)?training/(utils/)?(train|training|utils|train_utils)\.py\(\d+\): "
    r"(train_step|training_log|report_memory|reduce_max_stat_across_model_parallel_group"
    r"|logical_and_across_model_parallel_group))"
)
"""Callers of Megatron-LM and Megatron-Bridge that wait for the GPU in every job, or for the tokens of each expert:
messages between stages, the gradient norm, the agreement of all ranks on a step's success, timers and logs."""

_OF_TORCH = re.compile(r"<built-in|nn\.Module: |(.*/)?torch/|contextlib\.py")
"""Python functions that say nothing of who called."""


@dataclass(frozen=True)
class Host:
    """A rank's host rows and calls that are open at some times, nested, with what each of them is.

    Attributes:
        tree: host rows and calls of the CUDA runtime.
        name: per position, its name as code into ``strings``.
        work: per position, place in ``HostWork`` of the nearest row around it that shows it; NONE where none does.
        key: per position, the row that represents it: the nearest one that shows its work, else itself.
        caller: per position, the nearest Python function around it that is not torch's; NONE where there is none.
        main: index of the thread that runs the training loop; NONE for none.
        framework: per position, whether it is of Megatron's code that waits for the GPU in every job.
    """

    tree: HostTree
    strings: tuple[str, ...]
    name: Int64
    work: Int64
    key: Int64
    caller: Int64
    main: int
    framework: Bool


def host_of(trace: TraceEvents, stacked: Int64, main: int, looked_at: Intervals) -> Host:
    """Nest the calls of the CUDA runtime in the host rows, and find what work each row is part of.

    Args:
        stacked: rows of the host that take part, ascending. main: index of the thread that runs the training loop.
        looked_at: the times that are asked about, a normal set; rows that are not open in any are left out.
    """
    host, launches = trace.host, trace.launches
    thread = np.concatenate([host.thread, launches.thread])
    start_ns = np.concatenate([host.start_ns, launches.start_ns])
    duration_ns = np.concatenate([host.duration_ns, launches.duration_ns])
    rows = np.concatenate([stacked, len(host) + np.arange(len(launches))])
    rows = rows[_open_in(looked_at, thread[rows], start_ns[rows], start_ns[rows] + duration_ns[rows])]
    tree = build_tree(rows, thread, start_ns, duration_ns)
    name = np.concatenate([host.name, launches.name]).astype(np.int64)[tree.rows]
    names = distinct(name).tolist()
    tells = _codes(trace.strings, names)[name]
    key = tree.nearest(tells != NONE)
    python = np.append(host.category == PYTHON_FUNCTION, np.zeros(len(launches), dtype=bool))[tree.rows]
    of_torch, framework = (_matching(trace.strings, names, one) for one in (_OF_TORCH, _OF_THE_FRAMEWORK))
    return Host(
        tree,
        trace.strings,
        name,
        lookup(tells, key),
        np.where(key == NONE, np.arange(len(tree)), key),
        tree.nearest(python & ~of_torch[name]),
        main,
        framework[name],
    )


def _open_in(times: Intervals, thread: Int32, start_ns: Int64, end_ns: Int64) -> Int64:
    """Rows that are open at some of the times, and what is around them: rows of their thread that are open as they
    start, though rounding may have these end first."""
    if not len(thread):
        return np.arange(0)
    first, last = int(start_ns.min()), int(end_ns.max())
    threads, span = distinct(thread).astype(np.int64), last - first + 1
    if (int(threads[-1]) + 1) * span > np.iinfo(np.int64).max:
        return np.arange(len(thread))
    starts, ends = (each - first + thread * np.int64(span) for each in (start_ns, end_ns))
    times = clip(times, first, last)
    new_starts, new_ends = (np.add.outer(threads * span, each - first).ravel() for each in times)
    found = np.zeros(len(thread), dtype=bool)
    while len(new_starts):
        following = np.searchsorted(new_ends, starts, side="right")
        new = np.flatnonzero((np.append(new_starts, np.iinfo(np.int64).max)[following] < ends) & ~found)
        found[new] = True
        new_starts, new_ends = union(starts[new], starts[new] + 1)
    return np.flatnonzero(found)


def longest_within(host: Host, thread: Int64, starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """For each window of a thread the row that was open longest in it as the innermost one, or the work it is part of.

    Args:
        thread: index of each window's thread; NONE for none. The main one shows what the host does where that has no
            row open. starts, ends: of each window, maybe empty.

    Returns:
        Position of the row, NONE where none was open for most of the window; and for how long, ns.
    """
    row, busy = np.full(len(starts), NONE), np.zeros(len(starts), np.int64)
    there = np.flatnonzero((thread != NONE) & (ends > starts))
    if not len(there) or not len(host.tree):
        return row, busy
    window, begin, end, open_row = _open_rows(host.tree, thread[there], starts[there], ends[there])
    idle = np.flatnonzero(open_row == NONE)
    on_main = _open_rows(host.tree, np.full(len(idle), host.main), begin[idle], end[idle])
    kept = open_row != NONE
    window = np.concatenate([window[kept], window[idle][on_main[0]]])
    begin, end = np.concatenate([begin[kept], on_main[1]]), np.concatenate([end[kept], on_main[2]])
    open_row = lookup(host.key, np.concatenate([open_row[kept], on_main[3]]))
    first, number = number_groups(window, open_row)
    total = np.bincount(number, weights=end - begin).astype(np.int64)
    # In order of window, then of time; the last of each window is its longest.
    order = np.lexsort((total, window[first]))
    last = np.flatnonzero(np.append(np.diff(window[first][order]) != 0, True))
    chosen = order[last]
    place = there[window[first][chosen]]
    row[place], busy[place] = open_row[first][chosen], total[chosen]
    return row, busy


def _open_rows(tree: HostTree, thread: Int64, starts: Int64, ends: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut windows wherever a row of their thread begins or ends: window, begin, end and innermost row of each piece."""
    of_windows = np.arange(len(starts))
    cuts, cut_of = [starts], [of_windows]
    for one in distinct(thread).tolist():
        begin, end = np.searchsorted(tree.thread, [one, one + 1])
        mine = np.flatnonzero(thread == one)
        low = begin + np.searchsorted(tree.start_ns[begin:end], starts[mine], side="right")
        high = np.maximum(low, begin + np.searchsorted(tree.start_ns[begin:end], ends[mine], side="left"))
        rows = ranges(low, high)
        cuts += [tree.start_ns[rows], tree.end_ns[rows]]
        cut_of += [np.repeat(mine, high - low)] * 2
    # What ends in a window has begun in it, or is around what is open as it begins.
    open_ = innermost(tree, thread.astype(np.int32), starts)
    while len(held := (open_ != NONE).nonzero()[0]):
        of_windows, open_ = of_windows[held], open_[held]
        cuts.append(tree.end_ns[open_])
        cut_of.append(of_windows)
        open_ = tree.parent[open_]
    window, begin_ns = np.concatenate(cut_of), np.concatenate(cuts)
    inside = (begin_ns >= starts[window]) & (begin_ns < ends[window])
    window, begin_ns = window[inside], begin_ns[inside]
    order = np.lexsort((begin_ns, window))
    window, begin_ns = window[order], begin_ns[order]
    last = np.append(np.diff(window) != 0, True)
    end_ns = np.where(last, ends[window], np.append(begin_ns[1:], 0))
    kept = end_ns > begin_ns
    window, begin_ns = window[kept], begin_ns[kept]
    return window, begin_ns, end_ns[kept], innermost(tree, thread[window].astype(np.int32), begin_ns)


def _matching(strings: Sequence[str], used: Sequence[int], pattern: re.Pattern[str]) -> Bool:
    """Per string, whether it is used and begins as the pattern says."""
    found = np.zeros(len(strings), dtype=bool)
    for code in used:
        found[code] = bool(pattern.match(strings[code]))
    return found


def _codes(strings: Sequence[str], used: Sequence[int]) -> Int64:
    """Per string, place in ``HostWork`` of the work that a row of that name does; NONE where it does not show."""
    codes = np.full(len(strings), NONE)
    codes[used] = [_work_of(strings[code]) for code in used]
    return codes


@lru_cache(maxsize=1 << 14)  # The ranks of a job have the same names.
def _work_of(name: str) -> int:
    return next((list(HostWork).index(work) for work, pattern in _NAMES if re.search(pattern, name)), NONE)
