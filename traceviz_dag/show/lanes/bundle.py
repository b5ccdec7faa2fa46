"""A bundle: the lanes that are made together, of one GPU, process or rank, with their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import Intervals, merge, subtract
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.lanes.lane import Lane, Mark
from traceviz_dag.show.lanes.rows import Changes, LaneRows
from traceviz_dag.show.lanes.words import EXPOSED, word_of
from traceviz_dag.vocabulary import Kind

EXPOSED_KINDS = (parts.EXPOSED_WAIT, parts.EXPOSED_TRANSFER, parts.EXPOSED_UNTOLD, EXPOSED)
PART_KINDS = (*parts.COMPUTATION, *EXPOSED_KINDS[:3], parts.HIDDEN, parts.MEMORY_ALONE)
"""Kinds of the lane of a rank. They are disjoint: ``hidden`` is time in which it computes and communicates."""

GPU_PART_KINDS = (Kind.COMPUTATION.value, EXPOSED, parts.HIDDEN, parts.MEMORY_ALONE)
"""Kinds of the lane of a GPU of a profile, which shows neither phases nor waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The slices of a lane.

    Attributes:
        kinds: its kinds, see ``words``.
        words: which list of names its names are from; empty where its slices have none.
    """

    rows: LaneRows
    kinds: tuple[str, ...]
    words: str = ""

    @property
    def occurring(self) -> set[str]:
        """The kinds that some slice is of."""
        return {self.kinds[place] for place in np.unique(self.rows.kind).tolist()}

    def keys(self, rows: LaneRows) -> pa.Array:
        """The kind of each of some rows."""
        return pa.array(self.kinds, pa.string()).take(pa.array(rows.kind))

    def labels(self, rows: LaneRows) -> pa.Array:
        """What each of some rows is called where it has no name."""
        return pa.array([word_of(kind).label for kind in self.kinds], pa.string()).take(pa.array(rows.kind))


@dataclass(slots=True, eq=False)
class Bundle:
    """Lanes that are made together.

    Attributes:
        lanes: in order; the first one holds the others.
        contents: lane → its slices. counters: lane → its changes.
        words: names of lists of names → names, where the source cannot hand them out quickly.
        marks: iterations of it, on its own clock.
    """

    lanes: list[Lane] = field(default_factory=list)
    contents: dict[str, Content] = field(default_factory=dict)
    counters: dict[str, Changes] = field(default_factory=dict)
    words: dict[str, list[str | None]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    _by_key: dict[str, Lane] = field(default_factory=dict)

    def lane(self, key: str) -> Lane | None:
        """A lane of the bundle; None where it has none of that key."""
        if len(self._by_key) != len(self.lanes):
            self._by_key = {lane.key: lane for lane in self.lanes}
        return self._by_key.get(key)

    def add(self, lane: Lane, rows: LaneRows, kinds: tuple[str, ...], words: str = "") -> None:
        """Add a lane with its slices."""
        self.lanes.append(lane)
        self.contents[lane.key] = Content(rows, kinds, words)

    def add_counter(self, lane: Lane, changes: Changes) -> None:
        """Add a counter."""
        self.lanes.append(lane)
        self.counters[lane.key] = changes


def part_rows(found: Mapping[str, Intervals], kinds: Sequence[str]) -> LaneRows:
    """What a rank or GPU did, as ``parts.parts_of`` splits it, as slices that do not overlap, of these kinds."""
    computes = (*parts.COMPUTATION, Kind.COMPUTATION)
    alone = [subtract(found[name], found[parts.HIDDEN]) if name in computes else found[name] for name in kinds]
    starts, ends = (np.concatenate([each[side] for each in alone]) for side in (0, 1))
    return LaneRows.of(starts, ends, np.repeat(np.arange(len(kinds)), [len(each.starts) for each in alone]))


def everything(found: Mapping[str, Intervals]) -> Intervals:
    """The union of all parts."""
    return merge(*found.values())
