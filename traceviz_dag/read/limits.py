"""How much of a file is believed: bounds on what a reader holds in memory, far above what any profiler writes."""

from __future__ import annotations

import os

_VARIABLE = "TRACEVIZ_LONGEST_TEXT_MIB"
_DEFAULT_MIB, _LARGEST_MIB = 32, 4096


def _longest_text() -> int:
    given = os.environ.get(_VARIABLE, "")
    megabytes = int(given) if given.isascii() and given.isdecimal() and len(given) < 6 else _DEFAULT_MIB
    return min(max(megabytes, 1), _LARGEST_MIB) << 20


LONGEST_TEXT = _longest_text()
"""Bytes that are held in memory at once: the text before or behind the events of a trace, or one event. Decoded, such
a text takes up to 20 times its size. The variable TRACEVIZ_LONGEST_TEXT_MIB changes it."""

LARGEST_INFLATION, SMALLEST_BOMB = 250, 1 << 28
"""A gzip stream that has become so many times its size, and so many bytes, holds no trace; traces become 5 to 60."""

MOST_STEPS = 10_000
"""ProfilerSteps in one trace."""

MOST_RANKS = 1 << 20
"""Ranks of a job: no number of a rank or size of a group is believed beyond it."""

MOST_ASSUMED_RANKS = 1 << 16
"""Ranks of a job that its size alone tells of; a larger job is believed as far as groups or traces name its ranks."""

LAST_INSTANT_NS = 1 << 62
"""Nanoseconds beyond which, on either side of zero, no time stamp is believed: 146 years."""
