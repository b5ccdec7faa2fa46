"""Judges a night against those before it, and says which part of the step moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import msgspec

from traceviz_dag.analyze.nights.limits import Limit
from traceviz_dag.analyze.wording import activity, counted, duration, percent, signed, signed_percent

OTHER_RANKS = "other_ranks"
"""The part of a step by which the longest window of all ranks is longer than that of the compared rank."""

NOT_COMPARED = "not compared"
"""Instead of a measure that is worse: the night was accepted although it cannot be compared, and begins its series
anew."""

_SHORTEST_HISTORY = 3


class Metric(StrEnum):
    """What is compared from night to night."""

    STEP = "step time"
    EXPOSED = "exposed communication"


class Outcome(StrEnum):
    """How a night ended."""

    PASS = "pass"
    WORSE = "worse"
    BETTER = "better"
    INCONCLUSIVE = "inconclusive"


FORMER_OUTCOMES = {True: Outcome.PASS, False: Outcome.WORSE, None: Outcome.INCONCLUSIVE}
"""By ``accepted`` the outcome of a night that an earlier version judged, which has no word for it."""


class Tolerances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much worse than the last accepted night a measure may be, where too few nights set limits of their own.

    Attributes:
        step: of the step time, as a share of the accepted one.
        exposed: of exposed communication, as a share of the accepted one.
        overlap_score: of each named pair's score, absolutely.
        floor_ns: a time that is worse by less is noise, whatever its share.
    """

    step: float = 0.05
    exposed: float = 0.10
    overlap_score: float = 0.05
    floor_ns: int = 1_000_000


_LEAST_SHARE = 0.9
"""Of the ranks that a night or its reference covers, the share that both have to cover."""

Place = Mapping[str, int]
"""Coordinates of a rank by name, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of what a night's measures are, to decide whether another night's can be held against them.

    Attributes:
        places: rank that is measured → its coordinates, ``stage`` among them.
        world: ranks of the whole job; None where nothing states them.
        mode: what was recorded, in words: it shows how much the profiler slows a step.
    """

    name: str
    places: Mapping[int, Place]
    world: int | None
    mode: str


@dataclass(frozen=True, slots=True)
class Common:
    """What two nights can be compared over.

    Attributes:
        ranks: those that both cover.
        refusal: why the nights differ, in words; empty where they are.
        outgrown: nothing else keeps them apart than that the later one covers all of these ranks, and more than twice
            as many.
    """

    ranks: tuple[int, ...]
    refusal: str = ""
    outgrown: bool = False


def common_ranks(night: Coverage, reference: Coverage) -> Common:
    """The ranks over which two nights compare like with like.

    That is those that both cover, if they are 90 % of the ranks that either covers, if every stage that either covers
    keeps one, and if capture mode, size and parallel layout are equal.
    """
    ranks = tuple(sorted(night.places.keys() & reference.places.keys()))
    covered = max(len(night.places), len(reference.places))
    lost = {place.get("stage") for one in (night, reference) for place in one.places.values()}
    lost -= {one.places[rank].get("stage") for one in (night, reference) for rank in ranks}
    moved = [
        rank
        for rank in ranks
        if any(
            night.places[rank][name] != reference.places[rank][name]
            for name in night.places[rank].keys() & reference.places[rank].keys()
        )
    ]
    other_jobs = {
        f"the capture mode was {reference.mode}, and is {night.mode}": night.mode != reference.mode,
        f"the job had {reference.world} ranks, and has {night.world}": None not in (night.world, reference.world)
        and night.world != reference.world,
        f"the parallel layout is another: rank {moved[0] if moved else ''} has another place": bool(moved),
    }
    few_ranks = {
        f"they share {len(ranks)} of {covered} ranks, less than {100 * _LEAST_SHARE:.0f} %": len(ranks)
        < _LEAST_SHARE * covered,
        f"no rank of stage {min(map(str, lost), default='')} is in both": bool(lost),
    }
    refusal = "; ".join(words for words, holds in {**other_jobs, **few_ranks}.items() if holds)
    holds_all = reference.places.keys() <= night.places.keys() and 2 * len(reference.places) < len(night.places)
    outgrown = bool(refusal) and not any(other_jobs.values()) and holds_all
    return Common(ranks, refusal, outgrown)


@dataclass(frozen=True, slots=True)
class Measures:
    """What of a night is compared.

    Attributes:
        name: what messages call it.
        step_ns, exposed_ns: medians of its steps, each as in the table ``iterations`` over the ranks that are compared.
        parts: part → ns; they add up to ``step_ns``.
        scores: named pair → its OverlapScore.
    """

    name: str
    step_ns: int
    exposed_ns: int
    parts: Mapping[str, int]
    scores: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: Metric) -> int:
        """The step time, or the exposed communication, ns."""
        return self.step_ns if metric is Metric.STEP else self.exposed_ns


@dataclass(frozen=True, slots=True)
class Delta:
    """One part of the step, then and now; ``delta_ns`` of all parts add up to the change of the step."""

    part: str
    reference_ns: int
    duration_ns: int

    @property
    def delta_ns(self) -> int:
        """How much longer the part is now."""
        return self.duration_ns - self.reference_ns


@dataclass(frozen=True, slots=True)
class NightVerdict:
    """How a night ended.

    Attributes:
        accepted: nothing is worse than allowed. None where the night cannot be compared: it is no reference, and nobody
            says that it is worse.
        worse: names of the measures that are worse.
        deltas: by part, the largest change in the sense of the step's own first.
        told: the night and what it is held against, in words. reasons: of ``worse``, the same in words with figures.
        ending: what the statement says after ``told``.
        outcome: the verdict in a word.
        known: whether it is worse only by what an earlier night raised already.
    """

    accepted: bool | None
    worse: tuple[str, ...]
    deltas: tuple[Delta, ...]
    told: str
    ending: str
    outcome: Outcome = Outcome.PASS
    known: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """The verdict as one sentence."""
        return f"{self.told}; {self.ending}"

    @property
    def moved(self) -> Delta | None:
        """The part that moved most in the direction in which the step did; None without a reference."""
        return self.deltas[0] if self.deltas else None


@dataclass(frozen=True, slots=True)
class Level:
    """A level for the worse that a confirmed change raised, and that nobody accepted.

    Attributes:
        since: the first night of it, in words. before_ns: the level before it. level_ns: its own.
    """

    since: str
    before_ns: int
    level_ns: int


def tolerated(reference: Measures, tolerances: Tolerances, widened: Mapping[Metric, int]) -> dict[Metric, Limit]:
    """The limits that tolerances set around the last accepted night, where too few nights set any; of no nights.

    Args:
        widened: ns that tonight's few steps add.
    """
    found = {}
    for metric, share in ((Metric.STEP, tolerances.step), (Metric.EXPOSED, tolerances.exposed)):
        usual, more = reference.value(metric), widened.get(metric, 0)
        found[metric] = Limit(usual, _tolerated_ns(usual, share, tolerances) + more, more, 0)
    return found


def judge_nights(
    night: Measures,
    reference: Measures | None,
    accepted_steps_ns: Sequence[int],
    tolerances: Tolerances,
    limits: Mapping[Metric, Limit] | None = None,
    raised: Mapping[Metric, Level] | None = None,
) -> NightVerdict:
    """Compare a night with those before it, by limits.

    Args:
        reference: the last accepted night of the series, its parts taken on the same rank; None for the first.
        accepted_steps_ns: step times of the last accepted nights. Where tolerances judge, their median guards, from
            three on, against a step that grows a little every night, each time within the tolerance.
        limits: of step time and exposed communication; None for those of the tolerances.
        raised: levels that were raised before: a night at one of them is worse, whatever the limit, and that is known.

    Raises:
        ValueError: parts do not add up to a step.
    """
    for one in (night, reference):
        if one is not None and sum(one.parts.values()) != one.step_ns:
            raise ValueError(f"the parts of {one.name} add up to {sum(one.parts.values())} ns, not to {one.step_ns}")
    if reference is None:
        return NightVerdict(True, (), (), _step_told(night), "the first of its series")
    limits, raised = limits or tolerated(reference, tolerances, {}), raised or {}
    reasons = {
        metric.value: _reason(metric, night, reference, limit)
        for metric, limit in limits.items()
        if night.value(metric) > limit.high_ns
    }
    if Metric.STEP not in reasons and _is_above_usual(night, accepted_steps_ns, tolerances, limits[Metric.STEP]):
        name = f"{Metric.STEP} against the median of {len(accepted_steps_ns)} accepted"
        reasons = {name: f"{name}{_by_what(limits[Metric.STEP])}", **reasons}
    for pair, score in sorted(night.scores.items()):
        if pair in reference.scores and reference.scores[pair] - score > tolerances.overlap_score:
            reasons[f"OverlapScore of {pair}"] = f"OverlapScore of {pair}"
    for metric, level in raised.items():
        now, is_told = night.value(metric), any(name.startswith(metric) for name in reasons)
        if not is_told and 2 * now > level.before_ns + level.level_ns:
            levels = f"{duration(level.level_ns)} than to {duration(level.before_ns)}"
            reasons[metric.value] = f"{metric}, {duration(now)}, is nearer to {levels}"
    near = {each: one for each, one in raised.items() if night.value(each) <= one.level_ns + limits[each].spread_ns}
    since = {name: next((one.since for each, one in near.items() if name.startswith(each)), None) for name in reasons}
    told = tuple(why if since[name] is None else f"{why}, as since {since[name]}" for name, why in reasons.items())
    is_better = night.step_ns < limits[Metric.STEP].low_ns
    outcome = Outcome.WORSE if reasons else Outcome.BETTER if is_better else Outcome.PASS
    deltas = _deltas(night, reference)
    return NightVerdict(
        *(not reasons, tuple(reasons), deltas, _change_told(night, reference, deltas)),
        told_worse(told) if reasons else f"{outcome}{_by_what(limits[Metric.STEP])}",
        outcome,
        known=bool(reasons) and None not in since.values(),
        reasons=told,
    )


def told_worse(reasons: Sequence[str]) -> str:
    """How the statement of a night that is worse ends."""
    return f"{Outcome.WORSE}: {', '.join(reasons)}"


def _is_above_usual(night: Measures, accepted_steps_ns: Sequence[int], tolerances: Tolerances, limit: Limit) -> bool:
    """Whether a step that the tolerances allow is above what the last nights usually take."""
    if limit.nights or len(accepted_steps_ns) < _SHORTEST_HISTORY:
        return False
    usual = int(median(accepted_steps_ns))
    return night.step_ns - limit.widened_ns > usual + _tolerated_ns(usual, tolerances.step, tolerances)


def _tolerated_ns(usual_ns: int, share: float, tolerances: Tolerances) -> int:
    return max(tolerances.floor_ns, int(share * usual_ns))


def _reason(metric: Metric, night: Measures, reference: Measures, limit: Limit) -> str:
    """A metric that is worse, with its own limit."""
    values = f" {duration(night.exposed_ns)} against {duration(reference.exposed_ns)}"
    return f"{metric}{values if metric is Metric.EXPOSED else ''}{_by_what(limit)}"


def _by_what(limit: Limit) -> str:
    """What set a limit, and what tonight's few steps add to it."""
    if not limit.nights:
        return f" (its few steps widen the tolerance by {duration(limit.widened_ns)})" if limit.widened_ns else ""
    width = percent(limit.spread_ns / limit.median_ns) if limit.median_ns else duration(limit.spread_ns)
    added = f", {duration(limit.widened_ns)} of it as it has few steps" if limit.widened_ns else ""
    nights = counted(limit.nights, "night", "nights")
    return f" (limit {duration(limit.median_ns)} ± {width} from {nights}{added})"


def begins_anew(night: Measures, ranks: int, reference: str, covered: int) -> NightVerdict:
    """The verdict on a night that covers more than twice the ranks of the last accepted one and cannot be compared
    with it: the next are compared with this one.

    Args:
        ranks, covered: how many ranks the night and the last accepted one cover.
    """
    ending = f"the first of its series with {ranks} ranks: {reference} covers {covered} of them"
    return NightVerdict(True, (NOT_COMPARED,), (), _step_told(night), ending)


def inconclusive(night: Measures, reference: str, refusal: str) -> NightVerdict:
    """The verdict on a night that cannot be compared with the last accepted one, with the reason."""
    told = f"{_step_told(night)}; inconclusive against {reference}: {refusal}"
    return NightVerdict(
        None, (), (), told, "accept it by hand to compare later nights with it", outcome=Outcome.INCONCLUSIVE
    )


def _deltas(night: Measures, reference: Measures) -> tuple[Delta, ...]:
    parts = sorted(night.parts.keys() | reference.parts.keys())
    deltas = [Delta(part, reference.parts.get(part, 0), night.parts.get(part, 0)) for part in parts]
    sense = 1 if night.step_ns >= reference.step_ns else -1
    return tuple(sorted(deltas, key=lambda delta: (-sense * delta.delta_ns, delta.part)))


def _change_told(night: Measures, reference: Measures, deltas: Sequence[Delta]) -> str:
    change = night.step_ns - reference.step_ns
    if not change:
        return f"{_step_told(night)}, as long as that of {reference.name}"
    share = f" ({signed_percent(change / reference.step_ns)})" if reference.step_ns else ""
    most = f"{activity(deltas[0].part)} {'grew' if change > 0 else 'shrank'} most, {signed(deltas[0].delta_ns)}"
    return f"{_step_told(night)}, {signed(change)}{share} against {reference.name}; {most}"


def _step_told(night: Measures) -> str:
    return f"{night.name}: step {duration(night.step_ns)}"
