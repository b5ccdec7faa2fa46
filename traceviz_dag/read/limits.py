"""How much of a file is believed: bounds on what a reader holds in memory, far above what any profiler writes."""

from __future__ import annotations

import os


def _stated(variable: str, default: int) -> int:
    """A positive number in the environment; the default where there is none."""
    given = os.environ.get(variable, "")
    number = int(given) if given.isascii() and given.isdecimal() and len(given) < _MOST_DIGITS else 0
    return number or default


_MOST_DIGITS = 13
LONGEST_TEXT = _stated("TRACEVIZ_LONGEST_TEXT_MIB", 32) << 20
"""Bytes that are held in memory at once: the text before or behind the events of a trace, or one event. Decoded, such
a text takes up to 20 times its size. The variable TRACEVIZ_LONGEST_TEXT_MIB changes it."""

LARGEST_INFLATION, SMALLEST_BOMB = 250, 1 << 28
"""A gzip stream that has become so many times its size, and so many bytes, holds no trace; traces become 5 to 60."""

MOST_ROWS = _stated("TRACEVIZ_MOST_ROWS", 20_000_000)
"""Events of a trace that are kept, and rows of one table of an export. A row takes up to 1 kB on its way to the tables.
The variable TRACEVIZ_MOST_ROWS changes it."""

MOST_STEPS = 10_000
"""ProfilerSteps in one trace."""

MOST_RANKS = 1 << 20
"""Ranks of a job: no number of a rank or size of a group is believed beyond it."""

MOST_ASSUMED_RANKS = 1 << 16
"""Ranks of a job that its size alone tells of; a larger job is believed as far as groups or traces name its ranks."""

LAST_INSTANT_NS = 1 << 62
"""Nanoseconds beyond which, on either side of zero, no time stamp is believed: 146 years."""
