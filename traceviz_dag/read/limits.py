"""How much of a file is believed: bounds on what a reader holds in memory, far above what any profiler writes."""

from __future__ import annotations

import os

from traceviz_dag.errors import UsageError

TEXT_VARIABLE, ROWS_VARIABLE = "TRACEVIZ_LONGEST_TEXT_MIB", "TRACEVIZ_MOST_ROWS"
"""Environment variables that change the two bounds a large job may meet. The options of ``traceviz`` set them, so that
worker processes and Dagster's own have the same bounds."""

DEFAULT_TEXT_MIB, DEFAULT_ROWS = 32, 20_000_000
MOST_TEXT_MIB, MOST_STATED_ROWS = 1 << 16, 10**10
"""The largest values that the two variables take."""


def _stated(variable: str, default: int, most: int) -> int:
    """A positive number in the environment; the default where there is none.

    Raises:
        UsageError: what is there is no such number.
    """
    given = os.environ.get(variable, "").strip()
    if not given:
        return default
    number = int(given) if given.isascii() and given.isdecimal() and len(given) <= len(str(most)) else 0
    if not 0 < number <= most:
        raise UsageError(
            f"{variable}={given[:40]} is no number from 1 to {most}; correct it, or unset it to get {default}"
        )
    return number


LONGEST_TEXT = _stated(TEXT_VARIABLE, DEFAULT_TEXT_MIB, MOST_TEXT_MIB) << 20
"""Bytes that are held in memory at once: the text before or behind the events of a trace, or one event. Decoded, such
a text takes up to 20 times its size. ``--longest-text-mib`` or the variable changes it."""

LARGEST_INFLATION, SMALLEST_BOMB = 250, 1 << 28
"""A gzip stream that has become so many times its size, and so many bytes, holds no trace; traces become 5 to 60."""

MOST_ROWS = _stated(ROWS_VARIABLE, DEFAULT_ROWS, MOST_STATED_ROWS)
"""Events of a trace that are kept, and rows of one table of an export. A row takes up to 1 kB on its way to the tables.
``--most-rows`` or the variable changes it."""

MOST_STEPS = 10_000
"""ProfilerSteps in one trace."""

MOST_RANKS = 1 << 20
"""Ranks of a job: no number of a rank or size of a group is believed beyond it."""

MOST_ASSUMED_RANKS = 1 << 16
"""Ranks of a job that its size alone tells of; a larger job is believed as far as groups or traces name its ranks."""

LAST_INSTANT_NS = 1 << 62
"""Nanoseconds beyond which, on either side of zero, no time stamp is believed: 146 years."""
