"""Device rows that are in a file twice, as where a trace was appended to itself: each counts once."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import distinct
from traceviz_dag.read.events import MISSING, CollectiveFacts, DeviceRows

REPEATED = "a repetition of another kernel or copy"
"""Reason in ``ReadReport.dropped``."""

_SAME = ("start_ns", "duration_ns", "stream", "device", "correlation", "name", "graph_node_id")


def without_repeats(rows: DeviceRows) -> tuple[DeviceRows, int]:
    """The rows without those that equal an earlier one, and how many those are.

    Work on one stream runs one after the other: two rows of one launch with the same name, stream, start and duration
    above zero are one. Rows without a correlation are left alone.
    """
    told = (rows.duration_ns > 0) & (rows.correlation != MISSING)
    # Nearly every file has no such rows, which the starts and streams alone show.
    candidates = np.flatnonzero(told)
    for column in (rows.start_ns, rows.stream):
        candidates = candidates[_occurs_again(column[candidates])]
    if not len(candidates):
        return rows, 0
    columns = [getattr(rows, name)[candidates] for name in _SAME]
    order = np.lexsort(columns[::-1])  # stable: of equal rows, the first in the file comes first
    equal = np.ones(len(order), bool)
    equal[0] = False
    for column in columns:
        equal[1:] &= column[order][1:] == column[order][:-1]
    keep = np.ones(len(rows), bool)
    keep[candidates[order[equal]]] = False
    repeats = int(equal.sum())
    return (_taken(rows, keep), repeats) if repeats else (rows, 0)


def _occurs_again(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which values occur more than once."""
    ordered = np.sort(values)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.isin(values, distinct(again)) if len(again) else np.zeros(len(values), bool)


def _taken(rows: DeviceRows, keep: npt.NDArray[np.bool_]) -> DeviceRows:
    facts = CollectiveFacts(**{one.name: getattr(rows.collective, one.name)[keep] for one in fields(CollectiveFacts)})
    own = {one.name: getattr(rows, one.name)[keep] for one in fields(DeviceRows) if one.name != "collective"}
    return DeviceRows(**own, collective=facts)
