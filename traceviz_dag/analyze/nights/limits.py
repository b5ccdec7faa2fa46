"""What tonight's step may take: the median of the nights before it, and what they differ by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.clocks.robust import NORMAL_SPREAD, spread

LEAST_HISTORY = 8
"""Nights from which on their own spread sets the limit."""

STEADY_STEPS = 5
"""Steps from which on their median is a night's; below, their noise widens the limit."""

_SIGMAS = 5.0
_LEAST_SHARE = 0.03
_FEW_NIGHTS = 4


@dataclass(frozen=True, slots=True)
class Limit:
    """What a night's value may be, ns.

    Attributes:
        median_ns: of the nights before. spread_ns: how far from it a value may be.
        widened_ns: of this, what the noise of tonight's few steps adds.
        nights: how many set it.
    """

    median_ns: int
    spread_ns: int
    widened_ns: int
    nights: int

    @property
    def high_ns(self) -> int:
        """Above it tonight is worse."""
        return self.median_ns + self.spread_ns

    @property
    def low_ns(self) -> int:
        """Below it tonight is better."""
        return self.median_ns - self.spread_ns


def robust_limit(history_ns: Sequence[int], floor_ns: int, steps: int, noise_ns: int | None) -> Limit | None:
    """The limit that the nights before set for tonight; None where there are fewer than ``LEAST_HISTORY``.

    It is 5 robust standard deviations (1.4826 MAD) of the nights from their median, at least 3 % and ``floor_ns``; of n
    nights a share of 4 / n more, as few nights may be close together by chance. If tonight has fewer than
    ``STEADY_STEPS``, three standard errors of the mean of so many steps are added.

    Args:
        history_ns: values of the nights since the baseline. floor_ns: less is noise, whatever its share.
        steps: of tonight. noise_ns: standard deviation of the steps of a night; None where no night has several.
    """
    if len(history_ns) < LEAST_HISTORY:
        return None
    values = np.asarray(history_ns, np.float64)
    median = float(np.median(values))
    width = max(_SIGMAS * spread(values) * (1 + _FEW_NIGHTS / len(values)), _LEAST_SHARE * median, floor_ns)
    widened = widening_ns(steps, noise_ns)
    return Limit(round(median), round(width) + widened, widened, len(values))


def widening_ns(steps: int, noise_ns: int | None) -> int:
    """By how much few steps widen a limit."""
    return 0 if steps >= STEADY_STEPS or noise_ns is None else round(3 * noise_ns / steps**0.5)


def step_noise_ns(nights: Sequence[Sequence[int]]) -> int | None:
    """What the steps of a night differ by, as a standard deviation; None where no night has several.

    Args:
        nights: the steps of each night, ns.
    """
    several = [np.asarray(steps, np.float64) for steps in nights if len(steps) > 1]
    if not several:
        return None
    # Of an odd number one is the median itself; deviations of n vary by about 1 - 1 / n of the steps' variance.
    off = [
        np.sort(np.abs(steps - np.median(steps)))[len(steps) % 2 :] / (1 - 1 / len(steps)) ** 0.5 for steps in several
    ]
    return round(NORMAL_SPREAD * float(np.median(np.concatenate(off))))
