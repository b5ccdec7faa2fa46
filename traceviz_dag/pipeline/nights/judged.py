"""What was said of nights, which of them need a verdict, and which later ones are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.analyze.nights.confirmed import Raised
from traceviz_dag.analyze.nights.verdicts import Metric, Outcome
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.pipeline.baselines import Baseline, SetBy, all_baselines
from traceviz_dag.pipeline.home_settings import NightlySettings, load_settings
from traceviz_dag.pipeline.nights.decisions import Decisions, decisions_of, holds
from traceviz_dag.pipeline.nights.series import Series, series_of


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that ``nights`` has already, as far as later verdicts need it.

    Attributes:
        begins_anew: it was accepted although it was worse: what came before is no measure any more.
        is_better: its step was below the limit's other side.
        baseline: the night with which its history began; None for the first of a series.
    """

    accepted: bool | None
    begins_anew: bool
    is_better: bool
    figures_digest: str
    baseline: Partition | None


def judged(lake: Lake) -> dict[Partition, Judged]:
    """Iteration → what was said of it."""
    if not lake.partitions("nights"):
        return {}
    names = ["run", "iteration", "accepted", "worse", "verdict", "figures_digest", "baseline_run", "baseline_iteration"]
    return {
        Partition(row["run"], row["iteration"]): Judged(
            row["accepted"],
            bool(row["accepted"] and row["worse"]),
            row["verdict"] == Outcome.BETTER,
            row["figures_digest"],
            None if row["baseline_run"] is None else Partition(row["baseline_run"], row["baseline_iteration"]),
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


def needs_verdict(
    lake: Lake, series: Series, place: int, known: Mapping[Partition, Judged], decisions: Decisions
) -> bool:
    """Whether a night has no verdict, was computed again since, or somebody decided something that it rests on."""
    night = series.nights[place]
    if any(lake.has_stale_measures(one.run, one.iteration) for one in night):
        return False
    digest = night_digest(lake, series, place, decisions)
    return any(one not in known or known[one].figures_digest != digest for one in night)


def unjudged(lake: Lake) -> list[Partition]:
    """Iterations of nights that need a verdict."""
    known, found = judged(lake), list[Partition]()
    for series in series_of(lake, load_settings(lake.home).nightly):
        decisions = decisions_of(lake, series)
        for place, night in enumerate(series.nights):
            if needs_verdict(lake, series, place, known, decisions):
                found += night
    return found


def current_baseline(lake: Lake, series: Series, known: Mapping[Partition, Judged]) -> Baseline | None:
    """With which night the gate compares the next ones: what somebody decided last, or what it moved to since.

    Args:
        known: of :func:`judged`.
    """
    decisions = decisions_of(lake, series)
    valid = (
        known[night[0]].baseline
        for place, night in reversed(list(enumerate(series.nights)))
        if night[0] in known and not needs_verdict(lake, series, place, known, decisions)
    )
    last, decided = next(valid, None), max(decisions.at, default=None)
    begin = next((place for place, night in enumerate(series.nights) if last in night), None)
    if begin is None or (decided is not None and decided >= begin):
        return None if decided is None else decisions.at[decided]
    night = series.nights[begin]
    return Baseline(night[0].run, night[0].iteration if len(night) == 1 else None, SetBy.GATE)


def references(lake: Lake, settings: NightlySettings) -> set[str]:
    """Keys of the iterations that the next ones are compared with: the last accepted night of each series, and every
    baseline."""
    known, kept = judged(lake), set[Partition]()
    named = [one for every in all_baselines(lake.home).values() for one in every]
    kept |= {one for one in lake.partitions("iterations") if any(each.holds(one.run, one.iteration) for each in named)}
    for series in series_of(lake, settings):
        accepted = [night for night in series.nights if night[0] in known and known[night[0]].accepted]
        kept |= set(accepted[-1]) if accepted else set()
        current = current_baseline(lake, series, known)
        if current is not None:
            kept |= {one for night in series.nights if holds(current, night) for one in night}
    return {iteration_key(one.run, one.iteration) for one in kept}
