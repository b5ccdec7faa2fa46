"""Whether recorded sequence numbers are places in a group: checked against the order of launch before they are trusted.

Some backends count over all groups of a process (nccl2 of 2026), so that equal numbers of two ranks may mean different
communications. Where the members' lists agree in length and operations, but not in numbers, either a rank was recorded
a few communications later, or the numbers run over groups: then the clocks decide, since the ends of what is one
communication keep their distance. A group with one collective cannot be checked so: it is trusted as the others are.
Kineto's ``Comms Id`` is made of group and number, and shows no more than these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceviz_dag.analyze.matching.communications import Communications
from traceviz_dag.arrays import Int64, number_groups

Rows = npt.NDArray[np.intp]


def groups_to_distrust(rows: Communications, chosen: Rows, group: Int64) -> tuple[set[int], set[int]]:
    """The groups whose sequence numbers are no places in the group.

    Args:
        chosen: rows that have a sequence number; group: of each of them.

    Returns:
        Those that are to be distrusted; and those that are, if any group of the job is.
    """
    sequence = rows.integers("sequence")[chosen]
    _, queue = number_groups(group, rows.rank[chosen])
    order = rows.order(chosen, queue.astype(np.int64))
    queue, group, chosen, sequence = queue[order], group[order], chosen[order], sequence[order]
    operation, ends = rows.operation[chosen], rows.end_ns[chosen]
    starts = np.append(np.flatnonzero(np.append(True, queue[1:] != queue[:-1])), len(queue))
    distrusted, unchecked = set(), set()
    lists: dict[int, list[slice]] = {}
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        lists.setdefault(int(group[first]), []).append(slice(first, end))
    for number, members in lists.items():
        reference = members[0]
        for other in members[1:]:
            if np.array_equal(sequence[other], sequence[reference]):
                continue
            if not np.array_equal(operation[other], operation[reference]):
                continue
            if len(sequence[other]) == 1:
                unchecked.add(number)
            if _scatter(ends[other] - ends[reference]) < _scatter_by_number(
                sequence[reference], ends[reference], sequence[other], ends[other]
            ):
                distrusted.add(number)
    return distrusted, unchecked


def _scatter_by_number(numbers: Int64, ends: Int64, other_numbers: Int64, other_ends: Int64) -> float:
    _, mine, theirs = np.intersect1d(numbers, other_numbers, return_indices=True)
    return _scatter(other_ends[theirs] - ends[mine])


def _scatter(differences: Int64) -> float:
    """Half of some differences lie this far apart; infinite for fewer than two, which cannot contradict each other."""
    if len(differences) < 2:
        return float("inf")
    low, high = np.percentile(differences, [25, 75])
    return float(high - low)
