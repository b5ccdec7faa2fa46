"""Limits that nights set, and changes that last: found, raised once, and not found where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.nights import drawn, drift, healthy, judged, later, outlier
from traceviz_dag.analyze.medians import lower_median
from traceviz_dag.analyze.nights.change_points import best_split, change_points
from traceviz_dag.analyze.nights.confirmed import Raised, in_doubt, raised_levels
from traceviz_dag.analyze.nights.limits import Limit, robust_limit, step_noise_ns
from traceviz_dag.analyze.nights.verdicts import (
    Level,
    Measures,
    Metric,
    NightVerdict,
    Outcome,
    Tolerances,
    judge_nights,
)

MS = 1_000_000
SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rise_of_5_percent_from_night_33_is_one_alarm_by_night_36(seed):
    (alarm,) = judged(drawn(0.01, seed, later(0.05, 33))).alarms
    assert alarm.metric is Metric.STEP and alarm.night + 1 <= 36
    assert abs(alarm.at + 1 - 33) <= 1 and alarm.after_ns / alarm.before_ns == pytest.approx(1.05, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lone_outlier_is_worse_that_night_and_no_change_that_lasts(seed):
    found = judged(drawn(0.01, seed, outlier(0.40, 25)))
    assert 25 in found.worse and not found.raised


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drift_of_a_fifth_of_a_percent_a_night_is_found(seed):
    assert judged(drawn(0.01, seed, drift(0.002))).alarms


def test_at_most_one_of_60_healthy_series_has_a_false_alarm():
    assert healthy(60, 0.01)[2] <= 0.02


def test_the_same_series_gives_the_same_answer():
    series = drawn(0.01, 1, later(0.03, 20))
    assert judged(series) == judged(series)


def test_the_best_split_is_that_of_an_energy_distance_computed_pair_by_pair():
    values = np.array([10.0, 11, 9, 10, 15, 14, 16, 15, 11])

    def energy(earlier, later_ones):
        def mean(some, others, pairs):
            return sum(abs(a - b) for a in some for b in others) / pairs

        n, m = len(earlier), len(later_ones)
        between = 2 * mean(earlier, later_ones, n * m)
        within = mean(earlier, earlier, n * (n - 1)) + mean(later_ones, later_ones, m * (m - 1))
        return (between - within) * n * m / (n + m)

    places = [(at, end) for at in range(3, 7) for end in range(at + 3, 10)]
    expected = max(places, key=lambda place: energy(values[: place[0]], values[place[0] : place[1]]))
    split = best_split(values)
    assert split is not None and (split.at, split.end) == expected
    assert split.statistic == pytest.approx(energy(values[: split.at], values[split.at : split.end]))


def test_several_changes_are_found_one_by_one_and_a_constant_series_has_none():
    levels = np.repeat([100.0, 110.0, 100.0], 12) + np.tile([0.5, -0.5, 0.2], 12)
    (found,) = change_points([levels])
    assert [one.at for one in found] == [12, 24] and found[0].share > 0.09 and found[1].share < -0.08
    assert change_points([np.full(30, 5.0), np.zeros(30)]) == [[], []]


def test_a_second_metric_halves_the_level_of_the_first():
    short = np.array([100 + 0.3 * (7 * i % 5 - 2) for i in range(10)] + [110 + 0.3 * (3 * i % 4) for i in range(3)])
    ((alone,),) = change_points([short])
    assert 0.005 < alone.p <= 0.01
    assert change_points([short, np.full(13, 7.0)]) == [[], []]


def test_a_limit_needs_eight_nights_and_outliers_do_not_move_it():
    history = [100 * MS] * 7
    assert robust_limit(history, MS, 5, None) is None
    limit = robust_limit([*history, 900 * MS], MS, 5, None)
    assert limit is not None and (limit.high_ns, limit.low_ns) == (103 * MS, 97 * MS)


def test_below_five_steps_the_noise_of_steps_widens_the_limit_and_the_verdict_says_so():
    noise = step_noise_ns([[99 * MS, 100 * MS, 101 * MS]] * 10)
    assert noise is not None and noise == pytest.approx(1.82 * MS, rel=0.02)
    few, enough = (robust_limit([100 * MS] * 10, MS, steps, noise) for steps in (4, 5))
    assert few is not None and enough is not None
    assert enough.widened_ns == 0 and few.high_ns - enough.high_ns == few.widened_ns == round(3 * noise / 2)
    before, now = (Measures(name, step, 0, {"idle": step}) for name, step in (("a", 100 * MS), ("b", 105 * MS)))
    verdicts = [judge_nights(now, before, [], Tolerances(), {Metric.STEP: limit}) for limit in (few, enough)]
    assert [one.outcome for one in verdicts] == [Outcome.PASS, Outcome.WORSE]
    assert "of it as it has few steps" in verdicts[0].statement and "few steps" not in verdicts[1].statement


def test_no_night_of_several_steps_shows_no_noise_of_steps():
    assert step_noise_ns([[1], [2]]) is None and lower_median([4, 1, 3, 2]) == 2


def test_a_night_below_the_limit_is_better():
    limit = robust_limit([100 * MS] * 10, MS, 5, None)
    assert limit is not None
    before, now = (Measures(name, step, 0, {"idle": step}) for name, step in (("a", 100 * MS), ("b", 96 * MS)))
    verdict = judge_nights(now, before, [], Tolerances(), {Metric.STEP: limit})
    assert verdict.outcome is Outcome.BETTER and verdict.accepted
    assert verdict.statement.endswith("better (limit 100 ms ± 3.0 % from 10 nights)")


def test_nights_at_a_worse_level_are_no_measure_until_it_is_fixed():
    worse, fixed = (
        Raised(Metric.STEP, at, at + 3, *levels, 0.0025) for at, levels in ((5, (100, 110)), (9, (110, 100)))
    )
    assert in_doubt([worse], 8) == {5, 6, 7} and in_doubt([worse, fixed], 15) == {5, 6, 7, 8}
    assert in_doubt([fixed], 15) == frozenset()


def test_a_raised_level_stands_until_the_series_is_back_below_the_limit():
    worse = Raised(Metric.STEP, 5, 8, 100, 120, 0.0025)
    partly, back = (Raised(Metric.STEP, 9, 12, 120, after, 0.0025) for after in (110, 101))
    high = {Metric.STEP: Limit(100, 3, 0, 9), Metric.EXPOSED: Limit(19, 1, 0, 9)}
    assert raised_levels([worse], high) == {Metric.STEP: worse}
    assert raised_levels([worse, partly], high) == {Metric.STEP: Raised(Metric.STEP, 9, 12, 100, 110, 0.0025)}
    assert raised_levels([worse, back], high) == raised_levels([partly], high) == {}


def test_a_night_is_known_by_the_level_and_the_width_of_the_metric_that_is_worse():
    limits = {Metric.STEP: Limit(100 * MS, 10 * MS, 0, 9), Metric.EXPOSED: Limit(20 * MS, 2 * MS, 0, 9)}
    raised = {Metric.STEP: Level("a", 100 * MS, 120 * MS), Metric.EXPOSED: Level("b", 20 * MS, 30 * MS)}
    before = Measures("before", 100 * MS, 20 * MS, {"idle": 100 * MS})

    def verdict(step: int, exposed: int) -> NightVerdict:
        now = Measures("now", step * MS, exposed * MS, {"idle": step * MS})
        return judge_nights(now, before, [], Tolerances(), limits, raised=raised)

    assert verdict(121, 31).known and verdict(121, 31).statement.count(", as since ") == 2
    assert not verdict(121, 37).known, "near the level for a step, not for this metric"
    assert not verdict(131, 20).known and verdict(105, 20).outcome is Outcome.PASS
    near = verdict(111, 20)
    assert near.known and near.worse == ("step time",)
    limits[Metric.STEP] = Limit(100 * MS, 15 * MS, 0, 9)
    near = verdict(112, 20)
    assert near.outcome is Outcome.WORSE and near.known, "the limit is wider than the change that was confirmed"
    assert near.statement.endswith("step time, 112 ms, is nearer to 120 ms than to 100 ms, as since a")
