"""Nights in a home: their verdicts, the change that lasts, who moves the baseline, and what the commands say."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.damage import call
from tests.pipeline.nights.made import FIRST, add, add_nights, first_night, judge, steps
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.pipeline.baselines import Baseline, SetBy, baselines, keep_baseline
from traceviz_dag.pipeline.home_settings import load_settings
from traceviz_dag.pipeline.nights.judged import unjudged
from traceviz_dag.pipeline.nights.judging import references


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A home with iteration 10 of a job of two ranks."""
    return first_night(tmp_path_factory.mktemp("nights"))


@pytest.fixture
def lake(first, tmp_path) -> Lake:
    shutil.copytree(first, tmp_path / "home")
    return open_lake(tmp_path / "home")


def test_a_rise_that_lasts_is_raised_once_known_later_and_over_when_it_is_accepted(lake):
    add_nights(lake, steps(20, since=15, share=1.12))
    nights = judge(lake)
    alarms = [(night.partitions[0].iteration, change) for night in nights for change in night.changes]
    ((raised_at, alarm),) = alarms
    assert alarm.is_alarm and alarm.since[0].iteration == FIRST + 14 and raised_at <= FIRST + 18
    assert "confirmed change: step time +" in alarm.statement and "since job@24 (1970-01-25): " in alarm.statement
    assert alarm.compared and alarm.compared[0].startswith("job@")
    later = [night for night in nights if night.partitions[0].iteration > raised_at]
    assert later and all(night.verdict.accepted is False and night.verdict.known and not night.fails for night in later)
    assert [night.fails for night in nights if FIRST + 14 <= night.partitions[0].iteration <= raised_at].count(
        True
    ) >= 1
    assert call("iterations", "--gate", "--home", lake.home).code == 1
    assert call("baseline", "accept", "job@24", "--home", lake.home).code == 0
    assert [one.iteration for one in unjudged(lake)] == [*range(24, 30)], "its verdict changes, and that of later ones"
    accepted, *later = judge(lake)
    assert all(night.verdict.accepted and night.baseline == accepted.partitions for night in later)
    assert accepted.verdict.accepted and accepted.verdict.statement.endswith("accepted by hand")
    add(lake, "job", 30, 1.125, 30)
    lake.refresh_catalogue()
    (tonight,) = judge(lake)
    assert tonight.verdict.accepted and tonight.baseline == accepted.partitions
    assert call("iterations", "--gate", "--home", lake.home).code == 0


@pytest.mark.long
def test_a_confirmed_shorter_step_moves_the_baseline_and_no_shorter_night_alone_does(lake):
    shares = steps(20, since=15, share=0.9)
    shares[11] = 0.8
    add_nights(lake, shares)
    nights = judge(lake)
    assert all(night.verdict.accepted for night in nights) and nights[11].verdict.outcome == "better"
    ((raised_at, change),) = [(night.partitions[0].iteration, one) for night in nights for one in night.changes]
    assert change.rebased and not change.is_alarm and change.since[0].iteration == FIRST + 14
    (kept,) = call("baseline", "list", "--home", lake.home, "--json").json
    assert kept == {"name": "job", "run": "job", "iteration": 24, "by": "gate", "gate": True}
    assert nights[-1].baseline == change.since and raised_at < FIRST + 19
    assert f"job@{FIRST + 14}" in references(lake, load_settings(lake.home).nightly), "it is kept"


@pytest.mark.long
def test_the_steps_of_a_run_are_one_night_where_runs_are_joined(lake):
    for day, run in enumerate(("night-a", "night-b"), 20):
        for iteration, share in ((10, 1.0), (11, 1.5), (12, 1.01), (13, 1.005)):
            add(lake, run, iteration, share * (1.2 if run == "night-b" else 1), day)
    lake.refresh_catalogue()
    nights = {night.night.name: night for night in judge(lake)}
    assert set(nights) == {"job@10", "night-a@10-13", "night-b@10-13"}
    before, now = nights["night-a@10-13"], nights["night-b@10-13"]
    first_ns = nights["job@10"].measures.step_ns
    assert before.measures.step_ns == round(first_ns * 1.005) and now.verdict.outcome == "worse"
    assert "against night-a@10-13" in now.verdict.statement
    rows = lake.query("SELECT count(*) AS rows, any_value(steps) AS steps FROM nights WHERE run = 'night-b'")
    assert rows.to_pylist() == [{"rows": 4, "steps": 4}]
    add(lake, "night-b", 14, 1.0, 21)
    lake.refresh_catalogue()
    assert {one.iteration for one in unjudged(lake)} == {10, 11, 12, 13, 14}, "a step that came late changes the night"


def test_the_sample_that_a_night_keeps_is_what_its_tables_say(lake):
    add_nights(lake, steps(3))
    judge(lake)
    sql = "SELECT iteration, max(step_ns) AS step_ns FROM night_steps GROUP BY ALL ORDER BY ALL"
    kept = [tuple(row.values()) for row in lake.query(sql).to_pylist()]
    assert kept == [
        tuple(row.values()) for row in lake.query("SELECT iteration, step_ns FROM iterations ORDER BY ALL").to_pylist()
    ]


@pytest.mark.long
def test_iterations_shows_verdicts_and_changes_without_dagster_and_writes_nothing(lake, tmp_path):
    add_nights(lake, steps(20, since=15, share=1.12))
    figure = tmp_path / "series.svg"
    answer = call("iterations", "--gate", "--figure", figure, "--home", lake.home, "--json")
    rows = answer.json
    assert answer.code == 1 and not lake.partitions("nights")
    assert rows[0]["verdict"] == "pass" and rows[-1]["verdict"] == "worse" and rows[-1]["known"]
    ((change,),) = [row["changes"] for row in rows if row["changes"]]
    assert change["worse"] and change["since_iteration"] == FIRST + 14
    drawn = figure.read_text()
    assert 'id="change/job@24"' in drawn and drawn.count('id="change/') == 1
    assert "confirmed change" in call("iterations", "--gate", "--home", lake.home).out
    assert all(row["verdict"] is None for row in call("iterations", "--home", lake.home, "--json").json)


def test_baselines_are_named_listed_compared_with_and_removed(lake):
    add_nights(lake, steps(3))
    home = ("--home", lake.home)
    assert "No baselines" in call("baseline", "list", *home).out
    assert call("baseline", "set", "release", "job@11", *home).code == 0
    assert call("baseline", "set", "job", "job@12", *home).out == "The baseline job is job@12.\n"
    assert call("baseline", "list", *home, "--json").json == [
        {"name": "job", "run": "job", "iteration": 12, "by": "set", "gate": True},
        {"name": "release", "run": "job", "iteration": 11, "by": "set", "gate": False},
    ]
    table = call("baseline", "list", *home).out
    assert "release" in table and "nightly gate" in table
    compared = json.loads(call("diff", "release", "job@12", *home, "--json", "--anyway").out)
    assert (compared["a"]["run"], compared["a"]["iteration"]) == ("job", 11) or compared["a"]["iterations"] == [11]
    assert call("baseline", "remove", "release", *home).code == 0
    assert list(baselines(lake.home)) == ["job"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "job", "other"), "no such run in the home; there are job"),
        (("set", "x", "job@99"), "no such iteration"),
        (("accept", "job"), "name one, as job@12"),
        (("remove", "x"), "no baseline 'x'"),
    ],
)
def test_a_baseline_that_cannot_be_is_one_line(lake, words, said):
    add_nights(lake, steps(3))
    answer = call("baseline", *words, "--home", lake.home)
    assert answer.code == 2 and said in answer.err and not baselines(lake.home)


def test_a_damaged_list_of_baselines_is_named(lake):
    (lake.home / "baselines.json").write_text('{"job": {"run": 3}}')
    answer = call("baseline", "list", "--home", lake.home)
    assert answer.code == 2 and "baselines.json" in answer.err and "is damaged" in answer.err


def test_baselines_that_are_set_at_once_are_all_kept(tmp_path):
    names = [f"name-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: keep_baseline(tmp_path, name, Baseline("job", 3, SetBy.NAMED)), names))
    assert sorted(baselines(tmp_path)) == sorted(names)
