"""Arrow columns from codes: what is missing becomes NULL, and a dictionary holds only what its column uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from traceviz_dag.arrays import Int32, Int64, distinct, number_groups
from traceviz_dag.read.events import MISSING


def integers(values: Int64) -> pa.Array:
    """An integer column; MISSING is NULL."""
    return pa.array(values, mask=values == MISSING)


def coded(codes: Int64 | Int32, strings: tuple[str, ...], prefix: str = "") -> pa.Array:
    """A dictionary column from string codes; code 0 is NULL.

    Args:
        prefix: taken off every string.
    """
    first, which = number_groups(codes)
    values = [strings[code].removeprefix(prefix) if code else None for code in codes[first].tolist()]
    return labelled(which, values)


def labelled(indices: Int64, labels: Sequence[str | None]) -> pa.Array:
    """A dictionary column from positions in ``labels``; a negative index or a None label is NULL.

    Labels are sorted and those that do not occur are left out, so that equal data give equal bytes.
    """
    used = distinct(indices[indices >= 0])
    there = sorted({str(labels[index]) for index in used.tolist() if labels[index] is not None})
    place = {label: position for position, label in enumerate(there)}
    translate = np.full(len(labels) + 1, -1, dtype=np.int32)
    for index in used.tolist():
        label = labels[index]
        translate[index] = -1 if label is None else place[str(label)]
    codes = translate[np.where(indices >= 0, indices, len(labels))]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(there, type=pa.string()))
