"""What was said of nights, and which of them need a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.analyze.nights.confirmed import Raised
from traceviz_dag.analyze.nights.verdicts import Metric, Outcome
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.home_settings import load_settings
from traceviz_dag.pipeline.nights.decisions import Decisions, decisions_of
from traceviz_dag.pipeline.nights.series import NightIterations, Series, series_of


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that ``nights`` has already, as far as later verdicts need it.

    Attributes:
        begins_anew: it was accepted although it was worse: what came before is no measure any more.
        is_better: its step was below the limit's other side.
    """

    accepted: bool | None
    begins_anew: bool
    is_better: bool
    figures_digest: str


def judged(lake: Lake) -> dict[Partition, Judged]:
    """Iteration → what was said of it."""
    if not lake.partitions("nights"):
        return {}
    names = ["run", "iteration", "accepted", "worse", "verdict", "figures_digest"]
    return {
        Partition(row["run"], row["iteration"]): Judged(
            row["accepted"],
            bool(row["accepted"] and row["worse"]),
            row["verdict"] == Outcome.BETTER,
            row["figures_digest"],
        )
        for row in lake.table("nights").arrow(names).to_pylist()
    }


def raised_by(lake: Lake, places: Mapping[Partition, int]) -> dict[int, list[tuple[Raised, bool]]]:
    """Place of a night → the changes that it raised, each with whether it moved the baseline."""
    if not lake.partitions("night_changes"):
        return {}
    found: dict[int, list[tuple[Raised, bool]]] = {}
    for row in lake.table("night_changes").arrow().to_pylist():
        night, since = (
            places.get(Partition(row[run], row[iteration]))
            for run, iteration in (("run", "iteration"), ("since_run", "since_iteration"))
        )
        if night is not None and since is not None:
            one = Raised(Metric(row["metric"]), since, night, row["before_ns"], row["after_ns"], row["p"])
            found.setdefault(night, []).append((one, row["rebased"]))
    return found


def night_digest(lake: Lake, series: Series, place: int, decisions: Decisions) -> str:
    """Of all that a verdict rests on: measures, the scores of pairs included where there are any, and decisions."""
    night = series.nights[place]
    paths = [
        lake.path(name, run=one.run, iteration=one.iteration) for one in night for name in ("iterations", "periods")
    ]
    return "-".join(digest_of(path) for path in paths if path.is_file()) + decisions.before(place)


def is_judged(lake: Lake, series: Series, place: int, known: Mapping[Partition, Judged], decisions: Decisions) -> bool:
    """Whether a night has a verdict that rests on its measures and on what was decided as they are."""
    digest = night_digest(lake, series, place, decisions)
    return all(one in known and known[one].figures_digest == digest for one in series.nights[place])


def is_stale(lake: Lake, night: NightIterations) -> bool:
    """Whether a night has stale measures: it gets no verdict before it is computed again."""
    return any(lake.has_stale_measures(one.run, one.iteration) for one in night)


def unjudged(lake: Lake) -> list[Partition]:
    """Iterations of nights that need a verdict."""
    known, found = judged(lake), list[Partition]()
    for series in series_of(lake, load_settings(lake.home).nightly):
        decisions = decisions_of(lake, series)
        for place, night in enumerate(series.nights):
            if not is_stale(lake, night) and not is_judged(lake, series, place, known, decisions):
                found += night
    return found
