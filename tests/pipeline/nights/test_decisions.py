"""Verdicts are the same whether nights are judged one by one or together, and follow what somebody decided."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.damage import call
from tests.made_once import made_once
from tests.pipeline.nights.made import FIRST, add, add_nights, first_night, judge, steps
from tests.sets import fast
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.marking import mark_stale
from traceviz_dag.lake.stale import Stale
from traceviz_dag.pipeline.baselines import all_baselines
from traceviz_dag.pipeline.home_settings import load_settings
from traceviz_dag.pipeline.nights.judging import references
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import StaleCause, StaleStage


@pytest.fixture
def lake(tmp_path) -> Lake:
    first = made_once("night_of_decisions", lambda folder: first_night(folder) and None)
    shutil.copytree(first / "home", tmp_path / "home")
    return open_lake(tmp_path / "home")


def series(*levels: tuple[int, float]) -> list[float]:
    """Nights at some levels, each so many, with a noise of .4 %."""
    shares = [share for nights, share in levels for _ in range(nights)]
    return [share * noise for share, noise in zip(shares, steps(len(shares), 0.004), strict=True)]


def one_by_one(lake: Lake, shares: Iterable[float], first: int) -> None:
    for number, share in enumerate(shares, first):
        add(lake, "job", number, share, number)
        lake.refresh_catalogue()
        judge(lake)


def verdicts(lake: Lake, *columns: str) -> dict[int, tuple]:
    rows = lake.query(
        f"SELECT iteration, {', '.join(columns or ('verdict', 'known'))} FROM nights ORDER BY 1"
    ).to_pylist()
    return {row.pop("iteration"): tuple(row.values()) for row in rows}


def decide(lake: Lake, *words: str) -> None:
    assert call("baseline", *words, "--home", lake.home).code == 0
    judge(lake)


def without_a_digest(lake: Lake) -> dict[int, tuple]:
    return verdicts(lake, "verdict", "known", "statement", "baseline_iteration", "reference_iteration", "limit_ns")


LEVELS = {
    "a better night": ((3, 1), (1, 0.8), (4, 1)),
    "partly recovered": ((10, 1), (6, 1.2), (6, 1.1)),
    "shorter": ((9, 1), (7, 0.9)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", fast(LEVELS, "a better night"))
def test_nights_that_are_judged_one_by_one_have_the_verdicts_of_those_judged_together(lake, tmp_path, name):
    shares = series(*LEVELS[name])
    shutil.copytree(lake.home, tmp_path / "other")
    other = open_lake(tmp_path / "other")
    judge(other)
    one_by_one(other, shares[1:], FIRST + 1)
    add_nights(lake, shares)
    judge(lake)
    assert without_a_digest(lake) == without_a_digest(other)


@pytest.mark.long
def test_a_level_that_was_raised_stays_worse_and_known_with_few_nights_before_it_and_where_it_recovers_in_part(lake):
    add_nights(lake, series((6, 1), (8, 1.2), (8, 1.1), (7, 1), (1, 1.1)))
    judge(lake)
    raised = dict(lake.query("SELECT iteration, statement FROM night_changes WHERE worse").to_pylist()[0])
    found = verdicts(lake)
    assert all(found[night] == ("worse", True) for night in range(raised["iteration"] + 1, 32)), found
    assert {found[night][0] for night in range(32, 39)} == {"pass"} and found[39] == ("worse", False)


def test_a_worse_level_that_nobody_accepts_never_becomes_the_measure(lake, monkeypatch):
    monkeypatch.setattr("traceviz_dag.pipeline.nights.judging.MOST_NIGHTS", 12)
    add_nights(lake, series((10, 1), (20, 1.2)))
    judge(lake)
    assert all(verdict == ("worse", True) for night, verdict in verdicts(lake).items() if night > 25)


def test_a_rejected_night_that_is_set_as_the_baseline_is_what_later_ones_are_held_against(lake):
    add_nights(lake, series((10, 1), (3, 1.2)))
    judge(lake)
    decide(lake, "set", "job", "job@22")
    one_by_one(lake, (3.0, 1.2), 23)
    found = verdicts(lake, "verdict", "baseline_iteration", "reference_iteration")
    assert found[22][0] == "worse" and found[23] == ("worse", 22, 22) and found[24] == ("pass", 22, 22)
    assert "job@22" in references(lake, load_settings(lake.home).nightly)


@pytest.mark.long
def test_a_baseline_that_is_set_holds_against_changes_that_were_known_and_gives_way_to_later_ones(lake):
    add_nights(lake, series((9, 1), (8, 0.9)))
    judge(lake)
    listed = call("baseline", "list", "--home", lake.home, "--json").json
    assert [(row["iteration"], row["by"]) for row in listed] == [(19, "gate")] and not all_baselines(lake.home)
    decide(lake, "set", "job", "job@12")
    assert {begin for night, (begin,) in verdicts(lake, "baseline_iteration").items() if night > 12} == {12}
    one_by_one(lake, series((8, 0.7)), 27)
    assert verdicts(lake, "baseline_iteration")[34] == (27,)
    (row,) = call("baseline", "list", "--home", lake.home, "--json").json
    assert (row["iteration"], row["by"], row["gate"]) == (27, "gate", True)


@pytest.mark.long
def test_nights_are_accepted_one_after_the_other_and_none_is_forgotten_until_they_are_removed(lake):
    add_nights(lake, series((10, 1), (3, 1.2), (3, 1.5)))
    judge(lake)
    for night in (20, 23):
        assert call("baseline", "accept", f"job@{night}", "--home", lake.home).code == 0
    judge(lake)
    found = verdicts(lake, "verdict", "baseline_iteration")
    assert {found[night] for night in (21, 22)} == {("pass", 20)} and {found[night] for night in (24, 25)} == {
        ("pass", 23)
    }
    assert call("iterations", "--gate", "--home", lake.home).code == 0
    add(lake, "job", 20, 1.2001, 20)
    lake.refresh_catalogue()
    judge(lake)
    assert verdicts(lake)[20][0] == "pass", "accepted still, although it was computed again"
    decide(lake, "remove", "job")
    assert all(verdict == "worse" for night, (verdict, _) in verdicts(lake).items() if night >= 20)
    decide(lake, "accept", "job@23")
    decide(lake, "set", "job", "job@15")
    assert [one.key for one in all_baselines(lake.home)["job"]] == ["job@15"], "what was decided of later nights goes"


@pytest.mark.parametrize("name", ["feature/x", "", " ", "job@3"])
def test_a_name_that_no_command_could_look_up_is_refused(lake, name):
    answer = call("baseline", "set", name, "job@10", "--home", lake.home)
    assert answer.code == 2 and "can be no name" in answer.err and not all_baselines(Path(lake.home))


def exposed(*levels: tuple[int, float]) -> list[float]:
    return [share for nights, share in levels for _ in range(nights)]


def add_both(lake: Lake, steps_: Iterable[float], exposed_: Iterable[float]) -> None:
    for number, (share, more) in enumerate(zip(steps_, exposed_, strict=True), FIRST):
        if number > FIRST:
            add(lake, "job", number, share, number, more)
    lake.refresh_catalogue()


@pytest.mark.long
def test_a_shorter_step_moves_no_baseline_to_nights_that_are_worse_in_another_measure(lake):
    add_both(lake, series((10, 1), (8, 0.85)), exposed((1, 1), (9, 20), (8, 26)))
    judge(lake)
    assert not lake.query("FROM night_changes WHERE rebased").num_rows
    assert all(verdict == "worse" for night, (verdict, _) in verdicts(lake).items() if night > 23)
    assert call("iterations", "--gate", "--home", lake.home).code == 1


@pytest.mark.long
def test_what_a_night_raised_before_somebody_accepted_its_level_is_not_held_against_later_ones(lake):
    add_nights(lake, series((10, 1), (9, 1.2)))
    judge(lake)
    mark_stale(lake, "job", 23, [Stale(None, StaleStage.ITERATIONS, StaleCause.OUTDATED, "")])
    decide(lake, "accept", "job@20")
    assert [verdicts(lake)[night] for night in (21, 22, 24, 25, 28)] == [("pass", False)] * 5


@pytest.mark.long
def test_a_night_that_comes_late_at_a_level_that_was_raised_is_known(lake):
    shares = series((10, 1), (9, 1.2))
    for number, share in enumerate(shares[1:], FIRST + 1):
        if number != 22:
            add(lake, "job", number, share, number)
    lake.refresh_catalogue()
    judge(lake)
    one_by_one(lake, shares[12:13], 22)
    assert verdicts(lake)[22] == ("worse", True)


@pytest.mark.long
def test_what_raised_a_level_is_kept_and_so_is_the_last_night_before_it(lake):
    add_nights(lake, series((10, 1), (9, 1.2)))
    judge(lake)
    ((at,),) = verdicts_of_changes(lake)
    kept = references(lake, load_settings(lake.home).nightly)
    assert {"job@10", "job@19", "job@20", f"job@{at}"} <= kept
    assert "job@28" not in kept


def verdicts_of_changes(lake: Lake) -> list[tuple[int]]:
    return [tuple(row.values()) for row in lake.query("SELECT iteration FROM night_changes").to_pylist()]


@pytest.mark.long
def test_a_baseline_holds_although_nights_are_gone_that_were_there_when_it_was_set(lake):
    add_nights(lake, series((9, 1), (8, 0.9)))
    judge(lake)
    decide(lake, "set", "job", "job@12")
    before = without_a_digest(lake)
    for night in (11, 26):
        lake.delete(*all_tables(), run="job", iteration=night)
    lake.refresh_catalogue()
    assert judge(lake) == [], "nothing that the others rest on has changed"
    one_by_one(lake, (0.9,), 27)
    assert verdicts(lake, "baseline_iteration")[27] == (12,) and before[25] == without_a_digest(lake)[25]


def test_nights_that_a_glob_joins_later_are_judged_anew(lake):
    settings = lake.home / "traceviz.toml"
    text = settings.read_text()
    settings.write_text(text.replace('series = ["night-*"]', "series = []"))
    for night, share in enumerate((1, 1.001, 1.002, 1.5), 1):
        add(lake, f"night-{night:02d}", FIRST, share, night)
    lake.refresh_catalogue()
    judge(lake)
    settings.write_text(text)
    judge(lake)
    rows = lake.query("SELECT run, series, verdict FROM nights WHERE run LIKE 'night-%' ORDER BY 1").to_pylist()
    assert {row["series"] for row in rows} == {"night-*"} and rows[-1]["verdict"] == "worse"


def test_accepting_an_earlier_night_keeps_later_ones_and_setting_one_keeps_that_it_is_accepted(lake):
    add_nights(lake, series((10, 1), (3, 1.2), (3, 1.5)))
    for words in (("accept", "job@23"), ("accept", "job@20"), ("set", "job", "job@23")):
        assert call("baseline", *words, "--home", lake.home).code == 0
    judge(lake)
    assert [verdicts(lake)[night][0] for night in (20, 22, 23, 25)] == ["pass"] * 4
    answer = call("baseline", "set", "job", "job", "--home", lake.home)
    assert answer.code == 2 and "has 16 nights; name one" in answer.err
