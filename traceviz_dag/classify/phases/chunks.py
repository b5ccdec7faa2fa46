"""Which model chunk each forward step runs, from the module instances inside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from traceviz_dag.arrays import NONE, Bool, Int64, number_groups
from traceviz_dag.read.events import MISSING, TraceEvents
from traceviz_dag.read.host_tree import HostTree

_ONE_CHUNK = ("no_pipelining", "without_interleaving")
"""In the names of schedules that run one chunk."""

_MODULE = re.compile(r"nn\.Module: (.+)_([0-9]{1,18})$")


def chunks_of_forward_steps(trace: TraceEvents, tree: HostTree, member: Int64, forward: Int64, counted: Bool) -> Int64:
    """Chunk of each forward step, or MISSING where modules do not show.

    The profiler numbers the instances of a module class as it meets them, and chunk 0 runs first. Steps of one chunk
    run the same instances and steps of different chunks different ones, so each class whose instances fall apart like
    that shows the chunks. What shows most steps decides, then what most classes say.

    Args:
        member: per tree position the index of its step, or NONE.
        forward: indices of the forward steps, ascending.
        counted: of which of these the training step is recorded from its beginning on. Where that is not so of all, a
            chunk has its number from the order in which these run the chunks for the first time.
    """
    class_of, instance_of, classes = _instances(trace.strings)
    names = trace.host.name[tree.rows]
    rows = np.flatnonzero(class_of.take(names) != NONE)
    rows = rows[np.isin(member[rows], forward)]
    # Where rows of the host are lost, the name of an interleaved schedule may be, too.
    single = not any("interleav" in name and "without" not in name for name in trace.strings) and (
        bool(counted.all()) or any(each in name for name in trace.strings for each in _ONE_CHUNK)
    )
    if not len(rows):
        return np.full(len(forward), 0 if single else MISSING, dtype=np.int64)
    step = np.searchsorted(forward, member[rows])
    module, instance = class_of[names[rows]], instance_of[names[rows]]
    told = Counter(_splits(module * len(forward) + step, instance, classes, len(forward)))
    if not told:
        return np.full(len(forward), MISSING, dtype=np.int64)
    best = max(told, key=lambda chunk: (sum(value >= 0 for value in chunk), told[chunk], chunk))
    chunk = np.array(best, dtype=np.int64)
    if counted.all() or (single and not chunk.any()):
        return chunk
    by_first_run = {MISSING: MISSING}
    for number in chunk[counted].tolist():
        by_first_run.setdefault(number, len(by_first_run) - 1)
    return np.array([by_first_run.get(number, MISSING) for number in chunk.tolist()], dtype=np.int64)


def _splits(place: Int64, instance: Int64, classes: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordinal of each step's group by the instances of each class, without classes of which two groups share one.

    Args:
        place: of each module row, the number of its class times ``count``, the number of steps, and its step.
    """
    never = np.iinfo(np.int64).max
    lowest = np.full(classes * count, never)
    np.minimum.at(lowest, place, instance)
    first, _ = number_groups(place // count, instance, lowest[place])
    module = place[first] // count
    _, which = number_groups(module, instance[first])
    shared = set(module[np.bincount(which)[which] > 1].tolist())
    for number, of_steps in enumerate(lowest.reshape(classes, count).tolist()):
        if number not in shared:
            ordinal = {never: MISSING} | {one: group for group, one in enumerate(sorted({*of_steps} - {never}))}
            yield tuple(map(ordinal.__getitem__, of_steps))


def _instances(strings: tuple[str, ...]) -> tuple[Int64, Int64, int]:
    """(number of the module class, number of the instance) per string, NONE for other names; number of classes."""
    matches = [_MODULE.match(name) for name in strings]
    classes = {match[1]: 0 for match in matches if match is not None}
    classes = {name: index for index, name in enumerate(classes)}
    class_of = np.array([NONE if match is None else classes[match[1]] for match in matches], dtype=np.int64)
    instance_of = np.array([NONE if match is None else int(match[2]) for match in matches], dtype=np.int64)
    return class_of, instance_of, len(classes)
