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
        at: place of a night → its baseline. until: → the place up to which the gate moves nothing that is before it.
    """

    at: Mapping[int, Baseline]
    until: Mapping[int, int]

    def hold(self, place: int) -> bool:
        """Whether the gate moves no baseline in the night of this place: somebody who knew it set an earlier one."""
        return any(at < place <= until for at, until in self.until.items())

    def is_accepted(self, place: int) -> bool:
        """Whether somebody accepted this night."""
        return place in self.at and self.at[place].by is SetBy.ACCEPTED

    def before(self, place: int) -> str:
        """What the verdict on the night of this place rests on besides measures; empty where nobody decided anything
        of it or of an earlier one."""
        return "".join(
            f"-{one.by}:{one.key}" + (f":{self.until[at]}" if at < place <= self.until[at] else "")
            for at, one in self._in_order
            if at < place or (at == place and one.by is SetBy.ACCEPTED)
        )

    @cached_property
    def _in_order(self) -> Sequence[tuple[int, Baseline]]:
        return sorted(self.at.items())


def decisions_of(lake: Lake, series: Series) -> Decisions:
    """What stands of a series in the home's baselines; what is no night of it, or not any more, decides nothing."""
    placed = [(place_of(series, one), one) for one in all_baselines(lake.home).get(series.name, ())]
    at = {place: one for place, one in placed if place is not None}
    last = {night_key(night): place for place, night in enumerate(series.nights)}
    return Decisions(at, {place: max(last.get(one.until, place), place) for place, one in at.items()})


def decide(lake: Lake, series: Series, one: Baseline) -> None:
    """Set a night of a series as its baseline, or accept it: nights after it are judged anew. What was decided of later
    nights is forgotten."""
    place = place_of(series, one)
    assert place is not None, "the caller looks it up"
    every = Baseline(one.run, one.iteration, one.by, night_key(series.nights[-1]))

    def stays(former: Baseline) -> bool:
        earlier = place_of(series, former)
        # Other kinds of iterations of a run have its name, too.
        return earlier is None or earlier < place

    keep_baseline(lake.home, series.name, every, stays)


def accept(lake: Lake, settings: NightlySettings, run: str, iteration: int | None) -> list[Series]:
    """Accept the night of an iteration, or of a run, in each series that has it, and return these.

    Raises:
        UsageError: a run has several nights.
    """
    one, found = Baseline(run, iteration, SetBy.ACCEPTED), list[Series]()
    for series in series_of(lake, settings):
        nights = [night for night in series.nights if holds(one, night)]
        if len(nights) > 1:
            last = night_key(nights[-1])
            raise UsageError(f"{one.key} has {len(nights)} nights; name one, as {last}")
        found += [series] if nights else []
    for series in found:
        decide(lake, series, one)
    return found


def place_of(series: Series, baseline: Baseline) -> int | None:
    """The first night that a baseline holds; None where it is not of the series."""
    nights = enumerate(series.nights)
    return next((place for place, night in nights if holds(baseline, night)), None)


def holds(baseline: Baseline, night: NightIterations) -> bool:
    """Whether an iteration of a night is of a baseline."""
    return any(baseline.holds(one.run, one.iteration) for one in night)
