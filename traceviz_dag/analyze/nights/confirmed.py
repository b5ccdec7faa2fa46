"""Which confirmed changes are new, which nights they put in doubt, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceviz_dag.analyze.nights.change_points import LEAST_SHARE, ChangePoint, change_points
from traceviz_dag.analyze.nights.limits import Limit
from traceviz_dag.analyze.nights.verdicts import Metric
from traceviz_dag.analyze.wording import counted, duration, signed, signed_percent


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


def raised_levels(raised: Sequence[Raised], limits: Mapping[Metric, Limit]) -> dict[Metric, Raised]:
    """Of each metric the level for the worse at which the series is since the last of its changes; none where it came
    back: to where it is not worse any more.

    Args:
        raised: since the baseline, in order. limits: above them a value is worse; empty where nothing sets any.

    Returns:
        Changes whose ``before_ns`` is the last level that was none for the worse.
    """
    found: dict[Metric, Raised] = {}
    for one in raised:
        former = found.pop(one.metric, None)
        is_above = one.metric in limits and one.after_ns > limits[one.metric].high_ns
        if one.is_worse or (former is not None and is_above):
            found[one.metric] = one if former is None else replace(one, before_ns=former.before_ns)
    return found


def change_statement(change: Raised, since: str, nights: int, rows: Sequence[str]) -> str:
    """A confirmed change as one sentence.

    Args:
        since: the first night of the new level, with its date. nights: how many have the new level.
        rows: the first rows of the comparison, in words.
    """
    more = change.after_ns - change.before_ns
    share = f" ({signed_percent(more / change.before_ns)})" if change.before_ns else ""
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
