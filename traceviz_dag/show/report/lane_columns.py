"""The lanes of a page as columns, with the kinds and names of their slices, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import NONE, Int64
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.bundle import Content
from traceviz_dag.show.lanes.lane import Lane
from traceviz_dag.show.lanes.names import shortened
from traceviz_dag.show.report.columns import PageColumns

_DIFFERENCES = {"kernel.start", "kernel.id", "lane.start", "wait.kernel"}
"""Columns whose neighbours differ little."""


@dataclass(slots=True)
class LaneColumns:
    """Columns as they are gathered.

    Attributes:
        kinds, names: of the slices of all lanes → their places.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    _gathered: dict[str, list[Int64]] = field(default_factory=dict)

    def add(self, name: str, values: npt.NDArray[np.integer]) -> int:
        """Add to a column; returns how many."""
        self._gathered.setdefault(name, []).append(np.asarray(values, dtype=np.int64))
        return len(values)

    def add_lane(self, lane: Lane, content: Content, zero: int, words: Sequence[str | None] = ()) -> dict[str, Any]:
        """Add the slices of a lane; returns the lane as the page's script reads it.

        Args:
            zero: what their times are counted from. words: what their names are places in.
        """
        rows = content.rows
        self.add("lane.start", rows.start_ns - zero)
        self.add("lane.length", rows.end_ns - rows.start_ns)
        self.add("lane.kind", _places(self.kinds, content.kinds, rows.kind))
        self.add("lane.name", _places(self.names, words, rows.name) + 1)
        return {**lane_document(lane), "count": len(rows)}

    def hand_over(self, columns: PageColumns) -> None:
        """Give the columns to a page."""
        for name, gathered in self._gathered.items():
            columns.add(name, np.concatenate(gathered), differences=name in _DIFFERENCES)


def lane_document(lane: Lane, holds: Mapping[str, str | int | None] | None = None) -> dict[str, Any]:
    """A lane as the page's script reads it.

    Args:
        holds: what kernels of the lane have in common, by field of their signature.
    """
    told = {name: printable(one) if isinstance(one, str) else one for name, one in (holds or {}).items()}
    return {
        "key": lane.key,
        "label": printable(lane.label),
        "kind": lane.kind.value,
        "dimension": lane.dimension,
        **({"holds": told} if told else {}),
    }


def _places(known: dict[str, int], words: Sequence[str | None], used: npt.NDArray[np.integer]) -> Int64:
    """The place of each word that is used among those that are known; NONE for none."""
    place = np.full(len(words) + 1, NONE, np.int64)
    for index in np.unique(used).tolist():
        if 0 <= index < len(words):
            place[index] = known.setdefault(shortened(printable(words[index] or "")), len(known))
    return place[np.where(used < 0, len(words), used)]
