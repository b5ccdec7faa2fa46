"""The bounds that a large job may meet, and that its user may state."""

from __future__ import annotations

import os
from dataclasses import dataclass

from traceviz_dag.errors import UsageError


@dataclass(frozen=True, slots=True)
class StatedBound:
    """A bound that the environment states, or an option of ``traceviz`` through it.

    Worker processes and Dagster's own read the same environment, so that they have the same bound.

    Attributes:
        variable: of the environment.
        default: where nothing is stated.
        most: the largest that may be stated.
    """

    variable: str
    default: int
    most: int

    def stated(self) -> int:
        """The bound that the environment states, or the default.

        Raises:
            UsageError: what is there is no number from 1 to ``most``.
        """
        given = os.environ.get(self.variable, "").strip()
        if not given:
            return self.default
        number = int(given) if given.isascii() and given.isdecimal() and len(given) <= len(str(self.most)) else 0
        if not 0 < number <= self.most:
            raise UsageError(
                f"{self.variable}={given[:40]} is no number from 1 to {self.most}; correct it, "
                f"or unset it to get {self.default}"
            )
        return number


TEXT_MIB = StatedBound("TRACEVIZ_LONGEST_TEXT_MIB", default=32, most=1 << 16)
"""MiB of text that is held in memory at once."""

ROWS = StatedBound("TRACEVIZ_MOST_ROWS", default=20_000_000, most=10**10)
"""Events of one trace, and rows of one table of an export."""

RANKS_IN_ONE_PIECE = StatedBound("TRACEVIZ_RANKS_IN_ONE_PIECE", default=1_024, most=1 << 20)
"""Ranks whose communications are matched in one process; of more, in shards."""
