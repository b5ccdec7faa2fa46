"""Which confirmed changes are new, which nights they put in doubt, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceviz_dag.analyze.nights.change_points import LEAST_SHARE, ChangePoint, change_points
from traceviz_dag.analyze.nights.verdicts import Metric
from traceviz_dag.analyze.wording import counted, duration, signed


@dataclass(frozen=True, slots=True)
class Raised:
    """A confirmed change of one metric.

    Attributes:
        at: place of the first night of the new level. night: of the night that raised it, from 0.
        before_ns, after_ns: medians of the two levels.
        p: share of permuted series that differ at least as much.
    """

    metric: Metric
    at: int
    night: int
    before_ns: int
    after_ns: int
    p: float

    @property
    def is_worse(self) -> bool:
        """Whether the new level is the longer one."""
        return self.after_ns > self.before_ns


def new_changes(
    values_ns: Mapping[Metric, Sequence[int]],
    places: Sequence[int],
    raised: Sequence[Raised],
    floors_ns: int,
) -> list[Raised]:
    """The confirmed changes that no earlier night raised, at most one of each metric: the last.

    A change is new if it begins after the night that raised the last one of its metric, and if its level is another
    than that one's, by as much as makes a change. So each is raised once, although every night looks at all nights.

    Args:
        values_ns: of each metric the values of the comparable nights, in order, tonight's last.
        places: of these nights. raised: earlier ones, in order. floors_ns: a smaller change is none.
    """
    found = change_points([np.asarray(values, np.float64) for values in values_ns.values()])
    new = []
    for metric, changes in zip(values_ns, found, strict=True):
        last = next((one for one in reversed(raised) if one.metric is metric), None)
        for change in reversed(changes):
            one = _raised(metric, change, places)
            if abs(one.after_ns - one.before_ns) >= floors_ns and _is_new(one, last):
                new.append(one)
                break
    return new


def in_doubt(raised: Sequence[Raised], nights: int) -> frozenset[int]:
    """Places of nights at a level that is worse and that nobody accepted: they are no measure for later ones.

    Args:
        raised: since the baseline, in order. nights: how many there are.
    """
    places: set[int] = set()
    for number, one in enumerate(raised):
        if one.is_worse:
            later = (other for other in raised[number + 1 :] if other.metric is one.metric and not other.is_worse)
            fixed = next(later, None)
            places |= set(range(one.at, nights if fixed is None else fixed.at))
    return frozenset(places)


def known_changes(
    worse: Sequence[str], values_ns: Mapping[Metric, int], raised: Sequence[Raised], spreads_ns: Mapping[Metric, float]
) -> list[Raised]:
    """Of each measure that is worse the change that was raised before and explains it; none where one is not so.

    That is the last of its metric, if it was for the worse and tonight's value is near its level.

    Args:
        spreads_ns: how far from a level of each metric is near.
    """
    last = {one.metric: one for one in raised}
    metrics = [next((metric for metric in Metric if name.startswith(metric)), None) for name in worse]
    known = [
        last[metric]
        for metric in metrics
        if metric in last
        and last[metric].is_worse
        and values_ns[metric] <= last[metric].after_ns + spreads_ns.get(metric, 0)
    ]
    return known if len(known) == len(worse) else []


def change_statement(change: Raised, since: str, nights: int, rows: Sequence[str]) -> str:
    """A confirmed change as one sentence.

    Args:
        since: the first night of the new level, with its date. nights: how many have the new level.
        rows: the first rows of the comparison, in words.
    """
    more = change.after_ns - change.before_ns
    share = f" ({100 * more / change.before_ns:+.1f} %)" if change.before_ns else ""
    statement = (
        f"confirmed change: {change.metric} {signed(more)}{share} since {since}: "
        f"{duration(change.before_ns)} before, {duration(change.after_ns)} in {counted(nights, 'night', 'nights')} "
        f"since, p = {change.p:.2g}"
    )
    return "; ".join([statement, *rows])


def _raised(metric: Metric, change: ChangePoint, places: Sequence[int]) -> Raised:
    return Raised(metric, places[change.at], places[-1], round(change.before), round(change.after), change.p)


def _is_new(one: Raised, last: Raised | None) -> bool:
    if last is None:
        return True
    return one.at > last.night and abs(one.after_ns - last.after_ns) >= LEAST_SHARE * last.after_ns
