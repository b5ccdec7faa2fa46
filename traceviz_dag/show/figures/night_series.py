"""A series from night to night: the step of each, its verdict, the limit, and the changes that last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from traceviz_dag.analyze.nights.verdicts import Outcome
from traceviz_dag.analyze.wording import counted
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.page import Caption, LegendEntry, LegendGroup, TimeScale, open_page
from traceviz_dag.show.page.typography import LABEL, SMALL, typography

_HEIGHT, _AXIS, _RIGHT = 2.6, 0.7, 0.4
_COLOURS = {
    Outcome.PASS.value: palette.HIDDEN,
    Outcome.BETTER.value: palette.FILL_DRAIN,
    Outcome.WORSE.value: palette.EXPOSED,
    Outcome.INCONCLUSIVE.value: palette.IMBALANCE,
    None: palette.COMPUTATION_ONLY,
}


@dataclass(frozen=True, slots=True)
class NightPoint:
    """A night as it is drawn.

    Attributes:
        verdict: in a word; None where it was not judged. limit_ns: above it the night is worse; None where unknown.
    """

    name: str
    step_ns: int
    verdict: str | None
    limit_ns: int | None


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A confirmed change of the step: the place of the first night of the new level, and both levels."""

    at: int
    before_ns: int
    after_ns: int


def draw_night_series(name: str, nights: Sequence[NightPoint], changes: Sequence[DrawnChange]) -> Figure:
    """Draw a series.

    Args:
        nights: in order, at least one. changes: of their step, in order.
    """
    places, steps = np.arange(len(nights)), np.array([night.step_ns for night in nights], np.int64)
    scale = TimeScale.of(int(steps.max()))
    with typography():
        page = open_page(_caption(name, nights, changes), _HEIGHT, _AXIS)
        axes = page.axes(0.0, _HEIGHT, right=_RIGHT)
        limits = np.array([np.nan if one.limit_ns is None else one.limit_ns / scale.per_unit for one in nights])
        axes.step(places, limits, where="mid", color=palette.QUIET_INK, linewidth=0.8, linestyle=":", gid="limit")
        begins = [0, *(one.at for one in changes)]
        for change in changes:
            axes.axvline(
                change.at - 0.5, color=palette.ATTENTION, linewidth=1.0, gid=f"change/{nights[change.at].name}"
            )
        # Between two changes the later one knows more nights.
        levels = [*(one.before_ns for one in changes), *(one.after_ns for one in changes[-1:])]
        for level, (begin, end) in zip(levels, pairwise([*begins, len(nights)]), strict=False):
            axes.hlines(level / scale.per_unit, begin - 0.5, end - 0.5, color=palette.ATTENTION, linewidth=0.8)
        colours = [_COLOURS.get(night.verdict, palette.COMPUTATION_ONLY) for night in nights]
        axes.scatter(places, steps / scale.per_unit, s=22, c=colours, zorder=3, gid="nights")
        axes.set_xlim(-0.7, len(nights) - 0.3)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        shown = [int(tick) for tick in axes.get_xticks() if 0 <= tick < len(nights)]
        axes.set_xticks(shown, [nights[tick].name for tick in shown], fontsize=SMALL)
        axes.set_ylabel(f"step, {scale.unit}", fontsize=LABEL)
        axes.grid(visible=True, axis="y", color=palette.RULE, linewidth=0.5, zorder=0)
    return page.figure


def _caption(name: str, nights: Sequence[NightPoint], changes: Sequence[DrawnChange]) -> Caption:
    verdicts = [one for one in Outcome if any(night.verdict == one.value for night in nights)]
    entries = [LegendEntry(one.value, _COLOURS[one.value]) for one in verdicts]
    if any(night.verdict is None for night in nights):
        entries.append(LegendEntry("not judged", _COLOURS[None]))
    if changes:
        entries.append(LegendEntry("confirmed change, and the medians before and since", palette.ATTENTION))
        title = f"{name}: {counted(len(changes), 'confirmed change', 'confirmed changes')} of the step"
    else:
        title = f"{name}: no confirmed change of the step"
    if all(night.verdict is None for night in nights):
        title = f"{name}: the step from night to night, not judged"
    facts = [counted(len(nights), "night", "nights"), f"{nights[0].name} to {nights[-1].name}"]
    has_limit = any(night.limit_ns is not None for night in nights)
    note = "each night: the median of its steps, each the longest over the ranks"
    if has_limit:
        note += "; dotted: the limit of each night"
    return Caption(
        title=title,
        facts=facts,
        warnings=[],
        legend=[LegendGroup("", entries)],
        footer="traceviz iterations",
        note=note,
    )
