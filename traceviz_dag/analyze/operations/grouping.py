"""Kernels of one rank grouped by operation, and the calls within each group: array passes, whole nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.medians import lower_medians
from traceviz_dag.arrays import NONE, Int64, number_groups


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of kernels, by their time, the longest first; all but ``of_kernel`` have an entry per group.

    Attributes:
        of_kernel: the group of each kernel.
        first: the first kernel of a group. kernels, kernel_ns: how many there are, and the sum of their durations.
        main_name: the name that takes the most time.
        calls: how many calls launched them. shortest_ns, median_ns (lower), p95_ns (nearest rank), longest_ns: kernel
            time of a call.
    """

    of_kernel: Int64
    first: Int64
    kernels: Int64
    kernel_ns: Int64
    main_name: Int64
    calls: Int64
    shortest_ns: Int64
    median_ns: Int64
    p95_ns: Int64
    longest_ns: Int64


def grouped(keys: Sequence[Int64], call: Int64, name: Int64, duration_ns: Int64) -> Groups:
    """Group kernels by several keys.

    Args:
        keys: codes from NONE up, each with an entry per kernel.
        call: the call that launched each kernel; NONE counts each kernel as a call of its own.
        name: code of each kernel's name.
    """
    first, number = number_groups(*keys)
    count = len(first)
    kernel_ns = _sums(number, duration_ns, count)
    order = np.lexsort((first, -kernel_ns))
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    number, first, kernel_ns = place[number], first[order], kernel_ns[order]
    # Numbers below NONE are no calls.
    own = np.where(call == NONE, NONE - 1 - np.arange(len(call)), call)
    of_call, call_ns = _totals(number, own, duration_ns)
    calls = np.bincount(of_call, minlength=count)
    ordered = call_ns[np.lexsort((call_ns, of_call))]
    begin = np.cumsum(calls) - calls
    return Groups(
        of_kernel=number,
        first=first,
        kernels=np.bincount(number, minlength=count),
        kernel_ns=kernel_ns,
        main_name=_main(number, name, duration_ns, count),
        calls=calls,
        shortest_ns=ordered[begin],
        median_ns=lower_medians(of_call, call_ns, count),
        p95_ns=ordered[begin + (19 * calls + 19) // 20 - 1],
        longest_ns=ordered[begin + calls - 1],
    )


def _totals(group: Int64, part: Int64, values: Int64) -> tuple[Int64, Int64]:
    """(group, sum of the values) of each part of a group."""
    if not len(group):
        return group, values
    order = np.lexsort((part, group))
    ordered_group, ordered_part = group[order], part[order]
    changes = (np.diff(ordered_group) != 0) | (np.diff(ordered_part) != 0)
    begin = np.append(0, np.flatnonzero(changes) + 1)
    return ordered_group[begin], np.add.reduceat(values[order], begin)


def _main(group: Int64, name: Int64, duration_ns: Int64, count: int) -> Int64:
    """The name that takes the most time of each group; of equals the one with the lowest code."""
    names = int(name.max(initial=0)) + 1
    pair, total = _totals(group * names + name, np.zeros(len(group), dtype=np.int64), duration_ns)
    order = np.lexsort((-(pair % names), total, pair // names))
    found = np.zeros(count, dtype=np.int64)
    # Later ones of a group overwrite earlier ones.
    found[(pair // names)[order]] = (pair % names)[order]
    return found


def _sums(group: Int64, values: Int64, count: int) -> Int64:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, group, values)
    return total
