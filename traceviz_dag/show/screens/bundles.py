"""A bundle: the lanes that are made together, of one GPU, process or rank, with their rows and levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from traceviz_dag.analyze.intervals import Intervals, merge, subtract
from traceviz_dag.show.report import bins
from traceviz_dag.show.screens.counters import Changes, CounterLevel, counter_levels
from traceviz_dag.show.screens.levels import Level, levels_of
from traceviz_dag.show.screens.model import Lane, Mark
from traceviz_dag.show.screens.rows import LaneRows

HIDDEN_PART, EXPOSED_PARTS = bins.HIDDEN, (bins.EXPOSED_WAIT, bins.EXPOSED_TRANSFER, bins.EXPOSED_UNTOLD)
PARTS = (*bins.COMPUTATION, *EXPOSED_PARTS, bins.HIDDEN, bins.MEMORY_ALONE)
"""Kinds of the lane of a rank or GPU. They are disjoint: ``hidden`` is time in which it computes and communicates."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The slices of a lane.

    Attributes:
        kinds: words of its kinds.
        words: which list of names its names are from; empty where its slices have none.
    """

    rows: LaneRows
    levels: Sequence[Level]
    kinds: tuple[str, ...]
    words: str = ""


@dataclass(slots=True, eq=False)
class Bundle:
    """Lanes that are made together.

    Attributes:
        lanes: in order; the first one holds the others.
        contents: lane → its slices. counters: lane → its changes and levels.
        words: names of lists of names → names, where the source cannot hand them out quickly.
        marks: iterations of it, on its own clock.
    """

    lanes: list[Lane] = field(default_factory=list)
    contents: dict[str, Content] = field(default_factory=dict)
    counters: dict[str, tuple[Changes, Sequence[CounterLevel]]] = field(default_factory=dict)
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
        self.contents[lane.key] = Content(rows, levels_of(rows), kinds, words)

    def add_counter(self, lane: Lane, changes: Changes) -> None:
        """Add a counter."""
        self.lanes.append(lane)
        self.counters[lane.key] = (changes, counter_levels(changes))


def part_rows(parts: Mapping[str, Intervals]) -> LaneRows:
    """What a rank or GPU did, as ``bins.parts_of`` parts it, as slices that do not overlap; kinds are ``PARTS``."""
    alone = {
        name: subtract(parts[name], parts[bins.HIDDEN]) if name in bins.COMPUTATION else parts[name] for name in PARTS
    }
    starts, ends = (np.concatenate([each[side] for each in alone.values()]) for side in (0, 1))
    kind = np.repeat(np.arange(len(PARTS)), [len(each.starts) for each in alone.values()])
    return LaneRows.of(starts, ends, kind)


def everything(parts: Mapping[str, Intervals]) -> Intervals:
    """The union of all parts."""
    return merge(*parts.values())
