"""The verdicts on a series' nights, in their order: each decides what the next one is compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from statistics import median

import pyarrow as pa

from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nights.change_points import LEAST_SHARE
from traceviz_dag.analyze.nights.confirmed import Raised, change_statement, in_doubt, new_changes, raised_levels
from traceviz_dag.analyze.nights.limits import Limit, robust_limit, step_noise_ns, widening_ns
from traceviz_dag.analyze.nights.verdicts import (
    NOT_COMPARED,
    Common,
    Level,
    Measures,
    Metric,
    NightVerdict,
    Outcome,
    begins_anew,
    common_ranks,
    inconclusive,
    judge_nights,
    told_worse,
    tolerated,
)
from traceviz_dag.analyze.wording import signed
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.stale import hidden_ranks
from traceviz_dag.pipeline.baselines import Baseline, SetBy, all_baselines
from traceviz_dag.pipeline.completeness import ranks_in_words
from traceviz_dag.pipeline.home_settings import NightlySettings
from traceviz_dag.pipeline.nights.decisions import Decisions, decisions_of
from traceviz_dag.pipeline.nights.judged import Judged, is_judged, is_stale, judged, night_digest, raised_by
from traceviz_dag.pipeline.nights.samples import Night, measures_of, named_night, read_night, steps_table
from traceviz_dag.pipeline.nights.series import STEPS, WARM_UP, NightIterations, Series, series_of
from traceviz_dag.tables import NIGHT_CHANGES, NIGHT_DELTAS, NIGHT_STEPS, NIGHTS, TRACES

MOST_NIGHTS = 120
"""Nights that are looked at, the last: comparing many more takes seconds a night."""

_ROWS = 3
"""First rows of the comparison that a change names."""


@dataclass(frozen=True, slots=True)
class Change:
    """A confirmed change that a night raised.

    Attributes:
        since: the first night of the new level. since_ns: when its oldest trace was written; 0 where unknown.
        nights: how many have the new level. rebased: whether the series' baseline is there since.
        compared: first rows of the comparison, in words.
    """

    raised: Raised
    since: NightIterations
    since_ns: int
    nights: int
    rebased: bool
    compared: Sequence[str]
    statement: str

    @property
    def is_alarm(self) -> bool:
        """Whether the new level is the longer one."""
        return self.raised.is_worse


@dataclass(frozen=True)
class JudgedNight:
    """A verdict, and what it rests on.

    Attributes:
        rank: whose step is taken apart. before: of the reference, where tonight is compared.
        baseline: the night with which the history begins; None for the first of a series.
        figures_digest: of all that the verdict rests on.
    """

    series: Series
    night: Night
    verdict: NightVerdict
    measures: Measures
    rank: int
    reference: NightIterations | None = None
    before: Measures | None = None
    baseline: NightIterations | None = None
    limit: Limit | None = None
    changes: Sequence[Change] = ()
    figures_digest: str = ""

    @property
    def partitions(self) -> NightIterations:
        """Its iterations, in order."""
        return self.night.partitions

    @property
    def fails(self) -> bool:
        """Whether it is worse by something that was not raised before."""
        return self.verdict.accepted is False and not self.verdict.known

    @property
    def statements(self) -> list[str]:
        """The verdict, and the changes that it raises."""
        return [self.verdict.statement, *(change.statement for change in self.changes)]


@dataclass
class _Past:
    """A night before others; it is read when something is held against it.

    Attributes:
        is_measure: whether later nights are held against it: it was accepted, or somebody set it as a baseline.
        is_better, begins_anew: as of ``Judged``. changes: that it raised, each with whether it moved the baseline.
    """

    lake: Lake
    place: int
    partitions: NightIterations
    is_measure: bool = False
    is_better: bool = False
    begins_anew: bool = False
    changes: Sequence[tuple[Raised, bool]] = ()

    @cached_property
    def night(self) -> Night | None:
        return read_night(self.lake, self.partitions)


@dataclass
class _Stretch:
    """The nights since the baseline, and the changes that were raised in them."""

    nights: list[_Past] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)

    def add(self, one: _Past, *, is_set: bool) -> None:
        """Add a night that is judged.

        Args:
            is_set: whether somebody decided that later ones are held against it.
        """
        self.nights.append(one)
        self.raised += [raised for raised, _ in one.changes]
        if one.begins_anew or is_set:
            one.is_measure = True
            self._begin(one.place)
        elif moved := [raised.at for raised, rebased in one.changes if rebased]:
            self._begin(max(moved))

    def measures(self, place: int) -> list[_Past]:
        """The nights that the one of a place is held against, in order: none at a level that is worse."""
        doubtful = in_doubt(self.raised, place)
        every = [one for one in self.nights if one.is_measure]
        return ([one for one in every if one.place not in doubtful] or every)[-MOST_NIGHTS:]

    def _begin(self, place: int) -> None:
        self.nights = [one for one in self.nights if one.place >= place]
        self.raised.clear()


def judge_series(
    lake: Lake, series: Series, settings: NightlySettings, wanted: Collection[str] | None = None
) -> list[JudgedNight]:
    """Judge the nights of a series that need a verdict, in order; nothing is written.

    Args:
        wanted: keys of iterations; only their nights are judged. None has all.
    """
    decisions = decisions_of(lake, series)
    stored = _stored(lake, series, judged(lake), decisions)
    open_nights = {
        place
        for place, night in enumerate(series.nights)
        if (wanted is None or any(iteration_key(one.run, one.iteration) in wanted for one in night))
        and not (place in stored or is_stale(lake, night))
    }
    return list(_judged_in_order(lake, series, settings, open_nights, stored, decisions)) if open_nights else []


def _judged_in_order(
    lake: Lake,
    series: Series,
    settings: NightlySettings,
    open_nights: Collection[int],
    stored: Mapping[int, _Past],
    decisions: Decisions,
) -> Iterator[JudgedNight]:
    stretch = _Stretch()
    for place, partitions in enumerate(series.nights[: max(open_nights) + 1]):
        one = stored.get(place, _Past(lake, place, partitions))
        if place in open_nights and one.night is not None:
            # What later nights raised of a level that begins earlier is known of a night that comes late.
            later = [raised for each, past in stored.items() if each > place for raised, _ in past.changes]
            levels = [*stretch.raised, *(raised for raised in later if raised.at <= place)]
            found = _judge(lake, series, place, one.night, stretch, levels, settings, decisions)
            yield found
            verdict = found.verdict
            one.is_measure, one.is_better = bool(verdict.accepted), verdict.outcome is Outcome.BETTER
            one.begins_anew = bool(verdict.accepted and verdict.worse)
            one.changes = [(change.raised, change.rebased) for change in found.changes]
        elif place not in stored:
            continue
        stretch.add(one, is_set=place in decisions.at)


def _stored(lake: Lake, series: Series, known: Mapping[Partition, Judged], decisions: Decisions) -> dict[int, _Past]:
    """Place → a night whose verdict still holds."""
    raised, found = raised_by(lake, {one: place for place, night in enumerate(series.nights) for one in night}), {}
    for place, night in enumerate(series.nights):
        if night[0] in known and is_judged(lake, series, place, known, decisions):
            row = known[night[0]]
            found[place] = _Past(
                *(lake, place, night, bool(row.accepted), row.is_better, row.begins_anew), raised.get(place, ())
            )
    return found


def _standing(lake: Lake, series: Series, known: Mapping[Partition, Judged], decisions: Decisions) -> _Stretch:
    """What the next night of a series is held against."""
    stretch = _Stretch()
    for place, one in _stored(lake, series, known, decisions).items():
        stretch.add(one, is_set=place in decisions.at)
    return stretch


def current_baselines(lake: Lake, settings: NightlySettings) -> dict[str, Baseline]:
    """Series → the night that the gate goes on from: what somebody decided last, or what it moved to since."""
    known, found = judged(lake), {}
    for series in series_of(lake, settings):
        decisions = decisions_of(lake, series)
        stretch = _standing(lake, series, known, decisions)
        decided = max(decisions.at, default=None)
        begin = stretch.nights[0].place if stretch.nights else None
        if not series.is_steady or (begin is None and decided is None):
            continue
        if begin is None or (decided is not None and decided >= begin):
            assert decided is not None
            found[series.name] = decisions.at[decided]
        elif begin > 0:
            night = series.nights[begin]
            iteration = night[0].iteration if len(night) == 1 else None
            found[series.name] = Baseline(night[0].run, iteration, SetBy.GATE)
    return found


def references(lake: Lake, settings: NightlySettings) -> set[str]:
    """Keys of the iterations that verdicts on the next nights rest on: in each series the baseline, the last night
    that is a measure, those that raised a change since and the first ones at its level; and every named baseline."""
    known, kept = judged(lake), set[Partition]()
    named = [one for every in all_baselines(lake.home).values() for one in every]
    kept |= {one for one in lake.partitions("iterations") if any(each.holds(one.run, one.iteration) for each in named)}
    for series in series_of(lake, settings):
        stretch = _standing(lake, series, known, decisions_of(lake, series))
        last = stretch.measures(len(series.nights))[-1:]
        places = {one.place for one in (*stretch.nights[:1], *last)}
        places |= {place for one in stretch.raised for place in (one.at, one.night)}
        kept |= {one for place in places for one in series.nights[place]}
    return {iteration_key(one.run, one.iteration) for one in kept}


def _judge(
    lake: Lake,
    series: Series,
    place: int,
    night: Night,
    stretch: _Stretch,
    levels: Sequence[Raised],
    settings: NightlySettings,
    decisions: Decisions,
) -> JudgedNight:
    accepted, is_held = stretch.measures(place), decisions.hold(place)
    last = next((one for one in reversed(accepted) if not one.is_better), accepted[-1] if accepted else None)
    lost = _lost(lake, last) if last else ""
    reference = last.night if last and not lost else None
    common = common_ranks(night.coverage, reference.coverage) if reference else Common(tuple(sorted(night.ranks)))
    ranks = tuple(sorted(night.ranks)) if common.refusal else common.ranks
    # Of equals the lowest.
    step = night.median_step(ranks)
    rank = min(ranks, key=lambda one: (-step.ranks[one]["compute_ns"], one))
    measures = measures_of(lake, night, ranks, rank)
    begin = stretch.nights[0].partitions if stretch.nights else None
    verdict = inconclusive(measures, "", "")
    digest = night_digest(lake, series, place, decisions)
    found = JudgedNight(series, night, verdict, measures, rank, baseline=begin, figures_digest=digest)
    if last is not None and lost:
        verdict = inconclusive(measures, named_night(last.partitions), lost)
    elif reference is not None and common.outgrown and not is_held:
        verdict = begins_anew(measures, len(ranks), reference.name, len(reference.ranks))
    elif reference is not None and common.refusal:
        verdict = inconclusive(measures, reference.name, common.refusal)
    else:
        found = _compared(
            lake, found, place, reference, ranks, stretch, accepted, levels, settings, may_rebase=not is_held
        )
        verdict = found.verdict
    if decisions.is_accepted(place) and not verdict.accepted:
        worse = verdict.worse or (NOT_COMPARED,)
        verdict = NightVerdict(True, worse, verdict.deltas, verdict.told, "accepted by hand")
        found = replace(found, changes=())
    if series.kind not in (STEPS, WARM_UP):
        alone = f"{verdict.ending}; nothing numbers its steps, so it is compared with its like alone: {series.kind}"
        verdict = replace(verdict, ending=alone)
    return replace(found, verdict=verdict)


def _lost(lake: Lake, last: _Past) -> str:
    """Why nothing is held against the last accepted night: some of its ranks are not counted any more."""
    stale = sorted(
        {rank for one in last.partitions for rank in hidden_ranks(TRACES, lake.stale(one.run, one.iteration))}
    )
    return f"its tables of {ranks_in_words(stale)} are stale" if stale else ""


def _compared(
    lake: Lake,
    found: JudgedNight,
    place: int,
    reference: Night | None,
    ranks: Sequence[int],
    stretch: _Stretch,
    accepted: Sequence[_Past],
    before_tonight: Sequence[Raised],
    settings: NightlySettings,
    *,
    may_rebase: bool,
) -> JudgedNight:
    """The verdict on a night that can be compared with its reference, over the ranks that both have."""
    night, raised = found.night, stretch.raised
    looked_at = {one.place: one for one in (*stretch.nights[-MOST_NIGHTS:], *accepted)}
    alike = [
        one for _, one in sorted(looked_at.items()) if one.night is not None and _is_alike(night, one.night, ranks)
    ]
    values = {metric: [_median(one.night, metric, ranks) for one in alike] for metric in Metric}
    tonight = {Metric.STEP: found.measures.step_ns, Metric.EXPOSED: found.measures.exposed_ns}
    trusted = [number for number, one in enumerate(alike) if one in accepted]
    several = [night, *(one.night for one in alike if one.night is not None)]
    limits, widened = {}, {}
    for metric in Metric:
        noise = step_noise_ns([one.values(metric, ranks) for one in several])
        widened[metric] = widening_ns(len(night.steps), noise)
        history = [values[metric][number] for number in trusted]
        limit = robust_limit(history, settings.tolerances.floor_ns, len(night.steps), noise)
        if limit is not None:
            limits[metric] = limit
    before = measures_of(lake, reference, ranks, found.rank) if reference else None
    last = [values[Metric.STEP][number] for number in trusted][-settings.history :] if settings.history else []
    step_limit = limits.get(Metric.STEP)
    if before is not None and not limits:
        limits = tolerated(before, settings.tolerances, widened)
    levels = {
        metric: Level(_since(found.series, one.at), one.before_ns, one.after_ns)
        for metric, one in raised_levels(before_tonight, limits).items()
    }
    verdict = judge_nights(found.measures, before, last, settings.tolerances, limits, levels)
    places = [*(one.place for one in alike), place]
    series_values = {metric: [*values[metric], tonight[metric]] for metric in Metric}
    recent = slice(-MOST_NIGHTS, None)
    changes = []
    latest = {metric: every[recent] for metric, every in series_values.items()}
    fresh = new_changes(latest, places[recent], raised, settings.tolerances.floor_ns)
    # Nothing that nobody accepted becomes the measure.
    may_rebase = may_rebase and bool(verdict.accepted) and not any(one.is_worse for one in fresh)
    for one in fresh:
        history = [values[one.metric][number] for number in trusted if places[number] < one.at]
        is_shorter = one.metric is Metric.STEP and not one.is_worse
        is_below = is_shorter and bool(history) and one.after_ns < (1 - LEAST_SHARE) * median(history)
        rebased = is_below and may_rebase and all(past.is_measure for past in stretch.nights if past.place >= one.at)
        changes.append(_change(lake, found.series, one, places, series_values[Metric.STEP], rebased=rebased))
    alarms = [change for change in changes if change.is_alarm]
    if alarms:
        named = tuple(f"{change.raised.metric}: confirmed change" for change in alarms)
        worse, ending = (*verdict.worse, *named), told_worse(verdict.reasons or ["a confirmed change"])
        verdict = replace(verdict, accepted=False, worse=worse, ending=ending, outcome=Outcome.WORSE, known=False)
    at = reference.partitions if reference else None
    return replace(found, verdict=verdict, reference=at, before=before, limit=step_limit, changes=changes)


def _is_alike(night: Night, other: Night, ranks: Sequence[int]) -> bool:
    return other.ranks >= set(ranks) and not common_ranks(night.coverage, other.coverage).refusal


def _median(night: Night | None, metric: Metric, ranks: Sequence[int]) -> int:
    assert night is not None
    return lower_median(night.values(metric, ranks))


def _since(series: Series, place: int) -> str:
    """A night and its date, where it is known."""
    began_ns, name = series.began_ns[place], named_night(series.nights[place])
    return f"{name} ({datetime.fromtimestamp(began_ns / 1e9, UTC).date()})" if began_ns else name


def _change(
    lake: Lake, series: Series, one: Raised, places: Sequence[int], steps_ns: Sequence[int], *, rebased: bool
) -> Change:
    since = [number for number, place in enumerate(places) if place >= one.at]
    earlier = [number for number, place in enumerate(places) if place < one.at][-len(since) :]
    sides = [series.nights[places[lower_median(some, lambda number: steps_ns[number])]] for some in (earlier, since)]
    rows = _first_rows(lake, *sides)
    statement = change_statement(one, _since(series, one.at), len(since), rows)
    if rebased:
        statement += "; later nights are held against these"
    return Change(one, series.nights[one.at], series.began_ns[one.at], len(since), rebased, rows, statement)


def _first_rows(lake: Lake, before: NightIterations, after: NightIterations) -> list[str]:
    """What changed most from one night to another, as ``traceviz diff`` has it, or why that is not known."""
    # Imported here because few nights raise a change, and the comparison brings half of the engine.
    from traceviz_dag.analyze.diff.words import named_class, named_part
    from traceviz_dag.pipeline.diff.comparison import compare
    from traceviz_dag.pipeline.stored_iteration import StoredIteration

    sides = [[StoredIteration(lake, one.run, one.iteration) for one in night] for night in (before, after)]
    named = f"{named_night(before)} to {named_night(after)}"
    try:
        found = compare(*sides)
    except NoEvidenceError as error:
        return [f"{named} is not compared: {error}"]
    if found.refused:
        return [f"{named} is not compared: {next(one.sentence for one in found.differences if one.refused)}"]
    if found.no_path:
        return [f"{named} is not compared: {found.no_path}"]
    replay = sorted((row for row in found.replay if row.change_ns), key=lambda row: (-abs(row.change_ns), row.order))
    rows = [f"{named_class(row.work)} {signed(row.change_ns)}" for row in replay[:_ROWS]]
    rows = rows or [
        f"{named_part(*row.key[1:])} {signed(row.change_ns)}" for row in found.parts[:_ROWS] if row.change_ns
    ]
    return [f"{named}, {'by replay' if replay else 'by path'}: {', '.join(rows)}"] if rows else []


def write_night(lake: Lake, night: JudgedNight) -> None:
    """Write the rows of a judged night: the verdict and its parts for each of its iterations, changes for the last."""
    verdict, before, limit = night.verdict, night.before, night.limit
    reference, baseline = _first(night.reference), _first(night.baseline)
    row: dict[str, object] = {
        "series": night.series.name,
        "accepted": verdict.accepted,
        "worse": list(verdict.worse),
        "reference_run": reference.run if reference else None,
        "reference_iteration": reference.iteration if reference else None,
        "compared_rank": night.rank,
        "step_ns": night.measures.step_ns,
        "reference_step_ns": before.step_ns if before else None,
        "exposed_ns": night.measures.exposed_ns,
        "reference_exposed_ns": before.exposed_ns if before else None,
        "moved": verdict.moved.part if verdict.moved else None,
        "moved_ns": verdict.moved.delta_ns if verdict.moved else None,
        "statement": "; ".join(night.statements),
        "figures_digest": night.figures_digest,
        "verdict": verdict.outcome.value,
        "steps": len(night.night.steps),
        "baseline_run": baseline.run if baseline else None,
        "baseline_iteration": baseline.iteration if baseline else None,
        "history": limit.nights if limit else None,
        "limit_ns": limit.high_ns if limit else None,
        "known": verdict.known,
    }
    values: dict[str, object] = {name: [value] for name, value in row.items()}
    deltas: dict[str, object] = {
        "part": [delta.part for delta in verdict.deltas],
        "reference_ns": [delta.reference_ns for delta in verdict.deltas],
        "duration_ns": [delta.duration_ns for delta in verdict.deltas],
        "delta_ns": [delta.delta_ns for delta in verdict.deltas],
    }
    for one in night.partitions:
        raised = night.changes if one == night.partitions[-1] else ()
        changes = pa.Table.from_pylist(change_rows(raised), NIGHT_CHANGES.schema)
        lake.write(NIGHT_CHANGES.name, changes, run=one.run, iteration=one.iteration)
        tables = {NIGHT_DELTAS: deltas, NIGHTS: values}
        steps = steps_table(lake, night.night, one)
        lake.write(NIGHT_STEPS.name, steps, run=one.run, iteration=one.iteration)
        for table, columns in tables.items():
            lake.write(table.name, table.from_columns(columns), run=one.run, iteration=one.iteration)


def _first(night: NightIterations | None) -> Partition | None:
    return night[0] if night else None


def change_rows(changes: Sequence[Change]) -> list[dict[str, object]]:
    """Changes as rows of table ``night_changes``."""
    return [
        {
            "metric": one.raised.metric.value,
            "worse": one.is_alarm,
            "since_run": one.since[0].run,
            "since_iteration": one.since[0].iteration,
            "since_ns": one.since_ns or None,
            "nights": one.nights,
            "before_ns": one.raised.before_ns,
            "after_ns": one.raised.after_ns,
            "p": one.raised.p,
            "rebased": one.rebased,
            "compared": list(one.compared),
            "statement": one.statement,
        }
        for one in changes
    ]
