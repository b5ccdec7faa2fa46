"""A bundle of lanes with what lets screens draw it fast: the levels of each lane and counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceviz_dag.show.lanes.bundle import Bundle
from traceviz_dag.show.screens.counters import CounterLevel, counter_levels
from traceviz_dag.show.screens.levels import Level, levels_of


@dataclass(frozen=True, slots=True, eq=False)
class Tiled:
    """A bundle and its levels.

    Attributes:
        levels: lane → levels of its slices, finest first. counter_levels: counter → its levels.
    """

    bundle: Bundle
    levels: dict[str, Sequence[Level]]
    counter_levels: dict[str, Sequence[CounterLevel]]

    @classmethod
    def of(cls, bundle: Bundle) -> Tiled:
        """The levels of a bundle, made."""
        return cls(
            bundle,
            {key: levels_of(content.rows) for key, content in bundle.contents.items()},
            {key: counter_levels(changes) for key, changes in bundle.counters.items()},
        )
