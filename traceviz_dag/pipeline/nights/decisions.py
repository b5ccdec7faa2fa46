"""What somebody decided of a series: which nights were set as its baseline, or accepted whatever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.baselines import Baseline, SetBy, all_baselines, keep_baseline
from traceviz_dag.pipeline.home_settings import NightlySettings
from traceviz_dag.pipeline.nights.series import NightIterations, Series, night_key, series_of


@dataclass(frozen=True)
class Decisions:
    """The baselines of a series that are nights of it.

    Attributes:
        series: the series. at: place of a night → its baseline.
    """

    series: Series
    at: Mapping[int, Baseline]

    def hold(self, place: int) -> bool:
        """Whether the gate moves no baseline in the night of this place: somebody who knew it set an earlier one."""
        return any(at < place and self._is_until(one, place) for at, one in self.at.items())

    def is_accepted(self, place: int) -> bool:
        """Whether somebody accepted this night."""
        return place in self.at and self.at[place].by is SetBy.ACCEPTED

    def before(self, place: int) -> str:
        """What the verdict on the night of this place rests on besides measures; empty where nobody decided anything
        of it or of an earlier one, and it is one of its run's nights."""
        run = self.series.nights[place][0].run
        told = [] if run == self.series.name else [self.series.name]
        for at, one in self._in_order:
            if at < place or (at == place and one.by is SetBy.ACCEPTED):
                told.append(f"{one.by}:{one.key}{':held' if at < place and self._is_until(one, place) else ''}")
        return "".join(f"-{one}" for one in told)

    def _is_until(self, one: Baseline, place: int) -> bool:
        return self.series.began_ns[place] <= one.until_ns

    @cached_property
    def _in_order(self) -> Sequence[tuple[int, Baseline]]:
        return sorted(self.at.items())


def decisions_of(lake: Lake, series: Series) -> Decisions:
    """What stands of a series in the home's baselines; what is no night of it, or not any more, decides nothing."""
    placed = [(place_of(series, one), one) for one in all_baselines(lake.home).get(series.name, ())]
    return Decisions(series, {place: one for place, one in placed if place is not None})


def decide(lake: Lake, settings: NightlySettings, one: Baseline, name: str | None = None) -> list[Series]:
    """Set a night as the baseline of its series, or accept it: nights after it are judged anew.

    Where it is set, what was decided of later nights is forgotten.

    Args:
        name: of the only series in which it is decided.

    Returns:
        The series that have such a night; nothing is decided where none has.

    Raises:
        UsageError: a run has several nights.
    """
    found = []
    for series in series_of(lake, settings):
        nights = [night for night in series.nights if holds(one, night)] if name in (None, series.name) else []
        if len(nights) > 1:
            raise UsageError(f"{one.key} has {len(nights)} nights; name one, as {night_key(nights[-1])}")
        found += [series] if nights else []
    for series in found:
        _decide(lake, series, one)
    return found


def _decide(lake: Lake, series: Series, one: Baseline) -> None:
    place, former = place_of(series, one), decisions_of(lake, series)
    assert place is not None, "the caller looks it up"

    def stays(other: Baseline) -> bool:
        # Other kinds of iterations of a run have its name, too.
        at = place_of(series, other)
        return at is None or at < place or (at > place and one.by is SetBy.ACCEPTED)

    by = SetBy.ACCEPTED if former.is_accepted(place) else one.by
    until_ns = max(series.began_ns)
    keep_baseline(lake.home, series.name, Baseline(one.run, one.iteration, by, until_ns), stays)


def place_of(series: Series, baseline: Baseline) -> int | None:
    """The first night that a baseline holds; None where it is not of the series."""
    nights = enumerate(series.nights)
    return next((place for place, night in nights if holds(baseline, night)), None)


def holds(baseline: Baseline, night: NightIterations) -> bool:
    """Whether an iteration of a night is of a baseline."""
    return any(baseline.holds(one.run, one.iteration) for one in night)
