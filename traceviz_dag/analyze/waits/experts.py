"""How unevenly tokens fall on experts, from the message sizes of the all-to-alls that carry them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.arrays import number_groups
from traceviz_dag.read.events import MISSING

_LOAD_COLUMNS = {"rank": pa.int64(), "exchanges": pa.int64(), "elements": pa.int64(), "load": pa.float64()}


def expert_load(exchanges: pa.Table) -> pa.Table:
    """How unevenly tokens fall on the ranks of an expert-parallel group, from the sizes of its all-to-alls.

    Of each all-to-all one side is the rank's own tokens, the same on all members, and the other what its experts take.

    Args:
        exchanges: a row per member of each matched all-to-all: communication, rank, in_elements, out_elements.

    Returns:
        A row per rank: ``exchanges``, ``elements`` that its experts took, ``load`` (against the mean of its peers), the
        highest first.
    """
    rank, number = (optional_integers(exchanges, name) for name in ("rank", "communication"))
    sides = [optional_integers(exchanges, name) for name in ("in_elements", "out_elements")]
    known = (number != MISSING) & (sides[0] != MISSING) & (sides[1] != MISSING)
    rank, number, sides = rank[known], number[known], [side[known] for side in sides]
    if not len(rank):
        return pa.table({name: pa.array([], kind) for name, kind in _LOAD_COLUMNS.items()})
    _, number = number_groups(number)
    members = np.bincount(number)

    def spread(side: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        low, high = np.full(len(members), np.iinfo(np.int64).max), np.zeros(len(members), dtype=np.int64)
        np.minimum.at(low, number, side)
        np.maximum.at(high, number, side)
        return high - low

    elements = np.where((spread(sides[0]) > spread(sides[1]))[number], sides[0], sides[1])
    mean = np.bincount(number, weights=elements) / members
    everyone, place = np.unique(rank, return_inverse=True)
    taken = np.bincount(place, weights=elements)
    usual = np.bincount(place, weights=mean[number])
    columns = (everyone, np.bincount(place), taken.astype(np.int64), taken / np.maximum(usual, 1))
    table = pa.table(dict(zip(_LOAD_COLUMNS, map(pa.array, columns), strict=True)))
    return table.sort_by([("load", "descending"), ("rank", "ascending")])
